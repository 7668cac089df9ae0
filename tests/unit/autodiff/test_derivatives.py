"""Gradients of what the language has, one thing at a time: values against differences, texts as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gradient_checks import error, gradients

import polyfuse as pf
from polyfuse.diagnostics import PolyfuseError

FILE = Path(__file__).with_name("operators.pf")
PROGRAM = pf.parse(FILE)


@pytest.mark.parametrize("name", PROGRAM.ops)
def test_gradient_is_that_of_finite_differences(name: str) -> None:
    op = PROGRAM.op(name)
    floats = [p.name for p in op.signature.params if p.dtype == "f64"]
    for seed in range(2):
        assert error(op, seed=seed, wrt=floats) < 1e-6


def _at(text: str, cotangents: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    """The gradients at some inputs."""
    op = pf.parse(text).op()
    arrays = {n: np.asarray(x) for n, x in inputs.items()}
    sizes = {n: len(next(iter(arrays.values()))) for n in op.graph().sizes}
    return gradients(pf.grad(op), sizes, arrays, {n: np.asarray(c) for n, c in cotangents.items()})


def test_equal_extremes_share_the_gradient() -> None:
    text = "op f(x: f64[N]) -> (y: f64) where N >= 1 { y = max[i](x[i]) }"
    assert _at(text, {"y": 6.0}, x=[1.0, 3.0, 3.0, 2.0, 3.0])["x"].tolist() == [0.0, 2.0, 2.0, 0.0, 2.0]


def test_of_equal_numbers_the_second_has_the_gradient() -> None:
    text = "op f(x: f64[N]) -> (y: f64[N], z: f64[N]) { y[i] = max(x[i], 0.0)\n z[i] = min(x[i], 6.0) }"
    found = _at(text, {"y": [1.0] * 4, "z": [0.0] * 4}, x=[-1.0, 0.0, 2.0, np.nan])
    assert found["x"].tolist() == [0.0, 0.0, 1.0, 0.0]
    found = _at(text, {"y": [0.0] * 3, "z": [1.0] * 3}, x=[5.0, 6.0, 7.0])
    assert found["x"].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("x", "dx"),
    [([2.0, 0.0, 3.0], [0.0, 6.0, 0.0]), ([0.0, 0.0, 3.0], [0.0] * 3), ([2.0, 1.0, 3.0], [3.0, 6.0, 2.0])],
)
def test_products_with_zeros(x: list[float], dx: list[float]) -> None:
    text = "op f(x: f64[N]) -> (y: f64) { y = prod[i](x[i]) }"
    assert _at(text, {"y": 1.0}, x=x)["x"].tolist() == dx


def test_a_branch_that_is_not_taken_gives_no_nan() -> None:
    text = "op f(x: f64[N]) -> (y: f64[N]) { y[i] = sqrt(x[i]) if x[i] > 0.0 else 2.0 * x[i] }"
    assert _at(text, {"y": [1.0] * 3}, x=[4.0, 0.0, -1.0])["x"].tolist() == [0.25, 2.0, 2.0]


# --- what comes out as text ------------------------------------------------------------------------------


SOFTMAX = """op {name}_backward(dy: f32[B_0, H], y: f32[B_0, H]) -> (dx: f32[B_0, H]) where H >= 1 {{
  ds_sum[b_0] = sum[h in 0..H](dy[b_0, h] * y[b_0, h]) for b_0 in 0..B_0
  dx[b_0, h] = (dy[b_0, h] - ds_sum[b_0]) * y[b_0, h]
}}
"""


@pytest.mark.parametrize("name", ["softmax", "anything"])
def test_softmax_needs_its_result_only(name: str) -> None:
    """The gradient of the maximum vanishes; no operator is looked up by its name."""
    pair = pf.grad(pf.parse(pf.stdlib.softmax.op.span.text.replace("softmax", name)))
    assert str(pair.backward.program) == SOFTMAX.format(name=name)
    assert pair.kept == () and [s.kind for s in pair.sources] == ["cotangent", "result"]


def test_a_masked_softmax_needs_its_result_only() -> None:
    pair = pf.grad("stdlib:causal_softmax")
    assert pair.kept == () and [s.name for s in pair.sources] == ["y", "y", "scale"]
    assert "(dy[b_0, s, t] - dd_sum[b_0, s]) * y[b_0, s, t] if t <= s else 0.0" in str(pair.backward.program)
    assert pf.grad("stdlib:causal_attention").kept == ("p",)


def test_the_sum_of_deviations_vanishes() -> None:
    text = "op f(x: f32[N]) -> (v: f32) where N >= 1 { m = mean[i](x[i])\n v = sum[i]((x[i] - m) ** 2) }"
    body = str(pf.parse(text).backward().program)
    assert "dx[i] = 2.0 * dv * (x[i] - m)" in body and "sum" not in body


def test_a_broadcast_becomes_a_sum_and_a_sum_a_broadcast() -> None:
    text = """op f(b: f32[M], x: f32[N, M]) -> (y: f32[N, M], s: f32[N]) {
      y[i, j] = b[j]
      s[i] = sum[j](x[i, j])
    }"""
    body = str(pf.grad(pf.parse(text)).backward.program)
    assert "db[j] = sum[i in 0..N](dy[i, j])" in body and "dx[i, j] = ds[i]" in body


def test_windows_are_read_back() -> None:
    text = "op f(x: f32[N], w: f32[3]) -> (y: f32[N - 2]) where N >= 3 { y[i] = sum[a](w[a] * x[i + a]) }"
    body = str(pf.grad(pf.parse(text), ["x"]).backward.program)
    assert (
        "dx[i0] = sum[a in 0..3](dy[i0-a] * w[a] if i0 >= a and N > i0 + 2 - a else 0.0)" in body
        or "+=" not in body
    )


# --- what is kept ------------------------------------------------------------------------------------------


NORM = pf.stdlib.layer_norm


def test_reductions_are_kept_and_the_rest_is_computed_again() -> None:
    pair = pf.grad(NORM)
    assert pair.kept == ("mu", "var") and pair.of == ("y",) and pair.wrt == ("x", "gamma", "beta")
    assert [r.name for r in pair.forward.signature.results] == ["y", "mu", "var"]
    assert "+ keep mu" in pair.explain()


@pytest.mark.parametrize(("keep", "again", "kept"), [
    ([], ["mu", "mu__sum"], ("var",)),
    ([], ["mu", "var", "mu__sum", "var__sum"], ()),
])  # fmt: skip
def test_the_caller_decides(keep: list[str], again: list[str], kept: tuple[str, ...]) -> None:
    assert pf.grad(NORM, keep=keep, recompute=again).kept == kept
    assert error(NORM, recompute=again, keep=keep) < 1e-6


def test_large_values_are_not_kept_where_small_ones_do() -> None:
    text = """op f(x: f32[N, M], w: f32[M]) -> (y: f32[N, M]) {
      e[i, j] = exp(x[i, j] * w[j])
      y[i, j] = sin(e[i, j])
    }"""
    assert pf.grad(pf.parse(text)).kept == ()
    assert pf.grad(pf.parse(text), keep=["e"]).kept == ("e",)


@pytest.mark.parametrize("keep", [(), ("w",)])
def test_values_of_indices_alone_are_computed_again_unless_kept(keep: tuple[str, ...]) -> None:
    """All that this gradient needs of the operator follows from no argument."""
    text = """op f(x: f64[N, 4]) -> (y: f64[N, 4]) {
      w[i] = sqrt(f64(i) + 0.5) for i in 0..4; at[i] = i64(w[i] * 1.5)
      y[n, i] = x[n, at[i]] * w[i]
    }"""
    assert pf.grad(text, keep=keep).kept == keep
    assert error(pf.parse(text).op("f"), keep=keep) < 1e-6


def test_sizes_that_no_shape_has_are_given() -> None:
    pair = pf.grad(pf.parse("op f(x: f32[N, M]) -> (s: f32[N]) { s[i] = sum[j](x[i, j]) }"))
    assert pair.sizes == ("M",)
    assert pair.backward(np.ones(2, np.float32), M=3).tolist() == [[1.0] * 3] * 2


def test_optional_tensors_are_there_or_not() -> None:
    dense = pf.stdlib.linear
    assert pf.grad(dense).wrt == ("x", "w", "bias")
    assert pf.grad(dense.without("bias")).wrt == ("x", "w")


def test_in_place_operators_give_the_gradient_of_what_was_there() -> None:
    pair = pf.grad(pf.parse("op f(inout p: f32[N], g: f32[N]) { p[i] = p[i] * g[i] }"))
    assert pair.of == ("p",) and pair.wrt == ("p", "g")
    assert [s.kind for s in pair.sources] == ["cotangent", "argument", "kept"]


def test_names_do_not_meet() -> None:
    text = """op f(x: f64[N], dx: f64[N], dy: f64[N]) -> (y: f64[N], d: f64[N]) {
      y[i] = x[i] * dx[i]
      d[i] = dy[i] * y[i]
    }"""
    assert error(pf.parse(text).op()) < 1e-6


def test_generics_are_chosen() -> None:
    pair = pf.grad("stdlib:gelu", dtypes={"F": "bf16"}, ranks={"B": 2})
    assert (
        str(pair.backward.signature)
        == "gelu_backward(dy: bf16[B_0, B_1], x: bf16[B_0, B_1]) -> (dx: bf16[B_0, B_1])"
    )


def test_gradients_have_gradients() -> None:
    once = pf.grad(pf.parse("op f(x: f64[N]) -> (y: f64[N]) { y[i] = sin(x[i]) * x[i] ** 2 }"))
    assert error(once.backward) < 1e-6


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wishes", "code"), [
    ({"wrt": ["z"]}, "PF790"), ({"of": ["z"]}, "PF790"),
    ({"keep": ["z"]}, "PF790"), ({"recompute": ["z"]}, "PF790"),
    ({"wrt": ["k"]}, "PF791"), ({"of": ["i"]}, "PF791"), ({"of": ["y"], "wrt": ["w"]}, "PF791"),
])  # fmt: skip
def test_wrong_names_are_refused(wishes: dict[str, Any], code: str) -> None:
    text = """op f(x: f32[N], w: f32[N], k: i32[N]) -> (y: f32[N], i: i64) where N >= 1 {
      y[n] = x[n]
      i = argmax[n](w[n] + f32(k[n]))
    }"""
    with pytest.raises(PolyfuseError) as e:
        pf.grad(pf.parse(text), **wishes)
    assert [d.code for d in e.value.diagnostics] == [code] and e.value.diagnostics[0].hint
