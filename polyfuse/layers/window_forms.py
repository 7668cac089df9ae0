"""Windows in one form: loops over so many terms, of one reduction.

    y[p] = max[h in max(2*p - 1, 0)..min(2*p + 2, H)](x[h])
becomes
    y[p] = max[h in max(0, 1 - 2*p)..min(3, H + 1 - 2*p)](x[2*p - 1 + h])

and, where a reduction is of one of the same kind,

    t[p, q, r] = max[s](x[p + r, q + s]);   y[p, q] = max[r](t[p, q, r])
becomes
    y[p, q] = max[r, s](x[p + r, q + s])

Lanes then run along the results, of which neighbours have as many terms, and not along a few terms.  A
condition around the inner reduction that has its neutral element for the other side goes along.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.linear import arms, linear
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Const,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
    map_expr,
    statement_reads,
    walk,
)
from polyfuse.layers.fresh import fresh_name

# Terms at most: longer sums fill vectors by themselves.
MOST_TERMS = 32
_JOINED = ("sum", "max", "min", "prod")


def with_window_forms(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """See the module docstring."""
    for name in [s.name for s in graph.statements]:
        if any(s.name == name for s in graph.statements):
            graph = _joined(graph, name, decisions)
    shifted = {s.name: _shifted(s) for s in graph.statements}
    for s in graph.statements:
        if shifted[s.name] is not s:
            decisions.append(Decision("window", s.name, True, "its terms are counted from the first one on"))
    return replace(graph, statements=tuple(shifted[s.name] for s in graph.statements))


# --- terms from the first one on --------------------------------------------------------------------------


def _shifted(s: Statement) -> Statement:
    if s.reduction is None or s.accumulate or s.reduction.startswith("arg"):
        return s
    for d in s.dims:
        first = _first(d) if d.reduce else None
        if first is not None:
            return _shifted(_from(s, d, first))
    return s


def _first(d: IterDim) -> IndexExpr | None:
    """Where a window of few terms begins that moves with other dims, if it has fewer than stay in place."""
    best, first = MOST_TERMS + 1, None
    for low in arms("max", d.lower):
        for high in arms("min", d.upper):
            length = linear(binary("-", high, low))
            moves = bool(variables(low))
            if not length.terms and (0 < length.constant < best or (length.constant == best and not moves)):
                best, first = length.constant, low if moves else None
    return first


def _from(s: Statement, d: IterDim, first: IndexExpr) -> Statement:
    """The statement with a dim that counts from there."""
    env = {d.name: binary("+", first, IVar(d.name))}

    def moved(i: IndexExpr) -> IndexExpr:
        return linear(substitute(i, env)).expr() if d.name in variables(i) else i

    lower, upper = (_less(op, e, first) for op, e in (("max", d.lower), ("min", d.upper)))
    at = s.dims.index(d)
    later = (replace(x, lower=moved(x.lower), upper=moved(x.upper)) for x in s.dims[at + 1 :])
    dims = (*s.dims[:at], replace(d, lower=lower, upper=upper), *later)
    return replace(s, dims=dims, expr=map_expr(s.expr, lambda e: e, moved))


def _less(op: str, bound: IndexExpr, first: IndexExpr) -> IndexExpr:
    found, *more = (linear(binary("-", a, first)).expr() for a in arms(op, bound))
    for e in more:
        found = binary(op, found, e)
    return found


# --- one reduction ------------------------------------------------------------------------------------------


def _joined(graph: TensorGraph, name: str, decisions: list[Decision]) -> TensorGraph:
    """The graph with the terms of inner reductions in this one, while it reduces nothing else."""
    outer = graph.statement(name)
    read = _reduced(graph, outer)
    inner = _inner(graph, outer, read) if read is not None else None
    if read is None or inner is None:
        return graph
    where = {w.name: i for w, i in zip(inner.write, read.indices, strict=True) if isinstance(w, IVar)}
    over = [d for d in inner.dims if d.reduce]
    names: dict[str, IndexExpr] = {d.name: IVar(fresh_name(graph, f"{d.name}__in")) for d in over}
    env: dict[str, IndexExpr] = {**where, **names}  # type: ignore[dict-item]

    def moved(i: IndexExpr) -> IndexExpr:
        return substitute(i, env)

    dims = [replace(d, name=str(names[d.name]), lower=moved(d.lower), upper=moved(d.upper)) for d in over]
    terms = map_expr(inner.expr, lambda e: e, moved)
    expr = map_expr(outer.expr, lambda e: terms if e == read else e)
    made = replace(outer, dims=(*outer.dims, *dims), expr=expr)
    decisions.append(Decision("window", name, True, f"one reduction with {inner.name}, of the same kind"))
    statements = tuple(made if s is outer else s for s in graph.statements if s is not inner)
    tensors = tuple(t for t in graph.tensors if t.name != inner.target)
    return _joined(replace(graph, tensors=tensors, statements=statements), name, decisions)


def _reduced(graph: TensorGraph, s: Statement) -> Read | None:
    """What a statement reduces, if that is an element of a tensor, or else the neutral element."""
    if s.reduction not in _JOINED or s.accumulate:
        return None
    match s.expr:
        case Read():
            return s.expr
        case Select(cond, Read() as then, Const(value)):
            neutral = value == identity(s.reduction, graph.tensor(s.target).dtype)
            return then if neutral and not any(isinstance(e, Read) for e in walk(cond)) else None
        case _:
            return None


def _inner(graph: TensorGraph, outer: Statement, read: Read) -> Statement | None:
    """The reduction that makes what an outer one reduces, if it is of the same kind and serves no other."""
    t = graph.tensor(read.tensor)
    writers = graph.writers(t.name)
    if t.role is not Role.TEMP or len(writers) != 1 or graph.readers(t.name) != (outer,):
        return None
    (inner,) = writers
    alike = inner.reduction == outer.reduction and t.dtype == graph.tensor(outer.target).dtype
    plain = all(isinstance(w, IVar) for w in inner.write)
    own = all(not isinstance(i, EXPR_TYPES) for i in read.indices)
    if not (alike and plain and own) or inner.accumulate or len(_all_reads(outer, t.name)) != 1:
        return None
    if any(isinstance(i, EXPR_TYPES) for r in statement_reads(inner) for i in r.indices):
        return None
    lengths = [_length(d) for s in (outer, inner) for d in s.dims if d.reduce]
    few = all(n is not None for n in lengths) and prod(n or 0 for n in lengths) <= MOST_TERMS
    return inner if few and _uses_all(outer, read) else None


def _all_reads(s: Statement, tensor: str) -> list[Read]:
    return [r for r in statement_reads(s) if r.tensor == tensor]


def _uses_all(s: Statement, read: Read) -> bool:
    """Does each iteration read an element of its own?"""
    names = [i.name for i in read.indices if isinstance(i, IVar)]
    return sorted(names) == sorted(d.name for d in s.dims) and len(names) == len(read.indices)


def _length(d: IterDim) -> int | None:
    """The terms of a dim, at most."""
    found = [linear(binary("-", b, a)) for a in arms("max", d.lower) for b in arms("min", d.upper)]
    return min((x.constant for x in found if not x.terms), default=None)
