"""Ways to compile a program that are drawn by a seed: all that passes and code generation can be asked for.

    way = drawn_way(7)
    with drawn_thresholds(7):
        check([(call, way)])

A way says which layers there are and how they are set, how a graph is cut, what a library computes, and for
which core or which emulated device code is.  Thresholds are the sizes from which on passes do something;
drawn small, the small programs of tests take the paths of large ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import pytest
from targets import DEVICES, Call

from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cpu.vectorize import reductions
from polyfuse.codegen.transforms import vector_epilogues, wide_accumulators
from polyfuse.codegen.transforms import wide_accumulators as long_totals
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.driver.targets import this_core
from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs
from polyfuse.ir.target import GpuTarget, Target
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.contractions import contraction, tile_shapes
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.graph.one_pass import online
from polyfuse.layers.graph.reindex import factor_rows
from polyfuse.layers.graph.scans import rewrite as scans
from polyfuse.layers.graph.scans import windows
from polyfuse.layers.mapping import loop_order
from polyfuse.layers.packing import blas_products
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options, Scan
from polyfuse.runtime.cpu import executable

# Cores with few registers, and with caches that small programs do not fit in.
CORES = (
    None, None, Core(), AVX2, Core(16, 16), Core(l1=1024, l2=4096), Core(16, 16, l1=512, l2=2048),
    Core(32, 16, l1=256, l2=1024), Core(64, 32, l1=2048, l2=16384),
)  # fmt: skip

APART = Clustering(library="never", feedback="failures")
AS_IT_IS = CpuKnobs()


@dataclass(frozen=True)
class DrawnWay:
    """How a program is compiled, and for what: a CPU, or an emulated device by its name."""

    fusion: LoopFusion | None = None
    stitching: Stitching | None = None
    packing: Packing | None = None
    clustering: Clustering = APART
    knobs: CpuKnobs = AS_IT_IS
    device: str | None = None
    scan: Scan = "ordered"

    @property
    def on_cpu(self) -> bool:
        return self.device is None

    def __str__(self) -> str:
        """What differs from the plainest way."""
        plain = DrawnWay()
        told = [f.name for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)]
        return f"DrawnWay({', '.join(f'{name}={getattr(self, name)!r}' for name in told)})"

    def request(self, call: Call) -> Request:
        """The kernels of a call, by the way of the pipeline."""
        knobs = replace(self.knobs, core=self.knobs.core or this_core()) if self.on_cpu else self.knobs
        compilation = _Compilation(
            call.graph,
            call.sizes,
            self.fusion,
            Options(threads=3, progress=False, verify=True, scan=self.scan),
            target="cpu" if self.device is None else "emulate",
            stitching=self.stitching,
            packing=self.packing,
            clustering=self.clustering,
            knobs=knobs,
            device=DEVICES[self.device] if self.device else None,
        )
        low, _ = emitted(Watch(compilation.options), compilation)
        return Request(low.kernels, copied=low.copied, knobs=knobs)

    def plainer(self) -> Iterator[DrawnWay]:
        """Ways with one setting less, the plainest first: to find what an error depends on."""
        plain = DrawnWay(device=self.device)
        for f in fields(self):
            if getattr(self, f.name) != getattr(plain, f.name):
                yield replace(self, **{f.name: getattr(plain, f.name)})
        for name in ("fusion", "stitching", "clustering", "knobs"):
            setting: Any = getattr(self, name)
            usual = getattr(plain, name) or (type(setting)() if setting else None)
            for f in fields(setting) if setting else ():
                plainer = replace(setting, **{f.name: getattr(usual, f.name)})
                if plainer != setting:
                    yield replace(self, **{name: plainer})
        off = self.knobs.disabled
        for part in (off[: len(off) // 2], off[len(off) // 2 :], *([n] for n in off)):
            kept = tuple(n for n in off if n not in part)
            if kept != off:
                yield replace(self, knobs=replace(self.knobs, disabled=kept))


@dataclass(frozen=True)
class _Compilation(Compilation):
    """One for a device of the tests."""

    device: GpuTarget | None = None

    @cached_property
    def machine(self) -> Target:
        return self.device or super().machine


def drawn_way(seed: int, on_cpu: bool | None = None) -> DrawnWay:
    """The way of a seed; equal seeds give equal ways."""
    dice = random.Random(f"way {seed}")
    pick = partial(_pick, dice)
    device = pick(None, pick(*DEVICES)) if on_cpu is None else None if on_cpu else pick(*DEVICES)
    fusion = LoopFusion(
        scheduler=pick(*["auto"] * 6, "isl"),
        partition=pick("whole", "whole", "whole", "rules"),
        rematerialise=pick(True, True, False),
        collapse=pick(True, True, False),
    )
    stitching = Stitching(
        rows=pick(None, 1, 1),
        barriers=pick(None, None, True, False),
        online=pick(None, True, True, False),
    )
    return DrawnWay(
        pick(fusion, fusion, fusion, None),
        pick(stitching, stitching, stitching, None),
        pick(Packing(always=pick(None, True, True)), Packing(), None),
        Clustering(
            most=pick(40, 40, 3, 6),
            whole=pick(40, 40, 2, 5),
            library=pick("auto", "always", "never"),
            partition=pick("connect", "connect", "search"),
            feedback=pick("model", "failures"),
        ),
        AS_IT_IS if device or pick(True, False, False, False) else _knobs(dice),
        device,
        pick("ordered", "parallel"),
    )


def _pick(dice: random.Random, *choices: Any) -> Any:
    return dice.choice(choices)


def _knobs(dice: random.Random) -> CpuKnobs:
    pick = partial(_pick, dice)
    return CpuKnobs(
        lane_bytes=pick(None, None, 16, 64, 512),
        strip=pick(None, None, 4, 33),
        sunk_strip=pick(None, None, 3),
        partials=pick(None, None, 1, 3),
        local_bytes=pick(None, None, 16, 256),
        ahead=pick(None, 0, 1, 1, 2, 3),
        stream=pick(None, True, True, False),
        chunks=pick(None, 1, 5),
        threads=pick(None, None, 2),
        core=pick(*CORES),
        rows=pick(None, None, 1, 2, 3),
        jointly=pick(None, True, True, False),
        skew=pick(None, True, True, False),
    )


@contextmanager
def drawn_thresholds(seed: int) -> Iterator[None]:
    """Small thresholds for as long as it is open; those of the passes themselves for a seed of four."""
    dice = random.Random(f"thresholds {seed}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executable, "PARALLEL_WORK", 1)
        if dice.random() < 0.75:
            for module, name, choices in THRESHOLDS:
                patch.setattr(module, name, dice.choice(choices))
            chunk = dice.choice((1, 3, 7, 16))
            patch.setattr(online, "chunk_elements", lambda row, machine: chunk)
        tile_shapes.tile_shape.cache_clear()
        yield
    tile_shapes.tile_shape.cache_clear()


THRESHOLDS: tuple[tuple[Any, str, tuple[int, ...]], ...] = (
    (FITTED, "mapping_smallest_parallel", (4, 4, 64)),
    (FITTED, "mapping_fewest_factored", (2, 3, 16)),
    (FITTED, "mapping_strip", (3, 8, 16)),
    (FITTED, "sinking_sunk_strip", (2, 5, 16)),
    (loop_order, "FEWEST_LANES", (2, 4, 16)),
    (FITTED, "mapping_longest_sunk", (4, 16, 2048)),
    (factor_rows, "LEAD", (0, 1000)),
    *((contraction, f"FEWEST_{what}", (1,)) for what in ("PRODUCTS", "ROWS", "COLUMNS", "OVER")),
    (blas_products, "FEWEST_PRODUCTS", (1, 100, 32 * 1024)),
    (FITTED, "scatters_fewest_together", (1, 2, 16)),
    (FITTED, "scatters_fewest_owned", (1, 2, 16)),
    (FITTED, "cpu_storage_largest_local_bytes", (64, 1024, 256 * 1024)),
    (FITTED, "prefetch_least_row_bytes", (1, 1024)),
    (FITTED, "vector_reductions_fewest_rounds", (1, 2, 4)),
    (FITTED, "half_precision_fewest", (1, 8)),
    (FITTED, "common_subexpressions_fewest", (1, 2)),
    (FITTED, "hoist_conversions_fewest_rows", (1, 2, 16)),
    (FITTED, "packs_least_instances", (1, 16)),
    (FITTED, "packs_tasks", (3, 64)),
    (FITTED, "scatter_runs_stretch", (2, 4, 1024)),
    (FITTED, "scatter_runs_ahead", (2, 12)),
    (FITTED, "scatter_runs_held_bytes", (0, 16, 256)),
    (FITTED, "register_rows_least_guessed", (0, 5)),
    (vector_epilogues, "WIDTHS", ((16,), (64, 32, 16))),
    (FITTED, "owner_computes_least_ahead_bytes", (1, 256 * 1024)),
    (contraction, "FEWEST_ALONG", (1, 32)),
    (tile_shapes, "STREAMED_FACTOR", (0, 0, 1024)),
    (tile_shapes, "STREAMED_STEPS", (2, 8)),
    (tile_shapes, "PIECE_CYCLES", (30, 10_000)),
    (FITTED, "jam_reductions_longest", (4, 128)),
    (FITTED, "jam_reductions_far_row", (1, 128)),
    (FITTED, "jam_reductions_far_bytes", (1, 1024)),
    (FITTED, "scatter_copies_fewest_updates", (0, 0, 4)),
    (FITTED, "scatter_copies_turns", (2, 3, 4)),
    (FITTED, "scatter_copies_most_bytes", (16, 64 * 1024)),
    (FITTED, "scatters_long_row", (16, 1024)),
    (FITTED, "split_stencils_fewest_inside", (1, 1, 16)),
    (FITTED, "split_stencils_most_beside", (0, 8)),
    (FITTED, "overlapping_tails_fewest_steps", (1, 4)),
    (FITTED, "overlapping_tails_longest_past", (16, 512)),
    (FITTED, "short_sums_rows", (2, 3, 4)),
    (FITTED, "short_sums_longest", (4, 256)),
    (FITTED, "vectorize_short_rows_shortest", (2, 3, 5)),
    (FITTED, "vectorize_short_rows_longest", (8, 15)),
    (FITTED, "vectorize_short_rows_few", (6, 15)),
    (FITTED, "vectorize_short_rows_quarter", (4, 64)),
    (wide_accumulators, "LONG", (1, 16, 4096)),
    (reductions, "CHAIN", (1, 2, 64)),
    (long_totals, "LONG", (1, 4, 512)),
    (long_totals, "CHAIN", (1, 3, 64)),
    (scans, "FEWEST", (2, 8)),
    (scans, "SHORTEST_CHUNK", (3, 8, 64)),
    (scans, "FEWEST_CHUNKS", (2, 4)),
    (scans, "CHUNK_WORK", (1, 1, 3)),
    (scans, "MOST_TERMS", (4, 32)),
    (windows, "SHORTEST_TILE", (8, 384)),
    (windows, "LONGEST_DOUBLED", (0, 2048, 2048)),
)
