"""Bounds of reductions from data, on all targets and layers, beside loops written by hand."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from targets import Call
from ways import WAYS, check

import polyfuse as pf
from polyfuse.api import LAYERS
from polyfuse.cost.extents import extents
from polyfuse.cost.extents import instances as cost_instances
from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.index_expr import evaluate as evaluate_index
from polyfuse.ir.kernel import instances
from polyfuse.layers.mapping.nests import volume
from polyfuse.runtime.numpy_baseline import baseline, source
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import Evaluated, evaluate

Arrays = dict[str, np.ndarray[Any, Any]]
COMPILED = ["cpu", "emulate"] if shutil.which("g++") else []
TARGETS = ["interpret", *COMPILED]

PROGRAMS = {
    "spmm": """
op spmm(w: f32[E], col: i32[E], ptr: i32[N + 1], x: f32[M, F]) -> (y: f32[N, F]) {
  y[n, f] = sum[e in ptr[n]..ptr[n + 1]](w[e] * x[col[e], f])
}""",
    "folds": """
op folds(v: f32[E], k: i32[E], b: bool[E], ptr: i64[N + 1])
    -> (s: f32[N], p: f64[N], hi: f32[N], lo: f32[N], mu: f32[N], any_: bool[N], all_: bool[N], ki: i32[N]) {
  s[n] = sum[e in ptr[n]..ptr[n + 1]](v[e] * v[e]) + 1.0
  p[n] = prod[e in ptr[n]..ptr[n + 1]](f64(v[e]))
  hi[n] = max[e in ptr[n]..ptr[n + 1]](v[e])
  lo[n] = min[e in ptr[n]..ptr[n + 1]](v[e])
  mu[n] = mean[e in ptr[n]..ptr[n + 1]](v[e])
  any_[n] = any[e in ptr[n]..ptr[n + 1]](b[e])
  all_[n] = all[e in ptr[n]..ptr[n + 1]](b[e])
  ki[n] = max[e in ptr[n]..ptr[n + 1]](k[e])
}""",
    "windows": """
op windows(x: f32[M, E], lo: i32[N], hi: i16[N]) -> (y: f32[N, M], total: f32) {
  y[n, m] = sum[e in max(1, lo[n])..min(hi[n] + 2, E - 1)](x[m, e - 1] * x[m, e + 1])
  total = sum[n in 0..N, e in lo[n]..hi[n]](x[0, e] * (n + 1))
}""",
    "computed": """
op computed(x: f32[N, E], length: i32[N], k: i64) -> (y: f32[N, E], z: f32[N]) {
  last[n] = min(length[n], 3)
  m[n] = max[e in 0..last[n]](x[n, e])
  s[n] = sum[e in 0..last[n]](exp(x[n, e] - m[n]))
  y[n, e] = exp(x[n, e] - m[n]) / s[n] if e < last[n] else 0.0
  z[n] = sum[e in k..E](x[n, e]) + sum[e in 0..k + 1](x[n, e])
}""",
}


RESULTS = {
    "spmm": ("y",),
    "folds": ("s", "p", "hi", "lo", "mu", "any_", "all_", "ki"),
    "windows": ("y", "total"),
    "computed": ("y", "z"),
}


def rows(p: np.ndarray[Any, Any], count: int) -> Iterator[slice]:
    """The elements of each row: ends are brought into the range."""
    ends = np.clip(p.astype(np.int64), 0, count)
    for a, b in pairwise(ends):
        yield slice(int(a), max(int(a), int(b)))


def expected(name: str, x: Arrays) -> Arrays:
    """By loops over rows, in f64."""
    with np.errstate(all="ignore"):
        return globals()[f"_{name}"](x)


def _spmm(x: Arrays) -> Arrays:
    w, dense = x["w"].astype(np.float64), x["x"].astype(np.float64)
    y = np.zeros((len(x["ptr"]) - 1, dense.shape[1]))
    for n, r in enumerate(rows(x["ptr"], len(w))):
        for e in range(r.start, r.stop):
            y[n] += w[e] * dense[min(max(int(x["col"][e]), 0), len(dense) - 1)]
    return {"y": y}


def _folds(x: Arrays) -> Arrays:
    v, k, b = x["v"].astype(np.float64), x["k"], x["b"]
    each = [*rows(x["ptr"], len(v))]
    return {
        "s": np.array([(v[r] ** 2).sum() + 1 for r in each]),
        "p": np.array([v[r].prod() for r in each]),
        "hi": np.array([v[r].max(initial=-np.inf) for r in each]),
        "lo": np.array([v[r].min(initial=np.inf) for r in each]),
        "mu": np.array([v[r].sum() / np.float64(r.stop - r.start) for r in each]),
        "any_": np.array([b[r].any() for r in each], bool),
        "all_": np.array([b[r].all() for r in each], bool),
        "ki": np.array([k[r].max(initial=np.iinfo(np.int32).min) for r in each], np.int32),
    }


def _windows(x: Arrays) -> Arrays:
    d, lo, hi = x["x"].astype(np.float64), x["lo"].astype(int), x["hi"].astype(int)
    m, count = d.shape
    y, total = np.zeros((len(lo), m)), 0.0
    for n in range(len(lo)):
        for e in range(max(1, lo[n]), min(hi[n] + 2, count - 1)):
            y[n] += d[:, e - 1] * d[:, e + 1]
        for e in range(max(0, lo[n]), min(hi[n], count)):
            total += d[0, e] * (n + 1)
    return {"y": y, "total": np.array(total)}


def _computed(x: Arrays) -> Arrays:
    d, k = x["x"].astype(np.float64), int(x["k"])
    y, z = np.zeros_like(d), np.zeros(len(d))
    for n in range(len(d)):
        last = max(0, min(int(x["length"][n]), 3, d.shape[1]))
        e = np.exp(d[n, :last] - d[n, :last].max(initial=-np.inf))
        y[n, :last] = e / e.sum()
        z[n] = d[n, max(k, 0) :].sum() + d[n, : max(k + 1, 0)].sum()
    return {"y": y, "z": z}


# What pointers may be: rows without elements, all of them in one row, backward and overlapping, outside.
POINTERS = {
    "even": lambda n, e: np.linspace(0, e, n + 1),
    "empty": lambda n, e: np.zeros(n + 1),
    "one": lambda n, e: np.where(np.arange(n + 1) > n // 2, e, 0),
    "backward": lambda n, e: np.linspace(e, 0, n + 1),
    "overlapping": lambda n, e: np.arange(n + 1) * 7 % (e + 1),
    "outside": lambda n, e: np.arange(n + 1) * (e + 40) // max(n, 1) - 20,
}
INSIDE = ("even", "empty", "one")


@cache
def inputs(name: str, kind: str, n: int, e: int) -> Arrays:
    rng = np.random.default_rng(n + e)
    p = POINTERS[kind](n, e).astype(np.int64)
    v = rng.standard_normal(e).astype(np.float32)
    if name == "spmm":
        x = rng.standard_normal((9, 5)).astype(np.float32)
        return {"w": v, "col": rng.integers(0, 9, e).astype(np.int32), "ptr": p.astype(np.int32), "x": x}
    if name == "folds":
        k = rng.integers(-99, 99, e).astype(np.int32)
        return {"v": v, "k": k, "b": rng.random(e) < 0.7, "ptr": p}
    x = rng.standard_normal((3 if name == "windows" else n, e)).astype(np.float32)
    if name == "windows":
        return {"x": x, "lo": p[:-1].astype(np.int32), "hi": p[1:].astype(np.int16)}
    return {"x": x, "length": p[1:].astype(np.int32), "k": np.int64(e // 2)}


@cache
def reference(name: str, kind: str, n: int, e: int) -> dict[str, Evaluated]:
    given = inputs(name, kind, n, e)
    graph = pf.parse(PROGRAMS[name]).op(name).graph({})
    sizes = {"N": n, "E": e, "M": 9 if name == "spmm" else 3, "F": 5}
    with np.errstate(all="ignore"):
        return evaluate(graph, {s: sizes[s] for s in graph.sizes}, given, checked=False)


SHAPES = [(13, 37), (1, 5), (4, 1), (3, 0), (0, 5), (130, 700)]
CASES = [(p, n, e) for p in PROGRAMS for n, e in SHAPES]


def compare(name: str, got: Any, want: dict[str, Evaluated], given: Arrays) -> None:
    results = RESULTS[name]
    named = dict(zip(results, got if isinstance(got, tuple) else (got,), strict=True))
    by_hand = expected(name, given)
    for result, found in named.items():
        found = np.asarray(found)
        where = (result, found, by_hand[result])
        dtype = BY_NAME[found.dtype.name.replace("float", "f").replace("int", "i")]
        assert agrees(found, want[result], dtype), where
        if found.dtype.kind == "f":
            scale = np.abs(by_hand[result][np.isfinite(by_hand[result])]).max(initial=1)
            assert np.allclose(found, by_hand[result], 2e-4, 2e-4 * scale, equal_nan=True), where
        else:
            assert np.array_equal(found, by_hand[result]), where


@pytest.mark.parametrize(("name", "n", "e"), CASES)
@pytest.mark.parametrize("layers", [(), LAYERS], ids=["none", "all"])
@pytest.mark.parametrize("target", TARGETS)
def test_targets_agree(name: str, n: int, e: int, layers: tuple[str, ...], target: str) -> None:
    f = pf.compile(PROGRAMS[name], op=name, target=target, layers=layers)
    # The interpreter checks pointers, and ends that are kept on one side only.
    checked = [k for k in INSIDE if (name, k) != ("windows", "one")]
    for kind in checked if target == "interpret" else POINTERS:
        given = inputs(name, kind, n, e)
        compare(name, f(**given), reference(name, kind, n, e), given)


# --- rows of elements -------------------------------------------------------------------------------------

ROWS = """
op rows(x: f32[E], ptr: i32[N + 1]) -> (p: f32[E], r: i64[E], late: i64[E]) {
  m[n] = max[e in ptr[n]..ptr[n + 1]](x[e]) for n in 0..N
  s[n] = sum[e in ptr[n]..ptr[n + 1]](exp(x[e] - m[n]))
  p[e] = exp(x[e] - m[row(ptr, e)]) / s[row(ptr, e)]
  r[e] = row(ptr, e)
  late[e] = row(ptr, E - 1 - e) for e in 0..E
}"""
ROW_SHAPES = [(13, 37), (1, 5), (4, 1), (3, 0), (40, 90), (17, 16), (300, 900)]


def _last(p: np.ndarray[Any, Any], e: int) -> int:
    return max((n for n, at in enumerate(p) if at <= e), default=-1)


@pytest.mark.parametrize(("n", "e"), ROW_SHAPES)
@pytest.mark.parametrize("layers", [(), LAYERS], ids=["none", "all"])
@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_elements(n: int, e: int, layers: tuple[str, ...], target: str) -> None:
    f = pf.compile(ROWS, target=target, layers=layers)
    x = np.random.default_rng(n + e).standard_normal(e).astype(np.float32)
    # The interpreter checks that each element has a row.
    for kind in ("even", "one") if target == "interpret" else POINTERS:
        ptr = POINTERS[kind](n, e).astype(np.int32)
        want = np.array([_last(ptr, i) for i in range(e)], np.int64)
        p, r, late = map(np.asarray, f(x, ptr))
        np.testing.assert_array_equal(r, want, kind)
        np.testing.assert_array_equal(late, want[::-1], kind)
        with np.errstate(all="ignore"):
            each = [x[s].astype(np.float64) for s in rows(ptr, e)]
            m = np.array([v.max(initial=-np.inf) for v in each])
            s = np.array([np.exp(v - v.max(initial=-np.inf)).sum() for v in each])
            at = np.clip(want, 0, n - 1)
            np.testing.assert_allclose(p, np.exp(x - m[at]) / s[at], 2e-5, err_msg=kind)


@pytest.mark.machine("zen3")
def test_rows_take_one_pass() -> None:
    x, ptr = np.zeros(900, np.float32), np.linspace(0, 900, 301).astype(np.int32)
    told = pf.compile(ROWS, target="cpu").explain(x, ptr)
    assert "+ bucket-scan p__max: each n1 counts from one e on" in told


@pytest.mark.machine("zen3")
def test_equal_rows_of_several_statements_are_one() -> None:
    f, given = pf.compile(pf.stdlib, op="segment_softmax", target="cpu"), {"x": np.zeros(900, np.float32)}
    told = f.explain(**given, start=np.linspace(0, 900, 301).astype(np.int32))
    assert "+ merge y__max: it equals p__max" in told and told.count("+ bucket-scan ") == 1


@pytest.mark.parametrize("n, b", [(33, 2), (33, 0)])
def test_rows_of_several_pointers(n: int, b: int) -> None:
    text = """op f(ptr: i64[N, B], x: f32[E]) -> (r: i64[E, B]) {
      r[e, b] = max[n in 0..N](n if ptr[n, b] <= e else -1) for e in 0..E, b in 0..B
    }"""
    ptr = np.sort(np.random.default_rng(n).integers(0, 20, (n, b)), axis=0)
    want = [[int((ptr[:, k] <= e).sum()) - 1 for k in range(b)] for e in range(20)]
    found = np.asarray(pf.compile(text, target="cpu")(ptr, np.zeros(20, np.float32)))
    np.testing.assert_array_equal(found, np.array(want, np.int64).reshape(20, b))


def test_a_row_of_ones_own() -> None:
    """An operator or a function that a file calls row is what it was."""
    text = """fn row(a, b) = a + b
op f(x: f32[N]) -> (y: f32[N]) { y[i] = row(x[i], 1.0) }
"""
    np.testing.assert_array_equal(pf.compile(text, target="interpret")(np.ones(3, np.float32)), 2.0)
    text = """op row(a: f32[N]) -> (y: f32[N]) { y[i] = a[i] * 2.0 }
op g(x: f32[N]) -> (y: f32[N]) { y = row(x) }
"""
    np.testing.assert_array_equal(pf.compile(text, "g", target="interpret")(np.ones(3, np.float32)), 2.0)


LONG = """op f(x: f32[E, F], p: i32[N + 1]) -> (y: f32[N, F]) {
  y[n, f] = sum[e in p[n]..p[n + 1]](x[e, f])
}"""


@pytest.mark.parametrize("layers", [(), LAYERS], ids=["none", "all"])
@pytest.mark.parametrize("columns", [1, 8, 100])
@pytest.mark.skipif(not COMPILED, reason="no g++")
def test_sums_of_long_rows_round_as_other_sums_do(columns: int, layers: tuple[str, ...]) -> None:
    """How long a row is only data tells: any may have all elements."""
    count = 100_000
    x = (0.1 + 0.001 * np.random.default_rng(0).random((count, columns))).astype(np.float32)
    ends = np.array([0, 5, count], np.int32)
    y = np.asarray(pf.compile(LONG, target="cpu", layers=layers)(x, ends))
    parts = x[:5], x[5:]
    np.testing.assert_allclose(y, [v.astype(np.float64).sum(0) for v in parts], 1e-6)


UNSIGNED = """op f(x: f32[E], p: u64[N], q: u32[N]) -> (y: f32[N], z: f32[N]) {
  y[n] = sum[e in 0..E](x[e] if e < p[n] else 0.0)
  z[n] = sum[e in 0..q[n]](x[e])
}"""


@pytest.mark.parametrize("target", COMPILED)
def test_unsigned_ends(target: str) -> None:
    """A number that i64 has not is no small one: its condition stays a condition."""
    p, q = np.array([2**63 + 5, 3, 0], np.uint64), np.array([2**32 - 1, 3, 0], np.uint32)
    y, z = pf.compile(UNSIGNED, target=target)(np.ones(40, np.float32), p, q)
    assert [*y] == [*z] == [40, 3, 0]


@pytest.mark.parametrize("kind", POINTERS)
@pytest.mark.parametrize(("n", "e"), [(13, 37), (4, 1), (3, 0), (0, 5)])
def test_the_baseline_agrees(kind: str, n: int, e: int) -> None:
    for name in PROGRAMS:
        given = inputs(name, kind, n, e)
        want = reference(name, kind, n, e)
        graph = pf.parse(PROGRAMS[name]).op(name).graph({})
        sizes = {"N": n, "E": e, "M": 9 if name == "spmm" else 3, "F": 5}
        with np.errstate(all="ignore"):
            found = baseline(graph, {s: sizes[s] for s in graph.sizes})(given)
        compare(name, tuple(found[r] for r in RESULTS[name]), want, given)


@pytest.mark.parametrize("kind", POINTERS)
@pytest.mark.parametrize(("n", "e"), [(13, 37), (1, 5), (4, 1), (3, 0)])
def test_rows_of_the_baseline(kind: str, n: int, e: int) -> None:
    ptr, x = POINTERS[kind](n, e).astype(np.int32), np.ones(e, np.float32)
    want = [_last(ptr, i) for i in range(e)]
    found = baseline(pf.parse(ROWS).op("rows").graph({}), {"N": n, "E": e})({"x": x, "ptr": ptr})
    np.testing.assert_array_equal(found["r"], want)
    np.testing.assert_array_equal(found["late"], want[::-1])


def test_the_baseline_looks_at_each_element_once() -> None:
    """As a NumPy user writes it, without a mask of rows and elements."""
    text = source(pf.parse(PROGRAMS["spmm"]).op("spmm").graph({}), {"N": 3, "E": 9, "M": 4, "F": 5})
    assert "segments(np.add," in text and "where" not in text
    text = source(pf.parse(ROWS).op("rows").graph({}), {"N": 3, "E": 9})
    assert "segments(np.maximum," in text and "last(" in text


# --- checked builds ---------------------------------------------------------------------------------------

WRONG = {
    "before": ([-1, 2, 5], r"'ptr\[n\]' is (-1, )?not in 0\.\.8"),
    "behind": ([0, 2, 8], r"'ptr\[n \+ 1\]' is (8, )?not in .*\.\.8"),
    "backward": ([0, 5, 2], r"'ptr\[n \+ 1\]' is (2, )?not in .*ptr\[.*\.\.8"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("layers", [(), LAYERS], ids=["none", "all"])
@pytest.mark.parametrize("target", TARGETS)
def test_checked_builds_refuse_ends_that_are_none(kind: str, layers: tuple[str, ...], target: str) -> None:
    p, message = WRONG[kind]
    x = {**inputs("spmm", "even", 2, 7), "ptr": np.array(p, np.int32)}
    f = pf.compile(PROGRAMS["spmm"], target=target, layers=layers, checked=True)
    with pytest.raises(ArgumentError, match=message) as found:
        f(**x)
    assert found.value.code == "PF450"
    f(**{**x, "ptr": np.array([0, 7, 7], np.int32)})


@pytest.mark.parametrize("kind", WRONG)
def test_the_reference_refuses_them(kind: str) -> None:
    x = {**inputs("spmm", "even", 2, 7), "ptr": np.array(WRONG[kind][0], np.int32)}
    graph = pf.parse(PROGRAMS["spmm"]).op("spmm").graph({})
    with pytest.raises(ArgumentError, match="not in") as found:
        evaluate(graph, {"E": 7, "N": 2, "M": 9, "F": 5}, x)
    assert found.value.code == "PF450"


def test_elements_of_no_row_are_not_looked_at() -> None:
    """What a checked build reports of an index is that of elements that are reduced."""
    x = inputs("spmm", "even", 2, 7)
    col = np.array([0, 99, 1, 2, 3, -5, 4], np.int32)
    f = pf.compile(PROGRAMS["spmm"], target="interpret", checked=True)
    y = f(**{**x, "col": col, "ptr": np.array([2, 4, 5], np.int32)})
    assert np.isfinite(np.asarray(y)).all()


# --- loops ------------------------------------------------------------------------------------------------


@pytest.mark.machine("zen3")
@pytest.mark.skipif(not COMPILED, reason="no g++")
def test_loops_have_the_true_bounds() -> None:
    """No condition on an element is left in the loops over rows and elements."""
    for name in PROGRAMS:
        built = pf.compile(PROGRAMS[name], op=name, target="cpu").built(**inputs(name, "even", 500, 9000))
        loops = built.code.source[built.code.source.index("PF_EXPORT extern") :]
        assert " d0" in loops, name
        assert "?" not in "".join(x for x in loops.splitlines() if "ptr" in x), name


SEGMENTS = """op f(x: f32[E], ptr: i32[N + 1]) -> (y: f32[N]) {
  y[n] = sum[e in ptr[n]..ptr[n + 1]](x[e])
}"""


@pytest.mark.machine("zen3")
@pytest.mark.skipif(not COMPILED, reason="no g++")
@pytest.mark.parametrize(("n", "e"), [(9, 65), (17, 16), (500, 9000), (9000, 500)])
def test_few_segments_have_the_true_bounds(n: int, e: int) -> None:
    """At any size the loop over elements is inside of the one over rows: it takes E steps, not N * E."""
    given = {"x": np.zeros(e, np.float32), "ptr": np.zeros(n + 1, np.int32)}
    text = pf.compile(SEGMENTS, target="cpu").built(**given).code.source
    assert "ptr[c0 + 1]), 0)" in text and "? q0" not in text


@pytest.mark.parametrize(("n", "e", "count"), [(30, 600, 600), (30, 7, 30), (0, 7, 0), (30, 0, 0)])
def test_elements_of_all_rows_count_once(n: int, e: int, count: int) -> None:
    """By the estimate of time, by what is shared out to workers, and by the mapping to them."""
    graph = pf.parse(SEGMENTS).op("f").graph({})
    (s,) = graph.statements
    assert evaluate_index(instances(s), {"N": n, "E": e}) == count
    (fixed,) = fixed_graph(graph, {"N": n, "E": e}).statements
    assert cost_instances(extents(fixed)) == count
    assert volume(fixed_graph(graph, {"N": n, "E": e}), (fixed.name,)) == count


def test_ends_that_are_no_rows_count_whole() -> None:
    """Of one row, and of rows whose other end is no data, any may have all elements."""
    for ends in ("0..ptr[n]", "ptr[n]..E", "k..E", "0..k"):
        text = f"""op f(x: f32[E], ptr: i32[N], k: i64) -> (y: f32[N]) {{
          y[n] = sum[e in {ends}](x[e] * (n + 1)) for n in 0..N
        }}"""
        (s,) = pf.parse(text).op("f").graph({}).statements
        assert evaluate_index(instances(s), {"N": 30, "E": 600}) == 30 * 600, ends


BAGS = """op f(table: f32[V, D], k: i32[E], ptr: i32[N + 1]) -> (y: f32[N, D]) {
  y[n, d] = sum[e in ptr[n]..ptr[n + 1]](table[k[e], d])
}"""


@pytest.mark.machine("zen3")
@pytest.mark.skipif(not COMPILED, reason="no g++")
@pytest.mark.parametrize(("rows", "columns", "held", "asked"), [
    (99_999, 64, True, True), (99, 64, True, False), (99_999, 97, False, True), (99_999, 8, True, True),
])  # fmt: skip
def test_totals_of_rows_that_data_names(rows: int, columns: int, held: bool, asked: bool) -> None:
    """They stay in registers that hold them, and rows of a table that no cache holds are asked for."""
    given = {"k": np.zeros(4000, np.int32), "ptr": np.zeros(401, np.int32)}
    given["table"] = np.zeros((rows, columns), np.float32)
    text = pf.compile(BAGS, target="cpu").built(**given).code.source
    assert ("held0[" in text, "__builtin_prefetch" in text) == (held, asked)
    if asked and held:  # the line that a row ends in as well, and whether a row is one piece only once
        assert f"+ {columns - 1})]);" in text and text.count("+ 64) < ") == 1


@pytest.mark.parametrize("columns", [8, 64, 97])
@pytest.mark.parametrize("open_sizes", [False, True])
@pytest.mark.skipif(not COMPILED, reason="no g++")
def test_rows_of_any_length(columns: int, open_sizes: bool) -> None:
    """Of no piece, one and several, whose totals are joined in f64."""
    lengths = [0, 1, 3, 63, 64, 65, 128, 129, 0, 255, 256, 257, 259, 260, 600, 2]
    ends, rng = np.cumsum([5, *lengths]).astype(np.int32), np.random.default_rng(0)
    table = rng.standard_normal((10_000, columns)).astype(np.float32)
    k = rng.integers(-3, 10_003, int(ends[-1]) + 7).astype(np.int32)
    f = pf.compile(BAGS, target="cpu", sizes="open" if open_sizes else "fixed")
    y = np.asarray(f(table, k, ends))
    read = table.astype(np.float64)[np.clip(k, 0, 9_999)]
    np.testing.assert_allclose(y, [read[a:b].sum(0) for a, b in pairwise(ends)], 1e-5, 2e-5)


# --- barriers ---------------------------------------------------------------------------------------------

# Stitched, each block has rows of its own. To the proof it is data whether an element is in them,
ROWS_OF_BLOCKS = """
op f(x: f32[E, 3], ptr: i64[N + 1]) -> (y: f32[E]) {
  m[n] = max[e in ptr[n]..ptr[n + 1]](x[e, 0]) for n in 0..N
  z[n] = sum[e in ptr[n]..ptr[n + 1]](exp(x[e, 0] - m[n])) for n in 0..N
  y[e] = x[e, 0] / z[e % N]
}"""
# and which elements of a tensor in memory a loop over them reads.
ELEMENTS_OF_ALL = """
op f(x: f32[E, 3], ptr: i64[N + 1]) -> (y: f32[N, 3, 7]) {
  s[e, h] = sum[d in 0..7](x[e, h] * x[row(ptr, e), h] * d)
  m[n, h] = max[e in ptr[n]..ptr[n + 1]](s[e, h]) for n in 0..N, h in 0..3
  z[n, h] = sum[e in ptr[n]..ptr[n + 1]](exp(s[e, h] - m[n, h]))
  y[n, h, d] = sum[e in ptr[n]..ptr[n + 1]](exp(s[e, h] - m[n, h]) * x[e, h] * d) / z[n, h]
}"""


@pytest.mark.parametrize("text", [ROWS_OF_BLOCKS, ELEMENTS_OF_ALL])
def test_the_proof_of_barriers_knows_nothing_of_data(text: str) -> None:
    graph = pf.parse(text).op("f").graph()
    calls = []
    for n, e in [(6, 37), (5, 23), (16, 64)]:
        rng = np.random.default_rng(n)
        given = {"x": rng.standard_normal((e, 3)).astype("f4"), "ptr": POINTERS["even"](n, e).astype("i8")}
        calls.append(Call(f"{n} rows", text, graph, {"N": n, "E": e}, given))
    check([(call, way) for call in calls for way in WAYS if way.stitched and not way.on_cpu])
