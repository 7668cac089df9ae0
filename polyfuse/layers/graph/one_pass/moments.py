"""Mean and variance of a row in one pass about a pivot, for rows that stay near (CPU).

    t[r] = sum[k](u[r, k]);     v[r] = sum[k]((u[r, k] - t[r] / n)^2)
becomes, with the first m of n elements and powers of two p from m and q from n on,
    pivot[r] = sum[k < m](u[r, k] / p) p / m, kept within bounds
    off[r]   = sum[k]((u[r, k] - pivot[r]) / q)             about[r] = sum[k]((u[r, k] - pivot[r])^2)
    t[r]     = n (pivot[r] + off[r] q / n)                  v[r]     = about[r] - n (off[r] q / n)^2

The pass that a mean takes alone is saved but for m elements.  What the difference loses is bounded by the
share of the pivot: with d, the mean less the pivot,

    v >= n m / (n - m) d^2,     about <= n / m v

so that with a sixteenth of the elements at most 4 bits go, whatever the row; rows whose beginning is like the
rest lose none.  (Squares alone, pivot 0, lose all bits of a row far from 0.)  In two passes the error of the
mean enters squared, which for a million elements in f32 is more; d is small, and so is its error.

Infinities and NaN give what they give without.  The pivot is so small that u - pivot is finite for each
finite u, and so are sums of parts; hence off is finite unless an element is not.  Squares that overflow
give an infinite variance, also of equal elements beyond that bound; rounding never gives a negative one.

Source: Chan, Golub and LeVeque 1983 (shifted data, with the mean of some first elements).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.extents import OPEN_SIZE, extents, instances
from polyfuse.cost.operations import operations
from polyfuse.ir.dtypes import BOOL, DType
from polyfuse.ir.index_expr import IConst, IndexExpr, binary, evaluate, sizes
from polyfuse.ir.linear import Range, interval, of_size, size_ranges
from polyfuse.ir.tensor_graph import (
    Apply,
    Const,
    Expr,
    IndexValue,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
    depends_on,
    map_expr,
    reads,
)
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.graph.one_pass.cascades import Cascade, in_full, terms_of

# One of so many elements of a row gives the pivot; whole vectors of them along memory.
SHARE, WHOLE = 16, 64
# Elements of four bytes that are read of a row, at least: a pass over fewer takes no longer than the pivot.
# Where memory is near, a pass costs its loads alone.
SHORTEST, SHORTEST_NEAR = 768, 1280
# Operations for an element, at most: those of the pivot are computed again.
MOST_OPERATIONS = 16.0
# The powers of two for counts that are not known have exponents that are multiples of this.
POWER = 12
# What is taken for the largest count where nothing bounds it.
LIMIT = 2**53


def why_not(graph: TensorGraph, first: Statement, machine: CpuDevice) -> str | None:
    """Why a pass for the mean alone is no longer than the pivot; None if it is.

    Both ways add and multiply as often; a pass less saves loads, and waits for memory and for totals.  Open
    sizes are taken as in the middle, and memory as near: several short rows at once wait for nothing.
    """
    whole = replace(first, expr=in_full(graph, first.expr))
    along, count = set(first.reduction_dims), _usual(graph, terms_of(first.dims))
    rows = {(r.tensor, r.indices): r for r in reads(whole.expr) if along & depends_on(*r.indices)}
    found = extents(whole)
    row = count * sum(r.dtype.bytes for r in rows.values())
    near = bool(graph.sizes) or _near(row, row * instances(found) / max(1, count), machine)
    loads = count * sum(1 if r.dtype.bytes == 4 else 2 for r in rows.values())  # or conversions
    if loads < (SHORTEST_NEAR if near else SHORTEST):
        return f"a pass over {len(rows) * count} elements takes no longer than a pivot"
    each = operations([(whole, found)], "cpu").weighted / max(1, instances(found))
    return f"{each:.0f} operations for an element of a pivot" if each > MOST_OPERATIONS else None


def _usual(graph: TensorGraph, count: IndexExpr) -> int:
    """A number of elements, as far as the region of open sizes allows with what figures take for these."""
    ranges, known = size_ranges(graph), sizes(count)
    within = {n: ranges.get(of_size(n), (OPEN_SIZE, OPEN_SIZE)) for n in known}
    return evaluate(count, {n: min(max(OPEN_SIZE, low), high) for n, (low, high) in within.items()})


def _near(row: float, all_rows: float, machine: CpuDevice) -> bool:
    """Do a worker's rows stay in private caches from call to call, and each in L1 between its passes?"""
    mine = machine.levels[machine.level(all_rows / machine.threads)]
    return machine.level(row) == 0 and mine.private


def about_a_pivot(graph: TensorGraph, several: Sequence[Cascade]) -> TensorGraph:
    """The graph with both reductions of centred cascades in one pass; they have one first reduction."""
    first, ranges = several[0].first, size_ranges(graph)
    dtype, count = graph.tensor(first.target).dtype, terms_of(first.dims)
    n, u = number(count, dtype), in_full(graph, first.expr)

    some = _some(first, u)
    part, whole = _parts(terms_of(some), dtype, ranges)
    if isinstance(part, Select):  # once, not for each element
        graph, part = _with(graph, first, "share", _kept(first), part)
    graph, head = _with(graph, first, "head", some, applied("mul", u, part))
    graph, pivot = _with(graph, first, "pivot", _kept(first), _clamped(applied("mul", head, whole)))
    part, whole = _parts(count, dtype, ranges)
    if isinstance(part, Select):  # once, not for each element
        graph, part = _with(graph, first, "part", _kept(first), part)
    off_terms = applied("mul", applied("sub", first.expr, pivot), part)
    graph, off = _with(graph, first, "off", first.dims, off_terms)
    total = applied("mul", n, applied("add", pivot, applied("mul", off, whole)))
    graph = _instead(graph, first, total)

    for c in several:
        there, rest = (replace(r, indices=c.indices) for r in (pivot, off))
        terms = _put(c.terms, c.centre, there)
        graph, about = _with(graph, c.second, "about", c.second.dims, terms)
        moved = applied("mul", rest, whole)
        least = applied("sub", about, applied("mul", n, applied("mul", moved, moved)))
        # Infinite squares: NaN if an element is not finite, else the infinity.
        far = applied("add", about, applied("sub", rest, rest))
        infinite = Apply("eq", (about, Const(inf, dtype)), BOOL)
        value = Select(infinite, far, applied("max", least, Const(0.0, dtype)), dtype)
        graph = _instead(graph, c.second, value)
    return graph


def number(count: IndexExpr, dtype: DType) -> Expr:
    """A number of elements as a value."""
    return Const(float(count.value), dtype) if isinstance(count, IConst) else IndexValue(count, dtype)


def _parts(count: IndexExpr, dtype: DType, ranges: Mapping[str, Range]) -> tuple[Expr, Expr]:
    """What to multiply terms by so that so many have a finite sum, exactly; and the sum, for their mean."""
    if isinstance(count, IConst):
        power = 2.0 ** (count.value - 1).bit_length()
        return Const(1 / power, dtype), Const(power / count.value, dtype)
    bits = (_most(count, ranges) - 1).bit_length()
    part: Expr = Const(2.0**-bits, dtype)
    whole: Expr = Const(2.0**bits, dtype)
    for fewer in reversed(range(POWER, bits, POWER)):
        small = Apply("lt", (IndexValue(count, dtype), Const(2.0**fewer, dtype)), BOOL)
        part = Select(small, Const(2.0**-fewer, dtype), part, dtype)
        whole = Select(small, Const(2.0**fewer, dtype), whole, dtype)
    return part, applied("div", whole, IndexValue(count, dtype))


def _most(count: IndexExpr, ranges: Mapping[str, Range]) -> int:
    """How many elements there are at most in the region of open sizes."""
    found = interval(count, ranges)
    return LIMIT if found is None else found[1]


def _some(first: Statement, u: Expr) -> tuple[IterDim, ...]:
    """The dims of a reduction over the first elements: of loops that can be cut short the one that goes the
    farthest in memory, so that what is read lies together.  Of one whose length is open it is not known
    whether it can, so that those of a known length go first."""
    over = [d for d in first.dims if d.reduce]
    trips = {d.name: binary("-", d.upper, d.lower) for d in over}
    places = {
        d.name: min(
            (k for r in reads(u) for k, i in enumerate(r.indices) if d.name in depends_on(i)), default=0
        )
        for d in over
    }
    known = {n: t.value for n, t in trips.items() if isinstance(t, IConst)}
    long = [d for d in over if known.get(d.name, 0) >= SHARE] or [d for d in over if d.name not in known]
    at = min(long, key=lambda d: places[d.name]) if long else max(over, key=lambda d: known[d.name])
    trip = trips[at.name]
    if places[at.name] == max(places.values()):  # whole vectors
        size = binary("*", _ceiling(_ceiling(trip, SHARE), WHOLE), WHOLE)
        size = binary("min", trip, size)
    else:
        size = _ceiling(trip, SHARE)
    short = replace(at, upper=binary("+", at.lower, size))
    return tuple(short if d is at else d for d in first.dims)


def _ceiling(e: IndexExpr, by: int) -> IndexExpr:
    return binary("//", binary("+", e, by - 1), by)


def _put(e: Expr, old: Expr, new: Expr) -> Expr:
    return map_expr(e, lambda x: new if x == old else x)


def _clamped(e: Expr) -> Expr:
    """Kept so small that its difference from a finite number is finite."""
    limits = np.finfo(e.dtype.numpy)
    large = float(2.0 ** (limits.maxexp - limits.nmant - 3))
    return applied("min", applied("max", e, Const(-large, e.dtype)), Const(large, e.dtype))


def _with(
    graph: TensorGraph, s: Statement, what: str, over: tuple[IterDim, ...], expr: Expr
) -> tuple[TensorGraph, Read]:
    """The graph with a new temporary before a reduction, shaped as its total: a sum over the dims that
    reduce, or the value for each total if none does; and how it is read there."""
    kept, name = graph.tensor(s.target), fresh_name(graph, f"{s.name}__{what}")
    new = Tensor(name, kept.dtype, kept.shape, Role.TEMP, kept.span, exact=True)
    how = "sum" if any(d.reduce for d in over) else None
    made = replace(s, name=name, target=name, dims=over, expr=expr, reduction=how)
    statements = [x for old in graph.statements for x in ((made, old) if old.name == s.name else (old,))]
    graph = replace(graph, tensors=(*graph.tensors, new), statements=tuple(statements))
    return graph, Read(name, s.write, kept.dtype, s.span)


def _kept(s: Statement) -> tuple[IterDim, ...]:
    return tuple(d for d in s.dims if not d.reduce)


def _instead(graph: TensorGraph, s: Statement, expr: Expr) -> TensorGraph:
    """The graph with a value for each total instead of the reduction."""
    made = replace(s, dims=_kept(s), expr=expr, reduction=None)
    return replace(graph, statements=tuple(made if x.name == s.name else x for x in graph.statements))


def applied(op: str, *args: Expr) -> Expr:
    """An operation on values of one type, with a result of that."""
    return Apply(op, args, args[0].dtype)
