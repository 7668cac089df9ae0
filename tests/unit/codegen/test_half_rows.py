"""Row operators in f16 and bf16 on a CPU: rests under masks, rows that are kept or widened, roundings."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.transforms.invariant_motion import _Row, _Search
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.index_expr import IConst, ISize
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.toolchain.compiler import load_shared

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # the benchmarks are not part of the package

from benchmarks.workload import load

TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
TOLERANCE = {"f16": 4e-3, "bf16": 3e-2}
OPERATORS = ("ln_fwd", "ln_bwd", "res_ln", "gelu_bwd_dbias", "softmax", "dropout_residual", "bias_gelu")
ROUNDED = """op f(x: {0}[T, H], g: {0}[H]) -> (y: {0}[T, H], s: f32[T], c: f32[H]) {{
  y[t, h] = exp(x[t, h]) * g[h]
  s[t] = sum[h](f32(y[t, h]))
  c[h] = sum[t](f32(y[t, h]))
}}"""


def source(text: str, core: Core | None = None, **sizes: int) -> str:
    programs = pf.parse(text).programs
    graph = instantiate(programs, programs[-1].ops[-1].name)
    way, knobs = Stitching(), CpuKnobs(core=core)
    compilation = Compilation(graph, sizes, LoopFusion(), pf.Options(), stitching=way, knobs=knobs)
    return emitted(Watch(pf.Options()), compilation)[1].source


# In a usual run rows of one element, and of several vectors and a part of one: each in one of the types.
LENGTHS = [
    pytest.param(kind, h, marks=[pytest.mark.slow] * ((kind, h) not in (("f16", 1), ("bf16", 100))))
    for h in (1, 7, 8, 16, 31, 33, 48, 64, 65, 100, 132)
    for kind in TYPES
]


@pytest.mark.parametrize(("kind", "h"), LENGTHS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_rows_of_all_lengths(operator: str, kind: str, h: int) -> None:
    w = load(operator)
    f = pf.compile(w.text.replace("f32", kind), operator)
    for t in (1, 19):
        given = [a.astype(TYPES[kind]) for a in w.inputs({"T": t, "H": h}).values()]
        got = f(*given)
        with np.errstate(all="ignore"):
            want = w.function("numpy")(*(a.astype(np.float64) for a in given))
        for g, v in zip(
            got if isinstance(got, tuple) else (got,),
            want if isinstance(want, tuple) else (want,),
            strict=True,
        ):
            scale = 1 + np.abs(v).max()
            np.testing.assert_allclose(g.astype(np.float64) / scale, v / scale, atol=TOLERANCE[kind], rtol=0)


@pytest.mark.parametrize("h", [5, 33, 64, 100, 999])
@pytest.mark.parametrize("kind", TYPES)
def test_values_that_are_read_again_are_the_rounded_ones(kind: str, h: int) -> None:
    rng = np.random.default_rng(h)
    x = rng.standard_normal((21, h)).astype(TYPES[kind])
    g = (10.0 ** rng.integers(-6, 3, h)).astype(TYPES[kind])
    y, s, c = pf.compile(ROUNDED.format(kind))(x, g)
    wide = y.astype(np.float64)
    np.testing.assert_allclose(wide, np.exp(x.astype("f8")) * g.astype("f8"), rtol=TOLERANCE[kind], atol=1e-6)
    np.testing.assert_allclose(s, wide.sum(1), rtol=1e-5)
    np.testing.assert_allclose(c, wide.sum(0), rtol=1e-5)


@pytest.mark.machine("zen5")
@pytest.mark.parametrize("h", [257, 300, 411])
@pytest.mark.parametrize("kind", TYPES)
def test_strips_of_columns_that_end_anywhere(kind: str, h: int) -> None:
    """Each has a length of its own, so its rest takes steps until the end."""
    w = load("gelu_bwd_dbias")
    text = w.text.replace("f32", kind)
    assert re.search(r"for \(; c\d_s < c\d_e; c\d_s \+= 16\) \{", source(text, T=200, H=h))
    dy, x = (a.astype(TYPES[kind]) for a in w.inputs({"T": 200, "H": h}).values())
    found = pf.compile(text, w.name)(dy, x)
    for got, want in zip(found, w.function("numpy")(dy.astype("f8"), x.astype("f8")), strict=True):
        scale = 1 + np.abs(want).max()
        np.testing.assert_allclose(got.astype("f8") / scale, want / scale, atol=TOLERANCE[kind], rtol=0)


@pytest.mark.parametrize("kind", TYPES)
def test_rows_that_are_stored_past_the_caches(kind: str) -> None:
    """What lies before the first line, and behind the last one, takes steps."""
    text = source(load("bias_gelu").text.replace("f32", kind), T=8192, H=3072)
    assert "nontemporal" in text or "pf_stream" in text, "stored past the caches"
    assert re.search(r"for \(; c\d_s < c\d_b; c\d_s \+= 16\) \{", text)
    load_shared(text)


def test_rests_take_no_more_lanes_than_they_fill() -> None:
    text = source(load("bias_gelu").text.replace("f32", "bf16"), T=2000, H=100)
    assert "for (int l = 0; l < 48; ++l)" in text and "rest * 2, 96)" in text


@pytest.mark.parametrize("kind", TYPES)
def test_nan_and_infinities_stay_in_their_rows(kind: str) -> None:
    x = np.linspace(-3, 3, 20 * 100).reshape(20, 100).astype(TYPES[kind])
    x[3, 99], x[5, 0], x[7, 97] = np.nan, np.inf, -np.inf
    w = load("softmax")
    y = pf.compile(w.text.replace("f32", kind), "softmax")(x).astype(np.float64)
    assert np.isnan(y[[3, 5]]).all()
    assert np.isfinite(np.delete(y, [3, 5], 0)).all() and y[7, 97] == 0
    with np.errstate(all="ignore"):
        ones = np.ones(100, x.dtype)
        z = pf.compile(load("res_ln").text.replace("f32", kind), "res_ln")(x, ones, x, ones, ones)
    assert np.isnan(z[[3, 5, 7]].astype("f8")).all()
    assert np.isfinite(np.delete(z.astype("f8"), [3, 5, 7], 0)).all()


@pytest.mark.parametrize("kind", TYPES)
def test_chunks_do_not_widen_shared_rows_for_a_few(kind: str) -> None:
    w = load("ln_fwd")
    given = [a.astype(TYPES[kind]) for a in w.inputs({"T": 64, "H": 768}).values()]
    (launch,) = pf.compile(w.text.replace("f32", kind), w.name).built(*given).code.plan.launches
    assert launch.parallel and launch.least == FITTED.hoist_conversions_fewest_rows
    wide = [a.astype("f4") for a in given]
    assert pf.compile(w.text, w.name).built(*wide).code.plan.launches[0].least == 1


@pytest.mark.parametrize("kind", TYPES)
def test_what_the_code_keeps(kind: str) -> None:
    norm = load("ln_fwd").text.replace("f32", kind)
    text = source(norm, T=512, H=768)
    assert all(f"wide{k}_m[{767 + FITTED.half_precision_lanes}]" in text for k in range(2)) and not re.search(
        r"kept\d", text
    )
    few = source(norm, T=8, H=768)
    assert "wide0_m" not in few, "a few rows do not make up for it"
    assert "wide0_m" not in source(norm, T=512, H=9000), "too long for L1"
    text = source(load("res_ln").text.replace("f32", kind), T=512, H=768)
    assert len(set(re.findall(rf"kept\d+_m\[{767 + FITTED.half_precision_lanes}\]", text))) == 1
    plain = source(load("res_ln").text, T=512, H=768)
    assert not re.search(r"kept\d", plain), "f32 is for layer I to decide"
    rounded = source(ROUNDED.format(kind), T=512, H=768)
    assert f"pf_row_round_{kind}(" in rounded


@pytest.mark.parametrize("kind", TYPES)
def test_room_for_what_is_kept_is_that_of_the_core_at_hand(kind: str) -> None:
    """Rows of 8 kB as f32: two thirds of L1 hold those that all rows read, a third one that is kept."""
    norm, residual = (load(x).text.replace("f32", kind) for x in ("ln_fwd", "res_ln"))
    for l1, wide, kept in ((48, 2, 1), (24, 2, 1), (16, 1, 0), (8, 0, 0)):
        core = Core(l1=l1 << 10)
        widened = re.findall(
            rf"wide\d_m\[{2047 + FITTED.half_precision_lanes}\]", source(norm, core, T=512, H=2048)
        )
        assert len(set(widened)) == wide
        assert len(set(re.findall(r"kept\d+_m\[", source(residual, core, T=512, H=2048)))) == kept


def test_rows_that_may_not_be_there_are_not_widened() -> None:
    search = _Search({"x": (IConst(3), IConst(64)), "n": (IConst(0),), "s": (ISize("N"),)})
    rows: dict[_Row, int] = {("x", (IConst(2),)): 64, ("x", (IConst(3),)): 0, ("n", ()): 0, ("s", ()): 0}
    assert {r: search._elements(r) for r in (*rows, ("y", ()))} == {**rows, ("y", ()): 0}


def test_strided_rows_are_widened_too() -> None:
    w = load("ln_fwd")
    f = pf.compile(w.text.replace("f32", "f16"), "ln_fwd")
    x, gamma, beta = (a.astype(np.float16) for a in w.inputs({"T": 40, "H": 100}).values())
    twice = np.repeat(gamma, 2)[::2]
    assert not twice.flags.c_contiguous
    np.testing.assert_array_equal(f(x, twice, beta), f(x, gamma, beta))


def test_what_an_operator_changes_is_not_widened() -> None:
    text = """op f(x: f16[T, H], inout g: f16[H]) -> (y: f16[T, H]) {
      y[t, h] = x[t, h] * old(g[h])
      g[h] = g[h] * 2.0
    }"""
    f = pf.compile(text)
    x, g = np.full((64, 96), 3, np.float16), np.arange(96, dtype=np.float16)
    y = f(x, g)
    np.testing.assert_array_equal(g, 2 * np.arange(96))
    np.testing.assert_array_equal(y, np.tile(3 * np.arange(96, dtype=np.float16), (64, 1)))


BATCHED = """op f(x: {0}[N, A, T, H], g: {0}[N, A, H], b: {0}[N, 1, H]) -> (y: {0}[N, A, T, H]) {{
  m[n, a, t] = max[h](x[n, a, t, h])
  y[n, a, t, h] = (x[n, a, t, h] - m[n, a, t]) * g[n, a, h] + b[n, 0, h]
}}"""


@pytest.mark.parametrize("shape", [(3, 4, 40, 260), (2, 1, 17, 300), (5, 2, 16, 1), (0, 2, 20, 40)], ids=str)
@pytest.mark.parametrize("kind", TYPES)
def test_rows_of_a_batch(
    kind: str, shape: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    n, a, _, h = shape
    rng = np.random.default_rng(h)
    x, g, b = (rng.standard_normal(s).astype(TYPES[kind]) for s in (shape, (n, a, h), (n, 1, h)))
    y = pf.compile(BATCHED.format(kind))(x, g, b).astype("f8")
    xd, gd, bd = (v.astype("f8") for v in (x, g, b))
    want = (xd - xd.max(-1, keepdims=True)) * gd[:, :, None] + bd[:, :, None]
    np.testing.assert_allclose(y, want, rtol=TOLERANCE[kind], atol=TOLERANCE[kind])


@pytest.mark.parametrize("kind", TYPES)
def test_rows_of_a_batch_become_f32_when_it_begins(kind: str) -> None:
    text = source(BATCHED.format(kind), N=4, A=3, T=64, H=768)
    assert (
        f"wide0_m[{767 + FITTED.half_precision_lanes}]" in text
        and f"wide1_m[{767 + FITTED.half_precision_lanes}]" in text
    )
    assert re.search(r"if \(\(wide\d_at0 != c0\) \| \(wide\d_at1 != c1\)\) \{", text), "g, by both"
    assert re.search(r"if \(wide\d_at0 != c0\) \{", text), "b, by the first"
    few = source(BATCHED.format(kind), N=64, A=4, T=8, H=768)
    assert re.search(r"wide0_at0 != c0", few) and "wide1" not in few, "8 rows of g do not make up for it"
