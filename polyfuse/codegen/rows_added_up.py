"""Short rows of one total go several at a time, before lanes are added up.

    for n in 0..128:                              for n in 0..128 by 4:
      for i in 0..49 @vec: acc += x[n, i]   ->      for i in 0..49 @vec:
                                                      acc += (x[n, i] + x[n+1, i]) + (x[n+2, i] + x[n+3, i])

Lanes that live through the outer loop would have to be added up once only, but gcc keeps them in memory
between the rows.  With four rows they are added up a fourth as often.  Rows whose lines share sets of L1 go
one by one, as the hardware fetches them better.  What asks for lines has seen single rows
(`codegen.next_rows`).  Sums may be reassociated (Meaning, in the language).
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.codegen.jam import in_one
from polyfuse.codegen.rows_jammed import in_steps
from polyfuse.codegen.strides_of_reads import strides_of
from polyfuse.codegen.tasks import Task
from polyfuse.codegen.trips import most_trips, trip_of
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import L1_WAY
from polyfuse.ir.index_expr import variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, Node, Update, map_nodes, values_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Read, reads


def rows_added_up(kernel: Kernel, task: Task) -> Task:
    """See the module docstring."""

    def together(node: Node) -> Node | Block:
        if isinstance(node, For) and _fits(kernel, node):
            return tuple(in_steps(node, in_one(node, FITTED.rows_added_up_rows), FITTED.rows_added_up_rows))
        return node

    return replace(task, body=map_nodes(task.body, together))


def _fits(kernel: Kernel, rows: For) -> bool:
    """A loop over nothing but a short vector loop of sums, whose lanes are added up each time?"""
    match rows:
        case For(body=(For(lanes=(_, *_)) as inner,), coordinate=Coordinate.SEQ, step=1, joint=False):
            trip = trip_of(inner)
        case _:
            return False
    if (
        inner.joint
        or inner.coordinate is not Coordinate.VECTOR
        or (most_trips(rows) or 0) < 2 * FITTED.rows_added_up_rows
    ):
        return False
    if (
        trip is None
        or trip > FITTED.rows_added_up_longest
        or rows.var in variables(inner.lower) + variables(inner.upper)
    ):
        return False
    changed = {n.buffer for n in inner.body if isinstance(n, Update)}
    sums = all(isinstance(n, Update) and _adds(n, changed) for n in inner.body)
    read = [r for e in values_of(inner.body) for r in reads(e)]
    return sums and len(changed) == len(inner.body) and not any(_crowded(kernel, r, rows.var) for r in read)


def _adds(n: Update, changed: set[str]) -> bool:
    """Is an update one of a number's sums, and does it need none of them?"""
    return n.op == "sum" and not n.indices and not changed & {r.tensor for r in reads(n.value)}


def _crowded(kernel: Kernel, r: Read, row: str) -> bool:
    """Do neighbouring rows of a tensor lie in the same sets of L1?"""
    (apart,) = (n * r.dtype.bytes for n in strides_of(kernel, r, row))
    return apart != 0 and apart % L1_WAY == 0
