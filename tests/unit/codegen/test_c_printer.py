"""The C printer: literals, operations against NumPy, laziness, lanes of reductions."""

from __future__ import annotations

import ctypes
import math
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.analysis.renaming import scalar_name
from polyfuse.codegen.c_printer import Printer, guards_index, literal
from polyfuse.codegen.math.prelude import prelude
from polyfuse.codegen.math.vector_reduce import OPS, fold_name, offered
from polyfuse.ir.dtypes import BF16, BOOL, BY_NAME, F16, F32, F64, I8, I16, I32, I64, U8, DType
from polyfuse.ir.index_expr import IConst, ISize, IVar, as_index, binary
from polyfuse.ir.tensor_graph import Apply, Cast, Const, Expr, IndexValue, Read, Select
from polyfuse.runtime.toolchain.compiler import load_shared


def printer() -> Printer:
    return Printer(lambda p, name, indices: f"b_{name}[0]")


def evaluated(cases: list[tuple[Expr, DType]]) -> list[Any]:
    """The values that compiled code gives to expressions without reads; one library for all."""
    p = printer()
    texts = [(p.expr(e), t) for e, t in cases]
    body = "\n".join(
        f'extern "C" void f{k}({t.c_name}* y) {{ *y = {text}; }}' for k, (text, t) in enumerate(texts)
    )
    library = load_shared(prelude(p.functions) + "\n" + body)
    found = []
    for k, (_, t) in enumerate(texts):
        y = np.zeros(1, t.numpy)
        getattr(library, f"f{k}")(ctypes.c_void_p(y.ctypes.data))
        found.append(y[0])
    return found


LITERALS: list[tuple[Any, DType]] = [
    *((v, F32) for v in (0.0, -0.0, 1.5, -1.5, 0.1, 1e-45, 3.4e38, 1e300, -1e300)),
    *((v, F32) for v in (math.inf, -math.inf, math.nan)),
    *((v, F64) for v in (0.0, -0.0, 0.1, -5e-324, 1.7e308, math.inf, -math.inf, math.nan)),
    *((v, F16) for v in (0.0, -0.0, 0.1, 65504.0, 1e6, -math.inf, 6e-8)),
    *((v, BF16) for v in (0.0, -0.0, 0.1, 3e38, math.inf, -1.0)),
    *((v, t) for t in (I64, I32, I16, I8) for v in (0, -1, 7, np.iinfo(t.numpy).min, np.iinfo(t.numpy).max)),
    (0, U8), (255, U8), (True, BOOL), (False, BOOL),
]  # fmt: skip


def test_literals_are_exact() -> None:
    found = evaluated([(Const(v, t), t) for v, t in LITERALS])
    with np.errstate(all="ignore"):
        for (value, dtype), got in zip(LITERALS, found, strict=True):
            want = np.asarray(value).astype(dtype.numpy)[()]
            if dtype.is_float and np.isnan(want):
                assert np.isnan(got)
                continue
            assert got == want and (not dtype.is_float or np.signbit(got) == np.signbit(want)), (value, dtype)


def test_negated_literals() -> None:
    """`--x` would be a decrement."""
    values = [0.0, -0.0, 1.0, -1.0]
    found = evaluated([(Apply("neg", (Const(v, F32),), F32), F32) for v in values])
    assert [math.copysign(1, v) for v in found] == [-math.copysign(1, v) for v in values]
    (twice,) = evaluated([(Apply("neg", (Apply("neg", (Const(-2.0, F32),), F32),), F32), F32)])
    assert twice == -2.0


def test_precedence_is_the_trees() -> None:
    a, b, c = (Const(v, F32) for v in (7.0, 3.0, 2.0))

    def op(name: str, *args: Expr) -> Expr:
        return Apply(name, args, F32)

    cases = [
        (op("sub", a, op("sub", b, c)), 6.0),
        (op("div", a, op("mul", b, c)), np.float32(7) / np.float32(6)),
        (op("mul", op("add", a, b), c), 20.0),
        (op("neg", op("sub", a, b)), -4.0),
        (op("sub", a, op("neg", b)), 10.0),
        (op("pow", op("sub", a, b), Const(2.0, F32)), 16.0),
    ]
    assert evaluated([(e, F32) for e, _ in cases]) == [v for _, v in cases]
    less = Apply("lt", (b, a), BOOL)
    both = Apply("and", (less, Apply("not", (Apply("or", (less, less), BOOL),), BOOL)), BOOL)
    assert evaluated([(less, BOOL), (both, BOOL)]) == [True, False]


def test_index_expressions() -> None:
    assert printer().index(binary("+", binary("*", IVar("c0"), 4), IVar("c1"))) == "((c0 * 4) + c1)"
    assert printer().index(ISize("T") - 1) == "(N_T - 1)"
    assert printer().index(IConst(2**31)) == "2147483648LL"
    assert printer().index(IConst(-(2**31))) == "-2147483648LL"
    assert printer().index(IConst(-(2**63))) == "(-9223372036854775807LL - 1)"
    assert printer().index(binary("*", IVar("c0"), 2**64 + 3)) == "(c0 * 3)"
    assert printer().index(binary("//", IVar("c0"), 3)) == "pf_floordiv_i64(c0, 3)"
    assert printer().index(binary("min", IVar("c0"), 3)) == "pf_min_i64(c0, 3)"
    negative = as_index(-7)
    cases = [(IndexValue(e, I64), I64) for e in (binary("//", negative - 0, 2), binary("%", negative, 4))]
    assert evaluated(cases) == [-4, 1]


def test_a_choice_is_lazy_where_indices_are_guarded() -> None:
    x, i = Read("x", (IVar("i"),), F32), IndexValue(IVar("i"), I64)
    guard = Apply("lt", (i, Const(3, I64)), BOOL)
    data = Apply("lt", (x, Const(3.0, F32)), BOOL)
    assert guards_index(guard) and not guards_index(data)
    assert guards_index(Apply("and", (data, Apply("not", (guard,), BOOL)), BOOL))
    zero = Const(0.0, F32)
    assert " ? " in printer().expr(Select(guard, x, zero, F32))
    assert "q0 = b_x[0]" not in printer().expr(Select(guard, x, zero, F32))
    lazy = Printer(lambda p, name, indices: "b_x[0]", lazy=True)
    assert "q0 = b_x[0]" not in lazy.expr(Select(data, x, zero, F32))


def test_nested_choices_and_squares_keep_their_values() -> None:
    """Both print block expressions with variables of their own."""
    one, two, three = (Const(v, F32) for v in (1.0, 2.0, 3.0))
    less = Apply("lt", (one, two), BOOL)
    inner = Select(less, Select(less, three, one, F32), two, F32)
    outer = Select(Apply("lt", (inner, two), BOOL), one, inner, F32)
    square = Apply("pow", (Apply("pow", (outer, Const(2.0, F32)), F32), Const(2.0, F32)), F32)
    assert evaluated([(outer, F32), (square, F32)]) == [3.0, 81.0]


def test_casts_name_both_types() -> None:
    p = printer()
    assert p.expr(Cast(Cast(Const(1.0, F32), F16), F32)).startswith("pf_f32_from_f16(pf_f16_from_f32(")
    assert p.expr(Cast(Const(1.0, F32), F32)) == literal(1.0, F32)
    assert p.functions == {"pf_f32_from_f16", "pf_f16_from_f32"}


def test_names_of_scalars() -> None:
    assert scalar_name("%acc0") == "acc0" and scalar_name("acc0") == "r_acc0"


def runs(machine: str) -> bool:
    """May code for an x86 level run here?"""
    if shutil.which("g++") is None or platform.machine() not in ("x86_64", "AMD64"):
        return False
    return machine == "x86-64" or {"avx2", "fma"} <= set(Path("/proc/cpuinfo").read_text().split())


# --- lanes ------------------------------------------------------------------------------------------------

LENGTHS = (0, 1, 3, 7, 31, 33, 64, 127, 128, 129, 1000)
NUMPY = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all}


@pytest.mark.parametrize(
    "dtype", thinned(["f32", "f64", "f16", "i64", "i32", "bf16", "i16", "i8", "u8", "bool"], 3)
)
def test_reductions_of_every_length(dtype: str) -> None:
    """All reductions of a dtype in one kernel."""
    t = BY_NAME[dtype]
    ops = ["any", "all"] if t.is_bool else ["sum", "prod", "max", "min"]
    result = "f32" if dtype in ("f16", "bf16") else dtype
    names = ", ".join(f"r{k}: {result}[R]" for k in range(len(ops)))
    lines = "\n".join(
        f"r{k}[i] = {op}[j]({'f32(x[i, j])' if dtype in ('f16', 'bf16') else 'x[i, j]'})"
        for k, op in enumerate(ops)
    )
    f = pf.compile(f"op f(x: {dtype}[R, N]) -> ({names}) {{ {lines} }}")
    rng = np.random.default_rng(0)
    for n in LENGTHS:
        if n == 0 and not t.is_bool:
            continue
        raw = (
            rng.integers(0, 2, (3, n))
            if t.is_bool
            else rng.integers(-3, 4, (3, n)) % (8 if dtype == "u8" else 99)
        )
        x = (1.0 + 0.01 * rng.standard_normal((3, n)) if t.is_float else raw).astype(t.numpy)
        wide = x.astype(np.float64) if t.is_float else x
        got = f(x)
        for op, g in zip(ops, got, strict=True):
            want = (
                NUMPY[op](wide, axis=1)
                if t.is_float or t.is_bool or op in ("max", "min")
                else NUMPY[op](x, axis=1, dtype=x.dtype)
            )
            if t.is_float:
                np.testing.assert_allclose(
                    g, want, rtol=1e-4 if dtype != "f64" else 1e-11, err_msg=f"{op} {n}"
                )
            else:
                np.testing.assert_array_equal(g, want, err_msg=f"{op} {n}")


EXTREMES = """op f(x: {dtype}[R, N]) -> (most: {dtype}[R], least: {dtype}[R], held: {dtype}[R]) {{
  most[i] = max[j](x[i, j]); least[i] = min[j](x[i, j])
  held[i] = max[j in 0..N](x[i, j] if j % 2 == 0 else 0.5 * x[i, j])
}}"""


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("n", [1, 3, 31, 33, 127, 128, 129, 1000])
def test_extremes_let_every_nan_through(dtype: str, n: int) -> None:
    """A NaN of either sign, alone in its row, at any place; infinities beside it."""
    t = BY_NAME[dtype].numpy
    rows = [*range(0, n, max(1, n // 40)), n - 1]
    x = np.random.default_rng(n).standard_normal((len(rows) + 4, n)).astype(t)
    for r, place in enumerate(rows):
        x[r, place] = np.copysign(np.nan, (-1.0) ** r)
        x[r, (place * 7 + 3) % n] = x[r, (place * 7 + 3) % n] if (place * 7 + 3) % n == place else np.inf
    x[-1], x[-2], x[-3, 0], x[-4, n - 1] = -np.inf, np.inf, -np.inf, np.inf
    f = pf.compile(EXTREMES.format(dtype=dtype))
    most, least, held = f(x)
    np.testing.assert_array_equal(most, x.max(1))
    np.testing.assert_array_equal(least, x.min(1))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(held, np.where(np.arange(n) % 2 == 0, x, t.type(0.5) * x).max(1))


def test_extremes_keep_the_sign_of_zero_and_small_numbers() -> None:
    f = pf.compile(EXTREMES.format(dtype="f32"), denormals="keep")
    x = np.full((2, 70), -0.0, np.float32)
    x[1] = 1e-45
    most, least, _ = f(x)
    assert np.signbit(most[0]) and np.signbit(least[0]) and most[1] == least[1] == np.float32(1e-45)


@pytest.mark.parametrize("machine", ["x86-64", "x86-64-v3", "native"])
def test_totals_of_lanes(machine: str, tmp_path: Path) -> None:
    """Every function, for every width of vectors that this machine can run."""
    if machine != "native" and not runs(machine):
        pytest.skip(f"not {machine}")
    cases = [(op, t, n) for op in OPS for t in (F32, F64, I32, I64) for n in (8, 16, 32, 128)]
    names = {fold_name(op, t) for op, t, _ in cases}
    body = "\n".join(
        f'extern "C" void f{k}(const {t.c_name}* v, {t.c_name}* y) {{ *y = {fold_name(op, t)}(v, {n}); }}'
        for k, (op, t, n) in enumerate(cases)
    )
    source, library = tmp_path / "folds.cpp", tmp_path / "folds.so"
    source.write_text(prelude(names) + body)
    command = ["g++", "-std=c++17", "-O3", "-Wall", "-Werror", f"-march={machine}", "-fPIC", "-shared"]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    functions = ctypes.CDLL(str(library))
    rng = np.random.default_rng(5)
    for k, (op, t, n) in enumerate(cases):
        assert offered(op, t, n)
        v = rng.standard_normal(n + 1) if t.is_float else rng.integers(-(2**31), 2**31, n + 1)
        v = v.astype(t.numpy)[1:]  # not aligned
        y = np.zeros(1, t.numpy)
        getattr(functions, f"f{k}")(ctypes.c_void_p(v.ctypes.data), ctypes.c_void_p(y.ctypes.data))
        with np.errstate(over="ignore"):
            want = NUMPY[op](v, **({"dtype": t.numpy} if op in ("sum", "prod") else {}))
        if t.is_float and op in ("sum", "prod"):
            np.testing.assert_allclose(y[0], want, rtol=1e-4 if t is F32 else 1e-12, atol=1e-4 * t.eps)
        else:
            assert y[0] == want


def test_sums_of_no_elements() -> None:
    f = pf.compile(
        "op f(x: f32[R, N]) -> (s: f32[R], p: f32[R]) { s[i] = sum[j](x[i, j]); p[i] = prod[j](x[i, j]) }"
    )
    s, p = f(np.zeros((3, 0), np.float32))
    assert (s == 0).all() and (p == 1).all()


def test_bf16_values_are_not_reinterpreted() -> None:
    f = pf.compile(
        "op f(x: bf16[N]) -> (m: bf16, s: f32) { m = bf16(max[i](f32(x[i]))); s = sum[i](f32(x[i])) }"
    )
    m, s = f(np.array([1.5, -2, 3.25], ml_dtypes.bfloat16))
    assert float(m) == 3.25 and s == 2.75
