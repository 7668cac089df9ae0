"""Which loops are tiled for reads across the lanes, and the code that turns tiles around."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from equivalence import fixed_graph_of

import polyfuse as pf
from polyfuse.codegen.cpu.emit import emit
from polyfuse.codegen.math.prelude import prelude
from polyfuse.codegen.transforms.transpose_loads import TURNS
from polyfuse.ir.kernel import KernelGraph, tree
from polyfuse.ir.schedule_tree import Member, path
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.runtime.toolchain.compiler import load_shared

COPY = "op f(x: f32[I, J]) -> (y: f32[J, I]) { y[j, i] = x[i, j] }"
SCALED = "op f(x: f32[I, J], s: f32[J]) -> (y: f32[J, I]) { y[j, i] = x[i, j] * s[j] }"
ROWS = "op f(x: f32[N, M], b: f32[M, N]) -> (y: f32[N]) { y[i] = sum[j](x[i, j] * b[j, i]) }"


def mapped(text: str, **sizes: int) -> KernelGraph:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2)[0]


def loops(kernels: KernelGraph, statement: str = "y") -> list[str]:
    (kernel,) = (k for k in kernels.kernels if statement in k.statements)
    return [f"{m.name}@{m.coordinate.value}" for m in path(tree(kernel), statement) if isinstance(m, Member)]


def test_both_loops_are_cut_where_memory_runs_along_the_other() -> None:
    tiled = ["j_blk@blk", "i_blk@blk", "j@seq", "i@vec"]
    assert loops(mapped(COPY, I=512, J=768)) == tiled
    assert loops(mapped(SCALED, I=500, J=77)) == tiled
    assert loops(mapped(COPY, I=4000, J=200)) == ["i_pages@blk", "j_blk@blk", "i_blk@seq", "j@seq", "i@vec"]


def test_other_nests_stay_as_they_were() -> None:
    added = "op f(x: f32[I, J], s: f32[J]) -> (y: f32[I, J]) { y[i, j] = x[i, j] + s[j] }"
    assert loops(mapped(added, I=500, J=500)) == ["i@blk", "j@vec"]
    assert loops(mapped(COPY, I=100_000, J=3)) == ["j@blk", "i@vec"]
    heads = "op f(x: f32[S, H, D]) -> (y: f32[H, S, D]) { y[h, s, d] = x[s, h, d] }"
    assert loops(mapped(heads, S=64, H=12, D=64)) == ["h@blk", "s@blk", "d@vec"]


def test_rows_come_in_blocks_where_their_columns_are_read() -> None:
    kernels = mapped(ROWS, N=512, M=768)
    assert loops(kernels)[:2] == ["i_blk@blk", "i@seq"]
    source = emit(kernels).source
    assert "pf_turn<4, 0>(" in source
    assert loops(mapped(ROWS, N=512, M=100_000))[0] == "i@blk"  # its columns would fill L2


def test_a_copy_needs_no_array() -> None:
    assert "float turned" not in emit(mapped(COPY, I=500, J=768)).source
    assert "float turned" in emit(mapped(COPY, I=512, J=768)).source  # rows of the result crowd in a cache
    assert "float turned" in emit(mapped(SCALED, I=500, J=768)).source


TURNED_BY_A_QUARTER = {
    "x[j, I - 1 - i]": lambda x: np.rot90(x),
    "x[J - 1 - j, i]": lambda x: np.rot90(x, -1),
    "x[J - 1 - j, I - 1 - i]": lambda x: x[::-1, ::-1].T,
}


@pytest.mark.parametrize("read", TURNED_BY_A_QUARTER)
def test_rows_that_lie_backwards_are_tiles(read: str) -> None:
    text = f"op f(x: f32[J, I]) -> (y: f32[I, J]) {{ y[i, j] = {read} for i in 0..I, j in 0..J }}"
    assert loops(mapped(text, I=512, J=768)) == ["i_blk@blk", "j_blk@blk", "i@seq", "j@vec"]
    assert "float turned" not in emit(mapped(text, I=768, J=500)).source
    copy, scaled = (pf.compile(text.replace(read, t)) for t in (read, f"{read} * 2.0"))
    for shape in ((512, 256), (300, 517), (67, 65), (5, 300)):
        x = np.random.default_rng(1).standard_normal(shape).astype("f4")
        expected = TURNED_BY_A_QUARTER[read](x)
        np.testing.assert_array_equal(copy(x), expected)
        np.testing.assert_array_equal(copy(x[::-1, ::-1]), expected[::-1, ::-1])
        np.testing.assert_array_equal(scaled(x), 2 * expected)


def test_guarded_reads_and_changed_memory_are_not_read_ahead() -> None:
    guarded = "op f(x: f32[I, J], k: i64) -> (y: f32[J, I]) { y[j, i] = x[i, j-1] if j > i % 3 else 0.0 }"
    assert "pf_turn" not in emit(mapped(guarded.replace(", k: i64", ""), I=300, J=300)).source
    changed = "op f(inout x: f32[N, N]) { x[i, j] = x[j, i] * 2.0 }"
    assert "pf_turn" not in emit(mapped(changed, N=300)).source


@pytest.mark.parametrize("vector", [16, 32, 64])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_every_shape_of_a_tile(size: int, vector: int) -> None:
    entry = f"""
extern "C" void turn(void* to, pf_i64 room, const void* from, pf_i64 along, pf_i64 step, pf_i64 rows,
    pf_i64 lanes) {{
  pf_turn<{size}, 1>(to, room, 1, from, along, step, rows, lanes);
}}
"""
    own = f"#undef PF_VECTOR\n#define PF_VECTOR {vector}\n"
    turn = ctypes.CDLL(str(library(prelude(set()) + own + TURNS + entry))).turn
    dtype = np.dtype(f"u{size}")
    x = np.random.default_rng(0).integers(0, 256, 40 * 60 * size, np.uint8).view(dtype).reshape(40, 60)
    for lanes, rows in (
        (1, 1),
        (3, 40),
        (4, 4),
        (4, 17),
        (7, 5),
        (8, 8),
        (15, 33),
        (16, 16),
        (17, 31),
        (40, 60),
    ):
        views = x[:lanes, :rows], x[:lanes, : 2 * rows : 2], x[:lanes, :rows][:, ::-1], x[:lanes, :rows][::-1]
        for view in views:
            if view.shape != (lanes, rows):
                continue
            to = np.zeros((rows, 64), dtype)
            step, along = (n // size for n in view.strides)
            given = [ctypes.c_int64(n) for n in (64, along, step, rows, lanes)]
            first = view.ctypes.data_as(ctypes.c_void_p)
            turn(to.ctypes.data_as(ctypes.c_void_p), given[0], first, *given[1:])
            np.testing.assert_array_equal(to[:, :lanes], view.T)
            assert not to[:, lanes:].any()


@pytest.mark.skipif(shutil.which("g++") is None or platform.machine() != "x86_64", reason="no gcc for x86")
@pytest.mark.parametrize("gcc", [12, 11])
def test_lanes_move_by_constant_masks(tmp_path: Path, gcc: int) -> None:
    """Variable ones are two permutations and a blend for each vector of each round."""
    entry = """
extern "C" void turn(void* to, const void* from, pf_i64 n) { pf_turn<4, 0>(to, n, 1, from, 1, n, n, n); }
"""
    (tmp_path / "turn.cpp").write_text(prelude(set()) + TURNS + entry)
    flags = ["-O3", "-std=c++17", "-march=x86-64-v3", "-U__GNUC__", f"-D__GNUC__={gcc}", "-S", "-o", "-"]
    text = subprocess.run(
        ["g++", *flags, "turn.cpp"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert "vpunpckldq" in text
    assert "vpblendvb" not in text
    assert "vpinsrd" not in text


def library(source: str) -> Path:
    return Path(load_shared(source)._name)
