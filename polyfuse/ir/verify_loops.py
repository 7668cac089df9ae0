"""Facts that hold for all loops of a kernel: what printers rely on, checked between passes where verification
is on.

    every scalar and array is declared before it is used, once in a block, and what uses it is in that block
    every variable is that of a loop around, or of a function's parameters
    elements have as many indices as their array has dims, and the dtype of their array
    loops go upwards, and a vector loop is in no other one
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from polyfuse.diagnostics import InternalError
from polyfuse.ir.dtypes import F32, F64, DType
from polyfuse.ir.index_expr import IndexExpr, IVar, leaves, sizes
from polyfuse.ir.kernel import Buffer, Scope
from polyfuse.ir.loop_ir import (
    Barrier,
    Block,
    Combine,
    Comment,
    Declare,
    Delinearize,
    Exec,
    For,
    If,
    LocalRole,
    Node,
    OwnedLoop,
    Prefetch,
    RegisterTile,
    Store,
    TransposedTile,
    Update,
    VectorLoad,
    VectorStore,
    format_block,
    nodes_of,
)
from polyfuse.ir.ops import COMBINES
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Index, IndexValue, Read, children

# Lines of a loop that a message shows.
SHOWN = 12
# What is declared has no index, or one.
SCALAR, ARRAY = 0, 1


@dataclass(frozen=True, slots=True)
class Place:
    """What a name of memory stands for: its dtype, and how many indices it takes."""

    dtype: DType
    rank: int


@dataclass(slots=True)
class LoopVerifier:
    """Checks blocks one after the other, as they stand in a function: names stay known from one to the next.

    `variables` are those of loops around.  With `free` these may be any, and the names are collected there.
    """

    buffers: Mapping[str, Place]
    sizes: frozenset[str] = frozenset()
    variables: set[str] = field(default_factory=set)
    free: set[str] | None = None
    places: dict[str, Place] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    vector: str = ""
    found: dict[str, tuple[str, ...]] = field(default_factory=dict)  # in loops over a variable: others
    at: list[Node] = field(default_factory=list)

    def block(self, block: Block) -> None:
        """Raises InternalError PF905 for the first fact that is broken."""
        for n in block:
            self.at.append(n)
            self._node(n)
            self.at.pop()

    @contextmanager
    def inside(self, variables: Iterable[str] = ()) -> Iterator[None]:
        """A block in braces: what it declares ends with it."""
        places, declared, known, found = self.places, self.declared, self.variables, self.found
        self.places, self.declared, self.variables = dict(places), set(), {*known, *variables}
        self.found = dict(found)
        yield
        self.places, self.declared, self.variables, self.found = places, declared, known, found

    def declare(self, name: str, dtype: DType, rank: int) -> None:
        """A scalar or array of the block."""
        if name in self.declared:
            raise self.broken(f"{name} is declared twice in one block")
        self.declared.add(name)
        self.places[name] = Place(dtype, rank)

    def broken(self, what: str) -> InternalError:
        """The error that names the fact and shows the loop."""
        around = [n.var for n in self.at if isinstance(n, For)]
        where = f" in the loop over {', '.join(around)}" if around else ""
        text = format_block((self.at[-1],) if self.at else ()).splitlines()
        shown = [*text[:SHOWN], *["..."] * (len(text) > SHOWN)]
        return InternalError("\n".join([f"{what}{where}:", *shown]), code="PF905")

    def _node(self, n: Node) -> None:
        match n:
            case For():
                self._loop(n)
            case If(cond, then, other):
                self._expr(cond)
                for part in (then, other):
                    with self.inside():
                        self.block(part)
            case Declare(name, dtype, value, count):
                if value is not None:
                    self._expr(value)
                    self._same(value.dtype, dtype, name)
                self.declare(name, dtype, ARRAY if count else SCALAR)
                if n.role is LocalRole.INDEX:
                    self.variables.add(name)
            case Store(buffer, indices, value):
                self._expr(value)
                self._same(value.dtype, self._element(buffer, indices), buffer)
            case Update(buffer, indices, op, value):
                if op not in COMBINES:
                    raise self.broken(f"no reduction is called {op}")
                self._expr(value)
                self._same(value.dtype, self._element(buffer, indices), buffer)
            case Prefetch(buffer, indices):
                self._element(buffer, indices)
            case Combine(name, _, dtype):
                self._same(dtype, self._element(name, ()), name)
            case VectorLoad(name, dtype, buffer, indices):
                self._same(dtype, self._element(buffer, indices), buffer)
                self.declare(name, dtype, ARRAY)
            case VectorStore(buffer, indices, name):
                self._same(self._place(name).dtype, self._element(buffer, indices), buffer)
            case RegisterTile():
                self._tile(n)
            case TransposedTile():
                self._turned(n)
            case OwnedLoop():
                self._owned(n)
            case Delinearize():
                self._delinearized(n)
            case Barrier() | Comment():
                pass
            case Exec():
                raise self.broken("an instance is no statement yet")

    def _loop(self, n: For) -> None:
        outer, lanes = self.vector, n.coordinate is Coordinate.VECTOR
        if outer and n.body and all(isinstance(x, Prefetch) for x in n.body):
            return  # asked for with the vectors of the loop around: its bounds are not printed
        self._index(n.lower)
        self._index(n.upper)
        if n.step <= 0:
            raise self.broken(f"{n.var} does not go upwards")
        if lanes and outer:
            raise self.broken(f"{n.var} is a vector loop in that over {outer}")
        self.vector = n.var if lanes else outer
        with self.inside((n.var, *self.found.get(n.var, ()))):
            for name in n.lanes:
                if n.joint:  # a total of each of the rows
                    self.places[name] = Place(_total(n.body, name), SCALAR)
                self._place(name)
            self.block(n.body)
        self.vector = outer

    def _tile(self, n: RegisterTile) -> None:
        (row, first_row), (lane, first_lane) = n.start
        for e in (first_row, first_lane, *(e for e in n.ends if e is not None)):
            self._index(e)
        if n.rows <= 0 or n.lanes <= 0 or n.parts > len(n.loops):
            raise self.broken(f"the tile {n.name} has no elements")
        with self.inside((row, lane, n.row, n.lane)):
            for x in n.loops:
                self._index(x.lower)
                self._index(x.upper)
                self.variables.add(x.var)
            self._expr(n.left)
            self._expr(n.right)
        self.variables |= {row, lane}
        self.declare(n.name, n.dtype, ARRAY)

    def _turned(self, n: TransposedTile) -> None:
        for x in (n.row, n.lane):
            self._index(x.lower)
            self._index(x.upper)
        with self.inside((n.row.var, n.lane.var)):
            self._same(n.dtype, self._element(n.buffer, n.indices), n.buffer)
            if n.to is not None:
                self._same(n.dtype, self._element(*n.to), n.to[0])
        if n.to is None:
            self.declare(n.name, n.dtype, ARRAY)

    def _owned(self, n: OwnedLoop) -> None:
        for i in (n.extent, *n.share):
            self._index(i)
        with self.inside(x.var for x in nodes_of((n.loop,)) if isinstance(x, For)):
            self._expr(n.key)
            for r in n.ahead:
                self._expr(r)
        self._place(n.update)
        self._loop(n.loop)

    def _delinearized(self, n: Delinearize) -> None:
        for x in n.loops:
            self._index(x.lower)
            self._index(x.upper)
        if n.until is not None:
            self._index(n.until)
        with self.inside((n.over.var,) if n.over else ()):
            self._index(n.number)
        if twice := self.variables & {*n.variables}:
            raise self.broken(f"{', '.join(sorted(twice))} is a variable already")
        if n.over is not None:
            self.found[n.over.var] = n.variables
        else:
            self.variables |= {*n.variables}

    # --- values ---------------------------------------------------------------------------------------

    def _expr(self, e: Expr) -> None:
        left = [e]
        while left:
            x = left.pop()
            match x:
                case Read(tensor, indices, dtype):
                    self._same(dtype, self._element(tensor, indices), tensor)
                case IndexValue(index):
                    self._index(index)
                case _:
                    left += children(x)

    def _element(self, buffer: str, indices: tuple[Index, ...]) -> DType:
        place = self._place(buffer)
        if len(indices) != place.rank:
            raise self.broken(f"{buffer} has {place.rank} dims and {len(indices)} indices")
        for i in indices:
            if isinstance(i, EXPR_TYPES):
                self._expr(i)
                if not i.dtype.is_integer:
                    raise self.broken(f"an index of {buffer} is no integer")
            else:
                self._index(i)
        return place.dtype

    def _place(self, name: str) -> Place:
        found = self.places.get(name) or self.buffers.get(name)
        if found is None:
            raise self.broken(f"{name} is not declared here")
        return found

    def _index(self, e: IndexExpr) -> None:
        for x in leaves(e):
            if isinstance(x, IVar) and x.name not in self.variables:
                if self.free is None:
                    raise self.broken(f"{x.name} is no variable of a loop around")
                self.free.add(x.name)
        if unknown := set(sizes(e)) - self.sizes:
            raise self.broken(f"{', '.join(sorted(unknown))} is no size of the kernel")

    def _same(self, value: DType, place: DType, name: str) -> None:
        """Sums that are kept in double have terms of f32."""
        if value != place and (value, place) != (F32, F64):
            raise self.broken(f"{name} is {place}, and the value is {value}")


def _total(body: Block, name: str) -> DType:
    """The dtype of what a row adds to a total."""
    return next(n.value.dtype for n in nodes_of(body) if isinstance(n, Update) and n.buffer == name)


def places_of(buffers: Iterable[Buffer], declared: bool) -> dict[str, Place]:
    """The memory that is there before a kernel declares anything; registers, until they are `declared`."""
    return {
        b.tensor: Place(b.dtype, SCALAR if b.scope is Scope.REGISTER else len(b.extents))
        for b in buffers
        if not (declared and b.scope is Scope.REGISTER)
    }
