"""Which results that lanes store across memory go through tiles, and what is told of them."""

from __future__ import annotations

import re

import pytest
from equivalence import fixed_graph_of

from polyfuse.codegen.cpu.emit import emit
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.codegen.transforms.transpose_stores import transpose_stores
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.kernel import KernelGraph, Scope, tree
from polyfuse.ir.loop_ir import Block, For, Store, TransposedTile, Update, format_block
from polyfuse.ir.schedule_tree import Coordinate, Member, path
from polyfuse.ir.tensor_graph import Const, Read
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching

LARGEST = "op f(x: {0}[I, K], z: {0}[I, K]) -> (y: {0}[K, I]) {{ y[k, i] = max(x[i, k], z[i, k]) }}"
SOFTMAX = """op f(x: f32[I, K]) -> (y: f32[K, I]) {
  m[i] = max[k](x[i, k])
  e[i, k] = exp(x[i, k] - m[i])
  s[i] = sum[k](e[i, k])
  y[k, i] = e[i, k] / s[i]
}"""
LEAST = "op f(x: f32[I, K], b: f32[K]) -> (y: f32[K, I]) { m[i] = min[k](x[i, k]); y[k, i] = m[i] + b[k] }"


def mapped(text: str, **sizes: int) -> tuple[KernelGraph, str]:
    """The kernels, and what was decided of transposes."""
    scheduled = LoopFusion().schedule(fixed_graph_of(text, **sizes))
    kernels, decisions = form_kernels(scheduled, 2, Stitching())
    return kernels, "\n".join(str(d) for d in decisions if d.kind == "transpose")


def loops(kernels: KernelGraph, statement: str = "y") -> list[str]:
    (kernel,) = (k for k in kernels.kernels if statement in k.statements)
    return [f"{m.name}@{m.coordinate.value}" for m in path(tree(kernel), statement) if isinstance(m, Member)]


def stored_across(source: str, name: str = "y") -> list[str]:
    """Loops over lanes that store element by element to memory."""
    inner = re.findall(r"for \(pf_i64 (c\d)[^{]*\{([^{}]*)\}", source)
    found = [(var, at) for var, body in inner for at in re.findall(rf"b_{name}\[(.*)\] = ", body)]
    return [at for var, at in found if re.search(rf"{var}\b[^+]* \* ", at)]


def test_free_loops_are_cut_into_tiles_that_are_turned_around_after_them() -> None:
    kernels, said = mapped(LARGEST.format("f32"), I=100, K=768)
    assert loops(kernels) == ["i_blk@blk", "k_blk@blk", "i@seq", "k@vec"]
    assert said == "+ transpose y: tiles of i and k are transposed in registers after them"
    source = emit(kernels).source
    assert "pf_turn<4, 2>(\n" in source and not stored_across(source)
    kernels, _ = mapped(LARGEST.format("f64"), I=100, K=4000)
    assert loops(kernels) == ["k_pages@blk", "i_blk@blk", "k_blk@seq", "i@seq", "k@vec"]
    kernels, said = mapped(LARGEST.format("f32"), I=512, K=768)
    assert loops(kernels) == ["i_blk@blk", "i@seq", "k@vec"]
    each = "columns of 128 neighbours along i are transposed in registers together"
    assert said == f"+ transpose y: {each}, after them"


@pytest.mark.parametrize(("kind", "rows"), [("f64", 64), ("f32", 128), ("f16", 256)])
def test_whole_rows_come_in_blocks(kind: str, rows: int) -> None:
    kernels, said = mapped(SOFTMAX.replace("f32", kind), I=1024, K=200)
    assert loops(kernels)[:2] == ["i_blk@blk", "i@seq"]
    each = f"columns of {rows} neighbours along i are transposed in registers together"
    assert said == f"+ transpose y: {each}, after them"
    source = emit(kernels).source
    assert "pf_turn<" in source and not stored_across(source)


def test_long_rows_come_in_smaller_blocks() -> None:
    assert "columns of 32 neighbours" in mapped(SOFTMAX, I=1024, K=50_000)[1]
    said = mapped(SOFTMAX, I=1024, K=1_000_000)[1]
    assert said.startswith("- transpose y: stored across the lanes: ")


def test_pieces_of_a_loop_fill_one_tile() -> None:
    text = """op f(x: f32[I, K]) -> (y: f32[K, I]) {
  y[k, i] = exp(x[i, max(k - 1, 0)]) + x[i, min(k + 1, K - 1)]
}"""
    kernels, said = mapped(text, I=512, K=333)
    source = emit(kernels).source
    assert said.startswith("+ transpose y: columns of ")
    assert source.count("pf_turn<4, 2>(\n") == 1 and not re.search(r"b_y\[.*\] = ", source)


def test_lanes_go_where_fewer_bytes_are_turned_around() -> None:
    one = "op f(x: f32[I, K]) -> (y: f32[K, I], v: f32[K, I]) { y[k, i] = x[i, k]; v[k, i] = x[i, k] * 2.0 }"
    kernels, said = mapped(one, I=512, K=768)
    assert loops(kernels)[-2:] == ["k@seq", "i@vec"]
    assert said == "+ transpose x: tiles of k and i are transposed in registers"
    kernels, said = mapped(
        LARGEST.format("f32").replace("z[i, k]", "z[k, i]").replace("z: f32[I, K]", "z: f32[K, I]"),
        I=512,
        K=768,
    )
    assert loops(kernels)[-2:] == ["k@seq", "i@vec"]
    assert said == "+ transpose x: tiles of k and i are transposed in registers"


def test_the_row_is_the_loop_that_results_run_along() -> None:
    text = """op f(x: f32[B, I, K]) -> (y: f32[K, I, B]) {
  m[b, i] = max[k](x[b, i, k])
  y[k, i, b] = x[b, i, k] - m[b, i] for b in 0..B, i in 0..I, k in 0..K
}"""
    kernels, said = mapped(text, B=64, I=64, K=64)
    assert loops(kernels)[:3] == ["i@blk", "b_blk@blk", "b@seq"]
    assert "neighbours along b" in said


def test_last_phases_that_read_no_row_run_along_the_rows() -> None:
    kernels, said = mapped(LEAST, I=1024, K=512)
    assert not said
    assert loops(kernels) == ["i_blk@blk", "k@seq", "i@vec"]
    assert loops(kernels, "m")[:2] == ["i_blk@blk", "i@seq"]
    source = emit(kernels).source
    assert "pf_turn" not in source and not stored_across(source)
    passed = LEAST.replace("y[k, i] = m[i] + b[k]", "t[i, k] = exp(m[i]) * b[k]; y[k, i] = t[i, k] + 1.0")
    assert loops(mapped(passed, I=1024, K=512)[0]) == ["i_blk@blk", "k@seq", "i@vec"]


def test_functions_of_rows_are_computed_for_a_block_of_them() -> None:
    text = """op f(t: f32[I], x: f32[I, K]) -> (y: f32[K, I]) {
  s[i] = tanh(t[i])
  m[i] = max[k](x[i, k])
  y[k, i] = x[i, k] * s[i] - m[i]
}"""
    kernels, _ = mapped(text, I=1024, K=200)
    assert loops(kernels, "s") == ["i_blk@blk", "i@vec"]
    assert loops(kernels)[:2] == ["i_blk@blk", "i@seq"]


def test_short_loops_stay() -> None:
    said = mapped(LARGEST.format("f32"), I=20, K=3000)[1]
    assert said.startswith("+ transpose y")
    assert not mapped(
        "op f(x: f32[I, K], z: f32[I, K]) -> (y: f32[I, K]) { y[i, k] = x[i, k] + z[i, k] }", I=64, K=64
    )[1]


# --- the code --------------------------------------------------------------------------------------------


def across(body: Block, rows: int = 16, low: int = 0, high: int = 64) -> str:
    """What becomes of a loop over rows with such lanes, of a kernel that stores y[k, i]."""
    kernels, _ = mapped(LARGEST.format("f32"), I=64, K=64)
    row = For("i", IConst(0), IConst(rows), 1, body)
    return format_block(transpose_stores(kernels.kernels[0], (row,))[1])


def lanes(*body: Store | Update, low: int = 0, high: int = 64, at: Coordinate = Coordinate.VECTOR) -> For:
    return For("k", IConst(low), IConst(high), 1, body, at)


PLACE = IVar("k"), IVar("i")
STORE = Store("y", PLACE, Const(1.0, F32))


def test_a_tile_is_stored_after_its_rows() -> None:
    assert (
        across((lanes(STORE),))
        == """\
for i in 0..16:
  for k in 0..64 @vec:
    back0[i, k] = 1.0
y[place, i] = back0[i, place] for place in 0..64, i in 0..16"""
    )


def test_pieces_and_ends_that_overlap_are_one_tile() -> None:
    parts = (
        lanes(STORE, high=1, at=Coordinate.SEQ),
        lanes(STORE, low=1, high=49),
        lanes(STORE, low=40, high=56),
    )
    assert "y[place, i] = back0[i, place] for place in 0..56" in across(parts)
    assert "back" not in across((parts[0], lanes(STORE, low=2)))  # there is a gap


def test_what_rows_read_or_add_to_stays() -> None:
    read = Store("y", PLACE, Read("y", (IVar("k"), IVar("i") - 1), F32))
    assert "back" not in across((lanes(read),))
    assert "back" not in across((lanes(STORE), lanes(Update("y", PLACE, "sum", Const(1.0, F32)))))
    own = Store("x", (IVar("i"), IVar("k")), Read("y", PLACE, F32))
    assert "x[i, k] = back0[i, k]" in across((lanes(STORE), lanes(own)))
    assert "back" not in across((lanes(own), lanes(STORE)))  # what was there before
    assert "back" not in across((lanes(STORE, high=32), lanes(own)))  # and is not all in the tile


def test_steps_and_directions_along_a_row() -> None:
    for last in (IVar("i") * 2, IConst(63) - IVar("i"), IVar("i") + 3):
        store = Store("y", (IVar("k"), last), Const(1.0, F32))
        assert "back0[i, k] = 1.0" in across((lanes(store),))
    apart = Store("y", (IVar("k"), IVar("i") * 16), Const(1.0, F32))
    assert "back" not in across((lanes(apart),))  # each in a line of its own


def test_few_rows_or_lanes_stay() -> None:
    assert "back" not in across((lanes(STORE),), rows=3)
    assert "back" not in across((lanes(STORE, high=3),))


def test_arrays_are_the_workers() -> None:
    kernels, _ = mapped(SOFTMAX, I=1024, K=512)
    low = lower(kernels.kernels[0])
    arrays = [b for b in low.kernel.buffers if b.tensor.startswith("back")]
    assert [b.scope for b in arrays] == [Scope.LOCAL]
    (turned,) = (n for t in low.functions for n in t.body if isinstance(n, TransposedTile))
    assert turned.buffer == arrays[0].tensor and turned.to is not None and turned.to[0] == "y"
