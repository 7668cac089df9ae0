"""Functions of rows of lanes: the bits of the functions of one element, and loops cut around them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from avx512 import AVX512
from float_modes import FLUSH

import polyfuse as pf
from polyfuse.codegen.cpu.vectorize.math_calls import calls_rows, in_parts
from polyfuse.codegen.math.conversions import ROWS, row_name
from polyfuse.codegen.math.prelude import CPU_FUNCTIONS, ROW_FUNCTIONS, prelude
from polyfuse.ir.dtypes import BY_NAME, F32, F64, I64, DType
from polyfuse.ir.functions import SHORT
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.loop_ir import Declare, For, Store, Update
from polyfuse.ir.tensor_graph import Apply, Const, IndexValue, Read, Select

GXX = shutil.which("g++")
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-march=native", "-mprefer-vector-width=512"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-nostdlib", "-Wall", "-Werror"]
EVERY = [*((op, t) for op in ROWS for t in (F32, F64)), *((op, F32) for op in SHORT.values())]
PAIR = """
extern "C" void rows_{0}_{1}({2}* x, long n) {{ for (long k = 0; k < n; k += 64) pf_row_{0}_{1}(x + k, 64); }}
extern "C" void ones_{0}_{1}({2}* x, long n) {{ for (long k = 0; k < n; ++k) x[k] = pf_{0}_{1}(x[k]); }}
"""
PROGRAM = """op f(x: f32[T, H], m: f32[T, H], keep: bool[T, H]) -> (y: f32[T, H], s: f32[T], z: f32[T, H]) {
  e[t, h] = exp(x[t, h] - sigmoid(m[t, h]))
  s[t] = sum[h](e[t, h] * sigmoid(exp(-m[t, h])))
  y[t, h] = e[t, h] if keep[t, h] else exp(m[t, h])
  z[t, h] = sigmoid(x[t, h]) * exp(x[t, h+1]) if h + 1 < H else sigmoid(x[t, h])
}"""


@pytest.fixture(scope="module", params=[(), *AVX512], ids=lambda f: (f or ("native",))[-1])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if GXX is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("rows")
    names = [*ROW_FUNCTIONS, *(f"pf_{op}_{t.name}" for op, t in EVERY)]
    pairs = [PAIR.format(op, t.name, t.c_name) for op, t in EVERY]
    (folder / "rows.cpp").write_text(prelude(names) + "".join(pairs) + FLUSH)
    command = [GXX, *FLAGS, *request.param, str(folder / "rows.cpp"), "-o", str(folder / "rows.so")]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(Path(folder / "rows.so")))


def points(t: DType) -> Any:
    """Random bits, what is around the ends of the range, and infinities, NaN, zeros, subnormal numbers."""
    rng = np.random.default_rng(3)
    word = np.uint32 if t is F32 else np.uint64
    bits = rng.integers(0, np.iinfo(word).max, 300_000, dtype=word, endpoint=True).view(t.numpy)
    ends = (87.3, 88.7, 103.9) if t is F32 else (708.3, 709.7, 745.1)
    near = [sign * (end + rng.standard_normal(20_000)) for end in ends for sign in (-1, 1)]
    info = np.finfo(t.numpy)
    few = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, info.max, info.min, info.smallest_subnormal])
    some = np.concatenate([rng.standard_normal(300_000) * 30, *near]).astype(t.numpy)
    x = np.concatenate([few.astype(t.numpy), bits, some])
    return np.resize(x, len(x) + -len(x) % 64)


@pytest.mark.thin(2)
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize(("op", "t"), EVERY, ids=str)
def test_rows_have_the_bits_of_single_elements(
    op: str, t: DType, flushed: bool, library: ctypes.CDLL
) -> None:
    one, row = points(t), points(t)
    library.flush(int(flushed))
    for name, x in (("rows", row), ("ones", one)):
        getattr(library, f"{name}_{op}_{t.name}")(ctypes.c_void_p(x.ctypes.data), ctypes.c_long(x.size))
    library.flush(0)
    number = ~np.isnan(one)
    np.testing.assert_array_equal(np.isnan(row), ~number)
    word = np.uint32 if t is F32 else np.uint64
    np.testing.assert_array_equal(row[number].view(word), one[number].view(word))


@pytest.mark.parametrize("h", [1, 31, 64, 65, 200, 515])
def test_loops_are_cut_where_they_may_be(h: int) -> None:
    rng = np.random.default_rng(h)
    x, m = rng.standard_normal((2, 7, h)).astype("f4") * 5
    if h > 64:
        x[0, :3], x[1, 60:66], m[2, 40:70] = np.inf, np.nan, -np.inf
    keep = rng.random((7, h)) < 0.5
    f: Any = pf.compile(PROGRAM)
    y, s, z = f(x, m, keep)
    with np.errstate(over="ignore", invalid="ignore"):
        xd, md = x.astype("f8"), m.astype("f8")
        e = np.exp(xd - 1 / (1 + np.exp(-md)))
        np.testing.assert_allclose(y, np.where(keep, e, np.exp(md)), rtol=2e-6)
        np.testing.assert_allclose(s, (e / (1 + np.exp(-np.exp(-md)))).sum(1), rtol=1e-5)
        want = 1 / (1 + np.exp(-xd))
        want[:, :-1] *= np.exp(xd[:, 1:])
        np.testing.assert_allclose(z, want, rtol=2e-6)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("h", [1, 63, 64, 200])
def test_logarithms(h: int, dtype: str) -> None:
    x = np.exp(np.random.default_rng(h).standard_normal((5, h)) * 20).astype(BY_NAME[dtype].numpy)
    if h >= 63:
        x[0, :8] = [0, -0.0, np.inf, -np.inf, np.nan, -1, 1, np.finfo(x.dtype).max]
    text = f"op f(x: {dtype}[T, H]) -> (y: {dtype}[T, H]) {{ y[t, h] = log(x[t, h]) * 0.5 }}"
    f: Any = pf.compile(text)
    with np.errstate(invalid="ignore", divide="ignore"):
        np.testing.assert_allclose(f(x), np.log(x.astype("g")) / 2, rtol=3 * np.finfo(x.dtype).eps)


def test_no_rows_of_no_elements() -> None:
    f: Any = pf.compile(PROGRAM)
    for shape in ((0, 70), (3, 0)):
        y, s, z = f(np.zeros(shape, "f4"), np.zeros(shape, "f4"), np.zeros(shape, bool))
        assert y.shape == z.shape == shape and np.array_equal(s, np.zeros(shape[0]))


def exp(e: Any) -> Apply:
    return Apply("exp", (e,), F32)


def test_what_parts_share_is_an_array_and_nothing_else() -> None:
    x, a, b = (Read(n, i, F32) for n, i in (("x", (IVar("c"),)), ("%a", ()), ("%b", ())))
    body = (
        Declare("%a", F32, Apply("neg", (x,), F32)),
        Declare("%b", F32, exp(exp(a))),
        Store("y", (IVar("c"),), Apply("add", (b, b), F32)),
        Update("%acc", (), "sum", Apply("mul", (a, b), F32)),
    )
    assert calls_rows(body)
    cut = in_parts(body, lambda s: False)
    assert [p.function for p in cut.parts] == [row_name("exp", F32)] * 2 + [""]
    assert [name for name, _ in cut.arrays] == ["%row0", "%row1", "%a"]
    assert [len(p.body) for p in cut.parts] == [2, 1, 4]


def test_a_scalar_of_outside_that_lanes_set_is_an_array_of_theirs() -> None:
    one, r = Read("x", (IVar("c"),), F32), Read("r", (), F32)
    body = (Store("r", (), one), Store("y", (IVar("c"),), Apply("mul", (exp(one), r), F32)))
    assert in_parts(body, lambda s: s.buffer == "r").arrays == (("r", F32), ("%row0", F32))[::-1]
    assert in_parts(body, lambda s: False).arrays == (("%row0", F32),)


def test_loops_that_stay_whole() -> None:
    x = Read("x", (IVar("c"),), F32)
    store = Store("y", (IVar("c"),), exp(x))
    assert calls_rows((store,))
    assert not calls_rows((Store("y", (IVar("c"),), x),))
    assert not calls_rows((store, Declare("%a", F32, Const(0.0, F32), 4)))
    assert not calls_rows((store, For("d", IConst(0), IConst(4), 1, (store,))))
    inside = Apply("lt", (IndexValue(IVar("c"), I64), Const(3, I64)), store.value.dtype)
    guarded = Select(inside, exp(Read("x", (IVar("c") + 1,), F32)), Const(0.0, F32), F32)
    assert not calls_rows((Store("y", (IVar("c"),), guarded),))


def test_the_functions_are_of_the_prelude() -> None:
    assert set(ROW_FUNCTIONS) == {f"pf_row_{op}_{t.name}" for op, t in EVERY} <= CPU_FUNCTIONS
