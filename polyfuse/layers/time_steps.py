"""Steps of a recurrence that workers share, on a CPU.

    B(t)[B(i, k)(u); B(k)(edge); m]      becomes      B(t @tim)[B(i @blk, k)(u); B(k)(edge); m]

Loop t runs in order.  A step of it is cut into *parts*, those that are spread over workers and what lies
between them, and a part begins when all workers are done with the one before.  So a part is to the others
what a kernel is to other kernels: whatever goes from one to another, or to a later step, lives in memory that
all workers see.  `cost.shared_steps` says whether it pays.
"""

from __future__ import annotations

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar
from polyfuse.ir.schedule_tree import Band, Coordinate, Member, Sequence, Tree, sequence
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.nest import dim_of


def time_loop(tree: Tree) -> Member | None:
    """The loop whose steps are shared by workers, if the tree has one."""
    first = tree.members[0] if isinstance(tree, Band) else None
    return first if first is not None and first.coordinate is Coordinate.TIME else None


def parts_of(body: Tree) -> list[Tree]:
    """A step in parts: each nest that is spread over workers, and what lies between them."""
    children = body.children if isinstance(body, Sequence) else (body,)
    parts: list[list[Tree]] = []
    for c in children:
        if parts and not (is_spread(c) or is_spread(parts[-1][-1])):
            parts[-1].append(c)
        else:
            parts.append([c])
    return [sequence(p) for p in parts]


def apart_from_steps(tree: Tree) -> list[Tree]:
    """A nest with steps that are shared, apart from what is beside them (where sums over all steps begin)."""
    beside = isinstance(tree, Sequence) and any(time_loop(c) for c in tree.children)
    return list(tree.children) if isinstance(tree, Sequence) and beside else [tree]


def is_spread(tree: Tree) -> bool:
    """Are iterations of the nest shared out?"""
    return isinstance(tree, Band) and tree.members[0].coordinate is Coordinate.BLK


def steps_of(graph: TensorGraph, time: Member) -> range | None:
    """The values of a loop that steps through a dim with constant bounds, up or down; else None."""
    found = [_values(graph, n, e) for n, e in time.exprs]
    known = [r for r in found if r]
    if None in found or not known:
        return None
    return range(min(r.start for r in known), max(r.stop for r in known))


def _values(graph: TensorGraph, statement: str, e: IndexExpr) -> range | None:
    match e:
        case IVar(name):
            d = dim_of(graph.statement(statement), name)
            if d is not None and isinstance(d.lower, IConst) and isinstance(d.upper, IConst):
                return range(d.lower.value, d.upper.value)
        case IBin("-", IConst(0), right):
            up = _values(graph, statement, right)
            return None if up is None else range(1 - up.stop, 1 - up.start)
    return None
