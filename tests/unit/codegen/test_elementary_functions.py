"""The functions that came later (`Op.yields`) against numbers of higher precision: those of the C library in
extended precision at many points, and mpmath's at some.

`test_prelude.py` compiles them with all others, and looks for vectors and calls of libraries."""

from __future__ import annotations

import ctypes
import math
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from test_prelude import FLAGS, loop, signature, specials, ulp_error, wide

from polyfuse.codegen.math.prelude import prelude
from polyfuse.ir.dtypes import F32, F64, DType
from polyfuse.ir.ops import OPS

Array = np.ndarray[Any, Any]
GXX = shutil.which("g++")
X86 = platform.machine() in ("x86_64", "AMD64")
BUILDS = {"native": ["-march=native"], "baseline": ["-march=x86-64"] if X86 else []}
RNG = np.random.default_rng(23)
NAMES = [o.name for o in OPS.values() if o.yields and o.takes.has(F64)]
EXACT = [n for n in NAMES if OPS[n].ulp == (0.0, 0.0)]
PAIRS = [n for n in NAMES if OPS[n].arity == 2 and n != "fmod"]
SINGLE = [n for n in NAMES if OPS[n].arity == 1 and n not in EXACT and n not in ("lgamma", "digamma")]
GAMMAS = ["lgamma", "digamma"]

pytestmark = pytest.mark.skipif(GXX is None, reason="no g++")


class Library:
    """Those functions in loops over arrays."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        names = [f"pf_{n}_{t}" for n in NAMES for t in (F32, F64)]
        (folder / "some.cpp").write_text(prelude(names) + "\n" + "\n".join(map(loop, names)))
        command = [str(GXX), *FLAGS, *flags, "-nostdlib", "-Wall", "-Werror", str(folder / "some.cpp")]
        subprocess.run([*command, "-o", str(folder / "some.so")], check=True)
        self.library = ctypes.CDLL(str(folder / "some.so"))

    def __call__(self, op: str, *args: Array) -> Array:
        name = f"pf_{op}_{'f32' if args[0].dtype == np.float32 else 'f64'}"
        arrays = [np.ascontiguousarray(a) for a in args]
        out = np.empty(arrays[0].shape, signature(name)[1].numpy)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, out)]
        getattr(self.library, f"loop_{name}")(*pointers, ctypes.c_long(out.size))
        return out


@pytest.fixture(scope="module", params=list(BUILDS))
def lib(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp(request.param), BUILDS[request.param])


_LONG = "".join(
    f'extern "C" void long_{f}(const long double* a, long double* o, long n) {{\n'
    f"  for (long i = 0; i < n; i++) o[i] = __builtin_{f}l(a[i]);\n}}\n"
    for f in ("erfc", "lgamma")
)


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[..., Array]]:
    """By name, in a wider type."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "long.cpp").write_text(_LONG)
    target = folder / "long.so"
    subprocess.run(
        [str(GXX), "-O2", "-fPIC", "-shared", str(folder / "long.cpp"), "-o", str(target), "-lm"], check=True
    )
    library = ctypes.CDLL(str(target))

    def of_c(name: str) -> Callable[[Array], Array]:
        def function(x: Array) -> Array:
            a = np.ascontiguousarray(x, dtype=np.longdouble)
            out = np.empty_like(a)
            pointers = [ctypes.c_void_p(v.ctypes.data) for v in (a, out)]
            getattr(library, f"long_{name}")(*pointers, ctypes.c_long(a.size))
            return out

        return function

    known: dict[str, Callable[..., Array]] = {n: getattr(np, OPS[n].numpy) for n in NAMES if OPS[n].numpy}
    known["sign"] = lambda x: np.where((x == 0) | np.isnan(x), x, np.copysign(1, x))
    return known | {"erfc": of_c("erfc"), "lgamma": of_c("lgamma")}


def points(op: str, t: DType, count: int) -> Array:
    """Special values, every magnitude, and what is near 0 and 1; of `tan` in f64 those that it knows."""
    unsigned = np.uint32 if t is F32 else np.uint64
    bits = RNG.integers(0, np.iinfo(unsigned).max, count // 4, dtype=unsigned, endpoint=True).view(t.numpy)
    with np.errstate(all="ignore"):
        drawn = [RNG.standard_normal(count // 4) * scale for scale in (4, 60)]
        parts = [specials(t), bits, *drawn, RNG.uniform(-1.1, 1.1, count // 4)]
        x = np.concatenate([p.astype(t.numpy) for p in parts])
    return x[~(np.abs(x) >= 2.0**45) | np.isinf(x)] if (op, t) == ("tan", F64) else x


def test_every_function_is_tested() -> None:
    assert set(NAMES) == {*EXACT, *PAIRS, *SINGLE, *GAMMAS, "fmod"}
    assert set(EXACT) == {"trunc", "sign", "isinf", "isfinite"}


@pytest.mark.parametrize("t", [F32, F64], ids=str)
@pytest.mark.parametrize("op", SINGLE)
def test_single(op: str, t: DType, lib: Library, references: dict[str, Any], record_property: Any) -> None:
    x = points(op, t, 1_000_000 if t is F32 else 200_000)
    with np.errstate(all="ignore"):
        want = references[op](wide(x))
    got = lib(op, x)
    error = ulp_error(got, want)
    record_property("ulp", error)
    assert error <= bound(op, t)
    zero = (want == 0) & (got == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("t", [F32, F64], ids=str)
@pytest.mark.parametrize("op", PAIRS)
def test_pairs(op: str, t: DType, lib: Library, references: dict[str, Any], record_property: Any) -> None:
    a, b = pairs(t, 400_000 if t is F32 else 150_000)
    with np.errstate(all="ignore"):
        want = references[op](wide(a), wide(b))
    got = lib(op, a, b)
    error = ulp_error(got, want)
    record_property("ulp", error)
    assert error <= bound(op, t)
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


def pairs(t: DType, count: int) -> tuple[Array, Array]:
    """All pairs of special values; neighbours in size; others."""
    s = specials(t)
    a, b = (g.ravel() for g in np.meshgrid(s, s))
    x = points("", t, count)
    with np.errstate(all="ignore"):
        near = (x * RNG.uniform(-2, 2, x.size)).astype(t.numpy)
    half = x.size // 2
    other = np.concatenate([RNG.permutation(x)[:half], near[half:]])
    return np.concatenate([a, x]), np.concatenate([b, other])


def bound(op: str, t: DType) -> float:
    ulp = OPS[op].ulp
    assert ulp is not None
    return ulp[0] if t is F32 else ulp[1]


@pytest.mark.parametrize("t", [F32, F64], ids=str)
@pytest.mark.parametrize("op", EXACT)
def test_exact(op: str, t: DType, lib: Library, references: dict[str, Any]) -> None:
    x = points(op, t, 400_000)
    with np.errstate(invalid="ignore"):
        want = references[op](x)
    got = lib(op, x)
    np.testing.assert_array_equal(got, want)
    if got.dtype == t.numpy:
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("t", [F32, F64], ids=str)
def test_remainders_are_exact(t: DType, lib: Library) -> None:
    """Those of quotients below 2^53; of others they are 0 (where there is no fused multiply-add, of moderate
    numbers)."""
    a, b = pairs(t, 200_000)
    size = [np.abs(v.astype(float)) for v in (a, b)]
    fits = [~((s < 2.0**-900) & (s > 0)) & ~((s > 2.0**990) & np.isfinite(s)) for s in size]
    a, b = a[fits[0] & fits[1]], b[fits[0] & fits[1]]
    with np.errstate(all="ignore"):
        quotient = np.floor(np.abs(a.astype(float) / b.astype(float)))
        far = (quotient >= 2.0**53) & np.isfinite(a) & (b != 0)
        want = np.where(far, np.copysign(np.zeros_like(a), a), np.fmod(a, b))
    got = lib("fmod", a, b)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


def exact(op: str, *x: float) -> mpmath.mpf:
    return _MPMATH[op](*map(mpmath.mpf, x))


_MPMATH: dict[str, Callable[..., mpmath.mpf]] = {
    **{n: getattr(mpmath, n) for n in ("expm1", "log1p", "tan", "atan", "asin", "acos", "sinh", "cosh")},
    **{n: getattr(mpmath, n) for n in ("asinh", "acosh", "atanh", "atan2", "hypot", "erfc")},
    "exp2": lambda x: mpmath.power(2, x),
    "log2": lambda x: mpmath.log(x) / mpmath.log(2),
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "digamma": lambda x: mpmath.psi(0, x),
    "lgamma": lambda x: mpmath.log(abs(mpmath.gamma(x))),
}
# Where a function is defined and no result overflows.
_RANGE = {
    "exp2": (-120, 120), "expm1": (-60, 80), "log1p": (-0.999, 50), "log2": (1e-5, 40), "asin": (-1, 1),
    "acos": (-1, 1), "atanh": (-0.999, 0.999), "acosh": (1, 40), "erfc": (-3, 9), "sinh": (-80, 80),
    "cosh": (-80, 80),
}  # fmt: skip


@pytest.mark.parametrize("t", [F32, F64], ids=str)
@pytest.mark.parametrize("op", [*SINGLE, *PAIRS])
def test_against_many_digits(op: str, t: DType, lib: Library) -> None:
    low, high = _RANGE.get(op, (-30, 30))
    x = np.concatenate([RNG.uniform(low, high, 300), RNG.uniform(max(low, -1), min(high, 1.5), 200)])
    x = x.astype(t.numpy)
    x = x[(x >= low) & (x <= high)]
    args = [x] if op in SINGLE else [x, RNG.permutation(x)]
    got = lib(op, *args)
    with mpmath.workdps(40):
        for *a, g in zip(*args, got, strict=True):
            want = exact(op, *map(float, a))
            unit = math.ulp(float(want)) if t is F64 else float(np.spacing(np.float32(abs(float(want)))))
            assert abs(mpmath.mpf(float(g)) - want) <= bound(op, t) * unit, (op, a)


@pytest.mark.parametrize("t", [F32, F64], ids=str)
@pytest.mark.parametrize("op", GAMMAS)
def test_gamma_functions_against_many_digits(op: str, t: DType, lib: Library) -> None:
    """In units of the last place right of 0; left of it, where terms cancel, in parts of these."""
    near = [c + RNG.standard_normal(60) * 1e-4 for c in (1.0, 2.0, 1.4616321449683623, 8.0, 10.0, 1e-4)]
    x = np.concatenate([RNG.uniform(0, 12, 300), 10.0 ** RNG.uniform(-20, 12, 100), *near])
    x = np.concatenate([x, -RNG.uniform(0, 12, 300), -(10.0 ** RNG.uniform(-20, 3, 60))]).astype(t.numpy)
    got = lib(op, x)
    with mpmath.workdps(60):
        for a, g in zip(x, got, strict=True):
            want = exact(op, float(a))
            unit = math.ulp(float(want)) if t is F64 else float(np.spacing(np.float32(abs(float(want)))))
            off = abs(mpmath.mpf(float(g)) - want)
            terms = abs(want) + 2 * abs(exact(op, -float(a))) + 1 if a < 0 else 0
            assert off <= bound(op, t) * unit + 4 * 2.0**-52 * terms, (a, g, float(want))


@pytest.mark.parametrize("t", [F32, F64], ids=str)
def test_lgamma_at_many_points(t: DType, lib: Library, references: dict[str, Any]) -> None:
    x = np.abs(points("lgamma", t, 400_000))
    with np.errstate(all="ignore"):
        want = references["lgamma"](wide(x))
    assert ulp_error(lib("lgamma", x), want) <= bound("lgamma", t)


@pytest.mark.parametrize("t", [F32, F64], ids=str)
def test_special_values(t: DType, lib: Library) -> None:
    inf, nan = np.inf, np.nan
    top, least = float(np.finfo(t.numpy).max), float(np.finfo(t.numpy).smallest_subnormal)

    def check(op: str, x: list[float], want: list[float], *more: list[float]) -> None:
        args = [np.array(a, t.numpy) for a in (x, *more)]
        got, expected = lib(op, *args), np.array(want, t.numpy)
        np.testing.assert_array_equal(got, expected, err_msg=op)
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(expected[number]), err_msg=op)

    check("exp2", [-inf, inf, 0.0, -0.0, 5000, -5000, 10, -3, nan], [0, inf, 1, 1, inf, 0, 1024, 0.125, nan])
    check("expm1", [-inf, inf, 0.0, -0.0, 5000, -5000, nan], [-1, inf, 0, -0.0, inf, -1, nan])
    check("log1p", [-1, inf, 0.0, -0.0, -1.5, -inf, least, nan], [-inf, inf, 0, -0.0, nan, nan, least, nan])
    check("log2", [0.0, -0.0, -1, -inf, inf, 1, 8, 0.25, nan], [-inf, -inf, nan, nan, inf, 0, 3, -2, nan])
    check("tan", [0.0, -0.0, inf, -inf, nan], [0, -0.0, nan, nan, nan])
    check("atan", [0.0, -0.0, inf, -inf, nan], [0, -0.0, np.pi / 2, -np.pi / 2, nan])
    check("asin", [0.0, -0.0, 1, -1, 1.5, -inf, nan], [0, -0.0, np.pi / 2, -np.pi / 2, nan, nan, nan])
    check("acos", [1, -1, 0.0, -0.0, -1.5, inf, nan], [0, np.pi, np.pi / 2, np.pi / 2, nan, nan, nan])
    check("sinh", [0.0, -0.0, inf, -inf, 5000, -5000, nan], [0, -0.0, inf, -inf, inf, -inf, nan])
    check("cosh", [0.0, -0.0, inf, -inf, 5000, -5000, nan], [1, 1, inf, inf, inf, inf, nan])
    check("asinh", [0.0, -0.0, inf, -inf, least, nan], [0, -0.0, inf, -inf, least, nan])
    check("acosh", [1, inf, 0.5, 0.0, -3, -inf, nan], [0, inf, nan, nan, nan, nan, nan])
    check("atanh", [0.0, -0.0, 1, -1, 2, -inf, nan], [0, -0.0, inf, -inf, nan, nan, nan])
    check("cbrt", [0.0, -0.0, inf, -inf, 27, -8, nan], [0, -0.0, inf, -inf, 3, -2, nan])
    check("erfc", [0.0, -0.0, inf, -inf, 40, -40, nan], [1, 1, 0, 2, 0, 2, nan])
    check("lgamma", [0.0, -0.0, -1, -7, inf, -inf, 1, 2, nan, -top], [inf] * 6 + [0, 0, nan, inf])
    check("digamma", [0.0, -0.0, -1, -7, inf, -inf, nan], [-inf, inf, nan, nan, inf, nan, nan])
    check("sign", [0.0, -0.0, least, -top, inf, -inf, nan], [0, -0.0, 1, -1, 1, -1, nan])
    check("trunc", [0.5, -0.5, 1.5, -1.5, inf, -inf, top, nan], [0, -0.0, 1, -1, inf, -inf, top, nan])
    check("hypot", [inf, nan, -inf, 3, top, 0.0, nan], [inf, inf, inf, 5, inf, 0, nan],
          [nan, inf, 1, -4, top, -0.0, 1])  # fmt: skip
    check("fmod", [5, -5, 5, 1, inf, 1, nan, -0.0], [2, -2, 2, nan, nan, 1, nan, -0.0],
          [3, 3, -3, 0, 2, inf, 1, 2])  # fmt: skip
    y = [0.0, -0.0, 0.0, -0.0, 1, -1, inf, inf, -inf, 1, -1, nan, 1]
    x = [1, 1, -0.0, -0.0, 0, -0.0, inf, -inf, inf, -inf, inf, 1, nan]
    want = np.array([math.atan2(a, b) for a, b in zip(y, x, strict=True)], t.numpy)
    got = lib("atan2", np.array(y, t.numpy), np.array(x, t.numpy))
    np.testing.assert_allclose(got, want, rtol=1.5 * np.finfo(t.numpy).eps)
    np.testing.assert_array_equal(np.signbit(got[:-2]), np.signbit(want[:-2]))
    for op, true in (("isinf", [1, 1, 0, 0, 0]), ("isfinite", [0, 0, 0, 1, 1])):
        assert lib(op, np.array([inf, -inf, nan, top, 0.0], t.numpy)).tolist() == true
