"""Rotary position embedding of queries and keys, halves turned."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {"rope": {"N": 8, "A": 12, "S": 512, "D": 32}}
SMALL = {"N": 2, "A": 3, "S": 5, "D": 4}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    n, a, s, d = (sizes[k] for k in "NASD")
    q, k = rng.standard_normal((2, n, a, s, 2 * d), "f4")
    angles = np.arange(s)[:, None] * 10000.0 ** (-np.arange(d) / d)
    return {"q": q, "k": k, "cosine": np.cos(angles).astype("f4"), "sine": np.sin(angles).astype("f4")}


def _both(concatenate: Any, q: Any, k: Any, cosine: Any, sine: Any) -> Any:
    d = cosine.shape[-1]
    results = []
    for x in (q, k):
        a, b = x[..., :d], x[..., d:]
        results.append(concatenate((a * cosine - b * sine, b * cosine + a * sine), -1))
    return tuple(results)


def with_numpy(q: Any, k: Any, cosine: Any, sine: Any) -> Any:
    return _both(np.concatenate, q, k, cosine, sine)


def with_torch(torch: Any, q: Any, k: Any, cosine: Any, sine: Any) -> Any:
    return _both(torch.cat, q, k, cosine, sine)


def with_jax(jax: Any, q: Any, k: Any, cosine: Any, sine: Any) -> Any:
    return _both(jax.numpy.concatenate, q, k, cosine, sine)
