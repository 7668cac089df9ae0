"""Results that are copies of a temporary: it is computed where they are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.tensor_graph import (
    Expr,
    Read,
    Role,
    Statement,
    TensorGraph,
    map_expr,
    map_index,
    statement_reads,
)
from polyfuse.layers.cleanup.unused import bytes_of


def write_directly(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """A temporary that nothing but a copy to a result reads is that result.

        s[h] = sum[t](x[t, h]);   y[h] = s[h]
    becomes
        y[h] = sum[t](x[t, h])

    So a sum that is cast to what it is already needs no second kernel. Not so what an inout parameter
    becomes: its old value may be read until then.
    """
    while copies := _copies(graph):
        for temporary, copy in copies.items():
            graph = _without(graph, temporary, copy)
            why = f"{copy.target} is a copy of it, and is computed in its place"
            saved = bytes_of(graph.tensor(copy.target))
            decisions.append(Decision("remove", temporary, True, why, saved_bytes=saved))
    return graph


def _copies(graph: TensorGraph) -> dict[str, Statement]:
    """Temporaries that can go, with the statements that copy them; each tensor has a part in one copy."""
    writers: dict[str, list[Statement]] = defaultdict(list)
    readers: dict[str, list[Statement]] = defaultdict(list)
    for s in graph.statements:
        writers[s.target].append(s)
        for name in {r.tensor for r in statement_reads(s)} - {s.target}:
            readers[name].append(s)
    tensors = {t.name: t for t in graph.tensors}
    found: dict[str, Statement] = {}
    for s in graph.statements:
        result = tensors[s.target]
        if result.role is not Role.OUTPUT or result.alias is not None or len(writers[s.target]) > 1:
            continue
        source = tensors[s.expr.tensor] if isinstance(s.expr, Read) else result
        alike = source.dtype is result.dtype and source.shape == result.shape
        added = any(w.accumulate for w in writers[source.name])
        alone = source.role is Role.TEMP and readers[source.name] == [s]
        if alone and alike and not added and _copies_all(graph, s):
            found[source.name] = s
    return found


def _copies_all(graph: TensorGraph, s: Statement) -> bool:
    """Is each element that of the same place?"""
    assert isinstance(s.expr, Read)
    place = tuple(IVar(d.name) for d in s.dims)
    whole = all(d.lower == IConst(0) for d in s.dims)
    shape = tuple(d.upper for d in s.dims) == graph.tensor(s.target).shape
    return s.reduction is None and whole and shape and s.write == s.expr.indices == place


def _without(graph: TensorGraph, temporary: str, copy: Statement) -> TensorGraph:
    """The graph in which the statements of a temporary write the result that copies it."""
    own = [s for s in graph.statements if s.target == temporary]

    def read(e: Expr) -> Expr:
        return replace(e, tensor=copy.target) if isinstance(e, Read) and e.tensor == temporary else e

    def mapped(e: Expr) -> Expr:
        return map_expr(e, read)

    def moved(s: Statement) -> Statement:
        write = tuple(map_index(i, mapped, None) for i in s.write)
        name = copy.name if len(own) == 1 else s.name
        return replace(s, name=name, target=copy.target, write=write, expr=mapped(s.expr))

    statements = (moved(s) if s.target == temporary else s for s in graph.statements if s is not copy)
    tensors = tuple(t for t in graph.tensors if t.name != temporary)
    return replace(graph, tensors=tensors, statements=tuple(statements))
