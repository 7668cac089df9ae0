"""AdamW step of 50 small tensors, in place."""

from __future__ import annotations

from typing import Any

import numpy as np

SHAPES = (("K", "K"), ("K",), ("L", "K"), ("L",), ("K", "L"))
COUNT = 50
SIZES = {"adam50_small": {"K": 64, "L": 256}}
SMALL = {"K": 3, "L": 5}
STEP, LR, BETA1, BETA2, EPS, WD = 3, 1e-3, 0.9, 0.999, 1e-8, 0.01
CORRECTION1, CORRECTION2 = 1 - BETA1**STEP, (1 - BETA2**STEP) ** 0.5


def shape_of(k: int) -> tuple[str, ...]:
    """The sizes of tensor k by name."""
    return SHAPES[k % len(SHAPES)]


def _text() -> str:
    parameters = []
    lines = ["  correction1 = 1.0 - beta1 ** f32(step)", "  correction2 = sqrt(1.0 - beta2 ** f32(step))"]
    for k in range(COUNT):
        kind = f"f32[{', '.join(shape_of(k))}]"
        parameters.append(f"inout p{k}: {kind}, g{k}: {kind}, inout m{k}: {kind}, inout v{k}: {kind}")
        i = ", ".join("ij"[: len(shape_of(k))])
        lines += [
            f"  mn{k}[{i}] = beta1 * m{k}[{i}] + (1.0 - beta1) * g{k}[{i}]",
            f"  vn{k}[{i}] = beta2 * v{k}[{i}] + (1.0 - beta2) * g{k}[{i}] * g{k}[{i}]",
            f"  p{k}[{i}] = p{k}[{i}] * (1.0 - lr * wd)"
            f" - lr / correction1 * mn{k}[{i}] / (sqrt(vn{k}[{i}]) / correction2 + eps)",
            f"  m{k}[{i}] = mn{k}[{i}]",
            f"  v{k}[{i}] = vn{k}[{i}]",
        ]
    values = {"lr": LR, "beta1": BETA1, "beta2": BETA2, "eps": EPS, "wd": WD}
    scalars = ", ".join(["step: i64", *(f"{n}: f32 = {x}" for n, x in values.items())])
    return "\n".join([f"op adam50_small({', '.join(parameters)}, {scalars}) {{", *lines, "}"])


TEXT = _text()


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for k in range(COUNT):
        shape = tuple(sizes[n] for n in shape_of(k))
        for x in "pgm":
            given[f"{x}{k}"] = rng.standard_normal(shape, "f4")
        given[f"v{k}"] = rng.random(shape, "f4") + np.float32(0.1)
    return {**given, "step": STEP}


def in_order(given: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments by position, the scalars left out."""
    return tuple(given[f"{x}{k}"] for k in range(COUNT) for x in "pgmv")


def _lists(given: tuple[Any, ...]) -> tuple[list[Any], ...]:
    return tuple([given[4 * k + j] for k in range(COUNT)] for j in range(4))


def _steps(given: tuple[Any, ...], sqrt: Any) -> tuple[Any, ...]:
    """New values of p, m and v of each tensor, in order."""
    found: list[Any] = []
    for p, g, m, v in zip(*_lists(given), strict=True):
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g
        found += [p * (1 - LR * WD) - LR / CORRECTION1 * m / (sqrt(v) / CORRECTION2 + EPS), m, v]
    return tuple(found)


def with_numpy(**given: Any) -> Any:
    return _steps(in_order(given), np.sqrt)


def with_torch(torch: Any, *given: Any) -> None:
    for p, g, m, v in zip(*_lists(given), strict=True):
        m.mul_(BETA1).add_(g, alpha=1 - BETA1)
        v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
        p.mul_(1 - LR * WD).addcdiv_(m, v.sqrt() / CORRECTION2 + EPS, value=-LR / CORRECTION1)


def with_torch_library(torch: Any, *given: Any) -> None:
    """What torch.optim.AdamW(fused=True) calls."""
    p, g, m, v = _lists(given)
    torch._fused_adamw_(
        p, g, m, v, [], [torch.tensor(float(STEP)) for _ in p],
        lr=LR, beta1=BETA1, beta2=BETA2, weight_decay=WD, eps=EPS, amsgrad=False, maximize=False,
    )  # fmt: skip


def with_jax(jax: Any, **given: Any) -> Any:
    return _steps(in_order(given), jax.numpy.sqrt)
