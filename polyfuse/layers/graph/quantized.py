"""Sums of products of short numbers, two or four steps at a time (`with_packed_words`).

    c[m, n] = sum[k < K](i32(a[m, k]) * i32(b[k, n]))
becomes
    c[m, n] = sum[k < (K + 1) // 2](dot_words(word(i32(a[m, 2*k]), i32(a[m, 2*k + 1])), word(...)))

Copies of the factors have words, of two halves of 16 bits, so that one instruction of a tile (`vpmaddwd`)
multiplies twice as many elements as a product of i32 does, and adds them up as well.  Where a sum has an odd
number of steps, the last word of each factor has a zero.  All is exact: halves have room for bytes of
any kind, also less a zero point (`i32(a[m, k]) - i32(zero)`), and for i16, and sums wrap as before.

Products of bf16 are the same in f32, where a core has an instruction for that (`vdpbf16ps`): words are pairs
of them, which are kept in tensors of f32 as they have as many bits.

Where a core multiplies bytes (`vpdpbusd`), of which one factor has signs and the other none, words have four
of these; `with_one_sign` makes such factors of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.contraction import is_difference
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.dtypes import BF16, BOOL, F32, I32, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute
from polyfuse.ir.intervals import is_byte, is_half
from polyfuse.ir.tensor_graph import (
    Apply,
    Cast,
    Const,
    Expr,
    IndexValue,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
    depends_on,
    map_expr,
)
from polyfuse.layers.contractions.contraction import contraction_of
from polyfuse.layers.contractions.factors import Contraction, extents_of, usual_extents
from polyfuse.layers.graph.names import fresh_name


def with_packed_words(graph: TensorGraph, p: Contraction, core: Core) -> tuple[TensorGraph, Contraction]:
    """The graph and the contraction, whose sums are from 0 on, with words of several steps, if its factors
    are short integers."""
    s = graph.statement(p.statement)
    pairs = core.pair_products and is_bf16(p.left) and is_bf16(p.right)
    if is_difference(s.expr) or not (pairs or (is_half(p.left) and is_half(p.right))):
        return graph, p
    signs = signs_of(p) if core.byte_products and not pairs else None
    count = 4 if signs else 2
    extents = usual_extents(graph, s)
    over = min(p.over, key=lambda d: (-(-extents[d] // count) / extents[d], -extents[d]))
    dim = next(d for d in s.dims if d.name == over)
    fewer = replace(dim, upper=binary("//", dim.upper + (count - 1), count))
    whole = isinstance(dim.upper, IConst) and dim.upper.value % count == 0
    left, right = (_word(e, dim, count, whole) for e in (p.left, p.right))
    operands = (left, right) if signs != (False, True) else (right, left)
    op = "dot_pairs" if pairs else "dot_bytes" if signs else "dot_words"
    term = Apply(op, operands, s.expr.dtype)
    packed = replace(s, dims=tuple(fewer if d is dim else d for d in s.dims), expr=term)
    statements = tuple(packed if x is s else x for x in graph.statements)
    return replace(graph, statements=statements), replace(p, left=left, right=right)


def is_bf16(e: Expr) -> bool:
    """Is an f32 a bf16 that was widened?"""
    return isinstance(e, Cast) and e.dtype == F32 and e.arg.dtype == BF16


def signs_of(p: Contraction) -> tuple[bool, bool] | None:
    """Which of the factors (left, right) are bytes with signs, where the other ones are bytes without; None
    where they are not."""
    ways = ((True, False), (False, True))
    return next((w for w in ways if is_byte(p.left, w[0]) and is_byte(p.right, w[1])), None)


def _word(e: Expr, dim: IterDim, count: int, whole: bool) -> Expr:
    """A factor at so many steps that follow one another; the last of them may be none."""
    first = binary("*", IVar(dim.name), count)
    parts = [_at(e, dim, binary("+", first, k) if k else first, whole or k == 0) for k in range(count)]
    return _joined(parts)


def _joined(parts: Sequence[Expr]) -> Expr:
    if len(parts) == 2:
        dtype = parts[0].dtype
        return Apply("pair" if dtype == F32 else "word", (parts[0], parts[1]), dtype)
    halves = [Apply("half", (parts[k], parts[k + 1]), I32) for k in (0, 2)]
    return Apply("word", (halves[0], halves[1]), I32)


def _at(e: Expr, dim: IterDim, value: IndexExpr, inside: bool) -> Expr:
    """A factor at a step; 0 where there is none."""
    there = map_expr(e, lambda x: x, lambda i: substitute(i, {dim.name: value}))
    if inside:
        return there
    condition = Apply("lt", (IndexValue(value, I64), IndexValue(dim.upper, I64)), BOOL)
    return Select(condition, there, Const(0.0 if e.dtype == F32 else 0, e.dtype), e.dtype)


# --- products of bytes ------------------------------------------------------------------------------------

# Products of bytes that have signs both, or neither, become products of bytes of which one factor has signs.
#
#     c[m, n] = sum[k](i32(a[m, k]) * i32(b[k, n]))          of i8 both
# becomes
#     s[m] = sum[k](i32(a[m, k]))
#     d[m, n] = sum[k](i32(a[m, k]) * (i32(b[k, n]) + 128))
#     c[m, n] = d[m, n] - 128 * s[m]
#
# and of u8 the same with `a - 128`, `+ 128` and sums of `b`.  A core that multiplies bytes of such factors
# takes four steps at once.  All is exact, as i32 wraps.


# Rows, columns and steps at least: to sum up a factor is a small part of the products.
FEWEST = 32


def with_one_sign(graph: TensorGraph, decisions: list[Decision], core: Core) -> TensorGraph:
    """The graph with such products, on a core that multiplies them."""
    if not core.byte_products or graph.sizes:
        return graph
    for s in graph.statements:
        p = contraction_of(graph, s, core) if s.expr.dtype == I32 else None
        if p is None or any(d.lower != IConst(0) for d in s.dims) or not _worth(s, p):
            continue
        signed = next((k for k in (True, False) if _both(p, k)), None)
        if signed is not None:
            graph = _shifted(graph, s, p, signed)
            shift = "columns + 128" if signed else "rows - 128"
            why = f"one factor shall have signs and the other none: {shift}, less the sums of the other"
            decisions.append(Decision("bytes", s.target, True, why))
    return graph


def _both(p: Contraction, signed: bool) -> bool:
    """Are both factors bytes with signs, or without, and neither of them is both?"""
    return all(is_byte(e, signed) and not is_byte(e, not signed) for e in (p.left, p.right))


def _worth(s: Statement, p: Contraction) -> bool:
    of = extents_of(s)
    return min(of[p.row], of[p.column], prod(of[d] for d in p.over)) >= FEWEST


def _shifted(graph: TensorGraph, s: Statement, p: Contraction, signed: bool) -> TensorGraph:
    """The sums of the factor that stays, those of the products, and the difference in place of a product."""
    shift = Const(128, I32)
    kept, other = (p.left, p.right) if signed else (p.right, p.left)
    moved = Apply("add" if signed else "sub", (other, shift), I32)
    own, free = depends_on(kept), tuple(d for d in s.dims if not d.reduce)
    of_kept = tuple(d for d in s.dims if d.reduce or d.name in own)
    sums, total = _summed(graph, s, "signs", of_kept, kept)
    graph = replace(graph, tensors=(*graph.tensors, total))
    products, product = _summed(graph, s, "bytes", s.dims, Apply("mul", (kept, moved), I32))
    less = Apply("mul", (shift, Read(total.name, sums.write, I32)), I32)
    whole = Read(product.name, products.write, I32)
    outer = replace(s, dims=free, expr=Apply("sub" if signed else "add", (whole, less), I32), reduction=None)
    statements = [x for t in graph.statements for x in ((sums, products, outer) if t is s else (t,))]
    return replace(graph, statements=tuple(statements), tensors=(*graph.tensors, product))


def _summed(
    graph: TensorGraph, s: Statement, what: str, dims: tuple[IterDim, ...], e: Expr
) -> tuple[Statement, Tensor]:
    """The sum of an expression over what a statement sums, as a tensor of the other dims."""
    name = fresh_name(graph, f"{s.name}__{what}")
    free = [d for d in dims if not d.reduce]
    tensor = Tensor(name, I32, tuple(d.upper for d in free), Role.TEMP, s.span)
    write = tuple(IVar(d.name) for d in free)
    return replace(s, name=name, target=name, dims=dims, write=write, expr=e), tensor
