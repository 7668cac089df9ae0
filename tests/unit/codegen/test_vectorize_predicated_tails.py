"""What is left of a reduction loop runs under masks, in lanes: every length, every type of element."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.cpu.units import units_of
from polyfuse.codegen.cpu.vectorize.predicated_epilogues import kept, tail_lanes, tail_of
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import F32, I64
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.loop_ir import For, Node, Store, Update
from polyfuse.ir.tensor_graph import Apply, Read
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.stitching.stitching import Stitching

TYPES: dict[str, Any] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "i64": np.int64, "i32": np.int32, "i8": np.int8, "u8": np.uint8,
}  # fmt: skip
NORM = """op f(x: {0}[T, H]) -> (y: {0}[T, H], m: {0}[T]) {{
  m[t] = max[h](x[t, h])
  s[t] = sum[h](exp(x[t, h] - m[t]))
  y[t, h] = exp(x[t, h] - m[t]) / s[t]
}}"""
TOTALS = """op f(x: {0}[T, H], keep: bool[T, H])
    -> (s: {0}[T], low: {0}[T], some: bool[T], every: bool[T], c: {0}[T, H]) {{
  c[t, h] = x[t, h] + x[t, h]
  s[t] = sum[h](c[t, h])
  low[t] = min[h](x[t, h])
  some[t] = any[h](keep[t, h])
  every[t] = all[h](keep[t, h])
}}"""
LENGTHS = [1, 2, 15, 16, 17, 31, 33, 48, 63, 65, 100, 127, 130, 257, 600, 1000]


@pytest.mark.parametrize("kind", thinned(["f32", "f64", "bf16", "f16"], 2))
@pytest.mark.parametrize("lengths", thinned([LENGTHS[::2], LENGTHS[1::2]], 2), ids=["half", "rest"])
def test_a_softmax_of_every_length(kind: str, lengths: list[int]) -> None:
    f: Any = pf.compile(NORM.format(kind))
    rng = np.random.default_rng(1)
    for h in lengths:
        # Rows begin everywhere in a line, and what lies behind an array is not read into results.
        whole = np.full(5 * h + 64, np.nan).astype(TYPES[kind])
        whole[: 5 * h] = rng.standard_normal(5 * h) * 3
        x = whole[: 5 * h].reshape(5, h)
        y, m = f(x)
        wide = x.astype("f8")
        e = np.exp(wide - wide.max(1, keepdims=True))
        tolerance = {"f64": 1e-13, "f32": 2e-6, "f16": 2e-3, "bf16": 1e-2}[kind]
        np.testing.assert_array_equal(m.astype("f8"), wide.max(1))
        np.testing.assert_allclose(y.astype("f8"), e / e.sum(1, keepdims=True), rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("kind", thinned(TYPES, 4))
@pytest.mark.parametrize("lengths", thinned([LENGTHS[::2], LENGTHS[1::2]], 2), ids=["half", "rest"])
def test_totals_of_every_type(kind: str, lengths: list[int]) -> None:
    f: Any = pf.compile(TOTALS.format(kind))
    rng = np.random.default_rng(2)
    for h in lengths:
        x = rng.integers(0, 8, (4, h)).astype(TYPES[kind])
        keep = rng.random((4, h)) < (0.02 if h > 40 else 0.5)
        keep[3] = True
        s, low, some, every, c = f(x, keep)
        want = np.add.reduce(2 * x.astype("i8" if kind[0] in "iu" else "f8"), 1)
        if kind == "bf16":
            np.testing.assert_allclose(s.astype("f8"), want, rtol=1e-2)
        else:
            np.testing.assert_array_equal(s, want.astype(TYPES[kind]))
        np.testing.assert_array_equal(low, x.min(1))
        np.testing.assert_array_equal(some, keep.any(1))
        np.testing.assert_array_equal(every, keep.all(1))
        np.testing.assert_array_equal(c.astype("f8"), 2 * x.astype("f8"))


@pytest.mark.parametrize("at", [0, 32, 38, 99])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinities_wherever_they_are(at: int, value: float) -> None:
    x = np.random.default_rng(3).standard_normal((2, 100)).astype("f4")
    x[1, at] = value
    f: Any = pf.compile(NORM.format("f32"))
    y, m = f(x)
    with np.errstate(invalid="ignore"):
        e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
        np.testing.assert_array_equal(m, x.max(1))
        np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=2e-6)


def source(h: int) -> str:
    graph = instantiate((parse_text(NORM.format("f32")),), "f")
    compilation = Compilation(graph, {"T": 64, "H": h}, LoopFusion(), pf.Options(), stitching=Stitching())
    return emitted(Watch(pf.Options()), compilation)[1].source


def test_masks_only_where_something_is_left() -> None:
    assert "pf_take(t0, " in source(100)
    assert "pf_put(&b_y" in source(100), "a row of functions ends under a mask as well"
    assert "PF_MASKS" not in source(128)
    strided: Any = pf.compile("op f(x: f32[T, H]) -> (s: f32[T]) { s[t] = sum[h](x[t, h]) }")
    x = np.arange(7 * 300, dtype="f4").reshape(7, 300)
    np.testing.assert_array_equal(strided(x[:, ::3]), x[:, ::3].sum(1))


def test_sources_with_masks_can_still_be_cut_in_units() -> None:
    both = """op f(x: f32[T, H]) -> (s: f32[T], c: f32[H, T]) {
      s[t] = sum[h](x[t, h])
      c[h, t] = x[t, h] * 2.0 for t in 0..T
    }"""
    sizes = {"T": 640, "H": 100}
    graph = instantiate((parse_text(both),), "f")
    compilation = Compilation(graph, sizes, None, pf.Options(), stitching=None)
    text = emitted(Watch(pf.Options()), compilation)[1].source
    assert "PF_MASKS" in text and len(units_of(text, 2)) == 2


def loop(*body: Node) -> For:
    return For("c", IConst(0), IConst(5), 1, body, lanes=("%a",))


def test_which_loops_have_masks() -> None:
    x, c = Read("x", (IVar("c"),), F32), (IVar("c"),)
    total = Update("%a", (), "sum", x)

    def along(e: Any, var: str) -> bool:
        return bool(e[1][-1] == IVar(var))

    found = tail_of(loop(total, Store("y", c, x)), along)
    assert found is not None and found.places() == {("x", c): "t0", ("y", c): "p0"}
    across = Read("x", (IVar("c"), IConst(0)), F32)
    gathered = Read("x", (Read("i", c, I64),), F32)
    last = Read("y", (IVar("c") + 1,), F32)
    for other in (across, gathered):
        assert tail_of(loop(total, Store("y", c, Apply("neg", (other,), F32))), along) is None
    assert tail_of(loop(total, Store("y", c, last)), along) is None  # stored to and read
    assert tail_of(loop(total, Store("y", c, x), Store("y", c, x)), along) is None
    added = tail_of(loop(total, Update("z", c, "sum", x)), along)
    assert added is not None and added.places() == {("x", c): "t0", ("z", c): "p0"}
    assert {t for t, _, _ in added.read} == {"x", "z"} and {t for t, _, _ in added.stored} == {"z"}
    assert tail_of(loop(total, Update("x", c, "sum", x)), along) is None  # added to and read
    roomy = tail_of(loop(total, Store("%r", c, Read("%w", c, F32))), along, {"%r", "%w"})
    assert roomy is not None and roomy.places() == {("x", c): "t0"}


def test_lanes_of_a_rest() -> None:
    assert [tail_lanes(r, 64, 4) for r in (1, 32, 33, 50, 63, None)] == [32, 32, 48, 64, 64, 64]
    assert tail_lanes(3, 32, 1) is None and tail_lanes(3, 128, 1) == 64 and tail_lanes(232, 256, 1) == 256
    before, after = kept({"acc_v": 4}, 48, "rest", "")
    assert len(before) == 2 and after == ["pf_keep(acc_v, acc_v_o, rest * 4, 192);"]


@pytest.fixture(scope="module")
def last_page() -> np.ndarray:
    """A page of memory with one behind it that nobody may touch."""
    if sys.platform != "linux":
        pytest.skip("pages are forbidden by a call of Linux's C library")
    page = mmap.PAGESIZE
    whole = np.frombuffer(mmap.mmap(-1, 2 * page), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(whole.ctypes.data + page), ctypes.c_size_t(page), 0) == 0
    return whole[:page]


def test_nothing_is_read_behind_the_last_element(last_page: np.ndarray) -> None:
    f: Any = pf.compile("op f(x: f32[T, H]) -> (s: f32[T]) { s[t] = sum[h](x[t, h]) }")
    for h in (3, 33, 100, 999):
        x = last_page[-4 * h :].view("f4").reshape(1, h)
        x[:] = 1
        assert f(x)[0] == h


# Found by AddressSanitizer: the load was of a value that two results share.
SHARED_GUARD = """op f(x: f32[T, 19], c: f32) -> (h: f16[T, 19], y: f32[T, 19]) {
  h[t, i] = f16(x[t, i] + (x[t, i + 2] if (7 * i) % 19 < 2 else 0.0))
  y[t, i] = min(f32(h[t, i]), c)
}"""


def test_loads_that_a_condition_guards_are_no_loads_under_masks(last_page: np.ndarray) -> None:
    f: Any = pf.compile(SHARED_GUARD)
    x = last_page[-4 * 3 * 19 :].view("f4").reshape(3, 19)
    x[:] = np.arange(57).reshape(3, 19)
    guarded = np.arange(19) * 7 % 19 < 2
    expected = x + np.where(guarded, np.roll(x, -2, axis=1), 0)
    assert np.array_equal(f(x, 40.0)[0], expected) and np.array_equal(f(x, 40.0)[1], expected.clip(max=40))


NAMED = """op f(x: f32[B, 3, P], k: i64[B, P]) -> (s: f32[B], n: i64[B]) {
  c[b, p] = k[b, p] if k[b, p] >= 0 else 0
  n[b] = sum[p](1 if k[b, p] >= 0 else 0)
  s[b] = sum[p](x[b, c[b, p], p] if k[b, p] >= 0 else 0.0)
}"""


def test_what_a_scalar_of_each_lane_names_is_not_side_by_side() -> None:
    f: Any = pf.compile(NAMED)
    rng = np.random.default_rng(3)
    x, k = rng.standard_normal((2, 3, 300), np.float32), rng.integers(-1, 3, (2, 300))
    found = np.take_along_axis(x, k.clip(0)[:, None], 1)[:, 0]
    s, n = f(x, k)
    np.testing.assert_allclose(s, np.where(k >= 0, found, 0).sum(1, dtype="f8"), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(n, (k >= 0).sum(1))
