"""Layer normalisation."""

from __future__ import annotations

from typing import Any

SIZES = {"ln_fwd": {"T": 4096, "H": 768}}
SMALL = {"T": 5, "H": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    t, h = sizes["T"], sizes["H"]
    rows = {n: rng.standard_normal(h, "f4") for n in ("gamma", "beta")}
    return {"x": rng.standard_normal((t, h), "f4"), **rows}


def with_numpy(x: Any, gamma: Any, beta: Any) -> Any:
    y = x - x.mean(-1, keepdims=True)
    return y / ((y * y).mean(-1, keepdims=True) + 1e-5) ** 0.5 * gamma + beta


def with_torch(torch: Any, x: Any, gamma: Any, beta: Any) -> Any:
    return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, 1e-5)


def with_liger(ops: Any, x: Any, gamma: Any, beta: Any) -> Any:
    return ops.layer_norm.layer_norm_forward(x, gamma, beta, 1e-5)[0]


def with_jax(jax: Any, x: Any, gamma: Any, beta: Any) -> Any:
    y = x - x.mean(-1, keepdims=True)
    return y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5) * gamma + beta
