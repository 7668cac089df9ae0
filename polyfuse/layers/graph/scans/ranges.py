"""Reductions whose range moves with an index of their left side: which they are, and how it moves.

    c[t] = sum[s in 0..t + 1](x[s])                 grows at its end, by 1 with each t
    c[t] = max[s in 0..T](x[s] if s >= t else -inf) shrinks at its begin: it grows as t falls
    c[t] = sum[k in 0..t + 1](x[t - k])             is sum[s in -t..1](x[-s]): grows at its begin
    c[t] = max[k in 0..K](x[t + k])                 is max[s in t..t + K](x[s]): a window, both ends move

It is told by linear forms of bounds and indices, never by names.  Conditions:

- the term (reads, guards, index values) does not depend on t, or on t and s by multiples of one sum `s + b*t`
  alone, which is then what is counted;
- an end moves with t by a constant step; others that it is the minimum (maximum) with do not move at all;
- a guard whose other side is the neutral element is a bound;
- no range but this one depends on t, and t has constant bounds;
- there are results: without any there would be no statements of a scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.linear import Linear, Range, arms, conjuncts, interval, linear, simplify
from polyfuse.ir.ops import COMBINES
from polyfuse.ir.tensor_graph import (
    Apply,
    Const,
    Expr,
    IterDim,
    Select,
    Statement,
    depends_on,
    map_expr,
)
from polyfuse.layers.graph.domains import indices_of, restricted


@dataclass(frozen=True, slots=True)
class Moving:
    """A reduction whose dim `along` has a range that moves with the outer dim `over`.

    `statement` has its guards as bounds, and counts elements that do not depend on `over`.  `low` and `high`
    are the steps of the ends: 0 where one stays.
    """

    statement: Statement
    over: IterDim
    along: IterDim
    low: int
    high: int

    @property
    def grows(self) -> bool:
        """Does one end alone move?"""
        return (self.low == 0) != (self.high == 0)

    @property
    def forward(self) -> bool:
        """Does a range that grows do so as `over` rises?"""
        return self.high > 0 or self.low < 0

    @property
    def others(self) -> tuple[IterDim, ...]:
        """Further dims of the reduction."""
        return tuple(d for d in self.statement.dims if d.reduce and d != self.along)

    @property
    def outer(self) -> tuple[IterDim, ...]:
        return tuple(d for d in self.statement.dims if not d.reduce)


def moving_ranges(s: Statement) -> Iterator[Moving | str]:
    """The ways in which ranges of a statement move, and reasons why others that do cannot be a scan."""
    if s.reduction is None or s.accumulate or any(d.is_empty for d in s.dims if not d.reduce):
        return
    for over, along in _pairs(s):
        found = _moving(s, over, along)
        if found is not None:
            yield found


def ranges_of(dims: tuple[IterDim, ...]) -> dict[str, Range]:
    """The values of those dims whose bounds tell them."""
    found: dict[str, Range] = {}
    for d in dims:
        low, high = interval(d.lower, found), interval(d.upper, found)
        if low is not None and high is not None:
            found[d.name] = (low[0], max(low[0], high[1] - 1))
    return found


def _pairs(s: Statement) -> Iterator[tuple[str, str]]:
    """Outer and reduced dims, as bounds, guards or sums of indices join them."""
    outer = [d.name for d in s.dims if not d.reduce]
    for d in (d for d in s.dims if d.reduce):
        near = {*variables(d.lower), *variables(d.upper)}
        near |= {v for i in indices_of(s.expr) if d.name in variables(i) for v in variables(i)}
        if isinstance(s.expr, Select):
            near |= {v for i in indices_of(s.expr.cond) for v in variables(i)}
        for t in outer:
            if t in near:
                yield t, d.name


def _moving(s: Statement, over: str, along: str) -> Moving | str | None:
    s = _guards_as_bounds(s, over, along)
    counted = _counted_apart(s, over, along)
    if counted is None:
        moves = any(over in variables(e) for d in s.dims if d.name == along for e in (d.lower, d.upper))
        return f"its terms depend on {over}" if moves else None
    s = counted
    t, d = (next(x for x in s.dims if x.name == n) for n in (over, along))
    steps = [_step(op, e, over) for op, e in (("max", d.lower), ("min", d.upper))]
    if steps == [0, 0]:
        return None
    if None in steps:
        return f"an end of {along} does not move with {over} by a constant step"
    if s.reduction not in COMBINES:
        return f"{s.reduction} is of places"
    if any(over in {*variables(x.lower), *variables(x.upper)} for x in s.dims if x is not d):
        return f"another range depends on {over}"
    if any(along in {*variables(x.lower), *variables(x.upper)} for x in s.dims):
        return f"another range depends on {along}"
    if not all(_is_number(e) for x in s.dims if not x.reduce for e in (x.lower, x.upper)):
        return "its results are no rectangle"
    low, high = steps
    assert low is not None and high is not None
    return Moving(s, t, d, low, high)


def _is_number(e: IndexExpr) -> bool:
    return isinstance(e, IConst) and e.value >= 0


def _step(op: str, bound: IndexExpr, over: str) -> int | None:
    """By how much a bound moves with a dim; None where that is no constant, or where several arms move."""
    moving = [a for a in arms(op, bound) if over in variables(a)]
    if not moving:
        return 0
    form = linear(moving[0])
    return form.factor(IVar(over)) or None if len(moving) == 1 and over not in form.hidden else None


# --- guards -----------------------------------------------------------------------------------------------


def _guards_as_bounds(s: Statement, over: str, along: str) -> Statement:
    """The statement with those conditions of its guard as bounds of `along` that speak of both dims."""
    e = s.expr
    if s.reduction not in COMBINES or not isinstance(e, Select):
        return s
    if _constant(e.other) != identity(s.reduction, e.dtype):
        return s
    left: list[Expr] = []
    for cond in _conjunction(e.cond):
        bounded = _bounded(s, cond, over, along)
        if bounded is None:
            left.append(cond)
        else:
            s = bounded
    if not left:
        expr = e.then
    else:
        cond = left[0]
        for c in left[1:]:
            cond = Apply("and", (cond, c), cond.dtype)
        expr = replace(e, cond=cond)
    ranges = ranges_of(s.dims)
    dims = (
        replace(d, lower=simplify(d.lower, ranges), upper=simplify(d.upper, ranges)) if d.name == along else d
        for d in s.dims
    )
    return replace(s, dims=tuple(dims), expr=expr)


def _constant(e: Expr) -> float | int | bool | None:
    match e:
        case Const(value):
            return value
        case Apply("neg", (Const(value),)):
            return -value
        case _:
            return None


def _conjunction(cond: Expr) -> list[Expr]:
    match cond:
        case Apply("and", (left, right)):
            return [*_conjunction(left), *_conjunction(right)]
        case _:
            return [cond]


def _bounded(s: Statement, cond: Expr, over: str, along: str) -> Statement | None:
    """The statement with a condition as bounds of `along`, if it is about both dims and no later one."""
    for part in conjuncts(cond) or ():
        later = s.dims[[d.name for d in s.dims].index(along) + 1 :]
        form = linear(part)
        if not {over, along} <= set(variables(part)) or form.hidden & {over, along}:
            return None
        if {d.name for d in later} & set(variables(part)):
            return None
        bounded = restricted(s, part)
        if bounded is None:
            return None
        s = bounded
    return s if conjuncts(cond) else None


# --- terms ------------------------------------------------------------------------------------------------


def _counted_apart(s: Statement, over: str, along: str) -> Statement | None:
    """The statement with terms that do not depend on `over`: `along` counts `along + b*over`."""
    if over not in depends_on(s.expr):
        return s
    by = _ratio([linear(i) for i in indices_of(s.expr)], over, along)
    if by is None:
        return None
    moved = binary("*", by, IVar(over))
    env = {along: binary("-", IVar(along), moved)}

    def apart(i: IndexExpr) -> IndexExpr:
        return linear(substitute(i, env)).expr() if along in variables(i) else i

    def later(op: str, bound: IndexExpr) -> IndexExpr:
        first, *more = (linear(binary("+", a, moved)).expr() for a in arms(op, bound))
        for a in more:
            first = binary(op, first, a)
        return first

    dims = tuple(
        replace(d, lower=later("max", d.lower), upper=later("min", d.upper)) if d.name == along else d
        for d in s.dims
    )
    if any(along in {*variables(d.lower), *variables(d.upper)} for d in dims):
        return None
    return replace(s, dims=dims, expr=map_expr(s.expr, lambda e: e, apart))


def _ratio(forms: list[Linear], over: str, along: str) -> int | None:
    """`b` where all forms in which one of both dims is have multiples of `along + b*over`."""
    found: set[int] = set()
    for form in forms:
        if form.hidden & {over, along}:
            return None
        a, b = form.factor(IVar(along)), form.factor(IVar(over))
        if (a, b) == (0, 0):
            continue
        if a == 0 or b % a:
            return None
        found.add(b // a)
    return found.pop() if len(found) == 1 else None
