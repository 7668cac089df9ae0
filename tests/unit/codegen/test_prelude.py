"""The prelude's arithmetic against references of higher precision, in plain loops as kernels use it."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from float_modes import FLUSH

from polyfuse.codegen.math.prelude import FUNCTIONS, INTEGERS, TAKES_TURNS, WRAPS, prelude
from polyfuse.ir.dtypes import ALL, BF16, BOOL, BY_NAME, F16, F32, F64, I64, DType
from polyfuse.ir.intervals import of_dtype
from polyfuse.ir.ops import OPS
from polyfuse.runtime.toolchain.compiler import cpu_features

Array = np.ndarray[Any, Any]
GXX = shutil.which("g++")
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-mprefer-vector-width=512", "-fno-math-errno"]
# The last flag: a cast that copies bytes would be recognised as memcpy.
FLAGS += ["-fno-trapping-math", "-ffp-contract=fast", "-fno-tree-loop-distribute-patterns", "-fwrapv"]
X86 = platform.machine() in ("x86_64", "AMD64")
# The machine's own instructions, and a baseline without fused multiply-add or rounding instructions.
BUILDS = {"native": ["-march=native"], "baseline": ["-march=x86-64"] if X86 else []}
BINARY = {o.name for o in OPS.values() if o.arity == 2}
SCALAR_LOOPS = re.compile(r"pf_(pow_[iu]|floordiv_[iu]64|mod_[iu]64)")
RNG = np.random.default_rng(7)

pytestmark = pytest.mark.skipif(GXX is None, reason="no g++")


def signature(name: str) -> tuple[tuple[DType, ...], DType]:
    """Argument and result dtypes of a function of the prelude."""
    if (cast := re.fullmatch(r"pf_(\w+)_from_(\w+)", name)) is not None:
        return (BY_NAME[cast[2]],), BY_NAME[cast[1]]
    op, t = name[3:].rsplit("_", 1)
    dtype = BY_NAME[t]
    return (dtype,) * OPS[op].arity, OPS[op].result(dtype)


def loop(name: str) -> str:
    args, result = signature(name)
    params = ", ".join(f"const {t.c_name}* __restrict a{i}" for i, t in enumerate(args))
    values = ", ".join(f"a{i}[i]" for i in range(len(args)))
    return (
        f'extern "C" void loop_{name}({params}, {result.c_name}* __restrict o, long n) {{\n'
        f"  for (long i = 0; i < n; i++) o[i] = {name}({values});\n}}\n"
    )


class Library:
    """All functions of the prelude, callable on arrays."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        self.flags = flags
        source = folder / "all.cpp"
        source.write_text(prelude(FUNCTIONS) + "\n" + "\n".join(map(loop, FUNCTIONS)) + FLUSH)
        self.path = folder / "all.so"
        # -nostdlib: anything left to a library, libgcc included, stays an undefined symbol.
        subprocess.run(
            [str(GXX), *FLAGS, *flags, "-nostdlib", "-Wall", "-Werror", str(source), "-o", str(self.path)],
            check=True,
        )
        self.library = ctypes.CDLL(str(self.path))

    def flush(self, on: bool) -> None:
        self.library.flush(int(on))

    def __call__(self, name: str, *args: Array) -> Array:
        types, result = signature(name)
        arrays = [np.ascontiguousarray(a, dtype=t.numpy) for a, t in zip(args, types, strict=True)]
        out = np.empty(arrays[0].shape, dtype=result.numpy)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, out)]
        getattr(self.library, f"loop_{name}")(*pointers, ctypes.c_long(out.size))
        return out


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp("native"), BUILDS["native"])


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp("baseline"), BUILDS["baseline"])


@pytest.fixture(scope="module", params=list(BUILDS))
def lib(request: pytest.FixtureRequest) -> Library:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def specials(t: DType) -> Array:
    info = np.finfo(t.numpy)
    values = [0.0, 1.0, 0.5, 1.5, 2.0, 2.5, 3.0, 10.0, 88.0, 89.0, 104.0, 709.0, 710.0, 745.0, 746.0, np.pi]
    values += [np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal, info.tiny * 0.3, 1 / info.eps]
    values += [
        1 - info.eps,
        1 + info.eps,
        4 / info.eps,
        2.0**31,
        2.0**63,
        127.5,
        128.0,
        255.9,
        256.0,
        32768.0,
    ]
    with np.errstate(over="ignore"):
        v = np.array(values, dtype=t.numpy)
    return np.concatenate([v, -v, np.nextafter(v, t.numpy.type(0)), -np.nextafter(v, t.numpy.type(0))])


def samples(t: DType, count: int, low: float = -np.inf, high: float = np.inf) -> Array:
    """Special values, points of every magnitude, and points where functions bend; within [low, high]."""
    unsigned = np.uint32 if t is F32 else np.uint64
    bits = RNG.integers(0, np.iinfo(unsigned).max, count // 3, dtype=unsigned, endpoint=True)
    parts = [
        specials(t),
        bits.view(t.numpy),
        RNG.standard_normal(count // 3) * 4,
        RNG.standard_normal(count // 3) * 60,
    ]
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.concatenate([p.astype(t.numpy) for p in parts])
    return x[np.isnan(x) | ((x >= low) & (x <= high))]


def ulp_error(got: Array, want: Array) -> float:
    """Largest |got - want| in units of the last place of got's type; NaN and infinity must agree."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        wrong = np.isinf(got) != np.isinf(rounded)
        # Half an ulp below the overflow threshold either side is fine; then the finite one is the largest.
        largest = np.finfo(got.dtype).max
        finite = np.where(np.isinf(got), rounded, got)[wrong]
        assert np.all(np.abs(finite) > largest * (1 - 4 * np.finfo(got.dtype).eps)), finite[:5]
        np.testing.assert_array_equal(np.sign(got[np.isinf(rounded)]), np.sign(rounded[np.isinf(rounded)]))
        ok = np.isfinite(got) & np.isfinite(rounded)
        unit = np.spacing(np.abs(rounded[ok])).astype(want.dtype)
        error = np.abs(got[ok].astype(want.dtype) - want[ok]) / unit
    return float(error.max(initial=0.0))


_ERFL = """
extern "C" void erf_reference(const long double* a, long double* o, long n) {
  for (long i = 0; i < n; i++) o[i] = __builtin_erfl(a[i]);
}
"""


@pytest.fixture(scope="module")
def erf_reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Array], Array]:
    folder = tmp_path_factory.mktemp("erfl")
    (folder / "erfl.cpp").write_text(_ERFL)
    target = folder / "erfl.so"
    subprocess.run(
        [str(GXX), "-O2", "-fPIC", "-shared", str(folder / "erfl.cpp"), "-o", str(target), "-lm"], check=True
    )
    library = ctypes.CDLL(str(target))

    def erf(x: Array) -> Array:
        a = np.ascontiguousarray(x, dtype=np.longdouble)
        out = np.empty_like(a)
        pointers = [ctypes.c_void_p(v.ctypes.data) for v in (a, out)]
        library.erf_reference(*pointers, ctypes.c_long(a.size))
        return out

    return erf


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, x.dtype.type(1)) / (1 + e)


# Reference (in the wider type), and the domain over which the bound holds, where it is not everything.
UNARY: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "sin": np.sin,
    "cos": np.cos,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
}
DOMAIN = {("sin", F64): 2.0**45, ("cos", F64): 2.0**45}


def wide(x: Array) -> Array:
    with np.errstate(invalid="ignore"):  # signalling NaNs among random bits
        return x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)


def test_every_function_of_one_float_has_a_reference() -> None:
    """Those that came later have theirs in test_elementary_functions.py."""
    functions = {
        o.name
        for o in OPS.values()
        if o.arity == 1 and o.takes.has(F64) and not (o.c or o.gives_bool or o.gives or o.yields)
    }
    assert functions == {*UNARY, "erf"}


@pytest.mark.parametrize("t", [F32, F64], ids=str)
@pytest.mark.parametrize("op", [*UNARY, "erf"])
def test_unary(
    op: str, t: DType, lib: Library, erf_reference: Callable[[Array], Array], record_property: Any
) -> None:
    limit = DOMAIN.get((op, t), np.inf)
    x = samples(t, 500_000 if t is F32 else 200_000, -limit, limit)
    reference = UNARY.get(op, erf_reference)
    with np.errstate(all="ignore"):
        want = reference(wide(x))
    got = lib(f"pf_{op}_{t.name}", x)
    error = ulp_error(got, want)
    record_property("ulp", error)
    assert error <= FUNCTIONS[f"pf_{op}_{t.name}"]
    if op in ("sqrt", "tanh", "erf", "sin", "round", "ceil", "floor"):
        zero = np.array([-0.0, 0.0], dtype=t.numpy)
        np.testing.assert_array_equal(np.signbit(lib(f"pf_{op}_{t.name}", zero)), [True, False])
    if op in ("tanh", "erf", "sin"):
        np.testing.assert_array_equal(lib(f"pf_{op}_{t.name}", -x), -got)
    if op in ("tanh", "erf", "sin", "cos", "sigmoid"):
        assert np.nanmax(np.abs(got)) <= 1.0


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_far_angles_stay_bounded(op: str, lib: Library) -> None:
    x = np.concatenate([10.0 ** RNG.uniform(13, 308, 50_000), [np.finfo(float).max]])
    got = lib(f"pf_{op}_f64", x)
    assert np.all(np.abs(got) <= 1.01)


@pytest.mark.parametrize("t", [F32, F64], ids=str)
def test_special_values(t: DType, lib: Library) -> None:
    inf, nan = np.inf, np.nan

    def check(op: str, x: list[float], want: list[float]) -> None:
        got = lib(f"pf_{op}_{t.name}", np.array(x, dtype=t.numpy))
        np.testing.assert_array_equal(got, np.array(want, dtype=t.numpy), err_msg=op)

    check("exp", [-inf, inf, 0.0, -0.0, 1e30, -1e30, nan], [0, inf, 1, 1, inf, 0, nan])
    check("log", [0.0, -0.0, -1.0, -inf, inf, 1.0, nan], [-inf, -inf, nan, nan, inf, 0, nan])
    check("sigmoid", [-inf, inf, 0.0, -1e30, 1e30, nan], [0, 1, 0.5, 0, 1, nan])
    check("tanh", [-inf, inf, 1e30, nan], [-1, 1, 1, nan])
    check("erf", [-inf, inf, 1e30, nan], [-1, 1, 1, nan])
    check("sin", [inf, -inf, nan], [nan, nan, nan])
    check("cos", [inf, 0.0, -0.0, nan], [nan, 1, 1, nan])
    check("rsqrt", [0.0, inf, 4.0, -1.0, nan], [inf, 0, 0.5, nan, nan])
    check("round", [0.5, 1.5, 2.5, -0.5, inf, nan], [0, 2, 2, -0.0, inf, nan])
    assert list(lib(f"pf_isnan_{t.name}", np.array([nan, 1.0, inf, -nan]))) == [True, False, False, True]


def pairs(t: DType, count: int) -> tuple[Array, Array]:
    """All pairs of special values, and random ones."""
    s = specials(t)
    a, b = np.meshgrid(s, s)
    return np.concatenate([a.ravel(), samples(t, count)]), np.concatenate(
        [b.ravel(), RNG.permutation(samples(t, count))]
    )


@pytest.mark.parametrize("t", [F32, F64], ids=str)
@pytest.mark.parametrize("op", ["min", "max"])
def test_min_max(op: str, t: DType, lib: Library) -> None:
    a, b = (v[:300_000] for v in pairs(t, 320_000))
    want = (np.minimum if op == "min" else np.maximum)(a, b)
    np.testing.assert_array_equal(lib(f"pf_{op}_{t.name}", a, b), want)


@pytest.mark.parametrize("t", [F32, F64], ids=str)
def test_pow(t: DType, lib: Library, record_property: Any) -> None:
    count = 1_500_000 if t is F32 else 400_000
    a, b = (v[:count] for v in pairs(t, count + 10_000))
    n = count // 3
    # Most random pairs overflow: in the last third the result is drawn, and the exponent follows.
    base = np.abs(a[-n:])
    with np.errstate(all="ignore"):
        e = RNG.uniform(-1.05, 1.05, n) * np.log(float(np.finfo(t.numpy).max)) / np.log(base.astype(float))
        a[-n:], b[-n:] = base, e.astype(t.numpy)
        b[-2 * n : -n] = np.rint(b[-2 * n : -n])
        want = np.power(wide(a), wide(b))
        # The 80-bit power has errors at infinity: (-inf)**(-2**63).
        want = np.where(np.isinf(a), np.power(a, b).astype(want.dtype), want)
    got = lib(f"pf_pow_{t.name}", a, b)
    error = ulp_error(got, want)
    record_property("ulp", error)
    assert error <= FUNCTIONS[f"pf_pow_{t.name}"]
    zero = (got == 0) & (want == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))
    x = RNG.integers(-2000, 2000, 10_000).astype(t.numpy)
    np.testing.assert_array_equal(lib(f"pf_pow_{t.name}", x, np.full_like(x, 2)), x * x)


PLAIN = """
extern "C" void power_{0}_{1}(const {2}* a, {2}* o, long n) {{
  for (long i = 0; i < n; i++) o[i] = pf_pow_{1}(a[i], ({2}){3});
}}
"""


EXPONENTS = (-1.0, -0.5, 0.5, 3.0, 1.3, -2.0, 5.0, 0.01, -6.0, 6.5, -7.0)


@pytest.fixture(scope="module")
def powers(lib: Library, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Loops that raise to a constant, for each of the exponents."""
    folder = tmp_path_factory.mktemp("powers")
    loops = [PLAIN.format(k, t.name, t.c_name, y) for t in (F32, F64) for k, y in enumerate(EXPONENTS)]
    (folder / "power.cpp").write_text(prelude([f"pf_pow_{t.name}" for t in (F32, F64)]) + "".join(loops))
    flags = [*FLAGS, *lib.flags, "-nostdlib"]
    command = [str(GXX), *flags, str(folder / "power.cpp"), "-o", str(folder / "power.so")]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "power.so"))


@pytest.mark.thin(2)
@pytest.mark.parametrize("y", EXPONENTS)
@pytest.mark.parametrize("t", [F32, F64], ids=str)
def test_constant_exponents(t: DType, y: float, lib: Library, powers: ctypes.CDLL) -> None:
    """The errors of powers, and what powers of special values are."""
    name = f"pf_pow_{t.name}"
    x = samples(t, 300_000)
    got = np.empty_like(x)
    pointers = [ctypes.c_void_p(v.ctypes.data) for v in (x, got)]
    power = powers[f"power_{EXPONENTS.index(y)}_{t.name}"]
    power(*pointers, ctypes.c_long(x.size))
    with np.errstate(all="ignore"):
        want = np.power(wide(x), wide(np.full_like(x, y)))
    assert ulp_error(got, want) <= FUNCTIONS[name]
    general = lib(name, x, np.full_like(x, y))
    plain = (x == 0) | np.isinf(x) | np.isnan(x) | (x < 0)
    np.testing.assert_array_equal(
        np.signbit(got[plain & ~np.isnan(got)]), np.signbit(general[plain & ~np.isnan(got)])
    )
    np.testing.assert_array_equal(np.isnan(got), np.isnan(general))


def divmod_reference(a: Fraction, b: Fraction) -> tuple[int, Fraction]:
    q = a // b
    return q, a - q * b


@pytest.mark.parametrize("t", [F32, F64], ids=str)
def test_float_division(t: DType, lib: Library) -> None:
    count = 4000
    b = RNG.standard_normal(count) * 10.0 ** RNG.integers(-6, 6, count)
    a = b * 10.0 ** RNG.uniform(-2, 15, count) * RNG.choice([-1, 1], count)
    a[::3] = np.rint(a[::3] / b[::3]) * b[::3]  # near multiples
    a, b = a.astype(t.numpy), b.astype(t.numpy)
    q, m = lib(f"pf_floordiv_{t.name}", a, b), lib(f"pf_mod_{t.name}", a, b)
    exact = [divmod_reference(Fraction(float(x)), Fraction(float(y))) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(q, np.array([float(i) for i, _ in exact]).astype(t.numpy))
    np.testing.assert_array_equal(m, np.array([float(r) for _, r in exact]).astype(t.numpy))
    # Specials as numpy has them, as long as the quotient is below 2^53.
    a, b = (v[:100_000] for v in pairs(t, 110_000))
    with np.errstate(all="ignore"):
        ratio = wide(a) / wide(b)
        near = ~(np.abs(ratio) >= 2.0**53) | (b == 0) | np.isinf(a)
        near &= ~((np.abs(b) > 1e295) & np.isfinite(b))  # Dekker's product on the baseline
        want_q, want_m = np.floor_divide(a, b), np.mod(a, b)
    got_q, got_m = lib(f"pf_floordiv_{t.name}", a, b), lib(f"pf_mod_{t.name}", a, b)
    np.testing.assert_array_equal(got_m[near], want_m[near])
    np.testing.assert_array_equal(
        np.signbit(got_m[near & (want_m == 0)]), np.signbit(want_m[near & (want_m == 0)])
    )
    exact_q = near & ~(np.abs(want_q) > 0.02 / np.finfo(t.numpy).eps)  # numpy rounds larger ones twice
    np.testing.assert_array_equal(got_q[exact_q], want_q[exact_q])
    rest = ~near & np.isfinite(a) & np.isfinite(b)
    assert np.all(np.abs(got_m[rest]) <= np.abs(b[rest]))


def wrap(value: int, t: DType) -> int:
    value &= (1 << t.bits) - 1
    return value - (1 << t.bits) if t.kind.value == "signed" and value >> (t.bits - 1) else value


def integer_reference(op: str, t: DType, a: int, b: int) -> int:
    if op == "pow" and b < 0:
        return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)
    if op in ("floordiv", "mod") and b == 0:
        return 0
    table: dict[str, Callable[[], int]] = {
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "neg": lambda: -a,
        "abs": lambda: abs(a),
        "sign": lambda: (a > 0) - (a < 0),
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
        "floordiv": lambda: a // b,
        "mod": lambda: a % b,
        "pow": lambda: pow(a, b, 1 << t.bits),
    }
    return wrap(table[op](), t)


@cache
def integer_table(t: DType) -> tuple[Array, Array, dict[str, Array]]:
    """Pairs of numbers, all of them of a short type, and what each function makes of them."""
    info = np.iinfo(t.numpy)
    if t.bits == 8:
        values = list(range(info.min, info.max + 1))
    else:
        near = [d for c in (info.min, info.max, 0, 1 << (t.bits // 2)) for d in range(c - 4, c + 5)]
        values = [v for v in near if info.min <= v <= info.max]
        values += [int(v) for v in RNG.integers(info.min, info.max, 60, dtype=t.numpy)]
    grid = [(a, b) for a in values for b in values]
    ops = ("add", "sub", "mul", "neg", "abs", "sign", "min", "max", "floordiv", "mod", "pow")
    wanted = {op: np.array([integer_reference(op, t, *p) for p in grid], dtype=t.numpy) for op in ops}
    return np.array([p[0] for p in grid], t.numpy), np.array([p[1] for p in grid], t.numpy), wanted


@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_integers(t: DType, lib: Library) -> None:
    a, b, wanted = integer_table(t)
    for op, want in wanted.items():
        got = lib(f"pf_{op}_{t.name}", *((a, b) if op in BINARY else (a,)))
        np.testing.assert_array_equal(got, want, err_msg=op)


@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_integers_by_constants(t: DType, tmp_path: Path) -> None:
    """Divisions by constants, which have code of their own: all values of short types for some."""
    low, high = (int(v) for v in of_dtype(t))
    wanted = (0, 1, 2, 3, 7, 8, 10, 100, 641, high - 1, high, -1, -3, -8, low)
    divisors = [d for d in wanted if low <= d <= high]
    written = [f"({d + 1}LL - 1)" if d < 0 else f"{d}{'ULL' if d >= 2**63 else 'LL'}" for d in divisors]
    loops = "".join(
        f'extern "C" void {op}_{k}(const {t.c_name}* __restrict a, {t.c_name}* __restrict o, long n) {{\n'
        f"  for (long i = 0; i < n; i++) o[i] = pf_{op}_{t.name}(a[i], {text});\n}}\n"
        for k, text in enumerate(written)
        for op in ("floordiv", "mod")
    )
    source = prelude([f"pf_floordiv_{t.name}", f"pf_mod_{t.name}"]) + loops
    (tmp_path / "by.cpp").write_text(source)
    command = [str(GXX), *FLAGS, *BUILDS["native"], str(tmp_path / "by.cpp"), "-o"]
    subprocess.run([*command, str(tmp_path / "by.so")], check=True)
    library = ctypes.CDLL(str(tmp_path / "by.so"))
    if t.bits <= 16:
        values = np.arange(low, high + 1).astype(t.numpy)
    else:
        ends = [*range(low, low + 5000), *range(-5000, 5001), *range(high - 5000, high + 1)]
        places = RNG.integers(0, t.bits, 20_000).astype(t.numpy)
        anywhere = RNG.integers(low, high, 20_000, dtype=t.numpy) >> places
        values = np.concatenate([np.array([e for e in ends if e >= low], dtype=t.numpy), anywhere])
    out = np.empty_like(values)
    for k, d in enumerate(divisors):
        for op in ("floordiv", "mod"):
            pointers = [ctypes.c_void_p(x.ctypes.data) for x in (values, out)]
            getattr(library, f"{op}_{k}")(*pointers, ctypes.c_long(out.size))
            places = slice(None) if k % 5 == 0 or t.bits < 16 else slice(None, None, 7)
            want = [integer_reference(op, t, int(a), d) for a in values[places]]
            np.testing.assert_array_equal(out[places], want, err_msg=f"{op} by {d}")


@pytest.mark.skipif(not X86, reason="words of x86")
def test_short_integers_are_divided_as_they_are(tmp_path: Path) -> None:
    """By a constant: products of 16 bits, 8 or 16 at once, and none of 32 or 64."""
    text = (
        "void f(const pf_i16* __restrict a, pf_i16* __restrict o, long n) {\n"
        "  for (long i = 0; i < n; i++) o[i] = pf_floordiv_i16(a[i], 10);\n}\n"
    )
    (tmp_path / "short.cpp").write_text(prelude(["pf_floordiv_i16"]) + text)
    command = [str(GXX), *FLAGS, "-march=haswell", "-S", str(tmp_path / "short.cpp"), "-o", "-"]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "vpmulhuw" in code
    assert not re.search("vpmulld|vpmul[u]?dq|vdiv", code)


@pytest.mark.parametrize("t", [F16, BF16], ids=str)
def test_sixteen_bit_floats(t: DType, lib: Library) -> None:
    everything = np.arange(1 << 16, dtype=np.uint16).view(t.numpy)
    np.testing.assert_array_equal(lib(f"pf_f32_from_{t.name}", everything), everything.astype(np.float32))
    back = lib(f"pf_{t.name}_from_f32", lib(f"pf_f32_from_{t.name}", everything))
    number = ~np.isnan(everything.astype(np.float32))
    np.testing.assert_array_equal(back.view(np.uint16)[number], everything.view(np.uint16)[number])
    assert np.all(np.isnan(back[~number].astype(np.float32)))

    with np.errstate(over="ignore"):
        bits = RNG.integers(0, 1 << 32, 2_000_000, dtype=np.uint32).view(np.float32)
        scaled = (RNG.standard_normal(500_000) * 2.0 ** RNG.uniform(-26, 17, 500_000)).astype(np.float32)
        halves = everything[number].astype(np.float32)
        ties = (halves[:-1] / 2 + halves[1:] / 2).astype(np.float32)
        x = np.concatenate([bits, scaled, ties, specials(F32)])
        want = x.astype(t.numpy)
    got = lib(f"pf_{t.name}_from_f32", x)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(got.view(np.uint16)[number], want.view(np.uint16)[number])
    assert np.all(np.isnan(got[~number].astype(np.float32)))

    # From f64 in one rounding: just beside a tie, f32 in between would round to the tie first.
    with np.errstate(all="ignore"):
        ties64 = halves[:-1].astype(float) / 2 + halves[1:].astype(float) / 2
        ties64 = ties64[np.isfinite(ties64)]
        x64 = np.concatenate(
            [np.nextafter(ties64, np.inf), np.nextafter(ties64, -np.inf), ties64, specials(F64)]
        )
        want64 = x64.astype(np.float16) if t is F16 else round_to_bf16(x64)
    got64 = lib(f"pf_{t.name}_from_f64", x64)
    number = ~np.isnan(x64)
    np.testing.assert_array_equal(got64.view(np.uint16)[number], want64.view(np.uint16)[number])


def round_to_bf16(x: Array) -> Array:
    """float64 to bf16 in one rounding: between the two neighbours by exact comparison."""
    f = x.astype(np.float32)
    cut = (f.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    cut = np.where(np.abs(cut) > np.abs(x), (cut.view(np.uint32) - np.uint32(1 << 16)).view(np.float32), cut)
    cut = np.where(np.isinf(cut) & np.isfinite(x), np.copysign(np.float32(3.3895314e38), cut), cut)
    low = np.abs(cut.astype(float))
    step = (np.abs(cut).view(np.uint32) + np.uint32(1 << 16)).view(np.float32).astype(float)
    step = np.where(np.isinf(step), 2.0**128, step)
    middle = (low + step) / 2
    odd = ((cut.view(np.uint32) >> np.uint32(16)) & np.uint32(1)).astype(bool)
    up = (np.abs(x) > middle) | ((np.abs(x) == middle) & odd)
    up &= np.isfinite(x)
    result = cut.view(np.uint32) + np.where(up, np.uint32(1 << 16), np.uint32(0))
    return (result >> np.uint32(16)).astype(np.uint16).view(ml_dtypes.bfloat16)


def integer_samples(t: DType) -> Array:
    info = np.iinfo(t.numpy)
    edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2]
    edges += [s * ((1 << k) + d) for k in range(1, t.bits - 1) for s in (1, -1) for d in (-1, 0, 1)]
    values = [v for v in edges if info.min <= v <= info.max]
    randoms = RNG.integers(info.min, info.max, 10_000, dtype=t.numpy, endpoint=True)
    return np.concatenate(
        [np.array(values, dtype=t.numpy), randoms >> (np.arange(10_000) % t.bits).astype(t.numpy)]
    )


@pytest.mark.parametrize("frm", [F64, F32, F16, BF16], ids=str)
def test_casts_from_floats(frm: DType, lib: Library) -> None:
    if frm.bits == 16:
        x = np.arange(1 << 16, dtype=np.uint16).view(frm.numpy)
    else:
        x = np.concatenate([samples(frm, 30_000), (RNG.standard_normal(20_000) * 1e9).astype(frm.numpy)])
    exact = x.astype(np.float64)
    for to in INTEGERS:
        low, high = np.iinfo(to.numpy).min, np.iinfo(to.numpy).max
        want = [
            0 if np.isnan(v) else low if v < low else high if v > high else int(v) for v in exact.tolist()
        ]
        np.testing.assert_array_equal(
            lib(f"pf_{to.name}_from_{frm.name}", x), np.array(want, dtype=to.numpy), str(to)
        )
    np.testing.assert_array_equal(lib(f"pf_bool_from_{frm.name}", x), exact != 0)
    with np.errstate(over="ignore"):
        for to in (F32, F64):
            if to is not frm:
                np.testing.assert_array_equal(lib(f"pf_{to.name}_from_{frm.name}", x), x.astype(to.numpy))


@pytest.mark.parametrize("frm", [*INTEGERS, BOOL], ids=str)
def test_casts_from_integers(frm: DType, lib: Library) -> None:
    x = np.array([False, True]) if frm is BOOL else integer_samples(frm)
    for to in (*INTEGERS, BOOL, F64, F32, F16):
        if to is not frm:
            with np.errstate(over="ignore"):
                want = x.astype(to.numpy)
            np.testing.assert_array_equal(lib(f"pf_{to.name}_from_{frm.name}", x), want, str(to))
    # One rounding to bf16: 64-bit integers do not fit the double that the reference takes.
    odd = (
        x if frm is not I64 else np.where(np.abs(x) >> 53 != 0, x & ~0xFFF | np.where(x & 0xFFF, 0x800, 0), x)
    )
    want = round_to_bf16(odd.astype(np.float64))
    np.testing.assert_array_equal(lib(f"pf_bf16_from_{frm.name}", x).view(np.uint16), want.view(np.uint16))


def test_every_function_has_a_loop_and_no_library_call(lib: Library) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    listing = subprocess.run(["nm", "-D", "-u", str(lib.path)], capture_output=True, text=True, check=True)
    assert listing.stdout.split() == []


def test_loops_are_vectorised(native: Library) -> None:
    flags = cpu_features()
    if shutil.which("objdump") is None or "avx2" not in flags:
        pytest.skip("needs objdump and AVX")
    full = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags
    register = "%zmm" if full else "%ymm"
    code = subprocess.run(
        ["objdump", "-d", str(native.path)], capture_output=True, text=True, check=True
    ).stdout
    bodies = dict(re.findall(r"<loop_(pf_\w+)>:\n(.*?)(?:\n\n|\Z)", code, re.DOTALL))
    assert set(bodies) == set(FUNCTIONS)
    # Below AVX-512 there are no conversions of 64-bit integers.
    expected = [
        n for n in FUNCTIONS if SCALAR_LOOPS.match(n) is None and (full or not re.search("[iu]64|u32", n))
    ]
    assert [n for n in expected if register not in bodies[n]] == []
    assert [n for n in bodies if re.search(r"\tcall", bodies[n])] == []


# Conditions on results: gcc folds constants that a function selects into them, see vector_math_float.h.
COMPOSED = (
    "pf_log_F(pf_exp_F(x) + 1)",
    "x > 0 ? pf_exp_F(x) : pf_tanh_F(x)",
    "pf_log_F(x) > 0 ? pf_exp_F(x) : x",
    "pf_max_F(pf_log_F(x), pf_mod_F(x, 2))",
    "pf_pow_F(pf_log_F(x), pf_abs_F(x))",
    "pf_isnan_F(pf_log_F(x)) ? 0 : x",
    "pf_i32_from_F(pf_log_F(x)) > 3 ? 1 : x",
    "pf_sin_F(x) > 0 ? pf_pow_F(x, 3) : pf_floordiv_F(x, 3)",
    "pf_f32_from_f16(pf_f16_from_F(x)) > 1 ? x : 3",
    "pf_log1p_F(pf_expm1_F(x)) > 0 ? x : pf_exp2_F(x)",
    "pf_acosh_F(x) > 0 ? pf_asinh_F(x) : pf_atanh_F(x)",
    "pf_isfinite_F(pf_log2_F(x)) ? pf_cbrt_F(x) : x",
    "pf_isinf_F(pf_cbrt_F(x)) ? 1 : pf_sign_F(pf_tan_F(x))",
    "pf_atan2_F(x, pf_sign_F(x)) > 1 ? pf_lgamma_F(x) : x",
    "pf_hypot_F(x, 3) > 4 ? pf_erfc_F(x) : pf_fmod_F(x, 3)",
    "pf_asin_F(x) > pf_acos_F(x) ? pf_sinh_F(x) : pf_cosh_F(pf_trunc_F(x))",
    "pf_lgamma_F(x) > 0 ? pf_digamma_F(x) : x",
    "pf_digamma_F(x) > 0 ? x : 3",
    "pf_hypot_F(pf_log_F(x), x) > 0 ? x : 3",
)


@pytest.mark.parametrize("t", [F32, F64], ids=str)
def test_composed_loops_are_vectorised(t: DType, tmp_path: Path) -> None:
    if not X86 or shutil.which("objdump") is None:
        pytest.skip("needs objdump and x86")
    source = prelude(FUNCTIONS)
    for i, body in enumerate(COMPOSED):
        value = body.replace("_F", f"_{t}")
        source += (
            f'extern "C" void k{i}(const {t.c_name}* __restrict a, {t.c_name}* __restrict o, long n) {{\n'
        )
        source += f"  for (long i = 0; i < n; i++) {{ {t.c_name} x = a[i]; o[i] = {value}; }}\n}}\n"
    (tmp_path / "k.cpp").write_text(source)
    command = [str(GXX), *FLAGS, "-march=x86-64-v3", str(tmp_path / "k.cpp"), "-o", str(tmp_path / "k.so")]
    subprocess.run(command, check=True)
    code = subprocess.run(
        ["objdump", "-d", tmp_path / "k.so"], capture_output=True, text=True, check=True
    ).stdout
    for i, body in enumerate(COMPOSED):
        kernel = re.search(rf"<k{i}>:\n(.*?)(?:\n\n|\Z)", code, re.DOTALL)
        assert kernel is not None and "%ymm" in kernel[1], body


@pytest.mark.skipif(not X86, reason="MXCSR")
@pytest.mark.parametrize("t", [F16, BF16], ids=str)
def test_sixteen_bit_floats_ignore_flushing(t: DType, native: Library) -> None:
    """Kernels run with subnormal floats flushed; those of f16 are normal floats and must survive."""
    everything = np.arange(1 << 16, dtype=np.uint16).view(t.numpy)
    want = native(f"pf_f32_from_{t}", everything)
    native.flush(True)
    try:
        flushed = native(f"pf_f32_from_{t}", everything)
        back = native(f"pf_{t}_from_f32", want)
    finally:
        native.flush(False)
    np.testing.assert_array_equal(flushed.view(np.uint32), want.view(np.uint32))
    number = ~np.isnan(want)
    np.testing.assert_array_equal(back.view(np.uint16)[number], everything.view(np.uint16)[number])


def test_prelude_is_minimal_and_stable() -> None:
    assert prelude(["pf_exp_f32"]) == prelude(iter(["pf_exp_f32", "pf_exp_f32"]))
    text = prelude(["pf_exp_f32"])
    assert "#include" not in text and "f64(" not in text
    assert prelude([]).count("PF_INLINE") == 1

    with pytest.raises(KeyError):
        prelude(["pf_odd_f32_from_f64"])
    for name in FUNCTIONS:
        assert f" {name}(" in prelude([name])
    assert {f"pf_{a.name}_from_{b.name}" for a in ALL for b in ALL if a is not b} <= set(FUNCTIONS)


def test_sources_ask_for_the_flags_of_what_they_call() -> None:
    asked = "\n".join([*TAKES_TURNS, ""])
    for name in ("pf_exp_f32", "pf_row_sigmoid_f64", "pf_scaled_erf_f32", "pf_erf_f64"):
        assert prelude([name]).startswith(asked)
    assert prelude(["pf_add_i32", "pf_exp_f32"]).startswith(f"{WRAPS}\n{asked}")
    assert "// needs" not in prelude(["pf_sqrt_f32", "pf_mod_f32", "pf_cos_f32"])
    assert "// needs" not in prelude(["pf_exp_f32"], "cuda")
