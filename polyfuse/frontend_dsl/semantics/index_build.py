"""From syntax to index expressions: subscripts, extents, bounds, index values, constraints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import walk
from polyfuse.frontend_dsl.syntax.lexical import INT64_MAX
from polyfuse.frontend_dsl.syntax.names import did_you_mean
from polyfuse.ir.index_expr import IConst, IndexExpr, binary, variables
from polyfuse.ir.tensor_graph import Constraint
from polyfuse.source import Span

Lookup = Callable[[str], IndexExpr | None]

_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


@dataclass
class NotIndex(Exception):
    """An expression that is no (affine) index expression, and why."""

    code: str
    message: str
    span: Span
    hint: str | None = None

    def report(self, diags: Diagnostics) -> None:
        diags.error(self.code, self.message, self.span, self.hint)


def is_index_only(e: ast.Expr, lookup: Lookup) -> bool:
    """Made of integer literals, sizes and index variables by integer arithmetic alone."""
    match e:
        case ast.Number(value):
            return isinstance(value, int)
        case ast.Name(name):
            return lookup(name) is not None
        case ast.Unary("-", arg):
            return is_index_only(arg, lookup)
        case ast.Binary("<<" | ">>" | "&"):
            return _by_power(e) is not None and is_index_only(e.left, lookup)
        case ast.Binary("+" | "-" | "*" | "//" | "%", left, right):
            return is_index_only(left, lookup) and is_index_only(right, lookup)
        case ast.Call("min" | "max", args, ()):
            return len(args) >= 2 and all(is_index_only(a, lookup) for a in args)
        case _:
            return False


def is_data(e: ast.Expr, lookup: Lookup) -> bool:
    """Whether the value of `e` depends on a tensor, so that as an index it makes a gather."""
    return any(
        isinstance(x, ast.Subscript | ast.Reduce | ast.Conditional)
        or (isinstance(x, ast.Name) and lookup(x.id) is None)
        for x in walk(e)
    )


def to_index(e: ast.Expr, lookup: Lookup, affine: bool = True) -> IndexExpr:
    """The index expression `e` stands for.

    With `affine`, products of variables and divisions by variables raise NotIndex (PF303); without,
    only the divisions do, with an empty code.
    """
    match e:
        case ast.Number(int(value)):
            return _kept(IConst(value), e.span)
        case ast.Name(name):
            found = lookup(name)
            if found is None:
                raise NotIndex("PF201", f"unknown name '{name}'", e.span)
            return found
        case ast.Unary("-", ast.Number(int(value))):
            return _kept(IConst(-value), e.span)
        case ast.Binary("<<" | ">>" | "&", left, right) if (by := _by_power(e)) is not None:
            return _kept(binary(by[0], to_index(left, lookup, affine), by[1]), e.span)
        case ast.Unary("-", arg):
            return binary("-", 0, to_index(arg, lookup, affine))
        case ast.Binary("+" | "-" | "*" | "//" | "%", left, right):
            a, b = to_index(left, lookup, affine), to_index(right, lookup, affine)
            _check_operation(e, a, b, affine)
            return _kept(binary(e.op, a, b), e.span)
        case ast.Binary("/", _, _):
            raise NotIndex("PF215", "'/' gives no integer", e.span, "use '//', which rounds down")
        case ast.Call("min" | "max" as op, args, ()) if len(args) >= 2:
            result = to_index(args[0], lookup, affine)
            for other in args[1:]:
                result = binary(op, result, to_index(other, lookup, affine))
            return result
        case _:
            raise NotIndex(
                "PF303",
                "this is no index expression",
                e.span,
                "integers, sizes and index variables combined by + - * // % min max, << and >> by a literal",
            )


def _by_power(e: ast.Binary) -> tuple[str, int] | None:
    """What a shift by a literal, or the lowest bits, is in arithmetic: i << 2 is i * 4, i & 3 is i % 4."""
    match e.op, e.right:
        case (("<<" | ">>"), ast.Number(int(places))) if places < 63:
            return "*" if e.op == "<<" else "//", 1 << places
        case "&", ast.Number(int(mask)) if mask & (mask + 1) == 0 and mask < INT64_MAX:
            return "%", mask + 1
        case _:
            return None


def _kept(e: IndexExpr, span: Span) -> IndexExpr:
    """A number that 64 bits hold, or anything else."""
    if isinstance(e, IConst) and not -INT64_MAX - 1 <= e.value <= INT64_MAX:
        text = "this integer is too large: " if e.value > 0 else "this integer is too small: "
        raise NotIndex("PF105", f"{text}integers lie in -2**63..2**63 - 1", span)
    return e


def _check_operation(e: ast.Binary, a: IndexExpr, b: IndexExpr, affine: bool) -> None:
    if e.op in ("//", "%") and isinstance(b, IConst) and b.value <= 0:
        raise NotIndex("PF303", f"the divisor of '{e.op}' is {b.value}: it must be positive", e.right.span)
    if not affine:
        if e.op in ("//", "%") and variables(b):
            raise NotIndex("", "division by a variable", e.span)
        return
    if e.op == "*" and variables(a) and variables(b):
        one, two = variables(a)[0], variables(b)[0]
        both = f"'{one}' and '{two}'" if one != two else f"'{one}' with itself"
        raise NotIndex("PF303", f"the product of {both} is no affine index", e.span, AFFINE)
    if e.op in ("//", "%") and variables(b):
        raise NotIndex("PF303", f"division by the variable '{variables(b)[0]}' in an index", e.span, AFFINE)


AFFINE = "an index is a sum of variables times constants or sizes; '//' and '%' take constants or sizes"


def size_expr(
    e: ast.Expr, sizes: Mapping[str, IndexExpr], diags: Diagnostics, what: str, owner: str
) -> IndexExpr | None:
    """An expression over sizes only; None after a report (PF220, PF201)."""
    unknown = [x for x in walk(e) if isinstance(x, ast.Name) and x.id not in sizes]
    for x in unknown:
        if not diags.is_first(x.id, owner):
            continue
        near = diags.looked_up(len(sizes), partial(did_you_mean, x.id, sizes))
        hint = near or "sizes are the names in the extents of parameters and results"
        diags.error("PF201", f"unknown size '{x.id}' in {what}", x.span, hint)
    if unknown:
        return None
    try:
        return to_index(e, sizes.get, affine=False)
    except NotIndex as problem:
        code = problem.code if problem.code == "PF215" else "PF220"
        diags.error(code, f"{problem.message}, so it cannot stand in {what}", problem.span, problem.hint)
        return None


def constraints_of(
    e: ast.Expr, sizes: Mapping[str, IndexExpr], diags: Diagnostics, owner: str, negate: bool = False
) -> list[Constraint]:
    """`where` expressions: chains of comparisons of size expressions, joined by `and`."""
    match e:
        case ast.Binary("and", left, right) if not negate:
            return constraints_of(left, sizes, diags, owner) + constraints_of(right, sizes, diags, owner)
        case ast.Unary("not", arg):
            return constraints_of(arg, sizes, diags, owner, not negate)
        case ast.Compare(operands, ops) if not negate or len(ops) == 1:
            parts = [size_expr(o, sizes, diags, "a constraint", owner) for o in operands]
            found = []
            for op, a, b in zip(ops, parts, parts[1:], strict=False):
                if a is not None and b is not None:
                    found.append(Constraint(_NEGATED[op] if negate else op, a, b, e.span))
            return found
        case _:
            diags.error(
                "PF221",
                "a constraint compares sizes",
                e.span,
                "such as `where H % G == 0, 3 <= N`; several are joined by commas or 'and'",
            )
            return []
