"""Optional tensors: an operator for each choice of those that are absent.

    op linear(x: f32[N, K], w: f32[M, K], bias: f32[M]?) -> (y: f32[N, M]) {
      y[n, m] = sum[k](x[n, k] * w[m, k]) + (bias[m] if given(bias) else 0.0)
    }
is, without `bias`,
    op linear(x: f32[N, K], w: f32[M, K]) -> (y: f32[N, M]) {
      y[n, m] = sum[k](x[n, k] * w[m, k]) + 0.0
    }

`given` is known then, and with it what a conditional chooses; nothing after this knows of optional tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import TypeGuard

from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import free_names, rewrite, rewrite_ranges, statement_exprs, walk
from polyfuse.frontend_dsl.syntax.names import GIVEN, NONE, is_builtin
from polyfuse.ir.dtypes import BY_NAME

MOST_OPTIONALS = 4
"""Up to so many optional tensors, every choice of them is checked."""


def optionals(op: ast.OpDef) -> tuple[str, ...]:
    """The parameters that may be absent."""
    return tuple(p.name for p in op.params if p.optional)


def choices(op: ast.OpDef) -> Iterator[tuple[str, ...]]:
    """The absent ones of each choice that is checked; that of none comes first."""
    names = optionals(op)
    for k in range(len(names) + 1):
        if len(names) <= MOST_OPTIONALS or k in (0, 1, len(names) - 1, len(names)):
            yield from combinations(names, k)


def chosen(op: ast.OpDef, absent: Collection[str], diags: Diagnostics) -> ast.OpDef:
    """The operator where some optional tensors are absent and the others are there.

    Reports reads of what is absent (PF247) and what would only follow from it (PF251).
    """
    if not optionals(op):
        return op
    known = {n: n not in absent for n in optionals(op)}
    kept = tuple(replace(p, optional=False) for p in op.params if p.name not in absent)
    made = replace(op, params=kept, body=tuple(_statement(s, known) for s in op.body))
    for s in made.body:
        _check_reads(s, absent, diags)
    _check_head(op, made, diags)
    return made


# --- what `given` decides ----------------------------------------------------------------------------------


def _statement(s: ast.Stmt, known: Mapping[str, bool]) -> ast.Stmt:
    def on_expr(e: ast.Expr) -> ast.Expr:
        return _decided(e, known)

    match s:
        case ast.Define(_, indices, _, value, ranges):
            left = None if indices is None else tuple(rewrite(i, on_expr) for i in indices)
            right = _call(value, known) if _is_call(value) else rewrite(value, on_expr)
            over = rewrite_ranges(ranges, on_expr)
            return replace(s, indices=left, value=right, ranges=over)
        case ast.Let(_, _, value_or_none):
            return s if value_or_none is None else replace(s, value=rewrite(value_or_none, on_expr))
        case ast.CallStmt(_, call):
            return replace(s, call=_call(call, known))


def _is_call(e: ast.Expr) -> TypeGuard[ast.Call]:
    """Whether a right side may be a call of an operator."""
    return isinstance(e, ast.Call) and not is_builtin(e.callee)


def _call(call: ast.Call, known: Mapping[str, bool]) -> ast.Call:
    args = tuple(_argument(a, known) for a in call.args)
    return replace(call, args=args, keywords=tuple((n, _argument(a, known)) for n, a in call.keywords))


def _argument(a: ast.Expr, known: Mapping[str, bool]) -> ast.Expr:
    """An argument of a call of an operator: `None` in place of what is absent."""
    if isinstance(a, ast.Name) and known.get(a.id) is False:
        return ast.Name(NONE, a.span)
    return rewrite(a, lambda e: _decided(e, known))


def _decided(e: ast.Expr, known: Mapping[str, bool]) -> ast.Expr:
    """An expression whose parts are decided."""
    match e:
        case ast.Call(callee, (ast.Name(name),), ()) if callee == GIVEN and name in known:
            return ast.BoolLit(known[name], e.span)
        case ast.Unary("not", ast.BoolLit(value)):
            return ast.BoolLit(not value, e.span)
        case ast.Binary("and" | "or" as op, ast.BoolLit(value), other) | ast.Binary(
            "and" | "or" as op, other, ast.BoolLit(value)
        ):
            return other if value == (op == "and") else ast.BoolLit(value, e.span)
        case ast.Conditional(ast.BoolLit(value), then, other):
            return then if value else other
        case ast.Call("select", (ast.BoolLit(value), then, other), ()):
            return then if value else other
        case _:
            return e


# --- checks ------------------------------------------------------------------------------------------------


def _check_reads(s: ast.Stmt, absent: Collection[str], diags: Diagnostics) -> None:
    for e in (e for top in statement_exprs(s) for e in free_names(top)):
        name = e.id if isinstance(e, ast.Name) else e.name
        if name in absent:
            hint = f"say what it is then, as in: {e.span.text or name} if {GIVEN}({name}) else 0.0"
            diags.error("PF247", f"'{name}' may be absent here", e.span, hint)


def _check_head(op: ast.OpDef, made: ast.OpDef, diags: Diagnostics) -> None:
    """PF251: sizes, rank variables and generics that only an absent tensor has, and that are in use."""
    known = {n for p in made.params for n in _names(p.type)} | {x.name for x in op.size_parameters}
    used = {n for r in made.results for n in _names(r.type)}
    equal = [top for top in op.where if isinstance(top, ast.Compare) and top.ops == ("==",)]
    known |= used & {n for top in equal for e in walk(top) for n in _used(e)} | {*BY_NAME}
    used |= {n for top in op.where for e in walk(top) for n in _used(e)}
    for s in made.body:
        used |= {n for top in statement_exprs(s) for e in walk(top) for n in _used(e)}
        used |= {s.type.dtype} if isinstance(s, ast.Let) else set()
    here = {p.name for p in made.params}
    for p in (p for p in op.params if p.name not in here):
        for name in dict.fromkeys(_names(p.type)):
            if name in used and name not in known:
                is_size = any(
                    isinstance(e, ast.Name) and e.id == name for x in p.type.extents for e in walk(x)
                )
                hint = f"give it a default: [{name}: size = 1]" if is_size else None
                message = f"'{name}' follows from '{p.name}' alone, which may be absent"
                diags.error("PF251", message, p.type.span, hint)


def _names(t: ast.TensorType) -> Iterator[str]:
    """The generic, sizes and rank variables of a type."""
    yield t.dtype
    yield from (e.id for x in t.extents for e in walk(x) if isinstance(e, ast.Name | ast.Splat))


def _used(e: ast.Expr) -> Iterator[str]:
    match e:
        case ast.Name(name) | ast.Splat(name) | ast.Call(name):
            yield name
        case _:
            pass
