"""Integers of 64 bits that fit 32 are computed in 32, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_equivalent, fixed_graph_of

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import I32
from polyfuse.ir.tensor_graph import TensorGraph, format_expr
from polyfuse.layers.graph.cleanup.run import cleaned

TOP = 2**31 - 1


def graph_of(text: str, **sizes: int) -> TensorGraph:
    graph = fixed_graph_of(text, **sizes)
    made = cleaned(graph, [], checked=False)
    assert_equivalent(graph, made)
    return made


def body(right: str, dtype: str = "i32") -> str:
    made = graph_of(f"op f(x: {dtype}[N]) -> (y: i64[N]) {{ y[n] = {right} }}", N=7)
    return format_expr(made.statements[-1].expr)


@pytest.mark.parametrize(
    ("right", "dtype"),
    [
        ("i64(x[n]) % 1009 * 2000", "i32"),
        ("i64(x[n]) * 60000 + 7", "i16"),
        ("i64(x[n]) + n", "i16"),
        ("i64(floor(min(max(x[n], 0.0), 254.5))) + 1", "f32"),
        ("i64(round(min(max(x[n], 0.0), 1.0) * 255.0)) * 256", "f64"),
        ("abs(i64(x[n])) // 3", "i8"),
        ("(i64(x[n]) if x[n] > 3 else -5) - 1", "i16"),
        ("i64(x[n]) - i64(x[n] > 0)", "i16"),
        (f"min(i64(x[n]), {TOP})", "i32"),
    ],
)
def test_what_fits_is_computed_in_32_bits(right: str, dtype: str) -> None:
    text = body(right, dtype)
    assert text.startswith("i64(") and "i64" not in text[4:]


@pytest.mark.parametrize(
    ("right", "dtype"),
    [
        ("i64(x[n]) + 1", "i32"),  # one more than the largest
        ("-i64(x[n])", "i32"),
        ("abs(i64(x[n]))", "i32"),
        ("i64(x[n]) // -1", "i32"),
        ("i64(x[n]) * 65538", "i16"),
        ("i64(x[n]) % 2147483649", "i32"),
        ("i64(x[n]) + 0 * n + 2147483647", "i8"),
        ("i64(min(max(x[n], 0.0), 2147483648.0)) + 1", "f64"),
        ("i64(max(x[n], 0.0)) + 1", "f32"),
    ],
)
def test_what_may_not_fit_stays(right: str, dtype: str) -> None:
    assert "i32" not in body(right, dtype)


LIMITS = {
    "i32": np.array([-(2**31), -(2**31) + 1, -1, 0, 1, TOP - 1, TOP], "i4"),
    "i16": np.array([-(2**15), -1, 0, 1, 3, 4, 2**15 - 1], "i2"),
}


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("by", [-7, 1, 2, 3, 8, 1009, 65536, 2**31, 2**40])
def test_divisions_at_the_limits(dtype: str, by: int) -> None:
    text = f"""op f(x: {dtype}[N]) -> (q: i64[N], r: i64[N]) {{
      q[n] = i64(x[n]) // {by}
      r[n] = i64(x[n]) % {by} + n
    }}"""
    x = LIMITS[dtype]
    q, r = pf.compile(text, options=pf.Options(verify=True))(x)
    np.testing.assert_array_equal(q, x.astype("i8") // by)
    np.testing.assert_array_equal(r, x.astype("i8") % by + np.arange(len(x)))


@pytest.mark.parametrize("dtype", ["i64", "i32", "i16", "i8"])
@pytest.mark.parametrize("by", [1, 2, 4, 64])
@pytest.mark.parametrize("n", [1, 100])
def test_powers_of_two_divide_to_the_floor(dtype: str, by: int, n: int) -> None:
    results = f"(q: {dtype}[N], r: {dtype}[N])"
    text = f"op f(x: {dtype}[N]) -> {results} {{ q[n] = x[n] // {by}\n r[n] = x[n] % {by} }}"
    kind = np.dtype(f"i{int(dtype[1:]) // 8}")
    ends = np.iinfo(kind)
    x = np.resize(np.array([ends.min, ends.min + 1, -65, -64, -2, -1, 0, 1, 63, 64, ends.max], kind), n)
    q, r = pf.compile(text, options=pf.Options(verify=True))(x)
    np.testing.assert_array_equal(q, x // kind.type(by))
    np.testing.assert_array_equal(r, x % kind.type(by))


def test_temporaries_become_i32_where_all_that_is_written_fits() -> None:
    text = """op f(x: u8[N, K], z: i64[N]) -> (y: i64[N], w: i64[N]) {
      s[n] = sum[k](i64(x[n, k]) * i64(K - k))
      y[n] = (s[n] + 1) % 65521
      m[0] = 5
      m[n] = z[n] for n in 1..N
      w[n] = m[n] + s[n]
    }"""
    graph = graph_of(text, N=5, K=9)
    assert {t.name for t in graph.tensors if t.dtype is I32} == {"s"}
    wide = graph_of(text, N=5, K=9000)
    assert not any(t.dtype is I32 for t in wide.tensors)
    x = np.full((5, 9000), 255, "u1")
    y, _ = pf.compile(text, options=pf.Options(verify=True))(x, np.arange(5))
    assert (y == (255 * (9000 * 9001 // 2) + 1) % 65521).all()


def test_recurrences_stay() -> None:
    text = """op f(x: i16[N]) -> (y: i64[N]) {
      s[0] = i64(x[0])
      s[n] = s[n - 1] * 3 + i64(x[n]) for n in 1..N
      y[n] = s[n]
    }"""
    assert not any(t.dtype is I32 for t in graph_of(text, N=40).tensors)


@pytest.mark.parametrize("n", [0, 1, 97])
def test_places_are_found_in_32_bits(n: int) -> None:
    text = """op f(x: f32[H, W], u: f32[N], v: f32[N]) -> (y: f32[N]) {
      a[n] = i64(floor(min(max(u[n], 0.0), f32(H) - 1.5)))
      b[n] = i64(floor(v[n]))
      y[n] = x[a[n] + 1, b[n]] - x[a[n], b[n]]
    }"""
    r = np.random.default_rng(n)
    x = r.random((9, 13), dtype="f4")
    u, v = (r.normal(5, 9, n).astype("f4") for _ in range(2))
    special = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, -(2.0**31), 0.0], "f4")
    u[: len(special)] = special[:n]
    v[1 : 1 + len(special)] = special[: max(n - 1, 0)]
    got = pf.compile(text, options=pf.Options(verify=True))(x, u, v)
    whole = [np.nan_to_num(np.floor(np.clip(w, -1e9, 1e9))).astype("i8") for w in (np.clip(u, 0, 7.5), v)]
    a, b = whole[0], np.clip(whole[1], 0, 12)
    np.testing.assert_array_equal(got, x[a + 1, b] - x[a, b])


@pytest.mark.parametrize("dtype", ["u8", "i8", "i16", "i32", "i64"])
@pytest.mark.parametrize("length", [1, 100, 256, 300])
def test_places_out_of_range_are_clamped(dtype: str, length: int) -> None:
    kind = np.dtype(("u" if dtype == "u8" else "i") + str(int(dtype[1:]) // 8))
    ends = np.iinfo(kind)
    i = np.array([ends.min, 0, 1, 99, 100, ends.max] * 9, kind)
    t = np.arange(2 * length, dtype="f4").reshape(length, 2)
    text = f"op f(t: f32[K, 2], i: {dtype}[N]) -> (y: f32[N, 2]) {{ y[n, c] = t[i[n], c] }}"
    got = pf.compile(text, options=pf.Options(verify=True))(t, i)
    np.testing.assert_array_equal(got, t[np.clip(i.astype("i8"), 0, length - 1)])


def test_addresses_beyond_32_bits() -> None:
    text = "op f(t: u8[H, W], i: i32[N], j: i32[N]) -> (y: u8[N]) { y[n] = t[i[n], j[n]] }"
    t = np.zeros((33000, 66000), "u1")  # more than 2^31 elements, few of which are touched
    t[32999, 65999], t[0, 0], t[32999, 0] = 7, 1, 3
    i, j = np.array([32999, 0, 32999, 2**31 - 1] * 8, "i4"), np.array([65999, 0, -5, 70000] * 8, "i4")
    got = pf.compile(text, options=pf.Options(verify=True))(t, i, j)
    np.testing.assert_array_equal(got, [7, 1, 3, 7] * 8)


@pytest.mark.parametrize(("most", "narrow"), [(4096, True), (TOP // 5000, True), (TOP, False)])
def test_open_sizes_are_at_most_what_constraints_say(most: int, narrow: bool) -> None:
    """`n * 5000` fits while N is at most as large as its region says."""
    text = f"op f(x: f32[N]) -> (y: f32[N]) where N >= 1, N <= {most} {{ y[n] = x[n] * f32(n * 5000) }}"
    made = cleaned(instantiate(parse_text(text), "f"), [], checked=False)
    assert made.sizes == ("N",)
    assert ("i32" in format_expr(made.statements[-1].expr)) is narrow
