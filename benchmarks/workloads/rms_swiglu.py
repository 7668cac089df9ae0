"""RMS normalisation of a packed tensor, then silu(a) * b of its halves."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {"rms_swiglu": {"T": 2048, "H": 2816}}
SMALL = {"T": 5, "H": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    t, h = sizes["T"], sizes["H"]
    return {"x": rng.standard_normal((t, 2 * h), "f4"), "gamma": rng.standard_normal(2 * h, "f4")}


def with_numpy(x: Any, gamma: Any) -> Any:
    h = x.shape[1] // 2
    z = x / ((x * x).mean(-1, keepdims=True) + 1e-6) ** 0.5 * gamma
    return z[:, :h] / (1 + np.exp(-z[:, :h])) * z[:, h:]


def with_torch(torch: Any, x: Any, gamma: Any) -> Any:
    a, b = torch.nn.functional.rms_norm(x, gamma.shape, gamma, 1e-6).chunk(2, 1)
    return torch.nn.functional.silu(a) * b


def with_liger(ops: Any, x: Any, gamma: Any) -> Any:
    z = ops.rms_norm.rms_norm_forward(x, gamma, 1e-6, 0.0, "llama", False)[0]
    return ops.swiglu.swiglu_fused_gate_up_forward(z)[1]


def with_jax(jax: Any, x: Any, gamma: Any) -> Any:
    z = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gamma
    a, b = jax.numpy.split(z, 2, 1)
    return jax.nn.silu(a) * b
