"""Plans of GPU kernels: what kernels have is told, and each field can be set by hand."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.driver.targets import told
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.gpu_plan import GpuPlan

NORM = """op f(x: f32[T, H], g: f32[H]) -> (y: f32[T, H]) {
  m[t] = mean[h](x[t, h])
  v[t] = mean[h]((x[t, h] - m[t]) ** 2)
  y[t, h] = (x[t, h] - m[t]) * rsqrt(v[t] + 1e-5) * g[h]
}"""
BACKWARD = """op f(dy: f32[T, H], x: f32[T, H]) -> (dx: f32[T, H], db: f32[H]) {
  c[t] = sum[h](dy[t, h] * x[t, h])
  dx[t, h] = dy[t, h] - x[t, h] * c[t]
  db[h] = sum[t](dy[t, h])
}"""
STREAM = "op f(x: f32[T, H], b: f32[H]) -> (y: f32[T, H]) { y[t, h] = max(x[t, h] + b[h], 0.0) }"
TEXTS = {"norm": NORM, "backward": BACKWARD, "stream": STREAM}


def compiled(text: str, plan: GpuPlan | None, **sizes: int) -> tuple[str, list[str]]:
    """The source, and what is told about plans."""
    options = pf.Options(plan=plan, progress=False, verify=False, dump=None)
    layers = {"stitching": pf.Stitching(), "packing": pf.Packing()}
    graph = instantiate([parse_text(text)], "f")
    wanted = Compilation(graph, sizes, pf.LoopFusion(), options, target="emulate", **layers)
    made, code = emitted(Watch(options), wanted)
    decisions = told(made.decisions, code, made.kernels)
    return code.source, [d.reason for d in decisions if d.kind == "plan"]


def plans(text: str, plan: GpuPlan | None = None, **sizes: int) -> list[str]:
    return compiled(text, plan, **sizes)[1]


def test_kernels_tell_their_plans() -> None:
    (plan,) = plans(NORM, T=65536, H=768)
    assert plan == "threads 128, row_threads 32, block_rows 4, vector 4, keep registers"
    first, second = plans(BACKWARD, T=65536, H=768)
    assert first.startswith(
        "threads 256, row_threads 32, block_rows 8, vector 4, keep registers, columns warps"
    )
    assert "columns blocks" in second and first.endswith("barriers True")


def test_a_row_is_kept_whatever_its_loops_are_called() -> None:
    """Reductions over `k` or `j`, and results over `h`, go over one row."""
    renamed = NORM.replace("mean[h](x[t, h])", "mean[k](x[t, k])")
    renamed = renamed.replace("mean[h]((x[t, h] - m[t])", "mean[j]((x[t, j] - m[t])")
    assert renamed.count("[k]") == renamed.count("[j]") == 1
    for length in (768, 70, 20000):
        assert plans(renamed, T=65536, H=length) == plans(NORM, T=65536, H=length)


@pytest.mark.parametrize(
    ("text", "plan", "words"),
    [
        ("norm", GpuPlan(row_threads=64), "row_threads 64, block_rows 1"),
        ("norm", GpuPlan(block_rows=2), "threads 64, row_threads 32, block_rows 2"),
        ("norm", GpuPlan(vector=2), "vector 2"),
        ("norm", GpuPlan(keep="shared"), "keep shared"),
        ("stream", GpuPlan(threads=64), "threads 32"),
        ("stream", GpuPlan(unroll=4), "unroll 4"),
        ("stream", GpuPlan(stores="streaming"), "stores streaming"),
    ],
)
def test_fields_are_set_by_hand(text: str, plan: GpuPlan, words: str) -> None:
    found = plans(TEXTS[text], plan, T=65536, H=768)
    assert words in found[0]
    assert words not in plans(TEXTS[text], T=65536, H=768)[0]


def test_rows_are_read_again_where_the_plan_says_so() -> None:
    assert "keep" not in plans(NORM, GpuPlan(keep="again"), T=65536, H=768)[0]


def test_columns_and_chunks_and_barriers() -> None:
    sizes = {"T": 65536, "H": 768}
    assert "columns" not in plans(BACKWARD, GpuPlan(columns="blocks"), **sizes)[0]
    blocks = [int(n) for n in re.findall(r"block < (\d+)", compiled(BACKWARD, GpuPlan(chunks=8), **sizes)[0])]
    assert blocks[0] == -(-65536 // -(-65536 // (8 * 132)))
    assert not any("barriers True" in p for p in plans(BACKWARD, GpuPlan(barriers=False), **sizes))


WISHES = [
    GpuPlan(row_threads=8, vector=1),
    GpuPlan(row_threads=48),
    GpuPlan(row_threads=128, vector=2),
    GpuPlan(keep="again", block_rows=3),
    GpuPlan(keep="shared", row_threads=64),
    GpuPlan(threads=96, unroll=2),
    GpuPlan(columns="blocks", chunks=3),
    GpuPlan(stores="streaming", resident=True),
    GpuPlan(barriers=False, chunks=1),
]


@pytest.mark.parametrize("plan", WISHES, ids=str)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.thin(2)
def test_all_plans_agree(text: str, plan: GpuPlan) -> None:
    rng = np.random.default_rng(0)
    for rows, columns in ((37, 70), (260, 33), (1, 129)):
        x = rng.standard_normal((rows, columns)).astype(np.float32)
        other = rng.standard_normal((rows, columns) if text == "backward" else columns).astype(np.float32)
        given = (other, x) if text == "backward" else (x, other)
        made = pf.compile(TEXTS[text], target="emulate", options=pf.Options(plan=plan, progress=False))(
            *given
        )
        plain = pf.compile(TEXTS[text], target="cpu", options=pf.Options(progress=False))(*given)
        for a, b in zip(_all(made), _all(plain), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def _all(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize(
    ("field", "value"),
    [("row_threads", 0), ("keep", "memory"), ("resident", 3), ("vector", True), ("chunks", 1.5)],
)
def test_what_a_field_cannot_have_is_told(field: str, value: object) -> None:
    with pytest.raises(ArgumentError) as error:
        GpuPlan(**{field: value})  # type: ignore[arg-type]
    assert error.value.code == "PF490" and field in str(error.value)


def test_plans_are_written_as_they_are_asked_for() -> None:
    assert repr(GpuPlan(row_threads=32, keep="again")) == "GpuPlan(row_threads=32, keep='again')"
    assert repr(GpuPlan()) == "GpuPlan()"
