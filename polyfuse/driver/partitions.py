"""Partitions by name: what `compile(partition=...)` and `--partition` stand for.

connect   graphs of many statements are cut along large tensors; layer I shares all loops that it can
rules     the same, but layer I fuses Apollo's micro-graphs only (`LoopFusion(partition="rules")`)
search    every graph is cut into the patterns that the cost model likes best
          (`Clustering(partition="search", whole=0)`)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.kernel_stages import Kernels
from polyfuse.driver.pipeline import Compilation, Watch, clustering_of
from polyfuse.driver.stages import Scheduled, Specialized
from polyfuse.driver.targets import knobs_for, resolve_target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.fusion.micro_graphs import micro_graphs
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import PARTITIONS, Options, TargetName
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.model.primitive_types import primitive_types


def passes_of(
    partition: str | None, fusion: LoopFusion | None, clustering: Clustering | None
) -> tuple[LoopFusion | None, Clustering | None]:
    """Layer I and the clustering with a partition by name; None leaves both as they are.

    Raises ArgumentError PF419 for a name that there is not, or one that needs layer I where that is left out.
    """
    match partition:
        case None:
            return fusion, clustering
        case "connect":
            return fusion, clustering and replace(clustering, partition="connect")
        case "rules":
            if fusion is None:
                message = "partition='rules' is how layer I fuses, and layer I is left out"
                raise ArgumentError(message, code="PF419", hint='name "loop" among the layers')
            return replace(fusion, partition="rules"), clustering
        case "search":
            return fusion, replace(clustering or Clustering(whole=0), partition="search")
    names = ", ".join(PARTITIONS)
    raise ArgumentError(f"there is no partition {partition!r}", code="PF419", hint=f"one of {names}")


def kernels_by(
    specialized: Specialized,
    partition: str,
    layers: tuple[str, ...],
    options: Options | None = None,
    target: TargetName = "auto",
) -> Kernels:
    """The kernels of an operator at known sizes as `compile` makes them, with every decision on the way."""
    chosen, made_for = options or Options(), resolve_target(target)
    fusion, cut = passes_of(partition, LoopFusion() if "loop" in layers else None, None)
    stitching = Stitching() if "stitch" in layers else None
    packing = Packing() if "pack" in layers else None
    compilation = Compilation(
        specialized.graph,
        {},
        fusion,
        chosen,
        target=made_for,
        stitching=stitching,
        packing=packing,
        clustering=clustering_of(cut, chosen),
        knobs=knobs_for(made_for, chosen),
    )
    low = compilation.lowered(Watch(replace(chosen, dump=None)))
    scheduled = Scheduled(specialized, low.scheduled)
    return Kernels(scheduled, low.kernels, low.decisions, chosen, made_for, stitching, packing, low.copied)


def micro_text(
    specialized: Specialized, partition: str, options: Options | None = None, target: TargetName = "auto"
) -> str:
    """The clusters of an operator after clean-up, and in each the micro-graphs that Apollo's rules give."""
    _, cut = passes_of(partition, LoopFusion(), None)
    lines: list[str] = []
    for k, own in enumerate(specialized.clusters(cut, options, target=target)):
        lines += [f"cluster {k}", *_micro_lines(own.graph)]
    return "\n".join(lines)


def _micro_lines(graph: TensorGraph) -> Iterator[str]:
    with isl_lock:
        kinds = primitive_types(build_model(graph))
    for names in micro_graphs(graph):
        yield "  micro-graph: " + ", ".join(f"{n} ({kinds[n].name.lower()})" for n in names)
