"""Windows whose bounds move, and windows of windows, in one form; they compute the same."""

from __future__ import annotations

import pytest
from test_index_set_splitting_stencil_interiors import call

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.ir.verify_graph import verify_graph
from polyfuse.layers.graph.domains import dense_windows
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

BOUNDS = """op f(x: f32[N, H, W]) -> (y: f32[N, H, W]) {
  y[n, p, q] = max[h in max(p-1, 0)..min(p+2, H), w in max(q-1, 0)..min(q+2, W)](x[n, h, w])
}"""
MEANS = """op f(x: f32[N, H, W]) -> (y: f32[N, H, W]) {
  y[n, p, q] = mean[h in max(p-2, 0)..min(p+1, H), w in max(q-3, 0)..q+1](x[n, h, w] * f32(w + h))
}"""
STEPS = """op f(x: f32[N, 2*H, 2*W]) -> (y: f32[N, H, W]) {
  y[n, p, q] = min[h in max(2*p-1, 0)..min(2*p+2, 2*H), w in 2*q..2*q+2](x[n, h, w])
}"""
NESTED = """op f(x: f32[N, H, W]) -> (y: f32[N, H, W]) {
  y[n, p, q] = max[r in 0..3](max[s in 0..3](x[n, p+r-1, q+s-1] if 0 <= q+s-1 < W and 0 <= p+r-1 < H
                                             else -inf))
}"""
GUARDED = """op f(x: f64[N, H, W]) -> (y: f64[N, H, W]) {
  y[n, p, q] = sum[r in 0..3](sum[s in 0..5](x[n, p+r-1, q+s-2] if 0 <= q+s-2 < W else 0.0) if 0 <= p+r-1 < H
                              else 0.0)
}"""
MIXED = """op f(x: f32[N, H, W]) -> (y: f32[N, H, W]) {
  y[n, p, q] = sum[r in 0..2](sum[w in max(q-1, 0)..min(q+2, W)](x[n, (p + r) % H, w])) * 0.5
}"""
PROGRAMS = {
    "bounds": BOUNDS,
    "means": MEANS,
    "steps": STEPS,
    "nested": NESTED,
    "guarded": GUARDED,
    "mixed": MIXED,
}


def fixed(text: str, **sizes: int) -> TensorGraph:
    return fixed_graph(instantiate(parse_text(text), "f"), sizes)


def formed(text: str) -> tuple[TensorGraph, list[Decision]]:
    decisions: list[Decision] = []
    made = dense_windows(fixed(text, N=2, H=9, W=30), decisions)
    verify_graph(made)
    return made, decisions


def dims(graph: TensorGraph, name: str) -> list[str]:
    return [str(d) for d in graph.statement(name).dims if d.reduce]


def test_terms_are_counted_from_the_first_one_on() -> None:
    made, decisions = formed(BOUNDS)
    assert all(
        d.startswith(f"{n} in max(") and "..min(3, " in d for d, n in zip(dims(made, "y"), "hw", strict=True)
    )
    assert "x[n, p + h - 1, q + w - 1]" in str(made.statement("y"))
    assert [str(d) for d in decisions] == ["+ window y: its terms are counted from the first one on"]


@pytest.mark.parametrize("text", [NESTED, GUARDED])
def test_windows_of_windows_are_one(text: str) -> None:
    made, decisions = formed(text)
    assert len(made.statements) == 1 and len(dims(made, "y")) == 2
    assert "of the same kind" in decisions[0].reason


@pytest.mark.parametrize(
    "body",
    [
        "y[n, p, q] = sum[w in 0..q+1](x[n, p, w])",  # as many terms as places
        "y[n, p, q] = sum[w in q..W](x[n, p, w])",
        "y[n, p, q] = f32(argmax[w in max(q-1, 0)..min(q+2, W)](x[n, p, w]))",  # the place is the result
        "y[n, p, q] = max[r in 0..3](sum[s in 0..3](x[n, min(p+r, H-1), min(q+s, W-1)]))",  # of two kinds
        "y[n, p, q] = sum[r in 0..9](sum[s in 0..9](x[n, min(p+r, H-1), min(q+s, W-1)]))",  # many terms
        "t[n, p, q] = sum[s in 0..3](x[n, p, min(q+s, W-1)]) for n in 0..N, p in 0..H, q in 0..W\n"
        "y[n, p, q] = sum[r in 0..3](t[n, min(p+r, H-1), q]) for n in 0..N, p in 0..H, q in 0..W",
    ],
)
def test_what_stays(body: str) -> None:
    made, decisions = formed(f"op f(x: f32[N, H, W]) -> (y: f32[N, H, W]) where H >= 1, W >= 1 {{ {body} }}")
    assert not decisions and len(made.statements) >= 1


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("size", [(1, 1, 1), (2, 1, 20), (1, 5, 3), (2, 4, 17), (1, 3, 70)])
def test_forms_are_equal(name: str, size: tuple[int, int, int]) -> None:
    c = call(PROGRAMS[name], *size)
    n, h, w = size
    inputs = {k: a for k, a in c.memory().items() if k in c.graph.inputs}
    want = evaluate(c.graph, c.sizes, inputs)["y"]
    dtype = c.graph.tensor("y").dtype
    made = evaluate(dense_windows(fixed(PROGRAMS[name], N=n, H=h, W=w), []), {}, inputs)["y"]
    for found in (made.value.astype(dtype.numpy), pf.compile(PROGRAMS[name])(**c.inputs)):
        outcome = agrees(found, want, dtype)
        assert outcome, outcome.message
