"""Bools in memory of callers: any byte but 0 is true, as for NumPy, and what reads one makes 1 of it.

    y[i] = not x[i]    -->    y[i] = not (x[i] != false)

NumPy makes such bytes by views, `frombuffer` and shared memory.  What kernels write is 0 or 1.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.dtypes import BOOL
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Const,
    Expr,
    Index,
    Read,
    Role,
    TensorGraph,
    map_expr,
    statement_reads,
)

_FALSE = Const(False, BOOL)


def _is_compared(e: Expr) -> bool:
    return isinstance(e, Apply) and e.op == "ne" and e.args[1] == _FALSE


def with_truth_values(graph: TensorGraph) -> TensorGraph:
    """The graph with every read of a bool that a caller may have written compared with false."""
    given = {
        t.name
        for t in graph.tensors
        if t.dtype.is_bool and (t.role in (Role.INPUT, Role.INOUT) or t.alias is not None)
    }

    def compared(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor in given:
            return Apply("ne", (e, _FALSE), BOOL)
        if isinstance(e, Apply) and _is_compared(e) and _is_compared(e.args[0]):
            return e.args[0]  # the text compares it as well
        return e

    def in_index(i: Index) -> Index:
        return map_expr(i, compared) if isinstance(i, EXPR_TYPES) else i

    statements = []
    for s in graph.statements:
        if any(r.tensor in given for r in statement_reads(s)):
            s = replace(s, expr=map_expr(s.expr, compared), write=tuple(map(in_index, s.write)))
        statements.append(s)
    return replace(graph, statements=tuple(statements)) if given else graph
