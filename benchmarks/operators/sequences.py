"""Operators along time: running sums, recurrences, layers of recurrent cells, attention."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case

CUMSUM_DOWN = """op f(x: f32[T, D]) -> (y: f32[T, D]) where T >= 1 {
  s[0, d] = x[0, d]
  s[t, d] = s[t-1, d] + x[t, d] for t in 1..T
  y[t, d] = s[t, d]
}"""
LSTM = """op f(x: f32[T, B, I], w: f32[4*H, I], u: f32[4*H, H], bias: f32[4*H], h0: f32[B, H], c0: f32[B, H])
    -> (h: f32[T, B, H], c: f32[B, H]) where T >= 1 {
  gx = linear(x, w, bias)
  (h, c) = lstm_layer(gx, u, h0, c0)
}"""
GRU = """op f(x: f32[T, B, I], w: f32[3*H, I], u: f32[3*H, H], a: f32[3*H], b: f32[3*H], h0: f32[B, H])
    -> (h: f32[T, B, H]) where T >= 1 {
  gx = linear(x, w, a)
  gh[0, b0, k] = sum[j](h0[b0, j] * u[k, j]) + b[k]
  gh[t, b0, k] = sum[j](h[t-1, b0, j] * u[k, j]) + b[k] for t in 1..T
  r[t, b0, j] = sigmoid(gx[t, b0, j] + gh[t, b0, j]) for j in 0..H
  z[t, b0, j] = sigmoid(gx[t, b0, j + H] + gh[t, b0, j + H]) for j in 0..H
  n[t, b0, j] = tanh(gx[t, b0, j + 2*H] + r[t, b0, j] * gh[t, b0, j + 2*H]) for j in 0..H
  h[0, b0, j] = (1.0 - z[0, b0, j]) * n[0, b0, j] + z[0, b0, j] * h0[b0, j]
  h[t, b0, j] = (1.0 - z[t, b0, j]) * n[t, b0, j] + z[t, b0, j] * h[t-1, b0, j] for t in 1..T
}"""
GRU_CHOSEN = """op f(x: f32[T, B, I], w: f32[3*H, I], u: f32[3*H, H], a: f32[3*H], b: f32[3*H], h0: f32[B, H])
    -> (h: f32[T, B, H]) where T >= 1 {
  gx = linear(x, w, a)
  before[t, b0, j] = h0[b0, j] if t == 0 else h[t-1, b0, j] for t in 0..T, b0 in 0..B, j in 0..H
  gh[t, b0, k] = sum[j](before[t, b0, j] * u[k, j]) + b[k]
  r[t, b0, j] = sigmoid(gx[t, b0, j] + gh[t, b0, j]) for j in 0..H
  z[t, b0, j] = sigmoid(gx[t, b0, j + H] + gh[t, b0, j + H]) for j in 0..H
  n[t, b0, j] = tanh(gx[t, b0, j + 2*H] + r[t, b0, j] * gh[t, b0, j + 2*H]) for j in 0..H
  h[t, b0, j] = (1.0 - z[t, b0, j]) * n[t, b0, j] + z[t, b0, j] * before[t, b0, j]
}"""
STATES = """op f(x: f32[B, T, D], dt: f32[B, T, D], a: f32[D, N], p: f32[B, T, N], q: f32[B, T, N])
    -> (y: f32[B, T, D]) {
  h[b, t, d, n] = (exp(dt[b, t, d] * a[d, n]) * h[b, t-1, d, n] if t >= 1 else 0.0) +
      dt[b, t, d] * p[b, t, n] * x[b, t, d] for b in 0..B, t in 0..T, d in 0..D, n in 0..N
  y[b, t, d] = sum[n](h[b, t, d, n] * q[b, t, n])
}"""
ATTENTION = """op f(q: f32[B, H, S, D], k: f32[B, H, T, D], v: f32[B, H, T, D])
    -> (o: f32[B, H, S, D]) where T >= 1 {
  s[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h, j, d]) * rsqrt(D)
  p = softmax(s)
  o[b, h, i, d] = sum[j](p[b, h, i, j] * v[b, h, j, d])
}"""


def _heads(b: int, h: int, s: int, t: int, d: int) -> Any:
    return lambda draw: (draw(b, h, s, d), draw(b, h, t, d), draw(b, h, t, d))


def _jax_attention(j: Any, n: Any, q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    s = q @ n.swapaxes(k, 2, 3) * q.shape[-1] ** -0.5
    if causal:
        s = n.where(n.tri(*s.shape[-2:], dtype=bool), s, -n.inf)
    return j.nn.softmax(s, -1) @ v


def _lstm(draw: Any) -> tuple[Any, ...]:
    t, b, i, h = 32, 32, 256, 256
    return (draw(t, b, i), *_weights(draw, 4, i, h), draw(4 * h), draw(b, h), draw(b, h))


def _weights(draw: Any, gates: int, i: int, h: int) -> tuple[Any, ...]:
    found = draw(gates * h, i), draw(gates * h, h)
    for w in found:
        w *= 0.05
    return found


def _gru(draw: Any) -> tuple[Any, ...]:
    t, b, i, h = 32, 32, 256, 256
    return (draw(t, b, i), *_weights(draw, 3, i, h), draw(3 * h), draw(3 * h), draw(b, h))


def _torch_lstm(t: Any, f: Any, x: Any, w: Any, u: Any, bias: Any, h0: Any, c0: Any) -> Any:
    weights = [w, u, bias, t.zeros_like(bias)]
    h, _, c = t.lstm(x, (h0[None], c0[None]), weights, True, 1, 0.0, False, False, False)
    return h, c[0]


def _torch_gru(t: Any, f: Any, x: Any, w: Any, u: Any, a: Any, b: Any, h0: Any) -> Any:
    return t.gru(x, h0[None], [w, u, a, b], True, 1, 0.0, False, False, False)[0]


def _jax_lstm(j: Any, n: Any, x: Any, w: Any, u: Any, bias: Any, h0: Any, c0: Any) -> Any:
    def step(state: Any, gx: Any) -> Any:
        h, c = state
        i, g, m, o = n.split(gx + h @ u.T, 4, -1)
        c = j.nn.sigmoid(g) * c + j.nn.sigmoid(i) * n.tanh(m)
        h = j.nn.sigmoid(o) * n.tanh(c)
        return (h, c), h

    (_, c), h = j.lax.scan(step, (h0, c0), x @ w.T + bias)
    return h, c


def _jax_gru(j: Any, n: Any, x: Any, w: Any, u: Any, a: Any, b: Any, h0: Any) -> Any:
    def step(h: Any, gx: Any) -> Any:
        xr, xz, xn = n.split(gx, 3, -1)
        hr, hz, hn = n.split(h @ u.T + b, 3, -1)
        z = j.nn.sigmoid(xz + hz)
        h = (1 - z) * n.tanh(xn + j.nn.sigmoid(xr + hr) * hn) + z * h
        return h, h

    return j.lax.scan(step, h0, x @ w.T + a)[1]


def _torch_average(t: Any, f: Any, x: Any) -> Any:
    made = [x[0]]
    for k in range(1, x.shape[0]):
        made.append(t.lerp(made[-1], x[k], 0.1))
    return t.stack(made)


def _jax_average(j: Any, n: Any, x: Any) -> Any:
    def step(s: Any, row: Any) -> Any:
        s = 0.9 * s + 0.1 * row
        return s, s

    return j.lax.scan(step, x[0], x)[1]


def _torch_states(t: Any, f: Any, x: Any, dt: Any, a: Any, p: Any, q: Any) -> Any:
    h, made = t.zeros(x.shape[0], *a.shape), []
    for k in range(x.shape[1]):
        h = t.exp(dt[:, k, :, None] * a) * h + (dt[:, k] * x[:, k])[:, :, None] * p[:, k, None]
        made.append((h * q[:, k, None]).sum(-1))
    return t.stack(made, 1)


def _jax_states(j: Any, n: Any, x: Any, dt: Any, a: Any, p: Any, q: Any) -> Any:
    def step(h: Any, at: Any) -> Any:
        x, dt, p, q = at
        h = n.exp(dt[:, :, None] * a) * h + (dt * x)[:, :, None] * p[:, None]
        return h, (h * q[:, None]).sum(-1)

    rows = [n.swapaxes(v, 0, 1) for v in (x, dt, p, q)]
    return n.swapaxes(j.lax.scan(step, n.zeros((x.shape[0], *a.shape)), tuple(rows))[1], 0, 1)


SCANS = (
    Case(
        "running sums of rows",
        "cumsum",
        lambda d: (d(64, 4096),),
        lambda t, f, x: t.cumsum(x, 1),
        lambda j, n, x: n.cumsum(x, 1),
    ),
    Case(
        "running sums of many rows",
        "cumsum",
        lambda d: (d(4000, 501),),
        lambda t, f, x: t.cumsum(x, 1),
        lambda j, n, x: n.cumsum(x, 1),
    ),
    Case(
        "running sums of one long row",
        "cumsum",
        lambda d: (d(1_000_000),),
        lambda t, f, x: t.cumsum(x, 0),
        lambda j, n, x: n.cumsum(x, 0),
    ),
    Case(
        "running sums down columns",
        CUMSUM_DOWN,
        lambda d: (d(2048, 771),),
        lambda t, f, x: t.cumsum(x, 0),
        lambda j, n, x: n.cumsum(x, 0),
    ),
    Case(
        "running products",
        "cumprod",
        lambda d: (0.95 + 0.1 * d.unit(512, 1000),),
        lambda t, f, x: t.cumprod(x, 1),
        lambda j, n, x: n.cumprod(x, 1),
        tolerance=1e-3,
    ),
    Case(
        "running maxima",
        "cummax",
        lambda d: (d(512, 1000),),
        lambda t, f, x: t.cummax(x, 1)[0],
        lambda j, n, x: j.lax.cummax(x, 1),
    ),
    Case(
        "moving average over time",
        """op f(x: f32[T, D]) -> (y: f32[T, D]) where T >= 1 {
          s[0, d] = x[0, d]
          s[t, d] = 0.9 * s[t-1, d] + 0.1 * x[t, d] for t in 1..T
          y[t, d] = s[t, d]
        }""",
        lambda d: (d(64, 16384),),
        _torch_average,
        _jax_average,
    ),
    Case(
        "states of a selective scan",
        STATES,
        lambda d: (d(2, 64, 256), d.unit(2, 64, 256), -4 * d.unit(256, 16), d(2, 64, 16), d(2, 64, 16)),
        _torch_states,
        _jax_states,
    ),
)
LAYERS = (
    Case("LSTM layer", LSTM, _lstm, _torch_lstm, _jax_lstm),
    Case("GRU layer", GRU, _gru, _torch_gru, _jax_gru),
    Case("GRU layer, state before under a condition", GRU_CHOSEN, _gru, _torch_gru, _jax_gru),
    Case(
        "causal convolution of channels",
        "causal_conv1d",
        lambda d: (d(8, 512, 768), d(768, 4), d(768)),
        lambda t, f, x, w, b: (
            f.conv1d(f.pad(x.transpose(1, 2), (3, 0)), w[:, None], b, groups=768).transpose(1, 2).contiguous()
        ),
        lambda j, n, x, w, b: (
            sum(n.pad(x, ((0, 0), (3, 0), (0, 0)))[:, k : k + 512] * w[:, k] for k in range(4)) + b
        ),
    ),
    Case(
        "attention of 12 heads",
        ATTENTION,
        _heads(8, 12, 128, 128, 64),
        lambda t, f, q, k, v: f.scaled_dot_product_attention(q, k, v),
        _jax_attention,
    ),
    Case(
        "attention of one position",
        ATTENTION,
        _heads(4, 8, 1, 1000, 64),
        lambda t, f, q, k, v: f.scaled_dot_product_attention(q, k, v),
        _jax_attention,
    ),
    Case(
        "causal attention of 8 heads",
        "causal_attention",
        _heads(2, 8, 256, 256, 64),
        lambda t, f, q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda j, n, q, k, v: _jax_attention(j, n, q, k, v, causal=True),
    ),
    Case(
        "perceptron of two layers",
        """op f(x: f32[B, I], a: f32[H, I], b: f32[H], c: f32[O, H], d: f32[O]) -> (y: f32[B, O]) {
          z = linear(x, a, b)
          h = relu(z)
          y = linear(h, c, d)
        }""",
        lambda d: (d(256, 784), d(512, 784), d(512), d(10, 512), d(10)),
        lambda t, f, x, a, b, c, d: f.linear(f.relu(f.linear(x, a, b)), c, d),
        lambda j, n, x, a, b, c, d: j.nn.relu(x @ a.T + b) @ c.T + d,
    ),
    Case(
        "batched products",
        "matmul",
        lambda d: (d(8, 128, 768), d(8, 768, 768)),
        lambda t, f, x, w: t.bmm(x, w),
        lambda j, n, x, w: x @ w,
    ),
)
CASES = (*SCANS, *LAYERS)
