"""Reductions over ranges that move become scans: which ones, and in which form; recurrences in chunks.

A range that grows fewer times than FEWEST stays as it is: lanes reduce all of its terms at once.  So does a
window of few terms (`layers.graph.domains`).
"""

from __future__ import annotations

from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.dtypes import F64
from polyfuse.ir.target import Target
from polyfuse.ir.tensor_graph import IterDim, TensorGraph
from polyfuse.layers.graph.domains import MOST_TERMS
from polyfuse.layers.graph.scans.growing import LONG_DOUBLE, Scan
from polyfuse.layers.graph.scans.linear_recurrences import Chunks, Recurrence, recurrences, start_of
from polyfuse.layers.graph.scans.ranges import Moving, moving_ranges
from polyfuse.layers.graph.scans.statements import Made, value_of
from polyfuse.layers.graph.scans.windows import Blocks, Doubling, Window, may_double, tile_of, window_of

# Results of a growing range, at least.
FEWEST = 8
# Steps of a chunk, at least, and chunks of a row.
SHORTEST_CHUNK = 64
FEWEST_CHUNKS = 4
# Chunks of a linear recurrence, for each worker: lanes are chunks.
CHUNKS_OF_WORKER = 16
# Passes over a recurrence in chunks: factors, local totals, steps.
CHUNK_WORK = 3
# What the blocks of a window of many terms save, at least: it has so many times as many terms as it moves on.
OVERLAP = 4


def scans(graph: TensorGraph, decisions: list[Decision], target: Target) -> TensorGraph:
    """The graph with reductions over moving ranges as scans, at known sizes."""
    if graph.sizes:
        return graph
    # Names, and the dims along which they are of a scan already.
    waiting: list[tuple[str, tuple[str, ...]]] = [(s.name, ()) for s in graph.statements]
    while waiting:
        name, done = waiting.pop(0)
        s = graph.statement(name)
        ways = list(moving_ranges(s))
        made = Made(graph, s)
        along = [m for m in ways if isinstance(m, Moving) and m.over.name not in done]
        found = next(((w, m) for m in along if (w := _written(made, m, target))), None)
        if found is None:
            decisions += [Decision("scan", name, False, why) for why in ways if isinstance(why, str)]
            continue
        decisions.append(Decision("scan", name, True, found[0]))
        graph = made.result()
        # What a step adds may be a scan as well, along another dim.
        if len(done) < len(s.dims):
            over = (*done, found[1].over.name)
            waiting += [(x.name, over) for x in made.statements if x.reduction is not None]
    return graph


def _written(made: Made, m: Moving, target: Target) -> str | None:
    """Add the statements of a range that moves, if that pays; why they are so."""
    if m.grows:
        return _grown(Scan(made, m), target) if _trip(m.over) >= FEWEST else None
    window = window_of(m)
    if window is None or not _pays(window):
        return None
    moves = f"a window of {window.length} moves with {m.over.name}"
    if may_double(window, target.vector_loops):
        Doubling(made, m, window).write()
        return f"{moves}: windows of 1, 2, 4, ... terms for each tile of {tile_of(window)}"
    Blocks(made, m, window).write()
    return f"{moves}: two scans for each of {window.blocks} blocks"


def _pays(w: Window) -> bool:
    return w.length > MOST_TERMS and w.length >= OVERLAP * w.step and w.count >= FEWEST


def _grown(scan: Scan, target: Target) -> str:
    steps = scan.steps
    grows = f"the range of {scan.moving.along.name} grows with {steps.over.name}"
    chunk, why = chunk_of(scan, target)
    if not chunk:
        scan.in_order()
        wide = f", in {F64}" if scan.accumulator(steps.count) is not scan.dtype else ""
        return f"{grows}: a step for each of {steps.count}{wide}"
    scan.in_chunks(chunk)
    return f"{grows}: {-(-steps.count // chunk)} chunks of {chunk}, {why}"


def _trip(d: IterDim) -> int:
    return max(0, value_of(d.upper) - value_of(d.lower))


def parallel_recurrences(graph: TensorGraph, decisions: list[Decision], target: Target) -> TensorGraph:
    """The graph with linear recurrences of few rows in chunks that run at once, at known sizes."""
    if graph.sizes:
        return graph
    for found in list(recurrences(graph)):
        if not isinstance(found, Recurrence):
            s, why = found
            decisions.append(Decision("parallel recurrence", s.name, False, why))
            continue
        s = found.statement
        chunk, why = _chunk_of_recurrence(found, target)
        start = start_of(graph, found)
        if start is None:
            chunk, why = (
                0,
                "the state before its first step has several definitions, or one that reduces",
            )
        decisions.append(Decision("parallel recurrence", s.name, chunk > 0, why))
        if chunk and start is not None:
            made = Made(graph, s)
            Chunks(made, Moving(s, found.over, found.over, 0, found.by), found, chunk, start).write()
            graph = made.result()
    return graph


def _chunk_of_recurrence(r: Recurrence, target: Target) -> tuple[int, str]:
    """Into which chunks a recurrence is cut, 0 if it keeps its order; and why."""
    rows, dtype = prod(_trip(d) for d in r.statement.dims if d != r.over), r.statement.expr.dtype
    if dtype is F64 and r.factor is not None:
        return 0, "products of its factors have no type wider than f64"
    if rows * CHUNK_WORK > target.rows_at_once:
        return 0, f"{rows} rows for {target.rows_at_once} workers: chunks have {CHUNK_WORK} times the work"
    if not rows or r.count < FEWEST_CHUNKS * SHORTEST_CHUNK:
        return 0, f"{r.count} steps are few"
    chunk = max(_near(r.count), r.count // (CHUNKS_OF_WORKER * target.rows_at_once))
    told = "within the bound of a sum of as many terms"
    return chunk, f"{-(-r.count // chunk)} chunks of {chunk} steps along {r.over.name}, {told}"


def _near(count: int) -> int:
    """A length of chunks of which there are about as many."""
    return max(SHORTEST_CHUNK, 1 << ((count - 1).bit_length() // 2))


def chunk_of(scan: Scan, target: Target) -> tuple[int, str]:
    """Into which chunks rows are cut, 0 if they stay whole; and why.

    Chunks of as many steps as there are chunks lose least where steps round. What a CPU's few threads share
    are pieces as long as can be.
    """
    count, rows = scan.steps.count, prod(map(_trip, scan.rows))
    if scan.reduction == "prod" or count < FEWEST_CHUNKS * SHORTEST_CHUNK or not rows:
        return 0, ""
    near, workers = _near(count), target.rows_at_once
    if rows < workers:
        return max(near, count // (FEWEST_CHUNKS * workers)), f"since {rows} rows are few"
    if scan.reduction == "sum" and scan.dtype is F64 and count > LONG_DOUBLE:
        return near, "since each step rounds"
    return 0, ""
