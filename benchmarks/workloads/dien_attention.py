"""Interest attention of DIEN: scores w . [q, k, q - k, q * k] + bias, mask, softmax, weighted sum."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {"dien_attention": {"B": 256, "T": 100, "H": 36}}
SMALL = {"B": 3, "T": 5, "H": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    b, t, h = (sizes[n] for n in "BTH")
    return {
        "q": rng.standard_normal((b, h), "f4"),
        "k": rng.standard_normal((b, t, h), "f4"),
        "keep": np.arange(t) < rng.integers(1, t + 1, (b, 1)),
        "w": rng.standard_normal(4 * h, "f4"),
        "bias": 0.5,
    }


def with_numpy(q: Any, k: Any, keep: Any, w: Any, bias: Any) -> Any:
    all_q = np.broadcast_to(q[:, None], k.shape)
    score = np.concatenate([all_q, k, all_q - k, all_q * k], -1) @ w + bias
    score = np.where(keep, score, -1e4)
    e = np.exp(score - score.max(-1, keepdims=True))
    return (e[:, None] @ k)[:, 0] / e.sum(-1, keepdims=True)


def with_torch(torch: Any, q: Any, k: Any, keep: Any, w: Any, bias: Any) -> Any:
    all_q = q[:, None].expand_as(k)
    score = torch.cat([all_q, k, all_q - k, all_q * k], -1) @ w + bias
    p = torch.softmax(score.masked_fill(~keep, -1e4), -1)
    return (p[:, None] @ k)[:, 0]


def with_jax(jax: Any, q: Any, k: Any, keep: Any, w: Any, bias: Any) -> Any:
    all_q = jax.numpy.broadcast_to(q[:, None], k.shape)
    score = jax.numpy.concatenate([all_q, k, all_q - k, all_q * k], -1) @ w + bias
    p = jax.nn.softmax(jax.numpy.where(keep, score, -1e4), -1)
    return (p[:, None] @ k)[:, 0]
