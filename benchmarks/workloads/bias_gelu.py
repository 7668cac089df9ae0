"""Bias and GELU (erf)."""

from __future__ import annotations

from typing import Any

SIZES = {"bias_gelu_1024": {"T": 1024, "H": 3072}, "bias_gelu_4096": {"T": 4096, "H": 3072}}
SMALL = {"T": 5, "H": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    t, h = sizes["T"], sizes["H"]
    return {"x": rng.standard_normal((t, h), "f4"), "bias": rng.standard_normal(h, "f4")}


def with_numpy(x: Any, bias: Any) -> Any:
    from scipy.special import erf

    s = x + bias
    return 0.5 * s * (1 + erf(s * 0.5**0.5))


def with_torch(torch: Any, x: Any, bias: Any) -> Any:
    return torch.nn.functional.gelu(x + bias)


def with_jax(jax: Any, x: Any, bias: Any) -> Any:
    return jax.nn.gelu(x + bias, approximate=False)
