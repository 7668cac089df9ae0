"""What stands at a place of an order (arglargest, argsmallest), as plain reductions.

`with_orders`     at known sizes, before all other passes
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from polyfuse.decisions import Decision, counted
from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.dtypes import I32, I64
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary
from polyfuse.ir.tensor_graph import (
    Cast,
    Const,
    Expr,
    IterDim,
    Read,
    Statement,
    Tensor,
    TensorGraph,
)
from polyfuse.layers.graph.inline import LARGEST, LARGEST_SHORT
from polyfuse.layers.graph.row_order import RowOrder, sizes_of_orders

ROUNDS = 64
"""As many places are found one after the other, each in a pass over the row,"""
SHARE = 4
"""if the row has so many elements for each of them."""
GROUP = 32
"""The elements of a group, whose extreme is kept,"""
GROUPED, AGAIN = 256, 8
"""in rows of so many elements, if so many places are asked for."""
LONG = 512
"""Rows of more elements are sorted by merging; in shorter ones each element is compared with all others."""
RUN = 256
"""The elements of a run that is sorted by counting; a power of two."""


def with_orders(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """arglargest and argsmallest as plain reductions; sizes are known.

        a[t, k] = arglargest[h](e, k)
    becomes, with e in storage since all uses must see the same bits,

        v[t, h] = e
        ...                              (the order of each row, in one of the ways below)
        a[t, k] = i64(i[t, k])

    Raises ScheduleError PF513 while sizes are open that the way depends on.
    """
    if needed := sizes_of_orders(graph):
        raise ScheduleError(
            f"the way in which elements are put in order depends on {', '.join(needed)}",
            code="PF513",
            hint="give these sizes to specialize(), or to the command with --size",
        )
    statements: list[Statement] = []
    tensors = {t.name: t for t in graph.tensors}
    for s in graph.statements:
        if s.place is None:
            statements.append(s)
            continue
        new_statements, new_tensors = _parts(graph, s, s.place, decisions)
        statements += new_statements
        tensors |= {t.name: t for t in new_tensors}
    return replace(graph, statements=tuple(statements), tensors=tuple(tensors.values()))


def _parts(
    graph: TensorGraph, s: Statement, place: IndexExpr, decisions: list[Decision]
) -> tuple[list[Statement], list[Tensor]]:
    """The parts, and the tensors that are new or to be stored."""
    kept = tuple(d for d in s.dims if not d.reduce)
    last = replace(s, dims=kept, reduction=None, place=None)
    order = RowOrder.of(graph, s)
    if order is None:
        return [replace(last, expr=Const(0, I64, s.span))], []
    found, how = _way(order)
    asked = f"{counted(order.places, 'place')} of {counted(order.length, 'element')}"
    decisions.append(Decision("order", s.name, True, f"{asked}: {how}"))
    here: Expr = order.read(found(order), place)
    if order.by_keys and found in (in_rounds, in_groups):
        here = order.where(here)
    value = here if order.number is I64 else Cast(here, I64, s.span)
    return [*order.stored.statements, replace(last, expr=value)], order.stored.tensors


def _way(order: RowOrder) -> tuple[Callable[[RowOrder], str], str]:
    """What finds the positions of the first ones of each row, and a word on it."""
    if order.places <= min(ROUNDS, max(1, order.length // SHARE)):
        if order.length >= GROUPED and order.places >= AGAIN and order.is_even and order.takes_data:
            return in_groups, f"one after the other, by the extremes of groups of {GROUP}"
        return in_rounds, "one after the other, each in a pass over the row"
    if order.length > LONG and order.is_even:
        return by_merging, f"rows are sorted by merging runs of {RUN}"
    return by_counting, "by the numbers of elements that come before each"


# --- in rounds --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Extremes:
    """Two tensors of the same shape: extremes of values, and the first positions that have them."""

    order: RowOrder
    value: str
    position: str

    @staticmethod
    def new(order: RowOrder, value: str, position: str, *size: int) -> Extremes:
        """New tensors, by parts of their names."""
        values = order.new(value, order.value.dtype, *size)
        return Extremes(order, values, order.new(position, order.number, *size))

    def read(self, *at: IndexExpr) -> tuple[Expr, Expr]:
        """An extreme and its position."""
        return self.order.read(self.value, *at), self.order.read(self.position, *at)

    def before(self, at: IndexExpr, value: Expr, position: Expr) -> Expr:
        """Does an extreme come before another element?"""
        (mine, here), order = self.read(at), self.order
        tie = order.apply("lt", here, position)
        if not order.by_keys:
            return order.first(mine, value, tie)
        equal = order.apply("and", order.apply("eq", mine, value), tie)
        return order.apply("or", order.apply("gt", mine, value), equal)

    def define(
        self,
        dims: tuple[IterDim, ...],
        at: tuple[IndexExpr, ...],
        value: Expr,
        position: Expr,
        left: Expr | None = None,
    ) -> None:
        """As reductions over elements, or over those that are left. If one is a NaN, the extreme is one."""
        order, dtype = self.order, self.order.value.dtype
        extreme = "max" if order.falling or order.by_keys else "min"
        found = order.apply("eq", value, order.read(self.value, *at))
        if dtype.is_float and not order.by_keys:
            found = order.apply("or", found, order.apply("isnan", value))
        if left is not None:
            value = order.chosen(left, value, Const(identity(extreme, dtype), dtype, order.s.span))
            found = order.apply("and", left, found)
        none = order.constant(LARGEST_SHORT if order.number is I32 else LARGEST)
        order.define(self.value, dims, at, value, extreme)
        order.define(self.position, dims, at, order.chosen(found, position, none), "min")


def in_rounds(order: RowOrder) -> str:
    """The first positions, each found in a pass over the row, which looks at what comes after the one before.

    m[t, 0] = max[h](v[t, h])
    i[t, 0] = min[h](i32(h) if v[t, h] == m[t, 0] else 2**31 - 1)
    m[t, r] = max[h](v[t, h] if (v[t, h], h) comes after (m[t, r - 1], i[t, r - 1]) else -inf)
    i[t, r] = min[h](i32(h) if ... and v[t, h] == m[t, r] else 2**31 - 1)
    """
    best, r = Extremes.new(order, "best", "at", order.places), IVar(order.free("r"))
    element = order.element(IVar(order.over.name))
    best.define((order.over,), (IConst(0),), *element)
    if order.places > 1:
        dims = (IterDim(r.name, IConst(1), IConst(order.places)), order.over)
        best.define(dims, (r,), *element, best.before(r - 1, *element))
    return best.position


# --- in groups --------------------------------------------------------------------------------------------


def in_groups(order: RowOrder) -> str:
    """As in rounds, but among the extremes of groups; after each round that of one group is found again.

    g[t, 0, b] = extreme of v[t, GROUP*b + c] over c                (a value and its position, as all here)
    m[t, r]    = extreme of g[t, r, b] over b
    n[t, r]    = extreme of v[t, GROUP*(i // GROUP) + c] over what comes after m[t, r-1]; its position is i
    g[t, r, b] = n[t, r] if b == i // GROUP else g[t, r-1, b]
    """
    count = -(-order.length // GROUP)
    b, c, r = (IVar(order.free(n)) for n in "bcr")
    best = Extremes.new(order, "best", "at", order.places)
    groups = Extremes.new(order, "group", "where", order.places, count)
    again = Extremes.new(order, "again", "there", order.places)
    each, rounds = _below(b, count), IterDim(r.name, IConst(1), IConst(order.places))
    over = replace(each, reduce=True)
    end = binary("min", GROUP, order.length - b * GROUP) if order.length % GROUP else IConst(GROUP)
    element = order.element(b * GROUP + c + order.first_position)
    groups.define((each, IterDim(c.name, IConst(0), end, True)), (IConst(0), b), *element)
    best.define((over,), (IConst(0),), *groups.read(IConst(0), b))
    low, size = order.constant(order.first_position), order.constant(GROUP)
    last = order.where(order.read(best.position, r - 1))
    changed = order.apply("floordiv", order.apply("sub", last, low), size)
    start = order.apply("add", order.apply("mul", changed, size), low)
    # Beyond the row the last element again: it changes no extreme.
    end_of_row = order.constant(order.first_position + order.length - 1)
    there = order.apply("min", order.apply("add", start, order.counted(c)), end_of_row)
    element = order.element(there)
    inside = IterDim(c.name, IConst(0), IConst(GROUP), True)
    again.define((rounds, inside), (r,), *element, best.before(r - 1, *element))
    same = order.apply("eq", order.counted(b), changed)
    names = groups.value, groups.position
    for name, new, old in zip(names, again.read(r), groups.read(r - 1, b), strict=True):
        order.define(name, (rounds, each), (r, b), order.chosen(same, new, old))
    best.define((rounds, over), (r,), *groups.read(r, b))
    return best.position


# --- by counting ------------------------------------------------------------------------------------------


def by_counting(order: RowOrder) -> str:
    """The first positions; the place of each element is the number of those before it.

    p[t, h] = sum[j](i32((v[t, j], j) comes before (v[t, h], h)))
    i[t, p[t, h]] += i32(h)
    """
    h, j = IVar(order.over.name), order.free("j")
    earlier = order.apply("lt", order.counted(IVar(j)), order.counted(h))
    before = Cast(order.first(order.at(IVar(j)), order.value, earlier), I32, order.s.span)
    dims = (*order.rows, replace(order.over, reduce=False))
    place: Expr = order.stored.new("count", (*dims, replace(order.over, name=j)), before, "sum", dims)
    number = order.counted(h)
    if order.places < order.length:
        last = Const(order.places - 1, I32, order.s.span)
        asked = order.apply("le", place, last)
        number = order.chosen(asked, number, order.constant(0))
        place = order.apply("min", place, last)
    at = order.new("at", order.number, order.places)
    order.put(at, dims[-1:], place, number, order.places)
    return at


# --- by merging -------------------------------------------------------------------------------------------


def by_merging(order: RowOrder) -> str:
    """All positions: runs are sorted by counting, then merged two by two.

        u[t, q] = v[t, q + low]                      (low is the first position)
        p[t, b, c] = sum[j](i32(element j of run b comes before element c of it))
        i[t, RUN*b + p[t, b, c]] += i32(RUN*b + c)
    and for runs of R elements, R = RUN, 2*RUN, ...

        k[t, q] = u[t, i[t, q]]
        n[t, q, 0] = 0
        n[t, q, w] = n[t, q, w-1] + (R >> w if so many more of the run beside come before k[t, q] else 0)
        i'[t, q + n[t, q, last] - (R if q is in the right one of its pair else 0)] += i[t, q]
    """
    q = IVar(order.free("q"))
    row = order.new("row", order.value.dtype, order.length)
    order.define(row, (_below(q, order.length),), (q,), order.at(q + order.first_position))
    steps, at, run = _powers(order), _sorted_runs(order, row), RUN
    while run < order.length:
        at, run = _merged(order, row, at, run, steps), 2 * run
    if order.first_position == 0:
        return at
    moved = order.new("at", order.number, order.length)
    low = order.constant(order.first_position)
    order.define(moved, (_below(q, order.length),), (q,), order.apply("add", order.read(at, q), low))
    return moved


def _sorted_runs(order: RowOrder, row: str) -> str:
    b, c, j = (IVar(order.free(n)) for n in "bcj")
    start = b * RUN
    end = binary("min", RUN, order.length - start) if order.length % RUN else IConst(RUN)
    runs, inside = _below(b, -(-order.length // RUN)), IterDim(c.name, IConst(0), end)
    earlier = order.apply("lt", order.counted(j), order.counted(c))
    before = order.first(order.read(row, start + j), order.read(row, start + c), earlier)
    count = order.new("count", order.number, -(-order.length // RUN), RUN)
    term = Cast(before, order.number, order.s.span)
    order.define(count, (runs, inside, IterDim(j.name, IConst(0), end, True)), (b, c), term, "sum")
    place = order.apply("add", order.counted(start), order.read(count, b, c))
    at = order.new("run", order.number, order.length)
    order.put(at, (runs, inside), place, order.counted(start + c), order.length)
    return at


def _powers(order: RowOrder) -> str:
    """The powers of two, the distances of a bisection."""
    w, count = IVar(order.free("w")), order.length.bit_length() + 1
    powers = order.stored.tensor("powers", order.number, (IConst(count),))
    before = Read(powers, (w - 1,), order.number, order.s.span)
    one = order.constant(1)
    for low, high, e in ((0, 1, one), (1, count, order.apply("add", before, before))):
        dims, name = (IterDim(w.name, IConst(low), IConst(high)),), order.stored.statement(powers)
        order.stored.statements.append(Statement(name, powers, dims, (w,), e, span=order.s.span))
    return powers


def _merged(order: RowOrder, row: str, at: str, run: int, powers: str) -> str:
    """Runs of twice the length."""
    q, w = IVar(order.free("q")), IVar(order.free("w"))
    each, last = _below(q, order.length), run.bit_length()
    keys = order.new(f"keys{run}", order.value.dtype, order.length)
    order.define(keys, (each,), (q,), order.read(row, order.read(at, q)))
    right = q // run % 2
    beside = (q // run + 1 - right * 2) * run
    there = binary("max", 0, binary("min", run, order.length - beside))
    past = order.new(f"past{run}", order.number, order.length, last + 1)
    none, one = order.constant(0), order.constant(1)
    order.define(past, (each,), (q, IConst(0)), none)
    held = order.read(past, q, w - 1)
    more = order.apply("add", held, Read(powers, (last - w,), order.number, order.s.span))
    other = order.apply("sub", order.apply("add", order.counted(beside), more), one)
    other = order.apply("min", other, order.counted(IConst(order.length - 1)))
    tie = order.apply("eq", order.counted(right), one)
    before = order.first(order.read(keys, other), order.read(keys, q), tie)
    passes = order.apply("and", order.apply("le", more, order.counted(there)), before)
    step = order.chosen(passes, more, held)
    order.define(past, (each, IterDim(w.name, IConst(1), IConst(last + 1))), (q, w), step)
    place = order.apply("add", order.counted(q - right * run), order.read(past, q, IConst(last)))
    merged = order.new(f"run{2 * run}", order.number, order.length)
    order.put(merged, (each,), place, order.read(at, q), order.length)
    return merged


def _below(v: IVar, end: int) -> IterDim:
    return IterDim(v.name, IConst(0), IConst(end))
