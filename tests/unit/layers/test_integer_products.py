"""Products of integers: tiles of i32, of bytes where there are many rows, and what wraps."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import fixed_graph_of
from targets import Call, check_everywhere
from thinned import thinned

from polyfuse.ir.tensor_graph import Apply
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.runtime.reference.values import dot_words, word

TEXT = (
    "op f(a: {0}[M, K], b: {0}[K, N]) -> (c: i32[M, N]) {{ c[i, j] = sum[k](i32(a[i, k]) * i32(b[k, j])) }}"
)
TURNED = TEXT.replace("[K, N]", "[N, K]").replace("b[k, j]", "b[j, k]")

WINDOWS = """
op f(x: {0}[N, C, H, W], w: {1}[O, C, R, S]) -> (y: i32[N, O, H - R + 1, W - S + 1]) {{
  y[n, o, h, v] = sum[c, r, s](i32(x[n, c, h + r, v + s]) * i32(w[o, c, r, s]))
}}
"""


def tiled(text: str, **sizes: int) -> bool:
    decisions = form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2)[1]
    return any(d.kind == "tile" and d.taken for d in decisions)


@pytest.mark.parametrize("text", [TEXT, TURNED], ids=["plain", "turned"])
def test_sums_of_many_rows_have_tiles(text: str) -> None:
    assert tiled(text.format("i32"), M=4, K=256, N=300)
    assert tiled(text.format("i8"), M=16, K=256, N=300)


@pytest.mark.parametrize(("rows", "columns"), [(8, 300), (300, 8)])
def test_bytes_of_few_rows_or_columns_have_tiles_unless_both_factors_are_turned(
    rows: int, columns: int
) -> None:
    """Compilers have instructions for pairs of them."""
    assert tiled(TEXT.format("i8"), M=rows, K=256, N=columns)
    assert not tiled(TURNED.format("i8"), M=rows, K=256, N=columns)
    mixed = TEXT.format("i8").replace("a: i8", "a: i32")
    assert tiled(mixed, M=8, K=256, N=300) and not tiled(mixed, M=6, K=256, N=300), "no pairs in tiles"


@pytest.mark.parametrize("text", [TEXT, TURNED], ids=["plain", "turned"])
@pytest.mark.parametrize("dtype", thinned(["i8", "i16", "u8", "i32"], 2))
def test_products_are_exact_and_wrap(text: str, dtype: str) -> None:
    calls = []
    for m, k, n in ((33, 70, 37), (5, 400, 40), (1, 3, 2), (20, 0, 20), (0, 70, 37)):
        graph = fixed_graph_of(text.format(dtype), M=m, K=k, N=n)
        info = np.iinfo(graph.tensor("a").dtype.numpy)
        rng = np.random.default_rng(m)
        inputs = {
            name: rng.integers(info.min, info.max, shape, info.dtype, endpoint=True)
            for name, shape in (("a", (m, k)), ("b", (k, n) if text is TEXT else (n, k)))
        }
        calls.append(Call("f", text.format(dtype), graph, {"M": m, "K": k, "N": n}, inputs))
    check_everywhere(calls)


def extremes(dtype: np.dtype, *shape: int) -> np.ndarray:
    """The least and the largest number: sums of pairs that saturate, or have no sign, are wrong."""
    info = np.iinfo(dtype)
    return np.random.default_rng(0).choice(np.array([info.min, info.max], dtype), shape)


@pytest.mark.parametrize(
    ("left", "right"), [("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8"), ("i16", "i16")]
)
@pytest.mark.parametrize("steps", thinned([101, 100], 2))
def test_tiles_of_short_integers_take_two_steps_at_once(left: str, right: str, steps: int) -> None:
    text = TEXT.format(left).replace(f"b: {left}", f"b: {right}")
    graph = fixed_graph_of(text, M=37, K=steps, N=35)
    tile = form_kernels(LoopFusion().schedule(graph), 2)[0].graph.statement("c")
    assert isinstance(tile.expr, Apply) and tile.expr.op == "dot_words"
    inputs = {
        "a": extremes(graph.tensor("a").dtype.numpy, 37, steps),
        "b": extremes(graph.tensor("b").dtype.numpy, steps, 35),
    }
    check_everywhere([Call("f", text, graph, {"M": 37, "K": steps, "N": 35}, inputs)])


@pytest.mark.parametrize(
    ("dtype", "less", "paired"),
    [
        ("u8", "i32(z)", True),
        ("i8", "i32(z)", True),
        ("u8", "128", True),
        ("u8", "33023", False),
        ("i16", "1", False),
    ],
)
def test_bytes_less_a_zero_point_have_room_in_halves(dtype: str, less: str, paired: bool) -> None:
    text = TEXT.format("i8").replace("a: i8[M, K]", f"a: {dtype}[M, K], z: u8")
    text = text.replace("i32(a[i, k])", f"(i32(a[i, k]) - {less})")
    graph = fixed_graph_of(text, M=37, K=101, N=35)
    tile = form_kernels(LoopFusion().schedule(graph), 2)[0].graph.statement("c")
    assert isinstance(tile.expr, Apply) and (tile.expr.op == "dot_words") == paired
    inputs = {
        "a": extremes(graph.tensor("a").dtype.numpy, 37, 101),
        "z": np.array(255, np.uint8),
        "b": extremes(np.dtype(np.int8), 101, 35),
    }
    check_everywhere([Call("f", text, graph, {"M": 37, "K": 101, "N": 35}, inputs)])


@pytest.mark.parametrize("channels", thinned([3, 8], 2))
def test_windows_of_bytes(channels: int) -> None:
    sizes = {"N": 2, "C": channels, "H": 21, "W": 22, "O": 17, "R": 3, "S": 3}
    text = WINDOWS.format("u8", "i8")
    graph = fixed_graph_of(text, **sizes)
    inputs = {
        "x": extremes(np.dtype(np.uint8), 2, channels, 21, 22),
        "w": extremes(np.dtype(np.int8), 17, channels, 3, 3),
    }
    check_everywhere([Call("f", text, graph, sizes, inputs)])


def test_words_have_halves_with_signs() -> None:
    values = np.array([-32768, -1, 0, 1, 32767], np.int32)
    a, b, c, d = np.meshgrid(values, values, values, values)
    expected = a.astype(np.int64) * c + b.astype(np.int64) * d
    np.testing.assert_array_equal(dot_words(word(a, b), word(c, d)), expected.astype(np.int32))
