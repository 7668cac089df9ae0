"""Rows that begin anywhere are counted from the aligned place before them: vectors of them are aligned then.

    x: bf16[T, 30522]     B(t)B(h in 0..30522)(sum: x[t, h])                  begins at any even element
    becomes               B(t)B(h in s..30522 + s)(sum: x[t, h - s])          with s = (2 t) % 8

Where h is a multiple of 8, so is the place of x[t, h - s]; only the first and the last vector of a row are
not whole.  All that lies along the row must begin at one distance from an aligned place.  What threads keep
of a row is kept at h, in arrays that are longer by a vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import gcd

from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, substitute, variables
from polyfuse.ir.linear import Linear
from polyfuse.ir.schedule_tree import Member, Tree, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    Index,
    IndexValue,
    Read,
    Role,
    Statement,
    TensorGraph,
    map_expr,
    statement_reads,
)
from polyfuse.layers.mapping.nests import Nest, access_elements, accesses, dim_of, stride
from polyfuse.poly.model.storage import common_loops

# Vectors of a row at least: of shorter ones too many are not whole.
FEWEST_VECTORS = 64
Loops = Iterable[tuple[Member, tuple[str, ...]]]
# For each statement the dim along the row, and the elements from an aligned place to where the row begins.
Starts = Mapping[str, tuple[str, IndexExpr]]


# --- where rows begin -------------------------------------------------------------------------------------


def row_starts(graph: TensorGraph, tree: Tree, loops: Loops, width: int) -> tuple[int, Starts]:
    """A vector longer than `width`, and where the rows of `loops` begin that such vectors can be made of;
    (width, {}) where there are none."""
    along = {n: e.name for m, names in loops for n, e in m.exprs if n in names and isinstance(e, IVar)}
    own = _own_rows(graph, tree, along)
    if own is None or not all(_plain(graph.statement(n), dim) for n, dim in along.items()):
        return width, {}
    outside: dict[str, list[tuple[str, Linear]]] = {n: [] for n in along}
    for n, dim in along.items():
        for tensor, where in accesses(graph, graph.statement(n)):
            step = stride(where, dim)
            if step not in (0, 1):
                return width, {}
            if step and tensor not in own:
                outside[n].append((tensor, where.without(IVar(dim))))
    tensors = tuple(dict.fromkeys(t for found in outside.values() for t, _ in found))
    longer = access_elements(graph, tensors) if tensors else width
    short = any(_length(graph.statement(n), dim) < FEWEST_VECTORS * longer for n, dim in along.items())
    if longer <= width or short:
        return width, {}
    rows = common_loops(tree, list(along))
    found = {_start(where, n, rows, longer) for n, places in outside.items() for _, where in places}
    start = found.pop() if len(found) == 1 else None
    if start is None:
        return width, {}
    starts = {n: (dim, _of_statement(start, n, rows, longer)) for n, dim in along.items()}
    first_values = all(_begins_alike(graph.statement(n), dim, e) for n, (dim, e) in starts.items())
    return (longer, starts) if first_values else (width, {})


def _begins_alike(s: Statement, dim: str, start: IndexExpr) -> bool:
    """Does an element's first value know where its row begins? Not if that differs from term to term."""
    return dim in s.reduction_dims or not set(variables(start)) & set(s.reduction_dims)


def _plain(s: Statement, dim: str) -> bool:
    """Is a dim a whole row, whose iterations have no number in what is computed by the statement?"""
    d = dim_of(s, dim)
    plain = d is not None and d.lower == IConst(0) and isinstance(d.upper, IConst)
    return plain and s.reduction not in ("argmax", "argmin") and not s.accumulate


def _length(s: Statement, dim: str) -> int:
    d = dim_of(s, dim)
    return d.upper.value if d is not None and isinstance(d.upper, IConst) else 0


def _start(where: Linear, n: str, rows: list[Member], width: int) -> tuple[int, ...] | None:
    """Factors of the row loops, and a constant, that say where a row begins; modulo the vector."""
    dims = [m.of(n) for m in rows]
    if any(c % width and a not in dims for a, c in where.terms):
        return None
    return (*(where.factor(d) % width for d in dims), where.constant % width)


def _of_statement(start: tuple[int, ...], n: str, rows: list[Member], width: int) -> IndexExpr:
    common = gcd(width, *start)
    *factors, constant = (c // common for c in start)
    total: IndexExpr = as_index(constant)
    for m, factor in zip(rows, factors, strict=True):
        total = binary("+", total, binary("*", m.of(n), factor)) if factor else total
    return binary("*", binary("%", total, width // common), common)


def _own_rows(graph: TensorGraph, tree: Tree, along: Mapping[str, str]) -> dict[str, int] | None:
    """Temporaries of the nest that hold something for each element of a row, with the dim along the row; None
    if one is accessed at other places of the row than that of the iteration."""
    inside = frozenset(statements(tree))
    found: dict[str, int] = {}
    for t in graph.tensors:
        users = {s.name: s for s in (*graph.writers(t.name), *graph.readers(t.name))}
        if t.role is not Role.TEMP or not users.keys() <= inside:
            continue
        places = [(s, i) for s in users.values() for i in _places(s, t.name)]
        dims = {k for s, i in places for k, x in enumerate(i) if s.name in along and x == IVar(along[s.name])}
        if not dims:
            continue
        k = dims.pop()
        if dims or any(s.name not in along or i[k] != IVar(along[s.name]) for s, i in places):
            return None
        found[t.name] = k
    return found


def _places(s: Statement, tensor: str) -> list[tuple[Index, ...]]:
    written = [s.write] if s.target == tensor else []
    return written + [r.indices for r in statement_reads(s) if r.tensor == tensor]


# --- rows that are counted from there ---------------------------------------------------------------------


def align_rows(graph: TensorGraph, nest: Nest) -> TensorGraph:
    """The graph with the rows of a nest counted from the aligned place before them."""
    if not nest.starts:
        return graph
    own = _own_rows(graph, nest.tree, {n: dim for n, (dim, _) in nest.starts.items()}) or {}
    moved = tuple(
        _moved(s, *nest.starts[s.name], own) if s.name in nest.starts else s for s in graph.statements
    )
    tensors = tuple(
        replace(t, shape=_longer(t.shape, own[t.name], nest.vector)) if t.name in own else t
        for t in graph.tensors
    )
    return replace(graph, statements=moved, tensors=tensors)


def _longer(shape: tuple[IndexExpr, ...], k: int, width: int) -> tuple[IndexExpr, ...]:
    length = shape[k]
    assert isinstance(length, IConst)
    whole = -(-(length.value + width - 1) // width) * width
    return (*shape[:k], IConst(whole), *shape[k + 1 :])


def _moved(s: Statement, dim: str, start: IndexExpr, own: Mapping[str, int]) -> Statement:
    element = {dim: binary("-", IVar(dim), start)}

    def place(tensor: str, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(
            i if isinstance(i, EXPR_TYPES) or own.get(tensor) == k else substitute(i, element)
            for k, i in enumerate(indices)
        )

    def change(e: Expr) -> Expr:
        match e:
            case Read(tensor, indices):
                return replace(e, indices=place(tensor, indices))
            case IndexValue(index):
                return replace(e, index=substitute(index, element))
            case _:
                return e

    dims = tuple(
        replace(d, lower=start, upper=binary("+", d.upper, start)) if d.name == dim else d for d in s.dims
    )
    return replace(s, dims=dims, write=place(s.target, s.write), expr=map_expr(s.expr, change))
