"""Graph-level rewrites of layer I: each keeps the meaning of the graph and records why it was done."""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, substitute
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
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
    every = tuple(IVar(d.name) for d in s.dims)
    kept = tuple(IVar(d.name) for d in outer)
    dtype = s.expr.dtype
    value_name, best_name = f"{s.name}__value", f"{s.name}__best"
    shape = _extents(s.dims)
    value = Read(value_name, every, dtype, s.span)
    best = Read(best_name, kept, dtype, s.span)
    found: Expr = Apply("eq", (value, best), BOOL, s.span)
    if dtype.is_float:
        found = Apply("or", (found, Apply("isnan", (value,), BOOL, s.span)), BOOL, s.span)
    here = Select(found, IndexValue(IVar(over.name), I64), Const(LARGEST, I64), I64, s.span)
    plain_dims = tuple(replace(d, reduce=False) for d in s.dims)
    return [
        Statement(value_name, value_name, plain_dims, every, s.expr, span=s.span),
        Statement(
            best_name, best_name, s.dims, kept, value, s.reduction[3:] if s.reduction else None, span=s.span
        ),
        replace(s, expr=here, reduction="min"),
    ], [
        Tensor(value_name, dtype, shape, Role.TEMP, s.span, exact=True),
        Tensor(best_name, dtype, _extents(outer), Role.TEMP, s.span, exact=True),
    ]


def _extents(dims: tuple[IterDim, ...]) -> tuple[IndexExpr, ...]:
    """An extent for each dim that holds all its indices; bounds that use outer dims take their largest."""
    largest: dict[str, IndexExpr] = {}
    extents = []
    for d in dims:
        extents.append(substitute(d.upper, largest))
        largest[d.name] = extents[-1] - 1
    return tuple(extents)


def cache_read(graph: TensorGraph, tensor: str) -> TensorGraph:
    """Read an input once into a temporary that its readers share.

        s[t] = sum[h](x[t, h]);  y[t, h] = x[t, h] - s[t]
    becomes
        x__cache[t, h] = x[t, h];  s[t] = sum[h](x__cache[t, h]);  y[t, h] = x__cache[t, h] - s[t]

    The temporary ends up in a register or in a row buffer, where contraction puts it.
    """
    source = graph.tensor(tensor)
    name = f"{tensor}__cache"
    dims = tuple(IterDim(f"d{k}", IConst(0), e) for k, e in enumerate(source.shape))
    index = tuple(IVar(d.name) for d in dims)
    copy = Statement(name, name, dims, index, Read(tensor, index, source.dtype), span=source.span)
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
