"""The reference evaluator against independently written NumPy and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
from graph_helpers import (
    K,
    M,
    N,
    T,
    cast,
    const,
    define,
    dim,
    graph,
    i,
    inner,
    j,
    k,
    number,
    op,
    read,
    result,
    source,
    t,
    temp,
    where,
)

from polyfuse.diagnostics import ArgumentError, DslError
from polyfuse.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType
from polyfuse.ir.tensor_graph import Expr, Role, TensorGraph
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import Evaluated, evaluate
from polyfuse.runtime.reference.special import erf

RNG = np.random.default_rng(7)


def run(g: TensorGraph, sizes: dict[str, int], checked: bool = True, **inputs: Any) -> dict[str, Evaluated]:
    everything = dict.fromkeys(g.sizes, 0) | sizes
    return evaluate(g, everything, inputs, checked=checked)


def elementwise(e: Expr, in_dtype: DType = F32, out: DType | None = None) -> TensorGraph:
    """y[i] = e, where e reads x[i] and z[i]."""
    y = result("y", N, dtype=out or e.dtype)
    return graph(
        [source("x", N, dtype=in_dtype), source("z", N, dtype=in_dtype), y],
        [define("y", [dim(i, N)], [i], e)],
    )


def map_one(name: str, x: np.ndarray, dtype: DType = F32) -> Evaluated:
    g = elementwise(op(name, read("x", i, dtype=dtype)), dtype)
    return run(g, {"N": len(x)}, x=x, z=x)["y"]


def map_two(name: str, x: np.ndarray, z: np.ndarray, dtype: DType = F32) -> Evaluated:
    g = elementwise(op(name, read("x", i, dtype=dtype), read("z", i, dtype=dtype)), dtype)
    return run(g, {"N": len(x)}, x=x, z=z)["y"]


# --- scalar operations -----------------------------------------------------------------------------

FUNCTIONS = {
    "neg": np.negative, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh, "sigmoid": scipy.special.expit, "erf": scipy.special.erf, "sin": np.sin, "cos": np.cos,
    "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.round,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    x = np.concatenate([RNG.normal(size=200) * 3, [0.0, -0.0, 1.0, 88.0, -104.0, np.inf, -np.inf, np.nan]])
    x = x.astype(np.float32)
    got = map_one(name, x)
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name](x.astype(np.float64))
        narrow = FUNCTIONS[name](x).astype(np.float32)
    np.testing.assert_allclose(got.value, want, rtol=1e-14, atol=1e-300)
    assert not got.undecided.any()
    assert agrees(narrow, got, F32)


BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum,
    "max": np.maximum, "floordiv": np.floor_divide, "mod": np.mod,
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_binary_operations(name: str) -> None:
    x = np.concatenate([RNG.normal(size=200) * 9, [1.0, np.nan, np.inf, 0.0]]).astype(np.float32)
    z = np.concatenate([RNG.normal(size=200), [0.5, 2.0, np.inf, 3.0]]).astype(np.float32)
    got = map_two(name, x, z)
    with np.errstate(all="ignore"):
        want, narrow = BINARY[name](x.astype(np.float64), z), BINARY[name](x, z)
    np.testing.assert_allclose(got.value, want, rtol=1e-13)
    assert agrees(narrow, got, F32)


def test_power() -> None:
    x = np.array([2.0, 2.0, -3.0, -3.0, 0.0, 0.0, 1.7, np.inf, 4.0], np.float32)
    z = np.array([0.5, 3.0, 3.0, 0.5, 0.0, -1.0, -2.3, -1.0, 1e3], np.float32)
    got = map_two("pow", x, z)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), z)
    want[8] = np.inf  # 4 ** 1000 does not fit f32
    np.testing.assert_allclose(got.value, want, rtol=1e-14)
    assert not got.undecided.any()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("name", ["div", "pow"])
def test_only_numbers_of_the_program_make_quotients_and_powers_exact(name: str, n: int) -> None:
    """What data is known to code that runs; it divides by approximate reciprocals, however few there are."""
    x = np.full(n, 1.5, np.float32)
    of_data = map_two(name, x, np.full(n, 2.0, np.float32))
    assert (of_data.bound > 1e-7).all() and agrees(np.nextafter(of_data.value.astype("f4"), 9), of_data, F32)
    for two in (const(2.0, F32), cast(const(2, I32), F32)):
        known = run(elementwise(op(name, read("x", i), two)), {"N": n}, x=x, z=x)["y"]
        assert (known.bound == 0).all() and (known.value == of_data.value).all()


def test_erf_is_accurate() -> None:
    x = np.concatenate([np.linspace(-7, 7, 40001), [1e-300, 1e-9, 0.84375, 1.25, 6.0]])
    np.testing.assert_allclose(erf(x), scipy.special.erf(x), rtol=1e-15)


def test_subnormal_inputs_may_be_zeros_beside_nan() -> None:
    for first in (1.0, np.nan):
        assert map_one("neg", np.array([first, 1e-40], "f4")).bound[1] >= 9e-41


def test_what_is_held_is_exact_beside_subnormal_inputs() -> None:
    top = np.finfo("f4").max
    found = map_two("sub", np.array([0.0, 3.0, 1e-40], "f4"), np.array([top, 1.0, 0.0], "f4"))
    np.testing.assert_array_equal(found.bound[:2], 0.0)
    assert found.bound[2] >= 9e-41


def test_index_values_and_booleans() -> None:
    even = op("eq", op("mod", number(i), const(2, I64)), const(0, I64))
    both = op("and", even, op("not", op("gt", number(i), const(4, I64))))
    g = elementwise(where(op("or", both, op("eq", number(i), const(7, I64))), const(1.0), const(0.0)))
    x = np.zeros(9, np.float32)
    np.testing.assert_array_equal(run(g, {"N": 9}, x=x, z=x)["y"].value, [1, 0, 1, 0, 1, 0, 0, 1, 0])


# --- integers and casts ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [I8, U8, I32, I64])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "floordiv", "mod", "min", "max"])
def test_integers_wrap(dtype: DType, name: str) -> None:
    info = np.iinfo(dtype.numpy)
    x = RNG.integers(info.min, info.max, 300, dtype=dtype.numpy, endpoint=True)
    z = RNG.integers(info.min, info.max, 300, dtype=dtype.numpy, endpoint=True)
    z[z == 0] = 1
    z[z == -1] = 1
    got = map_two(name, x, z, dtype)
    with np.errstate(all="ignore"):
        want = BINARY[name](x, z)
    assert agrees(want, got, dtype)
    assert got.value.dtype == np.int64 and not got.bound.any()


def test_division_by_zero_is_an_error_only_if_checked() -> None:
    x, z = np.array([4, 5], np.int32), np.array([2, 0], np.int32)
    with pytest.raises(ArgumentError, match=r"PF452.*integer division by zero \(for i = 1\)"):
        map_two("floordiv", x, z, I32)
    g = elementwise(op("floordiv", read("x", i, dtype=I32), read("z", i, dtype=I32)), I32)
    assert run(g, {"N": 2}, checked=False, x=x, z=z)["y"].value.tolist() == [2, 0]


def test_casts() -> None:
    x = np.array([1.0, 1.5, -1.5, 300.7, 65519.0, 70000.0, np.nan], np.float32)
    as_int = run(elementwise(cast(read("x", i), I32)), {"N": 7}, x=x, z=x)["y"]
    assert as_int.value.tolist() == [1, 1, -1, 300, 65519, 70000, 0]
    assert not as_int.undecided.any()
    half = run(elementwise(cast(read("x", i), F16)), {"N": 7}, x=x, z=x)["y"]
    assert half.bound[0] == 0 and half.bound[1] == 0 and 0 < half.bound[3] < 3
    assert half.value[5] == np.inf and half.undecided.tolist() == [False] * 4 + [True, False, False]
    with np.errstate(all="ignore"):
        assert agrees(x.astype(np.float16), half, F16)


@pytest.mark.parametrize("target", [I8, U8, I16, I32, I64])
def test_floats_that_do_not_fit_end_at_the_limits(target: DType) -> None:
    low, high = np.iinfo(target.numpy).min, np.iinfo(target.numpy).max
    near = [np.nextafter(float(v), away) for v in (low, high, high + 1) for away in (-np.inf, np.inf)]
    far = [1e300, -1e300, np.inf, -np.inf]
    x = np.array([low, high, high + 1, low - 1, 0.9, -0.9, -0.0, *far, *near, np.nan])
    got = run(elementwise(cast(read("x", i, dtype=F64), target), F64), {"N": len(x)}, x=x, z=x)["y"]
    whole = [low if v == -np.inf else high if v == np.inf else int(v) for v in x[:-1].tolist()]
    assert got.value.tolist() == [min(max(v, low), high) for v in whole] + [0]
    assert not got.undecided.any()


def test_conversions_are_decided_where_no_error_changes_them() -> None:
    x = np.array([0.0, 1.0, 5.0, 100.0, -3.0], np.float32)
    e = cast(op("mul", op("exp", read("x", i)), const(1.0)), I8)  # exp(0) is 1, give or take
    got = run(elementwise(e), {"N": 5}, x=x, z=x)["y"]
    assert got.undecided.tolist() == [True, False, False, False, False]
    assert got.value.tolist()[1:] == [2, 127, 127, 0]


def test_sixteen_bit_floats_round_only_at_casts() -> None:
    for dtype in (F16, BF16):
        e = cast(op("exp", op("mul", cast(read("x", i, dtype=dtype), F32), const(0.3))), dtype)
        x = RNG.normal(size=300).astype(dtype.numpy)
        got = run(elementwise(e, dtype), {"N": 300}, x=x, z=x)["y"]
        narrow = np.exp(x.astype(np.float32) * np.float32(0.3))
        assert agrees(narrow.astype(dtype.numpy), got, dtype)
        off = (narrow * (1 + 40 * dtype.eps)).astype(dtype.numpy)
        assert not agrees(off, got, dtype)
        np.testing.assert_allclose(got.value, np.exp(x.astype(float) * float(np.float32(0.3))), rtol=1e-14)


# --- reductions -------------------------------------------------------------------------------------


def reduced(name: str, dtype: DType = F32) -> TensorGraph:
    out = I64 if name.startswith("arg") else dtype
    return graph(
        [source("x", N, M, dtype=dtype), result("y", N, dtype=out)],
        [define("y", [dim(i, N), inner(j, M)], [i], read("x", i, j, dtype=dtype), name)],
    )


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (5, 40000), (0, 4)])
def test_reductions(name: str, shape: tuple[int, int]) -> None:
    x = RNG.normal(size=shape).astype(np.float32)
    got = run(reduced(name), {"N": shape[0], "M": shape[1]}, x=x)["y"]
    want = getattr(np, name)(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(got.value, want, rtol=1e-12, atol=1e-30)


def test_reduction_of_nan_and_infinity() -> None:
    x = np.array([[1, np.nan, 3], [np.inf, 1, 2], [-np.inf, -np.inf, -np.inf], [np.inf, -np.inf, 0]])
    x = x.astype(np.float32)
    for name in ("sum", "max", "min", "argmax", "argmin", "prod"):
        got = run(reduced(name), {"N": 4, "M": 3}, x=x)["y"]
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(got.value, getattr(np, name)(x, axis=1))
        assert got.bound[:2].max() == 0.0
        assert not got.undecided.any()


def test_first_of_equals() -> None:
    x = np.array([[1, 3, 3, 0], [0, 0, 0, 0]], np.float32)
    assert run(reduced("argmax"), {"N": 2, "M": 4}, x=x)["y"].value.tolist() == [1, 0]
    assert run(reduced("argmin"), {"N": 2, "M": 4}, x=x)["y"].value.tolist() == [3, 0]


def test_empty_reductions() -> None:
    x = np.zeros((2, 0), np.float32)
    assert run(reduced("sum"), {"N": 2, "M": 0}, x=x)["y"].value.tolist() == [0, 0]
    assert run(reduced("prod"), {"N": 2, "M": 0}, x=x)["y"].value.tolist() == [1, 1]
    for name in ("max", "argmin"):
        with pytest.raises(ArgumentError, match="PF451"):
            run(reduced(name), {"N": 2, "M": 0}, x=x)
    assert run(reduced("max"), {"N": 0, "M": 0}, x=np.zeros((0, 0)))["y"].value.shape == (0,)


def test_any_all_and_integer_sum() -> None:
    x = RNG.random((6, 3)) < 0.4
    for name in ("any", "all"):
        np.testing.assert_array_equal(
            run(reduced(name, BOOL), {"N": 6, "M": 3}, x=x)["y"].value, getattr(x, name)(axis=1)
        )
    z = np.full((1, 300), 100, np.int8)
    got = run(reduced("sum", I8), {"N": 1, "M": 300}, x=z)["y"]
    assert got.value[0] == np.int8(np.array(30000).astype(np.int8))


def test_triangular_reduction() -> None:
    g = graph(
        [source("x", N, N), result("y", N), result("m", N)],
        [
            define("y", [dim(i, N), inner(j, i + 1)], [i], read("x", i, j), "sum"),
            define("m", [dim(i, N), inner(j, i + 1)], [i], read("x", i, i - j), "argmin"),
        ],
    )
    x = RNG.normal(size=(300, 300)).astype(np.float32)
    got = run(g, {"N": 300}, x=x)
    np.testing.assert_allclose(got["y"].value, np.tril(x.astype(float)).sum(1), rtol=1e-12, atol=1e-12)
    assert got["m"].value[9] == np.argmin(x[9, :10][::-1])


def test_matrix_product_takes_the_fast_path_and_agrees() -> None:
    g = graph(
        [source("a", T, M, K), source("b", T, N, K), result("c", T, N, M)],
        [
            define(
                "c",
                [dim(t, T), dim(i, N), dim(j, M), inner(k, K)],
                [t, i, j],
                op("mul", read("a", t, j, k), read("b", t, i, k)),
                "sum",
            )
        ],
    )
    a, b = RNG.normal(size=(3, 20, 60)).astype("f4"), RNG.normal(size=(3, 70, 60)).astype("f4")
    sizes = {"T": 3, "M": 20, "N": 70, "K": 60}
    got = run(g, sizes, a=a, b=b)["c"]
    want = np.einsum("tjk,tik->tij", a.astype(float), b.astype(float))
    np.testing.assert_allclose(got.value, want, rtol=1e-11, atol=1e-11)
    narrow = np.einsum("tjk,tik->tij", a, b)
    assert agrees(narrow, got, F32)
    assert not agrees(narrow + np.float32(1e-2), got, F32)
    small = run(g, sizes | {"T": 1, "M": 2}, a=a[:1, :2], b=b[:1])["c"]  # below the size of the fast path
    np.testing.assert_allclose(small.value, want[:1, :, :2], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(small.bound, got.bound[:1, :, :2], rtol=0.2)


def test_a_matrix_product_with_a_nan() -> None:
    g = graph(
        [source("a", N, K), source("b", K, M), result("c", N, M)],
        [
            define(
                "c",
                [dim(i, N), dim(j, M), inner(k, K)],
                [i, j],
                op("mul", read("a", i, k), read("b", k, j)),
                "sum",
            )
        ],
    )
    a, b = np.ones((40, 50), "f4"), np.ones((50, 30), "f4")
    a[3, 4] = np.nan
    b[5, 6] = np.inf
    got = run(g, {"N": 40, "K": 50, "M": 30}, a=a, b=b)["c"]
    np.testing.assert_array_equal(got.value, (a.astype(float) @ b.astype(float)))
    assert not got.undecided.any()


# --- guards, pieces, reads ---------------------------------------------------------------------------


def test_a_guard_hides_reads_out_of_range() -> None:
    e = where(op("ge", number(i), const(1, I64)), read("x", i - 1), const(0.0))
    x = np.arange(5, dtype=np.float32)
    assert run(elementwise(e), {"N": 5}, x=x, z=x)["y"].value.tolist() == [0, 0, 1, 2, 3]
    with pytest.raises(DslError, match=r"PF350.*x\[i - 1\]: index 1 out of range 0..5 \(for i = 0"):
        run(elementwise(read("x", i - 1)), {"N": 5}, x=x, z=x)


def test_pieces_strides_and_reversal() -> None:
    g = graph(
        [source("x", N), result("y", 2 * N)],
        [
            define("y", [dim(i, N)], [i], read("x", N - 1 - i)),
            define("y", [dim(i, 2 * N, N)], [i], read("x", (i - N) // 2)),
        ],
    )
    x = np.arange(5, dtype=np.float32)
    assert run(g, {"N": 5}, x=x)["y"].value.tolist() == [4, 3, 2, 1, 0, 0, 0, 1, 1, 2]
    assert run(g, {"N": 0}, x=x[:0])["y"].value.tolist() == []


def test_an_undefined_element_is_an_error() -> None:
    g = graph(
        [source("x", N), temp("s", N), result("y", N)],
        [define("s", [dim(i, N, 1)], [i], read("x", i)), define("y", [dim(i, N)], [i], read("s", i))],
    )
    with pytest.raises(DslError, match=r"PF354.*s\[i\] reads an element that is not defined"):
        run(g, {"N": 5}, x=np.zeros(5))


def test_inout_keeps_what_is_not_written() -> None:
    g = graph(
        [source("p", N, role=Role.INOUT), result("p__out", N, alias="p")],
        [define("p__out", [dim(i, N, 2)], [i], op("neg", read("p", i)))],
    )
    p = np.arange(4, dtype=np.float32)
    got = run(g, {"N": 4}, p=p)["p__out"]
    assert got.value.tolist() == [0, 1, -2, -3] and not got.bound.any()
    assert p.tolist() == [0, 1, 2, 3]


def test_scalars_and_defaults() -> None:
    eps = source("eps")
    eps = type(eps)("eps", F32, (), Role.INPUT, default=0.25)
    g = graph([eps, result("y")], [define("y", [], [], op("add", read("eps"), const(1.0)))])
    assert run(g, {})["y"].value == 1.25
    assert run(g, {}, eps=np.float32(2))["y"].value == 3.0


def test_gather() -> None:
    index = read("t", i, dtype=I32)
    g = graph(
        [source("x", M, N), source("t", N, dtype=I32), result("y", M, N)],
        [define("y", [dim(j, M), dim(i, N)], [j, i], read("x", j, index))],
    )
    x = RNG.normal(size=(3, 4)).astype("f4")
    rows = np.array([3, 0, 3, 1], np.int32)
    np.testing.assert_array_equal(run(g, {"M": 3, "N": 4}, x=x, t=rows)["y"].value, x[:, rows])
    for bad in (-1, 4):
        rows[2] = bad
        with pytest.raises(ArgumentError, match=rf"PF450.*out of range 0..4 \(for i = 2, index is {bad}\)"):
            run(g, {"M": 3, "N": 4}, x=x, t=rows)
        clamped = run(g, {"M": 3, "N": 4}, checked=False, x=x, t=rows)["y"].value
        np.testing.assert_array_equal(clamped, x[:, np.clip(rows, 0, 3)])


@pytest.mark.parametrize(("name", "ufunc"), [("sum", np.add), ("max", np.maximum), ("min", np.minimum)])
def test_scatter(name: str, ufunc: Any) -> None:
    index = read("t", i, dtype=I32)
    g = graph(
        [source("x", N, M), source("t", N, dtype=I32), result("y", K, M)],
        [
            define("y", [dim(i, K), dim(j, M)], [i, j], const(0.5)),
            define("y", [dim(i, N), dim(j, M)], [index, j], read("x", i, j), name, True),
        ],
    )
    x, rows = RNG.normal(size=(500, 3)).astype("f4"), RNG.integers(0, 6, 500, dtype=np.int32)
    got = run(g, {"N": 500, "M": 3, "K": 7}, x=x, t=rows)["y"]
    want, narrow = np.full((7, 3), 0.5), np.full((7, 3), 0.5, np.float32)
    ufunc.at(want, rows, x)
    ufunc.at(narrow, rows, x)
    np.testing.assert_allclose(got.value, want, rtol=1e-12)
    assert agrees(narrow, got, F32)
    assert not agrees(narrow * np.float32(1.001), got, F32)


def test_scatter_without_a_start_begins_at_zero() -> None:
    index = read("t", i, dtype=I64)
    g = graph(
        [source("t", N, dtype=I64), result("y", K, dtype=I32)],
        [define("y", [dim(i, N)], [index], const(1, I32), "sum", True)],
    )
    rows = np.array([2, 2, 0, 2])
    assert run(g, {"N": 4, "K": 4}, t=rows)["y"].value.tolist() == [1, 0, 3, 0]
    with pytest.raises(ArgumentError, match="PF450"):
        run(g, {"N": 4, "K": 2}, t=rows)
    assert run(g, {"N": 0, "K": 2}, t=rows[:0])["y"].value.tolist() == [0, 0]


# --- recurrences -------------------------------------------------------------------------------------


def scan(down: bool) -> TensorGraph:
    first, rest = (T - 1, dim(t, T - 1)) if down else (0, dim(t, T, 1))
    before = t + 1 if down else t - 1
    return graph(
        [source("x", T, N), result("c", T, N)],
        [
            define("c", [dim(i, N)], [first, i], read("x", first, i)),
            define("c", [rest, dim(i, N)], [t, i], op("add", read("c", before, i), read("x", t, i))),
        ],
    )


@pytest.mark.parametrize("down", [False, True])
def test_scan(down: bool) -> None:
    x = RNG.normal(size=(50, 9)).astype("f4")
    got = run(scan(down), {"T": 50, "N": 9}, x=x)["c"]
    turn = slice(None, None, -1 if down else 1)
    np.testing.assert_allclose(got.value, np.cumsum(x[turn].astype(float), 0)[turn], rtol=1e-12, atol=1e-13)
    assert agrees(np.cumsum(x[turn], 0, dtype=np.float32)[turn], got, F32)


def test_stencil_over_time() -> None:
    edge = op("or", op("eq", number(i), const(0, I64)), op("eq", number(i), number(N - 1)))
    near = op("add", op("add", read("u", t - 1, i - 1), read("u", t - 1, i)), read("u", t - 1, i + 1))
    g = graph(
        [source("x", N), result("u", T, N)],
        [
            define("u", [dim(i, N)], [0, i], read("x", i)),
            define("u", [dim(t, T, 1), dim(i, N)], [t, i], where(edge, read("u", t - 1, i), near)),
        ],
    )
    x = RNG.normal(size=11).astype("f4")
    want = [x.astype(float)]
    for _ in range(6):
        u = want[-1].copy()
        u[1:-1] = want[-1][:-2] + want[-1][1:-1] + want[-1][2:]
        want.append(u)
    np.testing.assert_allclose(run(g, {"N": 11, "T": 7}, x=x)["u"].value, np.array(want), rtol=1e-13)


def test_mutual_recurrence_through_a_reduction() -> None:
    """h[t] = tanh(z[t]), z[t, i] = sum_j w[i, j] h[t-1, j] + x[t, i]: an RNN in three statements."""
    g = graph(
        [source("x", T, N), source("w", N, N), temp("s", T, N), temp("z", T, N), result("h", T, N)],
        [
            define("h", [dim(t, T, 1), dim(i, N)], [t, i], op("tanh", read("z", t, i))),
            define("z", [dim(t, T, 1), dim(i, N)], [t, i], op("add", read("s", t, i), read("x", t, i))),
            define(
                "s",
                [dim(t, T, 1), dim(i, N), inner(j, N)],
                [t, i],
                op("mul", read("w", i, j), read("h", t - 1, j)),
                "sum",
            ),
            define("h", [dim(i, N)], [0, i], read("x", 0, i)),
        ],
    )
    x, w = RNG.normal(size=(6, 5)).astype("f4"), RNG.normal(size=(5, 5)).astype("f4")
    h = [x[0].astype(float)]
    for step in range(1, 6):
        h.append(np.tanh(w.astype(float) @ h[-1] + x[step]))
    np.testing.assert_allclose(run(g, {"T": 6, "N": 5}, x=x, w=w)["h"].value, np.array(h), rtol=1e-12)


def test_wavefront_tree_and_gather_recurrences() -> None:
    inside = op("and", op("ge", number(i), const(1, I64)), op("ge", number(j), const(1, I64)))
    step = op("add", op("max", read("d", i - 1, j), read("d", i, j - 1)), read("x", i, j))
    g = graph(
        [source("x", N, M), result("d", N, M)],
        [define("d", [dim(i, N), dim(j, M)], [i, j], where(inside, step, read("x", i, j)))],
    )
    x = RNG.normal(size=(6, 7)).astype("f4")
    want = x.astype(float)
    for a in range(1, 6):
        for b in range(1, 7):
            want[a, b] += max(want[a - 1, b], want[a, b - 1])
    np.testing.assert_allclose(run(g, {"N": 6, "M": 7}, x=x)["d"].value, want, rtol=1e-13)

    tree = graph(
        [source("x", N), result("p", N)],
        [
            define("p", [], [0], read("x", 0)),
            define("p", [dim(i, N, 1)], [i], op("add", read("p", i // 2), read("x", i))),
        ],
    )
    v = RNG.normal(size=40).astype("f4")
    want = v.astype(float)
    for a in range(1, 40):
        want[a] += want[a // 2]
    np.testing.assert_allclose(run(tree, {"N": 40}, x=v)["p"].value, want, rtol=1e-13)

    chase = graph(
        [source("t", N, dtype=I64), result("p", N, dtype=I64)],
        [
            define("p", [], [N - 1], const(0, I64)),
            define(
                "p",
                [dim(i, N - 1)],
                [i],
                op("add", read("p", read("t", i, dtype=I64), dtype=I64), const(1, I64)),
            ),
        ],
    )
    parent = np.array([2, 0, 4, 1, 4, 5])
    got = run(chase, {"N": 6}, t=np.array([2, 0, 4, 5, 5, 9]), checked=True)["p"]
    assert got.value.tolist() == [3, 4, 2, 1, 1, 0]
    with pytest.raises(DslError, match="PF355"):
        run(chase, {"N": 6}, t=parent)


def test_pieces_that_alternate() -> None:
    """a[0], b[0] = f(a[0]), a[1] = g(b[0]) ...: mutual recurrence over two tensors, a step apart."""
    g = graph(
        [source("x", N), result("a", N), result("b", N)],
        [
            define("a", [], [0], read("x", 0)),
            define("b", [dim(i, N)], [i], op("mul", read("a", i), const(2.0))),
            define("a", [dim(i, N, 1)], [i], op("add", read("b", i - 1), read("x", i))),
        ],
    )
    got = run(g, {"N": 4}, x=np.ones(4))
    assert got["a"].value.tolist() == [1, 3, 7, 15] and not got["a"].bound.any()


# --- bounds ------------------------------------------------------------------------------------------


def softmax() -> TensorGraph:
    return graph(
        [source("x", N, M), temp("m", N), temp("e", N, M), temp("s", N), result("y", N, M)],
        [
            define("m", [dim(i, N), inner(j, M)], [i], read("x", i, j), "max"),
            define("e", [dim(i, N), dim(j, M)], [i, j], op("exp", op("sub", read("x", i, j), read("m", i)))),
            define("s", [dim(i, N), inner(j, M)], [i], read("e", i, j), "sum"),
            define("y", [dim(i, N), dim(j, M)], [i, j], op("div", read("e", i, j), read("s", i))),
        ],
    )


def test_softmax_bound_is_tight_and_wide_enough() -> None:
    x = (RNG.normal(size=(64, 300)) * 4).astype("f4")
    x[:, ::7] = -10000.0
    got = run(softmax(), {"N": 64, "M": 300}, x=x)["y"]
    e = np.exp(x - x.max(1, keepdims=True))
    y = e / e.sum(1, keepdims=True)
    assert agrees(y, got, F32).ok and agrees(y, got, F32).sharpness < 1e-3
    serial = np.cumsum(e, axis=1, dtype=np.float32)[:, -1:]
    assert agrees(e / serial, got, F32)
    for factor in (1.001, 0.999, 1.0001):
        assert not agrees(y * np.float32(factor), got, F32)
    one = y.copy()
    one[3, 5] *= np.float32(1.001)
    assert agrees(one, got, F32).mismatches == 1


def layer_norm() -> TensorGraph:
    width = number(M, F32)
    centred = op("sub", read("x", i, j), read("mu", i))
    return graph(
        [source("x", N, M), temp("a", N), temp("mu", N), temp("b", N), temp("r", N), result("y", N, M)],
        [
            define("a", [dim(i, N), inner(j, M)], [i], read("x", i, j), "sum"),
            define("mu", [dim(i, N)], [i], op("div", read("a", i), width)),
            define("b", [dim(i, N), inner(j, M)], [i], op("mul", centred, centred), "sum"),
            define(
                "r", [dim(i, N)], [i], op("rsqrt", op("add", op("div", read("b", i), width), const(1e-5)))
            ),
            define("y", [dim(i, N), dim(j, M)], [i, j], op("mul", centred, read("r", i))),
        ],
    )


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_layer_norm_bound(offset: float) -> None:
    x = (RNG.normal(size=(50, 768)) + offset).astype("f4")
    got = run(layer_norm(), {"N": 50, "M": 768}, x=x)["y"]
    centred = x - (np.cumsum(x, axis=1, dtype="f4")[:, -1:] / np.float32(768))
    y = centred / np.sqrt((centred**2).mean(1, keepdims=True) + np.float32(1e-5))
    assert agrees(y, got, F32)
    assert not agrees(y * np.float32(1.001), got, F32)
    one = y.copy()
    place = np.unravel_index(np.abs(y).argmax(), y.shape)
    one[place] *= np.float32(1.001)
    assert agrees(one, got, F32).mismatches == 1


def test_constant_rows_do_not_become_undecided() -> None:
    x = np.full((4, 100), 3.3, np.float32)
    got = run(layer_norm(), {"N": 4, "M": 100}, x=x)["y"]
    assert not got.undecided.any()
    deviation = op(
        "sqrt", op("mul", op("sub", read("x", i), read("z", i)), op("sub", read("x", i), read("z", i)))
    )
    near = elementwise(deviation)
    z = x[0] * np.float32(1.0000001)
    assert not run(near, {"N": 100}, x=x[0], z=z)["y"].undecided.any()


def test_undecided_comparisons() -> None:
    scaled = op("mul", read("x", i), const(0.1))
    step = elementwise(where(op("lt", scaled, const(0.3)), const(1.0), const(0.0)))
    x = np.array([2.5, 3.0, 3.5], np.float32)
    got = run(step, {"N": 3}, x=x, z=x)["y"]
    assert got.undecided.tolist() == [False, True, False] and got.value[[0, 2]].tolist() == [1, 0]
    kink = elementwise(where(op("gt", op("sub", scaled, const(0.3)), const(0.0)), scaled, const(0.3)))
    assert not run(kink, {"N": 3}, x=x, z=x)["y"].undecided.any()
    floor = elementwise(op("floor", op("mul", read("x", i), const(10.0 / 3.0))))
    got = run(floor, {"N": 3}, x=np.array([0.3, 0.5, 0.9], np.float32), z=x)["y"]
    assert got.undecided.tolist() == [True, False, True]
    x = np.array([0.5, 1.0, 1.5], np.float32)
    exact = elementwise(
        where(op("ge", op("add", read("x", i), read("z", i)), const(2.0)), const(1.0), const(0.0))
    )
    got = run(exact, {"N": 3}, x=x, z=x)["y"]
    assert got.value.tolist() == [0, 1, 1] and not got.bound.any()


def test_overflow_is_an_infinity() -> None:
    x = np.array([80.0, 88.0, 89.0, 88.72284], np.float32)
    got = map_one("exp", x)
    assert np.isfinite(got.value[:2]).all() and got.value[2] == np.inf
    assert got.undecided.tolist() == [False, False, False, True]
    ratio = elementwise(op("div", op("exp", read("x", i)), op("exp", read("x", i))))
    assert np.isnan(run(ratio, {"N": 4}, x=x, z=x)["y"].value[2])
    with np.errstate(all="ignore"):
        assert agrees(np.exp(x), got, F32)


def test_a_flushed_subnormal_agrees() -> None:
    x = np.array([1e-39, 1e-30], np.float32)
    got = map_two("mul", x, np.array([1e10, 1e-10], np.float32))
    assert agrees(np.array([0.0, 0.0], np.float32), got, F32)
    assert not agrees(np.array([0.0, 1e-37], np.float32), got, F32)


def test_double_precision_bounds_are_small() -> None:
    x = RNG.normal(size=200)
    got = map_one("exp", x, F64)
    assert agrees(np.exp(x), got, F64)
    assert not agrees(np.exp(x) * (1 + 1e-13), got, F64)
