"""Barriers of the block where a GPU kernel needs them, and nowhere else.

    red[tx // 32] = a  (by the first lanes)          red[tx // 32] = a
    b = red[w]                              ->       barrier of the block
                                                     b = red[w]

Each pair of accesses that nothing keeps in order yet gets a barrier right before the second, in the
innermost sequence that both are in; a pair that a loop carries gets one at the end of the loop.  Then
every barrier that others made superfluous is taken out again, and the reason of those that stay names
what goes wrong without them.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.diagnostics import Diagnostic, ScheduleError
from polyfuse.ir.index_expr import IndexExpr
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import Barrier, BarrierScope, Block, For, If, Node
from polyfuse.poly.barriers.conflicts import Barriers, Demand, concerned
from polyfuse.poly.barriers.loop_events import Wait, events
from polyfuse.poly.barriers.loop_regions import STRIDE, Place
from polyfuse.poly.barriers.proof import Checker
from polyfuse.poly.model.isl_bridge import isl_lock

_END = STRIDE << 32  # a position after all nodes of a block


def insert_barriers(
    kernel: Kernel, block: Block, blocks: IndexExpr | int, copied: frozenset[str] = frozenset()
) -> tuple[Block, tuple[str, ...]]:
    """The block with the barriers that a launch with that many blocks needs, and the reason of each.

    Arguments are those of `check_barriers`; what it returns passes that check.  Barriers that are there
    already stay.  Raises ScheduleError: PF531 if one of these is not reached by all
    threads, PF532 if blocks would have to wait for each other, PF533 if no barrier can help.
    """
    found = events(kernel, block, blocks, copied)
    if not found.waits and not found.accesses:
        return block, ()
    with isl_lock:
        checker = Checker(found)
        problem = checker.any_divergent()
        if problem is not None:
            raise ScheduleError([problem.diagnostic])
        added = _chosen(checker)
    if not added:
        return block, ()
    by_place = {w.place.positions: w.node for w in added if isinstance(w.node, Barrier)}
    reasons = tuple(by_place[p].reason for p in sorted(by_place))
    return _rebuilt(block, (), by_place), reasons


def without_unneeded(
    kernel: Kernel, block: Block, blocks: IndexExpr | int, copied: frozenset[str] = frozenset()
) -> Block:
    """The block less those of its outermost barriers of the grid that no two blocks need.

    Arguments are those of `check_barriers`.  The reason of each that stays names what goes wrong without it.
    """
    found = events(kernel, block, blocks, copied)
    with isl_lock:
        checker = Checker(found)
        if checker.any_divergent() is not None:
            return block  # `insert_barriers` says so
        todo = [d for d in checker.demands() if d.scope is BarrierScope.GRID]
        kept, mine = Barriers(checker.barriers.waits), concerned(todo, checker.barriers)
        grid = [w for w in checker.barriers.waits if _is_grid(w)]
        for wait in grid:
            if not _needing(checker, mine[id(wait)], kept, wait):
                kept.remove(wait)
        reasons: dict[tuple[int, ...], str | None] = {w.place.positions: None for w in grid}
        for wait in filter(_is_grid, kept.waits):
            reasons[wait.place.positions] = _reason(_needing(checker, mine[id(wait)], kept, wait))
    result: list[Node] = []
    for k, node in enumerate(block):
        reason = reasons.get((STRIDE * k + 2,), "")
        if isinstance(node, Barrier) and reason:
            node = Barrier(node.scope, reason)
        if reason is not None:
            result.append(node)
    return tuple(result)


def _is_grid(wait: Wait) -> bool:
    return isinstance(wait.node, Barrier) and wait.node.scope is BarrierScope.GRID


def _chosen(checker: Checker) -> list[Wait]:
    """Enough new barriers, none too many."""
    # What one iteration needs first: its barriers often serve the next one as well.
    todo = sorted(checker.demands(), key=lambda d: (d.carried is not None, d.second.place.positions))
    barriers, added, served = Barriers(checker.barriers.waits), list[Wait](), list[Demand]()
    for demand in todo:
        rest = checker.uncovered(demand, barriers)
        if rest is None:
            continue
        if not demand.ordered or demand.scope is BarrierScope.GRID:
            problem = checker.unsafe(demand, rest)
            if not demand.ordered:
                raise ScheduleError([problem.diagnostic])
            message = f"blocks must wait for each other: {problem.witness}"
            raise ScheduleError([Diagnostic("PF532", message, hint="cut the kernel between the two")])
        added.append(Wait(Barrier(BarrierScope.BLOCK, ""), _between(demand)))
        served.append(demand)
        barriers.add(added[-1])
    if any(checker.uncovered(d, barriers) is not None for d in served):
        return added  # `check_barriers` says so
    mine, kept = concerned(todo, barriers), list(added)
    for wait in added:
        if not _needing(checker, mine[id(wait)], barriers, wait):
            kept.remove(wait)
            barriers.remove(wait)
    reasons = [_reason(_needing(checker, mine[id(w)], barriers, w)) for w in kept]
    return [
        Wait(Barrier(BarrierScope.BLOCK, reason), w.place) for w, reason in zip(kept, reasons, strict=True)
    ]


def _needing(checker: Checker, mine: list[Demand], barriers: Barriers, wait: Wait) -> list[Demand]:
    """The demands that nothing but this barrier keeps; `mine` are those that it can come between."""
    return [d for d in mine if checker.uncovered(d, barriers, wait) is not None]


def _between(d: Demand) -> Place:
    """Where a barrier keeps the two in order."""
    second = d.second.place
    position = _END if d.carried is not None else second.positions[d.depth] // STRIDE * STRIDE
    regions = second.regions[: d.depth]
    nest = second.nest if any(r.nest for r in regions) else None
    return Place(regions, (*second.positions[: d.depth], position), nest)


def _reason(needing: list[Demand]) -> str:
    """What goes wrong without it, in one iteration if anything does there."""
    inside = [d for d in needing if d.carried is None]
    return "; ".join(dict.fromkeys(map(_sentence, inside or needing)))


def _sentence(d: Demand) -> str:
    name = d.second.buffer
    if d.first.buffer != name and d.first.scope is Scope.SHARED:
        name = f"{name} in the memory of {d.first.buffer}"
    what = {
        (True, False): "threads read what others wrote",
        (False, True): "threads write where others have read",
        (True, True): "threads write where others wrote",
    }[d.first.write, d.second.write]
    if d.carried is None:
        return f"{name}: {what}"
    region = d.first.place.regions[d.carried]
    return f"{name}: {what} in an earlier iteration" + (f" of {region.var}" if region.var else "")


def _rebuilt(block: Block, outer: tuple[int, ...], added: Mapping[tuple[int, ...], Barrier]) -> Block:
    """The block with barriers at their positions."""
    result: list[Node] = []

    def put(position: int) -> None:
        barrier = added.get((*outer, position))
        if barrier is not None:
            result.append(barrier)

    for k, node in enumerate(block):
        put(STRIDE * k)
        here = STRIDE * k + 2
        match node:
            case For(var, lower, upper, step, body, coordinate, lanes):
                inner = _rebuilt(body, (*outer, here), added)
                result.append(For(var, lower, upper, step, inner, coordinate, lanes))
            case If(cond, then, other):
                branches = (_rebuilt(b, (*outer, at), added) for b, at in ((then, here), (other, here + 1)))
                result.append(If(cond, *branches))
            case _:
                result.append(node)
    put(_END)
    return tuple(result)
