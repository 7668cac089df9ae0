"""Scale, additive mask of the keys, softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {
    "msoftmax_128": {"N": 8, "A": 12, "S": 128, "T": 128},
    "msoftmax_384": {"N": 8, "A": 12, "S": 384, "T": 384},
}
SMALL = {"N": 2, "A": 3, "S": 5, "T": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    n, a, s, t = (sizes[k] for k in "NAST")
    lengths = rng.integers(t // 2, t + 1, n)
    mask = np.where(np.arange(t) < lengths[:, None], 0, -1e4).astype(np.float32)
    return {"x": rng.standard_normal((n, a, s, t), "f4"), "mask": mask[:, None, None, :]}


def with_numpy(x: Any, mask: Any) -> Any:
    z = x * 0.125 + mask
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def with_torch(torch: Any, x: Any, mask: Any) -> Any:
    return torch.softmax(x * 0.125 + mask, -1)


def with_jax(jax: Any, x: Any, mask: Any) -> Any:
    return jax.nn.softmax(x * 0.125 + mask, -1)
