"""Random recurrences of whole rows: steps share memory, and every step that is read is still there."""

from __future__ import annotations

import random

import numpy as np
import pytest
from equivalence import assert_right, fixed_graph_of, run_on
from targets import Call, check_everywhere
from thinned import thinned

from polyfuse.codegen.cpu.emit import emit
from polyfuse.cost import cpu_time
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.runtime.cpu.executable import CpuExecutable

PROGRAMS, TOGETHER = 48, 8


def program(rng: random.Random) -> str:
    """Two rows of states that read steps before of both, forwards or backwards, and results of some steps."""
    steps, delays = rng.randint(4, 7), [rng.randint(1, 3) for _ in range(4)]
    first, forwards = max(delays), rng.random() < 0.7
    before, given = ("-", range(first)) if forwards else ("+", range(steps - first, steps))
    rest = f"{first}..{steps}" if forwards else f"0..{steps - first}"

    def earlier(name: str, delay: int) -> str:
        at = rng.choice(["i", "(i + 1) % N", "N - 1 - i", "z[i]"])
        return f"{rng.choice(['0.5', '-0.25', '0.75'])} * {name}[t {before} {delay}, {at}]"

    lines = [f"{name}[{k}, i] = x[i] * {k + 1}.0" for name in "uv" for k in given]
    for name, (a, b) in zip("uv", (delays[:2], delays[2:]), strict=True):
        lines.append(f"{name}[t, i] = {earlier('u', a)} + {earlier('v', b)} for t in {rest}, i in 0..N")
    read = rng.sample(range(steps), rng.randint(1, 2))
    lines.append("y[i] = " + " + ".join(f"{rng.choice('uv')}[{k}, i]" for k in read))
    every = rng.random() < 0.5
    if every:
        lines.append(f"s[i] = sum[t in 0..{steps}](u[t, i])")
    results = "y: f32[N], s: f32[N]" if every else "y: f32[N]"
    body = "\n  ".join(lines)
    return f"op f(x: f32[N], z: i64[N]) -> ({results}) where N >= 1 {{\n  {body}\n}}"


def call_of(seed: int) -> Call:
    rng = random.Random(seed)
    text, n = program(rng), rng.choice([1, 3, 17, 64, 300])
    graph = fixed_graph_of(text, N=n)
    draw = np.random.default_rng(seed)
    inputs = {"x": draw.standard_normal(n).astype("f4"), "z": draw.integers(0, n, n)}
    return Call(f"recurrence {seed}", text, graph, {"N": n}, inputs)


@pytest.mark.parametrize("group", thinned(range(PROGRAMS // TOGETHER), 6))
def test_recurrences_agree(group: int) -> None:
    check_everywhere([call_of(TOGETHER * group + k) for k in range(TOGETHER)])


@pytest.mark.parametrize("seed", thinned(range(24), 3))
def test_workers_share_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step on all workers, in short strips, again and again."""
    monkeypatch.setattr(cpu_time, "LEAST_PART", -1e30)
    monkeypatch.setattr(FITTED, "mapping_strip", 8)
    call = call_of(seed)
    kernels, _ = form_kernels(LoopFusion().schedule(call.graph), 2)
    machine = CpuExecutable(emit(kernels), {})
    for _ in range(10):
        assert_right(call.graph, run_on(machine, call.graph, call.inputs), call.inputs)


def test_many_of_them_share_memory() -> None:
    folded = 0
    for seed in range(24):
        decisions = form_kernels(LoopFusion().schedule(call_of(seed).graph), 2)[1]
        folded += any(d.kind == "fold" for d in decisions)
    assert folded >= 8
