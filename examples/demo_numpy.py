"""The operators of the demo in NumPy, as one would write them with care.

That is in float32, in place where it is natural, and without needless temporaries.

Each takes its arguments by name, writes those that are in place, and gives the other results by name.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Arrays = dict[str, Any]  # NumPy arrays, and Python numbers for scalar arguments


def normalise(s: Any, gamma: Any, beta: Any, eps: float) -> Any:
    s -= s.mean(-1, keepdims=True)
    s *= 1.0 / np.sqrt(np.mean(s * s, -1, keepdims=True) + np.float32(eps))
    s *= gamma
    s += beta
    return s


def layer_norm(a: Arrays) -> Arrays:
    return {"y": normalise(a["x"] + a["bias"] + a["r"], a["gamma"], a["beta"], 1e-5)}


def softmax(a: Arrays) -> Arrays:
    z = a["x"] * np.float32(0.125) + a["mask"]
    z -= z.max(-1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(-1, keepdims=True)
    return {"y": z}


def erf(x: Any) -> Any:
    """NumPy has none: Abramowitz and Stegun, 7.1.26, absolute error below 2e-7 and rounding."""
    t = 1.0 / (1.0 + np.float32(0.3275911) * np.abs(x))
    p = np.full_like(t, 1.061405429)
    for c in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        p *= t
        p += np.float32(c)
    p *= t
    p *= np.exp(-x * x)
    return np.copysign(1.0 - p, x)


def gelu(a: Arrays) -> Arrays:
    s = a["x"] + a["bias"]
    y = erf(s * np.float32(math.sqrt(0.5)))
    y += 1.0
    y *= s
    y *= np.float32(0.5)
    return {"y": y}


def batch_norm(a: Arrays) -> Arrays:
    x, momentum = a["x"], np.float32(0.1)
    count = x.size // x.shape[1]
    mu = x.mean((0, 2, 3), keepdims=True)
    y = x - mu
    var = np.mean(y * y, (0, 2, 3), keepdims=True)
    y *= a["gamma"][:, None, None] / np.sqrt(var + np.float32(1e-5))
    y += a["beta"][:, None, None]
    np.maximum(y, 0, out=y)
    for name, new in (("running_mean", mu), ("running_var", var * np.float32(count / (count - 1)))):
        a[name] *= 1 - momentum
        a[name] += momentum * new.ravel()
    return {"y": y}


def lstm(a: Arrays) -> Arrays:
    g = a["gx"] + a["gh"] + a["bias"]
    i, f, new, o = np.split(g, 4, axis=1)
    i, f, o = (1.0 / (1.0 + np.exp(-gate)) for gate in (i, f, o))
    c_next = f * a["c"] + i * np.tanh(new)
    return {"h_next": o * np.tanh(c_next), "c_next": c_next}


def adamw(a: Arrays) -> Arrays:
    p, g, m, v, step = a["p"], a["g"], a["m"], a["v"], a["step"]
    m *= np.float32(0.9)
    m += np.float32(0.1) * g
    v *= np.float32(0.999)
    v += np.float32(0.001) * g * g
    update = np.sqrt(v)
    update *= np.float32(1 / math.sqrt(1 - 0.999**step))
    update += np.float32(1e-8)
    np.divide(m, update, out=update)
    update *= np.float32(1e-3 / (1 - 0.9**step))
    p *= np.float32(1 - 1e-3 * 0.01)
    p -= update
    return {}


def stencil(a: Arrays) -> Arrays:
    start, dt = a["start"], a["dt"]
    u = np.empty((len(dt) + 1, len(start)), np.float32)
    u[0] = start
    u[:, 0], u[:, -1] = start[0], start[-1]
    for old, new, step in zip(u, u[1:], dt, strict=False):
        new[1:-1] = old[1:-1] + step * (old[:-2] - 2 * old[1:-1] + old[2:])
    return {"u": u}


def embedding(a: Arrays) -> Arrays:
    e = a["word"][a["ids"]]
    e += a["position"][: a["ids"].shape[1]]
    e += a["kind"][a["kinds"]]
    return {"y": normalise(e, a["gamma"], a["beta"], 1e-12)}
