"""A reduction over a growing range is a recurrence: O(n) in place of O(n^2).

    c[b, t] = sum[s in 0..t + 1](x[b, s])           for t in 0..T
becomes
    c__scan[b, 0] = x[b, 0]
    c__scan[b, t] = c__scan[b, t - 1] + x[b, t]     for t in 1..T
    c[b, t] = c__scan[b, t]                         for t in 0..T

and, where there are few rows for many workers, chunks of each row and their prefix:

    c__total[b, k] = sum[i in 0..C](x[b, C*k + i])
    c__before[b, k] = c__before[b, k - 1] + c__total[b, k - 1]
    c__scan[b, k, i] = c__scan[b, k, i - 1] + x[b, C*k + i], which begins with c__before[b, k]
    c[b, t] = c__scan[b, t // C, t % C]

What a step adds is a term, or a reduction over the terms that are new (steps other than 1, further dims, ends
that stop at a bound).  Nothing is subtracted or divided out, and no term is left out: infinities and NaN are
those of the reduction.  Sums and products of f32 over many steps are kept in f64, since each step rounds;
sums of f64 are cut into chunks.  A product is not cut: that of a chunk may overflow where the running product
does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from polyfuse.ir.dtypes import F32, F64, DType
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.linear import Linear, linear, simplify
from polyfuse.ir.ops import COMBINES
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IterDim,
    Purpose,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
)
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.graph.scans.ranges import Moving, ranges_of

# Steps of a sum in single precision, one after the other, that make it long: as in
# `codegen.transforms.wide_accumulators`.
LONG = 512
# Of one in double precision, which has no wider type.
LONG_DOUBLE = 4096


@dataclass(slots=True)
class Made:
    """What takes the place of a statement; names are free in the graph and among these."""

    graph: TensorGraph
    source: Statement
    tensors: list[Tensor] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)

    def tensor(self, wish: str, dtype: DType, shape: tuple[IndexExpr, ...]) -> str:
        name = fresh_name(self.result(), wish)
        self.tensors.append(Tensor(name, dtype, shape, Role.TEMP, self.source.span))
        return name

    def add(
        self,
        target: str,
        dims: tuple[IterDim, ...],
        write: tuple[Index, ...],
        expr: Expr,
        reduction: str | None = None,
        *,
        purpose: Purpose = Purpose.VALUE,
        name: str = "",
    ) -> None:
        """A statement, if it has instances."""
        if any(_is_empty(d) for d in dims if not d.reduce):
            return
        wish = name or target
        taken = {s.name for s in (*self.graph.statements, *self.statements) if s is not self.source}
        while wish in taken or (wish == self.source.name and not name):
            wish += "_"
        s = Statement(wish, target, dims, write, expr, reduction, span=self.source.span, purpose=purpose)
        self.statements.append(s)

    def result(self) -> TensorGraph:
        """The graph with these in place of the statement."""
        at = self.graph.statements.index(self.source)
        statements = (*self.graph.statements[:at], *self.statements, *self.graph.statements[at + 1 :])
        return replace(self.graph, tensors=(*self.graph.tensors, *self.tensors), statements=statements)


def _is_empty(d: IterDim) -> bool:
    return isinstance(d.lower, IConst) and isinstance(d.upper, IConst) and d.lower.value >= d.upper.value


# --- the terms of a step ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Steps:
    """A growing range as a sequence of steps: one at each value of `over`, in order or backward, adds the terms
    of `new`, whose bounds move with it. `first` is what is there before; None where that is nothing.
    """

    moving: Moving
    first: IterDim | None
    over: IterDim
    new: IterDim

    @property
    def sign(self) -> int:
        return 1 if self.moving.forward else -1

    @property
    def count(self) -> int:
        return max(0, _value(self.over.upper) - _value(self.over.lower))

    @property
    def begin(self) -> int:
        """Where the first step is."""
        return _value(self.over.lower) if self.sign > 0 else _value(self.over.upper) - 1


def _value(e: IndexExpr) -> int:
    assert isinstance(e, IConst)
    return e.value


def steps_of(m: Moving) -> Steps:
    """The steps of a range that grows."""
    t, d = m.over, m.along
    low, high = _value(t.lower), _value(t.upper)
    sign = 1 if m.forward else -1
    begin = low if sign > 0 else high - 1
    ranges = ranges_of(tuple(x for x in m.outer if x != t))
    # The end before the step.
    before = {t.name: IVar(t.name) - sign}
    lower = binary("max", d.lower, substitute(d.upper, before)) if m.high else d.lower
    upper = d.upper if m.high else binary("min", d.upper, substitute(d.lower, before))
    added = replace(d, lower=lower, upper=upper)

    def over(first: int, last: int) -> Steps:
        """With steps from one value of the outer dim to another."""
        known = {**ranges, t.name: (first, max(first, last))}
        new = with_bounds(added, lambda e: collected(simplify(e, known)))
        return Steps(m, None, replace(t, lower=IConst(first), upper=IConst(last + 1)), new)

    def at_begin(x: IterDim) -> IterDim:
        return with_bounds(x, lambda e: collected(simplify(substitute(e, {t.name: IConst(begin)}), ranges)))

    every = over(low, high - 1)
    if at_begin(every.new) == at_begin(d):
        return every
    later = over(low + 1, high - 1) if sign > 0 else over(low, high - 2)
    return replace(later, first=at_begin(d))


def with_bounds(d: IterDim, change: Callable[[IndexExpr], IndexExpr]) -> IterDim:
    return replace(d, lower=change(d.lower), upper=change(d.upper))


def collected(e: IndexExpr) -> IndexExpr:
    """An equal bound with like terms collected."""
    match e:
        case IBin("min" | "max" as op, left, right):
            return binary(op, collected(left), collected(right))
        case _:
            return linear(e).expr()


# --- statements -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Scan:
    """Writes the statements of one scan. `terms` is the tensor of what steps add, once there is one."""

    made: Made
    steps: Steps
    terms: str = ""

    @property
    def source(self) -> Statement:
        return self.steps.moving.statement

    @property
    def rows(self) -> tuple[IterDim, ...]:
        """The outer dims but that along which the range grows."""
        return tuple(d for d in self.steps.moving.outer if d != self.steps.moving.over)

    def dims(self, *along: IterDim) -> tuple[IterDim, ...]:
        """The outer dims, with others in the place of that along which the range grows."""
        m = self.steps.moving
        return tuple(x for d in m.outer for x in (along if d == m.over else (d,)))

    def place(self, *along: IndexExpr) -> tuple[IndexExpr, ...]:
        """Where an element is in a tensor of this scan."""
        m = self.steps.moving
        return tuple(x for d in m.outer for x in (along if d == m.over else (IVar(d.name),)))

    def tensor(self, wish: str, dtype: DType, *along: IndexExpr) -> str:
        """A tensor of this scan, with other axes in the place of that along which the range grows."""
        m = self.steps.moving
        shape = tuple(x for d in m.outer for x in (along if d == m.over else (d.upper,)))
        return self.made.tensor(f"{self.source.name}__{wish}", dtype, shape)

    @property
    def reduction(self) -> str:
        assert self.source.reduction is not None
        return self.source.reduction

    @property
    def dtype(self) -> DType:
        return self.source.expr.dtype

    def accumulator(self, steps: int) -> DType:
        """The type of a total that so many steps add to."""
        rounds = self.reduction in ("sum", "prod") and self.dtype is F32
        return F64 if rounds and steps > LONG else self.dtype

    def combined(self, left: Expr, right: Expr) -> Expr:
        return Apply(COMBINES[self.reduction], (left, _cast(right, left.dtype)), left.dtype, self.source.span)

    def read(self, tensor: str, *at: IndexExpr) -> Read:
        dtype = next(t.dtype for t in self.made.tensors if t.name == tensor)
        return Read(tensor, self.place(*at), dtype, self.source.span)

    def over_range(self, d: IterDim) -> Expr | None:
        """The reduction over a range of one term, or of none, as an expression."""
        length = linear(d.upper - d.lower)
        if not length.terms and length.constant <= 0:
            return Const(identity(self.reduction, self.dtype), self.dtype, self.source.span)
        dims, expr = self.terms_of(d)
        return None if dims else expr

    def terms_of(self, d: IterDim) -> tuple[tuple[IterDim, ...], Expr]:
        """The dims of a reduction over a range, without those that have one value, and its terms."""
        along = self.steps.moving.along
        left: list[IterDim] = []
        env: dict[str, IndexExpr] = {}
        for x in (d if x == along else x for x in self.source.dims if x.reduce):
            x = with_bounds(x, lambda e: _substituted(e, env))
            if linear(x.upper - x.lower) == Linear((), 1):
                env[x.name] = x.lower
            else:
                left.append(x)
        return tuple(left), map_expr(self.source.expr, lambda e: e, lambda i: _substituted(i, env))

    def reduced(self, target: str, dims: tuple[IterDim, ...], write: tuple[Index, ...], d: IterDim) -> None:
        """A tensor of reductions over a range."""
        over, terms = self.terms_of(d)
        self.made.add(target, (*dims, *over), write, terms, self.reduction if over else None)

    def first(self) -> Expr:
        """What is there before the first step."""
        d = self.steps.first
        if d is None:
            return Const(identity(self.reduction, self.dtype), self.dtype, self.source.span)
        found = self.over_range(d)
        if found is None:
            name = self.tensor("first", self.dtype)
            self.reduced(name, self.rows, self.place(), d)
            found = self.read(name)
        return found

    def term(self, at: IndexExpr) -> Expr:
        """What the step adds where the outer dim is `at`, an expression of dims of the statement that asks."""
        over = self.steps.over
        env = {over.name: at}
        found = self.over_range(with_bounds(self.steps.new, lambda e: collected(substitute(e, env))))
        if found is not None:
            return found
        if not self.terms:
            self.terms = self.tensor("terms", self.dtype, over.upper)
            self.reduced(self.terms, self.dims(over), self.place(IVar(over.name)), self.steps.new)
        return self.read(self.terms, at)

    def finish(self, dims: tuple[IterDim, ...], value: Expr, at: IndexExpr | None = None) -> None:
        """The statement itself, of results that are there; of those at one value of the outer dim."""
        write = self.source.write
        if at is not None:
            env = {self.steps.over.name: at}
            write = tuple(i if isinstance(i, EXPR_TYPES) else _substituted(i, env) for i in write)
        self.made.add(self.source.target, dims, write, _cast(value, self.dtype), name=self.source.name)

    # --- both forms ---

    def in_order(self) -> None:
        """One step after the other."""
        steps, over = self.steps, self.steps.moving.over
        dtype = self.accumulator(steps.count)
        total = self.tensor("scan", dtype, over.upper)
        rest, begin = steps.over, steps.begin - steps.sign
        if steps.first is None:
            begin, rest = steps.begin, _without(rest, steps.begin)
            value = self.term(IConst(begin))
        else:
            value = self.first()
        self.made.add(total, self.rows, self.place(IConst(begin)), _cast(value, dtype))
        t = IVar(over.name)
        step = self.combined(self.read(total, t - steps.sign), self.term(t))
        self.made.add(total, self.dims(rest), self.place(t), step, purpose=Purpose.SCAN)
        self.finish(steps.moving.outer, self.read(total, t))

    def in_chunks(self, chunk: int) -> None:
        """Totals of chunks, what is before each, and each from there on."""
        steps, chunks = self.steps, -(-self.steps.count // chunk)
        k, i = (IVar(fresh_name(self.made.graph, n)) for n in ("k", "i"))
        every = IterDim(k.name, IConst(0), IConst(chunks))
        inside = IterDim(i.name, IConst(0), _inside(k, chunk, steps.count))

        def term(within: IndexExpr) -> Expr:
            return self.term(collected(steps.begin + steps.sign * (k * chunk + within)))

        start = self.first()
        total = self.tensor("total", self.dtype, IConst(chunks))
        over = IterDim(i.name, IConst(0), IConst(chunk), True)
        whole = (*self.dims(replace(every, upper=IConst(chunks - 1))), over)
        self.made.add(total, whole, self.place(k), term(i), self.reduction)

        dtype = self.accumulator(chunks)
        before = self.tensor("before", dtype, IConst(chunks))
        self.made.add(before, self.rows, self.place(IConst(0)), _cast(start, dtype))
        step = self.combined(self.read(before, k - 1), self.read(total, k - 1))
        later = self.dims(replace(every, lower=IConst(1)))
        self.made.add(before, later, self.place(k), step, purpose=Purpose.SCAN)

        dtype = self.accumulator(chunk)
        scan = self.tensor("scan", dtype, IConst(chunks), IConst(chunk))
        value = self.combined(_cast(self.read(before, k), dtype), term(IConst(0)))
        self.made.add(scan, self.dims(every), self.place(k, IConst(0)), value)
        step = self.combined(self.read(scan, k, i - 1), term(i))
        later = self.dims(every, replace(inside, lower=IConst(1)))
        self.made.add(scan, later, self.place(k, i), step, purpose=Purpose.SCAN)

        if steps.first is not None:
            self.finish(self.rows, start, IConst(steps.begin - steps.sign))
        at = collected(steps.begin + steps.sign * (k * chunk + i))
        self.finish(self.dims(every, inside), self.read(scan, k, i), at)


def _inside(number: IndexExpr, chunk: int, count: int) -> IndexExpr:
    """The end of a chunk, counted from where it begins."""
    return IConst(chunk) if count % chunk == 0 else binary("min", chunk, count - number * chunk)


def _without(d: IterDim, value: int) -> IterDim:
    """A dim without its first or its last value."""
    if _value(d.lower) == value:
        return replace(d, lower=IConst(value + 1))
    return replace(d, upper=IConst(value))


def _cast(e: Expr, dtype: DType) -> Expr:
    return e if e.dtype is dtype else Cast(e, dtype, e.span)


def _substituted(i: IndexExpr, env: dict[str, IndexExpr]) -> IndexExpr:
    return linear(substitute(i, env)).expr() if set(variables(i)) & set(env) else i
