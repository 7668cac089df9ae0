"""Where the temporaries of a GPU kernel live.

register   all that touch an element are one thread (or each thread has a copy of its own)
local      the same with a few elements, a small array of the thread
global     the rest
"""

from __future__ import annotations

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import evaluate, product, sizes
from polyfuse.ir.kernel import Buffer, Scope
from polyfuse.ir.schedule_tree import Coordinate, Member, Tree, path
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.domains import PolyModel
from polyfuse.poly.footprint import Window, window

# Elements of a thread's own array: more would not stay in registers.
LARGEST_LOCAL = 64


def gpu_buffer(
    graph: TensorGraph, part: PolyModel, tree: Tree, name: str, decisions: list[Decision]
) -> Buffer:
    """Storage of a temporary that only this kernel uses. `tree` has spread loops as one (`sequential`)."""
    tensor = graph.tensor(name)
    found = window(part, tree, name)
    users = [s.name for s in (*graph.writers(name), *graph.readers(name))]
    if all(_private(found, tree, n) for n in users) and not _crosses(graph, tree, name):
        if found.scalar:
            reason = "one element lives in a thread at a time"
            decisions.append(Decision("contract", name, True, f"to a register: {reason}"))
            return Buffer(name, tensor.dtype, Scope.REGISTER, found.extents, tensor.shape, reason)
        elements = product(found.extents)
        if not sizes(elements) and evaluate(elements, {}) <= LARGEST_LOCAL:
            reason = f"{evaluate(elements, {})} elements live in a thread at a time"
            decisions.append(Decision("contract", name, True, f"to an array of the thread: {reason}"))
            return Buffer(name, tensor.dtype, Scope.LOCAL, found.extents, tensor.shape, reason)
    reason = "several threads use it, or too much of it lives at a time"
    decisions.append(Decision("contract", name, False, reason))
    return Buffer(name, tensor.dtype, Scope.GLOBAL, tensor.shape, tensor.shape, reason)


PARALLEL = (Coordinate.BLK, Coordinate.ROW, Coordinate.THREAD, Coordinate.ROUND)


def _private(found: Window, tree: Tree, statement: str) -> bool:
    """Does every iteration of the block, row and thread loops around a statement have its own storage?

    A loop that threads share (ROUND) around only some users is the matter of `_crosses`.
    """
    mine = [
        m
        for m in path(tree, statement)
        if isinstance(m, Member) and m.coordinate in PARALLEL and m.coordinate is not Coordinate.ROUND
    ]
    return all(any(m.name == x.name and m.coordinate == x.coordinate for x in found.loops) for m in mine)


def _crosses(graph: TensorGraph, tree: Tree, name: str) -> bool:
    """Does a tensor go from threads that share a loop to others?

    The total of a reduction is in every thread once the threads have combined what they have.
    """
    inside = {
        s.name: _shared_loop(tree, s.name)
        for s in (*graph.writers(name), *graph.readers(name))
        if not (s.target == name and s.reduction is not None)
    }
    written = {inside[s.name] for s in graph.writers(name) if s.name in inside}
    read = {inside[s.name] for s in graph.readers(name) if s.name in inside}
    return (any(w is not None for w in written) and (written | read) != written) or len(written) > 1


def _shared_loop(tree: Tree, statement: str) -> str | None:
    """The loop that threads share around a statement, by the names and positions on the way to it."""
    way = list(path(tree, statement))
    shared = [k for k, m in enumerate(way) if isinstance(m, Member) and m.coordinate is Coordinate.ROUND]
    if not shared:
        return None
    return "/".join(str(x) if isinstance(x, int) else x.name for x in way[: shared[-1] + 1])
