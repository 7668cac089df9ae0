"""Chains of statements compile with work that grows as they do: counts of operations, of isl and of code."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.driver.lowering import Passes, lower_clusters
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.target import CpuTarget, GpuTarget, Target
from polyfuse.ir.tensor_graph import Apply, Select, TensorGraph, walk
from polyfuse.layers.clustering.clusters import Clustering, recompute_numbers
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.poly.legality.recurrences import cycles
from polyfuse.poly.model import isl_bridge
from polyfuse.poly.scheduling import axis_planner

# Right sides of a step: what `a` was before gives what it is next.
STEPS = {
    "clamped": "a[max(i - 1, 0)] + a[i] * 0.5 + a[min(i + 1, N - 1)] * 0.1",
    "wrapped": "a[(i + N - 1) % N] + a[i] * 0.5 + a[(i + 1) % N] * 0.1",
    "guarded": "(a[i - 1] if i >= 1 else 0.0) + a[i] * 0.5 + (a[i + 1] if i < N - 1 else 0.0)",
    "two points": "a[max(i - 1, 0)] + a[i]",
    "mirrored": "a[N - 1 - i] * 0.5 + a[i]",
    "halves": "a[i // 2] + a[i]",
    "pairs": "a[i // 2 * 2] + (a[i // 2 * 2 + 1] if i % 2 == 0 else -a[i // 2 * 2])",
    "functions": "exp(a[max(i - 1, 0)]) + a[min(i + 1, N - 1)]",
}
JACOBI = (
    "0.25 * (a[max(i - 1, 0), j] + a[min(i + 1, N - 1), j] + a[i, max(j - 1, 0)] + a[i, min(j + 1, M - 1)])"
)
BLUR = " + ".join(
    f"a[min(max(i + {p}, 0), N - 1), min(max(j + {q}, 0), M - 1)]" for p in (-1, 0, 1) for q in (-1, 0, 1)
)


def chain(step: str, n: int) -> str:
    """An operator of n steps over one axis, or over two."""
    two = "j" in step
    dims, at, shape = ("i in 0..N, j in 0..M", "i, j", "N, M") if two else ("i in 0..N", "i", "N")
    lines = [f"  t0[{at}] = x[{at}]"]
    lines += [f"  t{k}[{at}] = {step.replace('a[', f't{k - 1}[')} for {dims}" for k in range(1, n + 1)]
    even = "N >= 2, N % 2 == 0" + ", M >= 1" * two
    head = f"op f(x: f32[{shape}]) -> (y: f32[{shape}]) where {even} {{"
    return "\n".join([head, *lines, f"  y[{at}] = t{n}[{at}]", "}"])


def graph_of(step: str, n: int, **sizes: int) -> TensorGraph:
    return fixed_graph(instantiate(parse_text(chain(step, n)), "f"), sizes)


def lowered(
    graph: TensorGraph, machine: Target, fusion: bool = True
) -> tuple[KernelGraph, tuple[Decision, ...]]:
    layer = LoopFusion() if fusion else None
    passes = Passes(Clustering(library="never"), layer, Stitching(barriers=False), None, machine)
    found = lower_clusters(graph, [tuple(s.name for s in graph.statements)], passes)
    return found.kernels, found.decisions


def operations(graph: TensorGraph) -> int:
    return sum(isinstance(e, Apply | Select) for s in graph.statements for e in walk(s.expr))


@pytest.fixture
def isl_budget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a model may cost isl."""
    monkeypatch.setattr(isl_bridge, "MAX_OPERATIONS", 1_000_000)
    yield


@pytest.mark.machine("zen3")
@pytest.mark.usefixtures("isl_budget")
@pytest.mark.thin(2)
@pytest.mark.parametrize("machine", (CpuTarget(2), GpuTarget()), ids=("cpu", "gpu"))
@pytest.mark.parametrize("fusion", (True, False), ids=("fused", "layer II alone"))
@pytest.mark.parametrize("step", STEPS)
def test_steps_repeat_few_operations(step: str, fusion: bool, machine: Target) -> None:
    """Recomputed in each other, n steps of three points would have 3^n operations."""
    graph = graph_of(STEPS[step], 16, N=8)
    kernels, _ = lowered(graph, machine, fusion)
    assert operations(kernels.graph) <= 12 * operations(graph)


@pytest.mark.machine("zen3")
@pytest.mark.usefixtures("isl_budget")
@pytest.mark.parametrize("machine", (CpuTarget(2), GpuTarget()), ids=("cpu", "gpu"))
def test_steps_over_two_axes_repeat_few_operations(machine: Target) -> None:
    graph = graph_of(JACOBI, 8, N=64, M=64)
    kernels, _ = lowered(graph, machine)
    assert operations(kernels.graph) <= 12 * operations(graph)


@pytest.mark.machine("zen3")
def test_explain_says_where_the_limit_cut_a_recomputation() -> None:
    """On 8 elements to compute each again is cheaper than a kernel more, until it is too much to repeat."""
    _, decisions = lowered(graph_of(STEPS["clamped"], 8, N=8), GpuTarget(), fusion=False)
    large = [d for d in decisions if d.kind == "recompute" and not d.taken]
    assert any("it would repeat" in d.reason for d in large), [str(d) for d in decisions]


@pytest.mark.machine("zen3")
@pytest.mark.parametrize("start", ("0.5", "b"), ids=("constants", "arguments"))
def test_numbers_are_computed_where_they_are_read_while_they_are_short(start: str) -> None:
    """Each reads the one before three times."""
    lines = [f"c{k} = tanh(c{k - 1}) * c{k - 1} + sqrt(c{k - 1} + 1.0)" for k in range(1, 17)]
    text = "\n".join(
        ["op f(x: f32[N], b: f32) -> (y: f32[N]) {", f"c0 = {start}", *lines, "y[i] = x[i] * c16 * b }"]
    )
    graph = fixed_graph(instantiate(parse_text(text), "f"), {"N": 8})
    found: list[Decision] = []
    assert operations(recompute_numbers(graph, found, arguments=True)) <= 12 * operations(graph)
    assert any("it would repeat" in d.reason for d in found if not d.taken)


# --- isl gives no answer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ("cpu", "emulate"))
@pytest.mark.parametrize("limit", (100_000, 300_000))
def test_what_is_too_much_for_isl_is_cut(
    limit: int, target: pf.compiled.Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four blurs; before, a limit that was reached ended in an error of isl."""
    monkeypatch.setattr(isl_bridge, "MAX_OPERATIONS", limit)
    f = pf.compile(chain(f"({BLUR}) / 9.0", 4), target=target)
    x = np.random.default_rng(1).random((12, 10), dtype=np.float32)
    want = x
    for _ in range(4):
        p = np.pad(want, 1, mode="edge")
        want = sum(p[i : i + 12, j : j + 10] for i in range(3) for j in range(3)) / 9.0
    np.testing.assert_allclose(f(x), want, rtol=1e-5)
    assert f"isl gives no answer within {limit} operations" in f.explain(x)


def test_an_error_of_isl_has_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing smaller is left."""
    monkeypatch.setattr(isl_bridge, "MAX_OPERATIONS", 1_000)
    with pytest.raises(pf.ScheduleError, match="isl gives no answer within 1000 operations") as raised:
        pf.compile(chain(STEPS["clamped"], 2), target="interpret")(np.zeros(8, np.float32))
    assert raised.value.code == "PF511"


# --- counts of single parts ---------------------------------------------------------------------------------


class Counted(list[int]):
    """A list that counts how often it is walked."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        Counted.walks += 1
        return super().__iter__()


def test_recurrences_are_found_in_one_walk() -> None:
    n = 500
    needs = {k: Counted([max(0, k - 1), k // 2] if k else []) for k in range(n)} | {n: Counted([n])}
    Counted.walks = 0
    assert cycles(needs) == [[n]]
    assert cycles({3: [1], 1: [3, 2], 2: [2], 0: [1]}) == [[1, 3], [2]]
    assert Counted.walks <= 2 * n


def test_the_planner_looks_at_few_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that it cannot tell apart are one edge; distances count where both ends are on an axis."""
    calls = [0]
    real = axis_planner.offset

    def counted(*given: object) -> object:
        calls[0] += 1
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(axis_planner, "offset", counted)
    counts = []
    for n in (8, 32):
        graph = graph_of(BLUR, n, N=64, M=64)
        calls[0] = 0
        axis_planner.plan(graph)
        counts.append(calls[0] / len(graph.statements))
    assert counts[1] <= 2 * counts[0]
