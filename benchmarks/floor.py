"""The floor of a workload: no kernel can be faster than its compulsory traffic, or its arithmetic.

Compulsory are each input once and each result once. Bandwidth is what kernels of
`polyfuse.runtime.machine.probe`
reach in the same process and the same minute for that working set, in the best mix: reads and fills on their
own, or as many copies as there are pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.tensor_graph import Apply, Const, Role, Statement, Tensor, TensorGraph, depends_on, walk

# Operations (a fused multiply and add is one) of the shortest polynomials that are accurate enough.
_COSTS = {"exp": 9, "log": 11, "tanh": 13, "sigmoid": 11, "erf": 14, "pow": 20, "sin": 12, "cos": 12}
_COSTS |= {"div": 2, "sqrt": 2, "rsqrt": 2}


@dataclass(frozen=True)
class Compulsory:
    """What a workload must read, write and compute; what it updates in place is read and written, but lies
    in the working set once."""

    read: int
    written: int
    operations: int
    working_set: int

    def seconds(self, rates: Mapping[str, Any]) -> float:
        """The time of that at measured rates (GB/s and GFLOP/s of a BandwidthReport)."""
        fill, copy = max(rates["fill"], rates["fill_nt"]), max(rates[k] for k in ("copy", "map", "map_nt"))
        pairs = min(self.read, self.written)
        apart = self.read / rates["read"] + self.written / fill
        mixed = 2 * pairs / copy + (self.read - pairs) / rates["read"] + (self.written - pairs) / fill
        arithmetic = 2 * self.operations / rates["fma_gflops"]
        return float(max(min(apart, mixed), arithmetic)) * 1e-9


def compulsory(graph: TensorGraph, sizes: Mapping[str, int]) -> Compulsory:
    """Of an operator at these sizes."""
    read = written = held = 0
    for t in graph.tensors:
        nbytes = _bytes(t, sizes) if t.role is not Role.TEMP else 0
        read += nbytes * (t.role in (Role.INPUT, Role.INOUT))
        written += nbytes * (t.role is Role.OUTPUT)
        held += nbytes * (t.alias is None)
    return Compulsory(read, written, sum(_operations(s, sizes) for s in graph.statements), held)


def _bytes(t: Tensor, sizes: Mapping[str, int]) -> int:
    return evaluate(product(t.shape), sizes) * t.dtype.bytes


def _operations(s: Statement, sizes: Mapping[str, int]) -> int:
    """Each as often as it has different operands: what does not depend on a loop is computed outside of it.

    Costly functions count in full; additions and products in pairs, a reduction's own among them."""
    extents = {d.name: max(0, evaluate(d.upper, sizes) - evaluate(d.lower, sizes)) for d in s.dims}

    def times(variables: Iterable[str]) -> int:
        return math.prod(extents[v] for v in variables if v in extents)

    costly = simple = 0
    for e in walk(s.expr):
        if isinstance(e, Apply):
            cost = _cost(e)
            costly += times(depends_on(e)) * cost
            simple += times(depends_on(e)) * (not cost)
    simple += times(extents) * (s.reduction is not None)
    return costly + simple // 2


def _cost(e: Apply) -> int:
    """Of a function; 0 for an addition, a product and the like."""
    match e:
        case Apply("pow", (_, Const(exponent))):
            return {2.0: 0, 0.5: _COSTS["sqrt"], -0.5: _COSTS["rsqrt"]}.get(float(exponent), _COSTS["pow"])
        case _:
            return _COSTS.get(e.op, 0)
