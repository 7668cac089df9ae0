"""The NumPy program that speed is compared with computes what the reference says."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from kinds import kind_call

import polyfuse as pf
from polyfuse.runtime.inputs import default_sizes, fits, make_inputs
from polyfuse.runtime.numpy_baseline import NumpyKernels, baseline, source
from polyfuse.runtime.numpy_text import Unsupported
from polyfuse.runtime.reference.agreement import MOST_UNDECIDED, agrees
from polyfuse.runtime.reference.evaluate import evaluate

VAGUE = {"stencil3"}  # unstable for these inputs: most elements are beyond what can be said


def _check(operator: pf.Operator, sizes: Mapping[str, int] | None = None) -> None:
    graph = operator.graph()
    chosen = default_sizes(graph, sizes or {})
    inputs = make_inputs(graph, chosen)
    expected = evaluate(graph, chosen, inputs)
    for name, got in baseline(graph, chosen)(inputs).items():
        verdict = agrees(np.asarray(got), expected[name], graph.tensor(name).dtype)
        assert verdict, f"{name}: {verdict.message}\n{source(graph, chosen)}"


@pytest.mark.parametrize("name", [n for n in pf.stdlib.ops if n not in VAGUE])
def test_standard_library(name: str) -> None:
    operator = pf.stdlib.op(name)
    graph = operator.graph()
    deduced = [n for n in graph.sizes if n not in {p.name for p in graph.size_parameters}]
    odd = default_sizes(graph, dict(zip(deduced, (7, 5, 6, 4, 3, 8, 2), strict=False)))
    _check(operator, odd if fits(graph, odd) else {})


PROGRAMS = {
    "diagonal": "op f(x: f32[N, N]) -> (y: f32[N]) { y[i] = x[i, i] }",
    "reversed": "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[N-1-i] }",
    "strides": "op f(x: f32[2*N]) -> (y: f32[N]) { y[i] = x[2*i] - x[2*i + 1] for i in 0..N }",
    "guard": "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i-1] if i >= 1 else 0.0 for i in 0..N }",
    "pieces": "op f(x: f32[N]) -> (y: f32[N+1]) { y[i] = x[i] for i in 0..N; y[N] = 1.0 }",
    "triangle": "op f(x: f32[N, N]) -> (y: f32[N]) { y[i] = sum[j in 0..i+1](x[i, j]) }",
    "constant": "op f(x: f32[N]) -> (y: f32[N]) { y[i] = 3.0 for i in 0..N }",
    "scalar": "op f(x: f32[N]) -> (s: f32) { s = sqrt(sum[i](x[i] ** 2)) }",
    "argmax": "op f(x: f32[N, M]) -> (y: i64[N]) { y[i] = argmax[j](x[i, j]) }",
    "transposed sum": "op f(x: f32[N, M]) -> (y: f32[M]) { y[j] = sum[i](x[i, j]) }",
    "outer product": "op f(x: f32[N], z: f32[M]) -> (y: f32[M, N]) { y[j, i] = x[i] * z[j] }",
    "fibonacci": "op f(x: f32[N]) -> (y: f32[N]) where N >= 2 {\n y[0] = x[0]\n y[1] = x[1]\n"
    " y[t] = 0.5 * y[t-1] + 0.3 * y[t-2] + x[t] for t in 2..N }",
    "downwards": "op f(x: f32[N, M]) -> (y: f32[N, M]) where N >= 1 {\n y[N-1, j] = x[N-1, j]\n"
    " y[t, j] = 0.5 * y[t+1, j] + x[t, j] for t in 0..N-1 }",
    "two tensors": "op f(x: f32[N]) -> (a: f32[N], b: f32[N]) where N >= 1 {\n a[0] = x[0]\n"
    " b[t] = a[t] * 0.5 for t in 0..N\n a[t] = b[t-1] + x[t] for t in 1..N }",
    "i32": "op f(x: i32[N], z: i32[N]) -> (s: i32) { s = sum[i](x[i] * z[i]) }",
    "windows": "op f(x: f32[N, M]) -> (y: f32[N-2, M-2]) where N >= 3, M >= 3 {\n"
    " y[i, j] = max[r in 0..3, s in 0..3](x[i+r, j+s]) for i in 0..N-2, j in 0..M-2 }",
    "floor": "op f(x: f32[N]) -> (y: f32[2*N]) { y[i] = x[i // 2] for i in 0..2*N }",
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("size", [3, 8])
def test_programs(name: str, size: int) -> None:
    operator = pf.parse(PROGRAMS[name]).op("f")
    _check(operator, dict.fromkeys(operator.graph().sizes, size))


@pytest.mark.parametrize("seed", range(60))
def test_segments_of_random_programs(seed: int) -> None:
    """Ranges that data bounds and rows of elements: two ways that share no code."""
    call = kind_call("segments", seed)
    with np.errstate(all="ignore"):
        expected = evaluate(call.graph, call.sizes, call.inputs, checked=False)
    for name, got in baseline(call.graph, call.sizes)(call.inputs).items():
        verdict = agrees(np.asarray(got), expected[name], call.graph.tensor(name).dtype)
        undecided = not verdict.mismatches and verdict.undecided_fraction >= MOST_UNDECIDED
        assert verdict or undecided, f"{name}: {verdict.message}\n{call.text}\n{call.sizes}"


def test_what_a_user_would_write() -> None:
    text = source(pf.stdlib.op("layer_norm").graph(), {"B_0": 4, "H": 8})
    assert "np.square((t_x - t_mu[:, None]))" in text
    text = source(pf.stdlib.op("cumsum").graph(), {"B_0": 4, "T": 8})
    assert "np.add.accumulate" in text and "for " not in text
    text = source(pf.stdlib.op("embedding").graph(), {"V": 4, "D": 8, "B_0": 5})
    assert "t_table[np.clip(t_index, 0, 3)]" in text


def test_a_recurrence_along_no_axis_is_refused() -> None:
    program = pf.parse(
        "op f(x: f32[N]) -> (y: f32[N]) where N >= 1 {\n y[0] = x[0]\n"
        " y[t] = y[t // 2] + x[t] for t in 1..N }"
    )
    with pytest.raises(Unsupported, match="no single axis"):
        baseline(program.op("f").graph(), {"N": 8})


def test_totals_from_each_element_on_may_be_fewer_than_elements() -> None:
    text = """op f(v: f32[T], x: f32[N]) -> (y: f32[T]) where N >= T, N >= 2 {
      y[t] = sum[s in t+1..N](x[s]) + v[t]
    }"""
    graph = pf.parse(text).op("f").graph()
    x = np.arange(9, dtype=np.float32)
    for t in (1, 4, 8):
        found = baseline(graph, {"T": t, "N": 9})({"v": np.zeros(t, np.float32), "x": x})["y"]
        np.testing.assert_array_equal(found, [x[k + 1 :].sum() for k in range(t)])


def test_a_recurrence_without_steps_has_a_program() -> None:
    text = """op f(x: f32[T, H]) -> (c: f32[T, H]) where T >= 1 {
      c[0, h] = x[0, h]
      c[t, h] = c[t-1, h] * 0.5 + x[t, h] for t in 1..T
    }"""
    graph = pf.parse(text).op("f").graph()
    for t, h in ((1, 3), (1, 0), (4, 0)):
        found = baseline(graph, {"T": t, "H": h})({"x": np.ones((t, h), np.float32)})["c"]
        assert found.shape == (t, h)


def test_kernels_of_numpy_write_nothing_where_they_fail() -> None:
    graph = pf.parse("op f(inout p: f32[T], x: f32[T]) { p[t] = p[t] + x[t] }").op("f").graph()
    kernels, p = NumpyKernels(graph, {"T": 3}), np.ones(3, np.float32)
    written = next(t.name for t in graph.tensors if t.alias)
    kernels.bind({"p": p, written: p, "x": np.ones(3, np.float32)})()
    np.testing.assert_array_equal(p, [2, 2, 2])
    with pytest.raises(Unsupported):
        kernels.run({"p": p, written: p, "x": np.ones(2, np.float32)})
    np.testing.assert_array_equal(p, [2, 2, 2])
