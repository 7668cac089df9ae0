"""Rows that overlap: the same numbers, in all kinds of nests; what stays as it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from equivalence import Array, fixed_graph_of, results_of, run_on, seeded_inputs

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.codegen.cpu.pipeline import LoweredKernel, lower
from polyfuse.codegen.function import is_iteration
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, CpuKnobs, overlap_room, skew_room
from polyfuse.ir.kernel import KernelGraph, Scope
from polyfuse.ir.loop_ir import Block, If, Prefetch, nodes_of
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

NORM = """op f(x: f32[T, H], g: f32[H]) -> (y: f32[T, H]) {
  m[t] = sum[h](x[t, h]) / H
  v[t] = sum[h]((x[t, h] - m[t]) ** 2) / H
  y[t, h] = (x[t, h] - m[t]) * rsqrt(v[t] + 1e-5) * g[h]
}"""
RESIDUAL = """op f(x: f32[T, H], r: f32[T, H], g: f32[H]) -> (y: f32[T, H], m: f32[T]) {
  z[t, h] = x[t, h] + r[t, h]
  m[t] = max[h](z[t, h])
  v[t] = sum[h](abs(z[t, h] - m[t]))
  y[t, h] = (z[t, h] - m[t]) * v[t] * g[h]
}"""
HEADS = """op f(x: f32[B, T, H], k: f32[B, H]) -> (y: f32[B, T, H]) {
  s[b, t] = sum[h](x[b, t, h] * k[b, h])
  q[b, t] = s[b, t] * s[b, t]
  y[b, t, h] = x[b, t, h] * q[b, t] + s[b, t]
}"""
GATHERED = """op f(w: f32[V, H], i: i64[T]) -> (y: f32[T, H]) {
  m[t] = sum[h](w[i[t], h]) / H
  y[t, h] = w[i[t], h] - m[t]
}"""
SOFTMAX = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  d[t] = sum[h](e[t, h])
  y[t, h] = e[t, h] / d[t]
}"""
HALVES = RESIDUAL.replace("f32", "bf16").replace(", m: bf16[T]", "")
TEXTS = {
    "norm": NORM,
    "residual": RESIDUAL,
    "heads": HEADS,
    "gathered": GATHERED,
    "softmax": SOFTMAX,
    "halves": HALVES,
}


def made(text: str, **sizes: int) -> KernelGraph:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2, Stitching(rows=1))[0]


def lowered(text: str, skew: bool | None = None, **sizes: int) -> LoweredKernel:
    (kernel,) = made(text, **sizes).kernels
    return lower(kernel, CpuKnobs(rows=1, skew=skew))


@dataclass(frozen=True)
class Parts:
    """What is carried from one iteration to the next, and an iteration around the part of the next one."""

    carried: Block
    start: Block
    ahead: Block
    last: Block


def skew_of(low: LoweredKernel) -> Parts | None:
    (f,) = low.functions
    if not f.pipelined:
        return None
    (at,) = (k for k, n in enumerate(f.body) if is_iteration(n))
    ahead = f.body[at]
    assert isinstance(ahead, If)
    return Parts(f.before[:-1], f.body[:at], ahead.then[1:], f.body[at + 1 :])


def sizes_of(text: str, rows: int, columns: int) -> dict[str, int]:
    sizes = {"T": rows, "H": columns}
    return sizes | ({"B": 3} if "B, T" in text else {}) | ({"V": 5} if "[V" in text else {})


def results(
    kernels: KernelGraph, skew: bool, inputs: dict[str, Array], single: bool = False
) -> list[dict[str, Array]]:
    """With memory of the operator's own layout, and any strides. After a single row there is no next one,
    and its loops are spread over workers."""
    knobs = CpuKnobs(rows=1, skew=skew)
    found = []
    for code in emit_together(
        [Request(kernels, strided=names, knobs=knobs) for names in (frozenset[str](), frozenset(inputs))]
    ):
        parallel = code.source.count("const pf_i64 begin,\n")
        assert code.source.count("if (it + 1 < end)") == (parallel if skew and not single else 0)
        found.append(run_on(CpuExecutable(code, {}), kernels.graph, inputs))
    return found


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        pytest.param(rows, columns, marks=[pytest.mark.slow] * ((rows, columns) not in ((1, 65), (17, 257))))
        for rows in (1, 2, 3, 17)
        for columns in (64, 65, 100, 257)
    ],
)
@pytest.mark.parametrize("name", TEXTS)
def test_the_same_bits(name: str, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FITTED, "mapping_smallest_parallel", 1)
    kernels = made(TEXTS[name], **sizes_of(TEXTS[name], rows, columns))
    inputs = seeded_inputs(kernels.graph, 7)
    if "x" in inputs and rows > 2:
        inputs["x"].flat[[0, columns, -1]] = np.nan, np.inf, -np.inf
    single = rows == 1 and "B, T" not in TEXTS[name]
    found = [x for skew in (False, True) for x in results(kernels, skew, inputs, single)]
    wanted = evaluate(kernels.graph, {}, inputs)
    for t in results_of(kernels.graph):
        for other in found[1:]:
            a, b = (x[t.name].astype(np.float64) for x in (found[0], other))
            np.testing.assert_array_equal(a, b)
        outcome = agrees(found[0][t.name], wanted[t.name], t.dtype)
        assert outcome, outcome.message


def test_what_follows_from_the_first_phase_goes_with_it() -> None:
    skew = skew_of(lowered(NORM, T=4096, H=768))
    assert skew is not None
    text = " ".join(map(str, skew.ahead))
    assert "%row1_acc" in text and "768" in text and len(skew.carried) == 2  # the sum, and the mean


def test_rows_of_arrays_have_room_for_two() -> None:
    for skew, room in ((None, 2), (False, 1)):
        low = lowered(RESIDUAL, skew, T=4096, H=768)
        (array,) = (b for b in low.kernel.buffers if b.scope is Scope.LOCAL)
        assert str(array.extents[0]) == str(room)


ROOT = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h] * x[t, h]); y[t, h] = x[t, h] * rsqrt(s[t])
}"""


def asked(block: Block) -> set[str]:
    """The rows whose lines are asked for."""
    return {str(n.indices[0]) for n in nodes_of(block) if isinstance(n, Prefetch)}


def test_rows_that_are_asked_for_are_later_ones() -> None:
    """Those after the next: by a loop that is between those of two rows, or by the last one."""
    (plain,) = lowered(NORM, False, T=40960, H=768).functions
    assert asked(plain.body) == {"c0 + 1"}
    skew = skew_of(lowered(NORM, T=40960, H=768))
    assert skew is not None
    assert asked(skew.start) == {"min(c0 + 2, 40959)"} and not asked((*skew.ahead, *skew.last))
    longest = overlap_room(Core()) // 4
    skew = skew_of(lowered(NORM, T=40960, H=longest))
    assert skew is not None and asked(skew.start) and not asked(skew.last)
    skew = skew_of(lowered(NORM, T=40960, H=longest + 1))
    assert skew is not None and asked(skew.last) == {"c0 + 2"} and not asked(skew.start), "L1 has no room"
    skew = skew_of(lowered(ROOT, T=40960, H=768))
    assert skew is not None
    assert asked(skew.last) == {"c0 + 2"} and not asked((*skew.start, *skew.ahead))


def test_room_for_three_rows_is_that_of_the_core_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 5 kB fit an eighth of 48 kB, not of 32, two rows of 6 kB and one of results half of it."""
    monkeypatch.setattr(CpuKnobs, "on", Core(l1=32 << 10))
    skew = skew_of(lowered(NORM, T=40960, H=1280))
    assert skew is not None and asked(skew.last) and not asked(skew.start)
    assert skew_of(lowered(NORM, T=40960, H=1536)) is None
    monkeypatch.setattr(CpuKnobs, "on", Core(l1=48 << 10))
    for columns in (1280, 1536):
        skew = skew_of(lowered(NORM, T=40960, H=columns))
        assert skew is not None and asked(skew.start) and not asked(skew.last)


def test_where_it_pays() -> None:
    assert skew_of(lowered(NORM, T=4096, H=768)) is not None
    assert skew_of(lowered(SOFTMAX, T=4096, H=768)) is None, "exp takes longer than what it waits for"
    assert skew_of(lowered(SOFTMAX, True, T=4096, H=768)) is not None
    longest = skew_room(Core()) // 12
    assert skew_of(lowered(NORM, T=4096, H=longest)) is not None
    assert skew_of(lowered(NORM, T=4096, H=longest + 1)) is None, "two rows shall stay in L1"
    assert skew_of(lowered(NORM, T=4096, H=32)) is None, "less than a step of lanes"
    one = "op f(x: f32[T, H]) -> (s: f32[T]) { s[t] = sum[h](x[t, h]) }"
    assert skew_of(lowered(one, True, T=4096, H=768)) is None, "one phase"


def test_rows_that_are_read_once_need_no_room_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 32 kB of L1, two inputs of 3 kB whose sum is kept fit, one of 6 kB that is read again does not."""
    monkeypatch.setattr(CpuKnobs, "on", Core(l1=32 << 10))
    skew = skew_of(lowered(RESIDUAL, T=40960, H=768))
    assert skew is not None
    assert not asked((*skew.start, *skew.ahead, *skew.last)), "there is no room for lines besides"
    assert skew_of(lowered(NORM, T=40960, H=1536)) is None
    assert skew_of(lowered(RESIDUAL, T=40960, H=1024)) is None, "20 kB of 32, and what all rows read"
    monkeypatch.setattr(CpuKnobs, "on", Core(l1=48 << 10))
    assert skew_of(lowered(RESIDUAL, T=40960, H=1024)) is not None
    assert skew_of(lowered(RESIDUAL, T=40960, H=1025)) is None, "more than 8 kB are read of a row"


def test_short_rows_take_turns_instead() -> None:
    (kernel,) = made(NORM, T=4096, H=100).kernels
    (task,) = lower(kernel).functions
    assert task.batches and not task.pipelined
