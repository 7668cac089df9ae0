"""Temporaries whose last dims are short are a tensor for each of their elements.

    r[n, i, j] = ...                                  for i in 0..3, j in 0..3
    c[n] = r[n, 0, 1] * r[n, 1, 2]
becomes
    r00[n] = ...;  r01[n] = ...;  ...
    c[n] = r01[n] * r12[n]

Small matrices and states of a few numbers fill no vector, and what reads them one by one keeps loops from
joining: with a statement for each number the loop over points is lanes, and numbers are registers.  Sums over
such dims are written out with them.  What always goes over all of a dim, as `y[n, c] = 2 * x[n, c]` does, is
one long row of memory, and stays.  So do functions of such a row, which are vectors along it, unless they are
steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.functions import has_function
from polyfuse.ir.index_expr import IConst, IndexExpr, evaluate, substitute, variables
from polyfuse.ir.linear import simplify
from polyfuse.ir.ops import COMBINES
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Expr,
    Index,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    plain_variables,
    statement_reads,
    walk,
)
from polyfuse.layers.depending import depending
from polyfuse.layers.fresh import fresh_name
from polyfuse.layers.short_sums import MOST_OPERATIONS, at, written_out
from polyfuse.layers.windows import sums_windows

# Elements of a short dim, and of all short dims of a tensor: sixteen are a vector.
LONGEST, MOST_ELEMENTS = 4, 9
# Statements that come of it: the time of schedulers grows with them.
MOST_STATEMENTS = 64


def split_short_dims(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """The graph with such temporaries split, where something reads their elements one by one."""
    chosen = _chosen(graph) if len(graph.statements) < MOST_STATEMENTS else {}
    if not chosen:
        return graph
    names = _Elements(graph, chosen)
    statements = tuple(x for s in graph.statements for x in names.statements(s))
    if len(statements) > MOST_STATEMENTS:
        return graph
    for t in chosen:
        why = "its last dims fill no vector: each element is a tensor of its own"
        decisions.append(Decision("unroll dims", t, True, why))
    tensors = tuple(x for t in graph.tensors for x in names.tensors(t))
    return replace(graph, tensors=tensors, statements=statements)


# --- which tensors -------------------------------------------------------------------------------------


def short_rank(t: Tensor) -> int:
    """The number of last dims that are split; 0 where a tensor stays as it is."""
    if t.role is not Role.TEMP:
        return 0
    sizes: list[int] = []
    for e in reversed(t.shape):
        if not isinstance(e, IConst) or not 0 < e.value <= LONGEST:
            break
        sizes.append(e.value)
    return len(sizes) if 1 < prod(sizes) <= MOST_ELEMENTS and len(sizes) < len(t.shape) else 0


def _chosen(graph: TensorGraph) -> dict[str, int]:
    """The tensors to be split, and how many dims of each: those read one by one, and what goes with them."""
    ranks = _possible(graph)
    chosen = {n for s in graph.statements for n in _taken_one_by_one(s, ranks)}
    size = -1
    while len(chosen) != size:
        size = len(chosen)
        for s in graph.statements:
            if _used(s, {n: ranks[n] for n in chosen}):
                chosen |= {tensor for tensor, _ in _accesses(s, ranks)}
    return {n: rank for n, rank in ranks.items() if n in chosen}


def _possible(graph: TensorGraph) -> dict[str, int]:
    """The tensors that may be split; a statement that cannot be written out keeps all it needs that for."""
    ranks = {t.name: n for t in graph.tensors if (n := short_rank(t))}
    size = -1
    while len(ranks) != size:
        size = len(ranks)
        for s in graph.statements:
            if not _may_be(graph, s, ranks):
                kept = {tensor for tensor, _ in _accesses(s, ranks)}
                ranks = {n: rank for n, rank in ranks.items() if n not in kept}
    return ranks


def _accesses(s: Statement, ranks: Mapping[str, int]) -> Iterator[tuple[str, tuple[Index, ...]]]:
    """What a statement writes and reads of these tensors, with the indices of the dims to be split."""
    for tensor, indices in ((s.target, s.write), *((r.tensor, r.indices) for r in statement_reads(s))):
        if tensor in ranks:
            yield tensor, indices[len(indices) - ranks[tensor] :]


def _used(s: Statement, ranks: Mapping[str, int]) -> set[str]:
    """The dims of a statement by which it goes over the elements of these tensors."""
    return {v for _, indices in _accesses(s, ranks) for v in plain_variables(indices)}


def _taken_one_by_one(s: Statement, ranks: Mapping[str, int]) -> set[str]:
    """The tensors of which a statement reads elements otherwise than one for each of its own."""
    reads = [r for r in statement_reads(s) if r.tensor in ranks]
    return {r.tensor for r in reads if r.indices[-ranks[r.tensor] :] != s.write[-ranks[r.tensor] :]}


def _may_be(graph: TensorGraph, s: Statement, ranks: Mapping[str, int]) -> bool:
    """May a statement have a piece for each value of the dims that it reads or writes these tensors by?"""
    found = list(_accesses(s, ranks))
    if any(isinstance(i, EXPR_TYPES) for _, indices in found for i in indices):
        return False
    pieces = None if _fills_vectors(graph, s, _used(s, ranks)) else _pieces(s, ranks)
    return pieces is not None and all(
        _inside(i, {**values, **terms}, extent)
        for values in pieces.values
        for terms in pieces.terms
        for tensor, indices in found
        for i, extent in zip(indices, graph.tensor(tensor).shape[-ranks[tensor] :], strict=True)
    )


def _fills_vectors(graph: TensorGraph, s: Statement, used: set[str]) -> bool:
    """Does a statement compute functions along such dims, none of which waits for another?"""
    spatial = used - set(s.reduction_dims)
    return bool(spatial) and has_function(s.expr) and s.name not in depending(graph, s)


def _inside(index: Index, values: dict[str, IndexExpr], extent: IndexExpr) -> bool:
    """Is an index the number of an element at these values?  One that a condition keeps outside is none."""
    assert not isinstance(index, EXPR_TYPES) and isinstance(extent, IConst)
    found = simplify(substitute(index, values), {})
    return isinstance(found, IConst) and 0 <= found.value < extent.value


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The values of dims that a statement is written out by: of its pieces, and of the terms of each."""

    values: list[dict[str, IndexExpr]]
    terms: list[dict[str, IndexExpr]]


def _pieces(s: Statement, ranks: Mapping[str, int]) -> _Pieces | None:
    """How a statement is written out; None where it cannot be, or would keep a short loop inside."""
    used = _used(s, ranks)
    if not used:
        return _Pieces([{}], [{}])
    if s.accumulate:
        return None
    summed = set(s.reduction_dims)
    split = used | summed
    spans = {d.name: _span(d) for d in s.dims if d.name in split}
    free = [d for d in s.dims if d.name not in split]
    if (summed and s.reduction not in COMBINES) or any(split & _bounds(d) for d in free):
        return None
    if any(map(_span, free[-1:])):
        return None
    pieces, terms = (
        _values({n: x for n, x in spans.items() if (n in summed) == inside}) for inside in (False, True)
    )
    operations = sum(isinstance(e, Apply | Select) for e in walk(s.expr))
    if not 0 < len(pieces) <= MOST_ELEMENTS or not terms or operations * len(terms) > MOST_OPERATIONS:
        return None
    if len(terms) > 1 and sums_windows(s):
        return None
    return _Pieces(pieces, terms)


def _span(d: IterDim) -> range:
    """The values of a short dim; none where a dim is not."""
    if not isinstance(d.lower, IConst) or not isinstance(d.upper, IConst):
        return range(0)
    whole = range(d.lower.value, d.upper.value)
    return whole if len(whole) <= LONGEST else range(0)


def _bounds(d: IterDim) -> set[str]:
    return set(variables(d.lower)) | set(variables(d.upper))


def _values(spans: Mapping[str, range]) -> list[dict[str, IndexExpr]]:
    return [dict(zip(spans, map(IConst, point), strict=True)) for point in product(*spans.values())]


# --- their elements ------------------------------------------------------------------------------------


class _Elements:
    """A tensor for each element of the split dims of others."""

    def __init__(self, graph: TensorGraph, ranks: Mapping[str, int]) -> None:
        self.graph, self.ranks = graph, ranks
        self.names: dict[tuple[str, tuple[int, ...]], str] = {}

    def tensors(self, t: Tensor) -> tuple[Tensor, ...]:
        """What is in place of a tensor, after all statements have been seen."""
        if t.name not in self.ranks:
            return (t,)
        shape = t.shape[: -self.ranks[t.name]]
        return tuple(replace(t, name=n, shape=shape) for (of, _), n in self.names.items() if of == t.name)

    def statements(self, s: Statement) -> Iterator[Statement]:
        """What is in place of a statement."""
        pieces = _pieces(s, self.ranks)
        assert pieces is not None  # `_chosen` asked
        whole = written_out(s, pieces.terms) if pieces.terms != [{}] else s
        for k, values in enumerate(pieces.values):
            name = fresh_name(self.graph, f"{s.name}__{k}") if values else s.name
            write = tuple(i if isinstance(i, EXPR_TYPES) else substitute(i, values) for i in s.write)
            target, place = self._element(s.target, write)
            expr = map_expr(at(whole.expr, values), self._read)
            dims = tuple(d for d in whole.dims if d.name not in values)
            yield replace(whole, name=name, target=target, dims=dims, write=place, expr=expr)

    def _read(self, e: Expr) -> Expr:
        if not isinstance(e, Read):
            return e
        tensor, indices = self._element(e.tensor, e.indices)
        return e if tensor == e.tensor else replace(e, tensor=tensor, indices=indices)

    def _element(self, tensor: str, indices: tuple[Index, ...]) -> tuple[str, tuple[Index, ...]]:
        """The tensor that an access is to, and with which indices."""
        rank = self.ranks.get(tensor, 0)
        if not rank:
            return tensor, indices
        place = tuple(evaluate(i, {}) for i in indices[-rank:])  # type: ignore[arg-type]
        wish = f"{tensor}__{'_'.join(map(str, place))}"
        name = self.names.setdefault((tensor, place), fresh_name(self.graph, wish))
        return name, indices[:-rank]
