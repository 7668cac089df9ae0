"""Graph-level rewrites of layer I: each keeps the meaning of the graph and records why it was done."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, substitute
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    IndexValue,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    map_index,
    reads,
)
from polyfuse.layers.fresh import fresh_name

LARGEST = 2**63 - 1


def decompose_argmax(graph: TensorGraph) -> TensorGraph:
    """argmax/argmin as two plain reductions.

        a[t] = argmax[h](e)
    becomes
        v[t, h] = e                                  (kept in storage: both uses must see the same bits)
        m[t]    = max[h](v[t, h])
        a[t]    = min[h](h if v[t, h] == m[t] or isnan(v[t, h]) else 2**63 - 1)

    A NaN makes m a NaN, so that only NaNs are candidates: the first of them, as in NumPy.
    """
    statements: list[Statement] = []
    tensors = list(graph.tensors)
    for s in graph.statements:
        if s.reduction not in ("argmax", "argmin"):
            statements.append(s)
            continue
        new_statements, new_tensors = _argmax_parts(graph, s)
        statements += new_statements
        tensors += new_tensors
    return replace(graph, statements=tuple(statements), tensors=tuple(tensors))


def _argmax_parts(graph: TensorGraph, s: Statement) -> tuple[list[Statement], list[Tensor]]:
    outer = tuple(d for d in s.dims if not d.reduce)
    (over,) = (d for d in s.dims if d.reduce)
    dtype = s.expr.dtype
    value_name, best_name = (fresh_name(graph, f"{s.name}__{part}") for part in ("value", "best"))
    # Storage starts at 0, wherever the ranges do.
    ranges = _intervals(s.dims)
    start = {
        n: IConst(0) if isinstance(low, IConst) and low.value >= 0 else low for n, (low, _) in ranges.items()
    }
    shape = tuple(ranges[d.name][1] + 1 - start[d.name] for d in (*outer, over))
    place = tuple(IVar(d.name) - start[d.name] for d in (*outer, over))
    kept = place[:-1]
    value = Read(value_name, place, dtype, s.span)
    best = Read(best_name, kept, dtype, s.span)
    found: Expr = Apply("eq", (value, best), BOOL, s.span)
    if dtype.is_float:
        found = Apply("or", (found, Apply("isnan", (value,), BOOL, s.span)), BOOL, s.span)
    here = Select(found, IndexValue(IVar(over.name), I64), Const(LARGEST, I64), I64, s.span)
    plain_dims = tuple(replace(d, reduce=False) for d in s.dims)
    return [
        Statement(value_name, value_name, plain_dims, place, s.expr, span=s.span),
        Statement(
            best_name, best_name, s.dims, kept, value, s.reduction[3:] if s.reduction else None, span=s.span
        ),
        replace(s, expr=here, reduction="min"),
    ], [
        Tensor(value_name, dtype, shape, Role.TEMP, s.span, exact=True),
        Tensor(best_name, dtype, shape[:-1], Role.TEMP, s.span, exact=True),
    ]


def _intervals(dims: tuple[IterDim, ...]) -> dict[str, tuple[IndexExpr, IndexExpr]]:
    """Least and largest value of each loop variable; they use sizes only."""
    found: dict[str, tuple[IndexExpr, IndexExpr]] = {}
    for d in dims:
        found[d.name] = (_interval(d.lower, found)[0], _interval(d.upper, found)[1] - 1)
    return found


def _interval(e: IndexExpr, inside: Mapping[str, tuple[IndexExpr, IndexExpr]]) -> tuple[IndexExpr, IndexExpr]:
    """Bounds of an index expression; divisors are positive."""
    match e:
        case IVar(name):
            return inside[name]
        case IBin("%", _, right):
            return IConst(0), _interval(right, inside)[1] - 1
        case IBin(op, left, right):
            (a, b), (c, d) = _interval(left, inside), _interval(right, inside)
            if op in ("+", "min", "max"):
                return binary(op, a, c), binary(op, b, d)
            if op == "-":
                return a - d, b - c
            corners = [binary(op, x, y) for x in (a, b) for y in (c, d)]
            low, high = (functools.reduce(lambda x, y: binary(o, x, y), corners) for o in ("min", "max"))
            return low, high
        case _:
            return e, e


def cache_read(graph: TensorGraph, tensor: str) -> TensorGraph:
    """Read an input once into a temporary that its readers share.

        s[t] = sum[h](x[t, h]);  y[t, h] = x[t, h] - s[t]
    becomes
        x__cache[t, h] = x[t, h];  s[t] = sum[h](x__cache[t, h]);  y[t, h] = x__cache[t, h] - s[t]

    The temporary ends up in a register or in a row buffer, where contraction puts it.
    """
    source = graph.tensor(tensor)
    name = fresh_name(graph, f"{tensor}__cache")
    dims = tuple(IterDim(f"d{k}", IConst(0), e) for k, e in enumerate(source.shape))
    index = tuple(IVar(d.name) for d in dims)
    value: Expr = Read(tensor, index, source.dtype)
    if source.dtype.compute is not source.dtype:  # what is stored in 16 bits comes from a cast
        value = Cast(Cast(value, source.dtype.compute), source.dtype)
    copy = Statement(name, name, dims, index, value, span=source.span)
    cached = Tensor(name, source.dtype, source.shape, Role.TEMP, source.span, exact=True)

    def redirect(e: Expr) -> Expr:
        return replace(e, tensor=name) if isinstance(e, Read) and e.tensor == tensor else e

    statements = tuple(
        replace(
            s,
            expr=map_expr(s.expr, redirect),
            write=tuple(map_index(i, lambda x: map_expr(x, redirect), None) for i in s.write),
        )
        for s in graph.statements
    )
    return replace(graph, tensors=(*graph.tensors, cached), statements=(copy, *statements))


def inlinable(graph: TensorGraph, tensor: str) -> Statement | None:
    """The one statement that defines a temporary so simply that reads can be replaced by it.

    Its left side must be its dims in order (so that a read's indices say what the dims are), and no
    reader may index it by data unless the dims are used plainly.
    """
    t = graph.tensor(tensor)
    writers = graph.writers(tensor)
    if t.role is not Role.TEMP or t.exact or len(writers) != 1:
        return None
    (s,) = writers
    if s.reduction or s.write != tuple(IVar(d.name) for d in s.dims):
        return None
    if any(r.tensor == tensor for r in reads(s.expr)):
        return None
    for reader in graph.readers(tensor):
        if reader.accumulate and any(
            r.tensor == tensor for i in reader.write if isinstance(i, EXPR_TYPES) for r in reads(i)
        ):
            return None
        for r in reads(reader.expr):
            if r.tensor == tensor and any(isinstance(i, EXPR_TYPES) for i in r.indices):
                return None
    return s


def inline(graph: TensorGraph, tensor: str) -> TensorGraph:
    """Rematerialise: every reader recomputes the element instead of loading it.

        c[t, h] = x[t, h] - mu[t];  y[t, h] = c[t, h] * r[t]
    becomes
        y[t, h] = (x[t, h] - mu[t]) * r[t]
    """
    producer = inlinable(graph, tensor)
    assert producer is not None

    def expand(e: Expr) -> Expr:
        if not (isinstance(e, Read) and e.tensor == tensor):
            return e
        env: dict[str, IndexExpr] = {}
        for d, i in zip(producer.dims, e.indices, strict=True):
            assert not isinstance(i, EXPR_TYPES)
            env[d.name] = i
        return map_expr(producer.expr, lambda x: x, lambda i: substitute(i, env))

    statements = tuple(
        replace(s, expr=map_expr(s.expr, expand)) for s in graph.statements if s is not producer
    )
    return replace(graph, statements=statements, tensors=tuple(t for t in graph.tensors if t.name != tensor))
