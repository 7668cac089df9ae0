"""Gradient of bias + GELU: dx, and dbias as the sum of its columns."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {"gelu_bwd_dbias": {"T": 4096, "H": 3072}}
SMALL = {"T": 5, "H": 7}
ROOT_HALF, PDF_0 = 0.5**0.5, 0.3989422804014327


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    dy, x = rng.standard_normal((2, sizes["T"], sizes["H"]), "f4")
    return {"dy": dy, "x": x}


def with_numpy(dy: Any, x: Any) -> Any:
    from scipy.special import erf

    dx = dy * (0.5 * (1 + erf(x * ROOT_HALF)) + x * PDF_0 * np.exp(-0.5 * x * x))
    return dx, dx.sum(0)


def with_torch(torch: Any, dy: Any, x: Any) -> Any:
    dx = dy * (0.5 * (1 + torch.erf(x * ROOT_HALF)) + x * PDF_0 * torch.exp(-0.5 * x * x))
    return dx, dx.sum(0)


def with_torch_library(torch: Any, dy: Any, x: Any) -> Any:
    """The kernel that autograd calls."""
    dx = torch.ops.aten.gelu_backward(dy, x)
    return dx, dx.sum(0)


def with_jax(jax: Any, dy: Any, x: Any) -> Any:
    cdf = 0.5 * (1 + jax.lax.erf(x * ROOT_HALF))
    dx = dy * (cdf + x * PDF_0 * jax.numpy.exp(-0.5 * x * x))
    return dx, dx.sum(0)
