"""Matrix product, bias, GELU (erf)."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {"mm_bias_gelu": {"T": 1024, "K": 768, "H": 3072}}
SMALL = {"T": 5, "K": 6, "H": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    t, k, h = (sizes[n] for n in "TKH")
    return {
        "x": rng.standard_normal((t, k), "f4"),
        "w": rng.standard_normal((k, h), "f4") * np.float32(k**-0.5),
        "bias": rng.standard_normal(h, "f4"),
    }


def with_numpy(x: Any, w: Any, bias: Any) -> Any:
    from scipy.special import erf

    s = x @ w + bias
    return 0.5 * s * (1 + erf(s * 0.5**0.5))


def with_torch(torch: Any, x: Any, w: Any, bias: Any) -> Any:
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w.T, bias))


def with_jax(jax: Any, x: Any, w: Any, bias: Any) -> Any:
    return jax.nn.gelu(x @ w + bias, approximate=False)
