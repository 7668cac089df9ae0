"""What a contraction is, and how its factors lie in memory.

c[o, m, n] = sum[k](left[o, m, k] * right[o, k, n])
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.dtypes import I32
from polyfuse.ir.short_integers import is_half
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Cast, Expr, Read, TensorGraph, depends_on, reads
from polyfuse.layers.strides import address, stride


@dataclass(frozen=True, slots=True)
class Follower:
    """A statement over the elements of a contraction; `dims` are (of the contraction, of the statement)."""

    statement: str
    dims: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction: dims of its statement by what they are, its factors, and what follows each element."""

    statement: str
    row: str
    column: str
    outer: tuple[str, ...]
    over: tuple[str, ...]
    left: Expr
    right: Expr
    followers: tuple[Follower, ...] = ()


def widens(x: Product) -> bool:
    """Are factors integers that become larger?"""
    return any((isinstance(e, Cast) and e.dtype == I32) or is_half(e) for e in (x.left, x.right))


def along(graph: TensorGraph, x: Product) -> str | None:
    """A dim that is summed along which both factors lie: elements of memory, converted to floats, or shifted
    and scaled by what does not change along it."""
    if widens(x):
        return None
    return next((d for d in x.over if all(_runs(graph, e, d) for e in (x.left, x.right))), None)


def _runs(graph: TensorGraph, e: Expr, dim: str) -> bool:
    """Is an expression an element that lies along a dim, in arithmetic with what the dim does not change?"""
    match e:
        case Cast(arg):
            return _runs(graph, arg, dim)
        case Apply("mul" | "sub" | "add", (a, b)) if dim not in depends_on(b):
            return _runs(graph, a, dim)
        case Apply("mul" | "sub" | "add", (a, b)) if dim not in depends_on(a):
            return _runs(graph, b, dim)
        case _:
            return contiguous(graph, e, dim)


def contiguous(graph: TensorGraph, e: Expr, dim: str) -> bool:
    """Is an expression one element of memory, with its neighbour for the next value of a dim?"""
    return plain(e) and isinstance(e, Read) and stride(address(graph, e.tensor, e.indices), dim) == 1


def lies_along(graph: TensorGraph, e: Expr, dim: str) -> bool:
    """Is something read whose neighbours in memory are those along a dim?"""
    return any(contiguous(graph, r, dim) for r in reads(e))


def plain(e: Expr) -> bool:
    """Is an expression an element that is found without data?"""
    return isinstance(e, Read) and not any(isinstance(i, EXPR_TYPES) for i in e.indices)
