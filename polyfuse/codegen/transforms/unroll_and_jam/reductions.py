"""Several terms are added to a row of totals at a time.

    for t in 0..100:                         for t in 0..100 by 4:
      h = w[t]                                 h = w[t]; h_1 = w[t + 1]; ...
      for c in 0..36 @vec:             ->      for c in 0..36 @vec:
        y[c] sum= h * x[t, c]                    y[c] sum= (h * x[t, c] + h_1 * x[t + 1, c]) + ...

The totals of a row are in memory, where each addition waits until the one before has been stored; now a
fourth as often.  In long rows nothing waits, and four rows at a time are more for the caches to bring.  Those
of a tensor that no cache holds go eight at a time: memory has the lines of others under way while it brings
those of one row.  Rows of totals that L1 does not hold, and that have their turn before the next term, come a
fourth as often.  Where all terms read the same row, it is loaded once for several, however long.  Sums may
be reassociated (Meaning, in the language).  So may extremes; gcc takes loops over a few of them apart into
scalars, unless there are several terms.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from polyfuse.codegen.analysis.accesses import strides_of
from polyfuse.codegen.analysis.reduction_nests import EXTREMES, adds, held_row
from polyfuse.codegen.analysis.trip_count import is_open_row, longest, most_trips, trip_of
from polyfuse.codegen.passes import missed
from polyfuse.codegen.transforms.unroll_and_jam.batched_loops import RowSums
from polyfuse.codegen.transforms.unroll_and_jam.rule import Jam, LoopRule
from polyfuse.codegen.transforms.unroll_and_jam.weave import Join
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import L1_WAY, Core, CpuKnobs
from polyfuse.ir.index_expr import evaluate, sizes, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Declare, For, Update, nodes_of, values_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Read, depends_on, plain_variables, reads


def _matches(kernel: Kernel, loop: For, knobs: CpuKnobs) -> Jam | None:
    inner = _sums(loop)
    if (
        loop.of_data
        and inner is not None
        and held_row(loop, inner, {b.tensor: b.dtype for b in kernel.buffers}, knobs.on)
    ):
        return None  # by codegen.transforms.unroll_and_jam.strip_accumulators
    if inner is not None and _fits(kernel, loop) and is_open_row(kernel, inner):
        return _apart(kernel, loop)
    if _fits(kernel, loop) or _one_row(loop) or _outside_of_rows(loop, knobs.on):
        return Jam(FITTED.jam_reductions_together, loop.body, _join)
    if _far(kernel, loop):
        return Jam(FITTED.jam_reductions_far_together, loop.body, _join)
    _tell(loop)
    return None


def _apart(kernel: Kernel, loop: For) -> Jam:
    """The jam of a loop over rows of open length: their sums are in arrays around it, which need no masks."""
    targets = frozenset(n.buffer for n in nodes_of(loop.body) if isinstance(n, Update))
    sums = RowSums(kernel, targets, loop.var, itertools.count(), "totals")
    body = sums.redirected(loop.body)
    return Jam(FITTED.jam_reductions_together, body, _join, around=(tuple(sums.before), tuple(sums.after)))


def _tell(loop: For) -> None:
    """Why terms of such a loop go one by one."""
    inner = _sums(loop)
    if inner is not None and (most_trips(loop) or 0) < 2 * FITTED.jam_reductions_together:
        missed((inner,), "terms are few, or their number is not known")
    elif inner is not None:
        missed((inner,), "rows are so long that no total waits for the one before it")


def _join(loop: For) -> Join:
    return Join.COMBINED if loop.coordinate is Coordinate.VECTOR else Join.JAMMED


REDUCTIONS = LoopRule("reductions", "a row of totals gets several terms at a time", _matches)


def _fits(kernel: Kernel, loop: For) -> bool:
    """A loop over nothing but scalars and one vector loop of sums in a short row?"""
    if (_most(kernel, loop) or 0) < 2 * FITTED.jam_reductions_together:
        return False
    inner = _sums(loop)
    trip = None if inner is None else longest(kernel, inner) if is_open_row(kernel, inner) else trip_of(inner)
    extremes = inner is not None and any(isinstance(n, Update) and n.op in EXTREMES for n in inner.body)
    return trip is not None and trip <= (
        FITTED.jam_reductions_longest_extremes if extremes else FITTED.jam_reductions_longest
    )


def _most(kernel: Kernel, loop: For) -> int | None:
    """How often a loop runs at most, by its bounds or by the region of open sizes."""
    return longest(kernel, loop) if is_open_row(kernel, loop) else most_trips(loop)


def _one_row(loop: For) -> bool:
    """The same where all terms read one row, and numbers besides?  What is loaded of it serves several, and
    brings nothing into caches."""
    inner = _sums(loop)
    if inner is None or (most_trips(loop) or 0) < 2 * FITTED.jam_reductions_together:
        return False
    every = [depends_on(r) for n in inner.body if isinstance(n, Update) for r in reads(n.value)]
    along = [names for names in every if inner.var in names]
    return bool(along) and not any(loop.var in names for names in along)


def _far(kernel: Kernel, loop: For) -> bool:
    """The same with sums in a long row of which each term reads one row of a large tensor?"""
    inner = _sums(loop)
    trip = None if inner is None else trip_of(inner)
    if inner is None or trip is None or trip <= FITTED.jam_reductions_longest or len(inner.body) != 1:
        return False
    (update,) = inner.body
    assert isinstance(update, Update)
    along = [r for r in reads(update.value) if inner.var in depends_on(r)]
    if (
        len(along) != 1
        or loop.var not in depends_on(along[0])
        or trip * along[0].dtype.bytes < FITTED.jam_reductions_far_row
    ):
        return False
    return _bytes(kernel, along[0]) >= FITTED.jam_reductions_far_bytes


def _outside_of_rows(loop: For, core: Core) -> bool:
    """Is there a loop inside over rows of totals that L1 does not hold, and all it does is to add a term to
    each?"""
    (rows, *more) = loop.body or (None,)
    if not isinstance(rows, For) or more or rows.coordinate is not Coordinate.SEQ or rows.step != 1:
        return False
    if (
        loop.var in variables(rows.lower) + variables(rows.upper)
        or (most_trips(loop) or 0) < 2 * FITTED.jam_reductions_together
    ):
        return False
    inner = _sums(replace(loop, body=rows.body))
    counts = (trip_of(rows), None if inner is None else trip_of(inner))
    if inner is None or counts[0] is None or counts[1] is None:
        return False
    totals = [n for n in inner.body if isinstance(n, Update) and rows.var in depends_on(*n.indices)]
    held = counts[0] * counts[1] * sum(n.value.dtype.bytes for n in totals)
    along = [plain_variables(r.indices) for n in totals for r in reads(n.value)]
    once = any({rows.var, inner.var} <= names for names in along)  # such terms come from memory themselves
    return len(totals) == len(inner.body) and held > core.l1 and not once


def _bytes(kernel: Kernel, r: Read) -> int:
    """Bytes of the tensor that an element is of; none, if that is not known."""
    found = [b for b in kernel.buffers if b.tensor == r.tensor and not sizes(b.elements)]
    return evaluate(found[0].elements, {}) * r.dtype.bytes if found else 0


def _sums(loop: For) -> For | None:
    """The vector loop of a loop over nothing but scalars and sums in a row."""
    *scalars, inner = loop.body or (None,)
    if loop.coordinate is not Coordinate.SEQ or loop.step != 1 or not isinstance(inner, For):
        return None
    if inner.lanes or inner.coordinate is not Coordinate.VECTOR:
        return None
    if loop.var in variables(inner.lower) + variables(inner.upper):
        return None
    if not all(isinstance(n, Declare) and n.value is not None and not n.count for n in scalars):
        return None
    fits = bool(inner.body) and all(isinstance(n, Update) and adds(n, loop.var, inner) for n in inner.body)
    return inner if fits else None


# Short rows of one total go several at a time, before lanes are added up.
#
#     for n in 0..128:                              for n in 0..128 by 4:
#       for i in 0..49 @vec: acc += x[n, i]   ->      for i in 0..49 @vec:
#                                                       acc += (x[n, i] + x[n+1, i]) + (x[n+2, i] + x[n+3, i])
#
# Lanes that live through the outer loop would have to be added up once only, but gcc keeps them in memory
# between the rows.  With four rows they are added up a fourth as often.  Rows whose lines share sets of L1 go
# one by one, as the hardware fetches them better.  What asks for lines has seen single rows
# (`codegen.transforms.prefetch`).  Sums may be reassociated (Meaning, in the language).


def _matches_short(kernel: Kernel, loop: For, knobs: CpuKnobs) -> Jam | None:
    # Lines are asked for as for single rows.
    return Jam(FITTED.short_sums_rows, loop.body, _join, rows=1) if _adds_up_rows(kernel, loop) else None


SHORT_SUMS = LoopRule("short-sums", "short rows of one total go several at a time", _matches_short)


def _adds_up_rows(kernel: Kernel, rows: For) -> bool:
    """A loop over nothing but a short vector loop of sums, whose lanes are added up each time?"""
    match rows:
        case For(body=(For(lanes=(_, *_)) as inner,), coordinate=Coordinate.SEQ, step=1, joint=False):
            trip = trip_of(inner)
        case _:
            return False
    if (
        inner.joint
        or inner.coordinate is not Coordinate.VECTOR
        or (most_trips(rows) or 0) < 2 * FITTED.short_sums_rows
    ):
        return False
    if (
        trip is None
        or trip > FITTED.short_sums_longest
        or rows.var in variables(inner.lower) + variables(inner.upper)
    ):
        return False
    changed = {n.buffer for n in inner.body if isinstance(n, Update)}
    sums = all(isinstance(n, Update) and _adds(n, changed) for n in inner.body)
    read = [r for e in values_of(inner.body) for r in reads(e)]
    return sums and len(changed) == len(inner.body) and not any(_crowded(kernel, r, rows.var) for r in read)


def _adds(n: Update, changed: set[str]) -> bool:
    """Is an update one of a number's sums, and does it need none of them?"""
    return n.op == "sum" and not n.indices and not changed & {r.tensor for r in reads(n.value)}


def _crowded(kernel: Kernel, r: Read, row: str) -> bool:
    """Do neighbouring rows of a tensor lie in the same sets of L1?"""
    (apart,) = (n * r.dtype.bytes for n in strides_of(kernel, r, row))
    return apart != 0 and apart % L1_WAY == 0
