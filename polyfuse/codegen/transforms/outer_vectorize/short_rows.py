"""Rows shorter than a vector are lanes, and their elements are numbers.

    for t in 0..T @blk:                           for t in 0..T by 16 @blk:
      m = -inf                                      v[k, row] = x[t + row, k], a tile transposed
      for c in 0..5 @vec: m max= x[t, c]            for row in 0..16 @vec:
      for c in 0..5 @vec:                    ->       m = max(v[0, row], ..., v[4, row])
        e[c] = exp(x[t, c] - m)                       e0 = exp(v[0, row] - m); ...; e4 = ...
        d += e[c]                                     d = e0 + ... + e4
      for c in 0..5 @vec: y[t, c] = e[c] / d          w[0, row] = e0 / d; ...; w[4, row] = ...
                                                    y[t + row, k] = w[k, row], turned back

Five elements fill a third of a vector, and each phase of a row waits for the one before.  Sixteen rows fill
five vectors, and nothing is combined across lanes.  Memory is transposed in registers, as for recurrences
(`codegen.transforms.outer_vectorize.recurrences`); rows that lie one behind the other are so without squares
(`turned_tiles.h`).

Iterations of a parallel nest may run in any order, so also at once.  Those of other loops may where an index
tells apart what rows store, and nothing else reads that.  Tiles are arrays of the worker, and hold whole
rows: each is loaded once and stored once.  What a row keeps in arrays of the worker are numbers here, so it
stores each before it reads it, and no one else reads it.  Rows that are left go as they would without this
pass.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.accesses import touched_in
from polyfuse.codegen.analysis.dependence import independent_rows
from polyfuse.codegen.analysis.op_cost import computes_little
from polyfuse.codegen.analysis.row_batch import ROW, first_row, places_of_batch
from polyfuse.codegen.analysis.row_phases import waits
from polyfuse.codegen.analysis.trip_count import in_steps, trip_of
from polyfuse.codegen.function import Function
from polyfuse.codegen.passes import missed
from polyfuse.codegen.transforms.outer_vectorize.full_unroll import COMPARED, SIZES, StraightRows
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.dtypes import F16, HALVES
from polyfuse.ir.functions import has_function
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    For,
    Node,
    Store,
    Update,
    map_nodes,
    map_outermost,
    nodes_of,
    substituted,
    values_of,
)
from polyfuse.ir.ops import Cost, of_cost
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Read, Select, walk

# Rows fill a line of memory; elements of other sizes are converted.
_LINE_BYTES = 64
# Of integers, without instructions for vectors.
_SCALAR = of_cost(Cost.FLOORED)


def vectorize_short_rows(
    kernel: Kernel, functions: Sequence[Function], knobs: CpuKnobs
) -> tuple[tuple[Buffer, ...], tuple[Function, ...]]:
    """The functions of a kernel, with such rows in lanes wherever they can be and it pays, if the knobs leave
    it open; and the arrays of a worker that they need."""
    if knobs.rows or knobs.jointly is False:
        return (), tuple(functions)
    change = _Change(kernel, knobs.on)
    made: list[Function] = []
    touching = Counter(x for t in functions for x in touched_in(t.body))
    shared = {x for x, count in touching.items() if count > 1}
    for t in functions:
        nest = change.nest(t) if len(t.loops) == 1 and independent_rows(kernel, t, functions) else None
        made.append(nest or change.inside(t, shared))
    return tuple(change.arrays), tuple(made)


@dataclass(frozen=True, slots=True)
class _Rows:
    """So many rows at once, and what is done before all of them and after."""

    rows: int
    before: Block
    body: Block
    after: Block


@dataclass(slots=True)
class _Change:
    """What becomes of the functions of a kernel, and the `arrays` of a worker that are made for it."""

    kernel: Kernel
    core: Core
    arrays: list[Buffer] = field(default_factory=list)

    def nest(self, f: Function) -> Function | None:
        """A function of a nest of rows."""
        (loop,) = f.loops
        found = self._at_once(replace(loop, body=f.body), IVar(first_row(loop.var)))
        if found is None or found.after:
            return None
        return f.with_batch(found.rows, places_of_batch(f.loops, found.rows), found.body)

    def inside(self, f: Function, shared: set[str]) -> Function:
        """A function with loops over rows in it, or along them; several functions touch what is `shared`."""
        if not f.one_by_one:
            return f
        own = {b.tensor for b in self.kernel.buffers if b.scope is Scope.LOCAL}
        counts = [1]

        def change(loop: For) -> list[Node] | None:
            one_by_one = loop.coordinate in (Coordinate.SEQ, Coordinate.VECTOR) and loop.step == 1
            if not one_by_one or loop.lanes or loop.joint:
                return None
            mine = touched_in((loop,)) & own
            elsewhere = mine and shared | touched_in(map_nodes(f.body, lambda n: () if n is loop else n))
            found = None if mine & elsewhere else self._at_once(loop, IVar(loop.var))
            if found is None:
                return None
            counts.append(found.rows)
            main, *left = in_steps(replace(loop, coordinate=Coordinate.SEQ), found.body, found.rows)
            others_left = (replace(x, coordinate=loop.coordinate) for x in left if isinstance(x, For))
            return [*found.before, main, *found.after, *others_left]

        body = map_outermost(f.body, change)
        return replace(f.with_body(body), jammed=max(counts)) if len(counts) > 1 else f

    def _at_once(self, row: For, first: IndexExpr) -> _Rows | None:
        """As many rows as lanes, from the `first` on; None if there are no such rows."""
        length, width = _length(self.kernel, row), _width(row.body)
        rows, trip = _LINE_BYTES // (width or 1), trip_of(row)
        wide = self.core.vector_bytes >= _LINE_BYTES
        few = width == min(SIZES) and length <= (
            FITTED.vectorize_short_rows_few if wide else FITTED.vectorize_short_rows_few - 1
        )
        if not width or not 1 < length < rows:
            return None
        if not _is_worth(row.body, length, few, wide):
            if waits(row.body):
                missed(row.body, "vectors along a row take no longer")
            return None
        if trip is not None and trip < rows:
            return None
        taken = {b.tensor for b in (*self.kernel.buffers, *self.arrays)}
        names = (name for k in itertools.count() if (name := f"short{k}") not in taken)
        straight = StraightRows(self.kernel, row, rows, names)
        body = straight.made_of(row.body)
        if body is None:
            missed(row.body, "rows are no tiles of memory")
            return None
        self.arrays += straight.arrays()
        whole = (*straight.tiles(back=False), *body, *straight.tiles(back=True))
        whole = substituted(whole, {row.var: first + IVar(ROW)})
        return _Rows(rows, straight.none_added(), whole, straight.totals())


# --- whether ------------------------------------------------------------------------------------------


def _length(kernel: Kernel, row: For) -> int:
    """How many elements loops of a row go over at most, or rows have of which elements are read by number; 0
    where that is not known, or a row has anything but plain nodes."""
    loops = [n for n in row.body if isinstance(n, For)]
    nodes = [n for n in nodes_of(row.body) if not isinstance(n, For)]
    plain_nodes = all(isinstance(n, (Declare, Store, Update, Comment)) for n in nodes)
    counted = any(isinstance(n, Declare) and n.count for n in nodes)
    shared = any(isinstance(n, Update) and n.atomic for n in nodes)
    nested = any(isinstance(n, For) for x in loops for n in x.body)
    whole = all(isinstance(n.lower, IConst) and n.step == 1 and not n.joint for n in loops)
    if not plain_nodes or counted or shared or nested or not whole:
        return 0
    lengths = {trip_of(n) for n in loops} | _extents(kernel, row)
    length = max((_LINE_BYTES if n is None else n for n in lengths), default=_LINE_BYTES)
    return length if length < _LINE_BYTES // min(SIZES) else 0


def _extents(kernel: Kernel, row: For) -> set[int | None]:
    """How long the rows are that numbered elements are read of."""
    extents = {b.tensor: b.extents for b in kernel.arguments if len(b.extents) > 1}
    read = [e for v in values_of(row.body) for e in walk(v) if isinstance(e, Read) and e.tensor in extents]
    found = {extents[r.tensor][-1] for r in read if isinstance(r.indices[-1], IConst)}
    return {e.value if isinstance(e, IConst) else None for e in found}


def _width(body: Block) -> int:
    """Bytes of the numbers that are computed, and read but for those of 16 bits; 0 where they are of several
    widths, or of others."""
    values = [*values_of(nodes_of(body))]
    every = [e for v in values for e in walk(v)]
    found = (*values, *(e for e in every if isinstance(e, Read)))
    widths = {e.dtype.bytes for e in found if not e.dtype.is_bool and e.dtype not in HALVES}
    divided = any(isinstance(e, Apply) and e.op in _SCALAR and not e.dtype.is_float for e in every)
    return widths.pop() if len(widths) == 1 and widths <= {*SIZES} and not divided else 0


def _is_worth(body: Block, length: int, few: bool, wide: bool) -> bool:
    """Is something made of several elements of a row, with enough operations if these are not few, or by
    functions of each, and not too many of them?  Are there elements of 16 bits, too few for masks?  With
    `wide` vectors these are not much faster."""
    loops = [n for n in body if isinstance(n, For)]
    values = [*values_of(nodes_of(body))]
    every = [e for v in values for e in walk(v)]
    read = [e for e in every if isinstance(e, Read) and e.indices]
    functions = any(map(has_function, values))
    joined = any(n.lanes for n in loops) or any(isinstance(r.indices[-1], IConst) for r in read)
    takes_long = any(isinstance(n, Update) and n.op in COMPARED for n in nodes_of(body))
    takes_long |= any(isinstance(e, Apply) and (e.op in COMPARED or not computes_little(e)) for e in every)
    if (
        sum((trip_of(n) or 0) * _operations(n.body) for n in loops) + _operations(body)
        > FITTED.vectorize_short_rows_most_operations
    ):
        return False
    halves = {r.dtype for r in read if r.dtype in HALVES}
    if halves and (F16 in halves or joined):
        least = (
            FITTED.vectorize_short_rows_shortest_f16
            if F16 in halves
            else FITTED.vectorize_short_rows_shortest_bf16
        )
        shortest = min((trip_of(n) or 0 for n in loops), default=length)
        return length >= least and (
            shortest < FITTED.vectorize_short_rows_fewest_halves
            or (wide and joined and takes_long and length == FITTED.vectorize_short_rows_fewest_halves)
        )
    if length < FITTED.vectorize_short_rows_shortest or (
        halves and length >= FITTED.vectorize_short_rows_fewest_halves
    ):
        return False
    if not joined:
        return functions and length % FITTED.vectorize_short_rows_quarter > 0
    if not functions:
        return (takes_long or few) and length <= FITTED.vectorize_short_rows_longest
    of_functions = [trip_of(n) or 0 for n in loops if any(map(has_function, values_of(n.body)))]
    return (takes_long or few) and max(
        of_functions, default=length
    ) <= FITTED.vectorize_short_rows_longest_of_functions


def _operations(block: Block) -> int:
    """Operations of nodes themselves, without those in them."""
    return sum(isinstance(e, Apply | Select) for v in values_of(block) for e in walk(v))
