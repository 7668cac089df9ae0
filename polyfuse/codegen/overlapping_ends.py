"""The rest of a row of windows is computed as one more vector, which computes some elements again.

    for c in 0..62 @vec: y[c] = x[c] + x[c + 1]     ->     for c in 0..48 @vec:   y[c] = x[c] + x[c + 1]
                                                           for c in 46..62 @vec:  y[c] = x[c] + x[c + 1]

A rest goes in halves of vectors, and then one by one, each with as many loads as the window has terms.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.codegen.jam import EXTREMES
from polyfuse.codegen.merged_rows import has_window, is_row
from polyfuse.codegen.touched import memory_of
from polyfuse.codegen.trips import trip_of
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, Node, Store, Update, map_nodes, values_of
from polyfuse.ir.tensor_graph import reads

# Steps that a rest of sums takes, from which on a vector is shorter.  Extremes care for NaN, and take so long
# one by one that it always is.
FEWEST_STEPS = 4
# Numbers of 16 bits have rests of their own (`codegen.masked_tails`).
LEAST_BYTES = 4


def overlapping_ends(kernel: Kernel, block: Block, core: Core) -> Block:
    """See the module docstring."""
    return map_nodes(block, lambda n: _with_end(kernel, n, core) if isinstance(n, For) else n)


def _with_end(kernel: Kernel, row: For, core: Core) -> Node | Block:
    trip, values = trip_of(row), tuple(values_of(row.body))
    if not trip or not isinstance(row.upper, IConst) or not (is_row(row) and has_window(row)):
        return row
    (size, *others) = {v.dtype.bytes for v in values}
    lanes = core.vector_bytes // size
    if (
        others
        or size < LEAST_BYTES
        or trip < lanes
        or not (_is_long(row, trip % lanes, lanes) and _repeats(kernel, row))
    ):
        return row
    end = row.upper.value
    return replace(row, upper=IConst(end - trip % lanes)), replace(row, lower=IConst(end - lanes))


def _is_long(row: For, rest: int, lanes: int) -> bool:
    """Does a rest take longer than a vector?  gcc uses halves and quarters of vectors."""
    half, quarter = max(1, lanes // 2), max(1, lanes // 4)
    if any(isinstance(n, Update) and n.op in EXTREMES for n in row.body):
        return rest % half > 0
    return rest // half + rest % half // quarter + rest % quarter >= FEWEST_STEPS


def _repeats(kernel: Kernel, row: For) -> bool:
    """Does an iteration make the same once more, as it sets all that it changes?"""
    written = {memory_of(kernel, n.buffer) for n in row.body if isinstance(n, (Store, Update))}
    known: set[str] = set()
    for n in row.body:
        if any(memory_of(kernel, r.tensor) in written - known for v in values_of([n]) for r in reads(v)):
            return False
        if isinstance(n, Update) and memory_of(kernel, n.buffer) not in known:
            return False
        known |= {memory_of(kernel, n.buffer)} if isinstance(n, Store) else set()
    return True
