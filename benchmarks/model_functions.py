"""The models of examples/models, written for PyTorch and JAX: the same mathematics as the programs.

A function takes the library and the operator's arguments by name (`a`), and returns its results in order and
then the new values of its inout parameters.  Gradients are written out, so that all sides are given the same
tensors to start from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.array_libraries import Library, Value

Arguments = Mapping[str, Any]
RSQRT2, RSQRT2PI = 0.7071067811865476, 0.3989422804014327


# --- the transformer encoder layer -------------------------------------------------------------------


def _heads(lib: Library, a: Arguments) -> Value:
    """q, k and v, [3, N, A, S, D]."""
    x, w = a["x"], a["w_qkv"]
    packed = lib.linear(x, w.reshape(-1, x.shape[-1]), a["b_qkv"].reshape(-1))
    return lib.permute(packed.reshape(*x.shape[:2], *w.shape[:3]), (2, 0, 3, 1, 4))


def _attention(lib: Library, a: Arguments) -> tuple[Value, ...]:
    """q, k, v, the weights, and the context as [N, S, A, D]."""
    q, k, v = _heads(lib, a)
    score = q @ lib.permute(k, (0, 1, 3, 2)) * q.shape[-1] ** -0.5
    p = lib.softmax(score + a["mask"][:, None, None, :])
    return q, k, v, p, lib.permute(p @ v, (0, 2, 1, 3))


def _way_back(lib: Library, context: Value, a: Arguments) -> Value:
    flat = context.reshape(*context.shape[:2], -1)
    return lib.linear(flat, a["w_out"].reshape(a["w_out"].shape[0], -1), a["b_out"])


def encoder(lib: Library, a: Arguments) -> tuple[Value, ...]:
    *_, context = _attention(lib, a)
    h = lib.layer_norm(_way_back(lib, context, a) + a["x"], a["gamma1"], a["beta1"])
    act = lib.gelu(lib.linear(h, a["w_up"], a["b_up"]))
    return (lib.layer_norm(lib.linear(act, a["w_down"], a["b_down"]) + h, a["gamma2"], a["beta2"]),)


def _norm_with_statistics(lib: Library, x: Value, gamma: Value, beta: Value) -> tuple[Value, ...]:
    mu, r = lib.mean(x), lib.rsqrt(lib.variance(x) + 1e-5)
    return (x - mu) * r * gamma + beta, mu[..., 0], r[..., 0]


def encoder_train(lib: Library, a: Arguments) -> tuple[Value, ...]:
    q, k, v, p, context = _attention(lib, a)
    s1 = _way_back(lib, context, a) + a["x"]
    h, mu1, rstd1 = _norm_with_statistics(lib, s1, a["gamma1"], a["beta1"])
    up = lib.linear(h, a["w_up"], a["b_up"])
    s2 = lib.linear(lib.gelu(up), a["w_down"], a["b_down"]) + h
    y, mu2, rstd2 = _norm_with_statistics(lib, s2, a["gamma2"], a["beta2"])
    return y, q, k, v, p, context, s1, mu1, rstd1, h, up, s2, mu2, rstd2


def _norm_backward(
    lib: Library, dy: Value, x: Value, gamma: Value, mu: Value, rstd: Value
) -> tuple[Value, ...]:
    xhat, g = (x - mu[..., None]) * rstd[..., None], dy * gamma
    dx = rstd[..., None] * (g - lib.mean(g) - xhat * lib.mean(g * xhat))
    return dx, (dy * xhat).sum((0, 1)), dy.sum((0, 1))


def _rows(x: Value) -> Value:
    """[N, S, ...] as a matrix of N * S rows."""
    return x.reshape(x.shape[0] * x.shape[1], -1)


def encoder_backward(lib: Library, a: Arguments) -> tuple[Value, ...]:
    ds2, dgamma2, dbeta2 = _norm_backward(lib, a["dy"], a["s2"], a["gamma2"], a["mu2"], a["rstd2"])
    up = a["up"]
    cdf, pdf = 0.5 * (1 + lib.erf(up * RSQRT2)), RSQRT2PI * lib.exp(-0.5 * up * up)
    dup = ds2 @ a["w_down"] * (cdf + up * pdf)
    dw_down, db_down = _rows(ds2).T @ _rows(up * cdf), ds2.sum((0, 1))
    dw_up, db_up = _rows(dup).T @ _rows(a["h"]), dup.sum((0, 1))
    dh = dup @ a["w_up"] + ds2

    ds1, dgamma1, dbeta1 = _norm_backward(lib, dh, a["s1"], a["gamma1"], a["mu1"], a["rstd1"])
    context, w_qkv = a["context"], a["w_qkv"]
    flat = a["w_out"].reshape(a["w_out"].shape[0], -1)
    dw_out, db_out = (_rows(ds1).T @ _rows(context)).reshape(a["w_out"].shape), ds1.sum((0, 1))
    dcontext = lib.permute((ds1 @ flat).reshape(context.shape), (0, 2, 1, 3))  # [N, A, S, D]
    p, q, k, v = a["p"], a["q"], a["k"], a["v"]
    dp, dv = dcontext @ lib.permute(v, (0, 1, 3, 2)), lib.permute(p, (0, 1, 3, 2)) @ dcontext
    dz = p * (dp - (dp * p).sum(-1)[..., None])
    scale = q.shape[-1] ** -0.5
    dq, dk = dz @ k * scale, lib.permute(dz, (0, 1, 3, 2)) @ q * scale

    packed = _rows(lib.permute(lib.stack([dq, dk, dv]), (1, 3, 0, 2, 4)))  # [N * S, 3 * A * D]
    dw_qkv = (packed.T @ _rows(a["x"])).reshape(w_qkv.shape)
    db_qkv = packed.sum(0).reshape(w_qkv.shape[:3])
    dx = (packed @ w_qkv.reshape(-1, w_qkv.shape[-1])).reshape(a["x"].shape) + ds1
    return (dx, dw_qkv, db_qkv, dw_out, db_out, dgamma1, dbeta1, dw_up, db_up, dw_down, db_down, dgamma2,
            dbeta2)  # fmt: skip


# --- recurrent models ----------------------------------------------------------------------------------


def lstm(lib: Library, a: Arguments) -> tuple[Value, ...]:
    gates, features = lib.linear(a["x"], a["w"], a["bias"]), a["h0"].shape[-1]

    def step(state: Any, xs: Any) -> tuple[Any, Any]:
        h, c = state
        g = xs[0] + lib.linear(h, a["u"])
        i, f, n, o = (g[:, k * features : (k + 1) * features] for k in range(4))
        c = lib.sigmoid(f) * c + lib.sigmoid(i) * lib.tanh(n)
        h = lib.sigmoid(o) * lib.tanh(c)
        return (h, c), h

    (h, c), steps = lib.scan(step, (a["h0"], a["c0"]), (gates,), gates.shape[0])
    return steps, h, c


def _weights(lib: Library, a: Arguments, k: Value) -> Value:
    q = a["q"][:, None]
    wide = lib.broadcast(q, k.shape)
    dot = lib.concatenate([wide, k, q - k, q * k]) @ a["w"] + a["bias"]
    return lib.softmax(lib.where(a["keep"], dot, -1e4))


def dien_attention(lib: Library, a: Arguments) -> tuple[Value, ...]:
    return ((_weights(lib, a, a["k"])[:, None] @ a["k"])[:, 0],)


def _gru(lib: Library, gx: Value, u: Value, bias: Value, weight: Value) -> Value:
    """gx[B, T, 3 * H], weight[B, T] -> the states, [T, B, H]."""
    n = u.shape[1]

    def step(h: Any, xs: Any) -> tuple[Any, Any]:
        x, w = xs
        g = lib.linear(h, u, bias)
        r = lib.sigmoid(x[:, :n] + g[:, :n])
        z = lib.sigmoid(x[:, n : 2 * n] + g[:, n : 2 * n]) * w[:, None]
        h = (1 - z) * h + z * lib.tanh(x[:, 2 * n :] + r * g[:, 2 * n :])
        return h, h

    start = lib.zeros_like(gx[:, 0, :n])
    return lib.scan(step, start, (lib.permute(gx, (1, 0, 2)), lib.permute(weight, (1, 0))), gx.shape[1])[1]


def dien(lib: Library, a: Arguments) -> tuple[Value, ...]:
    x = a["x"]
    one = lib.ones_like(x[:, :, 0])
    interest = lib.permute(_gru(lib, lib.linear(x, a["w1"], a["b1"]), a["u1"], a["c1"], one), (1, 0, 2))
    p = _weights(lib, a, interest)
    return _gru(lib, lib.linear(interest, a["w2"], a["b2"]), a["u2"], a["c2"], p)[-1], p


# --- the loss of a detector ----------------------------------------------------------------------------


def yolo(lib: Library, a: Arguments) -> tuple[Value, ...]:
    x, box, there_is, anchor = a["x"], a["box"], a["object"], a["anchor"][None, :, None, None]
    small = 2 - box[..., 2] * box[..., 3]
    off = (lib.sigmoid(x[..., :2]) - box[..., :2]) ** 2 + (x[..., 2:4] - lib.log(box[..., 2:] / anchor)) ** 2
    boxes = lib.where(there_is, small * off.sum(-1), 0.0).sum()
    z, s = x[..., 4], x[..., 5:]
    rest = lib.relu(z) + lib.log(1 + lib.exp(-lib.abs(z)))
    there = lib.where(there_is, rest - z, 0.0).sum()
    nothing = lib.where(~(there_is | a["ignore"]), rest, 0.0).sum()
    truth = a["kind"][..., None] == lib.count_like(a["kind"], s.shape[-1])
    per_class = lib.relu(s) + lib.log(1 + lib.exp(-lib.abs(s))) - lib.where(truth, s, 0.0)
    classes = lib.where(there_is[..., None], per_class, 0.0).sum()
    count = lib.at_least(there_is.sum(), 1)
    box_loss, object_loss = 5.0 * boxes / count, (there + 0.5 * nothing) / count
    class_loss = classes / count
    return box_loss + object_loss + class_loss, box_loss, object_loss, class_loss


# --- optimizers of many tensors ------------------------------------------------------------------------


def _tensors(a: Arguments) -> list[tuple[Value, ...]]:
    return [tuple(a[f"{n}{k}"] for n in "pgmv") for k in range(sum(n[0] == "p" for n in a))]


def adamw(lib: Library, a: Arguments) -> tuple[Value, ...]:
    c1, c2 = 1 - 0.9 ** a["step"], (1 - 0.999 ** a["step"]) ** 0.5
    found: list[Value] = []
    for p, g, m, v in _tensors(a):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        found += [p * (1 - 1e-3 * 0.01) - 1e-3 * (m / c1 / (lib.sqrt(v) / c2 + 1e-8)), m, v]
    return tuple(found)


def lamb(lib: Library, a: Arguments) -> tuple[Value, ...]:
    c1, c2 = 1 - 0.9 ** a["step"], 1 - 0.999 ** a["step"]
    norm = lib.sqrt(lib.stack([(g * g).sum() for _, g, _, _ in _tensors(a)]).sum())
    scale = lib.at_most(1.0 / (norm + 1e-6), 1.0)
    found = [norm]
    for p, g, m, v in _tensors(a):
        g = g * scale
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        u = m / c1 / (lib.sqrt(v / c2) + 1e-6) + 0.01 * p
        p2, u2 = (p * p).sum(), (u * u).sum()
        ratio = lib.where((p2 > 0) & (u2 > 0), lib.sqrt(p2) / lib.sqrt(u2), 1.0)
        found += [p - 1e-3 * ratio * u, m, v]
    return tuple(found)


# --- many operators ------------------------------------------------------------------------------------


def forty(lib: Library, a: Arguments) -> tuple[Value, ...]:
    found: list[Value] = []
    for k in range(len(a) // 2):
        x, y = a[f"a{k}"], a[f"b{k}"]
        found += [lib.relu(x * 1.5 + 0.1) * y, lib.exp(y * 0.1).sum(1)]
    return tuple(found)


def branches(lib: Library, a: Arguments) -> tuple[Value, ...]:
    def branch(kind: int, x: Value, w: Value) -> Value:
        match kind:
            case 0:
                return lib.gelu(x + w)
            case 1:
                return lib.softmax(x * w)
            case 2:
                return lib.layer_norm(x, w, w)
            case 3:
                return lib.tanh(x * w + 0.5)
        return x * w / lib.sqrt((x * x).sum(1)[:, None] + 1e-6)

    return tuple(branch(k % 5, a[f"x{k}"], a[f"w{k}"]) for k in range(len(a) // 2))


def losses(lib: Library, a: Arguments) -> tuple[Value, ...]:
    parts = [lib.cross_entropy(a[f"x{k}"], a[f"z{k}"]) for k in range(len(a) // 2)]
    return (*parts, sum(parts[1:], parts[0]))


def added(lib: Library, a: Arguments) -> tuple[Value, ...]:
    parts = [(a[f"a{k}"] + a[f"b{k}"]).sum(1) for k in range(len(a) // 2)]
    return (sum(parts[1:], parts[0]),)


def casts(lib: Library, a: Arguments) -> tuple[Value, ...]:
    return tuple(lib.half(a[f"x{k}"]) for k in range(len(a)))
