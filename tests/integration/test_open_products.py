"""Matrix products whose sizes are parameters: tiles that end in the middle of a matrix, matrices smaller
than a tile, layouts, types, what follows a product; against the reference, and kernels with fixed sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from open_calls import check_call

import polyfuse as pf

Array = np.ndarray[Any, np.dtype[Any]]

PRODUCTS = {
    "plain": "op f[F: float](a: F[M, K], b: F[K, N]) -> (c: F[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }",
    "right turned": "op f[F: float](a: F[M, K], b: F[N, K]) -> (c: F[M, N])"
    " { c[m, n] = sum[k](a[m, k] * b[n, k]) }",
    "left turned": "op f[F: float](a: F[K, M], b: F[K, N]) -> (c: F[M, N])"
    " { c[m, n] = sum[k](a[k, m] * b[k, n]) }",
    "batched": "op f[F: float](a: F[P, M, K], b: F[P, K, N]) -> (c: F[P, M, N])"
    " { c[p, m, n] = sum[k](a[p, m, k] * b[p, k, n]) }",
    "followed": "op f[F: float](a: F[M, K], b: F[N, K], v: F[N]) -> (c: F[M, N])"
    " { u[m, n] = sum[k](a[m, k] * b[n, k]) + v[n]\n c[m, n] = tanh(u[m, n]) }",
    "window": "op f[F: float](a: F[T], b: F[N, R]) -> (c: F[T-R+1, N])"
    " { c[t, n] = sum[r](a[t + r] * b[n, r]) }",
    "distances": "op f[F: float](a: F[M, K], b: F[N, K]) -> (c: F[M, N])"
    " { c[m, n] = sum[k]((a[m, k] - b[n, k]) ** 2.0) }",
}
# (rows or a length, steps, columns): each of them 0, 1, a prime, a tile, one more; steps of several sums.
SIZES = (
    (70, 37, 90),
    (1, 1, 1),
    (13, 64, 31),
    (14, 500, 32),
    (29, 3, 33),
    (61, 128, 16),
    (8, 8, 7),
    (0, 5, 3),
)


def sizes_at(product: str, rows: int, steps: int, columns: int) -> dict[str, int]:
    if product == "window":
        return {"T": rows + steps, "R": steps, "N": columns}
    found = {"M": rows, "K": steps, "N": columns}
    return {"P": 3, **found} if product == "batched" else found


def tiles_of(f: pf.Compiled) -> list[str]:
    return [str(d) for v in f.variants if v.open for d in v.built.decisions if d.kind == "tile" and d.taken]


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.thin(5)
def test_products_agree_with_the_reference(product: str, dtype: str) -> None:
    op = pf.parse(PRODUCTS[product]).op("f")
    f, graph = pf.compile(op, sizes="open", options=pf.Options(threads=2)), op.graph({"F": dtype})
    for k, size in enumerate(SIZES):
        how = ("", "", "turned", "stepped")[k % 4]
        check_call(f, graph, sizes_at(product, *size), seed=k, how=how)
    assert tiles_of(f)


@pytest.mark.parametrize("target", ["interpret", "emulate"])
def test_products_on_other_targets(target: str) -> None:
    op = pf.parse(PRODUCTS["followed"]).op("f")
    f, graph = pf.compile(op, sizes="open", target=target), op.graph({"F": "f32"})
    for size in ((17, 9, 33), (1, 1, 1), (5, 40, 8)):
        check_call(f, graph, sizes_at("followed", *size), seed=1)


@pytest.mark.parametrize("product", ["plain", "right turned", "batched"])
def test_sums_of_one_order_are_those_of_fixed_sizes(product: str) -> None:
    """Up to 480 steps are one sum of each element, whatever the tiles are."""
    options = pf.Options(threads=1, library="never")
    ours = pf.compile(PRODUCTS[product], sizes="open", options=options)
    fixed = pf.compile(PRODUCTS[product], sizes="fixed", options=options)
    rng = np.random.default_rng(0)
    for size in ((70, 100, 90), (128, 128, 128)):
        sizes = sizes_at(product, *size)
        graph = pf.parse(PRODUCTS[product]).op("f").graph({"F": "f32"})
        shapes = [[sizes[str(e)] for e in graph.tensor(n).shape] for n in ("a", "b")]
        a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
        np.testing.assert_array_equal(ours(a, b), fixed(a, b))


def test_random_shapes_cost_four_compilations_at_most() -> None:
    f = pf.compile(PRODUCTS["plain"], sizes="auto")
    rng = np.random.default_rng(0)
    for size in rng.integers(1, 64, (40, 3)):
        m, k, n = map(int, size)
        a, b = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
        np.testing.assert_allclose(f(a, b), a @ b, rtol=0, atol=1e-3)
    assert len(f.variants) <= 4


CONVOLUTION = """op f(x: f32[N, C, H, W], w: f32[K, C, 3, 3], b: f32[K]) -> (y: f32[N, K, H, W]) {
  z[n, c, h, v] = x[n, c, h-1, v-1] if 1 <= h < H+1 and 1 <= v < W+1 else
      0.0 for h in 0..H+2, v in 0..W+2
  y[n, k, p, q] = max(sum[c, r, s](z[n, c, p + r, q + s] * w[k, c, r, s]) + b[k], 0.0)
}"""


@pytest.mark.machine("zen3")
def test_an_open_number_of_images_is_rows_of_one_matrix() -> None:
    """The number of images is the outermost of the dims that are one: nothing is divided by it."""
    known = {"C": 16, "H": 7, "W": 6, "K": 32}
    f = pf.compile(CONVOLUTION, sizes={"N": pf.open, **known}, options=pf.Options(threads=2))
    graph = pf.parse(CONVOLUTION).op("f").graph({})
    for n in (3, 1, 2, 13, 0, 64):
        check_call(f, graph, {"N": n, **known}, seed=n)
    first, *_ = (v for v in f.variants if v.open)
    (rows,) = (d for d in first.built.decisions if d.kind == "collapse rows")
    assert rows.taken and "n, p, q as one dim" in rows.reason
    assert any(str(t.shape[0]) in ("N*42", "42*N") for t in first.built.kernels.graph.tensors if t.shape)


@pytest.mark.machine("zen3")
def test_images_of_open_sizes_stay_apart() -> None:
    f = pf.compile(CONVOLUTION, sizes={"C": 16, "K": 32, "N": pf.open, "W": pf.open}, threads=2)
    graph = pf.parse(CONVOLUTION).op("f").graph({})
    for n, w in ((3, 6), (1, 1), (2, 17)):
        check_call(f, graph, {"N": n, "C": 16, "H": 7, "W": w, "K": 32}, seed=n)
    assert not any(d.kind == "collapse rows" for v in f.variants for d in v.built.decisions if v.open)
