"""Loops that copy values of 16 bits convert nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyfuse as pf

TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
ROWS = "op f(x: {0}[T, H], i: i64[N]) -> (y: {0}[N, H]) {{ y[n, h] = x[i[n], h] }}"
BACK = "op f(x: {0}[T, H]) -> (y: {0}[T, H]) {{ y[t, h] = x[t, H - 1 - h] }}"
TURN = "op f(x: {0}[T, H]) -> (y: {0}[H, T]) {{ y[h, t] = x[t, h] }}"


def every_value(kind: str) -> Any:
    """All numbers of a type, infinities, NaN and subnormal ones too."""
    return np.arange(1 << 16, dtype=np.uint16).view(TYPES[kind])


def same(got: Any, expected: Any) -> None:
    """Bit for bit, but for which NaN a NaN is."""
    nan = np.isnan(expected.astype("f4"))
    np.testing.assert_array_equal(np.isnan(got.astype("f4")), nan)
    np.testing.assert_array_equal(
        got.view(np.uint16)[~nan], np.ascontiguousarray(expected).view(np.uint16)[~nan]
    )


def converts(f: pf.Function, *args: Any) -> bool:
    text = f.built(*args).code.source
    return any(word in text for word in ("pf_widen_", "pf_narrow_", "16_from_", "_from_f16", "_from_bf16"))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("width", [1024, 999, 3, 1])
def test_rows_come_bit_for_bit(kind: str, width: int) -> None:
    x = every_value(kind)[: (1 << 16) // width * width].reshape(-1, width)
    index = np.random.default_rng(1).permutation(len(x))
    f = pf.compile(ROWS.format(kind))
    same(f(x, index), x[index])
    assert not converts(f, x, index)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(64, 1024), (9, 77), (1, 1), (0, 5)])
def test_so_do_rows_backwards_and_columns(kind: str, shape: tuple[int, int]) -> None:
    x = every_value(kind)[: shape[0] * shape[1]].reshape(shape)
    back, turn = pf.compile(BACK.format(kind)), pf.compile(TURN.format(kind))
    same(back(x), x[:, ::-1])
    same(turn(x), x.T)
    assert not converts(back, x) or min(shape) < 2


@pytest.mark.parametrize("kind", TYPES)
def test_a_copy_beside_a_sum(kind: str) -> None:
    """The sum converts what the copy stores."""
    x = np.random.default_rng(2).standard_normal((20, 333)).astype(TYPES[kind])
    f = pf.compile(
        f"""op f(x: {kind}[T, H]) -> (y: {kind}[T, H], s: f32[T]) {{
          y[t, h] = x[t, h]
          s[t] = sum[h](f32(y[t, h]))
        }}"""
    )
    y, s = f(x)
    same(y, x)
    np.testing.assert_allclose(s, x.astype("f4").sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", TYPES)
def test_another_type_between_rounds(kind: str) -> None:
    x = np.array([1.5, -2.75, 300.0, 0.1] * 20, TYPES[kind])
    f = pf.compile(f"op f(x: {kind}[N]) -> (y: {kind}[N]) {{ y[i] = {kind}(i32(x[i])) }}")
    np.testing.assert_array_equal(f(x).astype("f4"), np.trunc(x.astype("f4")))
