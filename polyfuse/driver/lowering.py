"""From a graph at known sizes to kernels, cluster by cluster.

    TensorGraph --Clustering--> clusters --LoopFusion, separate_kernels (each)--> pieces
                --join--> kernels of all --Packing, joined_kernels--> Lowered

A cluster that differs from an earlier one in names only takes that one's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from polyfuse.cost.machines import machine_of
from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.rename import Names, canonical, spans_between
from polyfuse.ir.schedule_tree import ScheduledGraph
from polyfuse.ir.target import Target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering, cut_off
from polyfuse.layers.clustering.join import Piece, join
from polyfuse.layers.contractions.contraction import contraction_of
from polyfuse.layers.fusion.loop_fusion import LoopFusion, identity_schedule
from polyfuse.layers.graph.one_pass.online import online_forms
from polyfuse.layers.graph.reindex.collapse import collapse
from polyfuse.layers.mapping.kernels import entry_copies, joined_kernels, separate_kernels
from polyfuse.layers.mapping.targets import mapping_of
from polyfuse.layers.packing.blas_products import Library, whole_product, with_library
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching


@dataclass(frozen=True, slots=True)
class Passes:
    """The layers, and what kernels are mapped for; `knobs` are those of a CPU."""

    clustering: Clustering
    fusion: LoopFusion | None
    stitching: Stitching | None
    packing: Packing | None
    target: Target
    knobs: CpuKnobs = field(default_factory=CpuKnobs)


# A cluster's kernels, in one piece or more, with the decisions that led to each.
Single = tuple[Piece, tuple[Decision, ...]]
Made = list[Single]
# Makes those of all clusters; none differs from another in names only.
Maker = Callable[[Sequence[TensorGraph], Passes], Sequence[Made]]


@dataclass(frozen=True)
class Lowered:
    """Kernels, and what led to them."""

    scheduled: ScheduledGraph
    kernels: KernelGraph
    copied: frozenset[str]
    decisions: tuple[Decision, ...]


def lower_clusters(
    graph: TensorGraph, clusters: Sequence[tuple[str, ...]], passes: Passes, make: Maker | None = None
) -> Lowered:
    """Kernels of all clusters; `make` may cut those that fail, and work on several at once.

    Raises ScheduleError PF5xx where one of them cannot be made.
    """
    make = make or (lambda owns, by: [[lower_piece(own, by)] for own in owns])
    decisions: list[Decision] = []
    if passes.fusion is not None and passes.fusion.collapse:
        # Clusters must agree on the shapes of what goes between them.
        graph = collapse(graph, decisions, frozenset(passes.fusion.strided))
        passes = replace(passes, fusion=replace(passes.fusion, collapse=False))
    strided = frozenset(passes.fusion.strided) if passes.fusion else frozenset()
    pieces: list[Piece] = []
    owns = list(cut_off(graph, clusters))
    forms = [(canonical(own), tuple(t.name in strided for t in own.tensors)) for own in owns]
    first: dict[object, int] = {}
    for k, form in enumerate(forms):
        first.setdefault(form, k)
    found = dict(zip(first.values(), make([owns[k] for k in first.values()], passes), strict=True))
    for k, own in enumerate(owns):
        like = first[forms[k]]
        if like != k:
            pieces += [piece.like(_alike(owns[like], own, piece)) for piece, _ in found[like]]
            why = f"it differs from cluster {like} in names only, and takes its kernels"
            decisions.append(Decision("same", f"cluster {k}", True, why))
            continue
        pieces += [piece for piece, _ in found[k]]
        decisions += [d for _, why_so in found[k] for d in why_so]
    made = join(graph, pieces)
    kernels, packs = launches(made.kernels, passes)
    return Lowered(made.scheduled, kernels, made.copied, (*decisions, *packs))


def _alike(model: TensorGraph, own: TensorGraph, piece: Piece) -> TensorGraph:
    """The part of a cluster that a piece of another one, of the same form, stands for."""
    tensors = {a.name: b.name for a, b in zip(model.tensors, own.tensors, strict=True)}
    statements = {a.name: b.name for a, b in zip(model.statements, own.statements, strict=True)}
    return Names(tensors, statements, spans=spans_between(model, own)).graph(piece.graph)


def launches(kernels: KernelGraph, passes: Passes) -> tuple[KernelGraph, tuple[Decision, ...]]:
    """Kernels as they are launched: independent ones side by side (layer III), dependent ones with barriers
    between where that pays (layer II)."""
    decisions: list[Decision] = []
    kernels = mapping_of(passes.target, passes.knobs).hinted(kernels, decisions)
    if passes.packing is not None:
        kernels = passes.packing.pack(kernels, machine_of(passes.target), decisions)
    return joined_kernels(kernels, passes.target, passes.stitching, decisions), tuple(decisions)


def lower_piece(graph: TensorGraph, passes: Passes) -> tuple[Piece, tuple[Decision, ...]]:
    """One cluster by the layers given. Raises ScheduleError PF5xx."""
    passed, forms = in_one_pass(graph, passes)
    scheduled = schedule_by(passed, passes)
    kernels, decisions = cluster_kernels(scheduled, passes)
    copied, in_place = entry_copies(kernels)
    return Piece(graph, scheduled, kernels, copied), (*forms, *scheduled.decisions, *decisions, *in_place)


def in_one_pass(graph: TensorGraph, passes: Passes) -> tuple[TensorGraph, tuple[Decision, ...]]:
    """The graph with reductions of a row in one pass over memory, where layer II finds that this pays."""
    if passes.stitching is None:
        return graph, ()
    found: list[Decision] = []
    if passes.fusion is not None and passes.fusion.collapse:  # some elements of a row are of one dim then
        graph = collapse(graph, found, frozenset(passes.fusion.strided))
    made = online_forms(graph, passes.target, found, wanted=passes.stitching.online)
    return made, tuple(found)


def cluster_kernels(scheduled: ScheduledGraph, passes: Passes) -> tuple[KernelGraph, tuple[Decision, ...]]:
    """Kernels of a schedule, or the library's where it computes all of the graph."""
    strided = frozenset(passes.fusion.strided) if passes.fusion else frozenset()
    more: list[Decision] = []
    library = Library(passes.clustering.library, passes.target, passes.knobs.on, strided)
    product = whole_product(scheduled.graph, library, more)
    kernels, decisions = separate_kernels(
        scheduled, passes.target, passes.stitching, passes.knobs, tiles=product is None
    )
    if product is not None:
        kernels = with_library(kernels, scheduled.graph, product, library, more)
    return kernels, (*decisions, *more)


def schedule(graph: TensorGraph, fusion: LoopFusion | None) -> ScheduledGraph:
    """Layer I, or the identity schedule without it."""
    return identity_schedule(graph) if fusion is None else fusion.schedule(graph)


def schedule_by(graph: TensorGraph, passes: Passes) -> ScheduledGraph:
    """The same by the passes of a compilation."""
    fusion = passes.fusion
    if fusion is None or not fusion.rematerialise or not _has_open_tiles(graph, passes):
        return schedule(graph, fusion)
    why = "tiles of open sizes read what is stored; what is computed again has to be copied for them"
    return replace(fusion, rematerialise=False).schedule(
        graph, (Decision("rematerialise", graph.name, False, why),)
    )


def _has_open_tiles(graph: TensorGraph, passes: Passes) -> bool:
    """Has it contractions in tiles of a CPU whose sizes are open?"""
    on_cpu = passes.target.vector_loops and bool(graph.sizes)
    return on_cpu and any(contraction_of(graph, s, passes.knobs.on) for s in graph.statements)
