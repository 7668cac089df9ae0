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

from dataclasses import dataclass, field, replace

from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute
from polyfuse.ir.linear import simplify
from polyfuse.ir.tensor_graph import Const, Expr, IterDim, Purpose
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.graph.scans.ranges import Moving, ranges_of
from polyfuse.layers.graph.scans.statements import (
    Rewrite,
    cast,
    collected,
    inside_chunk,
    value_of,
    with_bounds,
)

# Steps of a sum in double precision that make it long, since there is no wider type.
LONG_DOUBLE = 4096


# --- the terms of a step ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Steps:
    """A growing range as a sequence of steps: one at each value of `over`, in order or backward, adds terms
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
        return max(0, value_of(self.over.upper) - value_of(self.over.lower))

    @property
    def begin(self) -> int:
        """Where the first step is."""
        return value_of(self.over.lower) if self.sign > 0 else value_of(self.over.upper) - 1


def steps_of(m: Moving) -> Steps:
    """The steps of a range that grows."""
    t, d = m.over, m.along
    low, high = value_of(t.lower), value_of(t.upper)
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


# --- statements -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Scan(Rewrite):
    """The statements of a range that grows. `terms` is the tensor of what steps add, once there is one."""

    steps: Steps = field(init=False)
    terms: str = ""

    def __post_init__(self) -> None:
        self.steps = steps_of(self.moving)

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
        """What the step adds where the outer dim is `at`, which has dims of the statement that asks."""
        over = self.steps.over
        env = {over.name: at}
        found = self.over_range(with_bounds(self.steps.new, lambda e: collected(substitute(e, env))))
        if found is not None:
            return found
        if not self.terms:
            self.terms = self.tensor("terms", self.dtype, over.upper)
            self.reduced(self.terms, self.dims(over), self.place(IVar(over.name)), self.steps.new)
        return self.read(self.terms, at)

    # --- both forms ---

    def in_order(self) -> None:
        """One step after the other."""
        steps, over = self.steps, self.moving.over
        dtype = self.accumulator(steps.count)
        total = self.tensor("scan", dtype, over.upper)
        rest, begin = steps.over, steps.begin - steps.sign
        if steps.first is None:
            begin, rest = steps.begin, _without(rest, steps.begin)
            value = self.term(IConst(begin))
        else:
            value = self.first()
        self.made.add(total, self.rows, self.place(IConst(begin)), cast(value, dtype))
        t = IVar(over.name)
        step = self.combined(self.read(total, t - steps.sign), self.term(t))
        self.made.add(total, self.dims(rest), self.place(t), step, purpose=Purpose.SCAN)
        self.finish(self.moving.outer, self.read(total, t))

    def in_chunks(self, chunk: int) -> None:
        """Totals of chunks, what is before each, and each from there on."""
        steps, chunks = self.steps, -(-self.steps.count // chunk)
        k, i = (IVar(fresh_name(self.made.graph, n)) for n in ("k", "i"))
        every = IterDim(k.name, IConst(0), IConst(chunks))
        inside = IterDim(i.name, IConst(0), inside_chunk(k, chunk, steps.count))

        def term(within: IndexExpr) -> Expr:
            return self.term(collected(steps.begin + steps.sign * (k * chunk + within)))

        start = self.first()
        total = self.tensor("total", self.dtype, IConst(chunks))
        over = IterDim(i.name, IConst(0), IConst(chunk), True)
        whole = (*self.dims(replace(every, upper=IConst(chunks - 1))), over)
        self.made.add(total, whole, self.place(k), term(i), self.reduction)

        dtype = self.accumulator(chunks)
        before = self.tensor("before", dtype, IConst(chunks))
        self.made.add(before, self.rows, self.place(IConst(0)), cast(start, dtype))
        step = self.combined(self.read(before, k - 1), self.read(total, k - 1))
        later = self.dims(replace(every, lower=IConst(1)))
        self.made.add(before, later, self.place(k), step, purpose=Purpose.SCAN)

        dtype = self.accumulator(chunk)
        scan = self.tensor("scan", dtype, IConst(chunks), IConst(chunk))
        value = self.combined(cast(self.read(before, k), dtype), term(IConst(0)))
        self.made.add(scan, self.dims(every), self.place(k, IConst(0)), value)
        step = self.combined(self.read(scan, k, i - 1), term(i))
        later = self.dims(every, replace(inside, lower=IConst(1)))
        self.made.add(scan, later, self.place(k, i), step, purpose=Purpose.SCAN)

        if steps.first is not None:
            self.finish(self.rows, start, IConst(steps.begin - steps.sign))
        at = collected(steps.begin + steps.sign * (k * chunk + i))
        self.finish(self.dims(every, inside), self.read(scan, k, i), at)


def _without(d: IterDim, value: int) -> IterDim:
    """A dim without its first or its last value."""
    if value_of(d.lower) == value:
        return replace(d, lower=IConst(value + 1))
    return replace(d, upper=IConst(value))
