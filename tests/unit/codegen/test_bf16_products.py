"""Products of bf16, two steps at a time, where a core multiplies pairs of them."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from equivalence import assert_computes, fixed_graph_of
from machines import MACHINES, decided_for
from test_byte_products import kernels_of

import polyfuse as pf
from polyfuse.codegen.math.prelude import prelude
from polyfuse.driver.targets import this_core
from polyfuse.ir.cpu_core import AVX2, Core
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.tensor_graph import Apply, walk
from polyfuse.runtime.reference.values import dot_pairs, pair

BF16 = ml_dtypes.bfloat16
TEXT = """op f(a: bf16[M, K], b: bf16[K, N]) -> (c: f32[M, N]) {
  c[i, j] = sum[k](f32(a[i, k]) * f32(b[k, j]))
}"""
DENSE = """op f(a: bf16[B, M, K], b: bf16[N, K], z: bf16[N]) -> (y: bf16[B, M, N]) {
  c[p, i, j] = sum[k](f32(a[p, i, k]) * f32(b[j, k]))
  y[p, i, j] = bf16(max(c[p, i, j] + f32(z[j]), 0.0))
}"""
IMAGES = """op f(x: bf16[C, H, W], w: bf16[K, C, 3, 3]) -> (y: f32[K, H-2, W-2]) where H >= 3, W >= 3 {
  y[k, p, q] = sum[c, r, s](f32(x[c, p + r, q + s]) * f32(w[k, c, r, s]))
}"""
PAIRS = Core(pair_products=True)


def operations(kernels: KernelGraph) -> set[str]:
    found = (x for s in kernels.graph.statements for x in walk(s.expr))
    return {x.op for x in found if isinstance(x, Apply)} & {"dot_pairs", "mul"}


def drawn(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype("f4").astype(BF16)


@pytest.mark.parametrize("text", [TEXT, DENSE, IMAGES])
@pytest.mark.parametrize("steps", [40, 41])
def test_two_steps_at_once(text: str, steps: int) -> None:
    """In the interpreter of kernels, and as C++ of this machine, which may know the instruction or not."""
    sizes = {"B": 2, "M": 69, "K": steps, "N": 83, "C": steps, "H": 10, "W": 21}
    graph = fixed_graph_of(text, **{n: v for n, v in sizes.items() if f"{n}," in text or f"{n}]" in text})
    kernels, _ = kernels_of(graph, PAIRS)
    assert "dot_pairs" in operations(kernels)
    assert_computes(graph, kernels)
    assert_computes(graph, kernels, target="cpu")
    assert "dot_pairs" not in operations(kernels_of(graph, AVX2)[0])


def test_f16_and_products_of_other_things_stay() -> None:
    for text in (TEXT.replace("bf16", "f16"), TEXT.replace("f32(a[i, k])", "(f32(a[i, k]) + 1.0)")):
        assert operations(kernels_of(fixed_graph_of(text, M=64, K=64, N=64), PAIRS)[0]) == {"mul"}


@pytest.mark.parametrize("sizes", [(64, 512, 64), (1, 40, 40), (300, 33, 17), (33, 2000, 40), (8, 0, 64)])
def test_products_on_this_machine(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    a, b = drawn(m, k), drawn(k, n, seed=1)
    found: Any = pf.compile(TEXT)(a, b)
    exact = a.astype("f8") @ b.astype("f8")
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5 * max(1, k) ** 0.5)


def test_infinities_and_nan_are_those_of_single_steps() -> None:
    a, b = drawn(40, 64), drawn(64, 48, seed=1)
    a[3, 5], a[7, 0], a[9, 63], b[2, 2] = np.nan, np.inf, -np.inf, np.inf
    a[11, 2] = 0.0  # times infinity
    found: Any = pf.compile(TEXT)(a, b)
    with np.errstate(invalid="ignore"):
        exact = a.astype("f8") @ b.astype("f8")
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(exact))


def test_denormals_are_kept_where_they_are_to_be() -> None:
    """The instruction takes them for 0."""
    a, b = np.full((32, 64), 1e-39, "f4").astype(BF16), np.ones((64, 48), "f4").astype(BF16)
    found: Any = pf.compile(TEXT, options=pf.Options(denormals="keep"))(a, b)
    np.testing.assert_allclose(found, a.astype("f8") @ b.astype("f8"), rtol=1e-5)


@pytest.mark.parametrize("kind", MACHINES)
def test_pairs_are_added_where_there_is_an_instruction_and_denormals_may_go(kind: str) -> None:
    with decided_for(kind):
        assert not this_core().pair_products
        assert this_core(flush=True).pair_products == ("avx512_bf16" in MACHINES[kind].features)


@pytest.mark.parametrize("flags", ["-march=native", "-march=x86-64", "-march=x86-64-v3"])
@pytest.mark.parametrize("size", [16, 32, 64])
def test_pairs_with_and_without_the_instruction(flags: str, size: int, tmp_path: Path) -> None:
    """Small integers: all is exact, in whatever order."""
    rng = np.random.default_rng(1)
    values = rng.integers(-100, 100, (5, 64)).astype("f4")
    total, a, b = values[0], pair(values[1], values[2]), pair(values[3], values[4])
    source = (
        prelude(sorted({"pf_add_pairs_f32", "pf_dot_pairs_f32", "pf_pair_f32"}))
        + f"""
    typedef float V __attribute__((vector_size({size}), aligned(4)));
    extern "C" void add(float* total, const float* a, const float* b) {{
      for (int k = 0; k < 64; k += {size // 4})
        *(V*)(total + k) = pf_add_pairs_f32(*(V*)(total + k), a[0], *(const V*)(b + k));
    }}
    extern "C" void one(float* total, const float* a, const float* b) {{
      for (int k = 0; k < 64; ++k) total[k] += pf_dot_pairs_f32(a[0], b[k]);
    }}
    extern "C" void join(float* words, const float* low, const float* high) {{
      for (int k = 0; k < 64; ++k) words[k] = pf_pair_f32(low[k], high[k]);
    }}"""
    )
    (tmp_path / "b.cpp").write_text(source)
    command = ["g++", "-O2", "-w", "-std=c++17", flags, "-shared", "-fPIC", "-o", "b.so", "b.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "b.so"))
    exact = total + dot_pairs(a[:1], b)
    for function in (library.add, library.one):
        found = total.copy()
        function(*(ctypes.c_void_p(x.ctypes.data) for x in (found, a, b)))
        np.testing.assert_array_equal(found, exact)
    words = np.zeros(64, "f4")
    library.join(*(ctypes.c_void_p(x.ctypes.data) for x in (words, values[3].copy(), values[4].copy())))
    np.testing.assert_array_equal(words.view("u4"), b.view("u4"))
