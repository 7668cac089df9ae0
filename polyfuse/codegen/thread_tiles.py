"""Sums of products over a tile of rows and a vector of columns stay in registers of a GPU's thread.

    for k: for i in 0..R: for v in 0..4 @vec: c[4*ty + i, 4*tx + v] += a[4*ty + i, k] * b[k, 4*tx + v]
becomes
    s0[4] = 0, s1[4] = 0, ...
    for k: for v in 0..4 @vec: s0[v] += a[4*ty, k] * b[k, 4*tx + v]; s1[v] += a[4*ty + 1, k] * ...
    c[4*ty, 4*tx + v] += s0[v]; ...

Rows are written out, because an array stays in registers only where every index is known.  A tile is
computed whole: where the result ends inside of it, its last row or column is read again, and not stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from polyfuse.codegen.accumulators import nonempty
from polyfuse.codegen.register_tiles import SumNest, span_of, sum_nest
from polyfuse.codegen.windows import strip_of
from polyfuse.ir.contraction import joined
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, substitute
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Update, map_outermost, substituted
from polyfuse.ir.tensor_graph import Apply, Const, Expr, IndexValue, Read, map_expr

MOST_ROWS = 8


def thread_tiles(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """The block with such sums in registers. `numbers` numbers the arrays."""

    def tile(loop: For) -> list[Node] | None:
        nest = sum_nest(loop)
        return _tile(kernel, nest, numbers) if nest is not None else None

    return map_outermost(block, tile)


def _tile(kernel: Kernel, nest: SumNest, numbers: itertools.count[int]) -> list[Node] | None:
    row, lane, update = nest.row, nest.lane, nest.update
    strips = strip_of(row), strip_of(lane)
    if strips[0] is None or strips[1] is None or row.lower != IConst(0) or lane.lower != IConst(0):
        return None
    rows, lanes = strips[0].length, strips[1].length
    if rows > MOST_ROWS or lanes > kernel.vector or any(_outside(kernel, nest, x) for x in (row, lane)):
        return None
    dtype = update.value.dtype
    names = [f"%s{next(numbers)}" for _ in range(rows)]
    zero = Const(0.0, dtype)
    before: list[Node] = [Declare(n, dtype, zero, kernel.vector) for n in names]
    column = _last(lane, IVar(lane.var))
    sums: list[Node] = []
    for r, name in enumerate(names):
        left = _at(nest.left, {row.var: _last(row, as_index(r))})
        right = _at(nest.right, {lane.var: column})
        sums.append(Update(name, (IVar(lane.var),), "sum", joined(update.value, left, right)))
    inner: Block = (replace(lane, upper=as_index(kernel.vector), body=tuple(sums)),)
    for loop in reversed(nest.over):
        inner = (replace(loop, body=inner),)
    after: list[Node] = []
    for r, name in enumerate(names):
        total = replace(update, value=Read(name, (IVar(lane.var),), dtype))
        stored = substituted((replace(lane, body=(total,)),), {row.var: as_index(r)})
        after += stored if row.upper == IConst(rows) else [If(_less(as_index(r), row.upper), stored)]
    whole: Block = (*before, *inner, *after)
    for cond in (*(nonempty(row, set()) or ()), *(nonempty(lane, set()) or ())):
        whole = (If(cond, whole),)
    return list(whole)


def _less(a: IndexExpr, b: IndexExpr) -> Apply:
    return Apply("lt", (IndexValue(a, I64), IndexValue(b, I64)), BOOL)


def _last(loop: For, value: IndexExpr) -> IndexExpr:
    """A place of a tile, or the last one that exists; the first one does."""
    if isinstance(loop.upper, IConst) and not isinstance(value, IConst):
        return value
    return value if value == IConst(0) else binary("min", value, binary("-", loop.upper, 1))


def _at(e: Expr, env: Mapping[str, IndexExpr]) -> Expr:
    return map_expr(e, lambda x: x, lambda i: substitute(i, env))


def _outside(kernel: Kernel, nest: SumNest, loop: For) -> bool:
    """May the last place of a tile, with what is summed for other places, be outside of a tensor?"""
    return span_of(kernel, nest.update, loop.var) is None
