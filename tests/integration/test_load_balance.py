"""Rows of data are shared out by what they have: each once, equal amounts, no bit depends on threads."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.transforms.load_balance import OF_CUT_ROWS, SHARES
from polyfuse.ir.index_expr import evaluate
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
    assert "+ load-balance:rows y" in f.explain(x, p)
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
        assert "+ load-balance:rows y" in f.explain(given, q)
        np.testing.assert_allclose(f(given, q), want, 1e-5, 1e-4)


@pytest.mark.parametrize(("n", "e"), [(0, 3000), (1, 3000), (3000, 0), (3000, 1), (2, 3000)])
def test_no_rows_and_no_elements(n: int, e: int, pool: Pool) -> None:
    pool.set_threads(3)
    for sizes in ("fixed", "open"):
        x, p = values(e, 33), ends("one", n, e)
        y = np.asarray(pf.compile(ROWS, target="cpu", sizes=sizes)(x, p))
        np.testing.assert_allclose(y, expected(x, p).reshape(n, 33), 1e-5, 1e-3)


# --- shares -----------------------------------------------------------------------------------------------


class Shares:
    """A compiled function of rows whose shares are run one by one."""

    def __init__(self, text: str, x: Array, p: Array) -> None:
        code = pf.compile(text, target="cpu").built(x, p).code
        self.launches = code.plan.launches
        self.executable = CpuExecutable(code, {})
        self.call = self.executable.prepare()
        (y,) = (b for b in code.plan.buffers if b.name == "y")
        self.y = np.empty([evaluate(e, {}) for e in y.shape], y.dtype.numpy)
        self.memory = {"x": x, "ptr": p, "y": self.y}
        for k, b in enumerate(code.plan.buffers):
            if b.name not in self.memory:
                self.memory[b.name] = np.empty([evaluate(e, {}) for e in b.shape], b.dtype.numpy)
            self.call.buffers[k] = self.memory[b.name].ctypes.data

    def run(self, launch: int, begin: int, end: int) -> None:
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64)
        run = kind(self.executable._library.address(self.launches[launch].function))
        run(ctypes.addressof(self.call.buffers), ctypes.addressof(self.call.numbers), None, begin, end)


@pytest.mark.parametrize("kind", POINTERS)
def test_shares_have_each_row_once_and_equal_amounts(kind: str) -> None:
    n, e = 3001, 4003
    p = ends(kind, n, e)
    of, shares = Shares(ROWS, values(e, 20), p), list[Array]()
    for k in range(SHARES):
        of.y[:] = np.nan
        of.run(0, k, k + 1)
        shares.append(np.flatnonzero(~np.isnan(of.y[:, 0])))
    np.testing.assert_array_equal(np.concatenate(shares), np.arange(n))
    if kind in RISING:
        kept = np.clip(p.astype(np.int64), 0, e)
        cost = 1 + np.maximum(np.diff(kept), 0)
        most = max(cost[rows].sum() - cost[rows].max(initial=0) for rows in shares)
        assert most <= cost.sum() / SHARES + 1, most


# --- rows that are cut ------------------------------------------------------------------------------------

LONG = {
    **POINTERS,
    "two": lambda n, e: np.r_[0, e // 2, e - 3, np.full(n - 2, e)],
    "last": lambda n, e: np.r_[np.arange(n), e],
    "short": lambda n, e: np.r_[0, e // 3, np.linspace(e // 3, e // 2, n - 2), e],
}


def long_ends(kind: str, n: int, e: int) -> Array:
    return np.asarray(LONG[kind](n, e)).astype(np.int32)


@pytest.mark.parametrize("kind", LONG)
def test_parts_of_long_rows_are_joined_in_order(kind: str, pool: Pool) -> None:
    """One row with everything too, as one worker or eight do, and as shares in any order do."""
    n, e = 301, 16_411
    x, p = values(e, 64), long_ends(kind, n, e)
    f = pf.compile(ROWS, target="cpu")
    assert "+ load-balance:long-rows y" in f.explain(x, p)
    want = expected(x, p)
    for threads in (1, 2, 3, 8):
        pool.set_threads(threads)
        y = np.asarray(pf.compile(ROWS, target="cpu")(x, p))
        if threads == 1:
            first = y
        np.testing.assert_array_equal(y, first)
    np.testing.assert_allclose(first, want, 1e-5, 1e-3)
    of = Shares(ROWS, x, p)
    for k in np.random.default_rng(0).permutation(OF_CUT_ROWS):
        of.run(0, int(k), int(k) + 1)
    of.run(1, 0, 1)
    np.testing.assert_array_equal(of.y, first)


def test_a_long_row_is_in_all_shares() -> None:
    n, e = 301, 16_411
    of = Shares(ROWS, values(e, 64), ends("one", n, e))
    of.run(0, 0, OF_CUT_ROWS)
    owners = of.memory["pf_k0_0.owners"]
    assert (owners == n // 2).sum() >= OF_CUT_ROWS - 2 and {*owners} == {-1, n // 2}


KINDS = {
    "f64": ("f64[E]", "f64[N]", "sum", "x[e]"),
    "max": ("f32[E]", "f32[N]", "max", "x[e]"),
    "min": ("i32[E]", "i32[N]", "min", "x[e]"),
    "count": ("i32[E]", "i64[N]", "sum", "i64(x[e])"),
    "any": ("i32[E]", "bool[N]", "any", "x[e] == 3"),
    "all": ("i32[E]", "bool[N]", "all", "x[e] > -9"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ptr", ["two", "falling", "overlapping"])
def test_totals_of_every_kind(kind: str, ptr: str, pool: Pool) -> None:
    given, result, op, term = KINDS[kind]
    text = f"""op f(x: {given}, ptr: i32[N + 1]) -> (y: {result}) {{
      y[n] = {op}[e in ptr[n]..ptr[n + 1]]({term})
    }}"""
    n, e = 37, (1 << 20) + 5
    x = np.random.default_rng(1).integers(-8, 9, e).astype({"f": "f4", "i": "i4"}[given[0]])
    x = x.astype("f8") / 7 if kind == "f64" else x
    if kind == "max":
        x[e // 5] = np.nan
    p = long_ends(ptr, n, e)
    kept = np.clip(p.astype(np.int64), 0, e)
    fold = {"sum": np.sum, "max": np.max, "min": np.min, "any": np.any, "all": np.all}[op]
    told = {"any": x == 3, "all": x > -9}.get(op, x.astype(np.int64) if kind == "count" else x)
    none = {"max": -np.inf, "min": np.iinfo(np.int32).max}.get(op)
    more = {} if none is None else {"initial": none}
    want = np.array([fold(told[a : max(a, b)], **more) for a, b in pairwise(kept)])
    pool.set_threads(2)
    f = pf.compile(text, target="cpu")
    assert "+ load-balance:long-rows y" in f.explain(x, p)
    np.testing.assert_allclose(f(x, p), want, 1e-12)


# --- what is told -----------------------------------------------------------------------------------------


@pytest.mark.machine("zen3")
@pytest.mark.parametrize(
    ("text", "n", "e", "told"),
    [
        (ROWS, 401, 2003, "+ load-balance:rows y: workers share rows out by how many elements these have"),
        (ROWS, 401, 1403, "- load-balance:rows y: to search for a worker's rows takes long"),
        (
            ROWS.replace("ptr[n]..", "(ptr[n] - 1).."),
            401,
            2003,
            "- load-balance:rows y: a row does not end where the next one begins",
        ),
    ],
)
def test_explain_says_what_was_emitted(text: str, n: int, e: int, told: str) -> None:
    f, x, p = pf.compile(text, target="cpu"), values(e, 64), ends("even", n, e)
    assert told in f.explain(x, p)
    built = f.built(x, p).code
    taken = told.startswith("+")
    assert ("pf_rows_from(" in built.source) == taken
    assert (f"parallel over {SHARES}" in str(built.plan)) == taken


def test_blocks_of_a_gpu_take_rows_as_they_come() -> None:
    told = pf.compile(ROWS, target="emulate").explain(values(2003, 64), ends("even", 401, 2003))
    assert "- load-balance:rows y__part: multiprocessors take blocks of few rows each" in told


def test_libraries_for_c_cut_rows_as_well(tmp_path: Path) -> None:
    n, e = 301, 16_411
    x, p = values(e, 64), ends("one", n, e)
    f = pf.compile(ROWS, target="cpu")
    pf.export(f, tmp_path / "rows.so", sizes={"N": n, "E": e, "F": 64})
    np.testing.assert_array_equal(pf.load(tmp_path / "rows.so")(x, p), f(x, p))
