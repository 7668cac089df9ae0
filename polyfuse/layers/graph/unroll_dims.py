"""Short dims are unrolled: loops over a few elements become statements.

`unroll_reductions`    reductions over a few terms are written out
`unroll_short_dims`    temporaries are a tensor for each of their elements
`unroll_short_rows`    results have a statement for each element of a row

Of temporaries whose last dims are short:

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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.functions import has_function, is_function
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, evaluate, substitute, variables
from polyfuse.ir.linear import linear, simplify
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
    reads,
    statement_reads,
    walk,
)
from polyfuse.layers.contractions.contraction import contraction_of, with_epilogue
from polyfuse.layers.graph.domains import sums_windows
from polyfuse.layers.graph.inline import inlinable, inline
from polyfuse.layers.graph.names import depending, fresh_name

# --- sums -------------------------------------------------------------------------------------------------

# Reductions over a few terms are written out.
#
#     d[i, j] = sum[c](x[i, c] - y[j, c])      for c in 0..3
# becomes
#     d[i, j] = (x[i, 0] - y[j, 0]) + (x[i, 1] - y[j, 1]) + (x[i, 2] - y[j, 2])
#
# Three terms fill no vector; without the reduction all loops may be lanes, and values are computed where they
# are read.  Sums of windows keep their loop, for neighbours share their terms, and so do those of four terms
# and more along both factors, unless something sums them up: these are tiles.  Eight terms are a vector, and
# no gain for rows.


MOST_TERMS = 7
# The definition that comes of it has no more operations than a compiler keeps in registers.
MOST_OPERATIONS = 128


def unroll_reductions(graph: TensorGraph, decisions: list[Decision], core: Core) -> TensorGraph:
    """The graph with such reductions written out, in what reads each of their elements once if they are
    temporary."""
    for name in [s.name for s in graph.statements]:
        s = graph.statement(name)  # as it is by now: it may have taken what it read in
        points = _sum_points(s)
        if 0 < len(points) <= MOST_TERMS and _sum_may_be(graph, s, len(points), core):
            why = f"{len(points)} terms fill no vector: they are added where the sum is read"
            decisions.append(Decision("unroll", s.target, True, why))
            written = written_out(s, points)
            graph = replace(graph, statements=tuple(written if x is s else x for x in graph.statements))
            if _read_once(graph, written):
                graph = inline(graph, s.target)
    return graph


def _read_once(graph: TensorGraph, s: Statement) -> bool:
    """Is each element of a temporary read once, in an iteration of its own?"""
    if inlinable(graph, s.target) is None:
        return False
    (reader, *more) = graph.readers(s.target) or (s,)
    found = [r for r in statement_reads(reader) if r.tensor == s.target]
    return not more and len(found) == 1 and set(found[0].indices) == {IVar(d.name) for d in reader.dims}


def _sum_points(s: Statement) -> list[dict[str, IndexExpr]]:
    """The values of the reduced dims, one after the other; none where they are not known, or many."""
    if s.reduction not in COMBINES or s.accumulate:
        return []
    spans: list[range] = []
    for d in s.dims:
        if d.reduce:
            if not (isinstance(d.lower, IConst) and isinstance(d.upper, IConst)):
                return []
            spans.append(range(d.lower.value, d.upper.value))
    if prod(map(len, spans)) > MOST_TERMS:
        return []
    return [dict(zip(s.reduction_dims, map(IConst, at), strict=True)) for at in product(*spans)]


def _sum_may_be(graph: TensorGraph, s: Statement, terms: int, core: Core) -> bool:
    """Is a reduction short of operations, and none that loops or tiles are better for?"""
    if terms * sum(isinstance(e, Apply | Select) for e in walk(s.expr)) > MOST_OPERATIONS:
        return False
    if terms > 1 and sums_windows(s):
        return False
    p = contraction_of(graph, s, core)
    following = {f.statement for f in with_epilogue(graph, p).followers} if p else set()
    return p is None or any(t.name not in following for t in graph.readers(s.target))


def written_out(s: Statement, points: list[dict[str, IndexExpr]]) -> Statement:
    """A reduction as an expression of its terms at these values of its dims."""
    operation = COMBINES[str(s.reduction)]
    terms = [at(s.expr, values) for values in points]
    joined = reduce(lambda a, b: Apply(operation, (a, b), a.dtype, s.span), terms)
    return replace(s, dims=tuple(d for d in s.dims if not d.reduce), expr=joined, reduction=None)


def at(e: Expr, values: dict[str, IndexExpr]) -> Expr:
    """An expression with values in place of dims."""
    return map_expr(e, lambda x: x, lambda i: simplify(substitute(i, values), {}))


# --- temporaries ------------------------------------------------------------------------------------------

# Elements of a short dim, and of all short dims of a tensor: sixteen are a vector.
LONGEST, MOST_ELEMENTS = 4, 9
# Statements that come of it: the time of schedulers grows with them.
MOST_STATEMENTS = 64


def unroll_short_dims(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
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


# --- results ----------------------------------------------------------------------------------------------

# Results that go over short rows, and along memory elsewhere, have a statement for each element of a row.
#
#     y[n, c] = 2.0 * x[c, n]                           for c in 0..3
# becomes
#     y[n, 0] = 2.0 * x[0, n];  y[n, 1] = 2.0 * x[1, n];  y[n, 2] = 2.0 * x[2, n]
#
# Three channels fill no vector, and with a loop over them outside of the one over points each round stores to
# every third element, of the same lines as others.  In one loop over points, compilers join elements of a row
# to vectors.  What always goes over all of a row, as `y[n, c] = x[n, c] * m[c]` does, is one long row of
# memory, and stays.  So do functions of rows, which are vectors along them.


# Fewer points are no loop over vectors.
FEWEST_POINTS = 16


def unroll_short_rows(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """The graph with such statements written out."""
    for s in graph.statements:
        row = _row(graph, s)
        if row is None or len(graph.statements) + _count(row) > MOST_STATEMENTS:
            continue
        pieces = tuple(_row_pieces(graph, s, row))
        statements = tuple(x for t in graph.statements for x in (pieces if t is s else (t,)))
        graph = replace(graph, statements=statements)
        why = (
            f"{len(pieces)} values of {row.name} fill no vector: each has a statement, in a loop along memory"
        )
        decisions.append(Decision("unroll", s.target, True, why))
    return graph


def _row_pieces(graph: TensorGraph, s: Statement, row: IterDim) -> Iterator[Statement]:
    """The statements in place of one, for each value of a dim."""
    for k in range(_count(row)):
        value: dict[str, IndexExpr] = {row.name: simplify(row.lower + k, {})}
        name = fresh_name(graph, f"{s.name}__{k}")
        write = tuple(i if isinstance(i, EXPR_TYPES) else substitute(i, value) for i in s.write)
        dims = tuple(d for d in s.dims if d is not row)
        yield replace(s, name=name, dims=dims, write=write, expr=at(s.expr, value))


def _row(graph: TensorGraph, s: Statement) -> IterDim | None:
    """The dim that a statement is to be written out by; None where it stays."""
    target = graph.tensor(s.target)
    if target.role is not Role.OUTPUT or target.alias is not None or s.reduction is not None or s.accumulate:
        return None
    if s.name in depending(graph, s):
        return None
    accesses = [(s.target, s.write), *((r.tensor, r.indices) for r in statement_reads(s))]
    indices = [i for _, i in accesses if i]
    for row in s.dims:
        points = _row_points(s, row, indices)
        if points is not None and _row_may_be(graph, s, row, points, accesses):
            return row
    return None


def _count(d: IterDim) -> int:
    """How many values a short dim has; 0 where it is not short."""
    if not isinstance(d.lower, IConst) or not isinstance(d.upper, IConst):
        return 0
    count = d.upper.value - d.lower.value
    return count if 1 < count <= LONGEST else 0


def _row_points(s: Statement, row: IterDim, accesses: list[tuple[Index, ...]]) -> IterDim | None:
    """The dim of points, if one access goes over rows of each point and another along points."""
    if not _count(row):
        return None
    over = {i[-2] for i in accesses if i[-1] == IVar(row.name) and len(i) > 1}
    for d in s.dims:
        ends = (d.lower, d.upper)
        few = all(isinstance(e, IConst) for e in ends) and linear(d.upper - d.lower).constant < FEWEST_POINTS
        if IVar(d.name) in over and not few and any(_goes_along(i, d, row) for i in accesses):
            return d
    return None


def _goes_along(access: tuple[Index, ...], points: IterDim, row: IterDim) -> bool:
    """Is the last index that is not the same for all points and elements that of the points?"""
    for i in reversed(access):
        found = set() if isinstance(i, EXPR_TYPES) else set(variables(i)) & {points.name, row.name}
        if found:
            return found == {points.name}
    return False


def _row_may_be(
    graph: TensorGraph,
    s: Statement,
    row: IterDim,
    points: IterDim,
    accesses: list[tuple[str, tuple[Index, ...]]],
) -> bool:
    """Is every access one of a number along the row, without digits or data, and the statement small?"""
    if any(row.name in {*variables(d.lower), *variables(d.upper)} for d in s.dims):
        return False
    if any(_function_of_rows(e, row) for e in walk(s.expr)):
        return False
    operations = sum(isinstance(e, Apply | Select) for e in walk(s.expr))
    if operations * _count(row) > MOST_OPERATIONS:
        return False
    for tensor, indices in accesses:
        for index, extent in zip(indices, graph.tensor(tensor).shape, strict=True):
            if isinstance(index, EXPR_TYPES) or _digits(index, (row.name, points.name)):
                return False
            if row.name in variables(index) and not _row_inside(index, row, extent):
                return False
    return True


def _function_of_rows(e: Expr, row: IterDim) -> bool:
    """Is a function computed of what lies along the row?"""
    if not (isinstance(e, Apply) and is_function(e)):
        return False
    return any(r.indices[-1:] == (IVar(row.name),) for a in e.args for r in reads(a))


def _digits(index: IndexExpr, names: Iterable[str]) -> bool:
    """Is a variable divided in an index?"""
    if not isinstance(index, IBin):
        return False
    divided = index.op in ("//", "%") and not set(names).isdisjoint(variables(index))
    return divided or _digits(index.left, names) or _digits(index.right, names)


def _row_inside(index: IndexExpr, row: IterDim, extent: IndexExpr) -> bool:
    """Is an index that of an element for all values of the row?  A condition may keep it from being one."""
    values = (simplify(substitute(index, {row.name: row.lower + k}), {}) for k in range(_count(row)))
    return isinstance(extent, IConst) and all(
        isinstance(v, IConst) and 0 <= v.value < extent.value for v in values
    )
