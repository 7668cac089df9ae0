"""Full unrolling: what loops over short rows do, for each element, without loops and arrays.

    m = -inf                                       m0 = x[t, 0]
    for c in 0..3: m max= x[t, c]                  m1 = max(m0, x[t, 1])
    for c in 0..3: e[c] = exp(x[t, c] - m)   ->    m2 = max(m1, x[t, 2])
    for c in 0..3: y[t, c] = e[c]                  e0 = exp(x[t, 0] - m2);  ...;  y[t, 0] = e0;  ...

Numbers and elements get a new name with each value, and memory along a row is a tile for all rows that go at
once, which is transposed (`codegen.transforms.outer_vectorize.short_rows`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.accesses import plain
from polyfuse.codegen.analysis.row_batch import ROW, for_all_rows
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.c_printer import certain_reads
from polyfuse.ir.dtypes import BOOL, HALVES, DType
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, variables
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    Node,
    Store,
    TransposedTile,
    Update,
    nodes_of,
    substituted,
)
from polyfuse.ir.ops import COMBINES
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Const, Expr, Index, Read, Select, map_expr

# Numbers of other sizes are converted, and in memory floats of 16 bits may be.
SIZES = (4, 8)
# Extremes, and what tells which of two numbers they keep.
COMPARED = {"max": "gt", "min": "lt"}
_PLACE = "place"

Element = tuple[str, tuple[Index, ...]]
Run = tuple[str, tuple[IndexExpr, ...]]  # a tensor, and all of its indices but the last, which tell the row


@dataclass(slots=True)
class StraightRows:
    """Rows without loops, `rows` of them at once, with fewer elements each.

    `values` are what numbers and elements are by now, `written` those of memory, `read` the memory that is
    read, `types` what is along rows of it, `lengths` how much, and `certain` which of it is there whatever
    conditions say; arrays of tiles have `names`.  All rows add to `sums`, for which each lane has a total of
    its own.
    """

    kernel: Kernel
    row: For
    rows: int
    fresh: Iterator[str]
    scalars: frozenset[str] = frozenset()
    values: dict[Element, Expr] = field(default_factory=dict)
    written: dict[Element, None] = field(default_factory=dict)
    sums: dict[Element, DType] = field(default_factory=dict)
    added: str = ""
    read: set[str] = field(default_factory=set)
    types: dict[Run, DType] = field(default_factory=dict)
    lengths: dict[Run, int] = field(default_factory=dict)
    certain: set[Run] = field(default_factory=set)
    names: dict[tuple[Run, bool], str] = field(default_factory=dict)
    made: list[Node] = field(default_factory=list)
    possible: bool = True

    def made_of(self, body: Block) -> Block | None:
        """The loop over rows; None where something is neither a number, nor along a row, nor the same for all
        rows, nor side by side."""
        self.scalars = frozenset(n.name for n in nodes_of(body) if isinstance(n, Declare))
        for n in body:
            if isinstance(n, For) and isinstance(n.lower, IConst):
                for k in range(n.lower.value, n.lower.value + (trip_of(n) or 0)):
                    self._block(substituted(n.body, {n.var: IConst(k)}))
            else:
                self._block((n,))
        for element in self.written:
            self._store(*element)
        self.possible &= self._apart() and self._is_there()
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
                case Update(name, (_, *_) as indices, "sum", value) if self._is_common(name, indices):
                    self._add((name, indices), self._expr(value))
                case Update(name, indices, _, value):
                    before = self._read(Read(name, indices, value.dtype))
                    self._set((name, indices), _combined(n, before, self._expr(value)))
                case _:
                    pass

    def _set(self, element: Element, value: Expr) -> None:
        name, indices = element
        at = f"%v{len(self.made)}"
        self.made.append(Declare(at, value.dtype, value))
        self.values[element] = Read(at, (), value.dtype)
        if self._is_own(name):
            self.possible &= all(isinstance(i, IConst) for i in indices)
        else:
            self.written[element] = None

    def _is_common(self, name: str, indices: tuple[Index, ...]) -> bool:
        """Do all rows add to an element of memory?  Numbers may be kept in double, which lanes are not."""
        return not self._is_own(name) and self._is_same(indices)

    def _add(self, element: Element, value: Expr) -> None:
        """One of the sums that all rows add to, which are of one type."""
        self.added = self.added or next(self.fresh)
        self.sums.setdefault(element, value.dtype)
        self.possible &= len({*self.sums.values()}) == 1
        place = (IConst([*self.sums].index(element)), IVar(ROW))
        self.possible &= value.dtype.bytes in SIZES
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
        runs = [self._run(r.tensor, r.indices, r.dtype) for r in certain_reads(e) if self._is_memory(r)]
        self.certain |= {r for r in runs if r is not None}
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

    def _is_memory(self, r: Read) -> bool:
        return (r.tensor, r.indices) not in self.values and not self._is_own(r.tensor)

    def _is_there(self) -> bool:
        """Is each row that is loaded whole read in any case?  Others may lie beyond the tensor."""
        return all(run in self.certain for run, back in self.names if not back)

    def _is_own(self, name: str) -> bool:
        """Is it a number, or an array of the worker?"""
        return name in self.scalars or any(
            b.tensor == name and b.scope is Scope.LOCAL for b in self.kernel.buffers
        )

    def _run(self, name: str, indices: tuple[Index, ...], dtype: DType) -> Run | None:
        """The run of memory that an element is in, if that is a whole row."""
        at = plain(indices)
        extents = next((b.extents for b in self.kernel.buffers if b.tensor == name), ())
        if len(at) < max(2, len(indices)) or not extents or not isinstance(extents[-1], IConst):
            return None
        (*leading, last), length = at, extents[-1].value
        if not isinstance(last, IConst) or not 0 <= last.value < length < self.rows:
            return None
        if any(self.row.var in linear(i).hidden for i in leading):
            return None
        if not any(linear(i).factor(IVar(self.row.var)) for i in leading):
            return None  # not one of each row
        run = name, tuple(leading)
        self.types[run], self.lengths[run] = dtype, length
        self.possible &= dtype.bytes in SIZES or dtype in HALVES
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
        form = linear(at[-1])
        return form.factor(IVar(self.row.var)) == 1 and self.row.var not in form.hidden

    def _apart(self) -> bool:
        """Is what is stored stored whole and in one place, and read by no other name?"""
        memory = {t.name: t.alias or t.name for t in self.kernel.graph.tensors}
        places: dict[tuple[str, tuple[Index, ...]], int] = {}
        for name, indices in self.written:
            run = self._run(name, indices, self.values[name, indices].dtype)
            place = (name, indices) if run is None else run
            left = 1 if run is None else places.get(run, self.lengths[run])
            places[place] = left - 1
        written = [memory.get(name, name) for name, _ in places]
        once = len({*written}) == len(written) and not any(places.values())
        summed = {memory.get(name, name) for name, _ in self.sums}
        read = {memory.get(n, n) for n in self.read}
        return once and not (read & {*written, *summed} or summed & {*written})

    # tiles

    def _array(self, run: Run, back: bool) -> str:
        """The array of a tile."""
        if (run, back) not in self.names:
            self.names[run, back] = next(self.fresh)
        return self.names[run, back]

    def arrays(self) -> Iterator[Buffer]:
        """Those of all tiles."""
        for (run, _), name in self.names.items():
            extents = (IConst(self.lengths[run]), IConst(self.rows))
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
        """Memory transposed into arrays, or these turned back."""
        lanes = For(ROW, IConst(0), IConst(self.rows), 1, ())
        for (run, stored), name in self.names.items():
            if stored is not back:
                continue
            (tensor, leading), length = run, self.lengths[run]
            along = For(_PLACE, IConst(0), IConst(length), 1, ())
            memory, array = (*leading, IVar(_PLACE)), (IVar(_PLACE), IVar(ROW))
            if back:
                yield TransposedTile(
                    "%tile",
                    self.types[run],
                    name,
                    array,
                    lanes,
                    self.rows,
                    along,
                    length,
                    (tensor, memory),
                )
            else:
                yield TransposedTile(
                    "%tile",
                    self.types[run],
                    tensor,
                    memory,
                    along,
                    length,
                    lanes,
                    self.rows,
                    (name, array),
                )


def _combined(u: Update, before: Expr, value: Expr) -> Expr:
    """What a number is after an update."""
    dtype = value.dtype
    if u.op in COMPARED and isinstance(before, Const) and before.value == identity(u.op, dtype):
        return value
    if u.op in COMPARED and not u.nan:
        return Select(Apply(COMPARED[u.op], (before, value), BOOL), before, value, dtype)
    return Apply(COMBINES[u.op], (before, value), dtype)
