"""Chains of casts, to the bit, on every target: judged by exact numbers that know no rule of clean-up."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from kinds.casts import FLOATS, INTEGERS, TYPES, Casts
from targets import Call
from thinned import thinned

import polyfuse as pf
from polyfuse.ir.dtypes import BY_NAME

# Digits, and the exponents of the smallest normal number and of the largest.
FORMS = {"f64": (53, -1022, 1023), "f32": (24, -126, 127), "f16": (11, -14, 15), "bf16": (8, -126, 127)}
FORMS |= {"f8e4m3fn": (4, -6, 8), "f8e5m2": (3, -14, 15)}
LARGEST = {"f8e4m3fn": 448.0, "f8e5m2": 57344.0}  # which larger ones and infinities become
PAIRS = [*itertools.product(TYPES, TYPES)]
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"target": "cpu"},
    {"target": "cpu", "layers": ()},
    {"target": "interpret"},
    {"target": "emulate"},
)


def nearest(value: Any, dtype: str) -> float:
    """A number rounded once, halves to even; infinities, NaN and -0.0 stay."""
    if dtype in LARGEST and abs(value) >= LARGEST[dtype]:
        return float(np.copysign(LARGEST[dtype], value))
    if value != value or value in (np.inf, -np.inf) or value == 0:
        return float(value)
    digits, low, high = FORMS[dtype]
    exact = abs(Fraction(value))
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    exponent -= exact < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, low) - digits + 1)
    size = round(exact / unit) * unit
    return float(np.copysign(np.inf if size >= Fraction(2) ** (high + 1) else float(size), value))


def cast(value: Any, source: str, target: str) -> Any:
    """One conversion, as docs/language.md defines it."""
    if target == "bool":
        return value != 0
    if target in FLOATS:
        return nearest(value, target)
    bits = 8 * np.dtype(BY_NAME[target].numpy).itemsize
    low, high = (0, 2**bits - 1) if target[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if source not in FLOATS:
        return (int(value) - low) % 2**bits + low
    if value != value:
        return 0
    return high if value >= high else low if value <= low else int(value)


def expected(types: Sequence[str], values: np.ndarray) -> np.ndarray:
    made = []
    for v in values.astype(np.float64).tolist() if types[0] in FLOATS else values.tolist():
        for source, target in itertools.pairwise(types):
            v = cast(v, source, target)
        made.append(v)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(made, object).astype(BY_NAME[types[-1]].numpy)  # integers of all sizes


def check(chains: list[tuple[str, ...]], call: Call, **options: Any) -> None:
    found = pf.compile(call.text, denormals="keep", **options)(*call.inputs.values())
    for types, got in zip(chains, found if isinstance(found, tuple) else (found,), strict=True):
        values = call.inputs[f"x_{types[0]}"]
        with np.errstate(invalid="ignore"):
            want = expected(types, values)
        wrong = got != want
        if types[-1] in FLOATS:
            wrong |= np.signbit(got.astype(np.float64)) != np.signbit(want.astype(np.float64))
            wrong &= ~(np.isnan(got) & np.isnan(want))
        text = " of ".join(types[::-1])
        assert not wrong.any(), f"{options}: {text} of {values[wrong]}: {got[wrong]}, not {want[wrong]}"


def program(chains: Sequence[tuple[str, ...]], seed: int) -> tuple[list[tuple[str, ...]], Call]:
    writer = Casts("casts", seed)
    writer.sizes = {"N": 60}
    for types in chains:
        writer.chain(types)
    return writer.chains, writer.call()


@pytest.mark.thin(2)
@pytest.mark.parametrize("options", ARGUMENTS, ids=str)
@pytest.mark.parametrize("source", thinned(TYPES, 6))
def test_two_casts_of_each_type_are_exact(source: str, options: dict[str, Any]) -> None:
    chains, call = program([(source, *pair) for pair in PAIRS], TYPES.index(source))
    check(chains, call, **options)


@pytest.mark.parametrize("options", ARGUMENTS, ids=str)
@pytest.mark.parametrize("seed", thinned(range(10), 10))
def test_long_chains_are_exact(seed: int, options: dict[str, Any]) -> None:
    writer = Casts("casts", 1000 + seed)
    call = writer.make(60)
    check(writer.chains, call, **options)


@pytest.mark.parametrize("target", ["i8", "u8", "i16"])
@pytest.mark.parametrize("source", ["f32 u8", "f32 i16", "f64 u8", "f64 i16", "f64 i32"])
def test_floats_between_integers_end_at_the_limits(source: str, target: str) -> None:
    between, integer = source.split()
    chains, call = program([(integer, between, target)], 5)
    check(chains, call, target="interpret")


@pytest.mark.parametrize("text", ["f32(i8(x[n]))", "f32(i16(x[n]))", "f64(i32(f64(x[n])))"])
def test_no_zero_of_an_integer_has_a_sign(text: str) -> None:
    """gcc 12 makes `trunc` of a conversion to integers and back."""
    f = pf.compile(f"op f(x: f32[N]) -> (y: {text[:3]}[N]) {{ y[n] = {text} }}", target="cpu")
    got = f(np.array([-0.0, -0.5, -0.9, 0.5] * 20, np.float32))
    assert not got.any() and not np.signbit(got).any()


def test_the_judge_rounds_as_numpy_does() -> None:
    """Where NumPy rounds once."""
    draw = np.random.default_rng(3)
    numbers = np.concatenate([draw.standard_normal(300) * 10.0**k for k in (-320, -45, -6, 0, 5, 38)])
    with np.errstate(over="ignore", under="ignore"):
        for dtype in ("f64", "f32", "f16"):
            want = numbers.astype(BY_NAME[dtype].numpy).astype(np.float64)
            np.testing.assert_array_equal([nearest(x, dtype) for x in numbers.tolist()], want)
    assert set(INTEGERS) < set(TYPES)
