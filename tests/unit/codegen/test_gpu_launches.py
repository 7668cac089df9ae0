"""What is launched for rows of different numbers and lengths, read from the plan and the source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import prod

import numpy as np
import pytest
from equivalence import fixed_graph_of
from targets import DEVICES, Call, check_emulated
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cuda.emit import CudaCode, emit_cuda, emit_cuda_together
from polyfuse.codegen.cuda.functions import lower_device
from polyfuse.decisions import Decision
from polyfuse.diagnostics import ToolchainError
from polyfuse.driver.targets import chip, mapped_for
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import Kernel, KernelGraph
from polyfuse.ir.launch_plan import GridLaunch
from polyfuse.ir.loop_ir import Barrier, Block, For, If, Node
from polyfuse.ir.target import GpuTarget
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.gpu import row_shape
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options
from polyfuse.poly.barriers.proof import Unsafe, check_barriers
from polyfuse.runtime.cuda.compiler import compile_cuda, find_cuda_compiler

SUMS = "op f(x: f32[T, H]) -> (s: f32[T]) { s[t] = sum[h](x[t, h]) }"
SOFTMAX = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t] = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}"""
LAYER_NORM = """op f(x: f32[T, H], g: f32[H], b: f32[H]) -> (y: f32[T, H]) {
  mu[t] = sum[h](x[t, h]) / f32(H)
  v[t] = sum[h]((x[t, h] - mu[t]) ** 2) / f32(H)
  y[t, h] = (x[t, h] - mu[t]) * rsqrt(v[t] + 1e-5) * g[h] + b[h]
}"""
# Threads of a row read what others of it wrote: the block waits.
MIRRORED = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h])
  e[t, h] = exp(x[t, h] - abs(s[t]) - 3.0)
  y[t, h] = e[t, h] - 0.5 * e[t, H - 1 - h]
}"""
COLUMNS = "op f(x: f32[T, H]) -> (s: f32[H]) { s[h] = sum[t](x[t, h]) }"
OPERATORS = {"sums": SUMS, "softmax": SOFTMAX, "layer norm": LAYER_NORM}
STITCHED = ("softmax", "layer norm")
GPUS = ("H200", "V100")
Made = tuple[KernelGraph, CudaCode, list[Decision]]

each_gpu = pytest.mark.parametrize("gpu", GPUS)
each_operator = pytest.mark.parametrize("name", OPERATORS)
one_by_one = pytest.mark.parametrize("vector", (None, 1))


def target_of(gpu: str, vector: int | None = None) -> GpuTarget:
    found = mapped_for("emulate", Options(device=gpu))
    assert isinstance(found, GpuTarget)
    return replace(found, vector=vector)


USUAL, ANY_ROWS = Stitching(), Stitching(rows=1)


def formed(
    text: str, target: GpuTarget, rows: int, length: int, stitching: Stitching | None = USUAL
) -> tuple[KernelGraph, list[Decision]]:
    scheduled = LoopFusion().schedule(fixed_graph_of(text, T=rows, H=length))
    kernels, decisions = form_kernels(scheduled, target, stitching)
    return kernels, list(decisions)


def made(text: str, target: GpuTarget, rows: int, length: int, stitching: Stitching | None = USUAL) -> Made:
    kernels, decisions = formed(text, target, rows, length, stitching)
    return kernels, emit_cuda(Request(kernels)), decisions


def blocks_of(launch: GridLaunch) -> int:
    return evaluate(launch.blocks, {})


def has_compiler() -> bool:
    try:
        find_cuda_compiler()
    except ToolchainError:
        return False
    return True


# --- many short rows ------------------------------------------------------------------------------------


@each_gpu
@each_operator
@one_by_one
def test_short_rows_are_packed(gpu: str, name: str, vector: int | None) -> None:
    """<750000, 32>: rows share a block until it is large enough; if asked to, blocks take them in turn."""
    (launch,) = made(OPERATORS[name], target_of(gpu, vector), 750_000, 32)[1].plan.launches
    assert blocks_of(launch) == -(-750_000 // launch.threads[1]), "a block for each group"
    target = replace(target_of(gpu, vector), resident=True)
    (kernel,), code, decisions = _only(made(OPERATORS[name], target, 750_000, 32))
    (launch,) = code.plan.launches
    x, y = launch.threads
    width = vector or 4
    assert x * width == 32, "each thread of a row has a vector of it"
    assert y == 32 and x * y >= 256 and x * y % 32 == 0, "32 rows a step, all lanes busy"
    if vector == 1:
        assert launch.threads == (32, 32), "AStitch's blocks of 1024 threads"
    groups = -(-750_000 // y)
    assert blocks_of(launch) == target.sms * kernel.per_sm < groups, "one wave"
    assert not launch.cooperative and launch.shared_bytes == 0
    assert f"block < {groups}; block += gridDim.x" in code.source
    assert f"__launch_bounds__({x * y}, {kernel.per_sm}) {launch.function}(" in code.source
    (why,) = [d for d in decisions if d.kind == "persistent blocks"]
    assert why.taken and f"{blocks_of(launch)} blocks" in why.reason and f"{groups} groups" in why.reason


@pytest.mark.skipif(not has_compiler(), reason="neither NVRTC nor nvcc is here")
@pytest.mark.parametrize("gpu", [pytest.param(g, marks=[pytest.mark.slow] * (g != "H200")) for g in GPUS])
def test_one_wave_is_one(gpu: str) -> None:
    """The compiler keeps what the launch bounds promise, without spilling: all blocks are resident."""
    dtypes = ("f32", "f16", "f64") if gpu == "H200" else ("f32",)
    texts = [t.replace("f32", d) for t in (*OPERATORS.values(), MIRRORED) for d in dtypes]
    target = replace(target_of(gpu), resident=True)
    graphs = [formed(t, target, 400_000, h, ANY_ROWS)[0] for t in texts for h in (32, 31, 100)]
    in_turn = [g for g in graphs if any(k.resident for k in g.kernels)]
    assert len(in_turn) >= 8 * len(dtypes)
    codes = emit_cuda_together([Request(g) for g in in_turn])
    taken = compile_cuda(codes[0].source, chip(Options(device=gpu)).arch, timeout_s=100).resources
    for g, code in zip(in_turn, codes, strict=True):
        for kernel, launch in zip(g.kernels, code.plan.launches, strict=True):
            found = taken[launch.function]
            assert max(found.spill_stores, found.spill_loads, found.stack) == 0, g
            assert found.registers * prod(launch.threads) * kernel.per_sm <= 65536


@each_gpu
def test_few_short_rows_keep_a_block_for_each_group(gpu: str) -> None:
    """Blocks of 128 threads; the device holds all of them at once, whatever is asked for."""
    target = replace(target_of(gpu), resident=True)
    (kernel,), code, decisions = _only(made(SOFTMAX, target, 4096, 32))
    (launch,) = code.plan.launches
    assert (blocks_of(launch), launch.threads, kernel.resident) == (256, (8, 16), 0)
    assert "gridDim.x; " not in code.source and not [d for d in decisions if d.kind == "persistent blocks"]


@each_gpu
def test_large_blocks_do_not_take_rows_from_other_multiprocessors(gpu: str) -> None:
    """32 rows a block only where there are two such blocks for each multiprocessor."""
    target = target_of(gpu, 1)
    few, many = target.sms * 64 - 1, target.sms * 64
    for rows, together in ((few, 4), (many, 32)):
        (launch,) = made(SUMS, target, rows, 32)[1].plan.launches
        assert launch.threads == (32, together)


# --- few long rows --------------------------------------------------------------------------------------


@each_gpu
@one_by_one
@pytest.mark.parametrize("rows,length", ((64, 30_000), (8, 1 << 20)))
def test_long_rows_are_split(gpu: str, vector: int | None, rows: int, length: int) -> None:
    """A reduction of few rows is split over blocks: the device is full."""
    target = target_of(gpu, vector)
    _, code, decisions = made(SUMS, target, rows, length)
    assert any(d.kind == "rfactor" and d.taken for d in decisions)
    assert max(map(blocks_of, code.plan.launches)) >= target.sms


@each_gpu
@pytest.mark.parametrize("name", STITCHED)
def test_stitched_rows_may_leave_multiprocessors_idle(gpu: str, name: str) -> None:
    """<64, 30000> in three phases: a block for each row.

    The model has the H200 lose 2 us to its idle multiprocessors, and win 13 us: the row stays in registers,
    and launches go away (the figures are in docs/explanation/stitching.md).  Kernels of their own split the
    rows.
    """
    target = target_of(gpu)
    _, code, decisions = made(OPERATORS[name], target, 64, 30_000)
    (launch,) = code.plan.launches
    assert blocks_of(launch) == 64 and prod(launch.threads) == 960
    assert all(d.taken for d in decisions if d.kind == "stitch")
    apart = made(OPERATORS[name], target, 64, 30_000, None)[1].plan.launches
    assert len(apart) > 1 and max(map(blocks_of, apart)) >= target.sms


@each_gpu
@pytest.mark.parametrize("name", STITCHED)
def test_long_rows_fill_the_device_if_asked_to(gpu: str, name: str) -> None:
    """<64, 30000>, a row for each multiprocessor asked for: chunks of rows over all blocks, in one launch."""
    target = target_of(gpu)
    _, code, decisions = made(OPERATORS[name], target, 64, 30_000, Stitching(rows=target.sms))
    (launch,) = code.plan.launches
    assert launch.cooperative and blocks_of(launch) >= target.sms
    assert any(d.kind == "rfactor" and d.taken for d in decisions)
    (why,) = {d.reason.split(":")[0] for d in decisions if d.kind == "stitch" and not d.taken}
    assert why == f"only 64 iterations of t would run in parallel, not the {target.sms} asked for"


@each_gpu
@pytest.mark.parametrize("name", STITCHED)
def test_very_long_rows_are_not_stitched(gpu: str, name: str) -> None:
    """<8, 1048576>: 8 blocks would leave the device idle for longer than all else takes; one launch with
    barriers of the grid fills it.  Told that 8 rows are enough, layer II makes 8 blocks."""
    target = target_of(gpu)
    _, code, decisions = made(OPERATORS[name], target, 8, 1 << 20)
    (launch,) = code.plan.launches
    assert launch.cooperative and blocks_of(launch) * prod(launch.threads) == target.sms * 1024
    assert not any(d.taken for d in decisions if d.kind == "stitch")
    (forced,) = made(OPERATORS[name], target, 8, 1 << 20, ANY_ROWS)[1].plan.launches
    assert blocks_of(forced) == 8 and prod(forced.threads) == 1024


# --- sums of columns ------------------------------------------------------------------------------------


@each_gpu
@pytest.mark.parametrize("rows,columns", ((65536, 4096), (16384, 1024)))
def test_columns_are_split_for_threads_with_vectors(gpu: str, rows: int, columns: int) -> None:
    """A thread adds up a vector of columns: there are as many more chunks, and about two blocks for
    each multiprocessor all the same."""
    target = target_of(gpu)
    kernels, decisions = formed(COLUMNS, target, rows, columns, None)
    first = kernels.kernels[0]
    assert first.vector == 4
    (why,) = [d for d in decisions if d.kind == "rfactor"]
    chunks = int(why.reason.split("over ")[1].split()[0])
    blocks = chunks * columns // (prod(first.threads) * first.vector)
    assert 1.9 * target.sms <= blocks <= 2 * target.sms + columns // 1024, why


def test_chunks_of_columns_are_long_enough_for_their_partial_results() -> None:
    """The parts are a sixteenth of the input at most."""
    _, decisions = formed(COLUMNS, target_of("H200"), 1030, 1024, None)
    (why,) = [d for d in decisions if d.kind == "rfactor"]
    assert int(why.reason.split("chunks of ")[1].split()[0]) == 16


# --- what is computed -----------------------------------------------------------------------------------

# At most 2 x 2 blocks of 32 threads, and at most 3 of 64: every block takes several groups of rows.
IN_TURN = {
    "of 32 threads": GpuTarget(sms=2, threads=32, longest=64, resident_threads=64, resident=True),
    "one element each": GpuTarget(
        sms=3, threads=64, longest=64, vector=1, resident_threads=64, resident=True
    ),
}


@pytest.mark.parametrize("device", thinned(IN_TURN, 2))
def test_blocks_that_take_rows_in_turn_compute_what_they_should(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEVICES, device, IN_TURN[device])
    calls = [
        call_of(text, rows, length)
        for text in (*OPERATORS.values(), COLUMNS, MIRRORED)
        for rows, length in ((97, 20), (67, 31), (64, 16), (0, 16), (300, 3))
    ]
    in_turn = sum(
        k.resident > 0 for c in calls for k in c.device_request(IN_TURN[device], True, True).kernels.kernels
    )
    assert in_turn >= 8
    check_emulated(calls, devices=(device,), stitched=(False, True))


def test_rows_that_do_not_fill_their_blocks_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """97 rows, 8 or more to a block: threads without a row come to the barriers of the others."""
    target = GpuTarget(sms=4)
    _, code, _ = _only(made(MIRRORED, target, 97, 20, ANY_ROWS))
    (launch,) = code.plan.launches
    assert launch.threads[1] > 1 and 97 % launch.threads[1] and launch.shared_bytes
    body = code.source[code.source.index(f" {launch.function}(") :]
    assert re.search(r"^  __syncthreads\(\);", body, re.MULTILINE), "no condition is around the barrier"
    monkeypatch.setitem(DEVICES, "whole", target)
    check_emulated(
        [call_of(MIRRORED, 97, 20), call_of(MIRRORED, 1, 17)], devices=("whole",), stitched=(True,)
    )


@pytest.mark.parametrize("rows", (97, 96))
@pytest.mark.parametrize("device", IN_TURN)
def test_every_barrier_of_blocks_in_turn_is_needed(device: str, rows: int) -> None:
    """One more than within a row: the next rows must not overwrite what a slow thread has still to read."""
    kernels, _, _ = made(MIRRORED, IN_TURN[device], rows, 20, ANY_ROWS)
    (kernel,) = kernels.kernels
    (task,) = lower_device(kernel)
    assert task.resident == kernel.resident > 0 and not task.loops
    barriers = _barriers(task.body)
    assert len(barriers) == 2 and any("earlier iteration" in b.reason for b in barriers)
    for k in range(len(barriers)):
        mutant = _without(task.body, count(-k))
        assert isinstance(check_barriers(task.kernel, mutant, task.resident), Unsafe)


def call_of(text: str, rows: int, length: int) -> Call:
    graph = instantiate(parse_text(text), "f")
    sizes = {"T": rows, "H": length}
    rng = np.random.default_rng(rows * 1000 + length)
    inputs = {
        t.name: rng.standard_normal([evaluate(e, sizes) for e in t.shape]).astype(t.dtype.numpy)
        for t in graph.tensors
        if t.name in graph.inputs
    }
    if rows > 60:  # what is not a number stays in its row
        x = inputs["x"]
        x[1, 0], x[3, -1], x[rows // 2, 1], x[rows - 1, 2] = np.nan, np.inf, -np.inf, np.nan
    return Call(f"{rows} x {length}", text, graph, sizes, inputs)


def _only(found: Made) -> tuple[tuple[Kernel, ...], CudaCode, list[Decision]]:
    kernels, code, decisions = found
    assert len(kernels.kernels) == 1
    return kernels.kernels, code, decisions


def _nodes(block: Block) -> Iterator[Node]:
    for node in block:
        yield node
        match node:
            case For(body=body):
                yield from _nodes(body)
            case If(_, then, other):
                yield from _nodes((*then, *other))


def _barriers(block: Block) -> list[Barrier]:
    return [n for n in _nodes(block) if isinstance(n, Barrier)]


def _without(block: Block, number: Iterator[int]) -> Block:
    """The block less the barrier at which the count is 0."""
    result: list[Node] = []
    for node in block:
        match node:
            case Barrier():
                if next(number) == 0:
                    continue
            case For():
                node = replace(node, body=_without(node.body, number))
            case If():
                then = _without(node.then, number)
                node = replace(node, then=then, other=_without(node.other, number))
        result.append(node)
    return tuple(result)


def test_indices_are_as_wide_as_they_must_be() -> None:
    for rows, word in ((65536, "int block = blockIdx.x"), (4_000_000, "pf_i64 block = blockIdx.x")):
        kernels = pf.parse(SOFTMAX).op().specialize(T=rows, H=1024).schedule().lower(target="cuda")
        assert word in kernels.code().source


@pytest.mark.parametrize(
    ("lanes", "rows", "shape"),
    [(4, 65536, (4, 32)), (256, 65536, (32, 4)), (256, 16, (128, 1))],
)
def test_short_rows_share_a_warp_and_few_rows_have_a_block_each(
    lanes: int, rows: int, shape: tuple[int, int]
) -> None:
    assert row_shape(lanes, 4, rows, GpuTarget()) == shape
