"""A last dim of one element is dropped.

    y[n, h, w, c] = sum[r, s](x[n, h+r, w+s, c] * k[r, s, c])      for c in 0..1
becomes
    y[n, h, w] = sum[r, s](x[n, h+r, w+s] * k[r, s])

Images with one channel, series of one value: loops run along memory over what was the dim before.  Shapes
change, memory does not, so tensors that are not dense keep the dim, and so do those whose dim is found by
data, which is to be checked.  The first dim stays: a batch of one row is computed like any other.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, substitute
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    Index,
    Read,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    map_index,
    statement_reads,
)


def drop_unit_dims(
    graph: TensorGraph, decisions: list[Decision], strided: frozenset[str] = frozenset()
) -> TensorGraph:
    """The graph without such dims. `strided` names tensors whose memory is not dense."""
    while dropped := _droppable(graph, strided):
        for name in sorted(dropped):
            what = f"{name}[.., {len(graph.tensor(name).shape) - 1}]"
            decisions.append(Decision("drop", what, True, "the dim has one element"))
        tensors = tuple(_without(t) if t.name in dropped else t for t in graph.tensors)
        statements = tuple(_statement(s, dropped) for s in graph.statements)
        graph = replace(graph, tensors=tensors, statements=statements)
    return graph


def _droppable(graph: TensorGraph, strided: frozenset[str]) -> frozenset[str]:
    """Tensors whose last dim has one element that every access knows."""
    found = {t.name for t in graph.tensors if len(t.shape) > 1 and t.shape[-1] == IConst(1)} - strided
    for s in graph.statements:
        if s.target in found and not _written_once(s):
            found.discard(s.target)
        found -= {r.tensor for r in statement_reads(s) if r.indices and isinstance(r.indices[-1], EXPR_TYPES)}
    # An inout tensor and its entry value are one memory.
    pairs = [(t.name, t.alias) for t in graph.tensors if t.alias is not None]
    while split := {x for pair in pairs if len(found & {*pair}) == 1 for x in pair}:
        found -= split
    return frozenset(found)


def _written_once(s: Statement) -> bool:
    """Is the last index of what is written a constant, or a dim of one iteration?"""
    match s.write[-1]:
        case IConst():
            return True
        case IVar(name):
            (dim,) = (d for d in s.dims if d.name == name)
            ends = dim.lower, dim.upper
            return not dim.reduce and ends == (IConst(0), IConst(1))
        case _:
            return False


def _without(t: Tensor) -> Tensor:
    return replace(t, shape=t.shape[:-1])


def _statement(s: Statement, dropped: frozenset[str]) -> Statement:
    env: dict[str, IndexExpr] = {}
    if s.target in dropped and isinstance(last := s.write[-1], IVar):
        env[last.name] = IConst(0)

    def index(i: IndexExpr) -> IndexExpr:
        return substitute(i, env) if env else i

    def expr(e: Expr) -> Expr:
        return replace(e, indices=e.indices[:-1]) if isinstance(e, Read) and e.tensor in dropped else e

    def place(i: Index) -> Index:
        return map_index(i, lambda e: map_expr(e, expr, index), index)

    write = s.write[:-1] if s.target in dropped else s.write
    dims = tuple(replace(d, lower=index(d.lower), upper=index(d.upper)) for d in s.dims if d.name not in env)
    return replace(s, dims=dims, write=tuple(map(place, write)), expr=map_expr(s.expr, expr, index))
