"""`row(ptr, e)`, the last `n` with `ptr[n] <= e`, as a reduction.

    s[row(ptr, e)]        becomes        s[max[n](i64(n) if i64(ptr[n]) <= e else i64(-1))]

It is what it says for all pointers: falling, overlapping, outside.  Before the first one it is -1, an index
that checked builds refuse and others clamp.  `layers.graph.bucket_scans` computes it for all `e` in one pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import (
    identifiers,
    rewrite,
    rewrite_ranges,
    statement_exprs,
    walk,
)
from polyfuse.frontend_dsl.syntax.names import ROW, Library

_HINT = f"such as {ROW}(ptr, e): the last n with ptr[n] <= e"


def with_rows(op: ast.OpDef, home: ast.Program, library: Library, diags: Diagnostics) -> ast.OpDef:
    """The operator with reductions in place of calls of `row`."""
    exprs = (e for s in op.body for top in statement_exprs(s) for e in walk(top))
    if library.is_operator(ROW, home) or not any(_is_row(e) for e in exprs):
        return op
    taken = identifiers(op)
    var = next(n for n in _names() if n not in taken)

    def node(e: ast.Expr) -> ast.Expr:
        return _reduction(e, var, diags) if isinstance(e, ast.Call) and _is_row(e) else e

    def statement(s: ast.Stmt) -> ast.Stmt:
        match s:
            case ast.Define(_, indices, _, value, ranges):
                left = None if indices is None else tuple(rewrite(i, node) for i in indices)
                return replace(
                    s, indices=left, value=rewrite(value, node), ranges=rewrite_ranges(ranges, node)
                )
            case ast.Let(_, _, value):
                return s if value is None else replace(s, value=rewrite(value, node))
            case ast.CallStmt(_, call):
                keywords = tuple((k, rewrite(v, node)) for k, v in call.keywords)
                args = tuple(rewrite(a, node) for a in call.args)
                return replace(s, call=replace(call, args=args, keywords=keywords))

    return replace(op, body=tuple(map(statement, op.body)))


def _names() -> Iterator[str]:
    yield "n"
    yield from (f"n{k}" for k in count(1))


def _is_row(e: ast.Expr) -> bool:
    return isinstance(e, ast.Call) and e.callee == ROW


def _reduction(e: ast.Call, var: str, diags: Diagnostics) -> ast.Expr:
    """What a call stands for, as the only argument; a call without arguments after a report."""
    wrong = replace(e, args=(), keywords=())
    if e.keywords or len(e.args) != 2 or not isinstance(e.args[0], ast.Name):
        message = f"'{ROW}' takes the name of a tensor and an index"
        diags.error("PF261", message, e.span, _HINT)
        return wrong
    pointers, at = e.args
    assert isinstance(pointers, ast.Name)
    data = ast.Subscript | ast.Padded | ast.Reduce | ast.Conditional
    if any(isinstance(x, data) for x in walk(at)):
        message = f"'{ROW}' takes an index of variables and sizes, this one is data"
        diags.error("PF262", message, at.span, f"give the rows a name first, as in r[e] = {ROW}(ptr, e)")
        return wrong

    def i64(x: ast.Expr) -> ast.Call:
        return ast.Call("i64", (x,), (), e.callee_span, e.span)

    n = ast.Name(var, e.span)
    pointer = ast.Subscript(pointers.id, (n,), pointers.span, pointers.span)
    test = ast.Compare((i64(pointer), at), ("<=",), e.span)
    none = i64(ast.Unary("-", ast.Number(1, "1", e.span), e.span))
    body = ast.Conditional(test, i64(n), none, e.span)
    over = ast.VarRange(var, None, None, False, e.span)
    return replace(e, args=(ast.Reduce("max", (over,), body, e.span),))


def pointers_of(e: ast.Call) -> ast.Expr | None:
    """The element of the pointers that a rewritten call compares; None where an error was reported."""
    match e.args:
        case (ast.Reduce(_, _, ast.Conditional(ast.Compare((ast.Call(_, (pointer,)), _)))),):
            return pointer
        case _:
            return None
