"""Elements that data choose are computed where they are chosen, where they are few.

    y[n, c] = x[n, c] - m[n] - log(s[n])
    z[n] = y[n, label[n]]                        and nothing else reads y
becomes
    z[n] = x[n, label[n]] - m[n] - log(s[n])

A row of y is as long as there are classes, and one of them is wanted; of a table that is scaled as it is
read, a batch wants a few rows.  An index from data takes the place of a loop variable only where that is the
whole index of tensors that are as long there, so that what is out of range ends at the same element.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, substitute, variables
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
    reads,
    statement_reads,
    walk,
)

# Elements that are computed in vectors where all are wanted: so many take as long as one that is alone.
LANES = 8


def compute_chosen(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """The graph with such elements in the statements that choose them."""
    for name in [s.name for s in reversed(graph.statements)]:
        s = graph.statement(name)  # as it is by now: it may compute what it read
        chosen = _chosen(graph, s)
        if chosen is not None:
            reader, read = chosen
            why = f"data choose what {reader.name} needs of it, no more than one of {LANES} elements"
            decisions.append(Decision("inline", s.target, True, why))
            graph = _without(graph, s, reader, read)
    return graph


def _chosen(graph: TensorGraph, s: Statement) -> tuple[Statement, Read] | None:
    """The statement that chooses elements of a temporary, and where, if that is to compute them."""
    t = graph.tensor(s.target)
    if t.role is not Role.TEMP or t.exact or len(graph.writers(s.target)) != 1 or s.reduction or s.accumulate:
        return None
    if s.write != tuple(IVar(d.name) for d in s.dims):
        return None
    found = [(x, r) for x in graph.statements for r in statement_reads(x) if r.tensor == s.target]
    if len(found) != 1 or found[0][0] is s or found[0][1] not in reads(found[0][0].expr):
        return None
    (reader, read), wanted, every = found[0], _count(found[0][0]), _count(s)
    if wanted is None or every is None or wanted * LANES > every:
        return None
    data = {d.name: t.shape[k] for k, d in enumerate(s.dims) if isinstance(read.indices[k], EXPR_TYPES)}
    return (reader, read) if data and _plain(graph, s.expr, data) else None


def _count(s: Statement) -> int | None:
    """How often a statement runs, if numbers say so."""
    bounds = [(d.lower, d.upper) for d in s.dims]
    known = [b.value - a.value for a, b in bounds if isinstance(a, IConst) and isinstance(b, IConst)]
    return prod(known) if len(known) == len(bounds) else None


def _plain(graph: TensorGraph, e: Expr, extents: dict[str, IndexExpr]) -> bool:
    """Is each of some variables the index of tensors of these extents, and nothing else?"""
    seen: set[str] = set()
    for x in walk(e):
        match x:
            case Read(tensor, indices):
                for i, extent in zip(indices, graph.tensor(tensor).shape, strict=True):
                    if isinstance(i, IVar) and i.name in extents:
                        seen.add(i.name)
                        if extents[i.name] != extent:
                            return False
                    elif not isinstance(i, EXPR_TYPES) and extents.keys() & set(variables(i)):
                        return False
            case IndexValue(index) if extents.keys() & set(variables(index)):
                return False
            case _:
                pass
    return seen == extents.keys()


def _without(graph: TensorGraph, s: Statement, reader: Statement, read: Read) -> TensorGraph:
    """The graph in which a statement computes what it read."""
    at = dict(zip((d.name for d in s.dims), read.indices, strict=True))
    value = _at(s.expr, at)
    made = replace(reader, expr=map_expr(reader.expr, lambda e: value if e == read else e))
    statements = tuple(made if x is reader else x for x in graph.statements if x is not s)
    return replace(
        graph, statements=statements, tensors=tuple(t for t in graph.tensors if t.name != s.target)
    )


def _at(e: Expr, at: dict[str, Index]) -> Expr:
    """An expression with indices in place of its variables."""
    plain = {v: i for v, i in at.items() if not isinstance(i, EXPR_TYPES)}

    def index(i: Index) -> Index:
        if isinstance(i, EXPR_TYPES):
            return i
        return at[i.name] if isinstance(i, IVar) and i.name in at else substitute(i, plain)

    def expr(x: Expr) -> Expr:
        match x:
            case Read(_, indices):
                return replace(x, indices=tuple(map(index, indices)))
            case IndexValue(i):
                return replace(x, index=substitute(i, plain))
            case _:
                return x

    return map_expr(e, expr)
