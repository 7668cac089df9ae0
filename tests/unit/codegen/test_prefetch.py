"""The next row of a stitched kernel is fetched ahead where that pays, and never beyond the last row."""

from __future__ import annotations

import pytest
from equivalence import assert_computes, fixed_graph_of

from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.index_expr import IConst, evaluate
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.loop_ir import Block, For, If, Prefetch, format_block, map_nodes
from polyfuse.ir.target import CpuTarget
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping import memory_hints
from polyfuse.layers.mapping.kernels import form_kernels, separate_kernels
from polyfuse.layers.stitching.stitching import Stitching

SOFTMAX = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = max[h](x[t, h]); e[t, h] = exp(x[t, h] - m[t]); s[t] = sum[h](e[t, h]); y[t, h] = e[t, h] / s[t]
}"""
NORM = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = sum[h](x[t, h]); v[t] = sum[h]((x[t, h] - m[t]) ** 2); y[t, h] = (x[t, h] - m[t]) * v[t]
}"""
RESIDUAL = """op f(x: f32[T, H], r: f32[T, H]) -> (y: f32[T, H]) {
  s[t, h] = x[t, h] + r[t, h]; m[t] = sum[h](s[t, h]); v[t] = sum[h]((s[t, h] - m[t]) ** 2)
  y[t, h] = (s[t, h] - m[t]) * v[t]
}"""
HEADS = """op f(x: f32[B, T, H], g: f32[H], z: f32[T, B, H]) -> (y: f32[B, T, H]) {
  s[b, t] = sum[h](x[b, t, h] * z[t, b, h])
  y[b, t, h] = x[b, t, h] / s[b, t] * g[h]
}"""
LOSS = """op f(x: f32[T, H], k: i64[T]) -> (loss: f32) {
  m[t] = max[h](x[t, h]); s[t] = sum[h](exp(x[t, h] - m[t])); loss = sum[t](m[t] + log(s[t]) - x[t, k[t]])
}"""
SUMS = LOSS.replace("k: i64[T]", "c: f32").replace("x[t, k[t]]", "c")
HALVES = """op f(x: f32[T, 2*H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h]); y[t, h] = x[t, h] * x[t, h+H] / s[t] for h in 0..H
}"""


def made(text: str, **sizes: int) -> tuple[KernelGraph, list[Decision]]:
    kernels, decisions = form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2, Stitching())
    return kernels, [d for d in decisions if d.kind == "prefetch rows"]


def fetches(block: Block) -> list[str]:
    found: list[str] = []
    map_nodes(block, lambda n: found.append(format_block((n,))) or n if isinstance(n, Prefetch) else n)
    return found


def test_rows_of_some_kilobytes_are_fetched_ahead() -> None:
    kernels, (decision,) = made(NORM, T=4096, H=768)
    assert decision.taken and decision.subject == "x"
    (task,) = lower(kernels.kernels[0], CpuKnobs(skew=False)).functions
    assert format_block((task.body[-1],)).splitlines()[:5] == [
        "for c1_p in 0..3:",
        "  if (i64(c0 + 1) < i64(4096)):",
        "    for c0_l in c1_p*256..min(c1_p*256 + 256, 768) by 16:",
        "      fetch x[c0 + 1, c0_l]",
        "  for c1 in c1_p*256..min(c1_p*256 + 256, 768) @vec:",
    ]


def test_short_rows_are_fetched_as_one() -> None:
    kernels, (decision,) = made(NORM, T=8192, H=256)
    assert decision.taken
    (task,) = lower(kernels.kernels[0], CpuKnobs(skew=False)).functions
    (guard,) = (n for n in task.body if isinstance(n, If))
    assert format_block((guard,)).splitlines() == [
        "if (i64(c0 + 1) < i64(8192)):",
        "  for c0_l in 0..256 by 16:",
        "    fetch x[c0 + 1, c0_l]",
    ]
    assert task.body.index(guard) == len(task.body) - 2


def test_long_rows_are_fetched_in_pieces() -> None:
    """The last loop goes on in strips of whole vectors; the pieces together are the row, of any length."""
    kernels, _ = made(NORM.replace("y[t, h] = ", "y[t, h] = exp(x[t, h]) + "), T=512, H=30522)
    (task,) = lower(kernels.kernels[0]).functions
    pieces = task.body[-1]
    assert format_block((pieces,)).splitlines()[:5] == [
        "for c1_p in 0..60:",
        "  if (i64(c0 + 1) < i64(512)):",
        "    for c0_l in c1_p*512..min(c1_p*512 + 512, 30522) by 16:",
        "      fetch x[c0 + 1, c0_l]",
        "  for c1 in c1_p*512..min(c1_p*512 + 512, 30522) @vec:",
    ]


def test_rows_of_a_loop_inside_chunks() -> None:
    """Losses of rows are summed by chunks; what is read at a computed place is not asked."""
    kernels, (decision,) = made(LOSS, T=512, H=30522)
    assert decision.taken and decision.subject == "x"
    assert fetches(lower(kernels.kernels[0]).functions[0].body) == ["fetch x[c1 + 1, c1_l]"]


@pytest.mark.parametrize("width", [4096, 4097, 5000, 12345])
def test_pieces_cover_a_row(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FITTED, "prefetch_share_of_l1", 9)
    kernels, _ = made(HALVES, T=512, H=width)
    (task,) = lower(kernels.kernels[0]).functions
    loop = task.body[-1]
    assert isinstance(loop, For) and isinstance(loop.body[0], If) and isinstance(loop.body[1], For)
    assert isinstance(loop.upper, IConst)
    lines, last = loop.body[0].then[0], loop.body[1]
    assert isinstance(lines, For)
    for part, whole in ((lines, 2 * width), (last, width)):
        ends = [
            [evaluate(e, {loop.var: p}) for p in range(loop.upper.value)] for e in (part.lower, part.upper)
        ]
        assert ends[0] == [0, *ends[1][:-1]] and ends[1][-1] == whole


@pytest.mark.parametrize(
    ("rows", "width", "why"),
    [(65536, 96, "short"), (64, 768, "stay in L2"), (64, 1 << 20, "do not fit"), (512, 30522, "stay in L1")],
)
def test_other_rows_say_why_not(rows: int, width: int, why: str) -> None:
    kernels, (decision,) = made(NORM, T=rows, H=width)
    assert not decision.taken and why in decision.reason
    assert not any(b.ahead for k in kernels.kernels for b in k.buffers)


def test_rows_that_the_last_phase_does_not_read_are_not_fetched_ahead() -> None:
    """It has the exponentials."""
    kernels, (decision,) = made(SOFTMAX, T=4096, H=768)
    assert not decision.taken and "last phase reads x no more" in decision.reason
    assert not any(b.ahead for k in kernels.kernels for b in k.buffers)


@pytest.mark.parametrize(("rows", "taken"), [(1024, False), (4096, True), (16384, False)])
def test_rows_that_overlap_ask_for_what_the_last_phase_does_not_read(rows: int, taken: bool) -> None:
    """Where all are about as large as L3; in a loop that waits for no memory, never beyond the last row."""
    kernels, (decision,) = made(RESIDUAL, T=rows, H=768)
    assert decision.taken == taken
    (task,) = lower(kernels.kernels[0]).functions
    assert task.pipelined
    found = set(fetches(task.body))
    assert found == ({f"fetch {t}[min(c0 + 2, 4095), c0_l]" for t in "xr"} if taken else set())


def test_rows_in_order_are_not_asked_for_in_l3() -> None:
    """Each adds to the sums of all rows."""
    text = """op f(x: f32[T, H], g: f32[T, H]) -> (y: f32[T, H], c: f32[H]) {
      s[t] = sum[h](x[t, h] * g[t, h]); c[h] = sum[t](x[t, h] * g[t, h])
      y[t, h] = x[t, h] - s[t] * g[t, h]
    }"""
    for rows, taken in ((4096, False), (40960, True)):
        _, (decision,) = made(text, T=rows, H=768)
        assert decision.taken == taken
        assert taken or "stay in L3" in decision.reason


def test_what_is_read_for_a_value_that_is_kept_is_fetched() -> None:
    """Such reads are in declarations of scalars."""
    scheduled = LoopFusion().schedule(fixed_graph_of(RESIDUAL, T=4096, H=768))
    kernels, _ = separate_kernels(scheduled, CpuTarget(2), Stitching(), CpuKnobs(ahead=1))
    (task,) = lower(kernels.kernels[0], CpuKnobs(skew=False)).functions
    assert set(fetches(task.body)) == {"fetch r[c0 + 1, c0_l]", "fetch x[c0 + 1, c0_l]"}


def test_one_phase_has_nothing_to_overlap() -> None:
    _, decisions = made("op f(x: f32[T, H]) -> (s: f32[T]) { s[t] = sum[h](x[t, h]) }", T=4096, H=768)
    assert not decisions


def test_only_rows_of_the_innermost_loop_over_rows() -> None:
    """x[b, t, :] follows x[b, t - 1, :] in memory; z[t, b, :] does not, and g is always the same row."""
    kernels, (decision,) = made(HEADS, B=64, T=64, H=768)
    assert decision.subject == "x"
    assert {b.tensor for k in kernels.kernels for b in k.buffers if b.ahead} == {"x"}


@pytest.mark.thin(3)
@pytest.mark.parametrize("text", [NORM, HEADS, SUMS, HALVES])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 17), (2, 33, 400)])
@pytest.mark.parametrize("as_one", [0, 8192])
def test_results_stay_the_same(
    text: str, sizes: tuple[int, int, int], as_one: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FITTED, "prefetch_as_one_bytes", as_one)
    monkeypatch.setattr(FITTED, "prefetch_piece_bytes", 512)
    monkeypatch.setattr(FITTED, "prefetch_least_row_bytes", 1)
    monkeypatch.setattr(memory_hints, "tensor_bytes", lambda graph, tensor: 2**30)
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 1)
    known = {n: v for n, v in zip("BTH", sizes, strict=True) if f"{n}," in text or f"{n}]" in text}
    graph = fixed_graph_of(text, **known)
    kernels, _ = form_kernels(LoopFusion().schedule(graph), 2, Stitching(rows=1))
    if min(sizes) > 1 and (text != SUMS or sizes[1] > 30):
        assert any(fetches(task.body) for k in kernels.kernels for task in lower(k).functions)
    assert_computes(graph, kernels, target="cpu")


def test_a_first_step_beside_the_loops_over_rows() -> None:
    text = """op f(z: f32[B, T], w: f32[K]) -> (y: f32[B]) where K >= 1, T >= 1 {
      s[b, 0] = z[b, 0]
      m[b, t] = max[k](w[k] * s[b, t-1]) for b in 0..B, t in 1..T
      s[b, t] = z[b, t] + sum[k](exp(w[k] * s[b, t-1] - m[b, t])) for t in 1..T
      y[b] = s[b, T-1]
    }"""
    kernels, decisions = made(text, B=64, T=9, K=20)
    assert not decisions and all(not b.ahead for k in kernels.kernels for b in k.buffers)


def test_a_short_sum_of_another_tensor_is_a_phase() -> None:
    """Only one over the first elements of what another phase reads leaves the rest to that."""
    text = """op f(q: f32[T, K], x: f32[T, H]) -> (y: f32[T, H]) where H >= 1 {
      s[t] = sum[k](q[t, k] * q[t, k])
      z[t] = max[h](abs(x[t, h] * s[t]))
      y[t, h] = x[t, h] * rsqrt(z[t] + 1.0)
    }"""
    _, (decision,) = made(text, T=8192, K=64, H=512)
    assert "one pass makes all sums" not in decision.reason
