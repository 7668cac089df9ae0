"""AdamW's step for a list of tensors, in place: the workloads `adam50_small` and `adam50_big`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

STEP, LR, BETA1, BETA2, EPS, WD = 3, 1e-3, 0.9, 0.999, 1e-8, 0.01
CORRECTION1, CORRECTION2 = 1 - BETA1**STEP, (1 - BETA2**STEP) ** 0.5
# What no element has a part in is computed in double precision, as PyTorch does: of an f32, 1 - beta2 ** 3
# has five exact digits.
_SCALARS = (
    "  b1 = f32(beta1)",
    "  c1 = f32(1.0 - beta1)",
    "  b2 = f32(beta2)",
    "  c2 = f32(1.0 - beta2)",
    "  rate = f32(lr / (1.0 - beta1 ** f64(step)))",
    "  root = f32(sqrt(1.0 - beta2 ** f64(step)))",
    "  kept = f32(1.0 - lr * wd)",
    "  small = f32(eps)",
)


@dataclass(frozen=True)
class AdamSteps:
    """The operator and its rivals for parameters of these shapes, each the names of its sizes."""

    name: str
    shapes: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The operator in the language."""
        parameters = []
        lines = list(_SCALARS)
        for k, shape in enumerate(self.shapes):
            kind = f"f32[{', '.join(shape)}]"
            parameters.append(f"inout p{k}: {kind}, g{k}: {kind}, inout m{k}: {kind}, inout v{k}: {kind}")
            i = ", ".join("ij"[: len(shape)])
            lines += [
                f"  mn{k}[{i}] = b1 * m{k}[{i}] + c1 * g{k}[{i}]",
                f"  vn{k}[{i}] = b2 * v{k}[{i}] + c2 * g{k}[{i}] * g{k}[{i}]",
                f"  p{k}[{i}] = p{k}[{i}] * kept - rate * mn{k}[{i}] / (sqrt(vn{k}[{i}]) / root + small)",
                f"  m{k}[{i}] = mn{k}[{i}]",
                f"  v{k}[{i}] = vn{k}[{i}]",
            ]
        values = {"lr": LR, "beta1": BETA1, "beta2": BETA2, "eps": EPS, "wd": WD}
        scalars = ", ".join(["step: i64", *(f"{n}: f64 = {x}" for n, x in values.items())])
        return "\n".join([f"op {self.name}({', '.join(parameters)}, {scalars}) {{", *lines, "}"])

    def inputs(self, sizes: dict[str, int], rng: Any) -> dict[str, Any]:
        """Arguments by name."""
        return {**tensors(self.shapes, sizes, rng), "step": STEP}

    def in_order(self, given: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments by position, the scalars left out."""
        return tuple(given[f"{x}{k}"] for k in range(len(self.shapes)) for x in "pgmv")

    def with_numpy(self, **given: Any) -> Any:
        """New values of p, m and v of each tensor, in order."""
        return _stepped(self.in_order(given), np.sqrt)

    def with_torch(self, torch: Any, *given: Any) -> None:
        """In place, tensor by tensor."""
        for p, g, m, v in zip(*lists(given), strict=True):
            m.mul_(BETA1).add_(g, alpha=1 - BETA1)
            v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
            p.mul_(1 - LR * WD).addcdiv_(m, v.sqrt() / CORRECTION2 + EPS, value=-LR / CORRECTION1)

    def with_torch_library(self, torch: Any, *given: Any) -> None:
        """What torch.optim.AdamW(fused=True) calls."""
        p, g, m, v = lists(given)
        torch._fused_adamw_(
            p, g, m, v, [], [torch.tensor(float(STEP)) for _ in p],
            lr=LR, beta1=BETA1, beta2=BETA2, weight_decay=WD, eps=EPS, amsgrad=False, maximize=False,
        )  # fmt: skip

    def with_jax(self, jax: Any, **given: Any) -> Any:
        """As NumPy."""
        return _stepped(self.in_order(given), jax.numpy.sqrt)


def tensors(shapes: tuple[tuple[str, ...], ...], sizes: dict[str, int], rng: Any) -> dict[str, Any]:
    """Parameters, gradients and moments by name."""
    given: dict[str, Any] = {}
    for k, names in enumerate(shapes):
        shape = tuple(sizes[n] for n in names)
        for x in "pgm":
            given[f"{x}{k}"] = rng.standard_normal(shape, "f4")
        given[f"v{k}"] = rng.random(shape, "f4") + np.float32(0.1)
    return given


def lists(given: tuple[Any, ...]) -> tuple[list[Any], ...]:
    """Parameters, gradients, first and second moments; what follows the tensors is left out."""
    count = len(given) // 4
    return tuple(list(given[j : 4 * count : 4]) for j in range(4))


def _stepped(given: tuple[Any, ...], sqrt: Any) -> tuple[Any, ...]:
    found: list[Any] = []
    for p, g, m, v in zip(*lists(given), strict=True):
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g
        found += [p * (1 - LR * WD) - LR / CORRECTION1 * m / (sqrt(v) / CORRECTION2 + EPS), m, v]
    return tuple(found)
