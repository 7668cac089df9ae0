"""Ranges as dims: explicit bounds, inferred ones, and the extents that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyfuse.frontend_dsl.semantics.index_build import Lookup, to_index
from polyfuse.frontend_dsl.semantics.scope import Context, Scope
from polyfuse.frontend_dsl.semantics.size_algebra import Facts, Poly, add, multiply
from polyfuse.frontend_dsl.semantics.size_algebra import to_index as poly_index
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.ir import tensor_graph as g
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, binary, leaves, variables


def explicit(r: ast.VarRange, lookup: Lookup) -> tuple[IndexExpr, IndexExpr] | None:
    """The written bounds of a range, None where they are to be inferred.

    Bounds that are no index expressions were reported with the types; they raise NotIndex.
    """
    if r.lower is None or r.upper is None:
        return None
    return to_index(r.lower, lookup), to_index(r.upper, lookup)


def extent_in(scope: Scope, tensor: str, position: int) -> IndexExpr | None:
    """The extent of an axis of a tensor, where it is known."""
    info = scope.reads.get(tensor)
    if info is None or info.shape is None or position >= len(info.shape):
        return None
    return info.shape[position]


def shown_extent_in(scope: Scope, tensor: str, position: int) -> IndexExpr | None:
    """The same for a hint: over the sizes that the operator of the scope has."""
    extent = extent_in(scope, tensor, position)
    return None if extent is None else scope.in_own_sizes(extent)


def highest(e: IndexExpr, dims: Mapping[str, g.IterDim]) -> IndexExpr | None:
    """The greatest value of `e` over `dims`, over sizes only; None where it cannot be derived.

    >>> highest(IVar("i") + 1, {"i": g.IterDim("i", IConst(0), ISize("N"))})
    ISize(name='N')
    """
    names = variables(e)
    if not names:
        return e
    match e:
        case IBin("min" | "max" as op, left, right):
            a, b = highest(left, dims), highest(right, dims)
            return None if a is None or b is None else binary(op, a, b)
        case IBin("//", left, right) if not variables(right):
            a = highest(left, dims)
            return None if a is None else binary("//", a, right)
        case _:
            pass
    p = Facts().canon(e)
    for name in reversed(list(dims)):
        if name in names:
            replaced = _replace(p, dims[name])
            if replaced is None:
                return None
            p = replaced
    rest = poly_index(p)
    return None if variables(rest) else rest


def end(e: IndexExpr, dims: Mapping[str, g.IterDim], sign: int = 1) -> IndexExpr | None:
    """No less than the greatest value of `e` (sign 1), no more than the least (-1), part by part."""
    match e:
        case IVar(name):
            bound = dims[name].upper - 1 if sign > 0 else dims[name].lower
            return end(bound, dims, sign)
        case IBin("+" | "-" as op, left, right):
            a, b = end(left, dims, sign), end(right, dims, sign if op == "+" else -sign)
            return None if a is None or b is None else binary(op, a, b)
        case IBin("*", IConst(c), other) | IBin("*", other, IConst(c)):
            a = end(other, dims, sign if c >= 0 else -sign)
            return None if a is None else binary("*", a, c)
        case IBin("*", ISize() as size, other) | IBin("*", other, ISize() as size):
            a = end(other, dims, sign)
            return None if a is None else binary("*", a, size)
        case IBin("//", left, right) if not variables(right):
            a = end(left, dims, sign)
            return None if a is None else binary("//", a, right)
        case IBin("%", _, right) if not variables(right):
            return binary("-", right, 1) if sign > 0 else IConst(0)
        case _:
            return None if variables(e) else e


def _replace(p: Poly, dim: g.IterDim) -> Poly | None:
    """The variable of `dim` at the end of its range where `p` is greatest."""
    var, result = IVar(dim.name), Poly()
    for m, c in p.items():
        if var not in m:
            if any(var in leaves(atom) for atom in m):
                return None
            result = add(result, {m: c})
            continue
        rest = list(m)
        rest.remove(var)
        if any(isinstance(x, IVar) for atom in rest for x in leaves(atom)):
            return None
        end = Facts().canon(dim.upper - 1 if c > 0 else dim.lower)
        result = add(result, multiply({tuple(rest): c}, end))
    return result


def greatest(uppers: Iterable[tuple[IndexExpr, bool]], ctx: Context) -> IndexExpr:
    """The maximum of upper bounds.

    Where one is a constant because constant elements are defined (`c[0] = ...`: the flag), the bound it
    is compared with is assumed to reach it, and the call checks that.
    """
    result: IndexExpr | None = None
    named = False
    for upper, by_constant in uppers:
        if result is None or ctx.facts.at_least(upper, result):
            result, named = upper, by_constant
        elif not ctx.facts.at_least(result, upper):
            if named and isinstance(result, IConst):
                ctx.assume(g.Constraint(">=", upper, result))
                result, named = upper, by_constant
            elif by_constant and isinstance(upper, IConst):
                ctx.assume(g.Constraint(">=", result, upper))
            else:
                result, named = binary("max", result, upper), False
    assert result is not None
    return result


def in_order(wanted: Iterable[str], found: Mapping[str, tuple[IndexExpr, IndexExpr]]) -> list[str] | None:
    """Variables so that bounds only use earlier ones, otherwise in the given order; None for a circle."""
    waiting, placed = list(wanted), list[str]()
    while waiting:
        ready = [v for v in waiting if not any(u in waiting for b in found[v] for u in variables(b))]
        if not ready:
            return None
        placed.append(ready[0])
        waiting.remove(ready[0])
    return placed
