"""Inputs that several phases of a row read are read once, and kept by the threads of the row.

    B(t)[B(h)(sum: x[t,h]); B(h)(y: x[t,h])]     becomes
    B(t)[B(h)(c: x__row[t,h] = x[t,h]; sum: x__row[t,h]); B(h)(y: x__row[t,h])]

Only where the row fits in the registers of its threads, or in the shared memory of the block; a row that
does not fit is read again.  Source: AStitch (ASPLOS'22) section 4.4 (value cache).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.decisions import Decision, format_bytes
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.schedule_tree import Band, Coordinate, Leaf, Member, Sequence, Tree, path, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    IterDim,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    statement_reads,
)
from polyfuse.layers.fresh import fresh_name
from polyfuse.layers.gpu_rows import GpuTarget, ceil
from polyfuse.layers.gpu_storage import LARGEST_LOCAL, MOST_ROUNDS, array_elements
from polyfuse.layers.nest import Nest, innermost
from polyfuse.poly.footprint import common_loops

# Elements of cached rows that one thread keeps in registers, all together.
MOST_KEPT = 96


@dataclass(frozen=True, slots=True)
class _Row:
    """What all phases read alike: a tensor at plain dims of the first statement that reads it."""

    tensor: str
    first: Statement
    indices: tuple[str, ...]
    readers: tuple[str, ...]


def cache_rows(
    graph: TensorGraph, nest: Nest, gpu: GpuTarget, decisions: list[Decision]
) -> tuple[TensorGraph, Nest]:
    """The nest with cached rows, and the graph with the statements that read them."""
    kept, shared = 0, 0
    most = min(MOST_KEPT, array_elements(nest.threads))
    for row in _rows(graph, nest.tree):
        length = _length(nest.tree, row)
        if length is None:
            continue
        bytes_each = graph.tensor(row.tensor).dtype.bytes
        rounds = ceil(length, nest.threads[0] * nest.vector)
        mine = rounds * nest.vector
        nbytes = length * bytes_each * nest.threads[1]
        if rounds <= MOST_ROUNDS and mine <= LARGEST_LOCAL and kept + mine <= most:
            kept += mine
            where = f"{mine} elements in each thread"
        elif shared + nbytes <= gpu.shared_bytes // 2:
            shared += nbytes
            where = f"{format_bytes(nbytes)} of shared memory"
        else:
            why = f"a row of {length} elements fits neither registers nor shared memory: it is read again"
            decisions.append(Decision("cache row", row.tensor, False, why))
            continue
        graph, nest = _cached(graph, nest, row)
        phases = f"read once for {len(row.readers)} statements"
        decisions.append(Decision("cache row", row.tensor, True, f"{phases}, {where}"))
    return graph, nest


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
        row = _alike(graph, t.name, users)
        if row is not None and len({k for n in row.readers for k, b in enumerate(bands) if n in b}) > 1:
            found.append(row)
    return found


def _reads(s: Statement, tensor: str) -> bool:
    return any(r.tensor == tensor for r in statement_reads(s))


def _alike(graph: TensorGraph, tensor: str, users: list[Statement]) -> _Row | None:
    """The statements that read what the first of them reads, at plain dims with the same bounds."""
    first = users[0]
    indices = _plain_indices(first, tensor)
    if indices is None or set(indices) != {d.name for d in first.dims} or len(set(indices)) < len(indices):
        return None
    mine = {d.name: d for d in first.dims}
    readers = []
    for s in users:
        theirs = _plain_indices(s, tensor)
        dims = {d.name: d for d in s.dims}
        if theirs is not None and all(
            _same_range(mine[a], dims.get(b)) for a, b in zip(indices, theirs, strict=True)
        ):
            readers.append(s.name)
    return _Row(tensor, first, indices, tuple(readers)) if len(readers) > 1 else None


def _same_range(a: IterDim, b: IterDim | None) -> bool:
    fixed = isinstance(a.lower, IConst) and isinstance(a.upper, IConst)
    return b is not None and fixed and (a.lower, a.upper) == (b.lower, b.upper)


def _plain_indices(s: Statement, tensor: str) -> tuple[str, ...] | None:
    """The dims at which a statement reads a tensor, if all its reads are at the same plain ones."""
    found = set()
    for r in statement_reads(s):
        if r.tensor == tensor:
            if any(isinstance(i, EXPR_TYPES) or not isinstance(i, IVar) for i in r.indices):
                return None
            found.add(tuple(i.name for i in r.indices if isinstance(i, IVar)))
    return found.pop() if len(found) == 1 else None


def _length(tree: Tree, row: _Row) -> int | None:
    """Elements of the row, if its only loop inside the common ones is spread over threads."""
    shared: set[str] = set()
    common = common_loops(tree, list(row.readers))
    for n in row.readers:
        way = [m for m in path(tree, n) if isinstance(m, Member)]
        if any(m.coordinate is Coordinate.SEQ and m not in common for m in way):
            return None
        spread = [m for m in way if m.coordinate is Coordinate.THREAD]
        if len(spread) != 1 or not any(m.coordinate is Coordinate.ROUND for m in way):
            return None
        shared.add(spread[0].name)
    dim = next((d for d in row.first.dims if {d.name} == shared), None)
    if dim is None or not isinstance(dim.upper, IConst) or not isinstance(dim.lower, IConst):
        return None
    return dim.upper.value


def _cached(graph: TensorGraph, nest: Nest, row: _Row) -> tuple[TensorGraph, Nest]:
    source = graph.tensor(row.tensor)
    name = fresh_name(graph, f"{row.tensor}__row")
    tensor = Tensor(name, source.dtype, source.shape, Role.TEMP, source.span)
    where = tuple(IVar(i) for i in row.indices)
    dims = tuple(replace(d, reduce=False) for d in row.first.dims)
    copy = Statement(name, name, dims, where, Read(row.tensor, where, source.dtype), span=row.first.span)

    def renamed(e: Expr) -> Expr:
        return replace(e, tensor=name) if isinstance(e, Read) and e.tensor == row.tensor else e

    changed = []
    for s in graph.statements:
        if s.name == row.first.name:
            changed.append(copy)
        changed.append(replace(s, expr=map_expr(s.expr, renamed)) if s.name in row.readers else s)
    graph = replace(graph, statements=tuple(changed), tensors=(*graph.tensors, tensor))
    return graph, replace(nest, tree=_with_copy(nest.tree, row.first.name, name))


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
