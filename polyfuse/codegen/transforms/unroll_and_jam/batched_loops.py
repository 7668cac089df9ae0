"""Short rows of a sequential loop, sixteen at once (`codegen.transforms.unroll_and_jam.batched_rows`).

    for t in 0..100:                         for t in 0..96 by 16:
      for c: m += f(x[t, c])                   for row in 0..16:  lanes of m[row] = sum of f(x[t + row, :])
             part[c] += g(x[t, c])       ->                       part[:] += g(x[t + row, :])
      for c: y[t, c] = h(x[t, c], m)           m = totals of all lanes;  ...
                                             for t in 96..100:  ...

Rows of kernels that are too small to be spread over threads are in such loops, and those that add to the same
sums (`codegen.transforms.unroll_and_jam.shared_sums`): these get their terms in the same order.

Rows go together where what they write in common is touched by updates of one operator in one phase alone, and
an index tells all else that they write apart.  An array of the worker may have a place for each row where a
row stores all of it before it reads any of it, and nothing else touches it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.accesses import accesses
from polyfuse.codegen.analysis.dependence import commutes_but_for
from polyfuse.codegen.analysis.row_batch import ROW
from polyfuse.codegen.analysis.trip_count import longest, trip_of
from polyfuse.codegen.function import Function
from polyfuse.codegen.math.vector_reduce import DTYPES
from polyfuse.codegen.transforms.unroll_and_jam.batched_rows import at_once, placed, wanted, with_places
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    For,
    If,
    Node,
    Store,
    Update,
    map_outermost,
    nodes_of,
    substituted,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Const, Index, Read, depends_on

_PLAIN = (For, If, Declare, Store, Update, Comment)
# How a place of an array is found: its indices in terms of a loop over them, and the bounds of that.
_Place = tuple[tuple[IndexExpr, ...], IndexExpr, IndexExpr]


def loops_jointly(
    kernel: Kernel, functions: Sequence[Function], knobs: CpuKnobs
) -> tuple[Kernel, tuple[Function, ...]]:
    """The functions, with rows of loops in them at once where that can be and pays (or is wanted), and the
    kernel with the arrays that they need."""
    if wanted(knobs) is False:
        return kernel, tuple(functions)
    places: dict[str, int] = {}
    numbers = itertools.count()
    touched = Counter(name for t in functions for name, _ in accesses(t.body))
    made: list[Function] = []
    for t in functions:
        counts = [1]

        def change(loop: For, counts: list[int] = counts) -> Sequence[Node] | None:
            found = _at_once(kernel, loop, touched, knobs, numbers)
            if found is None:
                return None
            rows, own, nodes = found
            counts.append(rows)
            places.update(dict.fromkeys(own, rows))
            return nodes

        if t.one_by_one:
            body = map_outermost(t.body, change)
            t = replace(t.with_body(body), jammed=max(counts)) if len(counts) > 1 else t
        made.append(t)
    return with_places(kernel, places), tuple(made)


def _at_once(
    kernel: Kernel, loop: For, touched: Counter[str], knobs: CpuKnobs, numbers: Iterator[int]
) -> tuple[int, frozenset[str], list[Node]] | None:
    """Of a loop: how many rows, the arrays that have a place for each, the loop and what is left of it."""
    if not all(isinstance(n, _PLAIN) for n in nodes_of(loop.body)):
        return None
    own = _own(kernel, loop, touched)
    known = tuple(Declare(b.tensor, b.dtype) for b in kernel.buffers if b.tensor in own)
    common = commutes_but_for(kernel, replace(loop, body=(*known, *loop.body)))
    if common is None:
        return None
    trip = trip_of(loop)
    sums = RowSums(kernel, common, loop.var, numbers)
    found = at_once(kernel, sums.redirected(loop.body), own, knobs, common)
    if found is None or (trip is not None and trip < found.rows):
        return None
    body = substituted(found.body, {loop.var: IVar(loop.var) + IVar(ROW)})
    main = replace(loop, upper=binary("-", loop.upper, found.rows - 1), step=found.rows, body=body)
    nodes = [*sums.before, main, *sums.after]
    if trip is not None and trip % found.rows == 0:
        return found.rows, found.own, nodes
    extent = binary("max", binary("-", loop.upper, loop.lower), 0)
    done = binary("*", binary("//", extent, found.rows), found.rows)
    one = placed(loop.body, found.own, {}, IConst(0))
    return found.rows, found.own, [*nodes, replace(loop, lower=binary("+", loop.lower, done), body=one)]


@dataclass(slots=True)
class RowSums:
    """Sums of vectors that all rows add to, in arrays around the loop: there the rest of a row needs no
    masks.  What is stored under one is not there soon enough for the next row."""

    kernel: Kernel
    common: Set[str]
    row: str
    numbers: Iterator[int]
    name: str = "sums"
    before: list[Node] = field(default_factory=list)
    after: list[Node] = field(default_factory=list)

    def redirected(self, row: Block) -> Block:
        return tuple(self._loop(n) if isinstance(n, For) else n for n in row)

    def _loop(self, loop: For) -> For:
        most = longest(self.kernel, loop)
        if loop.coordinate is not Coordinate.VECTOR or most is None or not isinstance(loop.lower, IConst):
            return loop
        updated = Counter(n.buffer for n in nodes_of(loop.body) if isinstance(n, Update))
        body = [self._update(n, loop, most) if updated[_target(n)] == 1 else n for n in loop.body]
        return replace(loop, body=tuple(body))

    def _update(self, n: Node, loop: For, most: int) -> Node:
        if not isinstance(n, Update) or n.op != "sum" or n.buffer not in self.common or not n.indices:
            return n
        *outer, last = n.indices
        if last != IVar(loop.var) or loop.var in depends_on(*outer) or self.row in depends_on(*outer):
            return n
        dtype = n.value.dtype
        if dtype not in DTYPES or most * dtype.bytes > FITTED.batched_loops_most_sums:
            return n
        name = f"%{self.name}{next(self.numbers)}"
        place = (binary("-", IVar(loop.var), loop.lower),)
        plain = replace(loop, lanes=())
        zero = Const(identity(n.op, dtype), dtype)
        self.before += [Declare(name, dtype, None, most), replace(plain, body=(Store(name, place, zero),))]
        self.after.append(replace(plain, body=(replace(n, value=Read(name, place, dtype)),)))
        return replace(n, buffer=name, indices=place)


def _target(n: Node) -> str:
    return n.buffer if isinstance(n, Update) else ""


def _own(kernel: Kernel, loop: For, touched: Counter[str]) -> frozenset[str]:
    """Arrays of the worker that are one row's alone."""
    local = [b.tensor for b in kernel.buffers if b.scope is Scope.LOCAL]
    here = Counter(name for name, _ in accesses(loop.body))
    return frozenset(b for b in local if here[b] == touched[b] > 0 and _stored_first(loop, b))


def _stored_first(loop: For, name: str) -> bool:
    """Does a row store all of an array, before it reads any of it?"""
    places: set[_Place | None] = set()
    for n in loop.body:
        mine = [indices for buffer, indices in accesses((n,)) if buffer == name]
        if not mine:
            continue
        if not isinstance(n, For) or n.coordinate is not Coordinate.VECTOR or n.step != 1:
            return False
        if not places and not _stores(n, name):
            return False
        places |= {_place(n, loop.var, indices) for indices in mine}
    return len(places) == 1 and None not in places


def _stores(loop: For, name: str) -> bool:
    """Is a store what touches an array first?"""
    first = next(n for n in loop.body if any(b == name for b, _ in accesses((n,))))
    stores = isinstance(first, Store) and first.buffer == name
    return stores and [b for b, _ in accesses((first,))].count(name) == 1


def _place(loop: For, row: str, indices: tuple[Index, ...]) -> _Place | None:
    found: list[IndexExpr] = []
    for i in indices:
        if isinstance(i, EXPR_TYPES) or row in variables(i):
            return None
        found.append(substitute(i, {loop.var: IVar("%place")}))
    return tuple(found), loop.lower, loop.upper
