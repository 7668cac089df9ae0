"""Models that people train, with their widths as parameters: small ones for tests, usual ones to measure.

    MODELS["llama"].small()      (module, arguments): odd sizes, a test takes a second
    MODELS["llama"].usual()      what `benchmarks.torch_models` measures

Forward, gradients and, where `has_optimizer`, the step of AdamW are what is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as functional
from torch import nn

Inputs: TypeAlias = list[torch.Tensor]

# --- transformers -----------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Heads of attention with projections; several heads share keys and values where `kv` is less."""

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
        return self.o(y.transpose(1, 2).reshape(b, t, n * d))


class Bert(nn.Module):
    """A layer with attention written out, a mask, and norms after sums."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.a, self.first, self.second = Attention(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.a.parts(x)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.a.each) + mask
        x = self.first(x + self.a.joined(scores.softmax(-1) @ v))
        return self.second(x + self.down(functional.gelu(self.up(x))))


class BertStack(nn.Module):
    """Layers one after the other."""

    def __init__(self, layers: int, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Bert(width, heads, inner) for _ in range(layers))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


class Gpt2(nn.Module):
    """A block with norms before, causal attention, one product for its three parts, and tanh's gelu."""

    def __init__(self, width: int, heads: int, is_causal: bool = True) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, h = x.shape
        parts = self.qkv(self.first(x)).split(h, 2)
        q, k, v = (p.view(b, t, self.heads, h // self.heads).transpose(1, 2) for p in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, h))
        return x + self.down(functional.gelu(self.up(self.second(x)), approximate="tanh"))


class RmsNorm(nn.Module):
    """A norm without a mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Llama(nn.Module):
    """A block with rotary positions, groups of heads, and a gate."""

    def __init__(self, width: int, heads: int, kv: int, inner: int) -> None:
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
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class ViT(nn.Module):
    """Patches of a picture, a token for its class, positions, blocks, a head."""

    def __init__(self, picture: int, patch: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (picture // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Gpt2(width, heads, is_causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class Language(nn.Module):
    """Words and positions, layers, and a loss over the next words: what a training step computes."""

    def __init__(self, words: int, length: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Gpt2(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        x = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(x.flatten(0, 1), labels.flatten())


class Classifier(nn.Module):
    """Embeddings, and a loss over labels."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(self.norm(self.words(ids))).flatten(0, 1), labels.flatten())


# --- pictures ---------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Two convolutions with batch norms, and a way around them."""

    def __init__(self, given: int, channels: int, stride: int) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(given, channels, 3, stride, 1, bias=False)
        self.c2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.n1, self.n2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.around: nn.Module = nn.Identity()
        if (given, stride) != (channels, 1):
            self.around = nn.Sequential(
                nn.Conv2d(given, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.n1(self.c1(x)))
        return functional.relu(self.n2(self.c2(y)) + self.around(x))


class ResNet(nn.Module):
    """A stem with a pool, groups of blocks, a head; four groups of two blocks are ResNet-18."""

    def __init__(self, channels: int, groups: int, each: int, classes: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels)
        widths = [channels << k for k in range(groups)]
        blocks = []
        for k, width in enumerate(widths):
            blocks.append(Residual(widths[max(0, k - 1)], width, 2 if k else 1))
            blocks += [Residual(width, width, 1) for _ in range(each - 1)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(widths[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(functional.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


class UNet(nn.Module):
    """A block with group norms, an embedding, and a skip."""

    def __init__(self, channels: int, width: int, groups: tuple[int, int]) -> None:
        super().__init__()
        self.n1, self.n2 = (nn.GroupNorm(n, channels) for n in groups)
        self.c1, self.c2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.e, self.last = nn.Linear(width, channels), nn.Conv2d(2 * channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor, emb: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        y = self.c1(functional.silu(self.n1(x))) + self.e(functional.silu(emb))[:, :, None, None]
        y = functional.interpolate(x + self.c2(functional.silu(self.n2(y))), scale_factor=2, mode="nearest")
        return self.last(torch.cat((y, skip), 1))


def corners(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The corners of boxes that are given by centre and size."""
    centre, half = x[..., :2], x[..., 2:4] / 2
    return (*(centre - half).unbind(-1), *(centre + half).unbind(-1))


class YoloLoss(nn.Module):
    """A head on a grid of anchors, and a loss of boxes (overlap and distance), objects and classes."""

    def __init__(self, width: int, anchors: int, classes: int) -> None:
        super().__init__()
        self.anchors, self.classes = anchors, classes
        self.head = nn.Conv2d(width, anchors * (5 + classes), 1)
        self.sizes = nn.Parameter(torch.linspace(0.5, 2.0, 2 * anchors).view(anchors, 2), requires_grad=False)

    def forward(
        self, x: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor, has: torch.Tensor
    ) -> torch.Tensor:
        b, _, h, w = x.shape
        y = self.head(x).view(b, self.anchors, 5 + self.classes, h, w).permute(0, 1, 3, 4, 2)
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack((columns, rows), -1).to(x.dtype)
        centre = (2 * y[..., :2].sigmoid() - 0.5) + grid
        size = (2 * y[..., 2:4].sigmoid()) ** 2 * self.sizes[:, None, None]
        overlap = self.overlap(torch.cat((centre, size), -1), boxes)
        count = has.sum().clamp(min=1)
        box = ((1 - overlap) * has).sum() / count
        wanted = overlap.detach().clamp(min=0) * has
        sure = functional.binary_cross_entropy_with_logits(y[..., 4], wanted)
        kinds = functional.one_hot(labels, self.classes).to(x.dtype)
        kind = functional.binary_cross_entropy_with_logits(y[..., 5:], kinds, reduction="none").mean(-1)
        return 0.05 * box + sure + 0.5 * (kind * has).sum() / count

    def overlap(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Intersection over union, less the distance of centres in diagonals of what holds both."""
        ax, ay, bx, by = corners(one)
        cx, cy, dx, dy = corners(other)
        both = (torch.min(bx, dx) - torch.max(ax, cx)).clamp(min=0)
        both = both * (torch.min(by, dy) - torch.max(ay, cy)).clamp(min=0)
        union = (bx - ax) * (by - ay) + (dx - cx) * (dy - cy) - both
        wide, high = torch.max(bx, dx) - torch.min(ax, cx), torch.max(by, dy) - torch.min(ay, cy)
        apart = ((one[..., :2] - other[..., :2]) ** 2).sum(-1)
        return both / (union + 1e-7) - apart / (wide**2 + high**2 + 1e-7)


# --- sequences, tables, graphs ----------------------------------------------------------------------------


class Lstm(nn.Module):
    """Steps of a cell, unrolled."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.i, self.h, self.width = nn.Linear(inner, 4 * width), nn.Linear(width, 4 * width), width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[0], self.width)
        for k in range(x.shape[1]):
            i, f, g, o = (self.i(x[:, k]) + self.h(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h


class Gru(nn.Module):
    """Steps of a cell, unrolled."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.i, self.h, self.width = nn.Linear(inner, 3 * width), nn.Linear(width, 3 * width), width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], self.width)
        for k in range(x.shape[1]):
            a, b = self.i(x[:, k]).chunk(3, 1), self.h(h).chunk(3, 1)
            reset, update = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
            h = (1 - update) * torch.tanh(a[2] + reset * b[2]) + update * h
        return h


class Dien(nn.Module):
    """Interest of a reader: attention of what is offered over what was read, and a cell that it gates."""

    def __init__(self, width: int, inner: tuple[int, int]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4 * width, inner[0]), nn.Linear(inner[0], inner[1])
        self.last, self.slope = nn.Linear(inner[1], 1), nn.PReLU()
        self.i, self.h = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, query: torch.Tensor, keys: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        wide = query[:, None].expand_as(keys)
        x = torch.cat((wide, keys, wide - keys, wide * keys), -1)
        x = self.last(self.slope(self.second(torch.sigmoid(self.first(x))))).squeeze(-1)
        valid = torch.arange(keys.shape[1])[None] < lengths[:, None]
        x = torch.where(valid, x, torch.full_like(x, -(2.0**32) + 1))
        weights = torch.softmax(x / keys.shape[-1] ** 0.5, -1)
        return self.evolved(weights, keys[:, :4]) + (weights[..., None] * keys).sum(1)

    def evolved(self, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """A cell whose update is scaled by attention."""
        h = torch.zeros_like(keys[:, 0])
        for k in range(keys.shape[1]):
            a, b = self.i(keys[:, k]).chunk(3, 1), self.h(h).chunk(3, 1)
            reset = torch.sigmoid(a[0] + b[0])
            update = torch.sigmoid(a[1] + b[1]) * weights[:, k, None]
            h = (1 - update) * h + update * torch.tanh(a[2] + reset * b[2])
        return h


class Dlrm(nn.Module):
    """Wide and deep: tables of embeddings, products of all pairs of them, a sum over single features."""

    def __init__(self, tables: int, rows: int, width: int, dense: int, inner: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.wide = nn.Embedding(rows * tables, 1)
        self.bottom = nn.Sequential(nn.Linear(dense, inner), nn.ReLU(), nn.Linear(inner, width), nn.ReLU())
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs)
        self.top = nn.Sequential(
            nn.Linear(width + pairs.shape[1], inner), nn.ReLU(), nn.BatchNorm1d(inner), nn.Linear(inner, 1)
        )
        self.rows = rows

    def forward(self, dense: torch.Tensor, ids: torch.Tensor, clicks: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        every = torch.stack((x, *(t(ids[:, k]) for k, t in enumerate(self.tables))), 1)
        products = (every @ every.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        single = self.wide(ids + self.rows * torch.arange(ids.shape[1])).sum(1)
        y = self.top(torch.cat((x, products), 1)) + single
        return functional.binary_cross_entropy_with_logits(y.squeeze(1), clicks)


class Graph(nn.Module):
    """A layer of a graph network: gathers and scatters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w, self.r = nn.Linear(width, width), nn.Linear(width, width)

    def forward(
        self, x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        messages = self.w(x).index_select(0, src) * weight[:, None]
        total = torch.zeros_like(x).index_add(0, dst, messages)
        degree = x.new_zeros(x.shape[0]).scatter_add(0, dst, torch.ones_like(weight))
        return functional.relu(total / degree.clamp(min=1)[:, None] + self.r(x))


# --- with their arguments ---------------------------------------------------------------------------------


def _f(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape).requires_grad_(grad)


def _ids(most: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, most, shape)


def _mlp(batch: int, width: int, inner: int) -> tuple[nn.Module, Inputs]:
    first = [nn.Linear(width, inner), nn.ReLU(), nn.LayerNorm(inner)]
    return nn.Sequential(*first, nn.Linear(inner, 3), nn.LogSoftmax(-1)), [_f(batch, width, grad=True)]


def _bert(
    batch: int, length: int, width: int, heads: int, inner: int, layers: int = 1
) -> tuple[nn.Module, Inputs]:
    mask = torch.zeros(batch, 1, 1, length)
    mask[-1:, :, :, -length // 4 :] = -1e4
    model = BertStack(layers, width, heads, inner) if layers > 1 else Bert(width, heads, inner)
    return model, [_f(batch, length, width, grad=True), mask]


def _gpt2(batch: int, length: int, width: int, heads: int) -> tuple[nn.Module, Inputs]:
    return Gpt2(width, heads), [_f(batch, length, width, grad=True)]


def _llama(batch: int, length: int, width: int, heads: int, kv: int, inner: int) -> tuple[nn.Module, Inputs]:
    return Llama(width, heads, kv, inner), [_f(batch, length, width, grad=True)]


def _vit(batch: int, picture: int, **sizes: int) -> tuple[nn.Module, Inputs]:
    return ViT(picture, **sizes), [_f(batch, 3, picture, picture)]


def _training(batch: int, length: int, words: int, **sizes: int) -> tuple[nn.Module, Inputs]:
    return Language(words, length, **sizes), [_ids(words, batch, length), _ids(words, batch, length)]


def _classifier(batch: int, length: int, words: int, width: int) -> tuple[nn.Module, Inputs]:
    return Classifier(words, width), [_ids(words, batch, length), _ids(words, batch, length)]


def _resnet(batch: int, picture: tuple[int, int], **sizes: int) -> tuple[nn.Module, Inputs]:
    return ResNet(**sizes), [_f(batch, 3, *picture)]


def _unet(
    batch: int, channels: int, width: int, groups: tuple[int, int], picture: tuple[int, int]
) -> tuple[nn.Module, Inputs]:
    h, w = picture
    skip = _f(batch, channels, 2 * h, 2 * w, grad=True)
    return UNet(channels, width, groups), [_f(batch, channels, h, w, grad=True), _f(batch, width), skip]


def _yolo(
    batch: int, width: int, grid: tuple[int, int], anchors: int, classes: int
) -> tuple[nn.Module, Inputs]:
    places = (batch, anchors, *grid)
    centres = torch.rand(*places, 2) * torch.tensor([grid[1], grid[0]])
    boxes = torch.cat((centres, 0.5 + 2 * torch.rand(*places, 2)), -1)
    has = (torch.rand(places) < 0.2).float()
    return YoloLoss(width, anchors, classes), [
        _f(batch, width, *grid, grad=True), boxes, _ids(classes, *places), has,
    ]  # fmt: skip


def _cell(kind: type[nn.Module]) -> Callable[..., tuple[nn.Module, Inputs]]:
    def made(batch: int, steps: int, inner: int, width: int) -> tuple[nn.Module, Inputs]:
        return kind(inner, width), [_f(batch, steps, inner, grad=True)]

    return made


def _dien(batch: int, length: int, width: int, inner: tuple[int, int]) -> tuple[nn.Module, Inputs]:
    lengths = torch.randint(1, length + 1, (batch,))
    return Dien(width, inner), [_f(batch, width, grad=True), _f(batch, length, width, grad=True), lengths]


def _dlrm(batch: int, tables: int, rows: int, dense: int, **sizes: int) -> tuple[nn.Module, Inputs]:
    clicks = (torch.rand(batch) < 0.3).float()
    return Dlrm(tables, rows, dense=dense, **sizes), [_f(batch, dense), _ids(rows, batch, tables), clicks]


def _graph(nodes: int, edges: int, width: int) -> tuple[nn.Module, Inputs]:
    ends = [_ids(nodes, edges), _ids(nodes, edges)]
    return Graph(width), [_f(nodes, width, grad=True), *ends, torch.rand(edges)]


@dataclass(frozen=True)
class Model:
    """How a model is made, and the sizes for tests and for measuring."""

    made: Callable[..., tuple[nn.Module, Inputs]]
    small_sizes: Mapping[str, Any]
    usual_sizes: Mapping[str, Any]
    has_optimizer: bool = False

    def small(self) -> tuple[nn.Module, Inputs]:
        """The module and its arguments, for a test."""
        return self.made(**self.small_sizes)

    def usual(self) -> tuple[nn.Module, Inputs]:
        """The module and its arguments, to be measured."""
        return self.made(**self.usual_sizes)


MODELS: dict[str, Model] = {
    "mlp": Model(_mlp, {"batch": 7, "width": 5, "inner": 9}, {"batch": 512, "width": 256, "inner": 1024}),
    "bert": Model(
        _bert,
        {"batch": 2, "length": 5, "width": 12, "heads": 2, "inner": 20},
        {"batch": 4, "length": 128, "width": 256, "heads": 4, "inner": 1024},
    ),
    "bert12": Model(
        _bert,
        {"batch": 1, "length": 3, "width": 8, "heads": 2, "inner": 12, "layers": 2},
        {"batch": 1, "length": 64, "width": 256, "heads": 4, "inner": 1024, "layers": 12},
    ),
    "gpt2": Model(
        _gpt2,
        {"batch": 2, "length": 5, "width": 12, "heads": 2},
        {"batch": 4, "length": 128, "width": 256, "heads": 4},
    ),
    "llama": Model(
        _llama,
        {"batch": 2, "length": 5, "width": 16, "heads": 4, "kv": 2, "inner": 20},
        {"batch": 4, "length": 128, "width": 256, "heads": 4, "kv": 2, "inner": 688},
    ),
    "vit": Model(
        _vit,
        {"batch": 2, "picture": 6, "patch": 2, "width": 8, "heads": 2, "layers": 1, "classes": 3},
        {"batch": 8, "picture": 64, "patch": 16, "width": 192, "heads": 3, "layers": 2, "classes": 100},
    ),
    "resnet": Model(
        _resnet,
        {"batch": 3, "picture": (13, 15), "channels": 3, "groups": 2, "each": 1, "classes": 4},
        {"batch": 4, "picture": (64, 64), "channels": 32, "groups": 4, "each": 2, "classes": 100},
    ),
    "unet": Model(
        _unet,
        {"batch": 2, "channels": 8, "width": 6, "groups": (2, 4), "picture": (3, 5)},
        {"batch": 4, "channels": 64, "width": 128, "groups": (8, 8), "picture": (16, 16)},
    ),
    "lstm": Model(
        _cell(Lstm),
        {"batch": 3, "steps": 2, "inner": 7, "width": 5},
        {"batch": 64, "steps": 4, "inner": 128, "width": 256},
    ),
    "gru": Model(
        _cell(Gru),
        {"batch": 3, "steps": 2, "inner": 7, "width": 5},
        {"batch": 64, "steps": 4, "inner": 128, "width": 256},
    ),
    "dien": Model(
        _dien,
        {"batch": 3, "length": 5, "width": 4, "inner": (6, 5)},
        {"batch": 64, "length": 50, "width": 36, "inner": (80, 40)},
    ),
    "dlrm": Model(
        _dlrm,
        {"batch": 5, "tables": 3, "rows": 7, "width": 4, "dense": 3, "inner": 6},
        {"batch": 256, "tables": 8, "rows": 1000, "width": 16, "dense": 13, "inner": 64},
    ),
    "yolo": Model(
        _yolo,
        {"batch": 2, "width": 3, "grid": (3, 5), "anchors": 2, "classes": 3},
        {"batch": 8, "width": 64, "grid": (20, 20), "anchors": 3, "classes": 20},
    ),
    "graph": Model(
        _graph, {"nodes": 9, "edges": 20, "width": 5}, {"nodes": 2000, "edges": 16000, "width": 64}
    ),
    "classifier": Model(
        _classifier,
        {"batch": 2, "length": 5, "words": 11, "width": 6},
        {"batch": 4, "length": 128, "words": 2000, "width": 256},
    ),
    "training": Model(
        _training,
        {"batch": 2, "length": 5, "words": 7, "layers": 1, "width": 8, "heads": 2},
        {"batch": 4, "length": 64, "words": 1000, "layers": 2, "width": 128, "heads": 4},
        has_optimizer=True,
    ),
}  # fmt: skip


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW; `eps` is such that gradients that are nothing but rounding move no parameter."""
    own = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(own, lr=1e-2, eps=1e-3, foreach=True)
