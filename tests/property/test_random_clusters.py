"""Random programs cut into small clusters agree with the reference, whatever is cut, on every target.

Clusters of one statement each are as far from the usual way as can be: every temporary goes through global
memory, pieces of one tensor and recurrences must still stay together.
"""

from __future__ import annotations

import pytest
from targets import Call, compare_results
from test_random_programs import call_of
from thinned import thinned

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.codegen.cuda.emit import emit_cuda_together
from polyfuse.driver.lowering import Lowered, Passes, lower_clusters
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.ir.target import CpuTarget, GpuTarget, Target
from polyfuse.ir.verify_kernel import verify_kernels
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.interpreter.interpreter import InterpretedKernels
from polyfuse.runtime.reference.evaluate import evaluate

GROUPS = range(6)
TOGETHER = 15
GPU = GpuTarget(sms=4, parallel=256, least=16)


def lowered(call: Call, most: int, machine: Target) -> Lowered:
    """Kernels of clusters of at most so many statements."""
    graph = fixed_graph(call.graph, call.sizes)
    cut = Clustering(most=most, whole=0)
    packing = Packing(always=True) if most == 1 else Packing()
    passes = Passes(cut, LoopFusion(), Stitching(rows=1, barriers=False), packing, machine)
    low = lower_clusters(graph, cut.clusters(graph, []), passes)
    verify_kernels(low.kernels)
    return low


def request(low: Lowered) -> Request:
    return Request(low.kernels, copied=low.copied)


@pytest.mark.parametrize("group", thinned(GROUPS, 6))
def test_clusters_of_any_size_agree(group: int) -> None:
    calls = [call_of(7000 + group * TOGETHER + k) for k in range(TOGETHER)]
    sizes = [1 + k % 3 for k in range(TOGETHER)]
    lows = [lowered(c, most, CpuTarget(2)) for c, most in zip(calls, sizes, strict=True)]
    codes = emit_together([request(low) for low in lows])
    for call, low, code, most in zip(calls, lows, codes, sizes, strict=True):
        inputs = {n: a for n, a in call.memory().items() if n in call.graph.inputs}
        want = evaluate(call.graph, call.sizes, inputs)
        interpreted = InterpretedKernels(low.kernels, checked=True, copied=low.copied)
        for machine in (CpuExecutable(code, {}), interpreted):
            arrays = call.memory()
            machine.run(arrays)
            compare_results(call, arrays, want, f"clusters of {most}, {type(machine).__name__}")


def test_clusters_agree_in_the_emulator() -> None:
    calls = [call_of(7500 + k) for k in range(12)]
    codes = emit_cuda_together([request(lowered(c, 1 + k % 3, GPU)) for k, c in enumerate(calls)])
    for call, code in zip(calls, codes, strict=True):
        inputs = {n: a for n, a in call.memory().items() if n in call.graph.inputs}
        want = evaluate(call.graph, call.sizes, inputs)
        arrays = call.memory()
        EmulatedKernels(code, order="random").run(arrays)
        compare_results(call, arrays, want, "clusters, emulated")
