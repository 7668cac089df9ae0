"""Softmax of rows; on a GPU at row counts and lengths from many short ones to few long ones."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {"softmax_4096": {"T": 4096, "H": 768}}
SMALL = {"T": 5, "H": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    return {"x": rng.standard_normal((sizes["T"], sizes["H"]), "f4")}


def with_numpy(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def with_torch(torch: Any, x: Any) -> Any:
    return torch.softmax(x, -1)


def with_liger(ops: Any, x: Any) -> Any:
    return ops.softmax._softmax_forward(x)[0]


def with_jax(jax: Any, x: Any) -> Any:
    return jax.nn.softmax(x, -1)
