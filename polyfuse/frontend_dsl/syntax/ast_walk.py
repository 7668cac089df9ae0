"""Walking and rewriting syntax trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from polyfuse.frontend_dsl.syntax import ast


def children(e: ast.Expr) -> tuple[ast.Expr, ...]:
    """Direct sub-expressions, bounds of reduction variables included."""
    match e:
        case ast.Subscript(_, indices):
            return indices
        case ast.Padded(read, outside):
            return (read, outside)
        case ast.Reduce(_, ranges, body):
            return (*bounds(ranges), body) if e.place is None else (*bounds(ranges), body, e.place)
        case ast.Call(_, args, keywords):
            return (*args, *(value for _, value in keywords))
        case ast.Unary(_, arg):
            return (arg,)
        case ast.Binary(_, left, right):
            return (left, right)
        case ast.Compare(operands):
            return operands
        case ast.Conditional(cond, then, other):
            return (cond, then, other)
        case ast.Number() | ast.BoolLit() | ast.Name() | ast.Splat():
            return ()


def bounds(ranges: tuple[ast.VarRange, ...]) -> tuple[ast.Expr, ...]:
    """The explicit bounds of ranges, in order."""
    return tuple(b for r in ranges for b in (r.lower, r.upper) if b is not None)


def walk(e: ast.Expr) -> Iterator[ast.Expr]:
    """The expression and everything below it, parents first, left to right."""
    stack = [e]
    while stack:
        x = stack.pop()
        yield x
        stack += reversed(children(x))


def statement_exprs(stmt: ast.Stmt) -> Iterator[ast.Expr]:
    """The top expressions of a statement: indices of the left side, bounds, the right side."""
    match stmt:
        case ast.Define(_, indices, _, value, ranges):
            yield from indices or ()
            yield from bounds(ranges)
            yield value
        case ast.Let(_, kind, value):
            yield from kind.extents
            if value is not None:
                yield value
        case ast.CallStmt(_, call):
            yield call


def free_names(e: ast.Expr, bound: frozenset[str] = frozenset()) -> Iterator[ast.Name | ast.Subscript]:
    """Names and subscripted names that no reduction inside `e` binds, left to right."""
    if isinstance(e, ast.Name):
        if e.id not in bound:
            yield e
        return
    if isinstance(e, ast.Subscript):
        yield e
    if isinstance(e, ast.Reduce):
        yield from free_names(e.place, bound) if e.place is not None else ()
        for r in e.vars:
            for b in bounds((r,)):
                yield from free_names(b, bound)
            bound |= {r.var}
        yield from free_names(e.body, bound)
        return
    for c in children(e):
        yield from free_names(c, bound)


def identifiers(op: ast.OpDef) -> set[str]:
    """Every identifier written in an operator."""
    found = {g.name for g in op.generics} | {p.name for p in op.params + op.results}
    tops = [e for p in op.params + op.results for e in p.type.extents] + list(op.where)
    tops += [g.default for g in op.generics if g.default is not None]
    for stmt in op.body:
        match stmt:
            case ast.Define(target, _, _, _, ranges):
                found |= {target, *(r.var for r in ranges)}
            case ast.Let(name):
                found.add(name)
            case ast.CallStmt(targets):
                found |= set(targets)
        tops += statement_exprs(stmt)
    for top in tops:
        for e in walk(top):
            match e:
                case ast.Name(name) | ast.Splat(name) | ast.Subscript(name):
                    found.add(name)
                case ast.Reduce(_, ranges):
                    found |= {r.var for r in ranges}
                case _:
                    pass
    return found


def rewrite(e: ast.Expr, on_expr: Callable[[ast.Expr], ast.Expr]) -> ast.Expr:
    """Rebuild bottom-up with `on_expr` on every node; unchanged nodes are kept."""
    match e:
        case ast.Subscript(_, indices):
            e = replace(e, indices=tuple(rewrite(i, on_expr) for i in indices))
        case ast.Padded(read, outside):
            element = rewrite(read, on_expr)
            assert isinstance(element, ast.Subscript)
            e = replace(e, read=element, outside=rewrite(outside, on_expr))
        case ast.Reduce(_, ranges, body):
            place = None if e.place is None else rewrite(e.place, on_expr)
            e = replace(e, vars=rewrite_ranges(ranges, on_expr), body=rewrite(body, on_expr), place=place)
        case ast.Call(_, args, keywords):
            args = tuple(rewrite(a, on_expr) for a in args)
            e = replace(e, args=args, keywords=tuple((k, rewrite(v, on_expr)) for k, v in keywords))
        case ast.Unary(_, arg):
            e = replace(e, arg=rewrite(arg, on_expr))
        case ast.Binary(_, left, right):
            e = replace(e, left=rewrite(left, on_expr), right=rewrite(right, on_expr))
        case ast.Compare(operands):
            e = replace(e, operands=tuple(rewrite(o, on_expr) for o in operands))
        case ast.Conditional(cond, then, other):
            cond, then, other = (rewrite(x, on_expr) for x in (cond, then, other))
            e = replace(e, cond=cond, then=then, other=other)
        case ast.Number() | ast.BoolLit() | ast.Name() | ast.Splat():
            pass
    return on_expr(e)


def rewrite_ranges(
    ranges: tuple[ast.VarRange, ...], on_expr: Callable[[ast.Expr], ast.Expr]
) -> tuple[ast.VarRange, ...]:
    """Rebuild the explicit bounds of ranges."""

    def bound(b: ast.Expr | None) -> ast.Expr | None:
        return None if b is None else rewrite(b, on_expr)

    return tuple(replace(r, lower=bound(r.lower), upper=bound(r.upper)) for r in ranges)
