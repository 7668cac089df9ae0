"""Random programs with what the cost model decides, on a CPU and on a GPU with slow memory and fast launches.

Nests are stitched, recomputed and left apart, and all programs give the reference's numbers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from stitching_programs import stitching_program
from targets import Call, compare_results
from thinned import thinned

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.codegen.cuda.emit import emit_cuda_together
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.driver.lowering import schedule
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.target import GpuTarget
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import entry_copies, form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.reference.evaluate import evaluate

SMALL = GpuTarget(sms=64, threads=32, longest=64, parallel=64, least=16)
SLOW_MEMORY = replace(SMALL, launch_s=0.0, bandwidth=1e6, l2_bytes=0)
MACHINES = (8, SLOW_MEMORY)
TOGETHER, GROUPS = 12, range(4)


def call_of(seed: int) -> Call:
    p = stitching_program(seed)
    return Call(f"seed {seed}", p.text, instantiate(parse_text(p.text), p.op), p.sizes, p.inputs)


def requests(call: Call, taken: Counter[tuple[str, bool]]) -> list[Request]:
    """Kernels for both machines; every other program without layer I."""
    fixed = fixed_graph(call.graph, call.sizes)
    scheduled = schedule(fixed, LoopFusion() if int(call.name.split()[1]) % 2 else None)
    made = []
    for machine in MACHINES:
        kernels, decisions = form_kernels(scheduled, machine, Stitching(barriers=False))
        taken.update((d.kind, d.taken) for d in decisions if d.kind in ("stitch", "recompute"))
        made.append(Request(kernels, copied=entry_copies(kernels)[0]))
    return made


@pytest.mark.parametrize("group", thinned(GROUPS, 4))
def test_decisions_agree(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 4)
    monkeypatch.setattr(FITTED, "mapping_fewest_factored", 3)
    taken: Counter[tuple[str, bool]] = Counter()
    calls = [call_of(s) for s in range(1000 + group * TOGETHER, 1000 + (group + 1) * TOGETHER)]
    both = [requests(call, taken) for call in calls]
    on_cpu, on_gpu = emit_together([r for r, _ in both]), emit_cuda_together([r for _, r in both])
    for call, compiled, emulated in zip(calls, on_cpu, on_gpu, strict=True):
        arrays = call.memory()
        want = evaluate(call.graph, call.sizes, {n: arrays[n] for n in call.graph.inputs})
        for machine in (CpuExecutable(compiled, {}), EmulatedKernels(emulated, seed=group)):
            arrays = call.memory()
            machine.run(arrays)
            compare_results(call, arrays, want, type(machine).__name__)
    assert taken["stitch", True] and taken["stitch", False], taken
    assert taken["recompute", True] or taken["recompute", False], taken
