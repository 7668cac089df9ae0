"""Word, position and type embeddings, their sum layer normalised."""

from __future__ import annotations

from typing import Any

SIZES = {"emb_sum_ln": {"V": 30522, "P": 512, "K": 2, "B": 8, "S": 512, "D": 768}}
SMALL = {"V": 11, "P": 6, "K": 2, "B": 3, "S": 5, "D": 7}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    v, p, k, d = (sizes[n] for n in "VPKD")
    shape = sizes["B"], sizes["S"]
    tables = {n: rng.standard_normal((e, d), "f4") for n, e in (("word", v), ("position", p), ("kind", k))}
    return {
        **tables,
        "ids": rng.integers(0, v, shape),
        "kinds": rng.integers(0, k, shape),
        "gamma": rng.standard_normal(d, "f4"),
        "beta": rng.standard_normal(d, "f4"),
    }


def with_numpy(word: Any, position: Any, kind: Any, ids: Any, kinds: Any, gamma: Any, beta: Any) -> Any:
    e = word[ids] + position[: ids.shape[1]] + kind[kinds]
    return (e - e.mean(-1, keepdims=True)) / (e.var(-1, keepdims=True) + 1e-12) ** 0.5 * gamma + beta


def with_torch(
    torch: Any, word: Any, position: Any, kind: Any, ids: Any, kinds: Any, gamma: Any, beta: Any
) -> Any:
    f = torch.nn.functional
    e = f.embedding(ids, word) + position[: ids.shape[1]] + f.embedding(kinds, kind)
    return f.layer_norm(e, gamma.shape, gamma, beta, 1e-12)


def with_jax(
    jax: Any, word: Any, position: Any, kind: Any, ids: Any, kinds: Any, gamma: Any, beta: Any
) -> Any:
    e = word[ids] + position[: ids.shape[1]] + kind[kinds]
    return (e - e.mean(-1, keepdims=True)) * jax.lax.rsqrt(e.var(-1, keepdims=True) + 1e-12) * gamma + beta
