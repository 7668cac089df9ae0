"""The example of AStitch: two sums of a row, a power between them."""

from __future__ import annotations

from typing import Any

SIZES = {"astitch_768": {"T": 4096, "H": 768}}
SMALL = {"T": 5, "H": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    x, y = rng.standard_normal((2, sizes["T"], sizes["H"]), "f4")
    return {"x": x, "y": y}


def with_numpy(x: Any, y: Any) -> Any:
    c = (0.01 * (x * x).sum(-1, keepdims=True) + 1) ** 1.3 + y
    return c * ((c * c).sum(-1, keepdims=True) + 1e-6) ** -0.5


def with_torch(torch: Any, x: Any, y: Any) -> Any:
    c = (0.01 * (x * x).sum(-1, keepdim=True) + 1) ** 1.3 + y
    return c * ((c * c).sum(-1, keepdim=True) + 1e-6) ** -0.5


def with_jax(jax: Any, x: Any, y: Any) -> Any:
    return with_numpy(x, y)
