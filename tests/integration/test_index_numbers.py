"""Indices and sizes as numbers wrap at 64 bits, on all targets and in the reference; remainders of floats are
the same there, too, and checked reads name their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.diagnostics import DslError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.runtime.reference.evaluate import evaluate

TARGETS: tuple[Any, ...] = ("cpu", "emulate", "interpret")
Array = np.ndarray[Any, Any]
N = 9
C = 2**62
LEAST = -(2**63)


def wrapped(value: int) -> int:
    return (value - LEAST) % 2**64 + LEAST


NUMBERS: dict[str, Callable[[int], int]] = {
    f"max(i * {C}, 0)": lambda i: max(wrapped(i * C), 0),
    f"min(0 - i * {C}, N)": lambda i: min(wrapped(-wrapped(i * C)), N),
    f"1 if i * {C} > 0 else 0": lambda i: int(wrapped(i * C) > 0),
    f"1 if i * {C} == 0 else 0": lambda i: int(wrapped(i * C) == 0),
    f"(i * {C}) // 3": lambda i: wrapped(i * C) // 3,
    f"(i * {C}) % 3": lambda i: wrapped(i * C) % 3,
    f"(i * {C}) // (N - 4)": lambda i: wrapped(i * C) // 5,
    "(i * 6364136223846793005 + 1442695040888963407) // 4294967296": lambda i: (
        wrapped(i * 6364136223846793005 + 1442695040888963407) // 2**32
    ),
    "(N * i * 9007199254740992 * 1024 - 1) % 10": lambda i: wrapped(N * i * 2**63 - 1) % 10,
    f"i + {LEAST}": lambda i: i + LEAST,
    f"max({LEAST} - i, 7)": lambda i: max(wrapped(LEAST - i), 7),
    f"i // {2**63 - 1} + {LEAST} // 10": lambda i: LEAST // 10,
}


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_wrap(text: str) -> None:
    want = np.array([NUMBERS[text](i) for i in range(N)])
    zeros = np.zeros(N, np.int64)
    program = f"op f(z: i64[N]) -> (y: i64[N]) {{ y[i] = z[i] + ({text}) }}"
    for target in TARGETS:
        assert np.array_equal(pf.compile(program, target=target)(zeros), want), target
    found = evaluate(instantiate(parse_text(program), "f"), {"N": N}, {"z": zeros})
    assert np.array_equal(found["y"].value, want)


def test_the_least_integer_can_be_written() -> None:
    f = pf.compile(f"op f(k: i64[N], c: i64 = {LEAST}) -> (y: i64[N]) {{ y[i] = max(k[i], {LEAST}) - c }}")
    assert np.array_equal(f(np.array([0, 1])), np.array([LEAST, LEAST + 1]))
    b = pf.ProgramBuilder()
    g = b.op("g")
    k, i = g.param("k", "i64", "N"), g.index("i")
    g.result("y", "i64", "N")[i] = k[i] + LEAST
    assert np.array_equal(pf.compile(b.program(), "g")(np.array([0, 1])), np.array([LEAST, LEAST + 1]))


@pytest.mark.parametrize(
    "text", ["i - 9223372036854775808", "i + 4611686018427387904 * 2", "i // (4611686018427387904 * 2)"]
)
def test_larger_constants_are_refused(text: str) -> None:
    with pytest.raises(DslError, match="PF105"):
        pf.compile(f"op f(k: i64[N]) -> (y: i64[N]) {{ y[i] = k[i] + ({text}) }}")(np.zeros(3, np.int64))


@pytest.mark.parametrize(
    "text", ["i // N", "i % N", "(i * 3 // N) % 4", "(i + 1) // min(N, i) if i // N < 3 else 7"]
)
def test_numbers_divided_by_a_size_of_0_are_0(text: str) -> None:
    program = f"op f(x: f32[N], z: i64[M]) -> (y: i64[M]) {{ y[i] = z[i] + ({text}) }}"
    arguments = np.ones(0, np.float32), np.ones(40, np.int64)
    for target in TARGETS:
        assert np.array_equal(pf.compile(program, target=target)(*arguments), np.ones(40)), target
    inputs = dict(zip("xz", arguments, strict=True))
    found = evaluate(instantiate(parse_text(program), "f"), {"N": 0, "M": 40}, inputs, checked=False)
    assert np.array_equal(found["y"].value, np.ones(40))


@pytest.mark.parametrize("divisor", ["3.0", "-3.0", "0.1"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_remainders_of_large_quotients_are_0(divisor: str, dtype: type[np.floating[Any]]) -> None:
    """Up to quotients of 2**53 they are NumPy's."""
    x = np.array([1e20, -1e20, 1e30, 2.0**60, 2.0**50 + 1.0, -7.5, 0.0, np.inf, np.nan], dtype)
    with np.errstate(invalid="ignore"):
        want = np.where(
            np.abs(x / dtype(divisor)) < 2.0**53, np.mod(x, dtype(divisor)), np.copysign(0.0, float(divisor))
        )
    want[[-2, -1]] = np.nan
    name = np.dtype(dtype).name.replace("float", "f")
    program = f"op f(x: {name}[N]) -> (y: {name}[N]) {{ y[i] = x[i] % ({divisor}) }}"
    for target in TARGETS:
        got = pf.compile(program, target=target)(x)
        assert np.allclose(got, want, rtol=1e-6, atol=0, equal_nan=True), target
        assert np.array_equal(np.signbit(got[:7]), np.signbit(want[:7])), target
    found: Array = evaluate(instantiate(parse_text(program), "f"), {"N": len(x)}, {"x": x})["y"].value
    assert np.array_equal(found == 0, want == 0)


GATHERS = [
    "y = sum[i, d](x[k[i], d])",
    "y = sum[i, d](x[k[i], d] if k[i] > 0 else 0.0)",
    "y = sum[i, d](x[k[i] + 0 * d, d] * x[k[i], d])",
]


@pytest.mark.parametrize("statement", GATHERS)
@pytest.mark.parametrize("target", ["cpu", "emulate", "interpret"])
def test_checked_gathers_show_their_place(statement: str, target: Any) -> None:
    """Also where a register has what the index reads."""
    text = f"op f(x: f32[N, D], k: i64[M]) -> (y: f32) {{\n  {statement}\n}}"
    k = np.arange(64)
    k[-1] = 99
    with pytest.raises(pf.PolyfuseError) as refused:
        pf.compile(text, target=target, checked=True)(np.ones((64, 64), np.float32), k)
    (found,) = refused.value.diagnostics
    assert found.code == "PF450" and found.span is not None
    assert found.span.line == 2 and found.span.text.startswith("k[i]")
