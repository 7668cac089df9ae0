"""The sixteen ways to compile a graph, eight subsets of the layers on a CPU and emulated, and their check."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from targets import DEVICES, Call, compare_results

from polyfuse.codegen.cpu import Request, emit_together
from polyfuse.codegen.cuda import emit_cuda_together
from polyfuse.ir.verify_kernel import verify_kernels
from polyfuse.layers.clusters import Clustering
from polyfuse.layers.loop_fusion import LoopFusion
from polyfuse.layers.packing import Packing
from polyfuse.layers.stitching import Stitching
from polyfuse.lowering import Passes, lower_clusters
from polyfuse.pipeline import fixed_graph
from polyfuse.runtime.cpu import CpuExecutable
from polyfuse.runtime.emulator import EmulatedKernels
from polyfuse.runtime.reference import evaluate


@dataclass(frozen=True)
class Way:
    """Layers, and whether the kernels run on a CPU or in the emulator."""

    loops: bool
    stitched: bool
    packed: bool
    on_cpu: bool

    def request(self, call: Call) -> Request:
        """Kernels, cut into clusters as the seed of the call has it."""
        dice = random.Random(call.name)
        cut = Clustering(most=dice.choice((2, 6, 40)), whole=dice.choice((0, 40)), library="never")
        device = DEVICES[dice.choice(list(DEVICES))]
        passes = Passes(
            cut,
            LoopFusion(partition=dice.choice(("whole", "rules"))) if self.loops else None,
            Stitching(rows=1, barriers=dice.choice((None, False))) if self.stitched else None,
            Packing(always=dice.choice((True, None))) if self.packed else None,
            2 if self.on_cpu else device,
        )
        graph = fixed_graph(call.graph, call.sizes)
        low = lower_clusters(graph, cut.clusters(graph, []), passes)
        verify_kernels(low.kernels)
        return Request(low.kernels, copied=low.copied)


WAYS = [Way(bool(k & 1), bool(k & 2), bool(k & 4), bool(k & 8)) for k in range(16)]


def check(chosen: list[tuple[Call, Way]]) -> None:
    """All give the reference's numbers; one translation unit for each target."""
    for on_cpu in (True, False):
        mine = [(c, w) for c, w in chosen if w.on_cpu == on_cpu]
        requests = [w.request(c) for c, w in mine]
        codes: Any = emit_together(requests) if on_cpu else emit_cuda_together(requests)
        for (call, way), code in zip(mine, codes, strict=True):
            machine = CpuExecutable(code, {}) if on_cpu else EmulatedKernels(code, seed=len(call.text))
            inputs = {n: a for n, a in call.memory().items() if n in call.graph.inputs}
            want = evaluate(call.graph, call.sizes, inputs)
            arrays = call.memory()
            machine.run(arrays)
            compare_results(call, arrays, want, str(way))
