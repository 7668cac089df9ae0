"""A parallel loop along contiguous memory goes innermost, into every phase of a nest (CPU).

    B(j)[c0; B(t)(c1)]     becomes     B(j // 256)[B(j)(c0); B(t)B(j)(c1)]
    B(b, k, f)(y)          becomes     B(b, f, k)(y)

Totals over the loop itself may be beside: they get a loop of their own.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.decisions import Decision
from polyfuse.ir.cpu_knobs import CpuKnobs
from polyfuse.ir.index_expr import binary
from polyfuse.ir.schedule_tree import Band, Coordinate, Member, Tree, statements
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.loop_order import best_of, better, held
from polyfuse.layers.nest import has_band, heavy, innermost, is_free, push, racing, trip_of
from polyfuse.layers.windows import window_rows

# Strips that are shared out evenly have a few lines of the narrowest type, and whole ones, or lines of wider
# types where threads would have more than so much to do beyond their share.
SHORTEST_STRIP, WHOLE, UNEVEN = 128, (64, 32, 16), 1.1


def sink(graph: TensorGraph, phase: Band, threads: int, decisions: list[Decision], knobs: CpuKnobs) -> Tree:
    """The nest with such a loop innermost, cut into strips if it is long."""
    names = statements(phase)
    worth = heavy(graph, names)
    perfect = not has_band(phase.child)
    free = [m for m in phase.members if m.coordinate is Coordinate.SEQ and _may_sink(graph, m, phase)]
    inner = [m for b in innermost(phase) for m in b.members[-1:]]
    passed = {t for b in innermost(phase) for t in held(graph, statements(b))}
    best = best_of(graph, free, worth, passed)
    if best is None or best in inner or (perfect and not phase.permutable):
        return phase
    trip = trip_of(graph, best)
    if not better(graph, best, inner, worth, passed):
        return phase
    strip = None
    kept = not (perfect and all(is_free(graph, m, names) for m in phase.members))
    alone = len(phase.members) == 1  # nothing else would be left to spread over workers
    if kept and (alone or not window_rows(graph, names, trip)):  # else it stays in registers
        size = knobs.sunk_strip or sunk_strip(trip, threads)
        strip = strips(best, size) if trip is None or trip > size else None
    members = tuple(
        x for m in phase.members for x in ((strip,) if m == best and strip else () if m == best else (m,))
    )
    why = "the loop along contiguous memory runs innermost"
    decisions.append(Decision("interchange", best.name, True, why))
    if perfect:
        return replace(phase, members=(*members, best))
    child = push(best, phase.child)
    return Band(members, child, True) if members else child


def goes_inside(graph: TensorGraph, phase: Band) -> bool:
    """Will the first loop of a nest be moved innermost?"""
    names, outer = statements(phase), phase.members[0]
    inner = [m for b in innermost(phase) for m in b.members[-1:]]
    passed = {t for b in innermost(phase) for t in held(graph, statements(b))}
    if not has_band(phase.child) or outer in inner or not _may_sink(graph, outer, phase):
        return False
    return better(graph, outer, inner, heavy(graph, names), passed)


def _may_sink(graph: TensorGraph, m: Member, phase: Band) -> bool:
    """Is a loop free, but for totals over it that are in no loop inside, and get one of their own?"""
    inside = {n for b in innermost(phase) for n in statements(b)}
    return m.coincident and not inside & {*racing(graph, m, statements(phase))}


def sunk_strip(trip: int | None, threads: int) -> int:
    """The length of strips that all threads have equally many of, where each has one at least."""
    if trip is None or trip < threads * SHORTEST_STRIP:
        return FITTED.sinking_sunk_strip
    strips = -(-trip // FITTED.sinking_sunk_strip)
    each = -(-trip // (-(-strips // threads) * threads))
    lengths = [-(-each // whole) * whole for whole in WHOLE]
    return min(FITTED.sinking_sunk_strip, next((n for n in lengths if n <= UNEVEN * each), lengths[-1]))


def strips(m: Member, size: int) -> Member:
    return replace(m, name=f"{m.name}_blk", exprs=tuple((n, binary("//", e, size)) for n, e in m.exprs))
