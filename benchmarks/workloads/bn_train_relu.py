"""Batch normalisation by batch statistics, with running statistics, then ReLU."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {"bn_train_relu": {"N": 32, "C": 64, "H": 56, "W": 56}}
SMALL = {"N": 2, "C": 3, "H": 4, "W": 5}


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    c = sizes["C"]
    gamma, beta, mean = rng.standard_normal((3, c), "f4")
    running = {"running_mean": mean, "running_var": rng.random(c, "f4") + np.float32(0.5)}
    x = rng.standard_normal([sizes[k] for k in "NCHW"], "f4")
    return {"x": x, "gamma": gamma, "beta": beta, **running}


def _train(x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any, maximum: Any) -> Any:
    count = x.size // x.shape[1]
    column = (slice(None), None, None)
    mu = x.mean((0, 2, 3))
    var = ((x - mu[column]) ** 2).mean((0, 2, 3))
    y = (x - mu[column]) / ((var + 1e-5) ** 0.5)[column] * gamma[column] + beta[column]
    mean = 0.9 * running_mean + 0.1 * mu
    return maximum(y, 0), mean, 0.9 * running_var + 0.1 * (var * (count / (count - 1)))


def with_numpy(x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any) -> Any:
    return _train(x, gamma, beta, running_mean, running_var, np.maximum)


def with_torch(torch: Any, x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any) -> Any:
    norm = torch.nn.functional.batch_norm
    return torch.relu(norm(x, running_mean, running_var, gamma, beta, True, 0.1, 1e-5))


def with_jax(jax: Any, x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any) -> Any:
    return _train(x, gamma, beta, running_mean, running_var, jax.numpy.maximum)
