"""Contractions in tiles of registers: which they are, and what they compute."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from equivalence import fixed_graph_of
from product_programs import FORMS, product_call, product_graph
from targets import check_everywhere
from thinned import thinned

import polyfuse as pf
from polyfuse.driver.lowering import schedule
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs
from polyfuse.ir.kernel import Scope
from polyfuse.layers.contractions import contraction, cpu_tiles, tile_shapes
from polyfuse.layers.contractions.tile_shapes import Extents, tile_shape
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.graph.reindex import factor_rows
from polyfuse.layers.mapping.kernels import form_kernels

# Odd sizes, tiles that fit, one row or column, more than a panel, less than a vector, several tiles of rows.
SHAPES = (
    {},
    {"M": 12, "N": 32, "K": 16},
    {"M": 1, "N": 17, "K": 1},
    {"M": 7, "N": 1, "K": 300},
    {"M": 61, "N": 3, "K": 3},
    {"M": 33, "N": 37, "K": 5},
)
FEW = ("plain", "wide", "two over", "after", "chain", "convolution", "plane", "distances")
SMALLEST = ("FEWEST_PRODUCTS", "FEWEST_ROWS", "FEWEST_COLUMNS", "FEWEST_OVER", "FEWEST_DISTANCES")


@pytest.fixture(autouse=True)
def no_shapes() -> Iterator[None]:
    """Shapes that were chosen with other constants."""
    tile_shape.cache_clear()
    yield
    tile_shape.cache_clear()


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SMALLEST:
        monkeypatch.setattr(contraction, name, 1)


@pytest.mark.parametrize("shape", thinned(range(len(SHAPES)), 3))
def test_tiles_agree_with_the_reference(shape: int, every_size: None) -> None:
    check_everywhere([product_call(n, shape, **SHAPES[shape]) for n in FEW], interpret=shape == 2)


@pytest.mark.parametrize("part", thinned(range(3), 3))
def test_all_forms_agree_with_the_reference(part: int, every_size: None) -> None:
    forms = [n for n in FORMS if n not in FEW][part::3]
    check_everywhere([product_call(n, 0, **SHAPES[0]) for n in forms])


def test_nothing_to_compute(every_size: None) -> None:
    check_everywhere([product_call(n, **{empty: 0}) for n in FEW for empty in product_graph(n).sizes])


def test_panels_of_what_is_summed(every_size: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In panels whose tiles go back to memory."""
    for name in ("TILE_PART", "COPY_PART"):
        monkeypatch.setattr(tile_shapes, name, 1 << 12)
    check_everywhere([product_call(n, K=11, M=40, N=37) for n in FEW])


@pytest.mark.machine("zen5")
def test_a_factor_that_panels_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker copies it in the first panel of a dim that is summed and that it does not depend on."""
    monkeypatch.setattr(CpuKnobs, "on", AVX2)
    call = product_call("three", K=64, Q=64, M=60, N=60)
    f = pf.compile(f"op f{FORMS['three']}", target="cpu")
    a, b, d = call.inputs.values()
    assert np.abs(f(a, b, d) - a.astype("f8") @ b.astype("f8") @ d.astype("f8")).max() < 1e-3
    assert "__n_tiles" in f.built(a, b, d).code.source


@pytest.mark.parametrize(("part", "fewest"), thinned([(1 << 12, 1), (4, 1000)], 2, several=True))
def test_panels_of_few_steps(
    part: int, fewest: int, every_size: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts that an accumulator takes, with rows in groups."""
    monkeypatch.setattr(cpu_tiles, "MOST_STEPS", 2)
    monkeypatch.setattr(tile_shapes, "KEPT_PART", 1 << 14)
    for name, value in (("TILE_PART", part), ("COPY_PART", part), ("FEWEST_NEAR", fewest)):
        monkeypatch.setattr(tile_shapes, name, value)
    tile_shape.cache_clear()
    forms = ("after", "right turned", "batched", "from before zero")
    check_everywhere([product_call(n, K=11, M=40, N=70) for n in forms])


@pytest.mark.parametrize(("columns", "widest"), [(8, 32), (16, 64)])
def test_rows_of_tiles_are_in_the_widest_vectors_that_fill_them(
    columns: int, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 floats are one vector of 32 bytes also where a processor has longer ones."""
    monkeypatch.setattr(CpuKnobs, "on", AVX2 if columns < 16 else Core())
    text = "op f(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }"
    f = pf.compile(text, target="cpu", options=pf.Options(library="never"))
    a, b = np.ones((400, 64), "f4"), np.ones((64, columns), "f4")
    source = f.built(a, b).code.source
    assert f"tile0_bytes = {widest} < PF_VECTOR ? {widest} : PF_VECTOR" in source and (f(a, b) == 64).all()


def test_many_terms_are_summed_in_parts() -> None:
    """As many as one accumulator takes lose no more than pairs of sums do."""
    f = pf.compile(f"op f{FORMS['plain']}", target="cpu", options=pf.Options(library="never"))
    a, b = np.full((4, 20_000), 0.1, "f4"), np.ones((20_000, 8), "f4")
    found = f(a, b)
    assert np.abs(found / (np.float64(a[0, 0]) * 20_000) - 1).max() < 4e-6


# Vectors of 32 and 16 bytes, and too little of everything.
CORES = (replace(AVX2, l2=1 << 18), Core(16, 32), Core(16, 8, units=1, latency=1, l2=1 << 10))


@pytest.mark.parametrize("core", thinned(CORES, 3), ids=("avx2", "neon", "small"))
def test_tiles_of_other_cores(core: Core, every_size: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuKnobs, "on", core)
    check_everywhere([product_call(n, N=53) for n in (*FEW, "right turned", "left turned", "batched")])


def test_shapes_fit_the_registers_and_leave_little_idle() -> None:
    for core in (Core(), *CORES):
        for rows, columns, steps, itemsize in product(
            (4, 8, 17, 128, 1000), (8, 100, 3072), (9, 768), (4, 8)
        ):
            x = Extents(rows, columns, steps, 1, itemsize)
            shape = tile_shape(x, core, 2)
            vectors = -(-shape.columns * itemsize // core.vector_bytes)
            assert (shape.rows + 1) * vectors + 1 <= core.registers
            assert shape.rows <= rows and shape.group * shape.rows < rows + shape.group * shape.rows
    best = tile_shape(Extents(1024, 3072, 768, 1, 4), Core(), 2)
    assert best.rows * best.columns >= 24 * 16, "accumulators hide the latency and spare loads"
    assert tile_shape(Extents(1024, 3072, 768, 1, 4), CORES[0], 2).columns == 16


def test_short_vectors_wait_for_rows_that_lie_apart() -> None:
    """A step of a tile of 12 vectors takes 6 cycles, less than to come to another page of the factor."""
    for rows in (32, 64, 128, 200):
        x = Extents(rows, 768, 768, 1, 4)
        shape, wide = tile_shape(x, AVX2, 2), tile_shape(x, Core(), 2)
        assert (shape.rows, shape.columns) == (6, 16), "two lines of each row take as long as computing"
        assert shape.group >= shape.fewest_near, "the worker of a block copies its columns"
        assert wide.group < wide.fewest_near or rows > 128
    crowded = tile_shape(Extents(128, 2048, 768, 1, 4, crowded=True), AVX2, 2)
    assert crowded.fewest_near == tile_shapes.FEWEST_CROWDED


def test_rows_that_share_sets_of_l1_are_few() -> None:
    """More than ways of a set, and a line leaves L1 before the tile has read all of its elements."""
    for core in (AVX2, Core()):
        assert tile_shape(Extents(64, 20, 1024, 1, 4, apart=4096), core, 2).rows <= tile_shapes.MOST_IN_SET
        apart = tile_shape(Extents(64, 20, 1000, 1, 4, apart=4000), core, 2)
        assert apart == tile_shape(Extents(64, 20, 1000, 1, 4), core, 2) and apart.rows > 12
    assert 8 < tile_shape(Extents(64, 8, 512, 1, 4, apart=2048), AVX2, 2).rows <= 2 * tile_shapes.MOST_IN_SET
    assert tile_shape(Extents(8, 1024, 1024, 1, 4, apart=4096), AVX2, 2).rows == 8


def test_how_far_rows_are_apart_is_seen() -> None:
    for text, wanted in (("x[i, k]", 4096), ("x[k, i]", 0), ("x[i, k] + 1.0", 0)):
        shape = "K, M" if "[k" in text else "M, K"
        body = f"y[i, j] = sum[k](({text}) * w[k, j])"
        text = f"op f(x: f32[{shape}], w: f32[K, N]) -> (y: f32[M, N]) {{ {body} }}"
        graph = fixed_graph_of(text, M=64, K=1024, N=20)
        (s,) = graph.statements
        p = contraction.contraction_of(graph, s)
        assert p is not None and cpu_tiles.measures(graph, s, p).apart == wanted


def test_a_factor_that_many_outer_points_share_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in place for tiles, but not for each point by itself; nor does memory bring it for each."""
    monkeypatch.setattr(factor_rows, "LEAD", 0)
    text = """op f(x: f32[9, K, 11], w: f32[K, N]) -> (y: f32[9, 11, N]) {
      y[b, i, j] = sum[k](x[b, k, i] * w[k, j])
    }"""
    x, w = np.ones((9, 301, 11), "f4"), np.random.default_rng(0).standard_normal((301, 70)).astype("f4")
    made: Any = pf.compile(text, options=pf.Options(library="never", verify=True))
    np.testing.assert_allclose(made(x, w), np.einsum("bki,kj->bij", x, w), rtol=1e-3, atol=1e-3)
    assert "right factor copied into their order" in made.explain(x, w)
    for shared, streamed in ((1, True), (49, False)):
        found = tile_shape(Extents(7, 512, 4608, 49, 4, shared=shared), AVX2, 2)
        assert found.streamed == streamed


def test_all_workers_have_tiles() -> None:
    for threads in (1, 2, 16, 64):
        for rows, columns in ((128, 128), (1024, 3072), (64, 4096)):
            x = Extents(rows, columns, 512, 1, 4)
            shape = tile_shape(x, Core(), threads)
            pieces = shape.blocks(x) * -(-columns // (shape.columns * shape.across))
            whole = -(-rows // shape.rows) * -(-columns // shape.columns)
            assert pieces >= min(threads, whole), (threads, rows, columns, shape)


@pytest.mark.parametrize("sizes", ({"M": 200, "N": 300, "K": 70}, {"M": 300, "N": 40, "K": 70}))
def test_a_worker_copies_the_right_factor_for_its_rows(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_shapes, "FEWEST_NEAR", 2)
    call = product_call("plain", **sizes)
    kernels, decisions = form_kernels(schedule(fixed_graph(call.graph, call.sizes), LoopFusion()), 2)
    assert any("right factor copied by the worker" in d.reason for d in decisions)
    assert not any("left" in d.reason for d in decisions), "rows of it are read in place"
    (kernel,) = kernels.kernels
    assert kernel.buffer("c__n_tiles").scope is Scope.LOCAL
    check_everywhere([call])


def test_few_rows_read_both_factors_in_place() -> None:
    call = product_call("plain", M=60, N=300, K=70)
    kernels, decisions = form_kernels(schedule(fixed_graph(call.graph, call.sizes), LoopFusion()), 2)
    assert any(d.kind == "tile" and "copied" not in d.reason for d in decisions)
    assert len(kernels.kernels) == 1


def test_factors_that_lie_along_what_is_summed_are_turned_around(every_size: None) -> None:
    call = product_call("right turned", M=40, N=96, K=130)
    f = pf.compile(f"op f{FORMS['right turned']}", target="cpu", options=pf.Options(library="never"))
    assert "pf_turn<4" in f.built(*call.inputs.values()).code.source


@pytest.mark.parametrize(("kind", "wide"), [("f4", "f32"), ("i1", "i32")])
@pytest.mark.parametrize("start", [-70, -1, 100])
def test_sums_may_begin_anywhere(start: int, kind: str, wide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels and copies of factors are counted from there."""
    monkeypatch.setattr(tile_shapes, "TILE_PART", 1 << 12)
    first = max(0, start)
    narrow, k = {"f4": "f32", "i1": "i8"}[kind], f"k + {first - start}"
    text = f"""op f(a: {narrow}[M, 700], b: {narrow}[N, 700]) -> (y: {wide}[M, N]) {{
      c[m, n] = sum[k in {start}..{start + 591}]({wide}(a[m, {k}]) * {wide}(b[n, {k}]))
      y[m, n] = c[m, n] + 1 }}"""
    f = pf.compile(text, target="cpu", options=pf.Options(library="never", verify=True))
    a, b = (np.random.default_rng(0).integers(-9, 9, (rows, 700)).astype(kind) for rows in (20, 70))
    used = (x[:, first : first + 591].astype(int) for x in (a, b))
    np.testing.assert_array_equal(f(a, b), next(used) @ next(used).T + 1)
    assert any(d.kind == "tile" and "then y" in d.reason for d in f.built(a, b).decisions)


def test_factors_read_in_place(every_size: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_tiles, "FEWEST_READERS", 1000)
    monkeypatch.setattr(tile_shapes, "FEWEST_NEAR", 1000)
    check_everywhere([product_call(n) for n in (*FEW, "right turned", "left turned", "batched")])


def test_not_a_number_goes_through_and_stays_where_it_is(every_size: None) -> None:
    calls = [product_call(n) for n in ("plain", "wide", "right turned", "batched", "after", "convolution")]
    for call in calls:
        for k, array in enumerate(call.inputs.values()):
            array.flat[array.size // 2] = (np.nan, np.inf, -np.inf)[k % 3]
            array.flat[-1] = np.inf
    check_everywhere(calls)


# --- what comes out of it ---------------------------------------------------------------------------------

TILED = {n: n not in ("triangle", "recurrent") for n in FORMS}


@pytest.mark.parametrize("name", FORMS)
def test_which_statements_are_tiled(name: str, every_size: None) -> None:
    call = product_call(name)
    fixed = fixed_graph(call.graph, call.sizes)
    _, decisions = form_kernels(schedule(fixed, LoopFusion()), 2)
    assert any(d.kind == "tile" for d in decisions) == TILED[name]


def test_what_follows_an_element_stays_with_its_tile(every_size: None) -> None:
    call = product_call("after")
    kernels, _ = form_kernels(schedule(fixed_graph(call.graph, call.sizes), LoopFusion()), 2)
    last = kernels.kernels[-1]
    assert {"c", "y", "z"} <= set(last.statements)
    assert last.buffer("c").scope is Scope.LOCAL, "elements of a tile need not go to memory"


@pytest.mark.parametrize(("name", "copied"), [("after", False), ("both", True)])
def test_what_follows_reads_sums_from_their_tile(name: str, copied: bool, every_size: None) -> None:
    """A result is stored all the same; 23 rows are several tiles, the last of them shorter."""
    call = product_call(name, M=23)
    source = pf.compile(f"op f{FORMS[name]}", target="cpu").built(*call.inputs.values()).code.source
    assert bool(re.search(r"b_c\[[^;]*\] = tile\d+\[", source)) == copied
    assert re.search(r"b_y\[[^;]*\] = [^;]*tile\d+\[", source) or copied
    check_everywhere([call])


@pytest.mark.machine("zen5")
@pytest.mark.parametrize(
    ("name", "steps", "written"), [("convolution", 9, 1), ("plane", 3, 2), ("plain", 64, 0), ("plain", 12, 1)]
)
def test_short_loops_over_steps_are_written_out(
    name: str, steps: int, written: int, every_size: None
) -> None:
    call = product_call(name, **{"Q" if name == "plane" else "K": steps})
    source = pf.compile(f"op f{FORMS[name]}", target="cpu").built(*call.inputs.values()).code.source
    assert source.count("PF_UNROLLED for") == written
    assert bool(re.search(r"PF_HELD\(tile", source)) == (written > 0), "else gcc 12 loads factors again"


def test_what_is_before_a_factor_is_computed_by_its_copy(every_size: None) -> None:
    turned = """op f(a: f32[K, M], b: f32[K, N]) -> (c: f32[M, N]) {
      u[k, m] = tanh(a[k, m]) * 2.0
      c[m, n] = sum[k](u[k, m] * b[k, n]) }"""
    kernels, decisions = form_kernels(schedule(fixed_graph_of(turned, M=13, N=150, K=9), LoopFusion()), 2)
    assert [d.subject for d in decisions if d.kind == "prologue"] == ["u"]
    assert len(kernels.kernels) == 2 and all(t.name != "u" for t in kernels.graph.tensors)
    both = fixed_graph_of(
        """op f(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N], u: f32[M, K]) {
          u[m, k] = exp(a[m, k])
          c[m, n] = sum[k](u[m, k] * b[k, n]) }""",
        M=13,
        N=150,
        K=9,
    )
    _, decisions = form_kernels(schedule(both, LoopFusion()), 2)
    assert not any(d.kind == "prologue" for d in decisions), "it is a result as well"


def test_strided_operands_are_copied(every_size: None) -> None:
    f = pf.compile(f"op f{FORMS['right turned']}", target="cpu")
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(40, 2 * 50)).astype("f4"), rng.normal(size=(50, 60)).astype("f4")
    np.testing.assert_allclose(f(a[:, ::2], b.T), a[:, ::2] @ b, rtol=1e-4, atol=1e-4)


def test_strided_windows_are_gathered(every_size: None) -> None:
    f = pf.compile(f"op f{FORMS['convolution']}", target="cpu")
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 9, 2 * 44)).astype("f4"), rng.normal(size=(7, 9, 5)).astype("f4")
    windows = np.lib.stride_tricks.sliding_window_view(x[:, :, ::2], 5, axis=2)
    np.testing.assert_allclose(
        f(x[:, :, ::2], w), np.einsum("pkmj,nkj->pnm", windows, w), rtol=1e-4, atol=1e-4
    )


def test_small_contractions_keep_their_loops() -> None:
    f = pf.compile(f"op f{FORMS['plain']}", target="cpu")
    assert "in tiles of" not in f.explain(np.ones((13, 9), "f4"), np.ones((9, 37), "f4"))


def test_a_large_product_without_the_library() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(131, 517)).astype("f4"), rng.normal(size=(517, 203)).astype("f4")
    f = pf.compile(f"op f{FORMS['plain']}", target="cpu", options=pf.Options(library="never"))
    np.testing.assert_allclose(f(a, b), a.astype("f8") @ b, rtol=1e-4, atol=1e-3)
    assert all(k.library is None for k in f.built(a, b).kernels.kernels)


def test_rows_that_share_sets_of_a_cache_are_copied() -> None:
    """A few tiles of rows read such a factor in place slower than from a copy."""
    text, reasons = f"op f{FORMS['plain']}", []
    for columns in (2048, 2000):
        graph = fixed_graph_of(text, M=64, N=columns, K=1024)
        _, decisions = form_kernels(schedule(graph, LoopFusion()), 2)
        reasons += [d.reason for d in decisions if d.kind == "tile"]
    assert "right factor copied by the worker" in reasons[0] and "copied" not in reasons[1]


def test_a_left_factor_that_many_read_is_copied() -> None:
    """A filter for each row of a picture: what it costs to copy it, it is worth."""
    text = f"op f{FORMS['plane']}"
    graph = fixed_graph_of(text, Q=3, K=32, M=112, N=112)
    _, decisions = form_kernels(schedule(graph, LoopFusion()), 2)
    assert any("left factor copied into their order" in d.reason for d in decisions)
