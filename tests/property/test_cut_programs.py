"""Random programs compute the same however their clusters are cut."""

from __future__ import annotations

import pytest
from targets import compare_results
from test_random_programs import call_of

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.driver import feedback
from polyfuse.driver.feedback import Candidate, Doubt, NoLessons, any_cut, pieces_of
from polyfuse.driver.lowering import Passes, lower_clusters
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.ir.target import CpuTarget
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.ir.verify_kernel import verify_kernels
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.clustering.join import Piece
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.reference.evaluate import evaluate


class Eager:
    """A judge for whom parts are always faster."""

    margin = 1.0

    def __init__(self) -> None:
        self.last = 2.0**100

    def doubt(self, piece: Piece) -> Doubt | None:
        return any_cut(piece, CpuTarget(2))

    def rivals(self, piece: Piece, passes: Passes) -> dict[str, Passes]:
        return {}

    def seconds(self, graph: TensorGraph, made: Candidate) -> float:
        self.last /= 2
        return self.last


def test_random_programs_agree_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cluster is cut at the edge that would be to blame, again and again."""
    monkeypatch.setattr(feedback, "judge_of", lambda passes: Eager())
    clustering, fusion = Clustering(library="never"), LoopFusion(late="raise")
    passes = Passes(clustering, fusion, Stitching(rows=1), Packing(), CpuTarget(2))
    calls, requests, cuts = [call_of(8700 + k) for k in range(8)], [], 0
    for call in calls:
        graph = fixed_graph(call.graph, call.sizes)
        clusters = [tuple(s.name for s in graph.statements)]
        low = lower_clusters(
            graph, clusters, passes, lambda owns, by: [pieces_of(g, by, NoLessons()) for g in owns]
        )
        verify_kernels(low.kernels)
        cuts += sum(d.kind == "feedback" for d in low.decisions)
        requests.append(Request(low.kernels, copied=low.copied))
    assert cuts > 8
    for call, code in zip(calls, emit_together(requests), strict=True):
        inputs = {n: a for n, a in call.memory().items() if n in call.graph.inputs}
        arrays = call.memory()
        CpuExecutable(code, {}).run(arrays)
        compare_results(call, arrays, evaluate(call.graph, call.sizes, inputs), "cut at doubts")
