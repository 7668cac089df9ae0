"""Nodes and edges of a kernel's graph, in the making: equal nodes are one, with a number of copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polyfuse.ir.ops import OPS, Cost
from polyfuse.ir.schedule_tree import Coordinate

# Operations with an opcode of their own: arithmetic, and functions that the language always had. Others, of
# which there are few samples, go by what kind of work they are.
_ARITHMETIC = ("add", "sub", "mul", "neg", "abs", "min", "max")
LONG = {Cost.FUNCTION: "functions", Cost.DIVIDER: "divisions", Cost.FLOORED: "divisions"}
OPERATIONS = (*_ARITHMETIC, *(o.name for o in OPS.values() if o.cost in LONG and not o.yields))
_LOOPS = tuple(f"loop.{c.value}" for c in Coordinate)
OPCODES: tuple[str, ...] = (
    *("tensor", "load", "store", "prefetch", "set", "array", "if", "tile", "transpose", "places"),
    *(f"update.{op}" for op in ("sum", "prod", "min", "max", "any", "all")),
    *_LOOPS,
    *("index", "cast", "select"),
    *(f"op.{name}" for name in OPERATIONS),
    *(f"op of {cost.value} work" for cost in Cost),
    *("barrier", "combine"),
)
"""What a node is.  `tensor`: memory; `set`: a scalar of its own; `places`: the variables of an iteration;
`combine`: threads of a GPU make one value of theirs.  New ones come last: numbers stay."""

# Sizes, of which features have the logarithm.
SIZES = (
    *("iterations", "copies", "trip", "lanes", "item bytes", "operand bytes"),
    *("stride", "stride of the second loop", "stride of the third loop"),
    *("tensor bytes", "touched bytes", "row bytes", "since bytes"),
    *("step", "accumulators", "accumulator bytes", "rows", "columns"),
)
NODE_FEATURES: tuple[str, ...] = (
    *SIZES,
    *("depth", "weight", "float", "in lanes", "by data", "by parts", "rest", "same sets"),
    *("argument", "global", "local", "register"),
    *("streamed", "prefetched", "rows ahead", "at lines"),
    *("written out", "joint", "of data"),
)
"""What is known of a node.  Of `SIZES` it is log2(1 + x), the others are as they are.

rest: the part of the last vector of a loop that is empty, over all its vectors.  same sets: neighbouring
iterations touch lines of one set of L1.  by parts: an index goes over to other parts along the loop.
"""

_AT = {name: k for k, name in enumerate(NODE_FEATURES)}
_CODE = {name: k for k, name in enumerate(OPCODES)}


@dataclass(frozen=True, slots=True)
class NodeTable:
    """Opcodes, features and edges of all nodes, and sums over them that kernels have as features."""

    opcodes: npt.NDArray[np.int16]
    nodes: npt.NDArray[np.float32]
    edges: npt.NDArray[np.int32]
    totals: Mapping[str, float]


class NodeGraph:
    """Nodes by their keys, edges between them, and totals."""

    def __init__(self, vector_bytes: int) -> None:
        self.vector_bytes = vector_bytes
        self.codes: list[int] = []
        self.rows: list[list[float]] = []
        self.edges: dict[tuple[int, int], None] = {}
        self.totals: dict[str, float] = {}
        self._numbers: dict[object, int] = {}

    def table(self) -> NodeTable:
        """All of it as arrays."""
        rows = np.array(self.rows, np.float64).reshape(len(self.rows), len(NODE_FEATURES))
        rows[:, : len(SIZES)] = np.log2(1.0 + rows[:, : len(SIZES)])
        edges = np.array([*self.edges], np.int32).reshape(-1, 2).T
        # Half precision, as they are kept: who trains and who asks see the same.
        nodes = rows.astype(np.float16).astype(np.float32)
        return NodeTable(np.array(self.codes, np.int16), nodes, np.ascontiguousarray(edges), self.totals)

    # --- nodes --------------------------------------------------------------------------------------------

    def node(self, opcode: str, key: object, times: float, features: Mapping[str, float]) -> int:
        """The node of a key; it is made the first time, and has one more copy then."""
        number = self._numbers.get((opcode, key))
        if number is None:
            number = self._numbers[opcode, key] = len(self.rows)
            row = [0.0] * len(NODE_FEATURES)
            for name, value in features.items():
                row[_AT[name]] = value
            self.codes.append(_CODE[opcode])
            self.rows.append(row)
        self.rows[number][_AT["iterations"]] += times
        self.rows[number][_AT["copies"]] += 1
        return number

    def edge(self, producer: int, consumer: int) -> None:
        if producer >= 0 and producer != consumer:
            self.edges[producer, consumer] = None

    def count(self, kind: str, times: float) -> None:
        self.totals[kind] = self.totals.get(kind, 0.0) + times

    def put(self, node: int, feature: str, value: float) -> None:
        """Give a node a feature."""
        self.rows[node][_AT[feature]] = value

    def known(self, opcode: str, key: object) -> int:
        """The node of a key that was made before."""
        return self._numbers[opcode, key]
