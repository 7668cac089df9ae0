"""Gradient of layer normalisation from the saved mean and 1 / standard deviation."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {"ln_bwd": {"T": 4096, "H": 768}}
SMALL = {"T": 5, "H": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    dy, x = rng.standard_normal((2, sizes["T"], sizes["H"]), "f4")
    mu, var = x.mean(1), x.var(1)
    rstd = np.float32(1) / np.sqrt(var + np.float32(1e-5))
    return {"dy": dy, "x": x, "gamma": rng.standard_normal(sizes["H"], "f4"), "mu": mu, "rstd": rstd}


def with_numpy(dy: Any, x: Any, gamma: Any, mu: Any, rstd: Any) -> Any:
    xhat = (x - mu[:, None]) * rstd[:, None]
    g = dy * gamma
    c1, c2 = g.mean(-1, keepdims=True), (g * xhat).mean(-1, keepdims=True)
    return rstd[:, None] * (g - c1 - xhat * c2), (dy * xhat).sum(0), dy.sum(0)


def with_torch(torch: Any, dy: Any, x: Any, gamma: Any, mu: Any, rstd: Any) -> Any:
    xhat = (x - mu[:, None]) * rstd[:, None]
    g = dy * gamma
    c1, c2 = g.mean(-1, keepdim=True), (g * xhat).mean(-1, keepdim=True)
    return rstd[:, None] * (g - c1 - xhat * c2), (dy * xhat).sum(0), dy.sum(0)


def with_torch_library(torch: Any, dy: Any, x: Any, gamma: Any, mu: Any, rstd: Any) -> Any:
    """The kernel that autograd calls."""
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, gamma.shape, mu[:, None], rstd[:, None], gamma, gamma, [True, True, True]
    )


def with_liger(ops: Any, dy: Any, x: Any, gamma: Any, mu: Any, rstd: Any) -> Any:
    return ops.layer_norm.layer_norm_backward(dy, x, gamma, gamma, mu, rstd)


def with_jax(jax: Any, dy: Any, x: Any, gamma: Any, mu: Any, rstd: Any) -> Any:
    return with_numpy(dy, x, gamma, mu, rstd)
