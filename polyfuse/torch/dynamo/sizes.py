"""Extents of tensors: integers, or polynomials of sizes that calls give (torch's SymInts).

A size stays a size: no function here asks for its value.  What holds is known for all sizes from 1 on, or
not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from polyfuse.ir.index_expr import IndexExpr, ISize, as_index, binary

Extent: TypeAlias = Any
"""An int, or an expression of sympy over symbols of sizes."""


class Unsupported(Exception):
    """Why a node cannot be one of ours."""


def whole(e: Extent) -> Extent:
    """The same extent in its one form: expanded, an int where it is one."""
    if isinstance(e, int):
        return int(e)
    import sympy

    e = sympy.expand(e)
    return int(e) if e.is_Integer else e


def extent_of(x: Any) -> Extent:
    """The extent that a size in a graph is. Raises Unsupported for one that depends on data."""
    if isinstance(x, int):
        return int(x)
    expression = getattr(getattr(x, "node", None), "expr", x)
    for s in getattr(expression, "free_symbols", ()):
        if s.name.startswith("u"):
            raise Unsupported("a size depends on data")
    return whole(expression)


def may_be_negative(symbol: Any, size: Any) -> bool:
    """May a symbol of one of torch's sizes be less than 0? Numbers among the arguments may."""
    shapes = getattr(getattr(size, "node", None), "shape_env", None)
    return shapes is not None and bool(shapes.bound_sympy(symbol).lower < 0)


def is_number(e: Extent) -> bool:
    """Is it known?"""
    return isinstance(e, int)


def equal(a: Extent, b: Extent) -> bool:
    """Are they the same for all sizes?"""
    return bool(a == b) or (not (is_number(a) and is_number(b)) and whole(a - b) == 0)


def not_negative(e: Extent) -> bool:
    """Is it at least 0 for all sizes from 1 on?"""
    if is_number(e):
        return bool(e >= 0)
    import sympy

    from_zero = sympy.expand(e.subs({s: s + 1 for s in e.free_symbols}, simultaneous=True))
    if from_zero.is_Integer:
        return int(from_zero) >= 0
    if not from_zero.is_polynomial():
        return False
    return all(c >= 0 for c in sympy.Poly(from_zero, *from_zero.free_symbols).coeffs())


def at_most(a: Extent, b: Extent) -> bool:
    """Is a <= b for all sizes from 1 on?"""
    return not_negative(whole(b - a))


def quotient(e: Extent, by: Extent) -> Extent | None:
    """e / by where that is whole for all sizes; else None."""
    if is_number(e) and is_number(by):
        return e // by if by and e % by == 0 else None
    import sympy

    found = sympy.cancel(sympy.sympify(e) / by)
    above, below = found.as_numer_denom()
    return whole(above) if below == 1 else None


def product(extents: Iterable[Extent]) -> Extent:
    """The product, 1 of none."""
    found: Extent = 1
    for e in extents:
        found = found * e
    return whole(found)


def symbols(e: Extent) -> tuple[Any, ...]:
    """The symbols of an extent, in order of their names."""
    return () if is_number(e) else tuple(sorted(e.free_symbols, key=lambda s: str(s.name)))


def to_ir(e: Extent) -> IndexExpr:
    """An extent as graphs have it."""
    if is_number(e):
        return as_index(e)
    if e.is_Integer:
        return as_index(int(e))
    if e.is_Symbol:
        return ISize(e.name)
    if e.is_Add or e.is_Mul:
        op = "+" if e.is_Add else "*"
        first, *rest = sorted(e.args, key=lambda a: (bool(a.is_number), str(a)))
        found = to_ir(first)
        for a in rest:
            found = binary(op, found, to_ir(a))
        return found
    if e.is_Pow and e.exp.is_Integer and e.exp > 0:
        found = to_ir(e.base)
        for _ in range(int(e.exp) - 1):
            found = binary("*", found, to_ir(e.base))
        return found
    name = type(e).__name__
    if name in ("FloorDiv", "CleanDiv", "Mod", "PythonMod"):
        op = "//" if name.endswith("Div") else "%"
        return binary(op, to_ir(e.args[0]), to_ir(e.args[1]))
    raise Unsupported(f"a size is {e}")


def value_of(e: Extent, values: dict[Any, int]) -> int:
    """An extent where sizes have values."""
    return e if is_number(e) else int(e.subs(values))


def dense_order(shape: tuple[Extent, ...], strides: tuple[Extent, ...]) -> tuple[int, ...] | None:
    """The axes, the outermost first, in whose order memory has no gaps; None where it has some.

    Axes of extent 1 come first: they lie nowhere.
    """
    long = [d for d, n in enumerate(shape) if not (is_number(n) and n == 1)]
    units = [d for d in range(len(shape)) if d not in long]
    order: list[int] = []
    expected: Extent = 1
    while long:
        nearest = next((d for d in reversed(long) if equal(strides[d], expected)), None)
        if nearest is None:
            return None
        long.remove(nearest)
        order.append(nearest)
        expected = whole(expected * shape[nearest])
    return (*units, *reversed(order))
