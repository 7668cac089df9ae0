"""Short loops that compilers shall write out, to find vectors in the loop around.

    for a in 0..N:                              for a in 0..N:
      for c in 0..4 @vec:                ->       y[a, 0] = exp(x[a, 0]);  ...;  y[a, 3] = exp(x[a, 3])
        y[a, c] = exp(x[a, c])

gcc writes such a loop out where what comes of it is small enough, and makes whole vectors of several
iterations of the loop around. With two functions it is too large: vectors of two or four lanes are left, or
numbers. `PF_WRITTEN` has it written out whatever its size.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.codegen.tasks import Task
from polyfuse.codegen.trips import trip_of
from polyfuse.ir.functions import has_function
from polyfuse.ir.loop_ir import Block, Comment, Declare, For, Node, Store, Update, map_nodes, values_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import depends_on

# Iterations of such a loop: more fill vectors well enough (`c_family`).
SHORTEST, LONGEST = 2, 4
WRITTEN = """\
// gcc writes such loops out whatever their size, and finds vectors in the loop around.
#if defined(__clang__)
#define PF_WRITTEN
#else
#define PF_WRITTEN _Pragma("GCC unroll 16")
#endif
"""


def with_loops_written_out(task: Task) -> Task:
    """The task, with such loops marked, if they are all that the loop around them has."""

    def marked(n: Node) -> Node:
        return replace(n, body=_marked(n.body, n.var)) if isinstance(n, For) else n

    body, along = map_nodes(task.body, marked), map_nodes(task.along, marked)
    if task.loops and not task.jammed > 1:
        body = _marked(body, task.loops[-1].var)
    return replace(task, body=body, along=along)


def _marked(body: Block, around: str) -> Block:
    """The body of a loop around, with its loop marked if it is such a one."""
    loops = [n for n in body if isinstance(n, For)]
    if len(loops) != 1 or any(not isinstance(n, (For, Declare, Store, Comment)) for n in body):
        return body
    loop = loops[0]
    straight = all(isinstance(n, (Declare, Store, Update)) for n in loop.body)
    vector = loop.coordinate is Coordinate.VECTOR and not (loop.lanes or loop.joint or loop.vector)
    short = SHORTEST <= (trip_of(loop) or 0) <= LONGEST
    if not (straight and vector and short and any(map(has_function, values_of(loop.body)))):
        return body
    own = {n.name for n in (*body, *loop.body) if isinstance(n, Declare)}
    stored = [n for n in loop.body if isinstance(n, (Store, Update)) and n.buffer not in own]
    if any(around not in depends_on(*n.indices) for n in stored):
        return body  # iterations meet in memory: no vectors are found there
    return tuple(replace(n, written=True) if n is loop else n for n in body)
