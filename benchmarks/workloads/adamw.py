"""AdamW step of one tensor, in place."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

SIZES = {"adamw": {"N": 3072 * 768}}
SMALL = {"N": 37}
STEP, LR, BETA1, BETA2, EPS, WD = 3, 1e-3, 0.9, 0.999, 1e-8, 0.01
CORRECTION1, CORRECTION2 = 1 - BETA1**STEP, (1 - BETA2**STEP) ** 0.5


def inputs(sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    n = sizes["N"]
    p, g, m = (rng.standard_normal(n, "f4") for _ in range(3))
    return {"p": p, "g": g, "m": m, "v": rng.random(n, "f4") + np.float32(0.1), "step": STEP}


def _step(p: Any, g: Any, m: Any, v: Any, sqrt: Any) -> tuple[Any, Any, Any]:
    m = BETA1 * m + (1 - BETA1) * g
    v = BETA2 * v + (1 - BETA2) * g * g
    return p * (1 - LR * WD) - LR / CORRECTION1 * m / (sqrt(v) / CORRECTION2 + EPS), m, v


def with_numpy(p: Any, g: Any, m: Any, v: Any, step: int) -> Any:
    return _step(p, g, m, v, np.sqrt)


def with_torch(torch: Any, p: Any, g: Any, m: Any, v: Any, step: int) -> None:
    m.mul_(BETA1).add_(g, alpha=1 - BETA1)
    v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
    p.mul_(1 - LR * WD).addcdiv_(m, v.sqrt() / CORRECTION2 + EPS, value=-LR / CORRECTION1)


@cache
def _steps(torch: Any, device: Any) -> Any:
    """The number of the step, where the optimiser keeps it."""
    return torch.tensor(float(STEP), device=device)


def with_torch_library(torch: Any, p: Any, g: Any, m: Any, v: Any, step: int) -> None:
    """What torch.optim.AdamW(fused=True) calls."""
    torch._fused_adamw_(
        [p], [g], [m], [v], [], [_steps(torch, p.device)],
        lr=LR, beta1=BETA1, beta2=BETA2, weight_decay=WD, eps=EPS, amsgrad=False, maximize=False,
    )  # fmt: skip


def with_jax(jax: Any, p: Any, g: Any, m: Any, v: Any, step: int) -> Any:
    return _step(p, g, m, v, jax.numpy.sqrt)
