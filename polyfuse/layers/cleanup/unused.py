"""Dead code: statements that no result needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.index_expr import sizes as sizes_of
from polyfuse.ir.tensor_graph import EXPR_TYPES, Role, Statement, Tensor, TensorGraph, statement_reads


def remove_unused(graph: TensorGraph, decisions: list[Decision], *, checked: bool) -> TensorGraph:
    """Temporaries that lead to no result go away, with the statements that define them.

        a[t] = sum[h](x[t, h])
        b[t] = a[t] * 2.0
        y[t, h] = x[t, h] + 1.0
    becomes
        y[t, h] = x[t, h] + 1.0

    Inputs stay arguments. With `checked`, what reads or writes by an index from data stays as well, with all
    that it needs: out of range it is an error, also where nobody looks at the result.
    """
    needed = _needed(graph, lambda s: False)
    gone = [s for s in graph.statements if s.target not in needed]
    if not gone:
        return graph
    if checked:
        with_checks = _needed(graph, has_data_index)
        for s in gone:
            if has_data_index(s):
                why = "no result needs it, but its indices are checked"
                decisions.append(Decision("remove", s.target, False, why))
        needed = with_checks
    tensors = []
    for t in graph.tensors:
        if t.role is Role.TEMP and t.name not in needed:
            decisions.append(Decision("remove", t.name, True, "no result needs it", saved_bytes=bytes_of(t)))
        else:
            tensors.append(t)
    if len(tensors) == len(graph.tensors):
        return graph
    kept = tuple(s for s in graph.statements if s.target in needed)
    return replace(graph, tensors=tuple(tensors), statements=kept)


def _needed(graph: TensorGraph, is_root: Callable[[Statement], bool]) -> set[str]:
    """The tensors that are written and lead to a result, or to a statement that counts as one."""
    sources: dict[str, set[str]] = {}
    for s in graph.statements:
        sources.setdefault(s.target, set()).update(r.tensor for r in statement_reads(s))
    waiting = [t.name for t in graph.tensors if t.role is Role.OUTPUT]
    waiting += [s.target for s in graph.statements if is_root(s)]
    needed: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += sources.get(name, ())
    return needed


def has_data_index(s: Statement) -> bool:
    """Does a statement read or write where data says?"""
    indices = (*s.write, *(i for r in statement_reads(s) for i in r.indices))
    return any(isinstance(i, EXPR_TYPES) for i in indices)


def bytes_of(t: Tensor) -> int | None:
    """The memory of a tensor; None while sizes are open."""
    count = product(t.shape)
    return None if sizes_of(count) else t.dtype.bytes * evaluate(count, {})
