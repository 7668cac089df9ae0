"""What is computed from totals gets a loop of its own, in lanes; workers share one row of pairs of rows."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_right, fixed_graph_of, run_kernels, seeded_inputs

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.decisions import Decision
from polyfuse.ir.kernel import KernelGraph, tree
from polyfuse.ir.schedule_tree import Member, path
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping import cpu
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching

PAIRS = """op f(x: f32[N, K], z: f32[M, K], w: f32[M]) -> (y: f32[N, M]) {
  y[i, j] = w[j] / (1.0 + sum[k](abs(x[i, k] - z[j, k])))
}"""
# The extreme follows each total, too, and what is summed at last needs all of them.
SCORES = """op f(x: f32[N, K], z: f32[M, K], w: f32[M]) -> (y: f32[N]) {
  s[i, j] = sigmoid(sum[k](abs(x[i, k] - z[j, k])) - w[j])
  m[i] = max[j](s[i, j])
  y[i] = sum[j](exp(s[i, j] - m[i]))
}"""
# The nest of the next phase needs what follows each total: nothing is behind both.
BETWEEN = """op f(x: f32[N, M, K]) -> (y: f32[N, M, K]) {
  y[i, j, k] = x[i, j, k] / (1.0 + sum[l](x[i, j, l] * x[i, j, l]))
}"""


def mapped(text: str, **sizes: int) -> tuple[KernelGraph, tuple[Decision, ...]]:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2, Stitching(rows=1))


def loops(kernels: KernelGraph, statement: str) -> list[str]:
    (kernel,) = (k for k in kernels.kernels if statement in k.statements)
    return [f"{m.name}@{m.coordinate.value}" for m in path(tree(kernel), statement) if isinstance(m, Member)]


def splits(decisions: tuple[Decision, ...]) -> list[str]:
    return [d.subject for d in decisions if d.kind == "fission" and "after all of the totals" in d.reason]


def test_functions_of_totals_are_computed_in_lanes() -> None:
    kernels, decisions = mapped(PAIRS, N=256, M=100, K=80)
    assert splits(decisions) == ["y"]
    assert loops(kernels, "y") == ["i@blk", "j@vec"]
    assert loops(kernels, "y__sum") == ["i@blk", "j@seq", "k@vec"]


def test_what_is_behind_may_reduce() -> None:
    kernels, decisions = mapped(SCORES, N=256, M=100, K=80)
    assert splits(decisions) == ["s, m"]
    assert loops(kernels, "m") == ["i@blk", "j@vec"]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (PAIRS, {"N": 256, "M": cpu.FEWEST_LANES - 1, "K": 80}),
        (PAIRS, {"N": 256, "M": FITTED.fission_totals_most_totals + 1, "K": 80}),
        (BETWEEN, {"N": 256, "M": 100, "K": 80}),
        ("op f(x: f32[T, H]) -> (s: f32[T]) { s[t] = exp(sum[h](x[t, h])) }", {"T": 512, "H": 512}),
    ],
)
def test_other_loops_stay_one(text: str, sizes: dict[str, int]) -> None:
    assert not splits(mapped(text, **sizes)[1])


def test_workers_share_one_loop_of_pairs() -> None:
    distances = (
        "op f(x: f32[N, K], z: f32[M, K]) -> (y: f32[N, M]) { y[i, j] = sum[k](abs(x[i, k] - z[j, k])) }"
    )
    sums = "op f(x: f32[N, M, K]) -> (y: f32[N, M]) { y[i, j] = sum[k](x[i, j, k]) }"
    for text, sizes, shared in (
        (distances, (300, 100, 80), ["i@blk", "j@seq", "k@vec"]),
        (distances, (2 * FITTED.row_pairs_rows_of_a_worker - 1, 400, 80), ["i@blk", "j@blk", "k@vec"]),
        (distances, (300, FITTED.row_pairs_fewest_others - 1, 80), ["i@blk", "j@blk", "k@vec"]),
        (sums, (300, 100, 80), ["i_j@blk", "k@vec"]),
    ):
        kernels, _ = mapped(text, **dict(zip("NMK", sizes, strict=True)))
        assert loops(kernels, "y") == shared


@pytest.mark.parametrize("target", ["interpret", "cpu"])
@pytest.mark.parametrize("text", [PAIRS, SCORES, BETWEEN])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 16, 17), (5, 33, 80), (2, 40, 0), (0, 20, 20)])
def test_results_are_right(text: str, sizes: tuple[int, int, int], target: str) -> None:
    kernels, _ = mapped(text, **dict(zip("NMK", sizes, strict=True)))
    inputs = seeded_inputs(kernels.graph)
    for a in inputs.values():
        if a.size > 20:
            a.ravel()[[3, 7]] = np.inf, np.nan
    assert_right(kernels.graph, run_kernels(kernels, inputs, target), inputs)
