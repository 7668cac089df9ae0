"""Means and variances about a pivot: what is made of them, that they agree, what the difference loses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from targets import Array, Call, check_everywhere

import polyfuse as pf
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.decisions import Decision
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import evaluate as value_of
from polyfuse.ir.schedule_tree import Band, Sequence, Tree, statements
from polyfuse.ir.target import CpuTarget, GpuTarget, Target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.ir.verify_graph import verify_graph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.graph.one_pass import moments
from polyfuse.layers.graph.one_pass.online import online_forms
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching

VARIANCE = """
op f(x: f32[T, H]) -> (v: f32[T], mu: f32[T]) {
  mu[t] = mean[h](x[t, h])
  v[t] = mean[h]((x[t, h] - mu[t]) ** 2)
}"""
LAYER_NORM = """
op f(x: f32[T, H], r: f32[T, H], b: f32[H]) -> (y: f32[T, H]) {
  s[t, h] = x[t, h] + r[t, h] + b[h]
  mu[t] = mean[h](s[t, h])
  c[t, h] = s[t, h] - mu[t]
  v[t] = mean[h](c[t, h] * c[t, h])
  y[t, h] = c[t, h] * rsqrt(v[t] + 1e-5)
}"""
BATCH = """
op f(x: f32[N, T, H]) -> (v: f32[T], y: f32[N, T, H]) {
  mu[t] = mean[n, h](x[n, t, h])
  v[t] = mean[n, h]((mu[t] - x[n, t, h]) ** 2)
  y[n, t, h] = (x[n, t, h] - mu[t]) * v[t]
}"""
COLUMNS = """
op f(x: f32[H, T]) -> (v: f32[T]) {
  mu[t] = mean[h](x[h, t])
  v[t] = mean[h]((x[h, t] - mu[t]) ** 2)
}"""
TWICE = """
op f(x: f32[T, H]) -> (v: f32[T], w: f32[T], mu: f32[T]) {
  mu[t] = mean[h](x[t, h])
  v[t] = mean[h]((x[t, h] - mu[t]) ** 2)
  w[t] = sqrt(sum[h]((mu[t] - x[t, h]) ** 2))
}"""
HALF = """
op f(x: f16[T, H]) -> (v: f32[T]) {
  mu[t] = mean[h](f32(x[t, h]))
  v[t] = mean[h]((f32(x[t, h]) - mu[t]) ** 2)
}"""
DOUBLE = VARIANCE.replace("f32", "f64")
OPERATORS = {
    "variance": VARIANCE,
    "layer_norm": LAYER_NORM,
    "batch": BATCH,
    "columns": COLUMNS,
    "twice": TWICE,
    "half": HALF,
    "double": DOUBLE,
}

CPU = CpuTarget(2)


def fixed(text: str, **sizes: int) -> TensorGraph:
    graph = instantiate(parse_text(text), "f")
    return fixed_graph(graph, {n: sizes.get(n, 3) for n in graph.sizes})


def formed(graph: TensorGraph, target: Target = CPU) -> tuple[TensorGraph, list[Decision]]:
    decisions: list[Decision] = []
    made = online_forms(graph, target, decisions)
    verify_graph(made)
    return made, decisions


@pytest.fixture(autouse=True)
def far_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small rows count as far, where nothing is said of that."""
    if "near" not in request.node.name:
        monkeypatch.setattr(moments, "_near", lambda *given: False)


@pytest.fixture
def any_length(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rows are not too short, and a sixteenth of them need not be whole vectors."""
    monkeypatch.setattr(moments, "SHORTEST", 1)
    monkeypatch.setattr(moments, "WHOLE", 1)
    yield


@dataclass
class MomentsCall(Call):
    """Kernels of the form about a pivot; the reference is that of the program as it was written."""

    def _fixed(self) -> TensorGraph:
        made, decisions = formed(super()._fixed())
        assert decisions and all(d.taken and "about a pivot" in d.reason for d in decisions), decisions
        return made


def call(name: str, length: int, x: Array | None = None, rows: int = 3) -> MomentsCall:
    text = OPERATORS[name]
    graph = instantiate(parse_text(text), "f")
    sizes = {n: {"H": length, "T": rows}.get(n, 2) for n in graph.sizes}
    rng = np.random.default_rng(length)
    inputs = {}
    for i in graph.inputs:
        t = graph.tensor(i)
        shape = tuple(value_of(e, sizes) for e in t.shape)
        inputs[i] = (2 * rng.standard_normal(shape) + 1).astype(t.dtype.numpy)
    if x is not None:
        inputs["x"] = np.broadcast_to(x, inputs["x"].shape).astype(inputs["x"].dtype)
    return MomentsCall(f"{name} {length}", text, graph, sizes, inputs)


def test_agrees_with_the_program_as_written() -> None:
    check_everywhere([call(name, 801) for name in OPERATORS])


@pytest.mark.parametrize("length", (1, 2, 17, 64, 99))
def test_agrees_with_rows_of_any_length(any_length: None, length: int) -> None:
    check_everywhere([call(name, length) for name in OPERATORS])


INF, NAN, MOST = np.inf, np.nan, 3.4028235e38
HARD = {
    "inf": [1, 2, 3, 4, 5, 6, INF, 8, 9],
    "inf first": [-INF, 2, 3, 4, 5, 6, 7, 8, 9],
    "inf everywhere": [INF] * 9,
    "inf and -inf": [1, 2, 3, -INF, INF, 6, 7, 8, 9],
    "nan": [1, 2, NAN, 4, 5, 6, 7, 8, 9],
    "nan first": [NAN, 2, 3, 4, 5, 6, 7, 8, 9],
    "nan and inf": [1, 2, NAN, 4, INF, 6, 7, 8, 9],
    "lowest": [-MOST] * 9,
    "large": [2e30] * 9,
    "large once": [1, 2, 3, 4, 5, MOST, 7, 8, 9],
    "large first": [MOST, 2, 3, 4, 5, 6, 7, 8, 9],
    "from end to end": [-MOST, MOST, 0, 0, -MOST, 1, 2, 3, 4],
    "squares overflow": [1e20, 2e20, -1e20, 0, 0, 0, 0, 0, 0],
    "zeros": [0.0, -0.0] * 4 + [0.0],
    "denormals": [1e-45, 1e-40, -1e-42, 0, 1e-39, 0, 0, 1e-45, 0],
    "far from 0": [1e6 + k for k in range(9)],
}


@pytest.mark.parametrize("name", ("variance", "double"))
def test_infinities_and_nan(any_length: None, name: str) -> None:
    rows = np.array(list(HARD.values()), np.float32)
    check_everywhere([call(name, 9, x, rows=len(rows)) for x in (rows, -rows)])


def test_infinities_and_nan_of_long_rows() -> None:
    once = np.array(list(HARD.values()), np.float32)
    rows = np.tile(once, 100)
    ends = np.concatenate([np.ones((len(once), 900), np.float32), once], axis=1)
    first = ends[~np.isfinite(once).all(axis=1), ::-1]
    check_everywhere([call("variance", x.shape[1], x, rows=len(x)) for x in (rows, ends, first)])


# --- what the difference loses ------------------------------------------------------------------------------


def errors(x: Array) -> Array:
    """Relative errors of the variance of rows, in units of the last place."""
    f = pf.compile(VARIANCE, target="cpu")
    assert "about a pivot" in f.explain(x)
    found = np.asarray(f(x)[0], np.float64)  # type: ignore[index]
    want = x.astype(np.float64).var(axis=1)
    assert (found >= 0).all()
    return np.asarray(np.abs(found - want) / want / 2.0**-24)


@pytest.mark.parametrize("mean", (0.0, 1.0, 1e3, 1e6))
def test_rows_that_begin_like_the_rest_lose_nothing(mean: float) -> None:
    x = (np.random.default_rng(0).standard_normal((64, 4096)) + mean).astype(np.float32)
    assert errors(x).max() < 8


def test_rows_that_begin_otherwise_lose_what_the_share_of_the_pivot_says() -> None:
    x = np.random.default_rng(1).standard_normal((64, 4096)).astype(np.float32)
    for away in (1e2, 1e4, 1e6):
        x[:, : 4096 // moments.SHARE] += np.float32(away)
        assert errors(x).max() < 8 * moments.SHARE


def test_equal_elements_have_no_variance() -> None:
    for value in (0.1, 1e-3, 12345.678, 1e15):
        x = np.full((2, 1000), value, np.float32)
        f = pf.compile(VARIANCE, target="cpu")
        v, mean = f(x)  # type: ignore[misc]
        assert (np.asarray(v) >= 0).all() and (np.sqrt(v) <= 1e-6 * np.float32(value)).all()
        np.testing.assert_allclose(mean, x[:, 0], rtol=3e-7)


# --- what is made, and where --------------------------------------------------------------------------------


def phases(graph: TensorGraph) -> list[list[str]]:
    """The statements of each innermost loop."""

    def go(t: Tree) -> Iterator[list[str]]:
        children = t.children if isinstance(t, Sequence) else (t.child,) if isinstance(t, Band) else ()
        if isinstance(t, Band) and not any(isinstance(n, Band) for c in children for n in nodes(c)):
            yield sorted(statements(t))
        else:
            for c in children:
                yield from go(c)

    def nodes(t: Tree) -> Iterator[Tree]:
        yield t
        for c in t.children if isinstance(t, Sequence) else (t.child,) if isinstance(t, Band) else ():
            yield from nodes(c)

    return list(go(LoopFusion().schedule(graph).tree))


def test_what_a_variance_becomes() -> None:
    made, (decision,) = formed(fixed(VARIANCE, T=3, H=1600))
    lines = "\n".join(str(s) for s in made.statements)
    assert "mu__sum__head[t] = sum[h in 0..128]((x[t, h] * 0.0078125))  for t in 0..3" in lines
    assert "sum[h in 0..1600](((x[t, h] - mu__sum__pivot[t]) * 0.00048828125))" in lines
    assert "sum[h in 0..1600](((x[t, h] - mu__sum__pivot[t]) ** 2.0))" in lines
    assert decision.taken and "in one pass with mu__sum, about a pivot" in decision.reason


def test_both_variances_of_a_mean_share_its_pass() -> None:
    made, decisions = formed(fixed(TWICE, T=3, H=1600))
    names = [s.name for s in made.statements if s.reduction]
    assert len(decisions) == 2 and len(names) == 4, names


def test_a_sum_and_its_variance_share_a_loop_with_what_they_read() -> None:
    """The pivot has a loop of its own, and computes its elements itself."""
    made, _ = formed(fixed(LAYER_NORM, T=64, H=768))
    assert ["mu__sum__off", "s", "v__sum__about"] in phases(made)


def test_columns_and_batches_share_all_their_loops() -> None:
    made, _ = formed(fixed(BATCH, N=32, T=64, H=3136))
    assert ["mu__sum__off", "v__sum__about"] in phases(made)


@pytest.mark.parametrize(
    ("text", "length", "reason"),
    [
        (VARIANCE, 512, "a pass over 512 elements takes no longer than a pivot"),
        (LAYER_NORM.replace("x[t, h] + r", "tanh(exp(x[t, h])) + r"), 2048, "operations for an element"),
    ],
    ids=("short", "expensive"),
)
def test_others_are_left_with_the_reason(text: str, length: int, reason: str) -> None:
    graph = fixed(text, T=64, H=length)
    made, (decision,) = formed(graph)
    assert made == graph and not decision.taken and "stay in L1" in decision.reason
    assert reason in decision.reason


def test_a_gpu_keeps_its_rows() -> None:
    graph = fixed(VARIANCE, T=8192, H=1600)
    made, decisions = formed(graph, GpuTarget())
    assert made == graph and not decisions[0].taken


def test_nowhere_if_not_wanted() -> None:
    graph = fixed(VARIANCE, T=64, H=1600)
    decisions: list[Decision] = []
    assert online_forms(graph, CPU, decisions, wanted=False) == graph and not decisions


NORM = """
op f(x: f32[T, H], g: f32[H]) -> (y: f32[T, H]) {
  mu[t] = mean[h](x[t, h])
  v[t] = mean[h]((x[t, h] - mu[t]) ** 2)
  y[t, h] = (x[t, h] - mu[t]) * rsqrt(v[t] + 1e-5) * g[h]
}"""


def test_no_row_is_asked_for_ahead_of_a_single_pass() -> None:
    """The pivot's loop over some first elements leaves the rest of a row to memory; there is no other phase,
    or one that computes little."""
    x, g = np.ones((4096, 768), np.float32), np.ones(768, np.float32)
    assert "prefetch" not in pf.compile(VARIANCE, target="cpu").explain(x)
    assert "- prefetch rows x: one pass makes all sums of a row" in pf.compile(NORM, target="cpu").explain(
        x, g
    )
    long = NORM.replace("y[t, h] = (", "y[t, h] = tanh(")
    assert "+ prefetch rows x" in pf.compile(long, target="cpu").explain(x, g)


def test_rows_with_a_pivot_do_not_overlap() -> None:
    """The loop of the pivot is too short to fill a wait."""
    kernels = form_kernels(LoopFusion().schedule(formed(fixed(NORM, T=4096, H=768))[0]), 2, Stitching())[0]
    two = form_kernels(LoopFusion().schedule(fixed(NORM, T=4096, H=768)), 2, Stitching())[0]
    assert [t.pipelined for k in (kernels, two) for t in lower(k.kernels[0]).functions] == [False, True]


NAMED = """
op f(x: {dtype}[T, H]{more}) -> (v: f32[T]{also}) where H >= 1 {{
  u[t, h] = {u}
  mu[t] = mean[h](u[t, h])
  v[t] = mean[h]((u[t, h] - mu[t]) ** 2)
  {rest}
}}"""
ELEMENTS = {
    "square": NAMED.format(dtype="f32", more="", also="", u="x[t, h] ** 2", rest=""),
    "scaled": NAMED.format(dtype="f32", more=", a: f32[H]", also="", u="x[t, h] * a[h]", rest=""),
    "wide": NAMED.format(dtype="f16", more="", also="", u="f32(x[t, h])", rest=""),
    "greatest": NAMED.format(
        dtype="f32", more=", a: f32[H]", also=", m: f32[T]", u="x[t, h] + a[h]", rest="m[t] = max[h](u[t, h])"
    ),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_with_a_name_are_summed_along_memory(name: str) -> None:
    """Totals count as small beside what comes in registers, and give no loop its place."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 100_003)).astype("f2" if name == "wide" else "f4")
    more = [rng.standard_normal(x.shape[1]).astype("f4")] if "a: f32" in ELEMENTS[name] else []
    f = pf.compile(ELEMENTS[name], target="cpu")
    why = f.explain(x, *more)
    assert "about a pivot" in why and "interchange" not in why
    found = f(x, *more)
    u = x.astype("f8")
    u = {"square": u**2, "wide": u}.get(name, u * more[0] if name == "scaled" else u + more[0] if more else u)
    v = found if name not in ("greatest",) else found[0]  # type: ignore[index]
    np.testing.assert_allclose(v, u.var(axis=1), rtol=2e-6)


CHAIN = """
op f(x: f32[T, H]) -> (k: f32[T], v: f32[T]) {
  mu[t] = mean[h](x[t, h])
  c[t, h] = (x[t, h] - mu[t]) ** 2
  v[t] = mean[h](c[t, h])
  k[t] = mean[h]((c[t, h] - v[t]) ** 2)
}"""


def test_a_sum_has_one_form() -> None:
    """The variance of squared differences needs their mean as the pass before makes it."""
    made, (first, second) = formed(fixed(CHAIN, T=8, H=4096))
    assert first.taken and not second.taken and "v__sum has a form of its own" in second.reason
    assert [s.name for s in made.statements if s.reduction] == [
        "mu__sum__head", "mu__sum__off", "v__sum__about", "k__sum",
    ]  # fmt: skip
    x = np.random.default_rng(4).standard_normal((8, 4096)).astype("f4")
    k, v = pf.compile(CHAIN, target="cpu")(x)  # type: ignore[misc]
    c = (x.astype("f8") - x.astype("f8").mean(axis=1, keepdims=True)) ** 2
    np.testing.assert_allclose(v, c.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(k, c.var(axis=1), rtol=1e-5)


OTHERS = {
    "from 100 on": (
        "mu[t] = sum[h in 100..H](x[t, h]) / (H - 100)\nv[t] = mean[h in 100..H]((x[t, h] - mu[t]) ** 2)"
    ),
    "a guard": (
        "mu[t] = mean[h in 0..H](x[t, h] if h % 3 == 0 else 0.0)\n"
        "v[t] = mean[h in 0..H](((x[t, h] if h % 3 == 0 else 0.0) - mu[t]) ** 2)"
    ),
    "another row": "mu[t] = mean[h](x[t, h]); v[t] = mean[h]((x[t, h] - mu[T - 1 - t]) ** 2)",
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_ranges_guards_and_rows(name: str) -> None:
    text = f"op f(x: f32[T, H]) -> (v: f32[T]) where H >= 101 {{\n{OTHERS[name]}\n}}"
    x = (np.random.default_rng(5).standard_normal((6, 1001)) + 2).astype("f4")
    u = x.astype("f8")
    if name == "from 100 on":
        u = u[:, 100:]
    if name == "a guard":
        u = np.where(np.arange(1001) % 3 == 0, u, 0.0)
    mean = u.mean(axis=1, keepdims=True)
    want = ((u - (mean[::-1] if name == "another row" else mean)) ** 2).mean(axis=1)
    np.testing.assert_allclose(pf.compile(text, target="cpu")(x), want, rtol=2e-6)
    assert ("about a pivot" in pf.compile(text, target="cpu").explain(x)) == (name != "another row")


def test_short_rows_that_stay_near_keep_both_passes() -> None:
    """In L1 a pass costs its loads alone, and in L2 memory is no matter: a pivot would be waited for."""
    near, far, long = (formed(fixed(NORM, T=t, H=h)) for t, h in ((256, 768), (4096, 768), (128, 1536)))
    assert not near[1][0].taken and far[1][0].taken and long[1][0].taken
    residual, double = (formed(fixed(text, T=256, H=768)) for text in (LAYER_NORM, DOUBLE))
    assert residual[1][0].taken and double[1][0].taken, "loads of two tensors, of twice as many vectors"


def test_dims_collapse_before_a_pivot_cuts_one() -> None:
    """Else rows of an image would be loops of their own, too short for vectors."""
    text = """op f(x: f32[N, H, W]) -> (y: f32[N, H, W]) {
      mu[n] = mean[h, w](x[n, h, w])
      v[n] = mean[h, w]((x[n, h, w] - mu[n]) ** 2)
      y[n, h, w] = (x[n, h, w] - mu[n]) * v[n]
    }"""
    why = pf.compile(text, target="cpu").explain(np.ones((8192, 28, 28), "f4"))
    assert "about a pivot" in why and "+ collapse x[..1, 2..]" in why
