"""Graph-level rewrites of layer I: each keeps the meaning of the graph and records why it was done."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyfuse.ir.dtypes import BOOL, I32, I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, substitute, variables
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

LARGEST, LARGEST_SHORT = 2**63 - 1, 2**31 - 1


def decompose_argmax(graph: TensorGraph) -> TensorGraph:
    """argmax/argmin as two plain reductions.

        a[t] = argmax[h](e)
    becomes
        v[t, h] = e                                  (kept in storage: both uses must see the same bits)
        m[t]    = max[h](v[t, h])
        i[t]    = min[h](i32(h) if v[t, h] == m[t] or isnan(v[t, h]) else 2**31 - 1)
        a[t]    = i64(i[t])

    A NaN makes m a NaN, so that only NaNs are candidates: the first of them, as in NumPy.  An element that is
    never computed again is read in place of v.  The place is found in 32 bits where values have no more and
    it fits: vectors hold as many of both, and cores without AVX-512 have no minimum of 64 bits.
    """
    statements: list[Statement] = []
    tensors = {t.name: t for t in graph.tensors}
    for s in graph.statements:
        if s.reduction not in ("argmax", "argmin"):
            statements.append(s)
            continue
        new_statements, new_tensors = _argmax_parts(graph, s)
        statements += new_statements
        tensors |= {t.name: t for t in new_tensors}
    return replace(graph, statements=tuple(statements), tensors=tuple(tensors.values()))


def _argmax_parts(graph: TensorGraph, s: Statement) -> tuple[list[Statement], list[Tensor]]:
    """The parts, and the tensors that are new or to be stored."""
    (over,) = (d for d in s.dims if d.reduce)
    kept = tuple(d for d in s.dims if not d.reduce)
    stored, dtype, value = _Stored(graph, s), s.expr.dtype, s.expr
    source = _never_again(graph, value)
    if source is not None:
        stored.tensors.append(source)
    else:
        plain_dims = tuple(replace(d, reduce=False) for d in s.dims)
        value = stored.new("value", plain_dims, s.expr, None, as_read(plain_dims, s.expr))
    best = stored.new("best", s.dims, value, s.reduction[3:] if s.reduction else None, kept)
    found: Expr = Apply("eq", (value, best), BOOL, s.span)
    if dtype.is_float:
        found = Apply("or", (found, Apply("isnan", (value,), BOOL, s.span)), BOOL, s.span)
    narrow = dtype.bytes <= I32.bytes and _fits(_intervals(s.dims)[over.name])
    number, none = (I32, LARGEST_SHORT) if narrow else (I64, LARGEST)
    here = Select(found, IndexValue(IVar(over.name), number), Const(none, number), number, s.span)
    if narrow:
        at = stored.new("place", s.dims, here, "min", kept)
        last = replace(s, dims=kept, expr=Cast(at, I64, s.span), reduction=None)
    else:
        last = replace(s, expr=here, reduction="min")
    return [*stored.statements, last], stored.tensors


@dataclass(slots=True)
class _Stored:
    """What the parts of a statement keep in temporaries."""

    graph: TensorGraph
    s: Statement
    statements: list[Statement] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)

    def new(
        self, part: str, dims: tuple[IterDim, ...], e: Expr, reduction: str | None, kept: tuple[IterDim, ...]
    ) -> Read:
        """An element of a new temporary over the dims `kept`, in their order; storage starts at 0, wherever
        the ranges do."""
        name, ranges = fresh_name(self.graph, f"{self.s.name}__{part}"), _intervals(self.s.dims)
        lows = [ranges[d.name][0] for d in kept]
        starts = [IConst(0) if isinstance(low, IConst) and low.value >= 0 else low for low in lows]
        place = tuple(IVar(d.name) - start for d, start in zip(kept, starts, strict=True))
        shape = tuple(ranges[d.name][1] + 1 - start for d, start in zip(kept, starts, strict=True))
        self.statements.append(Statement(name, name, dims, place, e, reduction, span=self.s.span))
        self.tensors.append(Tensor(name, e.dtype, shape, Role.TEMP, self.s.span, exact=True))
        return Read(name, place, e.dtype, self.s.span)


def _never_again(graph: TensorGraph, e: Expr) -> Tensor | None:
    """The tensor of which an expression is an element, or a cast of one, if it has the same bits wherever it
    is read: an argument, a result, or a temporary of a reduction, which is stored from now on."""
    match e:
        case Cast(arg):
            return _never_again(graph, arg)
        case Read(tensor, indices) if not any(isinstance(i, EXPR_TYPES) for i in indices):
            source = graph.tensor(tensor)
            if source.role is not Role.TEMP:
                return source
            reduced = all(w.reduction for w in graph.writers(tensor))
            return replace(source, exact=True) if source.exact or reduced else None
        case _:
            return None


def as_read(dims: tuple[IterDim, ...], e: Expr) -> tuple[IterDim, ...]:
    """Dims in the order in which an element that depends on all of them lies in memory: loops that go along
    one tensor go along the other."""
    for r in reads(e):
        order = [v for i in r.indices if not isinstance(i, EXPR_TYPES) for v in variables(i)]
        if {d.name for d in dims} <= set(order):
            return tuple(sorted(dims, key=lambda d: order.index(d.name)))
    return dims


def _fits(span: tuple[IndexExpr, IndexExpr]) -> bool:
    """Are all numbers of a range known to be smaller than the largest of 32 bits?"""
    return all(isinstance(e, IConst) and -LARGEST_SHORT <= e.value < LARGEST_SHORT for e in span)


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
