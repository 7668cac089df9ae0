"""The golden text of known operators for an H200: kernels of layer I, plan, CUDA without the prelude."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from equivalence import fixed_graph_of, results_of, seeded_inputs, shape_of
from test_kernels import PROGRAMS

from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cuda.emit import CudaCode, emit_cuda
from polyfuse.cost.device import device
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import entry_copies, form_kernels
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate


def compiled(name: str) -> tuple[TensorGraph, KernelGraph, CudaCode]:
    text, sizes = PROGRAMS[name]
    graph = fixed_graph_of(text, **sizes)
    kernels, _ = form_kernels(LoopFusion().schedule(graph), GpuTarget(sms=device("H200").sms))
    return graph, kernels, emit_cuda(Request(kernels, copied=entry_copies(kernels)[0]))


def golden_text(name: str) -> str:
    _, kernels, code = compiled(name)
    functions = code.source[code.source.index(f"// {kernels.kernels[0].graph.statements[0]}") :]
    parts = {"kernels": kernels, "plan": code.plan, "CUDA": functions}
    return "\n\n".join(f"=== {title}\n{part}" for title, part in parts.items())


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"cuda/{name}.txt", golden_text(name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden_programs_compute_what_they_should(name: str) -> None:
    graph, _, code = compiled(name)
    inputs = seeded_inputs(graph)
    arrays = {n: np.array(a) for n, a in inputs.items()}
    for t in results_of(graph):
        arrays[t.name] = arrays[t.alias] if t.alias else np.empty(shape_of(t), t.dtype.numpy)
    EmulatedKernels(code).run({b.name: arrays[b.name] for b in code.plan.buffers if b.name in arrays})
    wanted = evaluate(graph, {}, inputs)
    for t in results_of(graph):
        outcome = agrees(arrays[t.name], wanted[t.name], t.dtype)
        assert outcome, f"{t.name}: {outcome.message}"


def test_golden_text_does_not_depend_on_hashes() -> None:
    script = "import test_cuda_golden as t; print(*(t.golden_text(n) for n in t.PROGRAMS), sep='\\n')"
    folder = Path(__file__).parent
    tests = folder.parents[1]
    own = filter(None, [os.environ.get("PYTHONPATH")])  # where packages lie that are not installed
    known = [folder, folder.parent / "layers", tests, tests / "helpers", *own]
    texts = []
    for seed in ("0", "1"):
        env = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(map(str, known)),
        }
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True
        )
        texts.append(done.stdout)
    assert texts[0] == texts[1] and len(texts[0]) > 10_000
