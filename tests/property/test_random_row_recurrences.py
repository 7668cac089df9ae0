"""Random recurrences along the rows of a matrix: rows are lanes, and agree with rows one by one."""

from __future__ import annotations

import random

import pytest
from equivalence import assert_right, fixed_graph_of, run_on, seeded_inputs
from thinned import thinned

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import AVX2, CpuKnobs
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu.executable import CpuExecutable

PROGRAMS = 60
_TERMS = (
    "x[b, {t}]", "x[b, {t} {back} 1]", "x[b, {t} {back} 2] * 0.5", "w[{t}] * x[b, {t}]", "g[b]",
    "g[b] * w[{t}]", "v[b, T - 1 - ({t})]", "f32({t})", "max(x[b, {t}], g[b])",
    "(x[b, {t}] if v[b, {t}] > 0.0 else w[{t}])",
    "exp(-x[b, {t}] * x[b, {t}])", "c[b, {t} + 3] * 0.25",
)  # fmt: skip


def _pass(rng: random.Random, names: list[str], known: list[str]) -> list[str]:
    """Recurrences of the same steps, which may read one another, and what earlier passes found."""
    forwards, first = rng.random() < 0.6, rng.choice([2, 2, 5])
    back = "-" if forwards else "+"
    lines = []
    for name in names:
        starts = [f"{k}" if forwards else f"T - 1 - {k}" for k in range(first)]
        lines += [f"{name}[b, {s}] = x[b, {s}] * {k + 1}.0" for k, s in enumerate(starts)]
    steps = f"{first}..T" if forwards else f"0..T - {first}"
    for k, name in enumerate(names):
        factor = rng.choice(["0.5", "-0.25", "0.125 * g[b]", "0.3"])
        terms = [f"{factor} * {rng.choice(names)}[b, t {back} {rng.randint(1, first)}]"]
        terms += [t.format(t="t", back=back) for t in rng.sample(_TERMS, rng.randint(1, 3))]
        terms += [f"0.5 * {n}[b, t]" for n in (*known, *names[:k]) if rng.random() < 0.4]
        value = " + ".join(terms)
        if rng.random() < 0.2:
            value = f"max({value}, {name}[b, t {back} 1])"
        lines.append(f"{name}[b, t] = {value} for b in 0..B, t in {steps}")
    return lines


def program(rng: random.Random) -> str:
    """One or two passes over the rows."""
    passes = [["p", "q"][: rng.randint(1, 2)], *([["r"]] if rng.random() < 0.5 else [])]
    lines = [
        x for k, names in enumerate(passes) for x in _pass(rng, names, [n for p in passes[:k] for n in p])
    ]
    every = [n for p in passes for n in p]
    results = sorted({every[-1], *(n for n in every if rng.random() < 0.5)})
    declared = ", ".join(f"{n}: f32[B, T]" for n in results)
    body = "\n  ".join(lines)
    inputs = "x: f32[B, T], v: f32[B, T], c: f32[B, T+3], w: f32[T], g: f32[B]"
    return f"op f({inputs}) -> ({declared}) where T >= 9 {{\n  {body}\n}}"


@pytest.mark.parametrize("seed", thinned(range(PROGRAMS), 12))
def test_rows_agree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    text = program(rng)
    sizes = {"B": rng.choice([1, 15, 16, 17, 40, 67]), "T": rng.choice([9, 10, 32, 33, 40, 64, 99])}
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", rng.choice([1, 1 << 40]))
    graph = fixed_graph_of(text, **sizes)
    kernels, *_ = form_kernels(LoopFusion().schedule(graph), 2, Stitching(rows=1))
    inputs = seeded_inputs(graph)
    for knobs in (CpuKnobs(), CpuKnobs(core=AVX2), CpuKnobs(rows=1)):
        (code,) = emit_together([Request(kernels, knobs=knobs)])
        assert_right(graph, run_on(CpuExecutable(code, {}), kernels.graph, inputs), inputs)
