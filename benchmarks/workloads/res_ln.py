"""Bias, residual and layer normalisation."""

from __future__ import annotations

from typing import Any

SIZES = {"res_ln_1024": {"T": 1024, "H": 768}, "res_ln_4096": {"T": 4096, "H": 768}}
SMALL = {"T": 5, "H": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    t, h = sizes["T"], sizes["H"]
    x, r = rng.standard_normal((2, t, h), "f4")
    bias, gamma, beta = rng.standard_normal((3, h), "f4")
    return {"x": x, "bias": bias, "r": r, "gamma": gamma, "beta": beta}


def with_numpy(x: Any, bias: Any, r: Any, gamma: Any, beta: Any) -> Any:
    y = x + bias + r
    y = y - y.mean(-1, keepdims=True)
    return y / ((y * y).mean(-1, keepdims=True) + 1e-5) ** 0.5 * gamma + beta


def with_torch(torch: Any, x: Any, bias: Any, r: Any, gamma: Any, beta: Any) -> Any:
    return torch.nn.functional.layer_norm(x + bias + r, gamma.shape, gamma, beta, 1e-5)


def with_jax(jax: Any, x: Any, bias: Any, r: Any, gamma: Any, beta: Any) -> Any:
    y = x + bias + r
    y = y - y.mean(-1, keepdims=True)
    return y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5) * gamma + beta
