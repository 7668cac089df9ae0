"""Two loops become one: neighbours over one row (loop fusion), and nested ones that add (loop collapse).

`fuse_loops` and `collapse_reductions` are passes.

Loops over a row, one after the other, become one where each element needs its own only.

    for c @vec: s[c] = 0                                     for c @vec:
    for c @vec: s[c] sum= x[c] + x[c + 1] + x[c + 2]   ->      s[c] = 0; s[c] sum= x[c] + x[c + 1] + x[c + 2]
    for c @vec: y[c] = s[c] / 3                                y[c] = s[c] / 3

Schedules keep them apart: there were loops over a window in between
(`codegen.transforms.unroll_and_jam.stencils`).  In one loop totals stay in registers.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.codegen.analysis.dependence import at, has_window, is_row, own_elements
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import LANE_VECTORS, Core
from polyfuse.ir.index_expr import IConst, IVar, binary
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, If, Node, Update, map_nodes, substituted, values_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Read, depends_on, reads

# --- loop fusion ------------------------------------------------------------------------------------------


def fuse_loops(kernel: Kernel, block: Block) -> Block:
    """See the module docstring."""
    result: list[Node] = []
    for node in block:
        match node:
            case For():
                node = replace(node, body=fuse_loops(kernel, node.body))
            case If():
                node = replace(node, then=fuse_loops(kernel, node.then), other=fuse_loops(kernel, node.other))
            case _:
                pass
        if result and (whole := _merged(kernel, result[-1], node)):
            result[-1] = whole
        else:
            result.append(node)
    return tuple(result)


def _merged(kernel: Kernel, a: Node, b: Node) -> For | None:
    if not (isinstance(a, For) and isinstance(b, For) and is_row(a) and is_row(b)):
        return None
    if (a.lower, a.upper) != (b.lower, b.upper) or not (has_window(a) or has_window(b)):
        return None
    if not own_elements(kernel, [a, b]):
        return None
    return replace(a, body=(*a.body, *at(b, IVar(a.var))))


# --- loop collapse ----------------------------------------------------------------------------------------

# Sums over two loops are summed in one, where lanes would run along a short one again and again.
#
#     for g in 0..16:                                       for v in 0..2048 @vec:
#       for k in 0..128 @vec: acc += w[g, k] * s[g]   ->      acc += w[v // 128, v % 128] * s[v // 128]
#
# Lanes are added up once, not for each g.  The digits of v are the same for all lanes of a step
# (`codegen.analysis.periodicity.by_steps`), so the inner loop is whole steps of a vector or more.  Of longer
# sums so many g go together as lanes may add: lanes are single precision, and what they are added to is not
# (`codegen.transforms.wide_accumulators`).
#
#     for g in 0..1024:                                     for p in 0..8:
#       for k in 0..128 @vec: acc += ...              ->      for v in 16384 p..16384 (p + 1) @vec: acc += ...


def collapse_reductions(block: Block, core: Core) -> Block:
    """See the head of this section."""
    return map_nodes(block, lambda n: _changed(n, core) if isinstance(n, For) else n)


def _changed(outer: For, core: Core) -> Node:
    match outer.body:
        case (For(lanes=(_, *_)) as inner,) if _plain(outer, Coordinate.SEQ) and not inner.lane_bytes:
            pass
        case _:
            return outer
    if not _plain(inner, Coordinate.VECTOR) or not all(isinstance(n, Update) for n in inner.body):
        return outer
    rows, length = trip_of(outer) or 0, trip_of(inner) or 0
    widest = max(n.value.dtype.bytes for n in inner.body if isinstance(n, Update))
    lanes = min(length & -length, LANE_VECTORS * core.vector_bytes // widest)
    if (
        lanes < FITTED.collapse_reductions_fewest_lanes
        or rows < 2
        or length // lanes > FITTED.collapse_reductions_most_steps
    ):
        return outer
    if not all(_along(r, inner.var) for e in values_of(inner.body) for r in reads(e)):
        return outer  # tiles that are transposed need both loops
    v = IVar(inner.var)
    digits = {outer.var: binary("//", v, length), inner.var: binary("%", v, length)}
    body = substituted(inner.body, digits)
    together = _together(rows, FITTED.collapse_reductions_most_terms * lanes // length)
    if together == rows:
        return replace(inner, upper=IConst(rows * length), body=body)
    part = IVar(f"{outer.var}_p")
    low = binary("*", part, together * length)
    high = binary("+", low, together * length)
    if rows % together:
        high = binary("min", high, rows * length)
    within = replace(inner, lower=low, upper=high, body=body)
    return replace(outer, var=part.name, upper=IConst(-(-rows // together)), body=(within,))


def _together(rows: int, most: int) -> int:
    """Rows of a part: all, or a divisor that is not much less than the most, or that."""
    if rows <= most:
        return rows
    return next((n for n in range(most, most // 2, -1) if rows % n == 0), most)


def _plain(loop: For, at: Coordinate) -> bool:
    """A loop from 0 on, all that it is?"""
    known = isinstance(loop.lower, IConst) and loop.lower.value == 0 and loop.step == 1
    return known and loop.coordinate is at and not loop.joint


def _along(r: Read, var: str) -> bool:
    """Does memory lie along a loop, as far as what is read depends on it?"""
    *others, last = r.indices or (IConst(0),)
    return var not in depends_on(*others) and (var not in depends_on(last) or last == IVar(var))
