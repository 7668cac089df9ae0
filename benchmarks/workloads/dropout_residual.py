"""Bias, dropout by a given mask, residual: a chain of elementwise operators."""

from __future__ import annotations

from typing import Any

import numpy as np

TEXT = """\
op dropout_residual(x: f32[T, H], r: f32[T, H], bias: f32[H], keep: f32[T, H]) -> (y: f32[T, H]) {
  a[t, h] = x[t, h] + bias[h]
  d[t, h] = a[t, h] * keep[t, h] * 1.25
  y[t, h] = d[t, h] + r[t, h]
}
"""
SIZES = {"dropout_residual": {"T": 4096, "H": 768}}
SMALL = {"T": 5, "H": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    t, h = sizes["T"], sizes["H"]
    x, r = rng.standard_normal((2, t, h), "f4")
    keep = (rng.random((t, h), "f4") < np.float32(0.8)).astype(np.float32)
    return {"x": x, "r": r, "bias": rng.standard_normal(h, "f4"), "keep": keep}


def with_numpy(x: Any, r: Any, bias: Any, keep: Any) -> Any:
    return (x + bias) * keep * 1.25 + r


def with_torch(torch: Any, x: Any, r: Any, bias: Any, keep: Any) -> Any:
    return (x + bias) * keep * 1.25 + r


def with_jax(jax: Any, x: Any, r: Any, bias: Any, keep: Any) -> Any:
    return (x + bias) * keep * 1.25 + r
