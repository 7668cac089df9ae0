"""Folds of short rows, apart from what they fold.

    for a in 0..N:                                   for a in 0..N by 32:
      for c in 0..4 @vec:                              for r in 0..32:
        y[c] max= exp(x[a, c])                 ->        for c in 0..4 @vec:  part[4*r + c] = exp(x[a + r, c])
                                                       for i in 0..128 @vec:  fold[i] max= part[i]
                                                     for r in 0..32:
                                                       for c in 0..4 @vec:  y[c] max= fold[4*r + c]

A row of 4 fills no vector.  Compilers write such a row out and find vectors in the loop around, unless
its iterations meet in memory: then all that is folded is computed number by number, functions too.  Here
the rows of a strip store what they compute one behind the other, and lanes fold whole vectors of it.  What an
iteration keeps in an array of the worker, and nothing else reads, is an array of the strip as well.

It is done where functions are computed: others take less time than the strip.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyfuse.codegen.analysis.trip_count import in_steps, most_trips, trip_of
from polyfuse.codegen.function import Function
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.functions import has_function
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    Node,
    Store,
    Update,
    map_outermost,
    map_values,
    substituted,
    values_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Const, Expr, Index, Read, depends_on, reads

_PART, _FOLD, _KEPT = "%part", "%fold", "%kept"
_ROW, _ELEMENT = "row", "element"
_ALONG = (IVar(_ELEMENT),)


def short_folds(kernel: Kernel, f: Function) -> Function:
    """The function, with such loops in its body."""
    if not f.one_by_one:
        return f
    numbers = itertools.count()
    used: Counter[str] = Counter()

    def count(e: Expr) -> Expr:
        used.update([e.tensor] if isinstance(e, Read) else [])
        return e

    map_values(f.body, count, lambda i: i)
    body = map_outermost(f.body, lambda loop: _apart(kernel, loop, used, numbers))
    return f.with_body(body)


def _apart(kernel: Kernel, loop: For, used: Counter[str], numbers: itertools.count[int]) -> Block | None:
    """A loop over short rows in strips; None if it is none, or its rows have more to do with one another."""
    rows = [n for n in loop.body if isinstance(n, For)]
    length = trip_of(rows[0]) if rows else None
    if (
        length is None
        or len(rows) < len(loop.body)
        or not FITTED.short_reductions_shortest <= length <= FITTED.short_reductions_longest
    ):
        return None
    plain = (
        loop.coordinate is Coordinate.SEQ
        and loop.step == 1
        and (most_trips(loop) or 0) >= FITTED.short_reductions_fewest
    )
    if not plain or not all(_is_row(x, length) for x in rows):
        return None
    if not any(has_function(v) for x in rows for v in values_of(x.body)):
        return None
    found = _Rows(kernel, loop, tuple(rows), length)
    kept = found.kept(used)
    return found.in_strips(kept, numbers) if kept is not None else None


def _is_row(x: For, length: int) -> bool:
    """A loop from 0 over so many lanes that computes and stores?"""
    straight = all(isinstance(n, (Declare, Store, Update)) for n in x.body)
    from_0 = x.lower == IConst(0) and x.step == 1 and trip_of(x) == length
    return straight and from_0 and x.coordinate is Coordinate.VECTOR and not (x.lanes or x.joint)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A loop over rows of so many elements, and the loops along a row that are all it has."""

    kernel: Kernel
    loop: For
    rows: tuple[For, ...]
    length: int

    def kept(self, used: Counter[str]) -> set[str] | None:
        """The arrays that a row has of its own; None where strips may change what is computed, or where
        nothing is folded."""
        numbers = {n.name for x in self.rows for n in x.body if isinstance(n, Declare)}
        stored = {
            n.buffer: k
            for k, x in enumerate(self.rows)
            for n in x.body
            if isinstance(n, Store) and n.buffer not in numbers
        }
        totals = [n for x in self.rows for n in x.body if isinstance(n, Update)]
        read = [(k, r.tensor) for k, x in enumerate(self.rows) for v in values_of(x.body) for r in reads(v)]
        names = {r for _, r in read}
        if any(isinstance(i, EXPR_TYPES) for n in totals for i in n.indices):
            return None
        if not totals or any(n.atomic or self.loop.var in depends_on(*n.indices) for n in totals):
            return None
        if names & {n.buffer for n in totals} or len({n.buffer for n in totals}) < len(totals):
            return None
        kept = {name for name, k in stored.items() if name in names and self._is_own(name, k, read, used)}
        return None if (names & stored.keys()) - kept or self._meets(stored.keys() - kept) else kept

    def _is_own(self, name: str, place: int, read: list[tuple[int, str]], used: Counter[str]) -> bool:
        """Is it an array of a row that one loop stores, and only later ones read?"""
        b = next((b for b in self.kernel.buffers if b.tensor == name), None)
        if b is None or b.scope is not Scope.LOCAL:
            return False
        *around, length = b.extents
        nodes = [(x, n) for x in self.rows for n in x.body]
        stores = [(x, n) for x, n in nodes if isinstance(n, Store) and n.buffer == name]
        whole = len(stores) == 1 and _place_in_row(stores[0][1].indices) == IVar(stores[0][0].var)
        mine = [k for k, n in read if n == name]
        found = [r.indices for _, n in nodes for v in values_of((n,)) for r in reads(v) if r.tensor == name]
        known = length == IConst(self.length) and all(e == IConst(1) for e in around)
        known = known and all(_place_in_row(i) is not None for i in found)
        return whole and known and min(mine) > place and len(mine) == used[name]

    def _meets(self, stored: set[str]) -> bool:
        """May iterations store to one place?"""
        stores = (n for x in self.rows for n in x.body if isinstance(n, Store) and n.buffer in stored)
        return any(self.loop.var not in depends_on(*n.indices) for n in stores)

    def in_strips(self, kept: set[str], numbers: itertools.count[int]) -> Block:
        """The loop in strips, what lanes fold before and after it, and the rows that are left."""
        before: list[Node] = []
        computed: list[Node] = []
        folded: list[Node] = []
        after: list[Node] = []
        arrays = {
            b.tensor: (f"{_KEPT}{next(numbers)}", b.dtype) for b in self.kernel.buffers if b.tensor in kept
        }
        own = [Declare(name, dtype, None, self._size) for name, dtype in arrays.values()]
        for x in self.rows:
            body: list[Node] = []
            for n in x.body:
                if not isinstance(n, Update):
                    body.append(n)
                    continue
                mark, dtype = next(numbers), n.value.dtype
                part, fold = f"{_PART}{mark}", f"{_FOLD}{mark}"
                first = Const(identity(n.op, dtype), dtype)
                own.append(Declare(part, dtype, None, self._size))
                before += [Declare(fold, dtype, None, self._size), self._along((Store(fold, _ALONG, first),))]
                body.append(Store(part, (self._place(x.var),), n.value))
                folded.append(
                    self._along((replace(n, buffer=fold, indices=_ALONG, value=Read(part, _ALONG, dtype)),))
                )
                after.append(self._each(x, (replace(n, value=Read(fold, (self._place(x.var),), dtype)),)))
            computed.append(
                self._each(x, self._in_strip(tuple(body), {k: name for k, (name, _) in arrays.items()}))
            )
        main, *left = in_steps(self.loop, (*own, *computed, *folded), FITTED.short_reductions_rows)
        return (*before, main, *after, *left)

    @property
    def _size(self) -> int:
        return FITTED.short_reductions_rows * self.length

    def _place(self, lane: str) -> IndexExpr:
        """Where an element of a row is in arrays of the strip."""
        return binary("+", binary("*", IVar(_ROW), self.length), IVar(lane))

    def _along(self, body: Block) -> For:
        """A loop along an array of the strip."""
        return For(_ELEMENT, IConst(0), IConst(self._size), 1, body, Coordinate.VECTOR)

    def _each(self, row: For, body: Block) -> For:
        """A loop over the rows of a strip, and one along a row in it."""
        return For(
            _ROW, IConst(0), IConst(FITTED.short_reductions_rows), 1, (replace(row, body=body, written=True),)
        )

    def _in_strip(self, body: Block, arrays: Mapping[str, str]) -> Block:
        """What a loop along a row computes, of a row of the strip; its own arrays are the strip's."""
        body = substituted(body, {self.loop.var: binary("+", IVar(self.loop.var), IVar(_ROW))})
        first = binary("*", IVar(_ROW), self.length)

        def own(e: Expr) -> Expr:
            if not isinstance(e, Read) or e.tensor not in arrays:
                return e
            place = _place_in_row(e.indices)
            assert place is not None
            return replace(e, tensor=arrays[e.tensor], indices=(binary("+", first, place),))

        def stored(n: Node) -> Node:
            if not isinstance(n, Store) or n.buffer not in arrays:
                return n
            place = _place_in_row(n.indices)
            assert place is not None
            return replace(n, buffer=arrays[n.buffer], indices=(binary("+", first, place),))

        return tuple(map(stored, map_values(body, own, lambda i: i)))


def _place_in_row(indices: tuple[Index, ...]) -> IndexExpr | None:
    """Which element of an array of one row that is; None if data say which."""
    *around, last = indices
    return None if isinstance(last, EXPR_TYPES) or any(i != IConst(0) for i in around) else last
