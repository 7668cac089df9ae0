"""Kernels: where trees are cut, where tensors live, and the golden text of known operators."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from equivalence import assert_computes, fixed_graph_of

from polyfuse.codegen.cpu.emit import emit
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IVar
from polyfuse.ir.kernel import KernelGraph, Scope, tree
from polyfuse.ir.loop_ir import For, format_block
from polyfuse.ir.schedule_tree import Band, Leaf, Member, Sequence, shape
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion, identity_schedule
from polyfuse.layers.mapping.kernels import cut_phases, entry_copies, form_kernels
from polyfuse.poly.scheduling.axis_planner import plan

Golden = Callable[[str, str], None]


def kernels_of(graph: TensorGraph, **options: object) -> tuple[KernelGraph, dict[str, str]]:
    """(kernels, storage decisions by tensor)."""
    scheduled = LoopFusion(**options).schedule(graph)  # type: ignore[arg-type]
    kernels, decisions = form_kernels(scheduled, 2)
    return kernels, {d.subject: str(d) for d in decisions if d.kind == "contract"}


def scopes(kernels: KernelGraph) -> dict[str, Scope]:
    return {b.tensor: b.scope for k in kernels.kernels for b in k.buffers}


# --- phases -----------------------------------------------------------------------------------------


def test_cut_phases() -> None:
    text = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
      s[t] = sum[h](x[t, h])
      m[t] = s[t] * 0.5
      y[t, h] = exp(x[t, h]) * m[t]
    }"""
    whole = plan(fixed_graph_of(text, T=3, H=4))
    assert shape(whole) == "B1([B1(s); m; B1(y)])"
    assert [shape(t) for t in cut_phases(whole)] == ["B11(s)", "B1(m)", "B11(y)"]


def test_leaves_side_by_side_stay_together() -> None:
    both = Sequence((Leaf("a"), Leaf("b")))
    assert cut_phases(both) == [both]
    assert cut_phases(Leaf("a")) == [Leaf("a")]


def test_a_recurrence_is_not_cut() -> None:
    ordered = Member("t", (("a", IVar("t")), ("b", IVar("t"))), coincident=False)
    carried = Band((ordered,), Sequence((Leaf("a"), Leaf("b"))))
    assert cut_phases(carried) == [carried]


def test_one_kernel_for_each_phase() -> None:
    graph = fixed_graph_of(PROGRAMS["layer_norm"][0], **PROGRAMS["layer_norm"][1])
    kernels, _ = kernels_of(graph)
    assert all(len(k.stages) == 1 and len(k.stages[0].phases) == 1 for k in kernels.kernels)
    names = [n for k in kernels.kernels for n in k.statements]
    assert sorted(names) == sorted(s.name for s in kernels.graph.statements)


# --- storage ----------------------------------------------------------------------------------------------


def test_a_chain_lives_in_registers() -> None:
    graph = fixed_graph_of(
        "op f(x: f32[N]) -> (y: f32[N]) { a[i] = exp(x[i]); b[i] = a[i] * a[i]; y[i] = b[i] + a[i] }", N=50
    )
    kernels, decisions = kernels_of(graph)
    assert scopes(kernels)["a"] is scopes(kernels)["b"] is Scope.REGISTER
    assert decisions["a"] == "+ contract a: to a register: one element lives in an iteration of i"
    assert "b_a" not in emit(kernels).source
    assert_computes(graph, kernels)


def test_what_crosses_kernels_is_global() -> None:
    graph = fixed_graph_of(
        "op f(x: f32[T, H]) -> (y: f32[T, H]) { s[t] = sum[h](x[t, h]); y[t, h] = x[t, h] * s[t] }", T=5, H=6
    )
    kernels, _ = kernels_of(graph)
    found = [b for k in kernels.kernels for b in k.buffers if b.tensor == "s"]
    assert {b.scope for b in found} == {Scope.GLOBAL}
    assert {b.reason for b in found} == {"written in one kernel and read in another"}


def test_identity_schedule_keeps_everything_global() -> None:
    graph = fixed_graph_of("op f(x: f32[N]) -> (y: f32[N]) { a[i] = exp(x[i]); y[i] = a[i] * a[i] }", N=50)
    kernels, _ = form_kernels(identity_schedule(graph), 2)
    assert len(kernels.kernels) == 2 and scopes(kernels)["a"] is Scope.GLOBAL
    assert_computes(graph, kernels)


SHIFT = """op f(x: f32[N]) -> (y: f32[N]) {
  t[i] = exp(x[i - 1]) if i >= 1 else 0.25 for i in 0..N
  y[i] = t[i] * 2.0
}"""


@pytest.mark.parametrize("size", [1, 2, 3000, 100_000])
def test_the_first_element_of_a_parallel_loop(size: int) -> None:
    """Its pieces run before everything else, yet in one iteration with what reads them."""
    graph = fixed_graph_of(SHIFT, N=size)
    kernels, _ = kernels_of(graph)
    assert_computes(graph, kernels, target="cpu")


def test_loops_inside_a_single_block_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start and sum of one row have loops of equal bounds, and no loop over blocks around them."""
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 1)
    text = "op f(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) * 0.5 }"
    graph = fixed_graph_of(text, M=1, K=7, N=7)
    for scheduled in (identity_schedule(graph), LoopFusion().schedule(graph)):
        kernels, _ = form_kernels(scheduled, 2)
        assert_computes(graph, kernels)
        assert_computes(graph, kernels, target="cpu")


def test_updates_of_elements_that_the_loop_runs_past() -> None:
    """A loop shared with a longer statement must not touch the shorter one's tensor beyond its end."""
    text = """op f(x: f32[A, B], z: f32[C, B]) -> (s: f32[A], y: f32[C]) {
      s[i] = sum[k](x[i, k])
      y[i] = sum[k](z[i, k]) * (s[i - 2] if 2 <= i < A + 2 else 1.0) for i in 0..C
    }"""
    graph = fixed_graph_of(text, A=5, B=4, C=9)
    for scheduler in ("axes", "isl"):
        kernels, _ = kernels_of(graph, scheduler=scheduler)
        assert_computes(graph, kernels)


# --- golden ------------------------------------------------------------------------------------------------

PROGRAMS: dict[str, tuple[str, dict[str, int]]] = {
    "layer_norm": (
        """op f(x: f32[T, H], g: f32[H], b: f32[H]) -> (y: f32[T, H]) {
          mu[t] = sum[h](x[t, h]) / H
          var[t] = sum[h]((x[t, h] - mu[t]) ** 2) / H
          y[t, h] = (x[t, h] - mu[t]) * rsqrt(var[t] + 1e-5) * g[h] + b[h]
        }""",
        {"T": 512, "H": 768},
    ),
    "layer_norm_backward": (
        """op f(x: f32[T, H], dy: f32[T, H], mean: f32[T], rstd: f32[T], g: f32[H])
            -> (dx: f32[T, H], dg: f32[H], db: f32[H]) {
          n[t, h] = (x[t, h] - mean[t]) * rstd[t]
          d[t, h] = dy[t, h] * g[h]
          a[t] = sum[h](d[t, h]) / H
          b[t] = sum[h](d[t, h] * n[t, h]) / H
          dx[t, h] = (d[t, h] - a[t] - n[t, h] * b[t]) * rstd[t]
          dg[h] = sum[t](dy[t, h] * n[t, h])
          db[h] = sum[t](dy[t, h])
        }""",
        {"T": 512, "H": 256},
    ),
    "masked_softmax": (
        """op f(x: f32[B, A, S, K], m: f32[B, K]) -> (y: f32[B, A, S, K]) {
          s[b, a, i, k] = x[b, a, i, k] + m[b, k]
          t[b, a, i] = max[k](s[b, a, i, k])
          e[b, a, i, k] = exp(s[b, a, i, k] - t[b, a, i])
          y[b, a, i, k] = e[b, a, i, k] / sum[l](e[b, a, i, l])
        }""",
        {"B": 2, "A": 4, "S": 64, "K": 64},
    ),
    "batch_norm": (
        """op f(x: f32[N, C, H, W], g: f32[C]) -> (y: f32[N, C, H, W]) {
          mu[c] = mean[n, h, w](x[n, c, h, w])
          var[c] = mean[n, h, w]((x[n, c, h, w] - mu[c]) ** 2)
          y[n, c, h, w] = (x[n, c, h, w] - mu[c]) * rsqrt(var[c] + 1e-5) * g[c]
        }""",
        {"N": 4, "C": 16, "H": 28, "W": 28},
    ),
    "bias_gelu": (
        """op f(x: f32[T, H], b: f32[H]) -> (y: f32[T, H]) {
          s[t, h] = x[t, h] + b[h]
          y[t, h] = 0.5 * s[t, h] * (1.0 + erf(s[t, h] * 0.70710678))
        }""",
        {"T": 128, "H": 1000},
    ),
    "matmul_bias_gelu": (
        """op f(a: f32[I, K], b: f32[K, J], c: f32[J]) -> (y: f32[I, J]) {
          m[i, j] = sum[k](a[i, k] * b[k, j]) + c[j]
          y[i, j] = 0.5 * m[i, j] * (1.0 + tanh(m[i, j]))
        }""",
        {"I": 64, "K": 32, "J": 96},
    ),
    "adamw": (
        """op f(inout p: f32[N], inout m: f32[N], inout v: f32[N], g: f32[N], lr: f32, decay: f32 = 0.01) {
          m[i] = 0.9 * m[i] + 0.1 * g[i]
          n[i] = 0.9 * old(m[i]) + 0.1 * g[i]
          w[i] = 0.999 * v[i] + 0.001 * g[i] ** 2
          v[i] = w[i]
          p[i] = p[i] - lr * (n[i] / (sqrt(w[i]) + 1e-8) + decay * p[i])
        }""",
        {"N": 100_000},
    ),
    "stencil": (
        """op f(x: f32[N], steps: i8[T]) -> (u: f32[T, N]) {
          u[0, i] = x[i]
          u[t, 0] = u[t - 1, 0] for t in 1..T
          u[t, N - 1] = u[t - 1, N - 1] for t in 1..T
          u[t, i] = (u[t - 1, i - 1] + u[t - 1, i] + u[t - 1, i + 1]) / 3.0 for t in 1..T, i in 1..N - 1
        }""",
        {"N": 50, "T": 8},
    ),
    "segment_sum": (
        """op f(x: f32[E, F], to: i64[E], z: f32[N, F]) -> (y: f32[N, F]) where N >= 1 {
          let s: f32[N, F] = 0.0
          s[to[e], f] += x[e, f]
          y[n, f] = s[n, f] * z[n, f]
        }""",
        {"E": 1000, "F": 16, "N": 40},
    ),
}


def parallel_text(loops: tuple[For, ...]) -> str:
    over = ", ".join(f"{x.var} in {x.lower}..{x.upper}" for x in loops)
    return f", parallel over {over}" if loops else ""


def golden_text(name: str) -> str:
    text, sizes = PROGRAMS[name]
    scheduled = LoopFusion().schedule(fixed_graph_of(text, **sizes))
    kernels, decisions = form_kernels(scheduled, 2)
    copied, in_place = entry_copies(kernels)
    loops = "\n\n".join(
        f"{k.name}, function {n}{parallel_text(t.loops)}\n{format_block(t.block)}"
        for k in kernels.kernels
        for n, t in enumerate(lower(k).functions)
    )
    code = emit(kernels, copied=copied)
    source = code.source[code.source.index("#define PF_EXPORT") :]
    said = "\n".join(map(str, (*scheduled.decisions, *decisions, *in_place)))
    parts = {"decisions": said, "kernels": kernels, "loops": loops, "plan": code.plan, "C++": source}
    return "\n\n".join(f"=== {title}\n{part}" for title, part in parts.items())


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden(name: str, golden: Golden) -> None:
    golden(f"kernels/{name}.txt", golden_text(name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden_programs_compute_what_they_should(name: str) -> None:
    text, sizes = PROGRAMS[name]
    small = {n: max(3, min(v, 37) // 4) for n, v in sizes.items()}
    for given in (small, sizes):
        graph = fixed_graph_of(text, **given)
        kernels, _ = form_kernels(LoopFusion().schedule(graph), 2)
        assert_computes(graph, kernels, target="cpu")


def test_golden_text_does_not_depend_on_hashes() -> None:
    script = "import test_kernels as t; print(*(t.golden_text(n) for n in t.PROGRAMS), sep='\\n')"
    folder = Path(__file__).parent
    own = filter(None, [os.environ.get("PYTHONPATH")])  # where packages lie that are not installed
    known = [folder, folder.parents[1], folder.parents[1] / "helpers", *own]
    texts = []
    for seed in ("0", "1"):
        env = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(map(str, known)),
        }
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True
        )
        texts.append(done.stdout)
    assert texts[0] == texts[1] and len(texts[0]) > 10_000


def test_trees_hold_all_coordinates() -> None:
    graph = fixed_graph_of(PROGRAMS["layer_norm"][0], **PROGRAMS["layer_norm"][1])
    kernels, _ = kernels_of(graph)
    text = "\n".join(map(str, kernels.kernels))
    assert "@blk" in text and "@vec" in text
    assert all(isinstance(tree(k), Band) for k in kernels.kernels)
