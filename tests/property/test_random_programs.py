"""Random programs, fused and unfused, compiled and interpreted, against the float64 reference.

Many programs share a translation unit, so that a run compiles few sources.  `make test-all` runs many
more seeds; a failure names its seed, and `RandomProgram.text` is the program.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import pytest
from programs import RandomProgram, random_program

from polyfuse.codegen.cpu import Request, emit_together
from polyfuse.frontend_dsl.build_graph import instantiate
from polyfuse.frontend_dsl.parse import parse_text
from polyfuse.ir.index_expr import evaluate as value_of
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.layers.in_place import entry_copies
from polyfuse.layers.kernels import form_kernels
from polyfuse.layers.loop_fusion import LoopFusion
from polyfuse.pipeline import fixed_graph, schedule
from polyfuse.runtime.agreement import agrees
from polyfuse.runtime.cpu import CpuExecutable
from polyfuse.runtime.interpreter import InterpretedKernels
from polyfuse.runtime.reference import Evaluated, evaluate

TOGETHER = 20
GROUPS = range(15)  # 300 programs
# The long run: POLYFUSE_TEST_GROUPS=100:400 chooses other seeds (a group is 20 of them).
FIRST, LAST = map(int, os.environ.get("POLYFUSE_TEST_GROUPS", "15:75").split(":"))
MORE_GROUPS = range(FIRST, LAST)


@dataclass
class Case:
    program: RandomProgram
    graph: TensorGraph
    want: dict[str, Evaluated]
    requests: tuple[Request, ...]  # fused, unfused


def prepare(seed: int) -> Case:
    p = random_program(seed)
    graph = instantiate(parse_text(p.text), p.op)
    fixed = fixed_graph(graph, p.sizes)
    requests = []
    for fusion in (LoopFusion(scheduler="isl" if seed % 10 == 0 else "auto"), None):
        kernels, _ = form_kernels(schedule(fixed, fusion), 2)
        copied, _ = entry_copies(kernels)
        requests.append(Request(kernels, copied=copied))
    return Case(p, graph, dict(evaluate(graph, p.sizes, p.inputs)), tuple(requests))


def memory(case: Case) -> dict[str, np.ndarray]:
    arrays = {k: np.array(v) for k, v in case.program.inputs.items()}
    for t in case.graph.tensors:
        if t.role is Role.OUTPUT:
            shape = tuple(value_of(e, case.program.sizes) for e in t.shape)
            arrays[t.name] = arrays[t.alias] if t.alias else np.full(shape, 77).astype(t.dtype.numpy)
    return arrays


def compare(case: Case, arrays: dict[str, np.ndarray], how: str) -> None:
    for t in case.graph.tensors:
        if t.role is Role.OUTPUT:
            outcome = agrees(arrays[t.name], case.want[t.name], t.dtype)
            what = f"seed {case.program.seed} {how}, {t.name}: {outcome.message}\n{case.program.text}"
            assert outcome, what


def check_group(group: int) -> None:
    cases = [prepare(group * TOGETHER + k) for k in range(TOGETHER)]
    codes = emit_together([r for c in cases for r in c.requests])
    for k, case in enumerate(cases):
        for way, (request, code) in enumerate(zip(case.requests, codes[2 * k : 2 * k + 2], strict=True)):
            name = ("fused", "unfused")[way]
            arrays = memory(case)
            CpuExecutable(code, {}).run(arrays)
            compare(case, arrays, f"{name} on cpu")
            arrays = memory(case)
            InterpretedKernels(request.kernels, checked=True, copied=request.copied).run(arrays)
            compare(case, arrays, f"{name} interpreted")


@pytest.mark.parametrize("group", GROUPS)
def test_fused_and_unfused_agree(group: int) -> None:
    check_group(group)


@pytest.mark.slow
@pytest.mark.parametrize("group", MORE_GROUPS)
def test_fused_and_unfused_agree_on_many(group: int) -> None:
    check_group(group)
