"""Products of bytes, four steps at a time, where a core multiplies them."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from equivalence import assert_computes, fixed_graph_of

import polyfuse as pf
from polyfuse.codegen.math.prelude import prelude
from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.target import CpuTarget
from polyfuse.ir.tensor_graph import Apply, TensorGraph, walk
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.graph.quantized import with_one_sign
from polyfuse.layers.mapping.kernels import separate_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.reference.values import dot_bytes, half, word

TEXT = """op f(a: {0}[M, K], b: {1}[K, N]) -> (c: i32[M, N]) {{
  c[i, j] = sum[k](i32(a[i, k]) * i32(b[k, j]))
}}"""
BATCHED = """op f(a: {0}[B, M, K], b: {1}[N, K], z: f32[N]) -> (y: f32[B, M, N]) {{
  c[p, i, j] = sum[k](i32(a[p, i, k]) * i32(b[j, k]))
  y[p, i, j] = max(0.5 * f32(c[p, i, j]) + z[j], 0.0)
}}"""
WINDOWS = """op f(x: {0}[C, H, W], w: {1}[K, C, 3, 3]) -> (y: i32[K, H-2, W-2]) where H >= 3, W >= 3 {{
  y[k, p, q] = sum[c, r, s](i32(x[c, p + r, q + s]) * i32(w[k, c, r, s]))
}}"""
BYTES = Core(byte_products=True)
KINDS = [("i8", "i8"), ("u8", "u8"), ("u8", "i8"), ("i8", "u8")]
NUMPY = {"i8": "i1", "u8": "u1", "i16": "i2"}


def kernels_of(graph: TensorGraph, core: Core) -> tuple[KernelGraph, tuple[Decision, ...]]:
    made = with_one_sign(graph, [], core)
    return separate_kernels(LoopFusion().schedule(made), CpuTarget(2), Stitching(), CpuKnobs(core=core))


def operations(kernels: KernelGraph) -> set[str]:
    found = (x for s in kernels.graph.statements for x in walk(s.expr))
    return {x.op for x in found if isinstance(x, Apply)} & {"dot_words", "dot_bytes"}


def extremes(dtype: str, *shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """The ends of a type, where sums of pairs saturate, and numbers beside them."""
    info = np.iinfo(NUMPY[dtype])
    few = np.array([info.min, info.max, 0, 1, info.max - 1], NUMPY[dtype])
    return np.random.default_rng(seed).choice(few, shape)


@pytest.mark.thin(2)
@pytest.mark.parametrize(("left", "right"), KINDS)
@pytest.mark.parametrize("steps", [100, 101, 102, 103])
def test_four_steps_at_once(left: str, right: str, steps: int) -> None:
    """In the interpreter of kernels, and as C++ of this machine, which may know the instruction or not."""
    graph = fixed_graph_of(TEXT.format(left, right), M=37, K=steps, N=35)
    kernels, _ = kernels_of(graph, BYTES)
    assert operations(kernels) == {"dot_bytes"}
    assert_computes(graph, kernels)
    assert_computes(graph, kernels, target="cpu")
    assert operations(kernels_of(graph, AVX2)[0]) == {"dot_words"}


@pytest.mark.thin(2)
@pytest.mark.parametrize(("left", "right"), KINDS)
@pytest.mark.parametrize("sizes", [(64, 512, 64), (1, 40, 40), (300, 33, 17), (33, 2000, 40), (8, 0, 64)])
def test_ends_of_the_types_on_this_machine(left: str, right: str, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    a, b = extremes(left, m, k), extremes(right, k, n, seed=1)
    found: Any = pf.compile(TEXT.format(left, right))(a, b)
    np.testing.assert_array_equal(found, a.astype("i4") @ b.astype("i4"))


@pytest.mark.parametrize(("left", "right"), KINDS)
def test_batches_windows_and_what_follows(left: str, right: str) -> None:
    a, b, z = extremes(left, 2, 40, 70), extremes(right, 48, 70), np.arange(48, dtype="f4") * 1000
    found: Any = pf.compile(BATCHED.format(left, right))(a, b, z)
    exact = np.maximum(0.5 * (a.astype("i4") @ b.T.astype("i4")) + z, 0)
    np.testing.assert_allclose(found, exact, rtol=1e-6)
    x, w = extremes(left, 8, 20, 37), extremes(right, 32, 8, 3, 3)
    images: Any = pf.compile(WINDOWS.format(left, right))(x, w)
    views = np.lib.stride_tricks.sliding_window_view(x.astype("i8"), (3, 3), (1, 2))
    np.testing.assert_array_equal(images, np.einsum("cpqrs,kcrs->kpq", views, w.astype("i8")))


def test_which_products_are_shifted() -> None:
    def statements(left: str, right: str, core: Core, **sizes: int) -> int:
        graph = fixed_graph_of(TEXT.format(left, right), **sizes)
        decisions: list[Decision] = []
        made = with_one_sign(graph, decisions, core)
        assert (made is graph) == (not decisions)
        return len(made.statements)

    large = {"M": 64, "K": 512, "N": 64}
    assert [statements(*kind, BYTES, **large) for kind in KINDS] == [3, 3, 1, 1]
    assert statements("i8", "i8", AVX2, **large) == 1
    assert statements("i8", "i8", BYTES, M=8, K=4096, N=64) == 1
    assert statements("i16", "i16", BYTES, **large) == 1


@pytest.mark.parametrize("flags", ["-march=native", "-march=x86-64", "-march=x86-64-v3"])
def test_words_of_bytes_with_and_without_the_instruction(flags: str, tmp_path: Path) -> None:
    """Vectors of 16 words: as the instruction has it where there is one, else as plain arithmetic."""
    rng = np.random.default_rng(1)
    given = rng.integers(-(2**31), 2**31, (3, 64)).astype("i4")
    source = (
        prelude(sorted({"pf_add_bytes_i32"}))
        + """
    typedef pf_i32 V __attribute__((vector_size(64), aligned(4)));
    extern "C" void add(V* total, const V* a, const V* b) {
      for (int k = 0; k < 4; ++k) total[k] = pf_add_bytes_i32(total[k], a[k], b[k]);
    }
    extern "C" void one(pf_i32* total, const pf_i32* a, const pf_i32* b) {
      for (int k = 0; k < 64; ++k) total[k] = pf_add_bytes_i32(total[k], a[k], b[k]);
    }"""
    )
    (tmp_path / "b.cpp").write_text(source)
    command = ["g++", "-O2", "-w", "-fwrapv", "-std=c++17", flags, "-shared", "-fPIC", "-o", "b.so", "b.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "b.so"))
    with np.errstate(over="ignore"):
        exact = given[0] + dot_bytes(given[1], given[2])
    for function in (library.add, library.one):
        total, a, b = (x.copy() for x in given)
        function(*(ctypes.c_void_p(x.ctypes.data) for x in (total, a, b)))
        np.testing.assert_array_equal(total, exact)


def test_words_of_four_bytes() -> None:
    values = np.array([-128, -1, 0, 1, 127], np.int32)
    others = np.array([0, 1, 128, 254, 255], np.int32)
    rng = np.random.default_rng(0)
    a, b = rng.choice(values, (4, 1000)), rng.choice(others, (4, 1000))
    words = [word(half(x[0], x[1]), half(x[2], x[3])) for x in (a, b)]
    np.testing.assert_array_equal(dot_bytes(*words), (a * b).sum(0))
