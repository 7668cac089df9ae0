"""Three residual sums, each layer normalised."""

from __future__ import annotations

from typing import Any

SIZES = {"residual_chain": {"T": 4096, "H": 768}}
SMALL = {"T": 5, "H": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    t, h = sizes["T"], sizes["H"]
    rows = {n: rng.standard_normal((t, h), "f4") for n in "xabc"}
    return {**rows, "gamma": rng.standard_normal(h, "f4"), "beta": rng.standard_normal(h, "f4")}


def with_numpy(x: Any, a: Any, b: Any, c: Any, gamma: Any, beta: Any) -> Any:
    y = x
    for other in (a, b, c):
        y = y + other
        y = y - y.mean(-1, keepdims=True)
        y = y / ((y * y).mean(-1, keepdims=True) + 1e-5) ** 0.5 * gamma + beta
    return y


def with_torch(torch: Any, x: Any, a: Any, b: Any, c: Any, gamma: Any, beta: Any) -> Any:
    norm = torch.nn.functional.layer_norm
    y = x
    for other in (a, b, c):
        y = norm(y + other, gamma.shape, gamma, beta, 1e-5)
    return y


def with_jax(jax: Any, x: Any, a: Any, b: Any, c: Any, gamma: Any, beta: Any) -> Any:
    y = x
    for other in (a, b, c):
        y = y + other
        y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5) * gamma + beta
    return y
