"""Random programs of ATen operators, for the comparison of compiled graphs with eager.

Each is a function of some tensors, drawn from a seed: operators on elements, views, reductions, scans,
gathers, writes in place, of shapes with 0, 1 and odd extents, and of arguments with
gaps, expanded or permuted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

Tensor: TypeAlias = torch.Tensor
Step: TypeAlias = Callable[[Sequence[Tensor]], Tensor]

FLOATS = (torch.float64, torch.float32, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

_SMOOTH: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "gelu": F.gelu,
    "silu": F.silu,
    "atan": torch.atan,
    "abs": torch.abs,
    "relu": torch.relu,
    "neg": torch.neg,
    "square": torch.square,
    "softplus": F.softplus,
    "hardtanh": F.hardtanh,
    "exp": lambda x: torch.exp(-x.abs()),
    "rsqrt": lambda x: torch.rsqrt(x.square() + 1),
    "log1p": lambda x: torch.log1p(x.abs()),
    "clamp": lambda x: x.clamp(-0.75, 1.5),
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "scaled": lambda x: x * 0.5 - 1,
    "times_int": lambda x: x * 3,
}
_OF_INTEGERS: dict[str, Callable[[Tensor], Tensor]] = {
    "neg": torch.neg,
    "not": torch.bitwise_not,
    "times": lambda x: x * 5,
    "floor": lambda x: x // 3,
    "rest": lambda x: x % 5,
    "fmod": lambda x: torch.fmod(x, 4),
    "trunc": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "left": lambda x: x << 2,
    "right": lambda x: x >> 1,
    "square": lambda x: x * x,
    "clamp": lambda x: x.clamp(2, 50),
    "abs": torch.abs,
}
_PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": lambda x, y: torch.where(x > y, x, y * 2),
}


@dataclass
class Program:
    """Steps that each add a tensor to those before; `results` are those that the function gives."""

    seed: int
    arguments: list[Tensor] = field(default_factory=list)
    steps: list[tuple[str, Step]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        found = list(arguments)
        for _, step in self.steps:
            found.append(step(found))
        return [found[k] for k in self.results]

    @property
    def text(self) -> str:
        """What it does."""
        return f"seed {self.seed}: {' '.join(name for name, _ in self.steps)}"


def program(seed: int, length: int = 8) -> Program:
    """A random program."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    made = Program(seed)
    shape = tuple(draw.choice((1, 2, 3, 5, 8, 17)) for _ in range(draw.choice((1, 2, 2, 3))))
    if draw.random() < 0.05:
        shape = (*shape[:-1], 0)
    main = draw.choice((*FLOATS, *FLOATS, draw.choice(INTEGERS)))
    for k in range(draw.choice((1, 2, 3))):
        own = tuple(1 if draw.random() < 0.15 else n for n in shape) if k else shape
        dtype = main if draw.random() < 0.8 else draw.choice((*FLOATS, *INTEGERS, torch.bool))
        made.arguments.append(laid(draw, values(own, dtype)))
    known = [a.clone() for a in made.arguments]
    while len(made.steps) < length:
        name, step = _step(draw, known)
        try:
            known.append(step(known))
        except (RuntimeError, IndexError, NotImplementedError, ValueError):  # this operator takes none such
            continue
        made.steps.append((name, step))
    count = len(known)
    made.results = sorted({count - 1, *(draw.randrange(len(made.arguments), count) for _ in range(2))})
    return made


def values(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Numbers of a dtype."""
    if dtype.is_floating_point:
        return torch.randn(tuple(shape), dtype=torch.float64).mul(2).to(dtype)
    return torch.randint(0 if dtype is torch.uint8 else -9, 10, tuple(shape)).to(dtype)


def laid(draw: random.Random, x: Tensor) -> Tensor:
    """The same numbers with other strides."""
    how = draw.choice(("plain", "plain", "plain", "gaps", "permuted", "expanded", "offset"))
    if how == "gaps":
        wide = torch.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), dtype=x.dtype)
        return wide[..., 1::2].copy_(x)
    if how == "permuted":
        return x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))
    if how == "expanded" and x.shape[0]:
        return x[:1].expand(x.shape)
    if how == "offset":
        return torch.cat([x.new_zeros(3), x.reshape(-1)])[3:].view(x.shape)
    return x


def _step(draw: random.Random, known: Sequence[Tensor]) -> tuple[str, Step]:
    k = draw.choice(range(len(known))[-4:])
    kind = draw.choice((_element, _element, _pair, _pair, _view, _reduction, _structure, _other))
    return kind(draw, known, k)


def _element(draw: random.Random, known: Sequence[Tensor], k: int) -> tuple[str, Step]:
    table = _SMOOTH if known[k].is_floating_point() else _OF_INTEGERS
    name = draw.choice(sorted(table)) if known[k].dtype is not torch.bool else "not"
    return name, lambda t: table[name](t[k])


def _pair(draw: random.Random, known: Sequence[Tensor], k: int) -> tuple[str, Step]:
    name, j = draw.choice(sorted(_PAIRS)), draw.randrange(len(known))
    return name, lambda t: _PAIRS[name](t[k], t[j])


def _view(draw: random.Random, known: Sequence[Tensor], k: int) -> tuple[str, Step]:
    rank, d, n = known[k].dim(), draw.randrange(3), draw.randrange(-3, 4)
    views: dict[str, Callable[[Tensor], Tensor]] = {
        "flat": lambda x: x.reshape(-1),
        "t": lambda x: x.transpose(0, -1),
        "part": lambda x: x[n:],
        "every": lambda x: x[..., ::2],
        "row": lambda x: x.select(d, n),
        "more": lambda x: x.unsqueeze(d),
        "less": lambda x: x.squeeze(),
        "expand": lambda x: x.expand(2, *x.shape),
        "halves": lambda x: x.reshape(2, -1),
        "split": lambda x: x.split(2, d % max(rank, 1))[0],
        "diagonal": lambda x: x.diagonal(n % 2, 0, -1),
        "unfold": lambda x: x.unfold(-1, 2, 1),
    }
    name = draw.choice(sorted(views))
    return name, lambda t: views[name](t[k])


def _reduction(draw: random.Random, known: Sequence[Tensor], k: int) -> tuple[str, Step]:
    d, keep = draw.choice((0, -1, 1)), draw.random() < 0.6
    reductions: dict[str, Callable[[Tensor], Tensor]] = {
        "sum": lambda x: x.sum(d, keepdim=keep),
        "sum_all": lambda x: x.sum(),
        "mean": lambda x: x.mean(d, keepdim=keep),
        "amax": lambda x: x.amax(d, keepdim=keep),
        "amin": lambda x: x.amin(d, keepdim=keep),
        "argmax": lambda x: x.argmax(d, keepdim=keep),
        "var": lambda x: x.var(d, keepdim=keep, unbiased=False),
        "any": lambda x: x.any(d, keepdim=keep),
        "count": lambda x: x.count_nonzero(d),
        "norm": lambda x: torch.linalg.vector_norm(x, dim=d, keepdim=keep),
        "logsumexp": lambda x: x.logsumexp(d, keepdim=keep),
        "softmax": lambda x: x.softmax(d),
        "log_softmax": lambda x: x.log_softmax(d),
        "cumsum": lambda x: x.cumsum(d),
        "prod": lambda x: (x * 0.5).prod(d, keepdim=keep),
        "max": lambda x: x.max(d, keepdim=keep)[0],
        "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    }
    name = draw.choice(sorted(reductions))
    return name, lambda t: reductions[name](t[k])


def _structure(draw: random.Random, known: Sequence[Tensor], k: int) -> tuple[str, Step]:
    j, d, n = draw.randrange(len(known)), draw.choice((0, -1)), draw.randrange(-2, 4)
    structures: dict[str, Step] = {
        "cat": lambda t: torch.cat([t[k], t[j], t[k] * 2], d),
        "stack": lambda t: torch.stack([t[k], t[j]], d),
        "pad": lambda t: F.pad(t[k], (n, 2), value=0.5 if t[k].is_floating_point() else 1),
        "flip": lambda t: t[k].flip(d),
        "roll": lambda t: t[k].roll(n, d),
        "repeat": lambda t: t[k].repeat(2, *(1 for _ in t[k].shape)),
        "tril": lambda t: t[k].tril(n),
        "copy": lambda t: t[k].contiguous(),
        "clone": lambda t: t[k].clone(),
    }
    name = draw.choice(sorted(structures))
    return name, structures[name]


def _other(draw: random.Random, known: Sequence[Tensor], k: int) -> tuple[str, Step]:
    to = draw.choice((*FLOATS, torch.int64, torch.int32))
    d, n = draw.choice((0, -1)), draw.randrange(3)

    def places(x: Tensor) -> Tensor:
        return (torch.arange(3) * 5 + n) % x.shape[d]

    def written(x: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
        y = x.clone()
        write(y)
        return y * 1

    others: dict[str, Callable[[Tensor], Tensor]] = {
        "to": lambda x: (x.clamp(-100, 100) if x.is_floating_point() else x).to(to),
        "select": lambda x: x.index_select(d, places(x)),
        "index": lambda x: x[..., places(x.transpose(d, -1))],
        "index_add": lambda x: x.index_add(d, places(x), x.index_select(d, places(x))),
        "gather": lambda x: x.gather(d, x.argsort(d)),
        "write_part": lambda x: written(x, lambda y: y[1:].mul_(2)),
        "write_row": lambda x: written(x, lambda y: y.select(-1, n).fill_(1)),
        "write_every": lambda x: written(x, lambda y: y.view(-1)[::2].mul_(3)),
        "fill": lambda x: x.masked_fill(x > 1, 2),
        "matmul": lambda x: x @ x.transpose(-1, -2),
    }
    name = draw.choice(sorted(others))
    return name, lambda t: others[name](t[k])
