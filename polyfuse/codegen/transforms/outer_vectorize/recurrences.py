"""Rows of a recurrence along memory are lanes: a step is one of sixteen rows at once.

    for b in 0..B @blk:                      for b in 0..B by 16 @blk:
      p = s[b, 0]                              for row in 0..16 @vec:  p[row] = s[b + row, 0]
      for t in 1..T:                           for u in 0..T by 32:
        p = a * p + x[b, t]           ->         v[t - u, row] = x[b + row, t], a tile transposed
        s[b, t] = p                              for t in max(1, u)..min(T, u + 32):
                                                   for row in 0..16 @vec:
                                                     p[row] = a * p[row] + v[t - u, row]
                                                     w[t - u, row] = p[row]
                                                 s[b + row, t] = w[t - u, row], turned back

Steps wait for one another, and compute one number each.  Rows do not wait, but lie apart in memory: squares
of it are exchanged in registers (`codegen.transforms.outer_vectorize.strip_tiles`), a few instructions for
eight elements.  What steps leave for the next ones is in vector registers.

Iterations of a parallel nest may run in any order, so also at once; those of a sequential loop where an index
tells apart all that they write (`codegen.transforms.unroll_and_jam.shared_sums`).  Scalars of a row become
arrays with a place for each row, and arrays of the worker others with one more dimension.  Tiles are arrays
of the worker as well: gcc knows that these lie apart from all else.  Rows that are left go as they would
without this pass (`codegen.transforms.unroll_and_jam.recurrences`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.accesses import accesses, plain
from polyfuse.codegen.analysis.dependence import independent, independent_rows
from polyfuse.codegen.analysis.reduction_nests import are_steps
from polyfuse.codegen.analysis.row_batch import ROW, first_row, for_all_rows, of_all, places_of_batch
from polyfuse.codegen.analysis.row_phases import touched_bytes
from polyfuse.codegen.analysis.trip_count import in_steps, trip_of
from polyfuse.codegen.c_printer import certain_reads
from polyfuse.codegen.function import Function
from polyfuse.codegen.passes import missed
from polyfuse.codegen.transforms.outer_vectorize.strip_tiles import (
    Run,
    StripTile,
    line_shift,
    run_of,
    strips_of,
)
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, evaluate, sizes, variables
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    For,
    Node,
    Store,
    map_nodes,
    map_outermost,
    map_values,
    nodes_of,
    substituted,
    values_of,
)
from polyfuse.ir.ops import Cost, of_cost
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Expr, Index, Read, Select, reads, walk

# Rows fill a line of memory.
_LINE_BYTES = 64
# Steps back at most that what is stored may be read: so many are transposed again for each strip.
FARTHEST = FITTED.strip_tiles_steps
# Elements that need not be converted.
_SIZES = (4, 8)
# Of integers, without instructions for vectors.
_SCALAR = of_cost(Cost.FLOORED)
# Operations of few cycles: steps of a single one are as fast as memory is.
_QUICK = ("add", "sub", "mul")
_Place = tuple[str, tuple[Index, ...]]


def vectorize_recurrences(
    kernel: Kernel, functions: Sequence[Function], knobs: CpuKnobs
) -> tuple[tuple[Buffer, ...], tuple[Function, ...]]:
    """The functions of a kernel, with rows of recurrences as lanes wherever they can be, if the knobs leave
    it open; and the arrays of a worker that they need."""
    if knobs.rows or knobs.jointly is False:
        return (), tuple(functions)
    alone = [t.without_batches for t in functions]
    arrays = _Arrays(kernel, knobs.on.l2 * 3 // 4)
    far = touched_bytes(kernel) > knobs.on.l2
    touched = Counter(name for t in functions for name, _ in accesses(t.body))
    made: list[Function] = []
    for t, one in zip(functions, alone, strict=True):
        if far and _as_fast_as_memory(t):
            if len(t.loops) == 1 and _count(replace(t.loops[0], body=t.body)):
                missed(t.body, "steps are as fast as memory brings rows")
            made.append(t)
        elif len(t.loops) == 1 and independent_rows(kernel, one, alone):
            made.append(_nest(arrays, t))
        else:
            made.append(t if t.loops or t.jammed > 1 else _serial(arrays, t, touched))
    return tuple(arrays.made.values()), tuple(made)


def _nest(arrays: _Arrays, f: Function) -> Function:
    """A function of a nest of rows."""
    (loop,) = f.loops
    row = replace(loop, body=f.body)
    rows = _count(row)
    body = _at_once(arrays, row, rows, IVar(first_row(loop.var))) if rows else None
    return f if body is None else f.with_batch(rows, places_of_batch(f.loops, rows), body)


def _serial(arrays: _Arrays, f: Function, touched: Counter[str]) -> Function:
    """A function that has loops over rows in it; arrays of the worker that are `touched` elsewhere are no
    row's own."""
    counts = [1]

    def change(loop: For) -> list[Node] | None:
        rows = _count(loop)
        if not rows or not independent(arrays.kernel, loop):
            return None
        here = Counter(name for name, _ in accesses(loop.body))
        common = frozenset(name for name, count in here.items() if count < touched[name])
        body = _at_once(arrays, loop, rows, IVar(loop.var), common)
        if body is None:
            return None
        counts.append(rows)
        return in_steps(loop, body, rows)

    body = map_outermost(f.body, change)
    return replace(f.with_body(body), jammed=max(counts)) if len(counts) > 1 else f


def _at_once(
    arrays: _Arrays, loop: For, rows: int, first: IndexExpr, common: frozenset[str] = frozenset()
) -> Block | None:
    """The body of so many rows at once, from the `first` on, which have arrays of the worker to themselves
    but for those in `common`; None if they touch what cannot be transposed, or there is no room."""
    before = dict(arrays.made)
    body = _Lanes(arrays, loop, rows, common).body()
    if body is None or not arrays.fit:
        missed((loop,), "L2 does not hold tiles of all rows" if body else "rows are no tiles of memory")
        arrays.made = before
        return None
    return substituted(body, {loop.var: first + IVar(ROW)})


# --- whether ------------------------------------------------------------------------------------------


def _count(row: For) -> int:
    """How many rows are lanes; 0 where a row is no recurrence of plain steps."""
    loops = [n for n in row.body if isinstance(n, For)]
    plain_nodes = all(_is_plain(n, row.var) for n in row.body)
    long = [
        n for n in loops if (trip := trip_of(n)) is None or trip >= FITTED.vectorize_recurrences_fewest_steps
    ]
    if not plain_nodes or not any(are_steps(n, {row.var}) for n in long):
        return 0
    values = [*values_of(row.body), *(v for n in loops for v in values_of(n.body))]
    every = [e for v in values for e in walk(v)]
    widths = {e.dtype.bytes for e in (*values, *(e for e in every if isinstance(e, Read)))} - {1}
    divided = any(isinstance(e, Apply) and e.op in _SCALAR and not e.dtype.is_float for e in every)
    if divided or not widths or not widths <= {*_SIZES}:
        return 0
    count = _LINE_BYTES // max(widths)
    trip = trip_of(row)
    return count if trip is None or trip >= count else 0


def _as_fast_as_memory(f: Function) -> bool:
    """Do all steps make a single quick operation?"""
    loops = [n for n in nodes_of(f.body) if isinstance(n, For)]
    values = (v for n in loops for v in values_of(n.body))
    done = [e for v in values for e in walk(v) if isinstance(e, Apply | Select)]
    return len(done) <= 1 and all(isinstance(e, Apply) and e.op in _QUICK for e in done)


def _is_plain(n: Node, row: str) -> bool:
    """Is it a scalar, a store, or a loop of such?"""
    match n:
        case For(lower=lower, upper=upper, step=1, body=body, lanes=()):
            inside = all(isinstance(x, (Declare, Store, Comment)) and _is_plain(x, row) for x in body)
            return inside and row not in {*variables(lower), *variables(upper)}
        case Declare(count=count):
            return not count
        case Store() | Comment():
            return True
        case _:
            return False


# --- how ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Arrays:
    """Arrays of the worker with a place for each row, of which there is `room` for so many bytes."""

    kernel: Kernel
    room: int
    made: dict[object, Buffer] = field(default_factory=dict)

    @property
    def fit(self) -> bool:
        if any(sizes(b.elements) for b in self.made.values()):
            return False
        return sum(evaluate(b.elements, {}) * b.dtype.bytes for b in self.made.values()) <= self.room

    def array(self, key: object, dtype: DType, extents: tuple[IndexExpr, ...], rows: int) -> Buffer:
        """The one for a key and so many rows, made when it is asked for first."""
        key = key, rows
        if key not in self.made:
            taken = {b.tensor for b in (*self.kernel.buffers, *self.made.values())}
            names = (f"lanes{k}" for k in itertools.count())
            name = next(n for n in names if n not in taken)
            extents = (*extents, IConst(rows))
            self.made[key] = Buffer(name, dtype, Scope.LOCAL, extents, extents, "rows are lanes")
        return self.made[key]


@dataclass(slots=True)
class _Lanes:
    """The body of a loop over rows, for so many `rows` at once; arrays in `common` are no row's own."""

    arrays: _Arrays
    row: For
    rows: int
    common: frozenset[str]
    scalars: dict[str, Declare] = field(default_factory=dict)

    def body(self) -> Block | None:
        """None if what steps touch cannot be transposed."""
        self.scalars = {n.name: n for n in self.row.body if isinstance(n, Declare)}
        made: list[Node] = [Declare(of_all(n.name), n.dtype, None, self.rows) for n in self.scalars.values()]
        run: list[Node] = []
        for n in self.row.body:
            if not isinstance(n, For):
                run.append(n)
                continue
            steps = self._steps(n)
            if steps is None:
                return None
            made += [*self._all_rows(run), steps]
            run = []
        return (*made, *self._all_rows(run))

    def _own(self, name: str) -> Buffer | None:
        """An array of the worker that a row has to itself."""
        if name in self.common:
            return None
        buffers = self.arrays.kernel.buffers
        return next((b for b in buffers if b.tensor == name and b.scope is Scope.LOCAL), None)

    def _all_rows(self, run: Sequence[Node]) -> Iterator[Node]:
        """What is no loop, for all rows."""

        def place(name: str, indices: tuple[Index, ...], _: DType) -> _Place:
            b = self._own(name)
            if b is None:
                return name, indices
            key = self.row.var, name
            return self.arrays.array(key, b.dtype, b.extents, self.rows).tensor, (*indices, IVar(ROW))

        return for_all_rows(_moved(tuple(run), place), self.scalars, self.rows)

    def _steps(self, loop: For) -> Node | None:
        """Strips of steps, each with its tiles."""
        found = self._runs(loop)
        if found is None:
            return None
        loaded, stored = found
        every = {**stored, **loaded}
        shift = line_shift(*next((run, numbers[0]) for run, numbers in every.items())) if every else 0
        strips, strip = strips_of(loop, f"{loop.var}_from", shift)
        tiles: dict[Run, StripTile] = {}
        for run, numbers in every.items():
            extents = (IConst(StripTile.length(numbers)),)
            array = self.arrays.array((run, run in stored, *extents), run.dtype, extents, self.rows)
            tiles[run] = StripTile(run, min(numbers), max(numbers), array, strip)

        def place(name: str, indices: tuple[Index, ...], dtype: DType) -> _Place:
            at = self._run(name, indices, dtype, loop)
            return (name, indices) if at is None else tiles[at[0]].of(IVar(loop.var), at[1])

        body = tuple(self._all_rows(_moved(loop.body, place)))
        steps = replace(loop, lower=strip.begin, upper=strip.end, body=body, coordinate=Coordinate.SEQ)
        back = ((tiles[run], at[0]) for run, at in stored.items() if len(at) > 1)
        before = (
            *(tile.earlier(self.rows, number) for tile, number in back),
            *(tiles[run].loaded(self.rows) for run in loaded),
        )
        after = (tiles[run].stored(self.rows, at[0]) for run, at in stored.items())
        return replace(strips, body=(*before, steps, *after))

    def _runs(self, loop: For) -> tuple[dict[Run, list[int]], dict[Run, list[int]]] | None:
        """The runs of memory that steps load and store, with the numbers of their accesses, first that of the
        store; None where something goes along none, and is neither the same nor side by side for all rows."""
        scalars = {n.name for n in (*self.row.body, *loop.body) if isinstance(n, Declare)}
        certain = {r for v in values_of(loop.body) for r in certain_reads(v)}
        every = [r for v in values_of(loop.body) for r in reads(v) if r.indices and r.tensor not in scalars]
        stores = [n for n in loop.body if isinstance(n, Store) and n.indices and n.buffer not in scalars]
        loaded: dict[Run, list[int]] = {}
        stored: dict[Run, list[int]] = {}
        for n in stores:
            run = self._run(n.buffer, n.indices, n.value.dtype, loop)
            if run is None and not self._own(n.buffer):
                return None
            if run:
                stored.setdefault(run[0], []).append(run[1])
        others: list[Read] = []
        for r in every:
            run = self._run(r.tensor, r.indices, r.dtype, loop)
            known = r in certain if run else self._direct(r.tensor, r.indices)
            if not known:
                return None
            if run and run[0] in stored and 0 < _ago(run[0], stored[run[0]][0], run[1]) <= FARTHEST:
                stored[run[0]].append(run[1])
                continue
            others.append(r)
            if run:
                loaded.setdefault(run[0], []).append(run[1])
        return (loaded, stored) if self._apart(others, stores) else None

    def _apart(self, others: Sequence[Read], stores: Sequence[Store]) -> bool:
        """Is memory that steps store to stored to once, and read by no others, so that tiles do not meet?"""
        memory = {t.name: t.alias or t.name for t in self.arrays.kernel.graph.tensors}
        written = [memory.get(n.buffer, n.buffer) for n in stores if not self._own(n.buffer)]
        read = {memory.get(r.tensor, r.tensor) for r in others}
        return len({*written}) == len(written) and not read & {*written}

    def _run(self, name: str, indices: tuple[Index, ...], dtype: DType, loop: For) -> tuple[Run, int] | None:
        if self._own(name) or dtype.bytes not in _SIZES:
            return None
        return run_of(name, indices, dtype, self.row.var, loop.var)

    def _direct(self, name: str, indices: tuple[Index, ...]) -> bool:
        """Do lanes load an element without a tile: their own, one that is the same for all, or neighbours?"""
        row, at = self.row.var, plain(indices)
        if self._own(name):
            return len(at) == len(indices)
        if len(at) < len(indices):
            return False
        *leading, last = at
        if any(row in variables(i) for i in leading):
            return False
        form = linear(last)
        return row not in variables(last) or (form.factor(IVar(row)) == 1 and row not in form.hidden)


def _ago(run: Run, stored: int, read: int) -> int:
    """How many steps ago an element that is read was stored."""
    return (stored - read) * run.sign


def _moved(block: Block, place: Callable[[str, tuple[Index, ...], DType], _Place]) -> Block:
    """The block with elements at other places."""

    def expr(e: Expr) -> Expr:
        if not isinstance(e, Read):
            return e
        tensor, indices = place(e.tensor, e.indices, e.dtype)
        return replace(e, tensor=tensor, indices=indices)

    def node(n: Node) -> Node:
        if not isinstance(n, Store):
            return n
        buffer, indices = place(n.buffer, n.indices, n.value.dtype)
        return replace(n, buffer=buffer, indices=indices)

    return map_nodes(map_values(block, expr, lambda i: i), node)
