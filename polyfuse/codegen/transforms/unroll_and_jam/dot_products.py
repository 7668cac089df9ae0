"""Sums along memory for a few rows and columns are computed together: each factor is loaded once for all.

    for m in 0..3:                               for n in 4*c..4*c+4: ...
      for n in 4*c..4*c+4:                       a0 = 0; a1 = 0; ...; a11 = 0
        a = 0                                    for k @vec:
        for k @vec: a += x[m, k] * w[n, k]   ->    a0 += x[0, k] * w[4*c, k];  a1 += x[0, k] * w[4*c + 1, k]
        y[m, n] += a                               ...;  a11 += x[2, k] * w[4*c + 3, k]
                                                 y[0, 4*c] += a0;  y[0, 4*c + 1] += a1;  ...

One product takes two loads, twelve take seven, and each row of the larger factor comes from memory once for
all rows of the other.  The lanes of each sum are one vector (eight elements at least, of f16 sixteen): so all
sums stay in registers.  What is left of rows and columns has as many: a sum does not depend on its place.

Layer II makes such loops (`layers.contractions.tile_shapes`): short strips of rows and of columns, with
nothing in them but the sum, whose factors depend on a row or on a column.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from polyfuse.codegen.analysis.dependence import independent
from polyfuse.codegen.analysis.index_ranges import strip_of
from polyfuse.codegen.analysis.reduction_nests import bounds_of
from polyfuse.codegen.passes import missed
from polyfuse.codegen.transforms.unroll_and_jam.rule import Jam, LoopRule, jammed
from polyfuse.codegen.transforms.unroll_and_jam.weave import Join, Joins
from polyfuse.ir.cpu_core import Core, CpuKnobs, dots_fit, vectors_of_sum
from polyfuse.ir.dtypes import F16
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import (
    For,
    Node,
    Update,
    map_nodes,
    nodes_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, depends_on, reads


def _matches(kernel: Kernel, loop: For, knobs: CpuKnobs) -> Jam | None:
    shape = _shape(kernel, loop, knobs.on) if knobs.rows != 1 else None
    if shape is None:
        return None
    rows, columns = shape
    (inner,) = map_nodes(loop.body, lambda n: few_lanes(n, knobs.on))
    assert isinstance(inner, For)
    together = tuple(jammed(inner, Jam(columns, inner.body, joins_of_products(columns))))
    return Jam(rows, together, joins_of_products(rows), rows=rows * columns)


DOT_PRODUCTS = LoopRule(
    "dot-products", "sums along memory of a few rows and columns are computed together", _matches
)


def _shape(kernel: Kernel, rows: For, core: Core) -> tuple[int, int] | None:
    """How many rows and columns the sums of a nest have, if it is one of these and registers hold them."""
    (columns, *others) = rows.body or (None,)
    if not isinstance(columns, For) or others:
        return None
    strips = strip_of(rows), strip_of(columns)
    sums = [n for n in nodes_of(columns.body) if isinstance(n, For) and n.coordinate is Coordinate.VECTOR]
    if (
        strips[0] is None
        or strips[1] is None
        or len(sums) != 1
        or not multiplies(sums[0], {rows.var}, {columns.var})
    ):
        return None
    inner = [n for n in nodes_of(columns.body) if isinstance(n, For)]
    if rows.var in bounds_of([columns, *inner]) or columns.var in bounds_of(inner):
        return None
    if not (independent(kernel, rows) and independent(kernel, columns)):
        return None
    shape = strips[0].length, strips[1].length
    (update,) = sums[0].body
    assert isinstance(update, Update)
    fits = sums_fit(*shape, update, core)
    if max(shape) > 1 and not fits:
        missed((rows,), "registers do not hold the sums")
    return shape if max(shape) > 1 and fits else None


def multiplies(loop: For, rows: Set[str], columns: Set[str], own: Set[str] = frozenset()) -> bool:
    """Does a loop only add products of what a row and what a column has to one scalar, in lanes? These are
    told by their variables, or by arrays that are a row's own."""
    match loop.body:
        case (Update(buffer, (), "sum", Apply("mul", (left, right))),) if loop.lanes == (buffer,):
            known = [depends_on(e) for e in (left, right)]
            mine = [any(r.tensor in own for r in reads(e)) for e in (left, right)]
            of = [(m or bool(k & rows), bool(k & columns)) for k, m in zip(known, mine, strict=True)]
            return of in ([(True, False), (False, True)], [(False, True), (True, False)])
        case _:
            return False


def sums_fit(rows: int, columns: int, update: Update, core: Core) -> bool:
    """Do registers hold the sums of so many rows and columns?"""
    return dots_fit(rows, columns, core, update.value.dtype.bytes, _halves(update))


def _halves(update: Update) -> bool:
    """Are factors converted from f16?"""
    return any(r.dtype == F16 for r in reads(update.value))


def few_lanes(n: Node, core: Core) -> Node:
    """A loop with as few lanes as a sum can have."""
    if not isinstance(n, For) or not n.lanes:
        return n
    (update,) = n.body
    assert isinstance(update, Update)
    vectors = vectors_of_sum(core, update.value.dtype.bytes, _halves(update))
    return replace(n, lane_bytes=vectors * core.vector_bytes)


def joins_of_products(rows: int) -> Joins:
    """How loops of so many rows are joined: sums of a step in the order in which those factors stay in
    registers that there are fewer of, and each of the others is needed once."""

    def join(loop: For) -> Join:
        if not loop.lanes:
            return Join.JAMMED
        return Join.CONCATENATED if rows > len(loop.body) else Join.INTERLEAVED

    return join
