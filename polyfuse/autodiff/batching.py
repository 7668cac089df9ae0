"""An operator for a batch: each tensor that is batched gets a leading axis, and what depends on it as well.

y[i] = sum[k](a[i, k] * x[k])        x batched        y[b, i] = sum[k](a[i, k] * x[b, k])
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.index_expr import IConst, ISize, IVar
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


@dataclass(frozen=True)
class Batched:
    """The graph, and which results have the leading axis."""

    graph: TensorGraph
    results: tuple[str, ...]


def batched(graph: TensorGraph, names: Collection[str]) -> Batched:
    """The graph where these inputs have a leading axis, the same for all of them.

    Raises ArgumentError PF806 where an inout parameter without that axis would have to be written for each.
    """
    taken = {
        *graph.sizes,
        *(t.name for t in graph.tensors),
        *(d.name for s in graph.statements for d in s.dims),
    }
    size, variable = _free("BATCH", taken), _free("batch", taken)
    found = _reached(graph, names)
    for t in graph.tensors:
        if t.role is Role.OUTPUT and t.alias in set(graph.inputs) - found and t.name in found:
            message = f"'{t.alias}' of {graph.name} is written, but has no batch axis as what is written has"
            raise ArgumentError(message, code="PF806", hint=f"give it one: vmap over {t.alias} as well")
    tensors = tuple(_tensor(t, size) if t.name in found else t for t in graph.tensors)
    statements = tuple(_statement(s, found, size, variable) for s in graph.statements)
    made = replace(
        graph,
        name=f"{graph.name}_batched",
        sizes=(size, *graph.sizes),
        tensors=tensors,
        statements=statements,
    )
    return Batched(made, tuple(n for n in graph.outputs if n in found))


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _reached(graph: TensorGraph, names: Collection[str]) -> set[str]:
    """The tensors that are batched where these inputs are."""
    found = set(names)
    found |= {t.name for t in graph.tensors if t.alias in found}
    size = 0
    while len(found) > size:
        size = len(found)
        for s in graph.statements:
            if any(r.tensor in found for r in statement_reads(s)):
                found.add(s.target)
    return found


def _tensor(t: Tensor, size: str) -> Tensor:
    return replace(t, shape=(ISize(size), *t.shape), default=None)


def _statement(s: Statement, found: Collection[str], size: str, variable: str) -> Statement:
    if s.target not in found:
        return s

    def leading(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor in found:
            return replace(e, indices=(IVar(variable), *e.indices))
        return e

    write = tuple(map_expr(i, leading) if isinstance(i, EXPR_TYPES) else i for i in s.write)
    return replace(
        s,
        dims=(IterDim(variable, IConst(0), ISize(size)), *s.dims),
        write=(IVar(variable), *write),
        expr=map_expr(s.expr, leading),
    )
