"""A linear recurrence in chunks that run at once, where the caller allows it (`Options(scan="parallel")`).

    h[b, t] = a[b, t] * h[b, t - 1] + u[b, t]                    for t in 1..T, from h[b, 0] on
becomes, for chunks of C steps,
    h__factor[b, k, i] = a[..] * h__factor[b, k, i - 1]          the product of a chunk's factors
    h__local[b, k, i] = a[..] * h__local[b, k, i - 1] + u[..]    a chunk that begins with 0
    h__start[b, k] = h__factors[b, k - 1] * h__start[b, k - 1] + h__locals[b, k - 1]      their last ones
    h__scan[b, k, i] = a[..] * h__scan[b, k, i - 1] + u[..]      which begins with h__start[b, k]
    h[b, t] = h__scan[b, (t - 1) // C, (t - 1) % C]

Steps are those of the text, but for where chunks begin: there a state of f32 comes from factors, local totals
and starts in f64, which rounds no more than the steps do.  Products of f64 have no wider type, in which none
overflows that the state does not: these recurrences keep their order, as do those that are not linear.

Where the state is 0 the product of factors, which may be infinite, has no part in it.  Where that product is
too small for f64, an infinite state keeps its sign (`h__sign`), as it does step by step.  What may differ is
what follows a factor that is infinite, or a state that is too large for f32 only between two starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from polyfuse.ir.dtypes import BOOL, F32, F64, DType
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar
from polyfuse.ir.linear import linear
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Const,
    Expr,
    IterDim,
    Purpose,
    Read,
    Select,
    Statement,
    TensorGraph,
    map_expr,
    reads,
    statement_reads,
)
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.graph.scans.statements import (
    Rewrite,
    cast,
    collected,
    inside_chunk,
    substituted,
    value_of,
)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A statement ``h[.., t] = factor * h[.., t - by] + term``: `before` is the read of the state; a factor
    of None is 1, a term of None is 0."""

    statement: Statement
    over: IterDim
    by: int
    before: Read
    factor: Expr | None
    term: Expr | None

    @property
    def count(self) -> int:
        return max(0, value_of(self.over.upper) - value_of(self.over.lower))

    @property
    def begin(self) -> int:
        """Where the first step is."""
        return value_of(self.over.lower) if self.by > 0 else value_of(self.over.upper) - 1


def recurrences(graph: TensorGraph) -> Iterator[Recurrence | tuple[Statement, str]]:
    """The linear recurrences of a graph, and reasons why others are not in chunks."""
    for s in graph.statements:
        own = [r for r in statement_reads(s) if r.tensor == s.target]
        if own and not s.accumulate:
            found = _recurrence(graph, s, own)
            yield (s, found) if isinstance(found, str) else found


def _recurrence(graph: TensorGraph, s: Statement, own: list[Read]) -> Recurrence | str:
    if s.reduction is not None or not all(isinstance(i, IVar) for i in s.write):
        return "a step is more than a term for each element"
    if any(not isinstance(e, IConst) for d in s.dims for e in (d.lower, d.upper)):
        return "its steps are no rectangle"
    if any(r.indices != own[0].indices for r in own):
        return "a step reads more than one of those before"
    moved = [
        (w.name, linear(w - r))
        for w, r in zip(s.write, own[0].indices, strict=True)
        if isinstance(w, IVar) and not isinstance(r, EXPR_TYPES) and w != r
    ]
    if len(moved) != 1 or moved[0][1].terms or abs(moved[0][1].constant) != 1:
        return "a step reads no neighbour along one axis"
    if any(isinstance(i, EXPR_TYPES) for i in own[0].indices):
        return "a step reads no neighbour along one axis"
    if _feeds(graph, s):
        return "other tensors take part in a step"
    parts = _linear_parts(s.expr, own[0])
    if parts is None or own[0].dtype != s.expr.dtype:
        return "it is not linear in the state before"
    if parts[0] is None and s.expr.dtype.is_bool:
        return "it is not linear in the state before"
    over = next(d for d in s.dims if d.name == moved[0][0])
    factor, term = parts
    return Recurrence(s, over, moved[0][1].constant, own[0], factor, term)


def _feeds(graph: TensorGraph, s: Statement) -> bool:
    """Does anything that the statement reads, but itself, depend on what it writes?"""
    waiting = [r.tensor for r in statement_reads(s) if r.tensor != s.target]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name == s.target:
            return True
        if name not in seen:
            seen.add(name)
            waiting += [r.tensor for w in graph.statements if w.target == name for r in statement_reads(w)]
    return False


# --- factor and term --------------------------------------------------------------------------------------

_Parts: TypeAlias = tuple[Expr | None, Expr | None]


def _linear_parts(e: Expr, state: Read) -> _Parts | None:
    """The expression as ``factor * state + term``."""
    match e:
        case Read() if e == state:
            return None, None
        case Apply("add", (left, right)):
            return _added(left, right, state)
        case Apply("sub", (left, right), dtype, span):
            negative = Apply("neg", (right,), dtype, span)
            return _added(left, negative, state)
        case Apply("neg", (arg,)):
            return _scaled(arg, _number(-1, e), state)
        case Apply("mul", (left, right)):
            inside, by = (left, right) if _has(left, state) else (right, left)
            return None if _has(by, state) else _scaled(inside, by, state)
        case Select(cond) if not _has(cond, state):
            return _chosen(e, state)
        case _:
            return None


def _has(e: Expr, state: Read) -> bool:
    return any(r.tensor == state.tensor for r in reads(e))


def _number(value: int, like: Expr) -> Const:
    return Const(float(value) if like.dtype.is_float else value, like.dtype, like.span)


def _added(left: Expr, right: Expr, state: Read) -> _Parts | None:
    if _has(left, state) == _has(right, state):
        return None
    inside, outside = (left, right) if _has(left, state) else (right, left)
    parts = _linear_parts(inside, state)
    if parts is None:
        return None
    factor, term = parts
    return factor, outside if term is None else Apply("add", (term, outside), outside.dtype, outside.span)


def _scaled(inside: Expr, by: Expr, state: Read) -> _Parts | None:
    parts = _linear_parts(inside, state)
    if parts is None:
        return None
    factor, term = (None if x is None else Apply("mul", (x, by), by.dtype, by.span) for x in parts)
    return factor or by, term


def _chosen(e: Select, state: Read) -> _Parts | None:
    """Either side; one without the state has a factor of 0."""
    one, zero = _number(1, e), _number(0, e)
    sides: list[tuple[Expr, Expr]] = []
    for side in (e.then, e.other):
        parts = _linear_parts(side, state) if _has(side, state) else (zero, side)
        if parts is None:
            return None
        sides.append((parts[0] or one, parts[1] or zero))
    factors, terms = zip(*sides, strict=True)
    return replace(e, then=factors[0], other=factors[1]), replace(e, then=terms[0], other=terms[1])


# --- the state before the first step ----------------------------------------------------------------------


def start_of(graph: TensorGraph, r: Recurrence) -> Expr | None:
    """The state before the first step, by the statement that defines it; None if that is not a single plain
    one."""
    s, place = r.statement, r.begin - r.by
    axis = next(k for k, i in enumerate(s.write) if i == IVar(r.over.name))
    extent = graph.tensor(s.target).shape[axis]
    if not 0 <= place < value_of(extent):
        return _number(0, s.expr)  # a guard leaves it out
    found = [
        e for w in graph.statements if w is not s and w.target == s.target if (e := _at(w, r, axis, place))
    ]
    return found[0] if len(found) == 1 else None


def _at(w: Statement, r: Recurrence, axis: int, place: int) -> Expr | None:
    """What a statement defines at a place of the axis that the recurrence goes along, for all its rows."""
    s = r.statement
    if w.accumulate or w.reduction is not None or any(x.tensor == s.target for x in statement_reads(w)):
        return None
    ranges = {d.name: (d.lower, d.upper) for d in w.dims}
    rows = {d.name: (d.lower, d.upper) for d in s.dims}
    env: dict[str, IndexExpr] = {}
    for k, (theirs, ours) in enumerate(zip(w.write, s.write, strict=True)):
        if k == axis:
            if isinstance(theirs, IVar) and _within(ranges[theirs.name], place):
                env[theirs.name] = IConst(place)
            elif theirs != IConst(place):
                return None
        elif isinstance(theirs, IVar) and isinstance(ours, IVar) and ranges[theirs.name] == rows[ours.name]:
            env[theirs.name] = ours
        else:
            return None
    return map_expr(w.expr, lambda x: x, lambda i: substituted(i, env)) if len(env) == len(w.dims) else None


def _within(ends: tuple[IndexExpr, IndexExpr], place: int) -> bool:
    low, high = ends
    return isinstance(low, IConst) and isinstance(high, IConst) and low.value <= place < high.value


# --- statements -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Chunks(Rewrite):
    """The statements of a linear recurrence in chunks; `start` is the state before its first step."""

    recurrence: Recurrence
    chunk: int
    start: Expr
    k: IVar = field(init=False)
    i: IVar = field(init=False)

    def __post_init__(self) -> None:
        self.k, self.i = (IVar(fresh_name(self.made.graph, n)) for n in ("k", "i"))

    @property
    def count(self) -> int:
        """Of chunks."""
        return -(-self.recurrence.count // self.chunk)

    @property
    def wide(self) -> DType:
        """The type of products and local totals."""
        return F64 if self.dtype is F32 else self.dtype

    def write(self) -> None:
        """All of them."""
        r, k, i = self.recurrence, self.k, self.i
        starts = self._starts()
        every = IterDim(k.name, IConst(0), IConst(self.count))
        inside = IterDim(i.name, IConst(0), inside_chunk(k, self.chunk, r.count))
        scan = self.tensor("scan", self.dtype, every.upper, IConst(self.chunk))
        first = self._step(self.read(starts, k), IConst(0))
        self.made.add(scan, self.dims(every), self.place(k, IConst(0)), first)
        later = self.dims(every, replace(inside, lower=IConst(1)))
        step = self._step(self.read(scan, k, i - 1), i)
        self.made.add(scan, later, self.place(k, i), step, purpose=Purpose.SCAN)
        self.finish(self.dims(every, inside), self.read(scan, k, i), self._place(i))

    def _starts(self) -> str:
        """The tensor of states before each chunk."""
        k, wide = self.k, self.wide
        every = IterDim(k.name, IConst(0), IConst(self.count))
        factor = self.recurrence.factor and self._stepwise("factor", None)
        local = self._stepwise("local", self.recurrence.term or _number(0, self.source.expr))
        signs = self._signs() if factor and wide.is_float else None
        starts = self.tensor("start", self.dtype, every.upper)
        self.made.add(starts, self.rows, self.place(IConst(0)), self.start)
        part = state = cast(self.read(starts, k - 1), wide)
        if factor:
            part = self._apply("mul", self.read(factor, k - 1), state)
        if factor and signs:
            part = self._kept(self.read(factor, k - 1), self.read(signs, k - 1), state)
        value = cast(self._apply("add", part, self.read(local, k - 1)), self.dtype)
        later = self.dims(replace(every, lower=IConst(1)))
        self.made.add(starts, later, self.place(k), value, purpose=Purpose.SCAN)
        return starts

    def _stepwise(self, wish: str, term: Expr | None) -> str:
        """The tensor of what chunks end with. They begin with the factor, or where there is a term with a
        state of 0."""
        k, i, wide = self.k, self.i, self.wide
        whole = IterDim(k.name, IConst(0), IConst(self.count - 1))
        within = IterDim(i.name, IConst(1), IConst(self.chunk))
        made = self.tensor(wish, wide, IConst(self.count), IConst(self.chunk))
        zero = _number(0, Const(0, wide))
        first = self._next(None if term is None else zero, term, IConst(0))
        self.made.add(made, self.dims(whole), self.place(k, IConst(0)), first)
        step = self._next(self.read(made, k, i - 1), term, i)
        self.made.add(made, self.dims(whole, within), self.place(k, i), step, purpose=Purpose.SCAN)
        ends = self.tensor(f"{wish}s", wide, IConst(self.count))
        self.made.add(ends, self.dims(whole), self.place(k), self.read(made, k, IConst(self.chunk - 1)))
        return ends

    def _next(self, before: Expr | None, term: Expr | None, within: IndexExpr) -> Expr:
        """``factor * before + term``; without what is None."""
        parts = [before] if before else []
        if self.recurrence.factor:
            parts.append(cast(self._moved(self.recurrence.factor, within), self.wide))
        value = parts[0] if len(parts) == 1 else self._apply("mul", *parts)
        return (
            value if term is None else self._apply("add", value, cast(self._moved(term, within), self.wide))
        )

    def _signs(self) -> str:
        """The tensor of the signs of all factors of a chunk together: 0 if one is 0."""
        k, i, wide = self.k, self.i, self.wide
        assert self.recurrence.factor is not None
        factor = cast(self._moved(self.recurrence.factor, i), wide)
        one, zero, less = (_number(v, factor) for v in (1, 0, -1))
        sign = Select(self._test("lt", factor, zero), less, one, wide)
        sign = Select(self._test("eq", factor, zero), zero, sign, wide)
        made = self.tensor("sign", wide, IConst(self.count))
        whole = IterDim(k.name, IConst(0), IConst(self.count - 1))
        over = IterDim(i.name, IConst(0), IConst(self.chunk), True)
        self.made.add(made, (*self.dims(whole), over), self.place(k), sign, "prod")
        return made

    def _kept(self, factor: Expr, sign: Expr, state: Expr) -> Expr:
        """``factor * state``, without a product that overflowed where the state is 0, and with the sign of an
        infinite state where the product is too small."""
        zero = _number(0, state)
        finite = self._test("lt", Apply("abs", (state,), state.dtype), Const(float("inf"), state.dtype))
        small = Select(finite, zero, self._apply("mul", sign, state), state.dtype)
        product = self._apply("mul", factor, state)
        product = Select(self._test("eq", factor, zero), small, product, state.dtype)
        return Select(self._test("eq", state, zero), zero, product, state.dtype)

    def _step(self, before: Expr, within: IndexExpr) -> Expr:
        """A step as it is written, with another state before it."""
        state = self._moved(self.recurrence.before, within)
        return map_expr(self._moved(self.source.expr, within), lambda x: before if x == state else x)

    def _moved(self, e: Expr, within: IndexExpr) -> Expr:
        """What the text says of a step, at a place of a chunk."""
        env = {self.recurrence.over.name: self._place(within)}
        return map_expr(e, lambda x: x, lambda index: substituted(index, env))

    def _place(self, within: IndexExpr) -> IndexExpr:
        r = self.recurrence
        return collected(r.begin + r.by * (self.k * self.chunk + within))

    def _apply(self, op: str, *args: Expr) -> Expr:
        return Apply(op, args, args[0].dtype, self.source.span)

    def _test(self, op: str, *args: Expr) -> Expr:
        return Apply(op, args, BOOL, self.source.span)
