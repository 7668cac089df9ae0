"""Products of few rows and a large factor, which is read once, in order and in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from equivalence import cpu_source, fixed_graph_of
from product_programs import FORMS, product_call
from targets import check_everywhere
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs, dots_fit
from polyfuse.ir.index_expr import IConst, evaluate
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, Update, nodes_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import reads
from polyfuse.layers.contractions import contraction, tile_shapes
from polyfuse.layers.contractions.tile_shapes import (
    STREAMED_BYTES,
    STREAMED_STEPS,
    Extents,
    Sums,
    dot_shape,
    tile_shape,
)
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels

# Both factors lie along what is summed.
TURNED = (
    "right turned",
    "turned wide",
    "turned halves",
    "turned after",
    "turned over",
    "turned batch",
    "square",
)
# One row and one column, nothing to add, rows and columns that are left, less than a vector, several tiles.
SIZES = (
    {"M": 3, "N": 37, "K": 67},
    {"M": 1, "N": 9, "K": 1},
    {"M": 7, "N": 1, "K": 40},
    {"M": 13, "N": 22, "K": 3},
    {"M": 2, "N": 8, "K": 0},
)
CORES = (AVX2, Core(16, 32), Core(16, 8, units=1, latency=1, l2=1 << 10))
PLAIN = "op f(x: f32[M, K], w: f32[K, N]) -> (y: f32[M, N]) { y[m, n] = sum[k](x[m, k] * w[k, n]) }"
ALONG = (
    "op f(x: {0}[M, K], w: {0}[N, K]) -> (y: f32[M, N]) {{ y[m, n] = sum[k](f32(x[m, k]) * f32(w[n, k])) }}"
)


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products of any size have tiles, of shapes that no other test has chosen."""
    for name in ("FEWEST_PRODUCTS", "FEWEST_ROWS", "FEWEST_COLUMNS", "FEWEST_OVER"):
        monkeypatch.setattr(contraction, name, 1)
    tile_shape.cache_clear()
    yield
    tile_shape.cache_clear()


@pytest.mark.parametrize("size", thinned(range(len(SIZES)), 2))
def test_sums_along_memory_agree_with_the_reference(size: int) -> None:
    forms = TURNED if size == 0 else TURNED[size % 2 :: 2]
    check_everywhere([product_call(n, size, **SIZES[size]) for n in forms], interpret=size == 3)


@pytest.mark.parametrize("core", thinned(CORES, 3), ids=("avx2", "neon", "small"))
def test_sums_along_memory_on_other_cores(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuKnobs, "on", core)
    check_everywhere([product_call(n, M=5, N=21, K=70) for n in TURNED])


@pytest.mark.parametrize("forms", (("plain", "wide", "after"), ("batched", "two over", "part", "chain")))
def test_factors_that_memory_brings_agree_with_the_reference(
    forms: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_shapes, "STREAMED_FACTOR", 0)
    monkeypatch.setattr(tile_shapes, "PIECE_CYCLES", 1e6)
    call = product_call("plain", M=3, N=70, K=37)
    assert tile_shape(Extents(3, 70, 37, 1, 4), Core(), 2).streamed and call.sizes["K"] == 37
    check_everywhere([product_call(n, M=3, N=70, K=37) for n in forms])
    check_everywhere([product_call(n, M=1, N=9, K=16) for n in forms])


def test_not_a_number_stays_in_its_row_and_column() -> None:
    for form in ("right turned", "turned after", "turned halves"):
        call = product_call(form, M=5, N=23, K=70)
        for k, array in enumerate(call.inputs.values()):
            array.flat[array.size // 2] = (np.nan, np.inf, -np.inf)[k % 3]
        check_everywhere([call])


def test_memory_of_any_layout() -> None:
    """Rows far apart, elements apart, and arrays that begin anywhere."""
    f = pf.compile(ALONG.format("f32"), target="cpu", options=pf.Options(library="never"))
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((6, 301), dtype="f4"), rng.standard_normal((90, 301), dtype="f4")
    for a, b in ((x[::2, 1:], w[:, 1:]), (x[:3, ::3], w[::2, ::3]), (x[1:4, ::-1], w[:, ::-1])):
        assert np.abs(f(a, b) - a.astype("f8") @ b.astype("f8").T).max() < 1e-4


# --- traffic --------------------------------------------------------------------------------------------


def only_kernel(text: str, **sizes: int) -> Kernel:
    kernels, _ = form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2)
    (kernel,) = kernels.kernels
    return kernel


def loads(block: Block, tensor: str, at: dict[str, int]) -> int:
    """Elements of a tensor that loops load, each once for all sums of a loop."""
    found = 0
    for n in block:
        if isinstance(n, For):
            trip = range(evaluate(n.lower, at), evaluate(n.upper, at), n.step)
            if n.coordinate is Coordinate.VECTOR:
                terms = [r for u in n.body if isinstance(u, Update) for r in reads(u.value)]
                found += len(trip) * len({r.indices for r in terms if r.tensor == tensor})
            else:
                found += sum(loads(n.body, tensor, {**at, n.var: k}) for k in trip)
    return found


@pytest.mark.parametrize("rows", (2, 3, 4, 5))
@pytest.mark.parametrize("core", (Core(), AVX2), ids=("avx512", "avx2"))
def test_the_larger_factor_is_loaded_once(rows: int, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuKnobs, "on", core)
    kernel = only_kernel(ALONG.format("f32"), M=rows, K=512, N=240)
    assert not [b for b in kernel.buffers if b.tensor.endswith("tiles")], "nothing is turned around"
    (task,) = lower(kernel, CpuKnobs()).functions
    (pieces,) = task.loops
    assert loads((replace(pieces, body=task.body),), "w", {}) == 512 * 240
    assert task.jammed > rows, "several columns at a time"


@pytest.mark.parametrize("dtype", ("f32", "f16", "bf16"))
def test_all_sums_are_in_one_loop_of_few_lanes(dtype: str) -> None:
    (task,) = lower(only_kernel(ALONG.format(dtype), M=3, K=512, N=240), CpuKnobs()).functions
    found = [n for n in nodes_of(task.body) if isinstance(n, For) and n.lanes]
    assert len(found[0].lanes) == task.jammed == len(found[0].body)
    assert found[0].lane_bytes == Core().vector_bytes


def test_rows_one_by_one_where_that_is_wanted() -> None:
    kernel = only_kernel(ALONG.format("f32"), M=3, K=512, N=240)
    (task,) = lower(kernel, CpuKnobs(rows=1)).functions
    assert task.jammed == 1 and all(len(n.lanes) < 2 for n in nodes_of(task.body) if isinstance(n, For))


def test_shapes_of_sums_fit_the_registers() -> None:
    for core in (Core(), *CORES):
        for rows in (1, 2, 3, 5, 7, 8, 31):
            for itemsize, halves in ((4, False), (8, False), (4, True)):
                found = dot_shape(Sums(rows, 1000, 1, 512, itemsize, halves), core)
                one = found.rows == found.columns == 1
                assert one or dots_fit(found.rows, found.columns, core, itemsize, halves)
                assert found.rows <= rows
    assert dot_shape(Sums(3, 1024, 1, 4096, 4, False), AVX2).rows == 3, "no row is read twice"
    assert dot_shape(Sums(8, 1024, 1, 4096, 4, False), Core()).columns > 1


def test_few_rows_are_not_turned_around() -> None:
    many = Extents(512, 512, 512, 1, 4, copied=True, transposed=True, along=512)
    assert not tile_shape(many, Core(), 2).dots
    for rows in (2, 3, 8, 16):
        x = Extents(rows, 4096, 4096, 1, 4, copied=True, transposed=True, along=4096)
        assert tile_shape(x, AVX2, 2).dots and tile_shape(x, Core(), 2).dots, rows


def test_short_runs_along_memory_are_no_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a convolution, whose lanes would be added up after every few steps."""
    for core in (Core(), AVX2):
        x = Extents(16, 4096, 3 * 128, 1, 4, copied=True, transposed=True, along=3)
        assert not tile_shape(x, core, 2).dots
        assert tile_shape(replace(x, along=384), core, 2).dots
    monkeypatch.setattr(contraction, "FEWEST_COLUMNS", 8)
    for rows, steps, tiled in ((3, 31, False), (3, 32, True), (4, 31, True)):
        graph = fixed_graph_of(ALONG.format("f32"), M=rows, K=steps, N=4096)
        made = {s.name: contraction.contraction_of(graph, s) for s in graph.statements}
        assert any(made.values()) == tiled, (rows, steps)


def test_a_factor_that_memory_brings_is_read_in_long_pieces() -> None:
    for core in (Core(), AVX2):
        for rows in (2, 3, 4, 8):
            for threads in (1, 2, 8):
                shape = tile_shape(Extents(rows, 4096, 4096, 1, 4, crowded=True), core, threads)
                assert shape.streamed and shape.panel == STREAMED_STEPS, (core, rows)
                assert shape.across * shape.columns * 4 >= STREAMED_BYTES
                assert -(-4096 // (shape.across * shape.columns)) >= threads
    assert not tile_shape(Extents(3, 512, 512, 1, 4), Core(), 2).streamed, "it stays in the caches"
    assert not tile_shape(Extents(64, 4096, 4096, 1, 4), Core(), 2).streamed, "computing takes longer"


def test_panels_are_around_the_tiles_of_a_strip() -> None:
    (task,) = lower(only_kernel(PLAIN, M=3, K=4096, N=1024), CpuKnobs()).functions
    panels = [n for n in task.body if isinstance(n, For)][-1]
    assert panels.upper == IConst(4096 // STREAMED_STEPS)
    assert not any(b.tensor.endswith("tiles") for b in only_kernel(PLAIN, M=3, K=4096, N=1024).buffers)


def test_many_panels_lose_little() -> None:
    f = pf.compile(f"op f{FORMS['plain']}", target="cpu", options=pf.Options(library="never"))
    a, b = np.full((2, 60_000), 0.1, "f4"), np.ones((60_000, 64), "f4")
    assert np.abs(f(a, b) / (np.float64(a[0, 0]) * 60_000) - 1).max() < 2e-5


def test_many_sums_keep_their_factors_and_join_their_lanes_at_once() -> None:
    """How many loads that saves is gcc's: docs/lab/contractions.md."""
    text = "op f(x: f32[M, K], w: f32[N, K]) -> (y: f32[M, N]) { y[m, n] = sum[k](x[m, k] * w[n, k]) }"
    source = cpu_source(text, M=4, K=512, N=512)
    assert "PF_SUMS void pf_k0_0_body" in source and "pf_join_sum_f32(sums_p" in source
    rows = "op f(x: f32[M, K]) -> (y: f32[M]) { y[m] = sum[k](x[m, k]) }"
    assert "PF_SUMS void" not in cpu_source(rows, M=400, K=512)
