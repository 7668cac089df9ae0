"""Loops of a CPU around accesses whose rows run along another loop than the vector lanes.

    B(j, i)(y[j, i] = x[i, j])     becomes     B(j // 64, i // 64, j, i)(y[j, i] = x[i, j])
    B(i, k)(y[k, i] = f(x[i, k], z[i, k]))     becomes     B(i // 64, k // 64, i, k)(y[k, i] = ...)

Along the lanes such an access jumps from line to line, and comes back to each line for its neighbour only
when all lines of the column have gone by.  In a tile of both loops it stays in a cache for all of its
elements, and `codegen.transforms.transpose_loads` can turn the tile around in registers; that of results does
`codegen.transforms.transpose_stores`, after the tile.

Where a loop has whole rows in it, as that of a softmax has, it is cut into blocks alone: the columns that its
rows read or store, transposed, are the tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polyfuse.cost.cpu_device import table_cpu
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.cost.extents import tensor_bytes
from polyfuse.decisions import Decision
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IVar, binary
from polyfuse.ir.schedule_tree import Band, Member, Sequence, statements
from polyfuse.ir.tensor_graph import Read, Role, Statement, TensorGraph, statement_reads
from polyfuse.layers.mapping.blocked_rows import functions_first, last_phases_along
from polyfuse.layers.mapping.loop_order import FEWEST_LANES
from polyfuse.layers.mapping.nests import (
    Lanes,
    clamped_across,
    crowds,
    has_arms,
    has_band,
    heavy,
    innermost,
    is_free,
    iterations,
    stored_across,
    trip_of,
)

# Bytes of a tile along memory and in the lanes: longer tiles do not stay in L1. Where lines come from memory,
# wider ones meet fewer lines twice, at their borders.
NEAR_BYTES, FAR_BYTES, LANE_BYTES = 256, 512, 256
# Elements at most: tiles of bytes do not grow as their elements shrink.
MOST = 256
# So many lanes are gone through before the next tile along the other loop begins: each may be in a page of
# its own, and a core knows the addresses of some thousands.
PAGES = 1024
# Shorter loops have no lines to keep.
LEAST = 4
# Tiles are transposed in squares of this many elements.
SQUARE = 16
# Rows of a loop that has whole rows in it, the best number first, and what its tiles have together at most.
ROWS, MOST_BYTES = (16, 8), 64 * 1024


@dataclass(frozen=True, slots=True)
class Tiled:
    """A nest in tiles: its first `blocks` loops go from tile to tile."""

    nest: Band
    blocks: int


def transposed_tiles(
    graph: TensorGraph, phase: Band, threads: int, decisions: list[Decision]
) -> Tiled | None:
    """The nest in tiles; None where no access asks for them."""
    names = statements(phase)
    if has_band(phase.child) or not is_free(graph, phase.members[-1], names):
        return _rows(graph, phase, threads, decisions)
    if not phase.permutable or not all(is_free(graph, m, names) for m in phase.members[:-1]):
        return None
    phase = _cheapest(graph, phase)
    *others, lane = phase.members
    if stored := stored_across(graph, (lane,), names):
        return _stored(graph, phase, stored, threads, decisions)
    found = {m: reads for m in others if (reads := Lanes(graph, names, m, (lane,)).reads())}
    if not found or not _stored_along(graph, lane, names):
        return None
    row = max(found, key=lambda m: len(found[m]))
    trips = trip_of(graph, row), trip_of(graph, lane)
    if any(t is not None and t < LEAST for t in trips):
        return None
    size = max(r.dtype.bytes for r in found[row])
    wide = FAR_BYTES if _from_memory(graph, names, threads) else NEAR_BYTES
    high, long = (_length(t, min(MOST, n // size)) for t, n in zip(trips, (wide, LANE_BYTES), strict=True))
    _note(decisions, _tensors(found[row]), f"tiles of {row.name} and {lane.name} are transposed in registers")
    return _in_tiles(graph, phase, row, high, long)


def _cheapest(graph: TensorGraph, phase: Band) -> Band:
    """A nest whose results jump in the lanes, or what no tile can be made of, with other lanes where fewer
    bytes are to be transposed then, or as many but no results."""
    *others, lane = phase.members
    names = statements(phase)
    stored = bool(stored_across(graph, (lane,), names))
    clamped = (clamped_across(graph.statement(n), e.name) for n, e in lane.exprs if isinstance(e, IVar))
    if not stored and not any(clamped):
        return phase
    best = lane, min((Lanes(graph, names, m, (lane,)).cost() for m in others), default=0) + stored
    for m in others:
        trip, cost = trip_of(graph, m), Lanes(graph, names, lane, (m,)).cost()
        if cost < best[1] and (trip is None or trip >= FEWEST_LANES):
            best = m, cost
    swap = {best[0]: lane, lane: best[0]}
    return replace(phase, members=tuple(swap.get(m, m) for m in phase.members))


def _stored(
    graph: TensorGraph,
    phase: Band,
    stored: list[Statement],
    threads: int,
    decisions: list[Decision],
) -> Tiled | None:
    """A nest of free loops whose results jump in the lanes, in blocks of whole rows, which memory is faster
    with, or in tiles."""
    *others, lane = phase.members
    names = statements(phase)
    found = {m: Lanes(graph, names, m, (lane,)) for m in others}
    row = next((m for m in reversed(others) if all(s in found[m].stores() for s in stored)), None)
    if row is None:
        _stays(decisions, stored, "they run along no loop around the lanes")
        return None
    trips, reads = (trip_of(graph, row), trip_of(graph, lane)), found[row].reads()
    if any(t is not None and t < LEAST for t in trips):
        _stays(decisions, stored, f"loops of fewer than {LEAST} iterations have no lines to keep")
        return None
    size = max(t.bytes for t in _types(graph, stored))
    cut = any(has_arms(graph.statement(n), e.name) for n, e in lane.exprs if isinstance(e, IVar))
    if cut or min(trips[0] or 0, iterations(graph, tuple(others)) // (2 * threads)) >= NEAR_BYTES // size:
        around, noted = (*(m for m in others if m != row), row), list[Decision]()
        whole = _rows(graph, replace(phase, members=(*around, lane)), threads, noted)
        if cut or whole:
            decisions += noted
            return whole
    wide = FAR_BYTES if any(crowds(graph, s, lane) for s in stored) else NEAR_BYTES
    high, long = (_length(t, min(MOST, n // size)) for t, n in zip(trips, (wide, LANE_BYTES), strict=True))
    _note(
        decisions,
        _targets(stored),
        f"tiles of {row.name} and {lane.name} are transposed in registers after them",
    )
    _note(decisions, _tensors(reads), f"tiles of {row.name} and {lane.name} are transposed in registers")
    return _in_tiles(graph, phase, row, high, long)


def _in_tiles(graph: TensorGraph, phase: Band, row: Member, high: int, long: int) -> Tiled:
    """The nest with blocks of so many rows and lanes around it; 0: of all."""
    *others, lane = phase.members
    trip = trip_of(graph, lane)
    blocks = tuple(m for m in others if m != row)
    inner: tuple[Member, ...] = (row, lane)
    if trip is not None and trip > 3 * PAGES // 2 and high:
        blocks, inner = (*blocks, _cut(lane, PAGES // long * long, "pages")), (_cut(lane, long), row, lane)
        long = 0
    blocks += tuple(_cut(m, n) for m, n in ((row, high), (lane, long)) if n)
    return Tiled(replace(phase, members=(*blocks, *inner)), len(blocks))


def _rows(graph: TensorGraph, phase: Band, threads: int, decisions: list[Decision]) -> Tiled | None:
    """Blocks of the last loop that has whole rows in it, or of the one that results run along."""
    if split := last_phases_along(graph, phase, threads, decisions):
        return Tiled(*split)
    names, last = statements(phase), innermost(phase)
    around = phase.members if has_band(phase.child) else phase.members[:-1]
    lanes = tuple(b.members[-1] for b in last)
    main = heavy(graph, names)
    stored = stored_across(graph, [m for m in lanes if m.coincident], main)
    if not around or not all(is_free(graph, m, names) for m in around) or not _has_rows(phase):
        _stays(decisions, stored, "the lanes are not in a single loop over rows")
        return None
    row, stored = _row_of(graph, phase, around, lanes, main, stored, decisions)
    written = {graph.statement(n).target for n in names}
    reads = [r for r in dict.fromkeys(Lanes(graph, main, row, lanes).reads()) if r.tensor not in written]
    trips = [trip_of(graph, m) for m in lanes]
    trip, longest = trip_of(graph, row), max((t for t in trips if t is not None), default=0)
    if trip is None or None in trips or longest < LEAST:
        _stays(decisions, stored, f"rows are not known, or shorter than {LEAST} elements")
        return None
    most = min(trip, iterations(graph, around) // (2 * threads))
    room = longest * sum(r.dtype.bytes for r in reads)
    found = [n for n in _heights(graph, stored, longest, threads) if n <= most and room * n <= MOST_BYTES]
    if stored and not found:
        _stays(decisions, stored, f"{ROWS[-1]} rows are too many, or too large for the caches")
        stored = []
    if not stored:
        found = [n for n in ROWS if reads and n <= most and room * n <= MOST_BYTES]
    if not found:
        return None
    high = found[0]
    each = f"columns of {high} neighbours along {row.name} are transposed in registers together"
    _note(decisions, _tensors(reads), each)
    _note(decisions, _targets(stored), f"{each}, after them")
    blocks = (*(m for m in around if m != row), _cut(row, high))
    nest = replace(phase, members=(*blocks, row, *phase.members[len(around) :]))
    return Tiled(functions_first(graph, nest, len(blocks)) if stored else nest, len(blocks))


def _row_of(
    graph: TensorGraph,
    phase: Band,
    around: tuple[Member, ...],
    lanes: tuple[Member, ...],
    names: tuple[str, ...],
    stored: list[Statement],
    decisions: list[Decision],
) -> tuple[Member, list[Statement]]:
    """The loop that results run along, if it may be the last one around whole rows, and these results."""
    for m in reversed(around if phase.permutable else around[-1:]):
        across = Lanes(graph, names, m, lanes).stores()
        if mine := [s for s in stored if s in across]:
            _stays(decisions, [s for s in stored if s not in mine], "others run along another loop")
            return m, mine
    _stays(decisions, stored, "they run along no loop that rows are in")
    return around[-1], []


def _types(graph: TensorGraph, stored: list[Statement]) -> list[DType]:
    return [graph.tensor(s.target).dtype for s in stored]


def _heights(graph: TensorGraph, stored: list[Statement], longest: int, threads: int) -> list[int]:
    """Numbers of rows of so many elements whose results are some lines of memory, the best number first.
    Arrays may come from L3: fewer rows, with shorter runs of lines, take longer."""
    types = _types(graph, stored)
    size, each = max((t.bytes for t in types), default=1), longest * sum(t.bytes for t in types)
    most = table_cpu(threads).levels[-2].capacity * FITTED.prefetch_lines_share_of_l3 / threads
    numbers = (FAR_BYTES // size >> k for k in range(FAR_BYTES.bit_length()))
    return [n for n in numbers if n >= ROWS[-1] and n * each <= most]


def rows_of_results(graph: TensorGraph, phase: Band, threads: int, decisions: list[Decision]) -> Tiled | None:
    """Such blocks where results lie along the rows: with the other loop innermost, as reads alone would have
    it, their stores would jump."""
    names = heavy(graph, statements(phase))
    lanes = [(n, e) for b in innermost(phase) for n, e in b.members[-1].exprs if n in names]
    results = [(n, e) for n, e in lanes if graph.tensor(graph.statement(n).target).role is not Role.TEMP]
    stored = any(e == last for n, e in results for last in _last(graph, n))
    return _rows(graph, phase, threads, decisions) if stored and has_band(phase.child) else None


def _has_rows(phase: Band) -> bool:
    """Has the nest single loops alone below its own, or none?"""
    inside = phase.child.children if isinstance(phase.child, Sequence) else (phase.child,)
    bands = [c for c in inside if isinstance(c, Band)]
    plain = all(len(b.members) == 1 and not has_band(b.child) for b in bands)
    return plain and all(isinstance(c, Band) or not has_band(c) for c in inside)


def _from_memory(graph: TensorGraph, names: tuple[str, ...], threads: int) -> bool:
    """Is what statements touch far from all in L3?"""
    touched = {t for n in names for t in _touched(graph, n)}
    total = sum(tensor_bytes(graph, t) for t in touched)
    return total > table_cpu(threads).levels[-2].capacity * FITTED.prefetch_lines_share_of_l3


def _touched(graph: TensorGraph, name: str) -> set[str]:
    s = graph.statement(name)
    return {s.target, *(r.tensor for r in statement_reads(s))}


def _note(decisions: list[Decision], tensors: list[str], why: str) -> None:
    if tensors:
        decisions.append(Decision("transpose", ", ".join(dict.fromkeys(tensors)), True, why))


def _stays(decisions: list[Decision], stored: list[Statement], why: str) -> None:
    """Says of results that they are stored across the lanes as they are."""
    if stored:
        names = ", ".join(dict.fromkeys(_targets(stored)))
        decisions.append(Decision("transpose", names, False, f"stored across the lanes: {why}"))


def _tensors(reads: list[Read]) -> list[str]:
    return [r.tensor for r in reads]


def _targets(stored: list[Statement]) -> list[str]:
    return [s.target for s in stored]


def _length(trip: int | None, most: int) -> int:
    """Iterations of a block: blocks are about alike, in whole squares; 0 where one block has all."""
    if trip is None:
        return most
    blocks = -(-trip // most)
    return min(most, -(-trip // (blocks * SQUARE)) * SQUARE) if blocks > 1 else 0


def _cut(m: Member, size: int, name: str = "blk") -> Member:
    """The loop over blocks of a loop."""
    return replace(m, name=f"{m.name}_{name}", exprs=tuple((n, binary("//", e, size)) for n, e in m.exprs))


def _stored_along(graph: TensorGraph, lane: Member, names: tuple[str, ...]) -> bool:
    """Does every statement go along memory in the lanes with its result?"""
    return all(e == last for n, e in lane.exprs if n in names for last in _last(graph, n))


def _last(graph: TensorGraph, name: str) -> Iterator[object]:
    write = graph.statement(name).write
    yield write[-1] if write else None
