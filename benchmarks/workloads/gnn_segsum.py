"""Messages along the edges of a graph: gather, times a weight, summed by destination.

The edges of `gnn_segsum` are sorted by destination, as those of most graphs are; where they are not, the
operator is the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {"gnn_segsum": {"N": 20000, "E": 200000, "F": 64}}
SMALL = {"N": 9, "E": 40, "F": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    n, e, f = (sizes[k] for k in "NEF")
    return {
        "x": rng.standard_normal((n, f), "f4"),
        "w": rng.standard_normal(e, "f4"),
        "src": rng.integers(0, n, e),
        "dst": np.sort(rng.integers(0, n, e)),
    }


def with_numpy(x: Any, w: Any, src: Any, dst: Any) -> Any:
    y = np.zeros_like(x)
    np.add.at(y, dst, w[:, None] * x[src])
    return y


def with_torch(torch: Any, x: Any, w: Any, src: Any, dst: Any) -> Any:
    return torch.zeros_like(x).index_add_(0, dst, w[:, None] * x[src])


def with_jax(jax: Any, x: Any, w: Any, src: Any, dst: Any) -> Any:
    return jax.ops.segment_sum(w[:, None] * x[src], dst, x.shape[0], indices_are_sorted=True)
