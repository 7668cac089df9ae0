"""Linear recurrences in chunks that run at once: which ones, and that they compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kinds import kind_call

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.target import CpuTarget
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.ir.verify_graph import verify_graph
from polyfuse.layers.graph.scans import rewrite
from polyfuse.layers.graph.scans.rewrite import parallel_recurrences
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

MANY = CpuTarget(threads=64)
FORMS = {
    "factors": "h[b, 0] = u[b, 0]; h[b, t] = a[b, t] * h[b, t-1] + u[b, t] for t in 1..T",
    "guard": "h[b, t] = u[b, t] + (0.9 * h[b, t-1] if t >= 1 else 0.0) for b in 0..B, t in 0..T",
    "outside": "h[b, t] = 0.5 * u[b, t] - a[b, t] * h[b, t-1 else 0.25]",
    "back": "h[b, T-1] = 2.0 * u[b, T-1]; h[b, t] = (u[b, t] - h[b, t+1]) * a[b, t] for t in 0..T-1",
    "sum": "h[b, 0] = u[b, 0]; h[b, t] = h[b, t-1] + u[b, t] for t in 1..T",
    "product": "h[b, 0] = u[b, 0]; h[b, t] = -h[b, t-1] for t in 1..T",
    "choice": "h[b, 0] = 1.0; h[b, t] = (h[b, t-1] if u[b, t] > 0.0 else a[b, t]) * 0.5 for t in 1..T",
}
OTHERS = {
    "it is not linear": "h[b, 0] = u[b, 0]; h[b, t] = tanh(h[b, t-1]) for t in 1..T",
    "one of those before": "h[b, t] = u[b, t] + (h[b, t-1] + h[b, t-2] if t >= 2 else 0.0) "
    "for b in 0..B, t in 0..T",
    "no neighbour": "h[b, t] = u[b, t] + (h[b, t-2] if t >= 2 else 0.0) for b in 0..B, t in 0..T",
    "other tensors": "h[b, t] = (g[b, t-1] if t >= 1 else 0.0) + (h[b, t-1] if t >= 1 else 0.0) "
    "for b in 0..B, t in 0..T; g[b, t] = h[b, t] * a[b, t]",
    "several definitions": "h[0, 0] = 1.0; h[b, 0] = u[b, 0] for b in 1..B; "
    "h[b, t] = h[b, t-1] * a[b, t] for b in 0..B, t in 1..T",
}


def text_of(form: str, dtype: str = "f32") -> str:
    lines = form.replace("; ", "\n  ")
    head = f"op f(a: {dtype}[B, T], u: {dtype}[B, T]) -> (h: {dtype}[B, T]) where T >= 2, B >= 1"
    return f"{head} {{\n  {lines}\n}}"


def chunked(graph: TensorGraph) -> tuple[TensorGraph, list[Decision]]:
    decisions: list[Decision] = []
    made = parallel_recurrences(graph, decisions, MANY)
    verify_graph(made)
    return made, decisions


def of_text(form: str, dtype: str = "f32", t: int = 300) -> tuple[TensorGraph, list[Decision]]:
    return chunked(fixed_graph(instantiate(parse_text(text_of(form, dtype)), "f"), {"B": 2, "T": t}))


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "SHORTEST_CHUNK", 5)
    monkeypatch.setattr(rewrite, "FEWEST_CHUNKS", 2)


@pytest.mark.parametrize("form", FORMS)
def test_these_are_cut(form: str) -> None:
    _, decisions = of_text(FORMS[form])
    assert [d.taken for d in decisions] == [True]
    assert "chunks of 64 steps along t, within the bound" in decisions[0].reason


@pytest.mark.parametrize("why", OTHERS)
def test_these_are_not(why: str) -> None:
    graph, decisions = of_text(OTHERS[why])
    assert why in " ".join(d.reason for d in decisions if not d.taken)
    assert not any("__scan" in t.name for t in graph.tensors)


def test_products_of_f64_have_no_wider_type() -> None:
    assert not any(d.taken for d in of_text(FORMS["factors"], "f64")[1])
    assert any(d.taken for d in of_text(FORMS["sum"], "f64")[1])


def test_many_rows_keep_their_order() -> None:
    graph = fixed_graph(instantiate(parse_text(text_of(FORMS["factors"])), "f"), {"B": 64, "T": 300})
    made, (decision,) = chunked(graph)
    assert made is graph and "64 rows for 64 workers" in decision.reason


def arguments(special: bool, t: int, seed: int = 1) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    a, u = rng.random((2, t)).astype(np.float32), rng.normal(size=(2, t)).astype(np.float32)
    for _ in range(5 if special else 0):
        u[rng.integers(2), rng.integers(t)] = rng.choice([np.inf, -np.inf, 0.0, -0.0, 1e30, np.nan])
        a[rng.integers(2), rng.integers(t)] = rng.choice([0.0, -0.0, 30.0, -1.0, 1e-30, 1e-44])
    return {"a": a, "u": u}


@pytest.mark.thin(2)
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("t", [300, 2000])
def test_special_values_go_as_far_as_in_order(form: str, special: bool, t: int) -> None:
    """Factors whose product is too small for f64 included."""
    arrays = arguments(special, t)
    arrays["a"] *= np.float32(0.01) if t == 2000 else 1
    whole = fixed_graph(instantiate(parse_text(text_of(FORMS[form])), "f"), {"B": 2, "T": t})
    with np.errstate(all="ignore"):
        got, want = (evaluate(g, {}, arrays)["h"].value for g in (chunked(whole)[0], whole))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["interpret", "cpu", "emulate"])
@pytest.mark.parametrize("form", ["factors", "outside", "back"])
def test_targets_agree_with_the_reference(target: Any, form: str, short_chunks: None) -> None:
    arrays = arguments(True, 67, seed=5)
    op = pf.parse(text_of(FORMS[form])).op("f")
    f = pf.compile(op, target=target, scan="parallel", threads=8)
    want = evaluate(op.graph(), {"B": 2, "T": 67}, arrays)["h"]
    verdict = agrees(np.asarray(f(**arrays)), want, op.graph().tensor("h").dtype)
    assert verdict, verdict.message
    assert "+ parallel recurrence" in str(f.explain(**arrays))


@pytest.mark.parametrize("group", range(8))
def test_random_recurrences_are_the_same_in_chunks(group: int, short_chunks: None) -> None:
    for seed in range(100 * group, 100 * group + 25):
        call = kind_call("scans", seed)
        whole = fixed_graph(call.graph, call.sizes)
        made, _ = chunked(whole)
        if made is whole:
            continue
        with np.errstate(all="ignore"):
            found, wanted = (evaluate(g, {}, call.inputs) for g in (made, whole))
        for name in whole.outputs:
            dtype = whole.tensor(name).dtype
            with np.errstate(all="ignore"):
                values = found[name].value.astype(dtype.numpy)
            verdict = agrees(values, wanted[name], dtype)
            assert verdict, f"{verdict.message}\n{call.text}"


def test_random_recurrences_are_cut_often(short_chunks: None) -> None:
    calls = [kind_call("scans", seed) for seed in range(60)]
    cut = [d for c in calls for d in chunked(fixed_graph(c.graph, c.sizes))[1] if d.taken]
    assert len(cut) > 4


def test_the_order_is_kept_unless_it_is_left_open() -> None:
    arrays = arguments(False, 300)
    f = pf.compile(text_of(FORMS["factors"]), target="interpret", threads=64)
    assert "parallel recurrence" not in str(f.explain(**arrays))
    with pytest.raises(pf.ArgumentError, match="scan"):
        pf.Options(scan="any")  # type: ignore[arg-type]
