"""Where scatters update, and what they add, is computed in lanes before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from equivalence import fixed_graph_of

import polyfuse as pf
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.loop_ir import Declare, LocalRole, nodes_of
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching

BINS = "op f(x: f32[N]) -> (h: i64[100]) { h[i64(floor((x[i] + 4.0) * 12.5))] += 1 }"
EXPS = "op f(x: f32[N], z: i64[N]) -> (h: f32[50]) { h[z[i]] += exp(x[i]) }"
PAIRS = "op f(a: i32[N], b: i64[N]) -> (c: i64[7, 9]) { c[a[n], b[n]] += 1 }"
HIGHEST = "op f(x: f32[N], z: i64[N]) -> (h: f32[50]) { h[z[i]] max= 2.0 * x[i] }"
TWO = """op f(x: f32[N], z: i64[N]) -> (h: f32[50], k: i64[50]) {
  h[z[i]] += x[i]
  k[z[i]] += 1
}"""
ADDED = "op f(inout h: f32[M], x: f32[N], z: i32[N]) where M >= 1 { h[z[i]] += x[i] * x[i] }"
BYTES = "op f(x: u8[N]) -> (h: i64[256]) { h[x[i]] += 1 }"
ROWS = "op f(x: f32[N, D], z: i64[N]) -> (h: f32[50, D]) { h[z[i], d] += exp(x[i, d]) }"
PLAIN = "op f(x: f32[N, M]) -> (h: f32[N]) { h[i] = sum[j](exp(x[i, j])) }"

# What is in arrays: places, terms.
ARRAYS = {
    "bins": (BINS, (1, 0)),
    "a function": (EXPS, (1, 1)),
    "two indices": (PAIRS, (2, 0)),
    "extremes": (HIGHEST, (1, 1)),
    "in place": (ADDED, (1, 1)),
    "nothing to compute": (BYTES, (0, 0)),
    "rows": (ROWS, (0, 0)),
    "no scatter": (PLAIN, (0, 0)),
}
LENGTHS = (
    0,
    1,
    FITTED.distribute_scatters_strip - 1,
    FITTED.distribute_scatters_strip,
    2 * FITTED.distribute_scatters_strip - 1,
    2 * FITTED.distribute_scatters_strip,
    2 * FITTED.distribute_scatters_strip + 1,
    1000,
    100_003,
)


def arrays(text: str, checked: bool = False, **sizes: int) -> list[LocalRole]:
    """What the arrays of a strip hold."""
    graph = fixed_graph_of(text, **sizes)
    kernels = form_kernels(LoopFusion().schedule(graph), 2, Stitching())[0].kernels
    nodes = [n for k in kernels for t in lower(k, None, checked).functions for n in nodes_of(t.body)]
    found = [n for n in nodes if isinstance(n, Declare) and n.count == FITTED.distribute_scatters_strip]
    return list({n.name: n.role for n in found}.values())


@pytest.mark.parametrize("case", ARRAYS)
def test_what_is_computed_before(case: str) -> None:
    text, expected = ARRAYS[case]
    found = arrays(text, N=4096, D=64, M=64)
    assert (found.count(LocalRole.PLACES), found.count(LocalRole.PLAIN)) == expected


def test_short_loops_and_checked_ones_stay_as_they_are() -> None:
    assert not arrays(EXPS, N=2 * FITTED.distribute_scatters_strip - 1) and arrays(
        EXPS, N=2 * FITTED.distribute_scatters_strip
    )
    assert not arrays(EXPS, checked=True, N=4096)


@pytest.mark.parametrize("n", LENGTHS)
def test_floats_are_counted_in_bins(n: int) -> None:
    x = (1.5 * np.random.default_rng(n).standard_normal(n)).astype("f4")
    odd = np.array([np.nan, 1e30, -1e30, np.inf, -np.inf], "f4")
    x[3:40:9] = odd[: len(x[3:40:9])]
    found: Any = pf.compile(BINS)(x)
    at = np.floor((x + np.float32(4)) * np.float32(12.5))
    at = np.nan_to_num(at, nan=0.0).clip(0, 99).astype(int)
    np.testing.assert_array_equal(found, np.bincount(at, minlength=100))


@pytest.mark.parametrize("n", LENGTHS)
def test_functions_of_terms_and_pairs_of_indices(n: int) -> None:
    rng = np.random.default_rng(n)
    x, z = rng.standard_normal(n).astype("f4"), rng.integers(-3, 53, n)
    inside = z.clip(0, 49)
    exact = np.zeros(50)
    np.add.at(exact, inside, np.exp(x.astype("f8")))
    found: Any = pf.compile(EXPS)(x, z)
    np.testing.assert_allclose(found, exact, rtol=1e-5)
    a, b = rng.integers(-1, 8, n).astype("i4"), rng.integers(-1, 10, n)
    pairs: Any = pf.compile(PAIRS)(a, b)
    counts = np.bincount(a.clip(0, 6) * 9 + b.clip(0, 8), minlength=63)
    np.testing.assert_array_equal(pairs, counts.reshape(7, 9))


@pytest.mark.parametrize("n", LENGTHS)
def test_extremes_two_results_and_updates_in_place(n: int) -> None:
    rng = np.random.default_rng(n)
    x, z = rng.standard_normal(n).astype("f4"), rng.integers(0, 50, n)
    x[5:50:7] = np.nan
    highest: Any = pf.compile(HIGHEST)(x, z)
    exact = np.full(50, -np.inf, "f4")
    with np.errstate(invalid="ignore"):
        np.maximum.at(exact, z, 2 * x)
    np.testing.assert_array_equal(highest, exact)
    sums, counts = pf.compile(TWO)(np.ones(n, "f4"), z)
    np.testing.assert_array_equal(counts, np.bincount(z, minlength=50))
    np.testing.assert_array_equal(sums, counts)
    h, y = np.full(50, 2.0, "f4"), rng.integers(-3, 4, n).astype("f4")
    pf.compile(ADDED)(h, y, z.astype("i4"))
    np.testing.assert_array_equal(h, 2 + np.bincount(z, y * y, minlength=50))


def test_an_index_out_of_range_is_reported_where_indices_are_checked() -> None:
    x, z = np.zeros(1000, "f4"), np.zeros(1000, "i8")
    z[700] = 50
    with pytest.raises(pf.PolyfuseError, match="PF4"):
        pf.compile(EXPS, checked=True)(x, z)
