"""Inputs that several phases of a row read are read once, and kept by the threads of the row.

    B(t)[B(h)(sum: x[t,h]); B(h)(y: x[t,h])]     becomes
    B(t)[B(h)(c: x__row[t,h] = x[t,h]; sum: x__row[t,h]); B(h)(y: x__row[t,h])]

A chunk of a row is cached alike, where the loop over chunks is around all of its readers, and so is each of
the pieces that statements read side by side, as `x[t,h]` and `x[t,h+H]` are.  Only where the row fits in the
registers of its threads, or in the shared memory of the block; a row that does not fit is read again.
Source: AStitch (ASPLOS'22) section 4.4 (value cache).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from polyfuse.decisions import Decision, counted, format_bytes
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, sizes, substitute, variables
from polyfuse.ir.kernel import words
from polyfuse.ir.linear import Linear, linear
from polyfuse.ir.schedule_tree import Band, Coordinate, Leaf, Member, Sequence, Tree, path, statements
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    Index,
    IterDim,
    Purpose,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    statement_reads,
)
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.mapping.gpu import extent
from polyfuse.layers.mapping.gpu_row_shape import ceil
from polyfuse.layers.mapping.gpu_storage import (
    LARGEST_LOCAL,
    MOST_ROUNDS,
    Need,
    array_elements,
    kept_row,
    need,
    scratch_bytes,
    steps,
    total,
)
from polyfuse.layers.mapping.nests import Nest, innermost
from polyfuse.poly.model.storage import common_loops

# Elements of cached rows that one thread keeps in registers, all together.
MOST_KEPT = 96


@dataclass(frozen=True, slots=True)
class _Row:
    """What all phases read alike: a tensor at plain dims of the first statement that reads it.

    starts: what is added to each of the dims.  numbers: dims that say which chunk of the row it is.  readers:
    for each, its names of the first's dims.
    """

    tensor: str
    first: Statement
    indices: tuple[str, ...]
    starts: tuple[int, ...]
    numbers: tuple[str, ...]
    readers: Mapping[str, Mapping[str, IndexExpr]]

    def __str__(self) -> str:
        where = f"[{', '.join(f'{at}..' for at in self.starts)}]" if any(self.starts) else ""
        return f"{self.tensor}{where}"

    def dim(self, name: str) -> IterDim:
        return next(d for d in self.first.dims if d.name == name)

    def place(self, indices: tuple[Index, ...], names: Mapping[str, IndexExpr]) -> tuple[Index, ...]:
        """Where in the cache an element is that a statement reads, which has these names of the dims."""
        chunk = tuple(names[n] for n in self.numbers)
        inside = (
            binary("-", i, substitute(self.dim(n).lower, names)) if variables(self.dim(n).lower) else i
            for i, n in zip(indices, self.indices, strict=True)
            if not isinstance(i, EXPR_TYPES)
        )
        return (*chunk, *inside)


def cache_rows(
    graph: TensorGraph, nest: Nest, gpu: GpuTarget, decisions: list[Decision]
) -> tuple[TensorGraph, Nest]:
    """The nest with cached rows, and the graph with the statements that read them."""
    free, needs = gpu.shared_bytes - scratch_bytes(graph, nest), list[Need]()
    most = 4 * min(MOST_KEPT, array_elements(nest.threads)) >> gpu.halvings
    kept, wanted = list[Need](), _wanted(graph, nest)
    at = steps(nest.tree)
    for row in _rows(graph, nest.tree):
        length = _length(graph, nest.tree, row)
        if length is None:
            continue
        length += nest.lead
        dtype = graph.tensor(row.tensor).dtype
        rounds = ceil(length, nest.threads[0] * nest.vector)
        mine = rounds * nest.vector
        size = words(dtype.bytes, mine)
        first, others = row.first.name, tuple(row.readers)
        mine_kept = kept_row(row.tensor, size, (dtype, mine), nest.tree, (first,), others)
        mine_shared = need(row.tensor, length * nest.threads[1], dtype.bytes, row.readers, at)
        if gpu.keep == "again":
            decisions.append(Decision("cache row", str(row), False, "the plan says that it is read again"))
            continue
        in_shared = total([*needs, mine_shared]) <= free and gpu.keep != "registers"
        in_threads = (
            not (in_shared and gpu.keep == "shared") and rounds <= MOST_ROUNDS and mine <= LARGEST_LOCAL
        )
        # Where a row can be in shared memory, registers are left to temporaries first.
        in_threads &= total([*kept, mine_kept, *(wanted if in_shared else ())]) <= most
        if in_threads:
            kept.append(mine_kept)
            where = f"{counted(mine, 'element')} in each thread"
        elif in_shared:
            needs.append(mine_shared)
            where = f"{format_bytes(mine_shared.nbytes)} of shared memory"
        else:
            why = f"a row of {length} elements fits neither registers nor shared memory: it is read again"
            decisions.append(Decision("cache row", str(row), False, why))
            continue
        graph, nest = _cached(graph, nest, row)
        if not in_threads:
            nest = replace(nest, shared=nest.shared | {graph.tensors[0].name})
        phases = f"read once for {len(row.readers)} statements"
        decisions.append(Decision("cache row", str(row), True, f"{phases}, {where}"))
    return graph, nest


def _wanted(graph: TensorGraph, nest: Nest) -> list[Need]:
    """Temporaries of which each thread would like to keep its part of a row, from one phase to another."""
    inside = frozenset(statements(nest.tree))
    bands = [frozenset(statements(b)) for b in innermost(nest.tree)]
    found: list[Need] = []
    for t in graph.tensors:
        written = [s for s in graph.writers(t.name) if s.name in inside]
        users = {s.name for s in (*graph.writers(t.name), *graph.readers(t.name))}
        several = sum(bool(users & b) for b in bands) > 1
        if t.role is not Role.TEMP or not written or not users <= inside or not several:
            continue
        spread = [m for m in path(nest.tree, written[0].name) if isinstance(m, Member)]
        dims = {
            v for m in spread if m.coordinate is Coordinate.THREAD for v in variables(m.of(written[0].name))
        }
        loops = [d for d in written[0].dims if d.name in dims]
        if len(loops) != 1 or IVar(loops[0].name) not in written[0].write:
            continue
        length = extent(graph, _loop(written[0], loops[0])) + nest.lead
        count = ceil(length, nest.threads[0] * nest.vector) * nest.vector
        if count <= LARGEST_LOCAL:
            size = words(t.dtype.bytes, count)
            names = (s.name for s in written)
            found.append(kept_row(t.name, size, (t.dtype, count), nest.tree, names, users))
    return found


def _rows(graph: TensorGraph, tree: Tree) -> list[_Row]:
    """Tensors from outside that several innermost bands read at the same plain dims."""
    names = statements(tree)
    written = {graph.statement(n).target for n in names}
    bands = [frozenset(statements(b)) for b in innermost(tree)]
    if len(bands) < 2:
        return []
    found: list[_Row] = []
    for t in graph.tensors:
        if t.name in written or not t.shape:
            continue
        users = [graph.statement(n) for n in names if _reads(graph.statement(n), t.name)]
        if len({k for u in users for k, b in enumerate(bands) if u.name in b}) < 2:
            continue
        for starts in (found_at := _starts(users, t)):
            row = _alike(tree, t.name, users, starts, len(found_at) > 1)
            if row is not None and len({k for n in row.readers for k, b in enumerate(bands) if n in b}) > 1:
                found.append(row)
    return found


def _starts(users: list[Statement], t: Tensor) -> list[tuple[int, ...]]:
    """Where the pieces of rows begin that statements read; one place for all where pieces share elements."""
    found: dict[tuple[int, ...], None] = {}
    longest = [0] * len(t.shape)
    for s in users:
        ends = {d.name: d.upper.value if isinstance(d.upper, IConst) else sys.maxsize for d in s.dims}
        for place in (_place(r) for r in statement_reads(s) if r.tensor == t.name):
            if place is not None:
                longest = [max(most, ends[n]) for most, n in zip(longest, place[0], strict=True)]
                found[place[1]] = None
    whole = (0,) * len(t.shape)
    apart = all(
        any(abs(x - y) >= n for x, y, n in zip(a, b, longest, strict=True)) for a, b in combinations(found, 2)
    )
    return list(found) if apart else [whole]


def _reads(s: Statement, tensor: str) -> bool:
    return any(r.tensor == tensor for r in statement_reads(s))


def _alike(
    tree: Tree, tensor: str, users: list[Statement], starts: tuple[int, ...], several: bool
) -> _Row | None:
    """The statements that read what the first of them reads, at plain dims with the same bounds, from
    `starts` on; where there are `several` pieces, they may read others as well."""
    plain = {s.name: _plain_indices(s, tensor, starts, several) for s in users}
    first = next((s for s in users if plain[s.name] or not several), users[0])
    indices = plain[first.name]
    if indices is None or len(set(indices)) < len(indices):
        return None
    mine = {d.name: d for d in first.dims}
    bounds = {v for n in indices for e in (mine[n].lower, mine[n].upper) for v in variables(e)}
    numbers = tuple(d.name for d in first.dims if d.name not in indices)
    if set(numbers) != bounds or any(mine[n].reduce or not _is_fixed(mine[n]) for n in numbers):
        return None
    readers: dict[str, Mapping[str, IndexExpr]] = {}
    for s in users:
        theirs = plain[s.name]
        dims = {d.name: d for d in s.dims}
        if theirs is None:
            continue
        names = _same_loops(tree, first.name, s.name, numbers) | {
            a: IVar(b) for a, b in zip(indices, theirs, strict=True)
        }
        if set(names) == set(mine) and all(_same_range(mine[a], names, dims) for a in indices):
            readers[s.name] = names
    return _Row(tensor, first, indices, starts, numbers, readers) if len(readers) > 1 else None


def _same_loops(tree: Tree, first: str, other: str, numbers: tuple[str, ...]) -> dict[str, IndexExpr]:
    """Another statement's names of dims of the first that both share a loop over."""
    found: dict[str, IndexExpr] = {}
    for m in common_loops(tree, [first, other]):
        mine, theirs = m.of(first), m.of(other)
        if isinstance(mine, IVar) and isinstance(theirs, IVar) and mine.name in numbers:
            found[mine.name] = theirs
    return found


def _is_fixed(d: IterDim) -> bool:
    return d.lower == IConst(0) and isinstance(d.upper, IConst)


def _same_range(a: IterDim, names: Mapping[str, IndexExpr], dims: Mapping[str, IterDim]) -> bool:
    """Has a dim of the first the range of that of another statement, in its names? Open sizes have none."""
    other = names[a.name]
    b = dims.get(other.name) if isinstance(other, IVar) else None
    if b is None or sizes(a.lower) or sizes(a.upper):
        return False
    return (substitute(a.lower, names), substitute(a.upper, names)) == (b.lower, b.upper)


def _plain_indices(
    s: Statement, tensor: str, starts: tuple[int, ...], several: bool
) -> tuple[str, ...] | None:
    """The dims at which a statement reads a tensor from `starts` on, if all its reads are at the same."""
    found = set()
    for r in statement_reads(s):
        if r.tensor == tensor:
            place = _place(r)
            if place is None or (place[1] != starts and not several):
                return None
            if place[1] == starts:
                found.add(place[0])
    return found.pop() if len(found) == 1 else None


def _place(r: Read) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """The dims at which a tensor is read, and what is added to each."""
    names: list[str] = []
    added: list[int] = []
    for i in r.indices:
        form = Linear((), 0) if isinstance(i, EXPR_TYPES) else linear(i)
        match form.terms:
            case ((IVar(name), 1),):
                names.append(name)
                added.append(form.constant)
            case _:
                return None
    return tuple(names), tuple(added)


def _length(graph: TensorGraph, tree: Tree, row: _Row) -> int | None:
    """Elements of the row, if its only loop inside the common ones is spread over threads."""
    shared: set[str] = set()
    common = common_loops(tree, list(row.readers))
    for n, names in row.readers.items():
        way = [m for m in path(tree, n) if isinstance(m, Member)]
        if any(m.coordinate is Coordinate.SEQ and m not in common for m in way):
            return None
        spread = [m for m in way if m.coordinate is Coordinate.THREAD]
        rounds = [m for m in way if m.coordinate is Coordinate.ROUND]
        if len(spread) != 1 or not rounds or not _from_the_start(row, rounds[0].of(n), names):
            return None
        over = {*variables(spread[0].of(n))}
        shared |= {a for a in row.indices if over.intersection(variables(names[a]))}
    dim = next((d for d in row.first.dims if {d.name} == shared), None)
    if dim is None:
        return None
    return dim.upper.value if isinstance(dim.upper, IConst) else extent(graph, _loop(row.first, dim))


def _loop(s: Statement, d: IterDim) -> Member:
    return Member(d.name, ((s.name, IVar(d.name)),))


def _from_the_start(row: _Row, e: IndexExpr, names: Mapping[str, IndexExpr]) -> bool:
    """Do the rounds of a chunk begin where it does? Those of a whole row begin at 0."""
    inside = [binary("-", names[n], substitute(row.dim(n).lower, names)) for n in row.indices]
    moving = [i for i, n in zip(inside, row.indices, strict=True) if variables(row.dim(n).lower)]
    return not moving or (isinstance(e, IBin) and e.op == "//" and e.left in moving)


def _cached(graph: TensorGraph, nest: Nest, row: _Row) -> tuple[TensorGraph, Nest]:
    source = graph.tensor(row.tensor)
    name = fresh_name(graph, f"{row.tensor}__row")
    lengths = (
        IConst(extent(graph, _loop(row.first, row.dim(n))))
        if variables(row.dim(n).lower)
        else row.dim(n).upper
        for n in row.indices
    )
    shape = (*(row.dim(n).upper for n in row.numbers), *lengths)
    tensor = Tensor(name, source.dtype, shape, Role.TEMP, source.span)
    where = tuple(IVar(i) for i in row.indices)
    dims = tuple(replace(d, reduce=False) for d in row.first.dims)
    here = row.place(where, row.readers[row.first.name])
    value = Read(row.tensor, tuple(map(partial(binary, "+"), where, row.starts)), source.dtype)
    copy = Statement(name, name, dims, here, value, span=row.first.span, purpose=Purpose.COPY)

    def renamed(s: Statement) -> Statement:
        def change(e: Expr) -> Expr:
            if not (isinstance(e, Read) and e.tensor == row.tensor):
                return e
            dims, starts = _place(e) or ((), ())
            if starts != row.starts:
                return e
            return replace(e, tensor=name, indices=row.place(tuple(map(IVar, dims)), row.readers[s.name]))

        return replace(s, expr=map_expr(s.expr, change))

    changed = []
    for s in graph.statements:
        if s.name == row.first.name:
            changed.append(copy)
        changed.append(renamed(s) if s.name in row.readers else s)
    # First of all tensors: it gets its place before temporaries, as `cache_rows` counts on.
    graph = replace(graph, statements=tuple(changed), tensors=(tensor, *graph.tensors))
    starts = {**nest.starts, name: nest.starts[row.first.name]} if nest.starts else nest.starts
    return graph, replace(nest, tree=_with_copy(nest.tree, row.first.name, name), starts=starts)


def _with_copy(tree: Tree, first: str, copy: str) -> Tree:
    """The copy right before the statement, under the same loops."""
    match tree:
        case Leaf(name):
            return Sequence((Leaf(copy), tree)) if name == first else tree
        case Sequence(children):
            parts: list[Tree] = []
            for c in children:
                new = _with_copy(c, first, copy)
                parts.extend(new.children if isinstance(new, Sequence) and isinstance(c, Leaf) else (new,))
            return Sequence(tuple(parts))
        case Band(members, child, permutable):
            mine = tuple(
                replace(m, exprs=tuple(sorted([*m.exprs, (copy, m.of(first))])))
                if first in dict(m.exprs)
                else m
                for m in members
            )
            return Band(mine, _with_copy(child, first, copy), permutable)
