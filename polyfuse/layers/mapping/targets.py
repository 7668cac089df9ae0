"""How kernels are made of phases for each target: what `layers.mapping.kernels` leaves to it.

A CPU's workers run chunks of parallel loops with vectors inside; a GPU's grid has blocks of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, singledispatch
from typing import Protocol

from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.kernel import Buffer, KernelGraph
from polyfuse.ir.schedule_tree import Tree
from polyfuse.ir.target import CpuTarget, GpuTarget, Target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.contractions import cpu_tiles, gpu_tiles
from polyfuse.layers.contractions.contraction import around_contractions
from polyfuse.layers.contractions.factors import Contraction
from polyfuse.layers.mapping import cpu
from polyfuse.layers.mapping import gpu as gpu_mapping
from polyfuse.layers.mapping.cpu_storage import CpuStorage, Extents, crossing
from polyfuse.layers.mapping.entry_values import read_first
from polyfuse.layers.mapping.folded_rows import fold_rows
from polyfuse.layers.mapping.gpu_row_alignment import align_rows
from polyfuse.layers.mapping.gpu_row_cache import cache_rows
from polyfuse.layers.mapping.gpu_storage import GpuStorage
from polyfuse.layers.mapping.loop_alignment import align_loops
from polyfuse.layers.mapping.memory_hints import (
    hints_where_far,
    non_temporal_stores,
    prefetched_lines,
    streaming_stores,
)
from polyfuse.layers.mapping.nests import Nest
from polyfuse.layers.mapping.residues import split_residues
from polyfuse.layers.mapping.scatters import Scatter, around_scatters, map_scatter
from polyfuse.layers.stitching.grid_barriers import join_kernels, join_regions, persistent_blocks
from polyfuse.poly.model.domains import PolyModel

Part = Tree | Contraction | Scatter


class Storage(Protocol):
    """Chooses buffers for one kernel."""

    def buffer(self, name: str) -> Buffer:
        """Storage of a temporary that only this kernel uses."""
        ...

    def planned(self, buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        """All buffers of the kernel, as they are used together."""
        ...


class TargetMapping(Protocol):
    """The way from phases to kernels on one target."""

    def parts(
        self, graph: TensorGraph, phases: list[Tree], decisions: list[Decision]
    ) -> tuple[TensorGraph, list[Part]]:
        """The phases, cut around what is computed in a way of its own: contractions in tiles, scatters."""
        ...

    def mapped(
        self, graph: TensorGraph, part: Part, decisions: list[Decision]
    ) -> tuple[TensorGraph, list[Nest]]:
        """One part with coordinates; a reduction may be split, and have nests that combine its results."""
        ...

    def crossing(
        self, model: PolyModel, nests: list[Nest], decisions: list[Decision]
    ) -> Mapping[str, Extents]:
        """Extents of temporaries that several kernels touch, where they have fewer than their shape."""
        ...

    def storage(
        self, graph: TensorGraph, part: PolyModel, tree: Tree, nest: Nest, decisions: list[Decision]
    ) -> Storage:
        """Of the kernel of a nest; `tree` has its shared loops as one."""
        ...

    def hinted(self, kernels: KernelGraph, decisions: list[Decision]) -> KernelGraph:
        """Kernels with hints for memory, before they are packed."""
        ...

    def joined(self, kernels: KernelGraph, barriers: bool | None, decisions: list[Decision]) -> KernelGraph:
        """Kernels joined by barriers: wherever it can be done, nowhere, or where it pays (None)."""
        ...


@dataclass(frozen=True, slots=True)
class CpuMapping:
    """Chunks of parallel loops for workers, lanes in the loops along memory."""

    threads: int
    knobs: CpuKnobs

    def parts(
        self, graph: TensorGraph, phases: list[Tree], decisions: list[Decision]
    ) -> tuple[TensorGraph, list[Part]]:
        core, found = self.knobs.on, list[Part]()
        graph, phases = cpu_tiles.with_prologues(graph, phases, decisions, core)
        fits = partial(cpu_tiles.fits, core=core)
        for part in around_scatters(graph, phases, self.threads, core):
            found += [part] if isinstance(part, Scatter) else around_contractions(graph, part, fits, core)
        return graph, found

    def mapped(
        self, graph: TensorGraph, part: Part, decisions: list[Decision]
    ) -> tuple[TensorGraph, list[Nest]]:
        if isinstance(part, Scatter):
            return map_scatter(graph, part, self.threads, decisions, self.knobs)
        if isinstance(part, Contraction):
            graph, trees = cpu_tiles.map_contraction(graph, part, self.knobs.on, self.threads, decisions)
        else:
            graph, trees = cpu.map_phase(graph, part, self.threads, decisions, self.knobs)
        return graph, [Nest(t) for t in trees]

    def crossing(
        self, model: PolyModel, nests: list[Nest], decisions: list[Decision]
    ) -> Mapping[str, Extents]:
        return crossing(model, nests, decisions)

    def storage(
        self, graph: TensorGraph, part: PolyModel, tree: Tree, nest: Nest, decisions: list[Decision]
    ) -> Storage:
        return CpuStorage(graph, part, tree, nest, self.threads, decisions, self.knobs)

    def hinted(self, kernels: KernelGraph, decisions: list[Decision]) -> KernelGraph:
        if kernels.graph.sizes:
            return hints_where_far(kernels, self.threads, decisions)
        kernels = non_temporal_stores(kernels, self.threads, decisions, self.knobs.stream)
        return prefetched_lines(kernels, self.threads, decisions)

    def joined(self, kernels: KernelGraph, barriers: bool | None, decisions: list[Decision]) -> KernelGraph:
        return kernels if barriers is False else join_regions(kernels, decisions)


@dataclass(frozen=True, slots=True)
class GpuMapping:
    """Blocks of threads of a grid."""

    gpu: GpuTarget

    def parts(
        self, graph: TensorGraph, phases: list[Tree], decisions: list[Decision]
    ) -> tuple[TensorGraph, list[Part]]:
        return graph, list(around_contractions(graph, phases, partial(gpu_tiles.fits, gpu=self.gpu)))

    def mapped(
        self, graph: TensorGraph, part: Part, decisions: list[Decision]
    ) -> tuple[TensorGraph, list[Nest]]:
        assert not isinstance(part, Scatter)
        if isinstance(part, Contraction):
            return gpu_tiles.map_contraction(graph, part, self.gpu, decisions)
        graph, part = split_residues(graph, part, decisions)
        graph, part = read_first(align_loops(graph, part, decisions), part, decisions)
        graph = fold_rows(graph, part, decisions)
        graph, nests = gpu_mapping.map_phase(graph, part, self.gpu, decisions)
        for k, nest in enumerate(nests):
            graph, nests[k] = cache_rows(graph, nest, self.gpu, decisions)
            graph = align_rows(graph, nests[k])
        return graph, nests

    def crossing(
        self, model: PolyModel, nests: list[Nest], decisions: list[Decision]
    ) -> Mapping[str, Extents]:
        return {}

    def storage(
        self, graph: TensorGraph, part: PolyModel, tree: Tree, nest: Nest, decisions: list[Decision]
    ) -> Storage:
        return GpuStorage(graph, part, tree, nest, self.gpu.shared_bytes, decisions, self.gpu.halvings)

    def hinted(self, kernels: KernelGraph, decisions: list[Decision]) -> KernelGraph:
        return streaming_stores(kernels, decisions) if self.gpu.stores == "streaming" else kernels

    def joined(self, kernels: KernelGraph, barriers: bool | None, decisions: list[Decision]) -> KernelGraph:
        """Also those of small groups of rows, on persistent blocks."""
        if barriers is not False:
            kernels = join_kernels(kernels, self.gpu, barriers is True, decisions)
        return persistent_blocks(kernels, self.gpu, decisions)


@singledispatch
def mapping_of(target: Target, knobs: CpuKnobs) -> TargetMapping:
    """The way from phases to kernels on a target; `knobs` are those of a CPU."""
    raise NotImplementedError(f"no mapping for {target}")


@mapping_of.register
def _(target: CpuTarget, knobs: CpuKnobs) -> TargetMapping:
    return CpuMapping(target.threads, knobs)


@mapping_of.register
def _(target: GpuTarget, knobs: CpuKnobs) -> TargetMapping:
    return GpuMapping(target)
