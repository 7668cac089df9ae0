"""Which accesses run along memory in one loop and jump in another one, that of the vector lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IVar, variables
from polyfuse.ir.linear import linear
from polyfuse.ir.schedule_tree import Member
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Index,
    IndexValue,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
    depends_on,
    plain_variables,
    statement_reads,
    walk,
)
from polyfuse.layers.loop_order import NEAR
from polyfuse.layers.strides import address, stride

LINE = Core().line
# Lines so many bytes apart are in few sets of a cache.
CROWDED = 2048
# A tile saves a jump of each lane; what no tile can be made of counts as so many that can.
AS_MANY = 8


@dataclass(frozen=True, slots=True)
class Lanes:
    """Two loops around statements of a graph: `row`, and the vector lanes in it."""

    graph: TensorGraph
    names: tuple[str, ...]
    row: Member
    lanes: tuple[Member, ...]

    def reads(self) -> list[Read]:
        """Those along memory in the row, which jump in the lanes."""
        return [
            r
            for s, row, lane in self._statements()
            for r in statement_reads(s)
            if steps_along(r.indices, row, lane) == 1
        ]

    def stores(self) -> list[Statement]:
        """Statements whose results are so, with neighbours of the row in a line."""
        return [s for s, row, lane in self._statements() if _is_across(self.graph, s, row, lane)]

    def cost(self) -> int:
        """Bytes that are turned around for an iteration of both loops, those many times that cannot be."""
        total = 0
        for s, row, lane in self._statements():
            results = [] if self.graph.tensor(s.target).role is Role.TEMP else [(s.target, s.write)]
            reads = [(r.tensor, r.indices) for r in statement_reads(s)]
            for tensor, indices in dict.fromkeys([*results, *reads]):
                if jumps(indices, lane) or by_data(indices, lane):
                    turned = steps_along(indices, row, lane) and not (guards(s) and indices is not s.write)
                    total += self.graph.tensor(tensor).dtype.bytes * (1 if turned else AS_MANY)
        return total

    def _statements(self) -> Iterator[tuple[Statement, str, str]]:
        """Those that are in both loops, with their dims of both."""
        for n in self.names:
            row = self.row.of(n)
            lane = next((f for m in self.lanes for s, f in m.exprs if s == n), None)
            if isinstance(row, IVar) and isinstance(lane, IVar) and row != lane:
                yield self.graph.statement(n), row.name, lane.name


def stored_across(graph: TensorGraph, lanes: Iterable[Member], names: Iterable[str]) -> list[Statement]:
    """The statements whose results jump in the lanes, along whatever they run."""
    of = {n: e.name for m in lanes for n, e in m.exprs if isinstance(e, IVar)}
    return [
        s
        for s in map(graph.statement, names)
        if s.name in of and graph.tensor(s.target).role is not Role.TEMP and s.reduction is None
        if not any(isinstance(i, EXPR_TYPES) for i in s.write) and jumps(s.write, of[s.name])
        if (apart := stride(address(graph, s.target, s.write), of[s.name])) is None or abs(apart) > NEAR
    ]


def crowds(graph: TensorGraph, s: Statement, lane: Member) -> bool:
    """Are the lines that neighbouring lanes store to in few sets of a cache?"""
    at = lane.of(s.name)
    apart = stride(address(graph, s.target, s.write), at.name) if isinstance(at, IVar) else None
    return apart is not None and apart * graph.tensor(s.target).dtype.bytes % CROWDED == 0


def jumps(indices: tuple[Index, ...], lane: str) -> bool:
    """Are neighbouring lanes in other rows of memory?"""
    return lane in plain_variables(indices[:-1])


def by_data(indices: tuple[Index, ...], lane: str) -> bool:
    """Does data say where the elements of neighbouring lanes are?"""
    return any(lane in depends_on(i) for i in indices if isinstance(i, EXPR_TYPES))


def clamped_across(s: Statement, lane: str) -> bool:
    """Is something read at places that jump in the lanes, and that no tile is made of as they are clamped?"""
    if guards(s):
        return False
    for *leading, last in (r.indices for r in statement_reads(s) if len(r.indices) > 1):
        clamped = not isinstance(last, EXPR_TYPES) and linear(last).hidden
        if clamped and jumps((*leading, last), lane) and not any(isinstance(i, EXPR_TYPES) for i in leading):
            return True
    return False


def steps_along(indices: tuple[Index, ...], row: str, lane: str) -> int:
    """The steps in memory of an access along a row that jumps in the lanes; 0 if it doesn't."""
    *leading, last = indices or (None,)
    if last is None or isinstance(last, EXPR_TYPES) or any(isinstance(i, EXPR_TYPES) for i in leading):
        return 0
    inside = plain_variables(leading)
    if row in inside or lane not in inside or lane in variables(last):
        return 0
    return abs(linear(last).factor(IVar(row)))


def guards(s: Statement) -> bool:
    """Are there conditions on indices in it?"""
    conditions = [e.cond for e in walk(s.expr) if isinstance(e, Select)]
    return any(isinstance(x, IndexValue) for c in conditions for x in walk(c))


def has_arms(s: Statement, lane: str) -> bool:
    """Does what is read along the lanes change where an index or a condition goes over to another arm?"""
    plain = [i for r in statement_reads(s) for i in r.indices if not isinstance(i, EXPR_TYPES)]
    return guards(s) or any(lane in linear(i).hidden for i in plain)


def _is_across(graph: TensorGraph, s: Statement, row: str, lane: str) -> bool:
    tensor = graph.tensor(s.target)
    if tensor.role is Role.TEMP or s.reduction is not None:
        return False
    hidden = {v for i in s.write if not isinstance(i, EXPR_TYPES) for v in linear(i).hidden}
    return not hidden & {row, lane} and 0 < steps_along(s.write, row, lane) * tensor.dtype.bytes < LINE
