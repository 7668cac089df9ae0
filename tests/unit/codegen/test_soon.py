"""Lines that are asked for just before use: where it pays, in which loops, and the numbers stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from equivalence import fixed_graph_of

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.kernel import KernelGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.mapping.memory_hints import prefetched_lines
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu.executable import CpuExecutable

MIX = """op mix(x: f32[T, H], w: f16[T, H], b: f32[H], n: i64[T]) -> (y: f32[T, H], s: f32[T]) {
  y[t, h] = exp(x[t, h]) + f32(w[t, h]) * b[h] + x[n[t], h]
  s[t] = sum[h](x[t, h] * f32(w[t, h]))
}"""
SCALE = "op scale(inout p: f32[N], x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + old(p[i])\n p[i] = p[i] * 2.0 }"


def kernels_of(text: str, **sizes: int) -> KernelGraph:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2, Stitching())[0]


def source_of(kernels: KernelGraph, checked: bool = False, core: Core | None = None) -> str:
    return emit_together([Request(kernels, checked=checked, knobs=CpuKnobs(core=core))])[0].source


def soon(kernels: KernelGraph) -> set[str]:
    return {b.tensor for k in kernels.kernels for b in k.buffers if b.soon}


@pytest.mark.parametrize(("t", "h"), [(1, 1), (2, 64), (3, 191), (5, 700), (33, 1023)])
def test_results_stay_the_same(t: int, h: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((t, h)).astype(np.float32)
    x.flat[:: max(1, x.size // 5)] = np.nan
    given: dict[str, Any] = {
        "x": x,
        "w": rng.standard_normal((t, h)).astype(np.float16),
        "b": rng.standard_normal(h).astype(np.float32),
        "n": rng.integers(0, t, t),
    }
    kernels = kernels_of(MIX, T=t, H=h)
    found = []
    for wanted in (False, True):
        code = emit_together([Request(prefetched_lines(kernels, 2, [], wanted))])[0]
        run = CpuExecutable(code, {})
        shapes = {p.name: run._shapes[p.name] for p in run.plan.buffers}
        memory: dict[str, Any] = {n: np.full(shapes[n], 7, np.float32) for n in ("y", "s")}
        run.run({**{n: a.reshape(shapes[n]) for n, a in given.items()}, **memory})
        found.append(memory)
    for name in ("y", "s"):
        np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.parametrize(
    ("h", "l2", "loops"), [(1024, 1024, 1), (1 << 20, 1024, 2), (40000, 1024, 1), (40000, 512, 2)]
)
def test_what_an_earlier_loop_of_the_row_has_read_is_not_asked_for_again(h: int, l2: int, loops: int) -> None:
    text = """
    op centred(x: f32[T, H]) -> (y: f32[T, H]) {
      m[t] = sum[h](x[t, h])
      y[t, h] = (x[t, h] - m[t]) * 2.0
    }
    """
    kernels, core = prefetched_lines(kernels_of(text, T=4, H=h), 2, [], True), Core(l2=l2 << 10)
    asked = [line for line in source_of(kernels, core=core).splitlines() if "__builtin_prefetch(&b_x" in line]
    assert len([line for line in asked if "+ l + 32;" in line]) == loops


NORMAL = """op normal(x: f32[N, C, W]) -> (y: f32[N, C, W]) {
  m[c] = mean[n, w](x[n, c, w])
  y[n, c, w] = (x[n, c, w] - m[c]) * 2.0
}"""


def of_the_next_row(text: str, **sizes: int) -> list[str]:
    source = source_of(prefetched_lines(kernels_of(text, **sizes), 2, [], True))
    return [line for line in source.splitlines() if "__builtin_prefetch(&b_x" in line and "_n = " in line]


def test_the_last_pass_over_a_row_asks_for_the_next_one() -> None:
    (line,) = of_the_next_row(NORMAL, N=16, C=64, W=1000)
    assert "l += 16) { const pf_i64 c2_n = c2_s + l;" in line
    assert "b_x[(((c1 * 64) + pf_min_i64(c0 + 1, 63)) * 1000) + c2_n]" in line
    whole = "op f(x: f32[C, W]) -> (y: f32[C, W]) { y[c, w] = x[c, w] / (sum[v](x[c, v]) + 1.0) }"
    assert of_the_next_row(whole, C=64, W=16000)


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"N": 16, "C": 64, "W": 100}, "L1 keeps the row"),
        ({"N": 64, "C": 64, "W": 10000}, "L2 does not"),
        ({"N": 16, "C": 4, "W": 1000}, "workers have few rows each"),
    ],
)
def test_the_next_row_comes_by_itself(sizes: dict[str, int], why: str) -> None:
    assert not of_the_next_row(NORMAL, **sizes), why


def test_a_part_of_a_row_is_no_reason_to_ask_for_the_next() -> None:
    part = "op f(x: f32[N, C, W]) -> (y: f32[N, C, W]) { y[n, c, w] = x[n, c, w] - sum[k](x[k, c, 0]) }"
    assert not of_the_next_row(part, N=16, C=64, W=1000)
    once = "op f(x: f32[N, C, W]) -> (s: f32[C]) { s[c] = sum[n, w](x[n, c, w]) }"
    assert not of_the_next_row(once, N=16, C=64, W=1000)


@pytest.mark.parametrize(("n", "c", "w"), [(3, 8, 2100), (37, 9, 333), (2, 11, 4097)])
def test_results_with_requests_for_the_next_row(n: int, c: int, w: int) -> None:
    kernels = prefetched_lines(kernels_of(NORMAL, N=n, C=c, W=w), 2, [], True)
    code = emit_together([Request(kernels)])[0]
    assert "c2_n = " in code.source
    x = np.random.default_rng(0).standard_normal((n, c, w)).astype(np.float32)
    y = np.full((n, c, w), 7, np.float32)
    CpuExecutable(code, {}).run({"x": x, "y": y})
    want = (x - x.mean((0, 2), np.float64, keepdims=True)) * 2.0
    np.testing.assert_allclose(y, want, rtol=0, atol=2e-6)


def test_what_goes_along_memory_is_asked_for_and_what_is_computed_or_changed_is_not() -> None:
    kernels = prefetched_lines(kernels_of(MIX, T=64, H=1024), 2, [], True)
    assert soon(kernels) == {"x", "w", "b", "n"}
    lines = [line for line in source_of(kernels).splitlines() if "__builtin_prefetch(" in line]
    assert any("&b_x[" in line and "l += 16)" in line and "+ l + 32;" in line for line in lines)
    assert any("&b_w[" in line and "l += 32)" in line and "+ l + 64;" in line for line in lines)
    assert not any("b_n[" in line for line in lines)
    assert "__builtin_prefetch(" not in source_of(kernels, checked=True)
    assert soon(prefetched_lines(kernels_of(SCALE, N=5000), 2, [], True)) == {"x"}


def test_short_loops_stay_as_they_are() -> None:
    text = "op f(x: f32[T, 32], b: f32[T]) -> (y: f32[T, 32]) { y[t, h] = exp(x[t, h]) + b[t] }"
    kernels = kernels_of(text, T=64)
    assert source_of(prefetched_lines(kernels, 2, [], True)) == source_of(kernels)


@pytest.mark.parametrize(("rows", "names"), [(1 << 14, {"x", "y"}), (1 << 10, set())])
def test_the_model_asks_for_what_comes_from_memory(rows: int, names: set[str]) -> None:
    text = (
        "op f(x: f32[T, H], b: f32[H], y: f32[T, H]) -> (z: f32[T, H]) { z[t, h] = x[t, h] * b[h] + y[t, h] }"
    )
    kernels = kernels_of(text, T=rows, H=1000)
    found: list[Decision] = []
    assert soon(prefetched_lines(kernels, 2, found)) == names
    assert [d.kind for d in found] == (["prefetch lines"] if names else [])
    assert prefetched_lines(kernels, 2, [], False) == kernels
