"""Scatters of rows with open sizes: owners of the result, runs of one key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf

SUMS = """op sums(x: f32[N, F], w: f32[E], src: i64[E], dst: i64[E]) -> (y: f32[N, F]) {
  y[dst[e], f] += w[e] * x[src[e], f]
}"""
ROWS = "op rows(x: f64[E, F], at: i32[E], inout y: f64[N, F]) { y[at[e], f] += x[e, f] }"


def graph_of(n: int, e: int, f: int, how: str, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    dst = rng.integers(0, n, e)
    dst = {"sorted": np.sort(dst), "one": np.zeros(e, np.int64)}.get(how, dst)
    x = rng.integers(-8, 8, (n, f)).astype(np.float32)
    return {"x": x, "w": rng.integers(-4, 4, e).astype(np.float32), "src": rng.integers(0, n, e), "dst": dst}


def summed(g: dict[str, Any]) -> Any:
    y = np.zeros(g["x"].shape, np.float32)
    np.add.at(y, g["dst"], g["w"][:, None] * g["x"][g["src"]])
    return y


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sizes", ["open", {"N": pf.open, "E": pf.open}])
def test_rows_by_destination(sizes: Any, threads: int) -> None:
    f = pf.compile(SUMS, sizes=sizes, options=pf.Options(threads=threads))
    for n, e in ((1, 1), (7, 5), (3, 2500), (1025, 1024), (1500, 3000)):
        for width in (64,) if sizes != "open" else (1, 3, 63, 64, 65, 130, 256):
            for how in ("sorted", "drawn", "one"):
                g = graph_of(n, e, width, how, e)
                np.testing.assert_array_equal(f(**g), summed(g), f"{n} {e} {width} {how}")
    g = graph_of(4, 0, 64, "drawn")
    np.testing.assert_array_equal(f(**g), summed(g))
    assert sum(bool(v.open) for v in f.variants) <= 2


@pytest.mark.parametrize("target", ["cpu", "interpret"])
def test_rows_that_are_updated_in_place(target: str) -> None:
    f = pf.compile(ROWS, target=target, sizes="open", options=pf.Options(threads=2))
    for n, e, width in ((5, 40, 9), (40, 5, 70), (2, 2, 1)):
        rng = np.random.default_rng(n)
        x, at = rng.integers(-8, 8, (e, width)).astype(float), rng.integers(0, n, e).astype(np.int32)
        y = rng.integers(-8, 8, (n, width)).astype(float)
        wanted = y.copy()
        np.add.at(wanted, at, x)
        f(x, at, y)
        np.testing.assert_array_equal(y, wanted)


@pytest.mark.machine("zen3")
def test_rows_of_open_length_have_owners() -> None:
    f = pf.compile(SUMS, sizes="open", options=pf.Options(threads=2))
    g = graph_of(9, 20, 64, "sorted")
    f(**g)
    assert "+ owner computes y: 4 workers' shares of y" in f.explain(**g)
    assert "c1_s + 64 <= N_F" in f.variants[0].built.code.source


def test_the_order_of_additions_is_that_of_the_edges() -> None:
    """Equal to kernels of one thread with fixed sizes in each bit, with NaN and infinities."""
    g = graph_of(50, 900, 70, "drawn")
    rng = np.random.default_rng(3)
    g["x"] = rng.standard_normal((50, 70)).astype(np.float32)
    g["x"][3, 5], g["x"][4, 6], g["x"][5, 7] = np.nan, np.inf, -0.0
    made = [pf.compile(SUMS, sizes=s, options=pf.Options(threads=1))(**g) for s in ("open", "fixed")]
    np.testing.assert_array_equal(*made)
