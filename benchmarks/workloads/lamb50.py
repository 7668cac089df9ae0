"""LAMB step of 50 small tensors, in place: a global norm of gradients, a trust ratio for each tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.adam_steps import lists, tensors
from benchmarks.workloads.adam50_small import SHAPES, STEPS

SIZES = {"lamb50": {"K": 64, "L": 256}}
SMALL = {"K": 3, "L": 5}
LR, BETA1, BETA2, EPS, WD, CLIP = 1e-3, 0.9, 0.999, 1e-6, 0.01, 1.0


def _text() -> str:
    parameters, squares, lines = [], [], []
    for k, shape in enumerate(SHAPES):
        kind = f"f32[{', '.join(shape)}]"
        parameters.append(f"inout p{k}: {kind}, g{k}: {kind}, inout m{k}: {kind}, inout v{k}: {kind}")
        i = ", ".join("ij"[: len(shape)])
        squares.append(f"  q{k} = sum[{i}](g{k}[{i}] * g{k}[{i}])")
        lines += [
            f"  mn{k}[{i}] = beta1 * m{k}[{i}] + (1.0 - beta1) * (g{k}[{i}] * scale)",
            f"  vn{k}[{i}] = beta2 * v{k}[{i}] + (1.0 - beta2) * (g{k}[{i}] * scale) * (g{k}[{i}] * scale)",
            f"  u{k}[{i}] = mn{k}[{i}] / (sqrt(vn{k}[{i}]) + eps) + wd * p{k}[{i}]",
            f"  pp{k} = sum[{i}](p{k}[{i}] * p{k}[{i}])",
            f"  uu{k} = sum[{i}](u{k}[{i}] * u{k}[{i}])",
            f"  ratio{k} = sqrt(pp{k}) / sqrt(uu{k}) if pp{k} > 0.0 and uu{k} > 0.0 else 1.0",
            f"  p{k}[{i}] = p{k}[{i}] - lr * ratio{k} * u{k}[{i}]",
            f"  m{k}[{i}] = mn{k}[{i}]",
            f"  v{k}[{i}] = vn{k}[{i}]",
        ]
    values = {"lr": LR, "beta1": BETA1, "beta2": BETA2, "eps": EPS, "wd": WD, "clip": CLIP}
    scalars = ", ".join(f"{n}: f32 = {x}" for n, x in values.items())
    total = "  total = " + " + ".join(f"q{k}" for k in range(len(SHAPES)))
    scale = "  scale = min(1.0, clip / (sqrt(total) + 1e-6))"
    return "\n".join(
        [f"op lamb50({', '.join(parameters)}, {scalars}) {{", *squares, total, scale, *lines, "}"]
    )


TEXT = _text()


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    return tensors(SHAPES, sizes, rng)


def _steps(given: tuple[Any, ...], sqrt: Any, minimum: Any, where: Any) -> tuple[Any, ...]:
    """New values of p, m and v of each tensor, in order."""
    listed = lists(given)
    scale = minimum(1.0, CLIP / (sqrt(sum((g * g).sum() for g in listed[1])) + 1e-6))
    found: list[Any] = []
    for p, g, m, v in zip(*listed, strict=True):
        g = g * scale
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g
        u = m / (sqrt(v) + EPS) + WD * p
        pp, uu = (p * p).sum(), (u * u).sum()
        ratio = where((pp > 0) & (uu > 0), sqrt(pp) / sqrt(uu), 1.0)
        found += [p - LR * ratio * u, m, v]
    return tuple(found)


def with_numpy(**given: Any) -> Any:
    return _steps(STEPS.in_order(given), np.sqrt, np.minimum, np.where)


def with_torch(torch: Any, *given: Any) -> None:
    listed = lists(given)
    scale = (CLIP / (torch.stack([(g * g).sum() for g in listed[1]]).sum().sqrt() + 1e-6)).clamp(max=1.0)
    for p, g, m, v in zip(*listed, strict=True):
        g = g * scale
        m.mul_(BETA1).add_(g, alpha=1 - BETA1)
        v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
        u = m / (v.sqrt() + EPS) + WD * p
        pp, uu = (p * p).sum(), (u * u).sum()
        ratio = torch.where((pp > 0) & (uu > 0), pp.sqrt() / uu.sqrt(), 1.0)
        p.sub_(LR * ratio * u)


def with_torch_library(torch: Any, *given: Any) -> None:
    """With the functions over lists of tensors that torch.optim is written with."""
    p, g, m, v = lists(given)
    norm = torch.stack(torch._foreach_norm(g)).norm()
    scale = (CLIP / (norm + 1e-6)).clamp(max=1.0)
    g = torch._foreach_mul(g, scale)
    torch._foreach_lerp_(m, g, 1 - BETA1)
    torch._foreach_mul_(v, BETA2)
    torch._foreach_addcmul_(v, g, g, 1 - BETA2)
    u = torch._foreach_sqrt(v)
    torch._foreach_add_(u, EPS)
    u = torch._foreach_div(m, u)
    torch._foreach_add_(u, p, alpha=WD)
    pp, uu = torch.stack(torch._foreach_norm(p)), torch.stack(torch._foreach_norm(u))
    ratio = torch.where((pp > 0) & (uu > 0), pp / uu, 1.0) * -LR
    torch._foreach_mul_(u, list(ratio.unbind()))
    torch._foreach_add_(p, u)


def with_jax(jax: Any, **given: Any) -> Any:
    return _steps(STEPS.in_order(given), jax.numpy.sqrt, jax.numpy.minimum, jax.numpy.where)
