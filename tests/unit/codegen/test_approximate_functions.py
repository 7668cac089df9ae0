"""Functions of GPUs by approximate instructions, each of which is as far off as it may be.

The text is that of the emulator, compiled by g++ after a header that has CUDA's words for one thread.
"""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyfuse.codegen.math.prelude import prelude
from polyfuse.ir.dtypes import F32
from polyfuse.ir.functions import ALIKE_DIV, FORMS, RECIPROCAL, SCALED_NEAR, SHORT
from polyfuse.ir.ops import OPS, ROOM, Form, Trait, with_trait
from polyfuse.runtime.reference.special import erf
from polyfuse.runtime.reference.values import SLACK

Array = np.ndarray[Any, Any]
GXX = shutil.which("g++")
SHIM = Path(__file__).parents[2] / "helpers" / "cuda_shim.h"
RNG = np.random.default_rng(5)
TINY = 2.0**-126
WORST = ("ex2", "rcp")
REFERENCE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "sigmoid": lambda x: np.where(x > 0, 1.0, np.exp(-np.abs(x))) / (1 + np.exp(-np.abs(x))),
    "erf": erf,
    "div": lambda x: 1 / x,
    "ex2": np.exp2,
    "rcp": lambda x: 1 / x,
}
BINARY = ("fast_div", ALIKE_DIV)
SCALED = tuple(SCALED_NEAR.values())
JOINT = "joint_erf"
UNARY = sorted(FORMS.keys() - {*BINARY, *SCALED, JOINT})


def loop(name: str) -> str:
    x = "x[i], y[i]" if name in (*BINARY, *SCALED, JOINT) else "x[i]"
    if name == JOINT:  # with an exponential that is as far off as it may be
        x += ", pf_fast_exp_f32(-(x[i] * y[i]) * (x[i] * y[i]))"
    return (
        f'extern "C" void loop_{name}(const float* x, const float* y, float* o, long n) {{\n'
        f"  for (long i = 0; i < n; i++) o[i] = pf_{name}_f32({x});\n}}\n"
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Array]:
    if GXX is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("approximate")
    source, library = folder / "a.cpp", folder / "a.so"
    names = [f"pf_{op}_f32" for op in FORMS]
    loops = map(loop, (*FORMS, *WORST))
    source.write_text("\n".join([SHIM.read_text(), prelude(names, target="cuda"), *loops]))
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off"]
    subprocess.run([str(GXX), *flags, str(source), "-o", str(library)], check=True)
    compiled = ctypes.CDLL(str(library))

    def call(name: str, x: Array, y: Array | None = None) -> Array:
        arrays = [np.ascontiguousarray(a, np.float32) for a in (x, x if y is None else y)]
        out = np.empty_like(arrays[0])
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, out)]
        getattr(compiled, f"loop_{name}")(*pointers, ctypes.c_long(out.size))
        return out

    return call


def samples(count: int = 400_000) -> Array:
    """Numbers of all sizes and signs, and many of those where functions bend."""
    bits = RNG.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    sizes = np.exp2(RNG.uniform(-20, 7, count)) * RNG.choice([-1, 1], count)
    near = RNG.uniform(-6, 6, count)
    x = np.concatenate([bits, sizes, near, RNG.uniform(-90, 90, count)]).astype(np.float32)
    return x[np.isfinite(x) & ((np.abs(x) >= TINY) | (x == 0))]


def beyond(got: Array, want: Array, form: Form) -> float:
    """The largest error as a part of what a form may be off by."""
    top = float(np.finfo(np.float32).max)
    sure = np.isfinite(want) & (np.abs(want) < top * (1 - 2.0**-16))
    assert np.isfinite(got[sure]).all()
    over = np.abs(want) > top * (1 + 2.0**-16)
    np.testing.assert_array_equal(got[over], np.copysign(np.inf, want[over]))
    error = np.abs(got[sure].astype(np.float64) - want[sure])
    return float(np.max(error / (form.relative * np.abs(want[sure]) + form.absolute + TINY)))


@pytest.mark.parametrize("name", UNARY)
def test_no_further_from_the_value_than_the_table_says(name: str, run: Callable[..., Array]) -> None:
    x = samples()
    x = x[x <= FORMS[name][1].most]
    with np.errstate(all="ignore"):
        want = REFERENCE[FORMS[name][0]](x.astype(np.float64))
    got = run(name, x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    worst = beyond(got[~np.isnan(want)], want[~np.isnan(want)], FORMS[name][1])
    assert worst <= 1.0


@pytest.mark.parametrize("name", BINARY)
def test_quotients_are_as_exact_at_all_sizes(name: str, run: Callable[..., Array]) -> None:
    a = samples()
    b = RNG.permutation(a)
    with np.errstate(all="ignore"):
        want = a.astype(np.float64) / b
    got = run(name, a, b)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    sure = ~np.isnan(want)
    assert beyond(got[sure], want[sure], FORMS[name][1]) <= 1.0


@pytest.mark.parametrize("name", [*SCALED, JOINT])
@pytest.mark.parametrize("k", [0.7071067811865476, -0.3, 16.0, 1 / 16])
def test_constant_factors_go_into_coefficients(name: str, k: float, run: Callable[..., Array]) -> None:
    op, form = FORMS[name]
    x = samples(100_000)
    factor = np.full_like(x, k)
    want = REFERENCE[op](x.astype(np.float64) * factor[0])
    assert beyond(run(name, x, factor), want, form) <= 1.0
    special = np.array([INF, -INF, NAN])
    np.testing.assert_allclose(run(name, special, factor[:3]), np.sign(special * k), rtol=1e-6)


@pytest.mark.parametrize("name", WORST)
def test_instructions_are_as_far_off_as_they_may_be(name: str, run: Callable[..., Array]) -> None:
    """In both directions, and never further."""
    ulps = {"ex2": 2.0**-22, "rcp": 2.0**-23}[name]
    x = RNG.uniform(-120, 120, 100_000).astype(np.float32)
    want = REFERENCE[name](x.astype(np.float64))
    off = (run(name, x) - want) / want
    assert 0.9 * ulps < off.max() <= ulps and -ulps <= off.min() < -0.9 * ulps


INF, NAN = math.inf, math.nan
SPECIAL = {
    "exp": ([-INF, INF, NAN, -200.0, 200.0], [0.0, INF, NAN, 0.0, INF]),
    "sigmoid": ([-INF, INF, NAN, -200.0, 200.0], [0.0, 1.0, NAN, 0.0, 1.0]),
    "tanh": ([-INF, INF, NAN, -3e38, 3e38], [-1.0, 1.0, NAN, -1.0, 1.0]),
    "erf": ([-INF, INF, NAN, -3e38, 3e38], [-1.0, 1.0, NAN, -1.0, 1.0]),
    "log": ([0.0, -0.0, INF, NAN, -1.0, -INF], [-INF, -INF, INF, NAN, NAN, NAN]),
    "sqrt": ([0.0, -0.0, INF, NAN, -1.0, -INF], [0.0, -0.0, INF, NAN, NAN, NAN]),
    "rsqrt": ([0.0, -0.0, INF, NAN, -1.0, -INF], [INF, -INF, 0.0, NAN, NAN, NAN]),
    "div": ([0.0, -0.0, INF, -INF, NAN], [INF, -INF, 0.0, -0.0, NAN]),
}


@pytest.mark.parametrize("name", UNARY)
def test_special_values(name: str, run: Callable[..., Array]) -> None:
    x, want = map(np.array, SPECIAL[FORMS[name][0]])
    some = ~(x > FORMS[name][1].most)
    x, want = x[some], want[some]
    got = run(name, x)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=0)
    zero = want == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("name", BINARY)
def test_special_quotients(name: str, run: Callable[..., Array]) -> None:
    values = np.array([0.0, 1.0, -1.0, 2.0**127, -(2.0**127), 2.0**-126, INF, -INF, NAN], np.float32)
    a, b = (g.ravel() for g in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        want = a / b
    np.testing.assert_allclose(run(name, a, b), want, rtol=1e-6, atol=TINY)


# --- the table --------------------------------------------------------------------------------------------


def test_room_is_what_the_reference_allows() -> None:
    assert SLACK * F32.eps == ROOM


def test_forms_fit_where_they_are_taken() -> None:
    for o in OPS.values():
        for f in o.forms:
            match f.prefix:
                case "short":
                    assert f.relative <= 2.0**-16 and not f.absolute
                case "fast":
                    assert f.relative <= ROOM and not f.absolute
                case "near" | "joint":
                    assert f.relative <= ROOM and 0 < f.absolute <= ROOM
    assert {o.name for o in OPS.values() if o.form("short")} == set(with_trait(Trait.SHORT)) == set(SHORT)
    assert RECIPROCAL in FORMS
