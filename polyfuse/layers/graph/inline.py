"""Inlining: a definition takes the place of reads of its tensor.  Each rewrite keeps what a graph means.

`inline`               a temporary, where it is read
`inline_views`         pads, concatenations and slices become index maps
`inline_chosen`        elements that data choose are computed where they are chosen
`cache_read`           the other way: a copy of what is read
`decompose_argmax`     a maximum, and the first place that has it
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.dtypes import BOOL, I32, I64, DType
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    IterDim,
    Purpose,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    map_index,
    reads,
    statement_reads,
    walk,
)
from polyfuse.layers.graph.domains import split_index_sets
from polyfuse.layers.graph.names import fresh_name

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
    stored, dtype, value = Stored(graph, s), s.expr.dtype, s.expr
    source = never_again(graph, value)
    if source is not None:
        stored.tensors.append(source)
    else:
        plain_dims = tuple(replace(d, reduce=False) for d in s.dims)
        value = stored.new("value", plain_dims, s.expr, None, as_read(plain_dims, s.expr))
    best = stored.new("best", s.dims, value, s.reduction[3:] if s.reduction else None, kept)
    found: Expr = Apply("eq", (value, best), BOOL, s.span)
    if dtype.is_float:
        found = Apply("or", (found, Apply("isnan", (value,), BOOL, s.span)), BOOL, s.span)
    narrow = dtype.bytes <= I32.bytes and fits(intervals(s.dims)[over.name])
    number, none = (I32, LARGEST_SHORT) if narrow else (I64, LARGEST)
    here = Select(found, IndexValue(IVar(over.name), number), Const(none, number), number, s.span)
    if narrow:
        at = stored.new("place", s.dims, here, "min", kept)
        last = replace(s, dims=kept, expr=Cast(at, I64, s.span), reduction=None)
    else:
        last = replace(s, expr=here, reduction="min")
    return [*stored.statements, last], stored.tensors


@dataclass(slots=True)
class Stored:
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
        ranges = intervals(self.s.dims)
        lows = [ranges[d.name][0] for d in kept]
        starts = [IConst(0) if isinstance(low, IConst) and low.value >= 0 else low for low in lows]
        place = tuple(IVar(d.name) - start for d, start in zip(kept, starts, strict=True))
        shape = tuple(ranges[d.name][1] + 1 - start for d, start in zip(kept, starts, strict=True))
        name = self.tensor(part, e.dtype, shape)
        self.statements.append(Statement(name, name, dims, place, e, reduction, span=self.s.span))
        return Read(name, place, e.dtype, self.s.span)

    def tensor(self, part: str, dtype: DType, shape: tuple[IndexExpr, ...]) -> str:
        """A new temporary."""
        name = fresh_name(self.graph, f"{self.s.name}__{part}")
        self.tensors.append(Tensor(name, dtype, shape, Role.TEMP, self.s.span, exact=True))
        return name

    def statement(self, tensor: str) -> str:
        """A name for one of several statements that define a new temporary."""
        mine = sum(s.target == tensor for s in self.statements)
        return fresh_name(self.graph, f"{tensor}__{mine + 1}" if mine else tensor)


def never_again(graph: TensorGraph, e: Expr) -> Tensor | None:
    """The tensor of which an expression is an element, or a cast of one, if it has the same bits wherever it
    is read: an argument, a result, or a temporary of a reduction, which is stored from now on."""
    match e:
        case Cast(arg):
            return never_again(graph, arg)
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


def fits(span: tuple[IndexExpr, IndexExpr]) -> bool:
    """Are all numbers of a range known to be smaller than the largest of 32 bits?"""
    return all(isinstance(e, IConst) and -LARGEST_SHORT <= e.value < LARGEST_SHORT for e in span)


def intervals(dims: tuple[IterDim, ...]) -> dict[str, tuple[IndexExpr, IndexExpr]]:
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
    if s.purpose is Purpose.PART or s.reduction or s.write != tuple(IVar(d.name) for d in s.dims):
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


# --- views ------------------------------------------------------------------------------------------------

# Composition of views: pads, concatenations and slices become part of the index maps that read them.
#
#     c[i] = a[i] for i in 0..N;  c[i] = b[i - N] for i in N..N+M
#     y[i] = c[i + 1] * g[i]
# becomes
#     y[i] = (a[i + 1] if i + 1 < N else b[i + 1 - N]) * g[i]
#
# and `layers.graph.domains` turns the condition into bounds.  A tensor in pieces that is copied only to be
# read at other places is not stored any more.  It is done where every condition it brings can be turned into
# bounds, so that no inner loop is left with one.  (A padded convolution keeps its pad: a term ``0 * w`` may
# be a NaN, so it may not be left out.)


MOST_PIECES = 5


def inline_views(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """Replace reads of tensors in pieces by what the pieces read, where that leaves no conditions."""
    for t in graph.tensors:
        pieces = graph.writers(t.name)
        if t.role is not Role.TEMP or t.exact or not 2 <= len(pieces) <= MOST_PIECES:
            continue
        if not all(map(_is_view, pieces)) or not _plain_reads(graph, t.name):
            continue
        composed = _composed(graph, t.name, pieces)
        if _guards(split_index_sets(composed, [])) > _guards(split_index_sets(graph, [])):
            reason = "its pieces would leave conditions in the loops that read it"
            decisions.append(Decision("inline pieces", t.name, False, reason))
            continue
        decisions.append(Decision("inline pieces", t.name, True, f"{len(pieces)} pieces are read in place"))
        graph = composed
    return graph


def _is_view(s: Statement) -> bool:
    """A copy of at most one element of another tensor, at a place that its dims say."""
    copies = isinstance(s.expr, (Read, Const))
    plain = all(not isinstance(i, EXPR_TYPES) and (isinstance(i, IVar) or not variables(i)) for i in s.write)
    inner = isinstance(s.expr, Read) and any(isinstance(i, EXPR_TYPES) for i in s.expr.indices)
    return s.reduction is None and not s.accumulate and copies and plain and not inner


def _plain_reads(graph: TensorGraph, tensor: str) -> bool:
    """Is every read of a tensor at affine places, and by statements other than its pieces?"""
    for s in graph.readers(tensor):
        if s.target == tensor or any(isinstance(i, EXPR_TYPES) for i in s.write):
            return False
        for r in reads(s.expr):
            if r.tensor == tensor and any(isinstance(i, EXPR_TYPES) for i in r.indices):
                return False
    return bool(graph.readers(tensor))


def _composed(graph: TensorGraph, tensor: str, pieces: tuple[Statement, ...]) -> TensorGraph:
    def expand(e: Expr) -> Expr:
        if not (isinstance(e, Read) and e.tensor == tensor):
            return e
        # The pieces cover what is read (proved), so the last one needs no condition.
        *first, last = sorted(pieces, key=lambda p: isinstance(p.expr, Const))
        value = _at(last, e)[1]
        for piece in reversed(first):
            cond, inside = _at(piece, e)
            value = Select(cond, inside, value, e.dtype, e.span)
        return value

    statements = tuple(
        replace(s, expr=map_expr(s.expr, expand)) for s in graph.statements if s.target != tensor
    )
    return replace(graph, statements=statements, tensors=tuple(t for t in graph.tensors if t.name != tensor))


def _at(piece: Statement, read: Read) -> tuple[Expr, Expr]:
    """(is the element that is read in this piece?, its value there)."""
    env: dict[str, IndexExpr] = {}
    parts: list[Expr] = []
    for place, index in zip(piece.write, read.indices, strict=True):
        assert not isinstance(place, EXPR_TYPES) and not isinstance(index, EXPR_TYPES)
        if isinstance(place, IVar):
            env[place.name] = index
        else:
            parts.append(_compare("eq", index, place))
    for d in piece.dims:
        parts.append(_compare("ge", env[d.name], substitute(d.lower, env)))
        parts.append(_compare("lt", env[d.name], substitute(d.upper, env)))
    cond = parts[0]
    for p in parts[1:]:
        cond = Apply("and", (cond, p), BOOL)
    return cond, map_expr(piece.expr, lambda x: x, lambda i: substitute(i, env))


def _compare(op: str, left: IndexExpr, right: IndexExpr) -> Expr:
    return Apply(op, (IndexValue(left, I64), IndexValue(right, I64)), BOOL)


def _guards(graph: TensorGraph) -> int:
    """How many conditions on indices are left in the graph."""
    return sum(
        isinstance(e, Select) and any(isinstance(x, IndexValue) for x in walk(e.cond))
        for s in graph.statements
        for e in walk(s.expr)
    )


# --- elements that data choose ----------------------------------------------------------------------------

# Elements that data choose are computed where they are chosen, where they are few.
#
#     y[n, c] = x[n, c] - m[n] - log(s[n])
#     z[n] = y[n, label[n]]                        and nothing else reads y
# becomes
#     z[n] = x[n, label[n]] - m[n] - log(s[n])
#
# A row of y is as long as there are classes, and one of them is wanted; of a table that is scaled as it is
# read, a batch wants a few rows.  An index from data takes the place of a loop variable only where that is
# the whole index of tensors that are as long there, so that what is out of range ends at the same element.


# Elements that are computed in vectors where all are wanted: so many take as long as one that is alone.
LANES = 8


def inline_chosen(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """The graph with such elements in the statements that choose them."""
    for name in [s.name for s in reversed(graph.statements)]:
        s = graph.statement(name)  # as it is by now: it may compute what it read
        chosen = _chosen(graph, s)
        if chosen is not None:
            reader, read = chosen
            why = f"data choose what {reader.name} needs of it, no more than one of {LANES} elements"
            decisions.append(Decision("inline", s.target, True, why))
            graph = _without(graph, s, reader, read)
    return graph


def _chosen(graph: TensorGraph, s: Statement) -> tuple[Statement, Read] | None:
    """The statement that chooses elements of a temporary, and where, if that is to compute them."""
    t = graph.tensor(s.target)
    if t.role is not Role.TEMP or t.exact or len(graph.writers(s.target)) != 1 or s.reduction or s.accumulate:
        return None
    if s.write != tuple(IVar(d.name) for d in s.dims):
        return None
    found = [(x, r) for x in graph.statements for r in statement_reads(x) if r.tensor == s.target]
    if len(found) != 1 or found[0][0] is s or found[0][1] not in reads(found[0][0].expr):
        return None
    (reader, read), wanted, every = found[0], _count(found[0][0]), _count(s)
    if wanted is None or every is None or wanted * LANES > every:
        return None
    data = {d.name: t.shape[k] for k, d in enumerate(s.dims) if isinstance(read.indices[k], EXPR_TYPES)}
    return (reader, read) if data and _plain(graph, s.expr, data) else None


def _count(s: Statement) -> int | None:
    """How often a statement runs, if numbers say so."""
    bounds = [(d.lower, d.upper) for d in s.dims]
    known = [b.value - a.value for a, b in bounds if isinstance(a, IConst) and isinstance(b, IConst)]
    return prod(known) if len(known) == len(bounds) else None


def _plain(graph: TensorGraph, e: Expr, extents: dict[str, IndexExpr]) -> bool:
    """Is each of some variables the index of tensors of these extents, and nothing else?"""
    seen: set[str] = set()
    for x in walk(e):
        match x:
            case Read(tensor, indices):
                for i, extent in zip(indices, graph.tensor(tensor).shape, strict=True):
                    if isinstance(i, IVar) and i.name in extents:
                        seen.add(i.name)
                        if extents[i.name] != extent:
                            return False
                    elif not isinstance(i, EXPR_TYPES) and extents.keys() & set(variables(i)):
                        return False
            case IndexValue(index) if extents.keys() & set(variables(index)):
                return False
            case _:
                pass
    return seen == extents.keys()


def _without(graph: TensorGraph, s: Statement, reader: Statement, read: Read) -> TensorGraph:
    """The graph in which a statement computes what it read."""
    at = dict(zip((d.name for d in s.dims), read.indices, strict=True))
    value = _with_indices(s.expr, at)
    made = replace(reader, expr=map_expr(reader.expr, lambda e: value if e == read else e))
    statements = tuple(made if x is reader else x for x in graph.statements if x is not s)
    return replace(
        graph, statements=statements, tensors=tuple(t for t in graph.tensors if t.name != s.target)
    )


def _with_indices(e: Expr, at: dict[str, Index]) -> Expr:
    """An expression with indices in place of its variables."""
    plain = {v: i for v, i in at.items() if not isinstance(i, EXPR_TYPES)}

    def index(i: Index) -> Index:
        if isinstance(i, EXPR_TYPES):
            return i
        return at[i.name] if isinstance(i, IVar) and i.name in at else substitute(i, plain)

    def expr(x: Expr) -> Expr:
        match x:
            case Read(_, indices):
                return replace(x, indices=tuple(map(index, indices)))
            case IndexValue(i):
                return replace(x, index=substitute(i, plain))
            case _:
                return x

    return map_expr(e, expr)
