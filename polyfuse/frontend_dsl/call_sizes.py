"""Sizes of a called operator, solved from the extents of the arguments; results against targets."""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.frontend_dsl import ast
from polyfuse.frontend_dsl.declare import dtype_of, shape_of
from polyfuse.frontend_dsl.index_build import size_expr
from polyfuse.frontend_dsl.names import axes
from polyfuse.frontend_dsl.scope import Context, Scope, TensorInfo
from polyfuse.frontend_dsl.signature import size_names
from polyfuse.frontend_dsl.size_algebra import Facts, constant, divide, simplify, solve
from polyfuse.frontend_dsl.size_algebra import to_index as poly_index
from polyfuse.frontend_dsl.weak_types import SOFT
from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IndexExpr, ISize, as_index, binary, sizes, substitute
from polyfuse.source import Span

Bound = tuple[ast.Param, TensorInfo, Span]


def bind_call_sizes(ctx: Context, inner: Scope, tensors: Sequence[Bound], call: ast.Call) -> bool:
    """Fill `inner.sizes`; False after a report (PF206, PF219)."""
    names = size_names(inner.op)
    own = {n: ISize(n) for n in names}
    pairs: list[tuple[IndexExpr, IndexExpr, str, Span]] = []
    for p, info, span in tensors:
        assert info.shape is not None
        for k, (written, actual) in enumerate(zip(p.type.extents, info.shape, strict=True)):
            extent = size_expr(written, own, ctx.diags, "an extent", inner.owner)
            if extent is None:
                return False
            pairs.append((extent, actual, f"axis {k} of '{p.name}' ({extent})", span))
    because: dict[str, tuple[str, Span]] = {}
    while _solve_one(ctx, inner, pairs, because):
        pass
    checked = [_check_pair(ctx, inner, pair, because) for pair in pairs]
    ok = all(checked)
    missing = [n for n in names if n not in inner.sizes]
    if ok and missing:
        _report_missing(ctx, inner, pairs, missing[0], call)
    return ok and not missing


def _report_missing(
    ctx: Context,
    inner: Scope,
    pairs: Sequence[tuple[IndexExpr, IndexExpr, str, Span]],
    name: str,
    call: ast.Call,
) -> None:
    for extent, actual, what, span in pairs:
        if name in sizes(extent):
            message = f"no value of '{name}' fits the call of '{inner.op.name}': {what} is {actual} here"
            ctx.diags.error("PF206", message, span)
            return
    message = f"the size '{name}' of '{inner.op.name}' does not follow from the arguments"
    ctx.diags.error("PF219", message, call.span)


def _solve_one(
    ctx: Context,
    inner: Scope,
    pairs: Sequence[tuple[IndexExpr, IndexExpr, str, Span]],
    because: dict[str, tuple[str, Span]],
) -> bool:
    """Bind one more size: plain names first, then what is linear in one unknown."""
    for plain in (True, False):
        for extent, actual, what, span in pairs:
            unknown = [n for n in sizes(extent) if n not in inner.sizes]
            if len(unknown) != 1 or (plain and extent != ISize(unknown[0])):
                continue
            value = _solved(ctx, inner, extent, unknown[0], actual)
            if value is not None:
                inner.sizes[unknown[0]] = value
                because[unknown[0]] = (what, span)
                return True
    return False


def _solved(
    ctx: Context, inner: Scope, extent: IndexExpr, unknown: str, actual: IndexExpr
) -> IndexExpr | None:
    if extent == ISize(unknown):
        return actual
    # The callee's own name of the size may be one of the caller's: keep them apart.
    apart = ISize(unknown + "'")
    extent = substitute(extent, sizes={**inner.sizes, unknown: apart})
    parts = solve(extent, apart.name, actual, Facts())
    with_facts = solve(extent, apart.name, actual, ctx.facts)
    if parts is None or with_facts is None:
        return None
    for fraction in (parts, with_facts):
        quotient = divide(*fraction)
        if quotient is not None:
            return poly_index(quotient)
    numerator, denominator = parts
    by = constant(denominator)
    if by is not None and by < 0:
        return None
    top, bottom = poly_index(numerator), poly_index(denominator)
    if not ctx.assume(g.Constraint("==", binary("%", top, bottom), as_index(0))):
        return None
    return binary("//", top, bottom)


def _check_pair(
    ctx: Context,
    inner: Scope,
    pair: tuple[IndexExpr, IndexExpr, str, Span],
    because: dict[str, tuple[str, Span]],
) -> bool:
    extent, actual, what, span = pair
    if any(n not in inner.sizes for n in sizes(extent)):
        return True
    expected = substitute(extent, sizes=inner.sizes)
    if ctx.facts.equal(expected, actual):
        return True
    sources = [because[n] for n in sizes(extent) if n in because]
    related = tuple((place, f"{text} fixes it here") for text, place in sources)
    where = f"; {sources[0][0]} says so" if sources else ""
    a, b = simplify(expected), simplify(actual)
    hint = None
    if ctx.facts.difference(expected, actual) is None:
        hint = f"add `where {a} == {b}` to the calling operator if they are equal"
    message = f"size mismatch in the call of '{inner.op.name}': {what} must be {a}{where}, got {b}"
    ctx.diags.error("PF206", message, span, hint, related)
    return False


def check_result(
    ctx: Context, inner: Scope, r: ast.Param, info: TensorInfo, target: tuple[str, bool], span: Span
) -> bool:
    """Give an undeclared target the type of a result, or check a declared one against it.

    `target` is its name and whether the result's dtype came from soft f32 arguments only.
    """
    dtype, shape = dtype_of(r.type, ctx), shape_of(r.type, inner, ctx)
    if dtype is None or shape is None or info.failed:
        return False
    shape = tuple(map(simplify, shape))
    name, soft = target
    if not info.declared:
        info.declare(dtype, shape, len(shape))
        if soft and dtype is F32:
            info.ty = SOFT
        return True
    problem = None
    if info.dtype is not dtype:
        problem = ("PF205", f"'{name}' is {info.dtype}, '{inner.op.name}' gives {dtype}")
    elif info.rank != len(shape):
        problem = ("PF204", f"'{name}' has {axes(info.rank or 0)}, '{inner.op.name}' gives {len(shape)}")
    elif info.shape is not None:
        for k, (mine, theirs) in enumerate(zip(info.shape, shape, strict=True)):
            if not ctx.facts.equal(mine, theirs):
                text = f"axis {k} of '{name}' has extent {mine}, '{inner.op.name}' gives {theirs}"
                problem = ("PF206", text)
    if problem:
        ctx.diags.error(*problem, span, "give the result another name and convert it in a statement")
    return problem is None
