"""Reductions over ranges that move: which become scans, what these are, and what they must not lose."""

from __future__ import annotations

import numpy as np
import pytest
from kinds import kind_call

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.target import CpuTarget
from polyfuse.ir.tensor_graph import Purpose, TensorGraph
from polyfuse.ir.verify_graph import verify_graph
from polyfuse.layers.graph.domains import dense_windows
from polyfuse.layers.graph.scans import rewrite
from polyfuse.layers.graph.scans.rewrite import scans
from polyfuse.runtime.reference.evaluate import evaluate

TWO = CpuTarget(threads=2)


def written(
    right: str, dtype: str = "f32", target: CpuTarget = TWO, b: int = 9, t: int = 40
) -> tuple[TensorGraph, list[Decision]]:
    """The graph of ``c[b, t] = right``, over x: [B, T], and what was decided."""
    text = f"""op f(x: {dtype}[B, T], w: {dtype}[T], k: i32[T]) -> (c: {dtype}[B, T]) {{
  c[b, t] = {right} for b in 0..B, t in 0..T
}}"""
    decisions: list[Decision] = []
    graph = fixed_graph(instantiate(parse_text(text), "f"), {"B": b, "T": t})
    made = scans(graph, decisions, target)
    verify_graph(made)
    return made, decisions


def is_scan(right: str, **options: object) -> bool:
    graph, _ = written(right, **options)  # type: ignore[arg-type]
    return any(s.purpose in (Purpose.SCAN, Purpose.PART) for s in graph.statements)


SCANS = (
    "sum[s in 0..t+1](x[b, s])",
    "sum[s in 0..t](x[b, s] * w[s])",
    "prod[s in t..T](x[b, s])",
    "max[s in 0..T](x[b, s] if s <= t else -inf)",
    "sum[s in 0..T](x[b, s] if s <= t else 0.0)",
    "sum[s in 0..T](x[b, s] * w[s] if t > s and x[b, s] > 0.0 else 0.0)",
    "sum[s in 0..t+1](x[b, t - s])",
    "sum[s in 0..T - t](x[b, t + s])",
    "sum[s in 0..t+1, j in 0..3](x[b, s] * w[j])",
    "sum[s in 0..t+1](x[b, k[s]])",
    "sum[s in 0..t+1](exp(x[b, s]))",
    "min[s in max(t - 35, 0)..t+1](x[b, s])",
    "sum[s in t..min(t + 36, T)](x[b, s])",
)
OTHERS = (
    "sum[s in 0..T](x[b, s])",
    "sum[s in 0..t+1](x[b, s] * w[t])",  # the term depends on t
    "sum[s in 0..t+1](x[b, s] * w[t - s])",  # a convolution
    "sum[s in 0..t+1](x[b, s] if s <= t // 2 else 0.0)",  # an end moves by no constant step
    "sum[s in 0..T](x[b, s] if s <= t else 1.0)",  # what is added elsewhere is not nothing
    "max[s in 0..T](x[b, s] if s <= t else 0.0)",
    "sum[s in 0..t+1](x[b, s] * f32(t - s))",
    "sum[s in 0..t+1, j in 0..t+1](x[b, s] * w[j])",  # two ranges move
    "sum[s in 0..t % 5](x[b, s])",
    "min[s in max(t - 2, 0)..t+1](x[b, s])",  # a window of few terms
)


@pytest.mark.parametrize("right", SCANS)
def test_these_are_scans(right: str) -> None:
    assert is_scan(right)


@pytest.mark.parametrize("right", OTHERS)
def test_these_are_not(right: str) -> None:
    assert not is_scan(right)


@pytest.mark.parametrize("right", SCANS)
def test_what_has_no_results_stays(right: str) -> None:
    assert not is_scan(right, b=0)


@pytest.mark.parametrize("length", [33, 35, 40, 64, 65, 100, 127])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_windows_along_memory_double(op: str, length: int) -> None:
    """Of an extreme two overlap; of a sum each term is in one part."""
    right = f"{op}[s in max(t - {length - 1}, 0)..min(t + 1, T)](x[b, s])"
    graph, (decision,) = written(right, b=2, t=300)
    assert "windows of 1, 2, 4" in decision.reason
    x = np.random.default_rng(1).normal(size=(2, 300)).astype(np.float32)
    arrays = {"x": x, "w": x[0], "k": np.zeros(300, np.int32)}
    found = evaluate(graph, {}, arrays)["c"].value
    reduce = np.max if op == "max" else np.sum
    want = [reduce(x[:, max(t - length + 1, 0) : t + 1].astype(np.float64), 1) for t in range(300)]
    np.testing.assert_allclose(found, np.stack(want, 1), rtol=1e-6)


def test_windows_across_memory_are_two_scans() -> None:
    text = "op f(x: f32[T, B]) -> (c: f32[T, B]) { c[t, b] = max[s in max(t - 99, 0)..t+1](x[s, b]) }"
    decisions: list[Decision] = []
    scans(fixed_graph(instantiate(parse_text(text), "f"), {"B": 9, "T": 400}), decisions, TWO)
    assert "two scans for each of 4 blocks" in decisions[0].reason


def test_a_reason_is_told() -> None:
    _, decisions = written("sum[s in 0..t+1](x[b, s] * w[t])")
    assert [(d.kind, d.taken) for d in decisions] == [("scan", False)]
    assert "its terms depend on t" in str(decisions[0])


def test_few_rows_are_cut_into_chunks() -> None:
    long, decisions = written("sum[s in 0..t+1](x[b, s])", b=1, t=5000)
    assert "chunks of" in str(decisions[0])
    assert len([s for s in long.statements if s.purpose is Purpose.SCAN]) == 2
    assert len(written("sum[s in 0..t+1](x[b, s])", b=2, t=5000)[0].statements) < len(long.statements)


def test_products_are_not_cut() -> None:
    """That of a chunk may overflow where the running one does not."""
    _, decisions = written("prod[s in 0..t+1](x[b, s])", b=1, t=5000)
    assert "chunks" not in str(decisions[0])


@pytest.mark.parametrize("right", [r for r in SCANS if "k[" not in r])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 1e38])
def test_special_values_reach_their_ranges_only(right: str, special: float) -> None:
    """Nothing is subtracted or divided out."""
    graph, _ = written(right, b=2)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 40)).astype(np.float32)
    x[0, 17] = special
    arrays = {"x": x, "w": rng.normal(size=40).astype(np.float32), "k": np.zeros(40, np.int32)}
    whole = fixed_graph(instantiate(parse_text(_text(right)), "f"), {"B": 2, "T": 40})
    with np.errstate(all="ignore"):
        got, want = (evaluate(g, {}, arrays)["c"].value for g in (graph, whole))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def _text(right: str) -> str:
    return f"""op f(x: f32[B, T], w: f32[T], k: i32[T]) -> (c: f32[B, T]) {{
  c[b, t] = {right} for b in 0..B, t in 0..T
}}"""


def test_windows_of_few_terms_stay_windows() -> None:
    text = _text("max[s in max(t - 2, 0)..t+1](x[b, s])")
    graph = fixed_graph(instantiate(parse_text(text), "f"), {"B": 2, "T": 40})
    assert dense_windows(scans(graph, [], TWO), []) != graph


@pytest.mark.parametrize("target", ["interpret", "emulate"])
def test_a_running_sum_is_told_by_explain(target: str) -> None:
    text = "op f(x: f32[B, T]) -> (c: f32[B, T]) { c[b, t] = sum[s in 0..t+1](x[b, s]) }"
    f = pf.compile(text, target=target)
    x = np.ones((3, 70), np.float32)
    np.testing.assert_array_equal(f(x), np.cumsum(x, 1))
    assert "the range of s grows with t" in str(f.explain(x))


def test_scans_along_each_dim_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step adds has a range that moves with the same index again."""
    monkeypatch.setattr(rewrite, "FEWEST", 2)
    call = kind_call("windows", 170)
    decisions: list[Decision] = []
    verify_graph(scans(fixed_graph(call.graph, call.sizes), decisions, TWO))
    assert len([d for d in decisions if d.taken]) <= 4


def test_checked_builds_report_terms_out_of_range() -> None:
    text = """op f(x: f32[N], k: i32[T]) -> (c: f32[T]) {
  c[t] = sum[s in 0..t+1](x[k[s]]) for t in 0..T
}"""
    f = pf.compile(text, target="interpret", options=pf.Options(checked=True))
    k = np.zeros(40, np.int32)
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(f(x, k), np.arange(1, 41))
    k[39] = 3
    with pytest.raises(pf.PolyfuseError, match="PF45"):
        f(x, k)
