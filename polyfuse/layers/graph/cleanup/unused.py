"""Dead code, and copies of temporaries.

`remove_unused` takes away statements that no result needs.  `write_directly`: where a result is a copy of a
temporary, this is computed where the result is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IConst, IVar, evaluate, product
from polyfuse.ir.index_expr import sizes as sizes_of
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    map_index,
    statement_reads,
)

# --- dead code --------------------------------------------------------------------------------------------


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
