"""Rows shorter than a vector are lanes, and their elements are numbers.

    for t in 0..T @blk:                           for t in 0..T by 16 @blk:
      m = -inf                                      v[k, row] = x[t + row, k], a tile turned around
      for c in 0..5 @vec: m max= x[t, c]            for row in 0..16 @vec:
      for c in 0..5 @vec:                    ->       m = max(v[0, row], ..., v[4, row])
        e[c] = exp(x[t, c] - m)                       e0 = exp(v[0, row] - m); ...; e4 = ...
        d += e[c]                                     d = e0 + ... + e4
      for c in 0..5 @vec: y[t, c] = e[c] / d          w[0, row] = e0 / d; ...; w[4, row] = ...
                                                    y[t + row, k] = w[k, row], turned back

Five elements fill a third of a vector, and each phase of a row waits for the one before.  Sixteen rows fill
five vectors, and nothing is combined across lanes.  Memory is turned around in registers, as for recurrences
(`codegen.rows_in_lanes`); rows that lie one behind the other are so without squares (`turned_tiles.h`).

Iterations of a parallel nest may run in any order, so also at once.  Those of other loops may where an index
tells apart what rows store, and nothing else reads that.  Tiles are arrays of the worker, and hold whole
rows: each is loaded once and stored once.  What a row keeps in arrays of the worker are numbers here, so it
stores each before it reads it, and no one else reads it.  Rows that are left go as they would without this
pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from polyfuse.codegen.hoist import computes_little
from polyfuse.codegen.rows_jammed import in_steps
from polyfuse.codegen.rows_jointly import ROW, first_row, for_all_rows, names_of
from polyfuse.codegen.rows_together import nodes_of, possible
from polyfuse.codegen.strip_tiles import hidden
from polyfuse.codegen.tasks import Task, Together
from polyfuse.codegen.transposed import plain
from polyfuse.codegen.trips import trip_of
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.cpu_knobs import CpuKnobs
from polyfuse.ir.dtypes import BOOL, DType
from polyfuse.ir.functions import has_function
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, variables
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    For,
    Node,
    Store,
    TurnedTile,
    Update,
    map_nodes,
    map_outermost,
    substituted,
    values_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Const, Expr, Index, Read, Select, map_expr, walk

# Elements of a row: fewer are statements of their own (`layers.short_dims`), more fill a vector well enough,
# and still more where functions of them take long.
SHORTEST, LONGEST, LONGEST_OF_FUNCTIONS = 5, 8, 12
# To turn around more (with vectors of 32 bytes, as many), or longer ones, takes as long as to add or multiply
# them as they lie.
FEW = 6
# What is left of a row goes in halves and quarters of vectors, and what is left of these one by one.
QUARTER = 4
# Operations of all elements together: with more, compilers take long.
MOST_OPERATIONS = 400
# Rows fill a line of memory; elements of other sizes are converted.
_LINE_BYTES, _SIZES = 64, (4, 8)
_COMBINED = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}
_COMPARED = {"max": "gt", "min": "lt"}
# Of integers, without instructions for vectors.
_SCALAR = ("floordiv", "mod")
_PLACE = "place"

_Element = tuple[str, tuple[Index, ...]]
_Run = tuple[str, tuple[IndexExpr, ...]]  # a tensor, and all of its indices but the last, which tell the row


def short_rows_in_lanes(
    kernel: Kernel, tasks: Sequence[Task], knobs: CpuKnobs
) -> tuple[tuple[Buffer, ...], tuple[Task, ...]]:
    """The tasks of a kernel, with such rows as lanes wherever they can be and it pays, if the knobs leave it
    open; and the arrays of a worker that they need."""
    if knobs.rows or knobs.jointly is False:
        return (), tuple(tasks)
    change = _Change(kernel, knobs.on)
    made: list[Task] = []
    for t in tasks:
        nest = change.nest(t) if len(t.loops) == 1 and possible(kernel, t, tasks) else None
        others = {x for o in tasks if o is not t for x in names_of(o.body)}
        made.append(nest or change.inside(t, others))
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
    """What becomes of the tasks of a kernel, and the `arrays` of a worker that are made for it."""

    kernel: Kernel
    core: Core
    arrays: list[Buffer] = field(default_factory=list)

    def nest(self, task: Task) -> Task | None:
        """A task that hands out rows."""
        (loop,) = task.loops
        found = self._at_once(replace(loop, body=task.body), IVar(first_row(loop.var)))
        if found is None or found.after:
            return None
        return replace(task, together=Together((task.loops,), found.body, found.rows, task.together))

    def inside(self, task: Task, others: set[str]) -> Task:
        """A task with loops over rows in it, or along them; `others` touch these buffers."""
        if task.together or task.jammed > 1 or task.skew:
            return task
        own = {b.tensor for b in self.kernel.buffers if b.scope is Scope.LOCAL}
        counts = [1]

        def change(loop: For) -> list[Node] | None:
            one_by_one = loop.coordinate in (Coordinate.SEQ, Coordinate.VECTOR) and loop.step == 1
            if not one_by_one or loop.lanes or loop.joint:
                return None
            elsewhere = others | names_of(map_nodes(task.body, lambda n: () if n is loop else n))
            found = None if names_of((loop,)) & own & elsewhere else self._at_once(loop, IVar(loop.var))
            if found is None:
                return None
            counts.append(found.rows)
            main, *left = in_steps(replace(loop, coordinate=Coordinate.SEQ), found.body, found.rows)
            others_left = (replace(x, coordinate=loop.coordinate) for x in left if isinstance(x, For))
            return [*found.before, main, *found.after, *others_left]

        body = map_outermost(task.body, change)
        return replace(task, body=body, jammed=max(counts)) if len(counts) > 1 else task

    def _at_once(self, row: For, first: IndexExpr) -> _Rows | None:
        """As many rows as lanes, from the `first` on; None if there are no such rows."""
        length, width = _length(self.kernel, row), _width(row.body)
        rows, trip = _LINE_BYTES // (width or 1), trip_of(row)
        few = width == min(_SIZES) and length <= (FEW if self.core.vector_bytes >= _LINE_BYTES else FEW - 1)
        if not width or not SHORTEST <= length < rows or not _is_worth(row.body, length, few):
            return None
        if trip is not None and trip < rows:
            return None
        taken = {b.tensor for b in (*self.kernel.buffers, *self.arrays)}
        names = (name for k in itertools.count() if (name := f"short{k}") not in taken)
        straight = _Straight(self.kernel, row, length, rows, names)
        body = straight.made_of(row.body)
        if body is None:
            return None
        self.arrays += straight.arrays()
        whole = (*straight.tiles(back=False), *body, *straight.tiles(back=True))
        whole = substituted(whole, {row.var: first + IVar(ROW)})
        return _Rows(rows, straight.none_added(), whole, straight.totals())


# --- whether ------------------------------------------------------------------------------------------


def _length(kernel: Kernel, row: For) -> int:
    """How many elements all loops of a row go over, or rows have without them; 0 where a row has loops of
    several lengths, or anything but plain nodes."""
    loops = [n for n in row.body if isinstance(n, For)]
    nodes = [n for n in nodes_of(row.body) if not isinstance(n, For)]
    plain_nodes = all(isinstance(n, (Declare, Store, Update, Comment)) for n in nodes)
    counted = any(isinstance(n, Declare) and n.count for n in nodes)
    shared = any(isinstance(n, Update) and n.atomic for n in nodes)
    nested = any(isinstance(n, For) for x in loops for n in x.body)
    whole = all(n.lower == IConst(0) and n.step == 1 and not n.joint for n in loops)
    lengths = {trip_of(n) for n in loops} or _extents(kernel, row)
    if not plain_nodes or counted or shared or nested or not whole or len(lengths) != 1:
        return 0
    (length,) = lengths
    return length if length is not None and length < _LINE_BYTES // min(_SIZES) else 0


def _extents(kernel: Kernel, row: For) -> set[int | None]:
    """How long the rows are that numbered elements are read of."""
    extents = {b.tensor: b.extents for b in kernel.arguments if len(b.extents) > 1}
    read = [e for v in values_of(row.body) for e in walk(v) if isinstance(e, Read) and e.tensor in extents]
    found = {extents[r.tensor][-1] for r in read if isinstance(r.indices[-1], IConst)}
    return {e.value if isinstance(e, IConst) else None for e in found}


def _width(body: Block) -> int:
    """Bytes of the numbers that are read and computed; 0 where they are of several widths, or of others."""
    values = [*values_of(nodes_of(body))]
    every = [e for v in values for e in walk(v)]
    found = (*values, *(e for e in every if isinstance(e, Read)))
    widths = {e.dtype.bytes for e in found if not e.dtype.is_bool}
    divided = any(isinstance(e, Apply) and e.op in _SCALAR and not e.dtype.is_float for e in every)
    return widths.pop() if len(widths) == 1 and widths <= {*_SIZES} and not divided else 0


def _is_worth(body: Block, length: int, few: bool) -> bool:
    """Is something made of several elements of a row, with enough operations if these are not few, or by
    functions of each, and not too many of them?"""
    values = [*values_of(nodes_of(body))]
    every = [e for v in values for e in walk(v)]
    functions = any(map(has_function, values))
    joined = any(isinstance(n, For) and n.lanes for n in body)
    joined |= any(isinstance(e, Read) and e.indices and isinstance(e.indices[-1], IConst) for e in every)
    takes_long = any(isinstance(n, Update) and n.op in _COMPARED for n in nodes_of(body))
    takes_long |= any(isinstance(e, Apply) and (e.op in _COMPARED or not computes_little(e)) for e in every)
    operations = sum(length * _operations(n.body) for n in body if isinstance(n, For)) + _operations(body)
    if operations > MOST_OPERATIONS:
        return False
    if not joined:
        return functions and length % QUARTER > 0
    return (takes_long or few) and length <= (LONGEST_OF_FUNCTIONS if functions else LONGEST)


def _operations(block: Block) -> int:
    """Operations of nodes themselves, without those in them."""
    return sum(isinstance(e, Apply | Select) for v in values_of(block) for e in walk(v))


# --- how ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Straight:
    """Rows of `length` elements without loops, `rows` of them at once.

    `values` are what numbers and elements are by now, `written` those of memory, `read` the memory that is
    read, and `types` what is along rows of it; arrays of tiles have `names`.  All rows add to `sums`, for
    which each lane has a total of its own.
    """

    kernel: Kernel
    row: For
    length: int
    rows: int
    fresh: Iterator[str]
    scalars: frozenset[str] = frozenset()
    values: dict[_Element, Expr] = field(default_factory=dict)
    written: dict[_Element, None] = field(default_factory=dict)
    sums: dict[_Element, DType] = field(default_factory=dict)
    added: str = ""
    read: set[str] = field(default_factory=set)
    types: dict[_Run, DType] = field(default_factory=dict)
    names: dict[tuple[_Run, bool], str] = field(default_factory=dict)
    made: list[Node] = field(default_factory=list)
    possible: bool = True

    def made_of(self, body: Block) -> Block | None:
        """The loop over rows; None where something is neither a number, nor along a row, nor the same for all
        rows, nor side by side."""
        self.scalars = frozenset(n.name for n in nodes_of(body) if isinstance(n, Declare))
        for n in body:
            if isinstance(n, For):
                for k in range(self.length):
                    self._block(substituted(n.body, {n.var: IConst(k)}))
            else:
                self._block((n,))
        for element in self.written:
            self._store(*element)
        self.possible &= self._apart()
        return tuple(for_all_rows(tuple(self.made), {}, self.rows)) if self.possible else None

    def _block(self, block: Block) -> None:
        for n in block:
            match n:
                case Declare(name, _, value):
                    self.values.pop((name, ()), None)
                    if value is not None:
                        self._set((name, ()), self._expr(value))
                case Store(name, indices, value):
                    self._set((name, indices), self._expr(value))
                case Update(name, indices, "sum", value) if not self._is_own(name) and self._is_same(indices):
                    self._add((name, indices), self._expr(value))
                case Update(name, indices, _, value):
                    before = self._read(Read(name, indices, value.dtype))
                    self._set((name, indices), _combined(n, before, self._expr(value)))
                case _:
                    pass

    def _set(self, element: _Element, value: Expr) -> None:
        name, indices = element
        at = f"%v{len(self.made)}"
        self.made.append(Declare(at, value.dtype, value))
        self.values[element] = Read(at, (), value.dtype)
        if self._is_own(name):
            self.possible &= all(isinstance(i, IConst) for i in indices)
        else:
            self.written[element] = None

    def _add(self, element: _Element, value: Expr) -> None:
        """One of the sums that all rows add to."""
        self.added = self.added or next(self.fresh)
        self.sums.setdefault(element, value.dtype)
        place = (IConst([*self.sums].index(element)), IVar(ROW))
        self.possible &= value.dtype.bytes in _SIZES
        self.made.append(Update(self.added, place, "sum", value))

    def _store(self, name: str, indices: tuple[Index, ...]) -> None:
        """What an element of memory is in the end."""
        value = self.values[name, indices]
        run = self._run(name, indices, value.dtype)
        if run is None:
            self.possible &= self._is_beside(indices)
            self.made.append(Store(name, indices, value))
        else:
            self.made.append(Store(self._array(run, True), (indices[-1], IVar(ROW)), value))

    def _expr(self, e: Expr) -> Expr:
        return map_expr(e, lambda x: self._read(x) if isinstance(x, Read) else x)

    def _read(self, r: Read) -> Expr:
        if (r.tensor, r.indices) in self.values:
            return self.values[r.tensor, r.indices]
        self.possible &= not self._is_own(r.tensor)
        self.read.add(r.tensor)
        run = self._run(r.tensor, r.indices, r.dtype)
        if run is not None:
            return Read(self._array(run, False), (r.indices[-1], IVar(ROW)), r.dtype)
        self.possible &= self._is_same(r.indices) or self._is_beside(r.indices)
        return r

    # what is touched

    def _is_own(self, name: str) -> bool:
        """Is it a number, or an array of the worker?"""
        return name in self.scalars or any(
            b.tensor == name and b.scope is Scope.LOCAL for b in self.kernel.buffers
        )

    def _run(self, name: str, indices: tuple[Index, ...], dtype: DType) -> _Run | None:
        """The run of memory that an element is in, if that is a whole row."""
        at = plain(indices)
        extents = next((b.extents for b in self.kernel.buffers if b.tensor == name), ())
        if len(at) < max(2, len(indices)) or not extents or extents[-1] != IConst(self.length):
            return None
        *leading, last = at
        if not isinstance(last, IConst) or not 0 <= last.value < self.length:
            return None
        if any(self.row.var in hidden(i) for i in leading):
            return None
        if not any(linear(i).factor(IVar(self.row.var)) for i in leading):
            return None  # not one of each row
        run = name, tuple(leading)
        self.types[run] = dtype
        self.possible &= dtype.bytes in _SIZES
        return run

    def _is_same(self, indices: tuple[Index, ...]) -> bool:
        """Is an element the same for all rows?"""
        at = plain(indices)
        return len(at) == len(indices) and not any(self.row.var in variables(i) for i in at)

    def _is_beside(self, indices: tuple[Index, ...]) -> bool:
        """Do the elements of neighbouring rows lie side by side?"""
        at = plain(indices)
        if not at or len(at) < len(indices) or any(self.row.var in variables(i) for i in at[:-1]):
            return False
        return linear(at[-1]).factor(IVar(self.row.var)) == 1 and self.row.var not in hidden(at[-1])

    def _apart(self) -> bool:
        """Is what is stored stored whole and in one place, and read by no other name?"""
        memory = {t.name: t.alias or t.name for t in self.kernel.graph.tensors}
        places: dict[tuple[str, tuple[Index, ...]], int] = {}
        for name, indices in self.written:
            run = self._run(name, indices, self.values[name, indices].dtype)
            place = (name, indices) if run is None else run
            places[place] = places.get(place, 0) + (self.length if run is None else 1)
        written = [memory.get(name, name) for name, _ in places]
        once = len({*written}) == len(written) and all(n == self.length for n in places.values())
        summed = {memory.get(name, name) for name, _ in self.sums}
        read = {memory.get(n, n) for n in self.read}
        return once and not (read & {*written, *summed} or summed & {*written})

    # tiles

    def _array(self, run: _Run, back: bool) -> str:
        """The array of a tile."""
        if (run, back) not in self.names:
            self.names[run, back] = next(self.fresh)
        return self.names[run, back]

    def arrays(self) -> Iterator[Buffer]:
        """Those of all tiles."""
        extents = (IConst(self.length), IConst(self.rows))
        for (run, _), name in self.names.items():
            yield Buffer(name, self.types[run], Scope.LOCAL, extents, extents, "rows are lanes")
        for dtype in {*self.sums.values()}:
            extents = (IConst(len(self.sums)), IConst(self.rows))
            yield Buffer(self.added, dtype, Scope.LOCAL, extents, extents, "lanes of sums")

    # sums of all rows

    def none_added(self) -> Block:
        """The lanes of the sums of all rows as they are first."""
        place = (IVar(_PLACE), IVar(ROW))
        return tuple(
            For(_PLACE, IConst(0), IConst(len(self.sums)), 1, (self._lanes(Store(self.added, place, none)),))
            for none in {Const(0.0 if t.is_float else 0, t) for t in self.sums.values()}
        )

    def totals(self) -> Block:
        """These lanes are added up."""
        made: list[Node] = []
        for k, ((name, indices), dtype) in enumerate(self.sums.items()):
            total = f"%total_{self.added}_{k}"
            lane = Read(self.added, (IConst(k), IVar(ROW)), dtype)
            made.append(Declare(total, dtype, Const(0.0 if dtype.is_float else 0, dtype)))
            made.append(replace(self._lanes(Update(total, (), "sum", lane)), lanes=(total,)))
            made.append(Update(name, indices, "sum", Read(total, (), dtype)))
        return tuple(made)

    def _lanes(self, n: Node) -> For:
        return For(ROW, IConst(0), IConst(self.rows), 1, (n,), Coordinate.VECTOR)

    def tiles(self, back: bool) -> Iterator[Node]:
        """Memory turned around into arrays, or these turned back."""
        along = For(_PLACE, IConst(0), IConst(self.length), 1, ())
        lanes = For(ROW, IConst(0), IConst(self.rows), 1, ())
        for (run, stored), name in self.names.items():
            if stored is not back:
                continue
            tensor, leading = run
            memory, array = (*leading, IVar(_PLACE)), (IVar(_PLACE), IVar(ROW))
            if back:
                yield TurnedTile(
                    "%tile",
                    self.types[run],
                    name,
                    array,
                    lanes,
                    self.rows,
                    along,
                    self.length,
                    (tensor, memory),
                )
            else:
                yield TurnedTile(
                    "%tile",
                    self.types[run],
                    tensor,
                    memory,
                    along,
                    self.length,
                    lanes,
                    self.rows,
                    (name, array),
                )


def _combined(u: Update, before: Expr, value: Expr) -> Expr:
    """What a number is after an update."""
    dtype = value.dtype
    if u.op in _COMPARED and isinstance(before, Const) and before.value == identity(u.op, dtype):
        return value
    if u.op in _COMPARED and not u.nan:
        return Select(Apply(_COMPARED[u.op], (before, value), BOOL), before, value, dtype)
    return Apply(_COMBINED[u.op], (before, value), dtype)
