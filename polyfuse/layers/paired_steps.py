"""Two steps of a sum of products of short integers at a time.

    c[m, n] = sum[k < K](i32(a[m, k]) * i32(b[k, n]))
becomes
    c[m, n] = sum[k < (K + 1) // 2](dot_words(word(i32(a[m, 2*k]), i32(a[m, 2*k + 1])), word(...)))

Copies of the factors have words, of two halves of 16 bits, so that one instruction of a tile (`vpmaddwd`)
multiplies twice as many elements as a product of i32 does, and adds them up as well.  Where a sum has an odd
number of steps, the last word of each factor has a zero.  All is exact: halves have room for bytes of
any kind, also less a zero point (`i32(a[m, k]) - i32(zero)`), and for i16, and sums wrap as before.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.contraction import is_difference
from polyfuse.ir.dtypes import BOOL, I32, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute
from polyfuse.ir.short_integers import is_half
from polyfuse.ir.tensor_graph import (
    Apply,
    Const,
    Expr,
    IndexValue,
    IterDim,
    Select,
    TensorGraph,
    map_expr,
)
from polyfuse.layers.factors import Product
from polyfuse.layers.product_measures import extents_of


def with_pairs(graph: TensorGraph, p: Product) -> tuple[TensorGraph, Product]:
    """The graph and the contraction, whose sums are from 0 on, with words of two steps, if its factors are
    short integers."""
    s = graph.statement(p.statement)
    if is_difference(s.expr) or not (is_half(p.left) and is_half(p.right)):
        return graph, p
    extents = extents_of(s)
    over = min(p.over, key=lambda d: (-(-extents[d] // 2) / extents[d], -extents[d]))
    dim = next(d for d in s.dims if d.name == over)
    half = replace(dim, upper=IConst((extents[over] + 1) // 2))
    odd = extents[over] % 2 == 1
    p = replace(p, left=_word(p.left, dim, odd), right=_word(p.right, dim, odd))
    term = Apply("dot_words", (p.left, p.right), I32)
    paired = replace(s, dims=tuple(half if d is dim else d for d in s.dims), expr=term)
    return replace(graph, statements=tuple(paired if x is s else x for x in graph.statements)), p


def _word(e: Expr, dim: IterDim, odd: bool) -> Expr:
    """A factor at two steps that follow one another; of an odd number, the last has none after it."""
    first = binary("*", IVar(dim.name), 2)
    second = binary("+", first, 1)
    high = _at(e, dim.name, second)
    if odd:
        inside = Apply("lt", (IndexValue(second, I64), IndexValue(dim.upper, I64)), BOOL)
        high = Select(inside, high, Const(0, I32), I32)
    return Apply("word", (_at(e, dim.name, first), high), I32)


def _at(e: Expr, name: str, value: IndexExpr) -> Expr:
    return map_expr(e, lambda x: x, lambda i: substitute(i, {name: value}))
