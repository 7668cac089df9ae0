"""Reductions over ranges that move become scans: which ones, and in which form.

A range that grows fewer times than FEWEST stays as it is: lanes reduce all of its terms at once.
"""

from __future__ import annotations

from polyfuse.decisions import Decision
from polyfuse.ir.dtypes import F64
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.target import CpuTarget, Target
from polyfuse.ir.tensor_graph import IterDim, Statement, TensorGraph
from polyfuse.layers.graph.scans.growing import LONG_DOUBLE, Made, Scan, Steps, steps_of
from polyfuse.layers.graph.scans.ranges import Moving, moving_ranges

# Results of a growing range, at least.
FEWEST = 8
# Steps of a chunk, at least.
SHORTEST_CHUNK = 64
# Threads of a GPU that are worth their chunks.
GPU_ROWS = 1 << 15


def scans(graph: TensorGraph, decisions: list[Decision], target: Target) -> TensorGraph:
    """The graph with reductions over growing ranges as scans, at known sizes."""
    if graph.sizes:
        return graph
    waiting = [s.name for s in graph.statements]
    while waiting:
        name = waiting.pop(0)
        s = graph.statement(name)
        ways = list(moving_ranges(s))
        grows = next((m for m in ways if isinstance(m, Moving) and m.grows and _trip(m.over) >= FEWEST), None)
        if grows is None:
            decisions += [Decision("scan", name, False, why) for why in ways if isinstance(why, str)]
            continue
        made = Made(graph, s)
        why = _write(Scan(made, steps_of(grows)), target)
        decisions.append(Decision("scan", name, True, why))
        graph = made.result()
        # What a step adds may be a scan as well, along another dim.
        waiting += [x.name for x in made.statements if x.reduction is not None]
    return graph


def _trip(d: IterDim) -> int:
    assert isinstance(d.lower, IConst) and isinstance(d.upper, IConst)
    return d.upper.value - d.lower.value


def _write(scan: Scan, target: Target) -> str:
    """Add the statements of one form, and say why."""
    steps = scan.steps
    grows = f"the range of {steps.moving.along.name} grows with {steps.over.name}"
    chunk, why = chunk_of(scan, target)
    if not chunk:
        scan.in_order()
        wide = f", in {F64}" if scan.accumulator(steps.count) is not scan.dtype else ""
        return f"{grows}: a step for each of {steps.count}{wide}"
    scan.in_chunks(chunk)
    return f"{grows}: {-(-steps.count // chunk)} chunks of {chunk}, {why}"


def chunk_of(scan: Scan, target: Target) -> tuple[int, str]:
    """Into which chunks rows are cut, 0 if they stay whole; and why."""
    count, rows = scan.steps.count, 1
    for d in scan.rows:
        rows *= max(0, _trip(d))
    if scan.reduction == "prod" or count < 4 * SHORTEST_CHUNK or not rows:
        return 0, ""
    near = max(SHORTEST_CHUNK, 1 << ((count - 1).bit_length() // 2))
    workers = target.threads if isinstance(target, CpuTarget) else GPU_ROWS
    if rows < workers:
        chunk = near if not isinstance(target, CpuTarget) else max(near, -(-count // (4 * workers)))
        return chunk, f"since {rows} rows are few"
    if scan.reduction == "sum" and scan.dtype is F64 and count > LONG_DOUBLE:
        return near, "since each step rounds"
    return 0, ""
