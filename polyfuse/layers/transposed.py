"""Loops of a CPU around accesses whose rows run along another loop than the vector lanes.

    B(j, i)(y[j, i] = x[i, j])     becomes     B(j // 64, i // 64, j, i)(y[j, i] = x[i, j])

Along the lanes such a read jumps from line to line, and comes back to each line for its neighbour only when
all lines of the column have gone by.  In a tile of both loops it stays in a cache for all of its elements,
and `codegen.transposed` can turn the tile around in registers.

Where a loop has whole rows in it, as that of a softmax has, it is cut into blocks alone: the columns that its
rows read, turned around, are the tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polyfuse.cost.cpu_device import table_cpu
from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IVar, binary, variables
from polyfuse.ir.linear import linear
from polyfuse.ir.schedule_tree import Band, Member, Sequence, statements
from polyfuse.ir.tensor_graph import EXPR_TYPES, Read, Role, TensorGraph, plain_variables, statement_reads
from polyfuse.layers.nest import has_band, heavy, innermost, is_free, iterations, trip_of
from polyfuse.layers.rematerialise import tensor_bytes
from polyfuse.layers.soon import SHARE_OF_L3

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
# Tiles are turned around in squares of this many elements.
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
    if has_band(phase.child) or not is_free(graph, phase.members[-1], statements(phase)):
        return _rows(graph, phase, threads, decisions)
    names, (*others, lane) = statements(phase), phase.members
    if not phase.permutable or not all(is_free(graph, m, names) for m in others):
        return None
    found = {m: reads for m in others if (reads := _across(graph, m, (lane,), names))}
    if not found or not _stored_along(graph, lane, names):
        return None
    row = max(found, key=lambda m: len(found[m]))
    trips = trip_of(graph, row), trip_of(graph, lane)
    if any(t is not None and t < LEAST for t in trips):
        return None
    size = max(r.dtype.bytes for r in found[row])
    wide = FAR_BYTES if _from_memory(graph, names, threads) else NEAR_BYTES
    high, long = (_length(t, min(MOST, n // size)) for t, n in zip(trips, (wide, LANE_BYTES), strict=True))
    _note(decisions, found[row], f"tiles of {row.name} and {lane.name} are turned around")
    blocks = tuple(m for m in others if m != row)
    inner: tuple[Member, ...] = (row, lane)
    if trips[1] is not None and trips[1] > 3 * PAGES // 2 and high:
        blocks, inner = (*blocks, _cut(lane, PAGES // long * long, "pages")), (_cut(lane, long), row, lane)
        long = 0
    blocks += tuple(_cut(m, n) for m, n in ((row, high), (lane, long)) if n)
    return Tiled(replace(phase, members=(*blocks, *inner)), len(blocks))


def _rows(graph: TensorGraph, phase: Band, threads: int, decisions: list[Decision]) -> Tiled | None:
    """Blocks of the last loop that has whole rows in it."""
    names, last = statements(phase), innermost(phase)
    around = phase.members if has_band(phase.child) else phase.members[:-1]
    if not around or not all(is_free(graph, m, names) for m in around) or not _has_rows(phase):
        return None
    row, lanes = around[-1], tuple(b.members[-1] for b in last)
    reads = dict.fromkeys(_across(graph, row, lanes, heavy(graph, names)))
    trips = [trip_of(graph, m) for m in lanes]
    trip, longest = trip_of(graph, row), max((t for t in trips if t is not None), default=0)
    if not reads or trip is None or None in trips or longest < LEAST:
        return None
    room = sum(longest * r.dtype.bytes for r in reads)
    outer = iterations(graph, around)
    fits = [n for n in ROWS if trip >= n and room * n <= MOST_BYTES and outer >= 2 * n * threads]
    if not fits:
        return None
    _note(decisions, [*reads], f"columns of {fits[0]} neighbours along {row.name} are turned around together")
    blocks = (*around[:-1], _cut(row, fits[0]))
    return Tiled(replace(phase, members=(*blocks, row, *phase.members[len(around) :])), len(blocks))


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
    return total > table_cpu(threads).levels[-2].capacity * SHARE_OF_L3


def _touched(graph: TensorGraph, name: str) -> set[str]:
    s = graph.statement(name)
    return {s.target, *(r.tensor for r in statement_reads(s))}


def _note(decisions: list[Decision], reads: list[Read], why: str) -> None:
    names = ", ".join(dict.fromkeys(r.tensor for r in reads))
    decisions.append(Decision("transpose", names, True, why))


def _length(trip: int | None, most: int) -> int:
    """Iterations of a block: blocks are about alike, in whole squares; 0 where one block has all."""
    if trip is None:
        return most
    blocks = -(-trip // most)
    return min(most, -(-trip // (blocks * SQUARE)) * SQUARE) if blocks > 1 else 0


def _cut(m: Member, size: int, name: str = "blk") -> Member:
    """The loop over blocks of a loop."""
    return replace(m, name=f"{m.name}_{name}", exprs=tuple((n, binary("//", e, size)) for n, e in m.exprs))


def _across(graph: TensorGraph, row: Member, lanes: tuple[Member, ...], names: tuple[str, ...]) -> list[Read]:
    """Reads of statements that go along memory in one loop and jump in the lanes."""
    found = []
    for n in names:
        e = row.of(n)
        lane = next((f for m in lanes for s, f in m.exprs if s == n), None)
        if not isinstance(e, IVar) or not isinstance(lane, IVar) or e == lane:
            continue
        found += [r for r in statement_reads(graph.statement(n)) if _runs_along(r, e.name, lane.name)]
    return found


def _runs_along(r: Read, row: str, lane: str) -> bool:
    *leading, last = r.indices or (None,)
    if last is None or isinstance(last, EXPR_TYPES) or any(isinstance(i, EXPR_TYPES) for i in leading):
        return False
    inside = plain_variables(leading)
    along = abs(linear(last).factor(IVar(row))) == 1 and row not in inside
    return along and lane in inside and lane not in variables(last)


def _stored_along(graph: TensorGraph, lane: Member, names: tuple[str, ...]) -> bool:
    """Does every statement go along memory in the lanes with its result?"""
    return all(e == last for n, e in lane.exprs if n in names for last in _last(graph, n))


def _last(graph: TensorGraph, name: str) -> Iterator[object]:
    write = graph.statement(name).write
    yield write[-1] if write else None
