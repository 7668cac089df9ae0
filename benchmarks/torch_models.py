"""Models by `torch.compile(backend="polyfuse")`, beside eager mode and Inductor, in one process.

    python -m benchmarks.torch_models                    all models, a table
    python -m benchmarks.torch_models bert llama         some
    python -m benchmarks.torch_models --without inductor

A row has, of each contender: seconds of the first step (a compilation of forward and backward, in
CPU time with those of child processes), milliseconds of a step (the least of many, contenders
taking turns), and the largest error of gradients against float64, as a part of the largest
gradient. Of polyfuse also its kernels, and which share of the nodes that are no products,
convolutions, attention, random numbers or views runs in them.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn

CONTENDERS = ("eager", "inductor", "polyfuse")
ROUNDS = 12
LEFT_TO_ATEN = (
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "convolution",
    "attention",
    "sort",
    "rand",
    "dropout",
    "bernoulli",
)

# --- models -----------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Heads of attention with projections."""

    def __init__(self, width: int, heads: int, kv: int | None = None, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.kv, self.each = heads, kv or heads, width // heads
        self.q, self.o = nn.Linear(width, width, bias), nn.Linear(width, width, bias)
        self.k, self.v = (nn.Linear(width, self.each * self.kv, bias) for _ in range(2))

    def parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        b, t, _ = x.shape
        made = ((self.q, self.heads), (self.k, self.kv), (self.v, self.kv))
        return [f(x).view(b, t, n, self.each).transpose(1, 2) for f, n in made]

    def joined(self, y: torch.Tensor) -> torch.Tensor:
        b, n, t, d = y.shape
        return self.o(y.transpose(1, 2).reshape(b, t, n * d))  # type: ignore[no-any-return]


class Bert(nn.Module):
    """A layer of BERT with its mask."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.a, self.first, self.second = Attention(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.a.parts(x)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.a.each) + mask
        x = self.first(x + self.a.joined(scores.softmax(-1) @ v))
        return self.second(x + self.down(functional.gelu(self.up(x))))  # type: ignore[no-any-return]


class Stack(nn.Module):
    """Layers one after the other."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Bert() for _ in range(layers))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


class Gpt2(nn.Module):
    """A block of GPT-2."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.a, self.first, self.second = Attention(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.a.parts(self.first(x))
        x = x + self.a.joined(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(functional.gelu(self.up(self.second(x)), approximate="tanh"))  # type: ignore[no-any-return]


class RmsNorm(nn.Module):
    """A norm without a mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Llama(nn.Module):
    """A block of Llama: rotary positions, groups of heads, a gate."""

    def __init__(self, width: int = 256, heads: int = 4, kv: int = 2, inner: int = 688) -> None:
        super().__init__()
        self.a, self.first, self.second = Attention(width, heads, kv, False), RmsNorm(width), RmsNorm(width)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        t, d = x.shape[-2:]
        rates = 1.0 / (10000 ** (torch.arange(0, d, 2, dtype=torch.float32) / d))
        angles = torch.outer(torch.arange(t, dtype=torch.float32), rates)
        angles = torch.cat((angles, angles), -1)
        turned = torch.cat((-x[..., d // 2 :], x[..., : d // 2]), -1)
        return x * angles.cos().to(x.dtype) + turned * angles.sin().to(x.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.a.parts(self.first(x))
        k, v = (z.repeat_interleave(self.a.heads // self.a.kv, 1) for z in (self.rotated(k), v))
        y = functional.scaled_dot_product_attention(self.rotated(q), k, v, is_causal=True)
        x = x + self.a.joined(y)
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A basic block with batch norms."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.c1, self.c2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.n1, self.n2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.n2(self.c2(functional.relu(self.n1(self.c1(x))))) + x)


class UNet(nn.Module):
    """A block with group norms, an embedding and a skip."""

    def __init__(self, channels: int = 64, width: int = 128) -> None:
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(8, channels), nn.GroupNorm(8, channels)
        self.c1, self.c2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.e, self.last = nn.Linear(width, channels), nn.Conv2d(2 * channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor, emb: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        y = self.c1(functional.silu(self.n1(x))) + self.e(functional.silu(emb))[:, :, None, None]
        y = functional.interpolate(x + self.c2(functional.silu(self.n2(y))), scale_factor=2, mode="nearest")
        return self.last(torch.cat((y, skip), 1))  # type: ignore[no-any-return]


class Lstm(nn.Module):
    """Four steps of a cell, unrolled."""

    def __init__(self, inner: int = 128, width: int = 256) -> None:
        super().__init__()
        self.i, self.h, self.width = nn.Linear(inner, 4 * width), nn.Linear(width, 4 * width), width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[0], self.width)
        for k in range(x.shape[1]):
            i, f, g, o = (self.i(x[:, k]) + self.h(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h


class Graph(nn.Module):
    """A layer of a graph network."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.w, self.r = nn.Linear(width, width), nn.Linear(width, width)

    def forward(
        self, x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        messages = self.w(x).index_select(0, src) * weight[:, None]
        total = torch.zeros_like(x).index_add(0, dst, messages)
        degree = x.new_zeros(x.shape[0]).scatter_add(0, dst, torch.ones_like(weight))
        return functional.relu(total / degree.clamp(min=1)[:, None] + self.r(x))


def _f(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape).requires_grad_(grad)


def _mask(b: int, t: int) -> torch.Tensor:
    mask = torch.zeros(b, 1, 1, t)
    mask[:, :, :, -t // 4 :] = -1e4
    return mask


def _edges() -> list[torch.Tensor]:
    return [torch.randint(0, 2000, (16000,)), torch.randint(0, 2000, (16000,)), torch.rand(16000)]


MODELS: dict[str, Callable[[], tuple[nn.Module, list[torch.Tensor]]]] = {
    "bert": lambda: (Bert(), [_f(4, 128, 256, grad=True), _mask(4, 128)]),
    "bert12": lambda: (Stack(12), [_f(1, 64, 256, grad=True), _mask(1, 64)]),
    "gpt2": lambda: (Gpt2(), [_f(4, 128, 256, grad=True)]),
    "llama": lambda: (Llama(), [_f(4, 128, 256, grad=True)]),
    "resnet": lambda: (ResNet(), [_f(8, 64, 28, 28, grad=True)]),
    "unet": lambda: (UNet(), [_f(4, 64, 16, 16, grad=True), _f(4, 128), _f(4, 64, 32, 32, grad=True)]),
    "lstm": lambda: (Lstm(), [_f(64, 4, 128, grad=True)]),
    "graph": lambda: (Graph(), [_f(2000, 64, grad=True), *_edges()]),
}

# --- measuring --------------------------------------------------------------------------------------------


@dataclass
class Row:
    """What was measured of a model, by contender."""

    first: dict[str, float] = field(default_factory=dict)
    step: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    kernels: int = 0
    share: float = 0.0


def cpu_seconds() -> float:
    """CPU time of the process and of its children that have ended."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def training_step(
    model: nn.Module, run: Callable[..., Any], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Forward and backward; the gradients."""
    own = [x for x in (*model.parameters(), *inputs) if x.requires_grad]
    for x in own:
        x.grad = None
    run(*inputs).square().mean().backward()
    return [x.grad for x in own if x.grad is not None]


def measured(name: str, contenders: Sequence[str]) -> Row:
    """A row of the table."""
    from polyfuse.torch.dynamo import report

    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    double = copy.deepcopy(model).double()
    doubled = [
        x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in inputs
    ]
    judge = training_step(double, double, doubled)
    largest = max(float(g.abs().max()) for g in judge)
    row, steps = Row(), {}
    for c in contenders:
        torch._dynamo.reset()
        run = model if c == "eager" else torch.compile(model, backend=c)
        start = cpu_seconds()
        found = training_step(model, run, inputs)
        row.first[c] = cpu_seconds() - start
        row.error[c] = max(float((a - b).abs().max()) for a, b in zip(found, judge, strict=True)) / largest
        steps[c] = run
    row.step = dict.fromkeys(contenders, math.inf)
    for _ in range(ROUNDS):
        for c, run in steps.items():
            start = time.process_time()
            training_step(model, run, inputs)
            row.step[c] = min(row.step[c], time.process_time() - start)
    if "polyfuse" in contenders:
        graphs = report(model).graphs
        row.kernels = sum(r.kernels or 0 for g in graphs for r in g.regions)
        left = sum(n for g in graphs for names in g.aten.values() for op, n in names.items() if _counts(op))
        ours = sum(g.ours for g in graphs)
        row.share = ours / max(1, ours + left)
    return row


def _counts(operator: str) -> bool:
    """Is it one that regions could have?"""
    return not any(word in operator for word in LEFT_TO_ATEN)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help="all, if none is named")
    parser.add_argument("--without", action="append", default=[], choices=CONTENDERS)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    os.environ["POLYFUSE_NUM_THREADS"] = str(chosen.threads)
    torch.set_num_threads(chosen.threads)
    contenders = [c for c in CONTENDERS if c not in chosen.without]
    print(f"| model | first step, s: {', '.join(contenders)} | step, ms | error | kernels | share |")
    print("|---|---|---|---|---|---|")
    for name in chosen.models or MODELS:
        row = measured(name, contenders)
        first = ", ".join(f"{row.first[c]:.1f}" for c in contenders)
        step = ", ".join(f"{row.step[c] * 1e3:.2f}" for c in contenders)
        error = ", ".join(f"{row.error[c]:.1e}" for c in contenders)
        print(f"| {name} | {first} | {step} | {error} | {row.kernels} | {row.share:.0%} |", flush=True)


if __name__ == "__main__":
    main()
