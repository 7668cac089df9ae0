"""Strips of memory that is updated in place begin at lines, wherever the memory does, and cover it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from equivalence import fixed_graph_of

import polyfuse as pf
from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.runtime.cpu.executable import CpuExecutable

STEP = """op step(inout p: {T}[N], g: {T}[N], inout m: {T}[N], a: f32 = 0.5) {{
  m_new[i] = m[i] * {T}(a) + g[i]
  p[i] = p[i] - m_new[i] * {T}(0.25)
  m[i] = m_new[i]
}}"""
NUMPY = {"f32": np.float32, "f64": np.float64, "f16": np.float16}


def placed(values: Any, offset: int) -> Any:
    """A copy that begins so many elements after a cache line, with guards on both sides."""
    size = values.itemsize
    memory = np.full(values.size + 256, 7, values.dtype)
    start = (-memory.ctypes.data % 64) // size + 64 // size + offset
    array = memory[start : start + values.size]
    array[:] = values
    return array


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    return {t: pf.compile(pf.parse(STEP.format(T=t))) for t in NUMPY}


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("n", [0, 1, 2047, 40_960, 40_961, 50_003])
@pytest.mark.parametrize("offsets", [(0, 0), (4, 4), (1, 7), (15, 3)])
def test_all_elements_once(steps: dict[str, Any], dtype: str, n: int, offsets: tuple[int, int]) -> None:
    rng = np.random.default_rng(n)
    p, g, m = (rng.standard_normal(n).astype(NUMPY[dtype]) for _ in range(3))
    p[::997] = np.nan
    m[::1009] = np.inf
    plain = [x.astype(np.float64) for x in (p, g, m)]
    mine = [placed(p, offsets[0]), g, placed(m, offsets[1])]
    steps[dtype](*mine)
    want_m = plain[2] * 0.5 + plain[1]
    tolerance = 4e-3 if dtype == "f16" else 1e-6
    np.testing.assert_allclose(mine[2], want_m, tolerance, tolerance)
    np.testing.assert_allclose(mine[0], plain[0] - want_m * 0.25, tolerance, 2 * tolerance)
    for array in (mine[0], mine[2]):
        guards = array.base
        outside = guards.size - array.size
        assert np.count_nonzero(guards == 7) >= outside


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_strips_in_turns_cover_it_too(rows: int) -> None:
    """Those that run together begin where they did: all of them, or none."""
    n = 60_003
    graph = fixed_graph_of(STEP.format(T="f32"), N=n)
    kernels, _ = form_kernels(LoopFusion().schedule(graph), 2)
    (code,) = emit_together([Request(kernels, knobs=CpuKnobs(rows=rows))])
    p, g, m = (np.arange(n, dtype=np.float32) % k for k in (7, 5, 3))
    mine = {"p": placed(p, 4), "g": g, "m": placed(m, 1), "a": np.asarray(np.float32(0.5))}
    CpuExecutable(code, {}).run({**mine, "p__out": mine["p"], "m__out": mine["m"]})
    np.testing.assert_array_equal(mine["m"], m * np.float32(0.5) + g)
    np.testing.assert_array_equal(mine["p"], p - (m * np.float32(0.5) + g) * np.float32(0.25))


def test_only_strips_in_place_are_shifted() -> None:
    def source(text: str, *given: Any) -> str:
        f = pf.compile(pf.parse(text))
        f(*given)
        code = f.built(*given).code
        assert code is not None
        return code.source

    x = np.ones(1 << 17, np.float32)
    assert re.search(r"c1_f > 0", source(STEP.format(T="f32"), x.copy(), x, x.copy()))
    assert "c1_f" not in source("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 2.0 }", x)
    apart = "op f(inout p: f32[N], x: f32[N]) { p[i] = x[i] * 2.0 }"
    assert "c1_f" not in source(apart, x.copy(), x)
