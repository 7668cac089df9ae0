"""A contraction in numbers: what the choice of its tiles needs to know (`layers.tile_shapes`)."""

from __future__ import annotations

from math import prod

from polyfuse.ir.contraction import is_difference
from polyfuse.ir.dtypes import F16
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.tensor_graph import Expr, IterDim, Read, Statement, TensorGraph, depends_on, reads
from polyfuse.layers.factors import Product, along, contiguous
from polyfuse.layers.strides import address, stride
from polyfuse.layers.tile_shapes import CROWDED, Extents


def extents_of(s: Statement) -> dict[str, int]:
    """How long its dims are; 0 where that is not one number."""
    return {d.name: _extent(d) for d in s.dims}


def _extent(d: IterDim) -> int:
    """How long a dim is; 0 where that is not one number."""
    known = isinstance(d.lower, IConst) and isinstance(d.upper, IConst)
    return max(0, d.upper.value - d.lower.value) if known else 0  # type: ignore[union-attr]


def measures(graph: TensorGraph, s: Statement, p: Product) -> Extents:
    """A contraction in numbers."""
    of = extents_of(s)
    steps, outer = prod(of[d] for d in p.over), prod(of[d] for d in p.outer)
    copied = not contiguous(graph, p.right, p.column)
    crowded = not copied and _crowded(graph, s, p.right)
    turned = not any(contiguous(graph, r, p.column) for r in reads(p.right))
    dim = None if is_difference(s.expr) else along(graph, p)  # sums along memory are those of products
    length = 0 if dim is None else of[dim]
    halves = any(r.dtype == F16 for e in (p.left, p.right) for r in reads(e))
    shared = prod(of[d] for d in set(p.outer) - depends_on(p.right))
    size = s.expr.dtype.bytes
    apart = _apart(graph, s, p) * size
    beside = contiguous(graph, p.left, p.row)
    rows, columns = of[p.row], of[p.column]
    return Extents(
        rows, columns, steps, outer, size, copied, turned, crowded, length, halves, shared, apart, beside
    )


def _apart(graph: TensorGraph, s: Statement, p: Product) -> int:
    """Elements from one row of the left factor to the next, where tiles follow rows along what is summed."""
    if not any(contiguous(graph, p.left, d) for d in s.reduction_dims):
        return 0
    assert isinstance(p.left, Read)
    return abs(stride(address(graph, p.left.tensor, p.left.indices), p.row) or 0)


def _crowded(graph: TensorGraph, s: Statement, e: Expr) -> bool:
    """Is what is read for one step after the other in so few sets of L2 that it does not stay there?"""
    assert isinstance(e, Read)
    where, size = address(graph, e.tensor, e.indices), e.dtype.bytes
    steps = [stride(where, d) for d in s.reduction_dims]
    return any(x is not None and x > 0 and x * size % CROWDED == 0 for x in steps)
