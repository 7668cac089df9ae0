"""LSTM cell after the matrix products: gates i, f, g, o, then c' and h'."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {"lstm_cell": {"B": 256, "H": 1024}}
SMALL = {"B": 3, "H": 5}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    b, h = sizes["B"], sizes["H"]
    gx, gh = rng.standard_normal((2, b, 4 * h), "f4")
    return {
        "gx": gx,
        "gh": gh,
        "bias": rng.standard_normal(4 * h, "f4"),
        "c": rng.standard_normal((b, h), "f4"),
    }


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def with_numpy(gx: Any, gh: Any, bias: Any, c: Any) -> Any:
    i, f, g, o = np.split(gx + gh + bias, 4, 1)
    c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(c), c


def with_torch(torch: Any, gx: Any, gh: Any, bias: Any, c: Any) -> Any:
    i, f, g, o = (gx + gh + bias).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def with_jax(jax: Any, gx: Any, gh: Any, bias: Any, c: Any) -> Any:
    i, f, g, o = jax.numpy.split(gx + gh + bias, 4, 1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jax.numpy.tanh(g)
    return jax.nn.sigmoid(o) * jax.numpy.tanh(c), c
