"""Products of integers: tiles of i32, of bytes where there are many rows, and what wraps."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import fixed_graph_of
from targets import Call, check_everywhere

from polyfuse.layers.kernels import form_kernels
from polyfuse.layers.loop_fusion import LoopFusion

TEXT = (
    "op f(a: {0}[M, K], b: {0}[K, N]) -> (c: i32[M, N]) {{ c[i, j] = sum[k](i32(a[i, k]) * i32(b[k, j])) }}"
)
TURNED = TEXT.replace("[K, N]", "[N, K]").replace("b[k, j]", "b[j, k]")


def tiled(text: str, **sizes: int) -> bool:
    decisions = form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2)[1]
    return any(d.kind == "tile" and d.taken for d in decisions)


@pytest.mark.parametrize("text", [TEXT, TURNED], ids=["plain", "turned"])
def test_sums_of_many_rows_have_tiles(text: str) -> None:
    assert tiled(text.format("i32"), M=4, K=256, N=300)
    assert tiled(text.format("i8"), M=16, K=256, N=300)


@pytest.mark.parametrize(("rows", "columns"), [(8, 300), (300, 8)])
def test_bytes_of_few_rows_or_columns_have_none(rows: int, columns: int) -> None:
    """Compilers have instructions for pairs of them."""
    assert not tiled(TEXT.format("i8"), M=rows, K=256, N=columns)
    assert not tiled(TURNED.format("i8"), M=rows, K=256, N=columns)


@pytest.mark.parametrize("text", [TEXT, TURNED], ids=["plain", "turned"])
@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "i32"])
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
