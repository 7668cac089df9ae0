"""What a contraction is, and how its factors lie in memory.

c[o, m, n] = sum[k](left[o, m, k] * right[o, k, n])
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.dtypes import I32
from polyfuse.ir.short_integers import is_half
from polyfuse.ir.tensor_graph import EXPR_TYPES, Cast, Expr, Read, TensorGraph, reads
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
    """A dim that is summed along which both factors lie, elements of memory or converted to floats."""
    if widens(x):
        return None
    left, right = (e.arg if isinstance(e, Cast) else e for e in (x.left, x.right))
    return next((d for d in x.over if contiguous(graph, left, d) and contiguous(graph, right, d)), None)


def contiguous(graph: TensorGraph, e: Expr, dim: str) -> bool:
    """Is an expression one element of memory, with its neighbour for the next value of a dim?"""
    return plain(e) and isinstance(e, Read) and stride(address(graph, e.tensor, e.indices), dim) == 1


def lies_along(graph: TensorGraph, e: Expr, dim: str) -> bool:
    """Is something read whose neighbours in memory are those along a dim?"""
    return any(contiguous(graph, r, dim) for r in reads(e))


def plain(e: Expr) -> bool:
    """Is an expression an element that is found without data?"""
    return isinstance(e, Read) and not any(isinstance(i, EXPR_TYPES) for i in e.indices)
