"""Stores past the caches: the same numbers on every length and alignment, and only where they belong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from equivalence import fixed_graph_of

from polyfuse.codegen.analysis.trip_count import most_trips
from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.cost.cpu_device import table_cpu
from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IConst, IVar, binary
from polyfuse.ir.loop_ir import For
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.mapping.memory_hints import non_temporal_stores
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu.executable import CpuExecutable

TWO = "op two(x: f32[T, H], b: f32[H]) -> (y: f32[T, H], z: f64[T, H]) {\n\
  y[t, h] = exp(x[t, h]) + b[h]\n  z[t, h] = f64(x[t, h]) * 2.0\n}"


def built(text: str, sizes: dict[str, int], stream: bool, checked: bool = False) -> CpuExecutable:
    apart = Stitching(barriers=False)  # kernels are marked before barriers join them
    kernels, _ = form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2, apart)
    kernels = non_temporal_stores(kernels, 2, [], stream)
    return CpuExecutable(emit_together([Request(kernels, checked=checked)])[0], {})


@pytest.mark.parametrize(("t", "h"), [(1, 1), (1, 255), (3, 256), (5, 700), (33, 1023)])
@pytest.mark.parametrize("shift", [0, 1, 7])
def test_results_are_those_of_plain_stores(t: int, h: int, shift: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((t, h)).astype(np.float32)
    x.flat[:: max(1, x.size // 5)] = np.nan
    b = rng.standard_normal(h).astype(np.float32)
    found = []
    for stream in (False, True):
        run = built(TWO, {"T": t, "H": h}, stream)
        shapes = {p.name: run._shapes[p.name] for p in run.plan.buffers}
        # Results that begin anywhere, with a guard behind them.
        memory: dict[str, Any] = {
            "y": np.full(t * h + 32, 7, np.float32),
            "z": np.full(t * h + 32, 7, np.float64),
        }
        arrays = {n: m[shift : shift + t * h].reshape(shapes[n]) for n, m in memory.items()}
        run.run({"x": x.reshape(shapes["x"]), "b": b.reshape(shapes["b"]), **arrays})
        found.append(memory)
    for name in ("y", "z"):
        np.testing.assert_array_equal(found[0][name], found[1][name])


GRADIENT = "op f(x: {0}[T, H], r: f32[T]) -> (y: {0}[T, H], w: f32[H]) {{\n\
  y[t, h] = {0}(f32(x[t, h]) * r[t])\n  w[h] = sum[t](f32(x[t, h]) * r[t]) }}"


@pytest.mark.parametrize("kind", ("f32", "f16"))
def test_a_loop_that_adds_to_a_row_of_totals_as_well_goes_past_the_caches(kind: str) -> None:
    """The gradient of a scale beside that of what was scaled: a plain store to one of them takes both."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((65, 1030)).astype({"f32": np.float32, "f16": np.float16}[kind])
    r = rng.standard_normal(65).astype(np.float32)
    found = []
    for stream in (False, True):
        run = built(GRADIENT.format(kind), {"T": 65, "H": 1030}, stream)
        assert ("pf_stream(&b_y[" in run.code.source) == stream
        assert (("stream", "y") in run.code.made) == stream
        shapes = {p.name: run._shapes[p.name] for p in run.plan.buffers}
        y, w = np.empty((65, 1030), x.dtype), np.empty(1030, np.float32)
        run.run({"x": x.reshape(shapes["x"]), "r": r, "y": y.reshape(shapes["y"]), "w": w})
        found.append((y, w))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5, atol=1e-4)


def test_short_loops_and_checked_builds_keep_plain_stores() -> None:
    assert "pf_stream" in built(TWO, {"T": 4, "H": 512}, True).code.source
    assert "pf_stream" not in built(TWO, {"T": 4, "H": 64}, True).code.source
    assert "pf_stream" not in built(TWO, {"T": 4, "H": 512}, True, checked=True).code.source


@pytest.mark.parametrize("n", (1024, 1000))
def test_rows_of_tiles_keep_plain_stores(n: int) -> None:
    """They are a few vectors long, so nothing but the ends of streamed loops would run."""
    dense = "op f(x: f32[M, K], w: f32[K, N], b: f32[N]) -> (y: f32[M, N]) {\n\
  y[i, j] = sum[k](x[i, k] * w[k, j]) + b[j] }"
    assert "pf_stream" not in built(dense, {"M": 64, "K": 64, "N": n}, True).code.source


def test_how_often_a_loop_runs_at_most() -> None:
    begin = IVar("a") * 16
    ends = {
        begin: 0,
        begin + 16: 16,
        binary("min", begin + 15, IVar("n")) + 1: 16,
        binary("min", IVar("n"), binary("min", begin + 9, begin + 7)): 7,
        IVar("n"): None,
        binary("min", IVar("n"), IVar("m")): None,
    }
    for upper, most in ends.items():
        assert most_trips(For("i", begin, upper, 1, ())) == most, upper
    assert most_trips(For("i", IConst(3), IConst(1), 1, ())) == 0
    assert most_trips(For("i", IConst(3), binary("min", IConst(40), IVar("n")), 1, ())) == 37


GROUPS = "op f(x: f32[T, H], s: f32[T, G]) -> (y: f32[T, H]) where H == {0} * G {{\n\
  y[t, h] = x[t, h] * s[t, h // {0}] }}"


@pytest.mark.parametrize("length", (16, 32, 64, 80, 128, 192))
@pytest.mark.parametrize("shift", (0, 1, 8))
def test_windows_go_past_the_caches_where_a_line_begins(length: int, shift: int) -> None:
    rows, columns = 3, 5 * length
    run = built(GROUPS.format(length), {"T": rows, "H": columns, "G": 5}, True)
    assert ("pf_stream(" in run.code.source) == (length % 32 == 0)
    rng = np.random.default_rng(0)
    x, s = (rng.standard_normal((rows, n)).astype(np.float32) for n in (columns, 5))
    memory = np.full(rows * columns + 64, 7, np.float32)
    first = -memory.ctypes.data // 4 % 16 + shift
    y = memory[first : first + rows * columns]
    shapes = {p.name: run._shapes[p.name] for p in run.plan.buffers}
    run.run({"x": x.reshape(shapes["x"]), "s": s.reshape(shapes["s"]), "y": y.reshape(shapes["y"])})
    np.testing.assert_array_equal(y.reshape(x.shape), x * np.repeat(s, length, 1))
    assert (memory[:first] == 7).all() and (memory[first + y.size :] == 7).all()


def test_results_that_are_read_again_stay_near() -> None:
    text = (
        "op norm(x: f32[T, H]) -> (y: f32[T, H], s: f32[T]) {\n"
        "  y[t, h] = exp(x[t, h])\n  s[t] = sum[h](y[t, h])\n}"
    )
    assert "pf_stream" not in built(text, {"T": 8, "H": 1024}, True).code.source


SCALE = "op scale(x: f32[N], w: f32[M]) -> (y: f32[N], z: f32[M]) { y[i] = 2.0 * x[i]\n z[j] = 3.0 * w[j] }"


# Elements of which x and y together are as large as the last cache.
BORDER = int(table_cpu(2).levels[-2].capacity / 8)


@pytest.mark.parametrize(
    ("n", "past"), [(1 << 24, {"y"}), (BORDER + 1000, {"y"}), (BORDER - 1000, set()), (1 << 18, set())]
)
def test_the_model_streams_what_does_not_fit(n: int, past: set[str]) -> None:
    kernels, _ = form_kernels(LoopFusion().schedule(fixed_graph_of(SCALE, N=n, M=700)), 2, Stitching())
    found: list[Decision] = []
    made = non_temporal_stores(kernels, 2, found)
    assert {b.tensor for k in made.kernels for b in k.buffers if b.past} == past
    assert [d.taken for d in found] == ([bool(past)] if n > BORDER / 4 else [])
    assert non_temporal_stores(kernels, 2, [], False) == kernels
    forced = non_temporal_stores(kernels, 2, [], True)
    assert {b.tensor for k in forced.kernels for b in k.buffers if b.past} == {"y", "z"}


@pytest.mark.parametrize(
    ("text", "past"), [("t[i[n], d]", set()), ("t[i[n], d] + t[n, d] for n in 0..N", {"y"})]
)
def test_of_a_table_counts_what_is_read(text: str, past: set[str]) -> None:
    """A few rows of a large table that data choose; where it is read elsewhere as well, all of it counts."""
    text = f"op f(t: f32[V, D], i: i64[N]) -> (y: f32[N, D]) where V >= N {{ y[n, d] = {text} }}"
    kernels, _ = form_kernels(LoopFusion().schedule(fixed_graph_of(text, V=BORDER // 128, D=256, N=4096)), 2)
    made = non_temporal_stores(kernels, 2, [])
    assert {b.tensor for k in made.kernels for b in k.buffers if b.past} == past


def test_what_is_changed_in_place_or_read_by_another_kernel_is_not_streamed() -> None:
    text = """op step(inout p: f32[N], x: f32[N]) -> (y: f32[N], z: f32[N]) {
      p[i] = p[i] + x[i]
      y[i] = x[i] * 2.0
      z[i] = y[N - 1 - i]
    }"""
    kernels, _ = form_kernels(LoopFusion().schedule(fixed_graph_of(text, N=1000)), 2)
    forced = non_temporal_stores(kernels, 2, [], True)
    assert {b.tensor for k in forced.kernels for b in k.buffers if b.past} == {"z"}


def test_the_function_ends_with_a_fence() -> None:
    source = built(TWO, {"T": 4, "H": 512}, True).code.source
    body = source[source.index("_body(") : source.index("PF_EXPORT void")]
    assert body.count("PF_STREAM_END;") == 1
    assert body.rstrip().removesuffix("}").rstrip().endswith("PF_STREAM_END;")
