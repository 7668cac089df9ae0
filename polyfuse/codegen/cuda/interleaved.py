"""Interleaved accesses of a vector loop: lanes that take turns in memory share its vectors.

    for v in 0..4: y[8*tx + 2*v] = x[8*tx + 2*v] - x[8*tx + 2*v + 1];  y[8*tx + 2*v + 1] = ...
becomes
    w0[8] = x[8*tx ...]
    for v in 0..4: w1[2*v] = w0[2*v] - w0[2*v + 1];  w1[2*v + 1] = ...
    y[8*tx ...] = w1[8]

Pairs of real and imaginary parts, or of neighbours that are turned, are such.  All elements of the vectors
must be accessed: those between would be read or written for nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from polyfuse.codegen.c_printer import certain_reads
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, substitute, variables
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.linear import Linear, flat
from polyfuse.ir.loop_ir import Declare, For, Node, Store, Update, VectorLoad, VectorStore
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Index, Read, map_expr, map_index, reads

# Lanes are so many elements apart, at most, and a vector of all has so many bytes.
MOST_STEPS = 4
MOST_BYTES = 64
ACCESS_BYTES = 16
_MEMORY = (Scope.ARGUMENT, Scope.GLOBAL)


@dataclass(frozen=True, slots=True)
class _Place:
    """Element `steps` * lane + `rest` of the vector that begins at element number `first`, at `indices`."""

    buffer: str
    first: Linear
    steps: int
    rest: int
    indices: tuple[Index, ...]

    @property
    def vector(self) -> tuple[str, frozenset[tuple[IndexExpr, int]], int, int]:
        """What the places of one vector have in common."""
        return self.buffer, frozenset(self.first.terms), self.first.constant, self.steps


@dataclass(frozen=True, slots=True)
class Interleaved:
    """A vector loop without its interleaved accesses, what loads its vectors and what stores them; the bytes
    of the accesses to each buffer."""

    before: tuple[Node, ...]
    loop: For
    after: tuple[Node, ...]
    aligned: dict[str, int]


def interleaved(
    kernel: Kernel, strided: frozenset[str], loop: For, numbers: itertools.count[int]
) -> Interleaved:
    """A vector loop of plain statements, with such accesses taken out. `numbers` numbers the arrays."""
    found = _Found(kernel, strided, loop)
    count = found.count
    before: list[Node] = []
    after: list[Node] = []
    aligned: dict[str, int] = {}
    names: dict[object, str] = {}
    for p in (*(loads := found.loads()).values(), *(stores := found.stores()).values()):
        if (key := p.vector) in names:
            continue
        names[key] = f"%w{next(numbers)}"
        dtype, whole = kernel.buffer(p.buffer).dtype, count * p.steps
        aligned[p.buffer] = max(aligned.get(p.buffer, 0), min(ACCESS_BYTES, dtype.bytes * whole))
        if any(p is s for s in stores.values()):
            before.append(Declare(names[key], dtype, None, whole))
            after.append(VectorStore(p.buffer, p.indices, names[key], whole))
        else:
            before.append(VectorLoad(names[key], dtype, p.buffer, p.indices, whole))
    lane = IVar(loop.var)

    def local(p: _Place) -> tuple[IndexExpr, ...]:
        return (binary("+", binary("*", lane, p.steps), p.rest),)

    def loaded(e: Expr) -> Expr:
        p = loads.get(e) if isinstance(e, Read) else None
        return e if p is None else Read(names[p.vector], local(p), e.dtype)

    def on_expr(e: Expr) -> Expr:
        return map_expr(e, loaded)

    body: list[Node] = []
    for k, node in enumerate(loop.body):
        if isinstance(node, (Store, Update, Declare)) and node.value is not None:
            node = replace(node, value=on_expr(node.value))
        if isinstance(node, (Store, Update)):
            node = replace(node, indices=tuple(map_index(i, on_expr, None) for i in node.indices))
        if isinstance(node, Store) and k in stores:
            node = replace(node, buffer=names[stores[k].vector], indices=local(stores[k]))
        body.append(node)
    return Interleaved(tuple(before), replace(loop, body=tuple(body)), tuple(after), aligned)


@dataclass(frozen=True, slots=True)
class _Found:
    """The interleaved accesses of a loop."""

    kernel: Kernel
    strided: frozenset[str]
    loop: For

    @property
    def count(self) -> int:
        assert isinstance(self.loop.upper, IConst)
        return self.loop.upper.value

    def loads(self) -> dict[Expr, _Place]:
        """Reads of vectors all of whose elements are read, whatever conditions say."""
        written = {n.buffer for n in self.loop.body if isinstance(n, (Store, Update))}
        places: dict[Expr, _Place] = {}
        for e in self._values():
            for r in certain_reads(e):
                p = None if r.tensor in written else self.place(r.tensor, r.indices)
                if p is not None:
                    places[r] = p
        whole = _complete(places.values())
        return {r: p for r, p in places.items() if p.vector in whole}

    def stores(self) -> dict[int, _Place]:
        """Stores, by their places in the loop, to buffers that it only fills with whole vectors."""
        places: dict[int, _Place] = {}
        others = {r.tensor for e in self._values() for r in reads(e)}
        for k, n in enumerate(self.loop.body):
            if isinstance(n, (Store, Update)):
                p = self.place(n.buffer, n.indices) if isinstance(n, Store) else None
                if p is not None:
                    places[k] = p
                else:
                    others.add(n.buffer)
        whole = _complete(places.values())
        others |= {p.buffer for p in places.values() if p.vector not in whole}
        found = {k: p for k, p in places.items() if p.buffer not in others}
        return {k: p for k, p in found.items() if _apart(p, found.values())}

    def _values(self) -> Iterable[Expr]:
        for n in self.loop.body:
            if isinstance(n, (Store, Update)):
                yield from (i for i in n.indices if isinstance(i, EXPR_TYPES))
            if isinstance(n, (Store, Update, Declare)) and n.value is not None:
                yield n.value

    def place(self, buffer: str, indices: tuple[Index, ...]) -> _Place | None:
        """Where an access of neighbouring lanes lies, if that is every so many elements of a vector."""
        b, lane = self.kernel.find(buffer), IVar(self.loop.var)
        if b is None or b.scope not in _MEMORY or buffer in self.strided or not indices:
            return None
        plain = tuple(i for i in indices if not isinstance(i, EXPR_TYPES))
        if len(plain) < len(indices):
            return None
        where = flat(plain, b.extents)
        steps, base = where.factor(lane), where.without(lane)
        if not 1 < steps <= MOST_STEPS or any(self.loop.var in variables(a) for a, _ in base.terms):
            return None
        whole = steps * self.count
        rest = base.constant % whole
        first = Linear(base.terms, base.constant - rest)
        nbytes = whole * b.dtype.bytes
        if rest >= steps or not first.divisible(whole) or nbytes > MOST_BYTES or not _is_words(nbytes):
            return None
        if self.loop.var not in variables(plain[-1]) and (plain[-1], b.extents[-1]) != (
            IConst(rest),
            IConst(steps),
        ):
            return None  # the vector is neither one of a row nor of whole rows
        start = [substitute(i, {self.loop.var: as_index(0)}) for i in plain]
        return _Place(buffer, first, steps, rest, (*start[:-1], binary("-", start[-1], rest)))


def _is_words(nbytes: int) -> bool:
    """Are there accesses for so many bytes: one word, or several of 16 bytes?"""
    return nbytes % ACCESS_BYTES == 0 or (nbytes < ACCESS_BYTES and nbytes & (nbytes - 1) == 0)


def _complete(places: Iterable[_Place]) -> set[object]:
    """The vectors each of whose elements is accessed."""
    rests: dict[object, set[int]] = {}
    steps: dict[object, int] = {}
    for p in places:
        rests.setdefault(p.vector, set()).add(p.rest)
        steps[p.vector] = p.steps
    return {v for v, found in rests.items() if len(found) == steps[v]}


def _apart(mine: _Place, places: Iterable[_Place]) -> bool:
    """Do other stores to a buffer touch other elements, for certain?"""
    for p in places:
        if p is not mine and p.buffer == mine.buffer:
            if p.vector == mine.vector:
                if p.rest == mine.rest:
                    return False
            elif p.vector[1] != mine.vector[1] or p.steps != mine.steps:
                return False
    return True
