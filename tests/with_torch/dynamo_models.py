"""Small models, each of a kind that people train; sizes are odd where they can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn


class Bert(nn.Module):
    """A layer with attention written out, a mask, and norms after sums."""

    def __init__(self, width: int = 12, heads: int = 2, inner: int = 20) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, t, h = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, h // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(h // self.heads) + mask
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, h)
        x = self.first(x + self.o(y))
        return self.second(x + self.down(functional.gelu(self.up(x))))


class Gpt2(nn.Module):
    """A block with norms before, causal attention, and tanh's gelu."""

    def __init__(self, width: int = 12, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, h = x.shape
        parts = self.qkv(self.first(x)).split(h, 2)
        q, k, v = (p.view(b, t, self.heads, h // self.heads).transpose(1, 2) for p in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, h))
        return x + self.down(functional.gelu(self.up(self.second(x)), approximate="tanh"))


class RmsNorm(nn.Module):
    """Without a mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Llama(nn.Module):
    """A block with rotary positions, grouped heads and a gated network."""

    def __init__(self, width: int = 16, heads: int = 4, kv: int = 2, inner: int = 20) -> None:
        super().__init__()
        self.heads, self.kv, self.each = heads, kv, width // heads
        self.first, self.second = RmsNorm(width), RmsNorm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, self.each * kv, bias=False) for _ in range(2))
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, h = x.shape
        rates = 1.0 / (10000 ** (torch.arange(0, self.each, 2, dtype=torch.float32) / self.each))
        angles = torch.outer(torch.arange(t, dtype=torch.float32), rates)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        y = self.first(x)
        q = rotated(self.q(y).view(b, t, self.heads, self.each).transpose(1, 2), cos, sin)
        k = rotated(self.k(y).view(b, t, self.kv, self.each).transpose(1, 2), cos, sin)
        v = self.v(y).view(b, t, self.kv, self.each).transpose(1, 2)
        k, v = (z.repeat_interleave(self.heads // self.kv, 1) for z in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, h))
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class ResNet(nn.Module):
    """A block with batch norms in training."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.c1, self.c2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.n1, self.n2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.n1(self.c1(x)))
        return functional.max_pool2d(functional.relu(self.n2(self.c2(y)) + x), 3, 2, 1)


class UNet(nn.Module):
    """A block with group norms, an embedding, and a skip."""

    def __init__(self, channels: int = 8, width: int = 6) -> None:
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(2, channels), nn.GroupNorm(4, channels)
        self.c1, self.c2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.e, self.last = nn.Linear(width, channels), nn.Conv2d(2 * channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor, emb: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        y = self.c1(functional.silu(self.n1(x))) + self.e(functional.silu(emb))[:, :, None, None]
        y = x + self.c2(functional.silu(self.n2(y)))
        y = functional.interpolate(y, scale_factor=2, mode="nearest")
        return self.last(torch.cat((y, skip), 1))


class Lstm(nn.Module):
    """Two steps of a cell."""

    def __init__(self, inner: int = 7, width: int = 5, steps: int = 2) -> None:
        super().__init__()
        self.i, self.h, self.width, self.steps = (
            nn.Linear(inner, 4 * width),
            nn.Linear(width, 4 * width),
            width,
            steps,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], self.width)
        c = h
        for k in range(self.steps):
            i, f, g, o = (self.i(x[:, k]) + self.h(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h


class Classifier(nn.Module):
    """Embeddings, and a loss over labels."""

    def __init__(self, words: int = 11, width: int = 6) -> None:
        super().__init__()
        self.words, self.norm, self.head = (
            nn.Embedding(words, width),
            nn.LayerNorm(width),
            nn.Linear(width, words),
        )

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(self.norm(self.words(ids))).flatten(0, 1), labels.flatten())


class Graph(nn.Module):
    """A layer of a graph network: gathers and scatters."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.w, self.r = nn.Linear(width, width), nn.Linear(width, width)

    def forward(
        self, x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        messages = self.w(x).index_select(0, src) * weight[:, None]
        total = torch.zeros_like(x).index_add(0, dst, messages)
        degree = x.new_zeros(x.shape[0]).scatter_add(0, dst, torch.ones_like(weight))
        return functional.relu(total / degree.clamp(min=1)[:, None] + self.r(x))


def mlp() -> nn.Module:
    """Linear layers, a norm, an activation."""
    return nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.LayerNorm(9), nn.Linear(9, 3), nn.LogSoftmax(-1))


class AdamW:
    """Parameters, gradients and moments."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        g = torch.Generator().manual_seed(1)
        self.parameters = [torch.randn(s, generator=g) for s in shapes]
        self.gradients = [torch.randn(s, generator=g) for s in shapes]
        self.means = [torch.zeros(s) for s in shapes]
        self.squares = [torch.zeros(s) for s in shapes]
        self.step = torch.tensor(0.0)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Those of `adamw`."""
        return self.parameters, self.gradients, self.means, self.squares, self.step


def adamw(p: list[Any], g: list[Any], m: list[Any], v: list[Any], step: torch.Tensor) -> None:
    """A step, in place."""
    step.add_(1)
    one, two = 1 - 0.9**step, 1 - 0.999**step
    for a, b, c, d in zip(p, g, m, v, strict=True):
        a.mul_(1 - 1e-3 * 0.01)
        c.mul_(0.9).add_(b, alpha=0.1)
        d.mul_(0.999).addcmul_(b, b, value=0.001)
        a.sub_(1e-3 * (c / one) / ((d / two).sqrt() + 1e-8))


def _f(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape).requires_grad_(grad)


def _mask() -> torch.Tensor:
    mask = torch.zeros(2, 1, 1, 5)
    mask[1, :, :, 3:] = -1e4
    return mask


MODELS: dict[str, Callable[[], tuple[nn.Module, list[torch.Tensor]]]] = {
    "mlp": lambda: (mlp(), [_f(7, 5, grad=True)]),
    "bert": lambda: (Bert(), [_f(2, 5, 12, grad=True), _mask()]),
    "gpt2": lambda: (Gpt2(), [_f(2, 5, 12, grad=True)]),
    "llama": lambda: (Llama(), [_f(2, 5, 16, grad=True)]),
    "resnet": lambda: (ResNet(), [_f(2, 4, 7, 6, grad=True)]),
    "unet": lambda: (UNet(), [_f(2, 8, 3, 5, grad=True), _f(2, 6), _f(2, 8, 6, 10, grad=True)]),
    "lstm": lambda: (Lstm(), [_f(3, 2, 7, grad=True)]),
    "classifier": lambda: (Classifier(), [torch.randint(0, 11, (2, 5)), torch.randint(0, 11, (2, 5))]),
    "graph": lambda: (
        Graph(),
        [_f(9, 5, grad=True), torch.randint(0, 9, (20,)), torch.randint(0, 9, (20,)), torch.rand(20)],
    ),
}
