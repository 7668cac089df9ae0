"""Reductions: their dims, and those inside expressions as statements of their own.

    y[t] = sum[h](x[t, h]) / H      becomes      y__sum[t] = sum over h of x[t, h]
                                                 y[t] = y__sum[t] / H

The temp has the outer variables that the reduction uses.  Under a guard that its reads may need, the
guard moves into the operand: ``sum[k](x[i-k]) if i >= 5 else 0.0`` sums ``x[i-k] if i >= 5 else 0.0``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce

from polyfuse.frontend_dsl.semantics.bounds import explicit, extent_in, highest, shown_extent_in
from polyfuse.frontend_dsl.semantics.data_bounds import (
    Ends,
    beside_data,
    ends_of,
    has_data,
    number,
    whole_range,
)
from polyfuse.frontend_dsl.semantics.expr_build import BuildError, ExprBuilder, identity, index_variables
from polyfuse.frontend_dsl.semantics.index_build import NotIndex
from polyfuse.frontend_dsl.semantics.ranges_infer import agree, likely_range, mentions, plain_uses, sources_of
from polyfuse.frontend_dsl.semantics.scope import TensorInfo
from polyfuse.frontend_dsl.semantics.weak_types import hard
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import BOOL, I64, DType
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, product, variables
from polyfuse.ir.ops import ARG_REDUCTIONS

_NOT_EMPTY = ("max", "min", "mean", "argmax", "argmin")


@dataclass(frozen=True, slots=True)
class Over:
    """What a reduction runs over: names in the text -> dims of the graph; of those with bounds from data, the
    ends."""

    dims: dict[str, g.IterDim]
    ends: dict[str, Ends]

    def operand(self, b: ExprBuilder, e: ast.Reduce, dtype: DType) -> g.Expr:
        """What is reduced, which outside of bounds from data is what never wins."""
        inner = b.inner(self.dims)
        holds = [ends.holds(self.dims[var], e.span) for var, ends in self.ends.items()]
        for test in holds:
            inner = inner.guarded(test)
        value = inner.build(e.body, dtype)
        op = "sum" if e.op == "mean" else e.op
        for test in reversed(holds):
            value = g.Select(test, value, identity(op, value.dtype, e.span), value.dtype, e.span)
        return value


def reduction_over(b: ExprBuilder, e: ast.Reduce) -> Over:
    """The dims of a reduction, with the ends that are data."""
    found: dict[str, g.IterDim] = {}
    ends: dict[str, Ends] = {}
    inside = b
    for r in e.vars:
        data = has_data(r, inside.lookup)
        if data:
            bounds = whole_range(inside, r, partial(_inferred, b, e, r, data=True))
        else:
            try:
                bounds = explicit(r, inside.lookup) or (as_index(0), _inferred(b, e, r))
            except NotIndex:
                raise BuildError from None
        dim = found[r.var] = g.IterDim(b.scope.variable(r.var, b.ctx), *bounds, True)
        if data:
            ends[r.var] = ends_of(inside, r, dim)
        inside = b.inner(found)
    if e.op in _NOT_EMPTY and not b.guards:
        _assume_not_empty(b, e, {v: d for v, d in found.items() if v not in ends})
    return Over(found, ends)


def _inferred(b: ExprBuilder, e: ast.Reduce, r: ast.VarRange, data: bool = False) -> IndexExpr:
    names = {v.var for v in e.vars}
    uses = plain_uses(e.body, lambda name: name in names or b.lookup(name) is not None)
    found = sources_of(r.var, uses, partial(extent_in, b.scope), b.typer.target)
    likely = mentions(r.var, (e.body,), partial(shown_extent_in, b.scope), (names | b.env.keys()) - {r.var})
    if data and not found:
        written = beside_data(r, b.lookup, likely_range([*likely], b.ctx.facts))
        hint = f"its ends stand beside the data, such as: {e.op}[{r.var} in {written}](...)"
        raise b.error("PF259", f"nothing gives the range in which '{r.var}' lies", r.span, hint)
    example = f"{e.op}[{r.var} in {{}}](...)"
    upper = agree(r.var, found, likely, b.ctx.facts, b.ctx.diags, r.span, example)
    if upper is None:
        raise BuildError
    return upper


def _assume_not_empty(b: ExprBuilder, e: ast.Reduce, dims: dict[str, g.IterDim]) -> None:
    for d in dims.values():
        least = binary("+", d.lower, 1)
        if variables(d.upper) or variables(least):
            continue
        if not b.ctx.assume(g.Constraint(">=", d.upper, least, e.span)):
            raise b.error("PF309", f"{e.op} over the empty range {d.lower}..{d.upper}", e.span)


def operand_dtype(b: ExprBuilder, e: ast.Reduce, want: DType) -> DType:
    """The dtype a reduction works in, if its result is to have dtype `want`."""
    if e.op in ("any", "all"):
        return BOOL
    return b.type_of(e.body).compute if e.op in ARG_REDUCTIONS else want


def extract(b: ExprBuilder, e: ast.Reduce, want: DType) -> g.Expr:
    """A reduction inside an expression: a statement for it, and a read of its temp."""
    over = reduction_over(b, e)
    dims, operand = over.dims, over.operand(b, e, operand_dtype(b, e, want))
    if e.op != "mean":
        return _statement(b, e, e.op, dims, operand)
    total = _statement(b, e, "sum", dims, operand)
    return g.Apply("div", (total, _count(b, e, over, want)), want, e.span)


def _count(b: ExprBuilder, e: ast.Reduce, over: Over, want: DType) -> g.Expr:
    """The number of elements of a mean."""
    dims = over.dims
    mine = {d.name for d in dims.values()}
    if any(mine & set(variables(x)) for d in dims.values() for x in (d.lower, d.upper)) or any(
        mine & index_variables(x) for ends in over.ends.values() for x in (ends.begin, ends.end)
    ):
        ones: g.Expr = g.Const(1.0, want, e.span)
        for var, ends in over.ends.items():
            none = g.Const(0.0, want, e.span)
            ones = g.Select(ends.holds(dims[var], e.span), ones, none, want, e.span)
        return _statement(b, e, "sum", dims, ones)
    if over.ends:
        counts = (
            over.ends[v].count(d, e.span) if v in over.ends else number(binary("-", d.upper, d.lower), e.span)
            for v, d in dims.items()
        )
        return g.Cast(reduce(lambda x, y: g.Apply("mul", (x, y), I64, e.span), counts), want, e.span)
    count = product(tuple(binary("-", d.upper, d.lower) for d in dims.values()))
    if isinstance(count, IConst):
        return g.Const(float(count.value), want, e.span)
    return g.IndexValue(count, want, e.span)


def _statement(b: ExprBuilder, e: ast.Reduce, op: str, dims: dict[str, g.IterDim], operand: g.Expr) -> g.Read:
    over = tuple(dims.values())
    guard = _needed_guard(b, operand, {**b.dims, **{d.name: d for d in over}})
    if guard is not None:
        neutral = identity(op, operand.dtype, e.span)
        operand = g.Select(guard, operand, neutral, operand.dtype, e.span)
    place = place_of(b, e)
    outer = _outer_dims(b, operand, over, place)
    key = (op, (*outer, *over), operand, place)
    if key not in b.made:
        b.made[key] = _emit(b, e, op, outer, over, operand, place)
    return b.made[key]


def place_of(b: ExprBuilder, e: ast.Reduce) -> IndexExpr | None:
    """The place that arglargest and argsmallest take."""
    if e.place is None:
        return None
    place = b.index(e.place)
    assert not isinstance(place, g.EXPR_TYPES)  # the typer has seen to it
    return place


def _outer_dims(
    b: ExprBuilder, operand: g.Expr, over: tuple[g.IterDim, ...], place: IndexExpr | None
) -> tuple[g.IterDim, ...]:
    """The outer dims that the reduction uses, those in bounds and of the place included."""
    used = index_variables(operand) | set(variables(place) if place is not None else ())
    for d in over:
        used |= {*variables(d.lower), *variables(d.upper)}
    for d in reversed(b.dims.values()):
        if d.name in used:
            used |= {*variables(d.lower), *variables(d.upper)}
    own = {d.name for d in over}
    plain = (g.IterDim(d.name, d.lower, d.upper) for d in b.dims.values())
    return tuple(d for d in plain if d.name in used and d.name not in own)


def _emit(
    b: ExprBuilder,
    e: ast.Reduce,
    op: str,
    outer: tuple[g.IterDim, ...],
    over: tuple[g.IterDim, ...],
    operand: g.Expr,
    place: IndexExpr | None,
) -> g.Read:
    dtype = I64 if op in ARG_REDUCTIONS else operand.dtype
    by_name = {d.name: d for d in outer}
    shape = [highest(d.upper, by_name) for d in outer]
    if any(s is None for s in shape):
        message = "the extents of this reduction's result cannot be derived from the bounds"
        raise b.error("PF311", message, e.span, "give it a name: let s: f32[N], s[i] = sum[...](...)")
    name = b.ctx.tensor_names.fresh(f"{b.base}__{op}")
    write = tuple(IVar(d.name) for d in outer)
    info = b.ctx.new_info(TensorInfo(name, g.Role.TEMP, hard(dtype), len(outer), span=e.span, inlined=True))
    info.shape = tuple(s for s in shape if s is not None)
    statement = b.ctx.statement_names.fresh(name, joint="__")
    dims = (*outer, *over)
    b.ctx.statements.append(g.Statement(statement, name, dims, write, operand, op, span=e.span, place=place))
    return g.Read(name, write, dtype, e.span)


# --- guards ------------------------------------------------------------------------------------------


def _needed_guard(b: ExprBuilder, operand: g.Expr, dims: dict[str, g.IterDim]) -> g.Expr | None:
    """The conditions the operand must stay under: none if all its reads are in range anyway."""
    if not b.guards or all(_safe(b, r, dims) for r in g.reads(operand)):
        return None
    gathers = any(isinstance(i, g.EXPR_TYPES) for r in g.reads(operand) for i in r.indices)
    kept = [c for guard in b.guards for c in _conjuncts(guard) if gathers or not g.reads(c)]
    result: g.Expr | None = None
    for c in kept:
        result = c if result is None else g.Apply("and", (result, c), BOOL, c.span)
    return result


def _conjuncts(e: g.Expr) -> Iterator[g.Expr]:
    match e:
        case g.Apply("and", args):
            for a in args:
                yield from _conjuncts(a)
        case g.Apply("not", (g.Apply("or", args),)):
            for a in args:
                yield from _conjuncts(g.Apply("not", (a,), BOOL, a.span))
        case _:
            yield e


def _safe(b: ExprBuilder, r: g.Read, dims: dict[str, g.IterDim]) -> bool:
    """Surely in range and defined, whatever the guards say."""
    info = next((i for i in b.scope.reads.values() if i.name == r.tensor), None)
    if info is None or not info.total or info.shape is None:
        return False
    for i, extent in zip(r.indices, info.shape, strict=True):
        if isinstance(i, g.EXPR_TYPES):
            return False
        top = highest(binary("+", i, 1), dims)
        low = highest(binary("-", 0, i), dims)
        if top is None or low is None:
            return False
        if not (b.ctx.facts.at_least(extent, top) and b.ctx.facts.at_least(IConst(0), low)):
            return False
    return True
