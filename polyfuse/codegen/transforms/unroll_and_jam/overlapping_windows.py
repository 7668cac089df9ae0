"""Rows whose windows overlap are computed several at a time, strip by strip.

    for c @vec:  y[q, c] = 0                    for h in 0..4:
    for s in 0..2:                                for c in 0..32 @vec:  a[c] = 0;  b[c] = 0
      for c @vec:                        ->       for c in 0..32 @vec:
        y[q, c] sum= x[q + s, c] * w[s, c]          a[c] sum= x[q, c] * w[0, c] + x[q + 1, c] * w[1, c]
    for c @vec:  z[q, c] = f(y[q, c])               b[c] sum= x[q + 1, c] * w[0, c] + x[q + 2, c] * w[1, c]
                                                  for c in 0..32 @vec:  z[q, 32 * h + c] = f(a[c])
                                                  for c in 0..32 @vec:  z[q + 1, 32 * h + c] = f(b[c])

Neighbours share the elements of a window and its weights: four rows of a filter of 3 x 3 load 27 vectors for
one of results each in place of 72.  One by one they wait for loads, not for arithmetic.

It is done for iterations of a parallel nest that follow one another along its innermost loop, and for loops
whose iterations touch nothing in common, where such a loop and one of the window's are added in an index.
Where bounds of the window depend on the iteration (a causal filter begins at 0), those with the same bounds
go together.  What is left goes one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from polyfuse.codegen.analysis.accesses import strides_of
from polyfuse.codegen.analysis.dependence import independent
from polyfuse.codegen.analysis.index_ranges import cuts
from polyfuse.codegen.analysis.reduction_nests import EXTREMES, at_place, nest
from polyfuse.codegen.analysis.trip_count import in_steps, trip_of
from polyfuse.codegen.function import Function, along_run
from polyfuse.codegen.passes import missed
from polyfuse.codegen.transforms.unroll_and_jam.strip_accumulators import (
    first_of,
    held,
    in_strips,
    is_row,
    overlap,
    window_of,
)
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import L1_WAY, Core
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.linear import simplify
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    For,
    LocalRole,
    Node,
    Store,
    Update,
    map_outermost,
    map_values,
    nodes_of,
    substituted,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Const, Expr, Index, Read, reads

# Narrower elements are converted, loop by loop.
NARROWEST = 4


def neighbours_together(kernel: Kernel, f: Function, core: Core) -> Function:
    """The function, with such rows along its innermost loop, or along loops in it."""
    if not f.one_by_one:
        return f
    if f.loops and not f.time:
        inner = f.loops[-1]
        rows = along_run(inner, f.body)
        own = frozenset(b.tensor for b in kernel.buffers if b.scope is Scope.LOCAL)
        if along := _jointly(kernel, rows, inner, core, own):
            return f.in_runs(along)

    def change(loop: For) -> Block | None:
        plain = loop.coordinate is Coordinate.SEQ and loop.step == 1
        return _jointly(kernel, loop, loop, core) if plain and independent(kernel, loop) else None

    return f.with_body(map_outermost(f.body, change))


def _jointly(
    kernel: Kernel, rows: For, loop: For, core: Core, own: frozenset[str] = frozenset()
) -> Block | None:
    """The loop over rows, some of those of a `loop`, with several at a time; None if they share no windows.
    Nothing outside of a row reads what is in its `own` arrays."""
    dtypes = {b.tensor: b.dtype for b in kernel.buffers}
    made: list[Node] = []
    found = False
    for part in _parts(rows, loop):
        window = _window(part, dtypes, own)
        count = _count(window, kernel, core, trip_of(loop)) if window is not None else 1
        if window is None or count < 2:
            missed((window.inner,) if window else (), "several rows would take as many loads")
            made.append(part)
            continue
        found = True
        made += in_steps(part, window.rows(range(count), core), count)
    return held(tuple(made), dtypes, core) if found else None


# --- whether ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Window:
    """Sums of rows over windows: what totals are first, the loops of the window, of which `shared` is added
    to `row`'s variable, the loop along a row, and the one that reads its totals (`own` totals nothing else
    does)."""

    row: str
    first: Const | None
    window: tuple[For, ...]
    shared: For
    inner: For
    follower: For | None
    own: frozenset[str]

    def rows(self, rows: Sequence[int], core: Core) -> Block:
        """All of them, in strips: as many totals as one row would have are in registers."""
        vectors = max(1, FITTED.strip_accumulators_registers // (len(rows) * len(self.inner.body)))
        return in_strips(self.inner, vectors, core, lambda start, length: self._strip(rows, start, length))

    def _strip(self, rows: Sequence[int], start: IndexExpr, length: int) -> Block:
        """So many totals of each row from `start` on: set, added to, and what follows from them."""
        along = replace(self.inner, lower=IConst(0), upper=IConst(length), body=())
        (there,) = substituted((self.inner,), {self.inner.var: binary("+", start, IVar(self.inner.var))})
        assert isinstance(there, For)
        totals = [n for n in there.body if isinstance(n, Update)]
        arrays: list[Declare] = []
        before, after = list[For](), list[For]()
        terms: list[Update] = []
        for r in rows:
            names = {n.buffer: f"%held{k}_{r}" for k, n in enumerate(totals)}
            mine = [self._in_row(n, r) for n in totals]
            arrays += [Declare(names[n.buffer], n.value.dtype, None, length, LocalRole.HELD) for n in mine]
            loads = [(names[n.buffer], self.first or Read(n.buffer, n.indices, n.value.dtype)) for n in mine]
            lane = (IVar(self.inner.var),)
            before.append(replace(along, body=tuple(Store(name, lane, value) for name, value in loads)))
            terms += [replace(x, buffer=names[n.buffer], indices=lane) for n in mine for x in self._terms(n)]
            after += self._after(along, mine, names, r, start)
        adding: For = replace(along, body=tuple(terms))
        for x in reversed(self.window):
            adding = adding if x == self.shared else replace(x, body=(adding,))
        return (*arrays, *before, adding, *after)

    def _in_row(self, n: Update, row: int) -> Update:
        (moved,) = substituted((n,), {self.row: binary("+", IVar(self.row), row)})
        assert isinstance(moved, Update)
        return moved

    def _terms(self, n: Update) -> list[Update]:
        """An update with each term of the loop that is shared: as a sum they would take an addition more."""
        places = [binary("+", self.shared.lower, k) for k in range(trip_of(self.shared) or 0)]
        return [replace(n, value=at_place(n.value, {self.shared.var: p})) for p in places]

    def _after(
        self, along: For, totals: list[Update], names: dict[str, str], row: int, start: IndexExpr
    ) -> Iterator[For]:
        """Totals go to memory, unless only the follower reads them, which reads them where they are."""
        lane = (IVar(self.inner.var),)
        stored = [n for n in totals if self.follower is None or n.buffer not in self.own]
        if stored:
            values = (Store(n.buffer, n.indices, Read(names[n.buffer], lane, n.value.dtype)) for n in stored)
            yield replace(along, body=tuple(values))
        if self.follower is not None:
            here = {
                self.follower.var: binary("+", start, IVar(self.inner.var)),
                self.row: binary("+", IVar(self.row), row),
            }

            def held_read(e: Expr) -> Expr:
                return (
                    Read(names[e.tensor], lane, e.dtype) if isinstance(e, Read) and e.tensor in names else e
                )

            yield replace(
                along, body=map_values(substituted(self.follower.body, here), held_read, lambda i: i)
            )


def _parts(rows: For, loop: For) -> list[For]:
    """The loop over rows, some of those of a `loop`, in parts in which bounds of loops in it have the same
    arms."""
    if not (isinstance(loop.lower, IConst) and isinstance(loop.upper, IConst)):
        return [rows]
    low, high = loop.lower.value, loop.upper.value
    bounds = [e for n in nodes_of(rows.body) if isinstance(n, For) for e in (n.lower, n.upper)]
    turns = {c for e in bounds for c in cuts(e, loop.var, low, high) if low < c < high}
    edges = [low, *sorted(turns), high]
    found: list[For] = []
    for first, last in pairwise(edges):
        lower = rows.lower if first == low else binary("max", rows.lower, first)
        upper = rows.upper if last == high else binary("min", rows.upper, last)
        body = _within(rows.body, loop.var, (first, last - 1))
        found.append(replace(rows, lower=lower, upper=upper, body=body))
    return found


def _within(body: Block, var: str, values: tuple[int, int]) -> Block:
    """The body where a variable has values of a range."""
    return map_values(body, lambda e: e, lambda i: simplify(i, {var: values}))


def _window(rows: For, dtypes: dict[str, DType], own: frozenset[str]) -> _Window | None:
    """The sums of a row, if that is what its loops are: what sets the totals, what adds, and what follows."""
    loops = [n for n in rows.body if isinstance(n, For)]
    place = next((k for k, n in enumerate(loops) if len(nest(n)) > 1), None)
    alone = all(isinstance(n, (For, Comment)) for n in rows.body)
    if not alone or place is None or place > 1 or len(loops) > place + 2:
        return None
    *around, inner = nest(loops[place])
    if not is_row(inner, dtypes) or window_of(around, inner) != around:
        return None
    first = first_of(loops[0], inner) if place else None
    follower = loops[place + 1] if len(loops) > place + 1 else None
    if (place and first is None) or (follower is not None and not _follows(follower, inner)):
        return None
    found = [r for n in inner.body if isinstance(n, Update) for r in reads(n.value)]
    bounds = {v for x in (*around, inner) for e in (x.lower, x.upper) for v in variables(e)}
    if any(r.dtype.bytes < NARROWEST for r in found) or rows.var in bounds:
        return None
    shared = [x for x in around if any(_adds_up(i, rows.var, x.var) for r in found for i in r.indices)]
    return _Window(rows.var, first, tuple(around), shared[-1], inner, follower, own) if shared else None


def _follows(loop: For, inner: For) -> bool:
    """Does a loop along the same row only store, and read of the totals its own element alone?"""
    plain = loop.coordinate is Coordinate.VECTOR and loop.step == 1 and not (loop.lanes or loop.joint)
    stores = [n for n in loop.body if isinstance(n, Store)]
    if not plain or (loop.lower, loop.upper) != (inner.lower, inner.upper) or len(stores) < len(loop.body):
        return False
    same = substituted(inner.body, {inner.var: IVar(loop.var)})
    totals = {n.buffer: n.indices for n in same if isinstance(n, Update)}
    if any(n.buffer in totals or n.value.dtype.bytes < NARROWEST for n in stores):
        return False
    return all(totals.get(r.tensor, r.indices) == r.indices for n in stores for r in reads(n.value))


def _adds_up(i: Index, row: str, term: str) -> bool:
    """Does an index add both loops' variables?"""
    return overlap(i, row) and overlap(i, term)


def _count(window: _Window, kernel: Kernel, core: Core, trip: int | None) -> int:
    """How many of so many rows at a time take the fewest loads, those that are left among them."""
    shared = trip_of(window.shared)
    updates = [n for n in window.inner.body if isinstance(n, Update)]
    lanes = core.vector_bytes // max(n.value.dtype.bytes for n in updates)
    if not trip or not shared or (trip_of(window.inner) or 0) < lanes:
        return 1
    if any(n.op in EXTREMES for n in updates) and core.registers <= FITTED.strip_accumulators_registers + 4:
        return 1  # what cares for NaN needs the registers that are left
    every = (r for n in updates for r in reads(n.value))
    steps = [strides_of(kernel, r, window.row, window.shared.var) for r in every]
    if not any(2 * row <= shared * term for row, term in steps if row and term):
        return 1  # windows that lie apart have little in common
    far = len(window.window) > 1 and any(b.soon for b in kernel.buffers)
    crowded = any(row and row * updates[0].value.dtype.bytes % L1_WAY == 0 for row, _ in steps)
    most = (
        FITTED.overlapping_windows_most_far if far or crowded else FITTED.overlapping_windows_most_rows
    ) // len(updates)

    def loads(count: int) -> int:
        together, left = divmod(trip, count)
        return together * (count + shared - 1 + shared) + left * 2 * shared

    return min(range(1, min(most, trip) + 1), key=loads, default=1)
