"""Steps of optimizers and what belongs to them, in place."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case


def _three(*shape: int) -> Any:
    """Parameters, gradients and a state that is not negative."""
    return lambda d: (d(*shape), d(*shape), d.unit(*shape))


def _torch_sgd(t: Any, f: Any, p: Any, g: Any, buf: Any) -> None:
    buf.mul_(0.9).add_(g + 1e-4 * p)
    p.sub_(0.01 * buf)


def _fused_sgd(t: Any, f: Any, p: Any, g: Any, buf: Any) -> None:
    settings = {"weight_decay": 1e-4, "momentum": 0.9, "lr": 0.01, "dampening": 0.0}
    t._fused_sgd_([p], [g], [buf], **settings, nesterov=False, maximize=False, is_first_step=False)


def _jax_sgd(j: Any, n: Any, p: Any, g: Any, buf: Any) -> Any:
    new = 0.9 * buf + g + 1e-4 * p
    return p - 0.01 * new, new


def _torch_adagrad(t: Any, f: Any, p: Any, g: Any, a: Any) -> None:
    a.addcmul_(g, g)
    p.addcdiv_(g, a.sqrt().add_(1e-10), value=-0.01)


def _fused_adagrad(t: Any, f: Any, p: Any, g: Any, a: Any) -> None:
    settings = {"lr": 0.01, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-10, "maximize": False}
    t._fused_adagrad_([p], [g], [a], [t.ones(())], **settings)


def _jax_adagrad(j: Any, n: Any, p: Any, g: Any, a: Any) -> Any:
    new = a + g * g
    return p - 0.01 * g / (n.sqrt(new) + 1e-10), new


def _torch_rmsprop(t: Any, f: Any, p: Any, g: Any, v: Any) -> None:
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    p.addcdiv_(g, v.sqrt().add_(1e-8), value=-0.01)


def _jax_rmsprop(j: Any, n: Any, p: Any, g: Any, v: Any) -> Any:
    new = 0.99 * v + 0.01 * g * g
    return p - 0.01 * g / (n.sqrt(new) + 1e-8), new


def _torch_lion(t: Any, f: Any, p: Any, g: Any, m: Any) -> None:
    p.sub_(1e-4 * t.sign(0.9 * m + 0.1 * g))
    m.lerp_(g, 0.01)


def _jax_lion(j: Any, n: Any, p: Any, g: Any, m: Any) -> Any:
    return p - 1e-4 * n.sign(0.9 * m + 0.1 * g), 0.99 * m + 0.01 * g


def _torch_clipped(t: Any, f: Any, g: Any, h: Any) -> Any:
    norm = t.sqrt(g.square().sum() + h.square().sum())
    scale = t.clamp(1 / (norm + 1e-6), max=1.0)
    return g * scale, h * scale


def _jax_clipped(j: Any, n: Any, g: Any, h: Any) -> Any:
    norm = n.sqrt((g * g).sum() + (h * h).sum())
    scale = n.minimum(1, 1 / (norm + 1e-6))
    return g * scale, h * scale


def _torch_average(t: Any, f: Any, s: Any, p: Any) -> None:
    s.lerp_(p, 0.001)


CASES = (
    Case(
        "SGD with momentum and decay",
        """op f(inout p: f32[N, M], g: f32[N, M], inout buf: f32[N, M]) {
          sgd_momentum(p, g, buf, wd=1e-4)
        }""",
        _three(1024, 1024),
        _torch_sgd,
        _jax_sgd,
        updated=(0, 2),
        eager=_fused_sgd,
    ),
    Case(
        "SGD of bf16 with momentum in f32",
        """op f(inout p: bf16[N, M], g: bf16[N, M], inout buf: f32[N, M]) {
          sgd_momentum(p, g, buf, wd=1e-4)
        }""",
        lambda d: (d(1024, 1024, dtype="bf16"), d(1024, 1024, dtype="bf16"), d(1024, 1024)),
        _torch_sgd,
        lambda j, n, p, g, buf: (
            (p - 0.01 * (0.9 * buf + g + 1e-4 * p.astype(n.float32))).astype(p.dtype),
            0.9 * buf + g + 1e-4 * p.astype(n.float32),
        ),
        updated=(0, 2),
    ),
    Case(
        "AdaGrad",
        """op f(inout p: f32[N], g: f32[N], inout a: f32[N]) {
          s[i] = a[i] + g[i] ** 2
          p[i] = p[i] - 0.01 * g[i] / (sqrt(s[i]) + 1e-10)
          a[i] = s[i]
        }""",
        _three(1_000_000),
        _torch_adagrad,
        _jax_adagrad,
        updated=(0, 2),
        eager=_fused_adagrad,
    ),
    Case(
        "RMSprop in L2",
        """op f(inout p: f32[N], g: f32[N], inout v: f32[N]) {
          s[i] = 0.99 * v[i] + 0.01 * g[i] ** 2
          p[i] = p[i] - 0.01 * g[i] / (sqrt(s[i]) + 1e-8)
          v[i] = s[i]
        }""",
        _three(40_000),
        _torch_rmsprop,
        _jax_rmsprop,
        updated=(0, 2),
    ),
    Case(
        "Lion",
        """op f(inout p: f32[N], g: f32[N], inout m: f32[N]) {
          c[i] = 0.9 * old(m[i]) + 0.1 * g[i]
          p[i] = p[i] - 1e-4 * (1.0 if c[i] > 0.0 else (-1.0 if c[i] < 0.0 else 0.0))
          m[i] = 0.99 * m[i] + 0.01 * g[i]
        }""",
        _three(1_000_000),
        _torch_lion,
        _jax_lion,
        updated=(0, 2),
    ),
    Case(
        "moving average of parameters",
        "op f(inout s: f32[N], p: f32[N]) { s[i] = 0.999 * s[i] + 0.001 * p[i] }",
        lambda d: (d(2_000_000), d(2_000_000)),
        _torch_average,
        lambda j, n, s, p: 0.999 * s + 0.001 * p,
        updated=(0,),
    ),
    Case(
        "clipped by the norm of all",
        """op f(g: f32[N, M], h: f32[K]) -> (y: f32[N, M], z: f32[K]) {
          norm = sqrt(sum[i, j](g[i, j] ** 2) + sum[k](h[k] ** 2))
          scale = min(1.0, 1.0 / (norm + 1e-6))
          y[i, j] = g[i, j] * scale
          z[k] = h[k] * scale
        }""",
        lambda d: (d(1024, 1024), d(1024)),
        _torch_clipped,
        _jax_clipped,
    ),
)
