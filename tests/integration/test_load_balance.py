"""Rows of data are shared out by what they have: each once, equal amounts, no bit depends on threads."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.transforms.load_balance import SHARES
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.cpu.pool import Pool

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

ROWS = """op f(x: f32[E, F], ptr: i32[N + 1]) -> (y: f32[N, F]) {
  y[n, f] = sum[e in ptr[n]..ptr[n + 1]](x[e, f])
}"""
# Rows inside of another parallel loop, rows with one inside, and a last row that ends where all do.
HEADS = """op f(x: f32[H, E, F], ptr: i32[N + 1]) -> (y: f32[H, N, F]) {
  y[h, n, f] = sum[e in ptr[n]..ptr[n + 1]](x[h, e, f])
}"""
INNER = """op f(x: f32[E, H, F], ptr: i32[N + 1]) -> (y: f32[N, H, F]) {
  y[n, h, f] = sum[e in ptr[n]..ptr[n + 1]](x[e, h, f])
}"""
LAST = """op f(x: f32[E, F], ptr: i64[N]) -> (y: f32[N, F]) {
  y[n, f] = sum[e in ptr[n]..(ptr[n + 1] if n + 1 < N else E)](x[e, f])
}"""

POINTERS = {
    "even": lambda n, e: np.linspace(0, e, n + 1),
    "empty": lambda n, e: np.zeros(n + 1),
    "one": lambda n, e: np.where(np.arange(n + 1) > n // 2, e, 0),
    "few": lambda n, e: np.linspace(e // 3, e // 3 + 9, n + 1),
    "falling": lambda n, e: e - e * (1 - np.arange(n + 1) / max(n, 1)) ** 4,
    "backward": lambda n, e: np.linspace(e, 0, n + 1),
    "overlapping": lambda n, e: np.arange(n + 1) * 977 % (e + 1),
    "outside": lambda n, e: np.arange(n + 1) * (e + 400) // max(n, 1) - 200,
}
RISING = ("even", "empty", "one", "few", "falling", "outside")


def ends(kind: str, n: int, e: int) -> Array:
    return np.asarray(POINTERS[kind](n, e)).astype(np.int32)


def expected(x: Array, p: Array) -> Array:
    """Sums of rows along the first axis, in f64."""
    kept = np.clip(p.astype(np.int64), 0, len(x))
    return np.array([x[a : max(a, b)].astype(np.float64).sum(0) for a, b in pairwise(kept)])


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool.get()
    before = pool.threads
    yield pool
    pool.set_threads(before)


def values(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# --- results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", POINTERS)
def test_no_bit_depends_on_threads(kind: str, pool: Pool) -> None:
    n, e = 401, 2003
    x, p = values(e, 64), ends(kind, n, e)
    f = pf.compile(ROWS, target="cpu")
    assert "+ load-balance y" in f.explain(x, p)
    found = []
    for threads in (1, 2, 3, 8):
        pool.set_threads(threads)
        found.append(np.asarray(pf.compile(ROWS, target="cpu")(x, p)))
    unfused = np.asarray(pf.compile(ROWS, target="cpu", layers=())(x, p))
    for y in found:
        np.testing.assert_array_equal(y, found[0])
    for y in (found[0], unfused):
        np.testing.assert_allclose(y, expected(x, p), 1e-5, 1e-4)


@pytest.mark.parametrize("sizes", ["fixed", "open"])
@pytest.mark.parametrize("kind", ["one", "overlapping", "outside"])
def test_rows_among_other_loops(kind: str, sizes: str, pool: Pool) -> None:
    n, e = 113, 2003
    p, x, z = ends(kind, n, e), values(3, e, 64), values(e, 3, 64)
    every = np.array([*p[:-1], e])
    pool.set_threads(3)
    for text, given, q, want in [
        (HEADS, x, p, [expected(h, p) for h in x]),
        (INNER, z, p, expected(z, p)),
        (LAST, z[:, 0].copy(), p[:-1].astype(np.int64), expected(z[:, 0], every)),
    ]:
        f = pf.compile(text, target="cpu", sizes=sizes)
        assert "+ load-balance y" in f.explain(given, q)
        np.testing.assert_allclose(f(given, q), want, 1e-5, 1e-4)


@pytest.mark.parametrize(("n", "e"), [(0, 3000), (1, 3000), (3000, 0), (3000, 1), (2, 3000)])
def test_no_rows_and_no_elements(n: int, e: int, pool: Pool) -> None:
    pool.set_threads(3)
    for sizes in ("fixed", "open"):
        x, p = values(e, 33), ends("one", n, e)
        y = np.asarray(pf.compile(ROWS, target="cpu", sizes=sizes)(x, p))
        np.testing.assert_allclose(y, expected(x, p).reshape(n, 33), 1e-5, 1e-3)


# --- shares -----------------------------------------------------------------------------------------------


def rows_of_shares(x: Array, p: Array) -> list[Array]:
    """The rows that each share writes."""
    code = pf.compile(ROWS, target="cpu").built(x, p).code
    (launch,) = code.plan.launches
    executable = CpuExecutable(code, {})
    call, y = executable.prepare(), np.empty((len(p) - 1, x.shape[1]), np.float32)
    given = {"x": x, "ptr": p, "y": y}
    for k, b in enumerate(code.plan.buffers):
        call.buffers[k] = given[b.name].ctypes.data
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64)
    run = kind(executable._library.address(launch.function))
    found = []
    for k in range(SHARES):
        y[:] = np.nan
        run(ctypes.addressof(call.buffers), ctypes.addressof(call.numbers), None, k, k + 1)
        found.append(np.flatnonzero(~np.isnan(y[:, 0])))
    return found


@pytest.mark.parametrize("kind", POINTERS)
def test_shares_have_each_row_once_and_equal_amounts(kind: str) -> None:
    n, e = 3001, 4003
    x, p = values(e, 20), ends(kind, n, e)
    shares = rows_of_shares(x, p)
    np.testing.assert_array_equal(np.concatenate(shares), np.arange(n))
    if kind in RISING:
        kept = np.clip(p.astype(np.int64), 0, e)
        cost = 1 + np.maximum(np.diff(kept), 0)
        most = max(cost[rows].sum() - cost[rows].max(initial=0) for rows in shares)
        assert most <= cost.sum() / SHARES + 1, most


# --- what is told -----------------------------------------------------------------------------------------


@pytest.mark.machine("zen3")
@pytest.mark.parametrize(
    ("text", "n", "e", "told"),
    [
        (ROWS, 401, 2003, "+ load-balance y: workers share rows out by how many elements these have"),
        (ROWS, 401, 1403, "- load-balance y: to search for a worker's rows takes long"),
        (
            ROWS.replace("ptr[n]..", "(ptr[n] - 1).."),
            401,
            2003,
            "- load-balance y: a row does not end where the next one begins",
        ),
    ],
)
def test_explain_says_what_was_emitted(text: str, n: int, e: int, told: str) -> None:
    f, x, p = pf.compile(text, target="cpu"), values(e, 64), ends("even", n, e)
    assert told in f.explain(x, p)
    built = f.built(x, p).code
    taken = told.startswith("+")
    assert ("pf_first_of_share(" in built.source) == taken
    assert (f"parallel over {SHARES}" in str(built.plan)) == taken


def test_blocks_of_a_gpu_take_rows_as_they_come() -> None:
    told = pf.compile(ROWS, target="emulate").explain(values(2003, 64), ends("even", 401, 2003))
    assert "- load-balance y__part: multiprocessors take blocks of few rows each" in told
