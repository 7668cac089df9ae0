"""40 small operators with nothing in common: 20 of relu(a * 1.5 + 0.1) * b, 20 of row sums of exp(0.1 c)."""

from __future__ import annotations

from typing import Any

import numpy as np

COUNT = 20
SIZES = {"many_small": {"N": 128, "M": 128}}
SMALL = {"N": 5, "M": 7}


def _text() -> str:
    inputs = ", ".join(f"a{k}: f32[N, M], b{k}: f32[N, M], c{k}: f32[N, M]" for k in range(COUNT))
    results = ", ".join(f"y{k}: f32[N, M], s{k}: f32[N]" for k in range(COUNT))
    lines = [f"op many_small({inputs}) -> ({results}) {{"]
    for k in range(COUNT):
        lines.append(f"  y{k}[n, m] = max(a{k}[n, m] * 1.5 + 0.1, 0.0) * b{k}[n, m]")
        lines.append(f"  s{k}[n] = sum[m](exp(0.1 * c{k}[n, m]))")
    return "\n".join([*lines, "}"])


TEXT = _text()


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    shape = sizes["N"], sizes["M"]
    return {f"{x}{k}": rng.standard_normal(shape, "f4") for k in range(COUNT) for x in "abc"}


def _all(maximum: Any, exp: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for k in range(COUNT):
        a, b, c = given[3 * k : 3 * k + 3]
        found += [maximum(a * 1.5 + 0.1) * b, exp(0.1 * c).sum(1)]
    return tuple(found)


def _in_order(given: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(given[f"{x}{k}"] for k in range(COUNT) for x in "abc")


def with_numpy(**given: Any) -> Any:
    return _all(lambda x: np.maximum(x, 0.0), np.exp, _in_order(given))


def with_torch(torch: Any, *given: Any) -> Any:
    return _all(torch.relu, torch.exp, given)


def with_jax(jax: Any, **given: Any) -> Any:
    return _all(jax.nn.relu, jax.numpy.exp, _in_order(given))
