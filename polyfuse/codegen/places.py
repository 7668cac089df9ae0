"""Where updates go, and what they add, is computed in lanes; then they are made one after the other.

    for e in 0..N:                               for t in 0..N // 64:
      h[clamp(i64(x[e] * 12.5))] += exp(x[e])      for l in 0..64 @vec:
                                           ->        place[l] = clamp(i64(x[64*t + l] * 12.5))
                                                     term[l] = exp(x[64*t + l])
                                                   for l in 0..64:  h[place[l]] += term[l]
                                                 and what is left as it was

Iterations of a scatter may meet in an element (`codegen.collisions`), so the loop is no vector loop, and
everything in it would be computed one by one: conversions, bounds of indices, functions.  Updates keep their
order.  A million floats into 100 bins took four times as long.

Not where indices are checked: what is reported is the index that data had.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from polyfuse.codegen.c_family import guarded_load
from polyfuse.codegen.trips import most_trips
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.dtypes import I32, I64, DType
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary
from polyfuse.ir.intervals import of_dtype
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import (
    PLACES,
    Block,
    Declare,
    For,
    Node,
    Store,
    Update,
    map_nodes,
    nodes_of,
    substituted,
    values_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    IndexValue,
    Read,
    depends_on,
    reads,
)


def placed(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """See the module docstring. `numbers` numbers the arrays."""
    memory = {t.name: t.alias or t.name for t in kernel.graph.tensors}

    def change(node: Node) -> Node | Block:
        fits = isinstance(node, For) and _fits(node, memory)
        return _in_strips(kernel, node, numbers) if isinstance(node, For) and fits else node

    return map_nodes(block, change)


def _fits(loop: For, memory: dict[str, str]) -> bool:
    """A loop of updates, of which data says where, in no order but theirs; and is anything computed?"""
    if loop.coordinate is not Coordinate.SEQ or loop.step != 1 or loop.joint or guarded_load(loop.body):
        return False
    updates = [n for n in loop.body if isinstance(n, Update)]
    if not updates or not all(isinstance(n, (Update, Declare)) and not _is_array(n) for n in loop.body):
        return False
    if (most_trips(loop) or 2 * FITTED.places_strip) < 2 * FITTED.places_strip or any(
        n.atomic for n in updates
    ):
        return False
    if not all(_varies(n, loop.var) for n in updates):
        return False
    changed = {memory.get(n.buffer, n.buffer) for n in updates}
    where = (i for n in updates for i in n.indices if isinstance(i, EXPR_TYPES))
    every = [*values_of(nodes_of(loop.body)), *where]
    return not changed & {memory.get(r.tensor, r.tensor) for e in every for r in reads(e)}


def _is_array(n: Node) -> bool:
    return isinstance(n, Declare) and n.count > 0


def _varies(n: Update, var: str) -> bool:
    """Does data say for each iteration what is updated?"""
    return any(isinstance(i, EXPR_TYPES) and var in depends_on(i) for i in n.indices)


def _in_strips(kernel: Kernel, loop: For, numbers: itertools.count[int]) -> Block:
    """Whole strips, then what is left one by one."""
    count = binary("//", binary("-", loop.upper, loop.lower), FITTED.places_strip)
    strip, lane = f"{loop.var}_t", f"{loop.var}_l"
    first = binary("+", loop.lower, binary("*", IVar(strip), IConst(FITTED.places_strip)))
    there = {loop.var: binary("+", first, IVar(lane))}
    arrays: dict[tuple[str, Expr], Read] = {}

    def in_array(prefix: str, e: Expr, dtype: DType) -> Read:
        known = arrays.get((prefix, e))
        return known or arrays.setdefault((prefix, e), Read(f"{prefix}{next(numbers)}", (IVar(lane),), dtype))

    def moved(n: Update) -> Node:
        extents = kernel.buffer(n.buffer).extents
        indices = tuple(
            in_array(PLACES, _within(i, e), _narrow(e)) if isinstance(i, EXPR_TYPES) else i
            for i, e in zip(n.indices, extents, strict=True)
        )
        value = n.value if _plain(n.value) else in_array("%term", n.value, n.value.dtype)
        return replace(n, indices=indices, value=value)

    updates = tuple(moved(n) for n in loop.body if isinstance(n, Update))
    declared = tuple(n for n in loop.body if isinstance(n, Declare))
    fill = tuple(Store(r.tensor, r.indices, _as(e, r.dtype)) for (_, e), r in arrays.items())
    if all(_plain(n.value) for n in fill):
        return (loop,)  # nothing is computed
    lanes = For(lane, IConst(0), IConst(FITTED.places_strip), 1, (*declared, *fill), Coordinate.VECTOR)
    body = (
        *(Declare(r.tensor, r.dtype, None, FITTED.places_strip) for r in arrays.values()),
        *substituted((lanes,), there),
        *substituted((For(lane, IConst(0), IConst(FITTED.places_strip), 1, updates),), there),
    )
    whole = binary("+", loop.lower, binary("*", count, IConst(FITTED.places_strip)))
    return For(strip, IConst(0), count, 1, body), replace(loop, lower=whole)


def _within(e: Expr, extent: IndexExpr) -> Expr:
    """An index between 0 and the last element of a dim."""
    low, high = of_dtype(e.dtype)
    known = isinstance(extent, IConst) and extent.value <= 2**31
    dtype = I32 if known and e.dtype.bits <= 32 else I64
    inside = _as(e, dtype)
    if low < 0:
        inside = Apply("max", (inside, Const(0, dtype)), dtype)
    if not (isinstance(extent, IConst) and high < extent.value):
        inside = Apply("min", (inside, IndexValue(binary("-", extent, 1), dtype)), dtype)
    return inside


def _narrow(extent: IndexExpr) -> DType:
    """The type of places in a dim."""
    return I32 if isinstance(extent, IConst) and extent.value <= 2**31 else I64


def _as(e: Expr, dtype: DType) -> Expr:
    return e if e.dtype == dtype else Cast(e, dtype)


def _plain(e: Expr) -> bool:
    """Is a value there already, or made of what is by conversions alone?"""
    inner = e
    while isinstance(inner, Cast):
        inner = inner.arg
    return isinstance(inner, Const | IndexValue) or (
        isinstance(inner, Read)
        and not inner.tensor.startswith("%")
        and not any(isinstance(i, EXPR_TYPES) for i in inner.indices)
    )
