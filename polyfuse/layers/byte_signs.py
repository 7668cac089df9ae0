"""Products of bytes that have signs both, or neither, become products of bytes of which one factor has signs.

    c[m, n] = sum[k](i32(a[m, k]) * i32(b[k, n]))          of i8 both
becomes
    s[m] = sum[k](i32(a[m, k]))
    d[m, n] = sum[k](i32(a[m, k]) * (i32(b[k, n]) + 128))
    c[m, n] = d[m, n] - 128 * s[m]

and of u8 the same with `a - 128`, `+ 128` and sums of `b`.  A core that multiplies bytes of such factors
takes four steps at once (`layers.paired_steps`).  All is exact, as i32 wraps.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.dtypes import I32
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.short_integers import is_byte
from polyfuse.ir.tensor_graph import (
    Apply,
    Const,
    Expr,
    IterDim,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    depends_on,
)
from polyfuse.layers.factors import Product
from polyfuse.layers.fresh import fresh_name
from polyfuse.layers.product_measures import extents_of
from polyfuse.layers.products import product_of

# Rows, columns and steps at least: to sum up a factor is a small part of the products.
FEWEST = 32


def with_one_sign(graph: TensorGraph, decisions: list[Decision], core: Core) -> TensorGraph:
    """The graph with such products, on a core that multiplies them."""
    if not core.byte_products or graph.sizes:
        return graph
    for s in graph.statements:
        p = product_of(graph, s, core) if s.expr.dtype == I32 else None
        if p is None or any(d.lower != IConst(0) for d in s.dims) or not _worth(s, p):
            continue
        signed = next((k for k in (True, False) if _both(p, k)), None)
        if signed is not None:
            graph = _shifted(graph, s, p, signed)
            shift = "columns + 128" if signed else "rows - 128"
            why = f"one factor shall have signs and the other none: {shift}, less the sums of the other"
            decisions.append(Decision("bytes", s.target, True, why))
    return graph


def _both(p: Product, signed: bool) -> bool:
    """Are both factors bytes with signs, or without, and neither of them is both?"""
    return all(is_byte(e, signed) and not is_byte(e, not signed) for e in (p.left, p.right))


def _worth(s: Statement, p: Product) -> bool:
    of = extents_of(s)
    return min(of[p.row], of[p.column], prod(of[d] for d in p.over)) >= FEWEST


def _shifted(graph: TensorGraph, s: Statement, p: Product, signed: bool) -> TensorGraph:
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
