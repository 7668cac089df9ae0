"""Trains models of times with PyTorch; `python -m benchmarks.learned train` makes the one that is shipped.

    loss = mean of (log predicted - log measured)^2
           + a pairwise rank loss of samples of one group that differ by more than noise

Samples whose repeats are far apart count for less.  Seeds, batches and the number of epochs are fixed, one
thread computes: the same data give the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import cos, pi
from typing import Any, Literal

import numpy as np
import torch

from polyfuse.learn.evaluate import batch_of
from polyfuse.learn.model import CALL_S, Array, Batch, Design, Model, Scales, Weights, forward
from polyfuse.learn.samples import Samples

Rank = Literal["none", "hinge", "logistic"]

# Logarithms of times that differ by so much are clearly apart for the rank losses.
CLEAR = 0.1
# Pairs of a group in a batch, at most; samples whose repeats are so far apart count half.
MOST_PAIRS, HALF = 256, 0.05
# Epochs in which the rate rises.
WARM = 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained.

    rank: the loss of pairs, beside the squared error of log time, with its weight.  batch: samples, of whole
    groups.  drop: of the head's hidden units, the part that is left out at a time.
    """

    design: Design = field(default_factory=Design)
    rank: Rank = "logistic"
    rank_weight: float = 0.5
    epochs: int = 60
    batch: int = 256
    rate: float = 3e-3
    decay: float = 1e-2
    drop: float = 0.1
    seed: int = 0


class Torch:
    """The operations of `forward` on tensors."""

    def __init__(self, drop: float) -> None:
        self.part = drop

    def relu(self, x: Any) -> Any:
        return torch.relu(x)

    def join(self, parts: Sequence[Any]) -> Any:
        return torch.cat(list(parts), dim=1)

    def sums(self, x: Any, index: Any, count: int) -> Any:
        return x.new_zeros((count, *x.shape[1:])).index_add(0, index, x)

    def most(self, x: Any, index: Any, count: int) -> Any:
        where = index[:, None].expand_as(x)
        return x.new_zeros((count, x.shape[1])).scatter_reduce(0, where, x, "amax", include_self=False)

    def exp(self, x: Any) -> Any:
        return torch.exp(x)

    def log(self, x: Any) -> Any:
        return torch.log(x)

    def within(self, x: Any, low: float, high: float) -> Any:
        return torch.clamp(x, low, high)

    def drop(self, x: Any) -> Any:
        return torch.nn.functional.dropout(x, self.part) if self.part else x


def tensors(batch: Batch) -> Batch:
    """A batch whose arrays are tensors."""

    def of(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(of, x))
        return torch.from_numpy(x) if isinstance(x, np.ndarray) else x

    return replace(batch, **{f.name: of(getattr(batch, f.name)) for f in fields(Batch)})


def first_weights(design: Design, seed: int, level: float) -> dict[str, Array]:
    """Random ones; the last layer begins with what is known without any feature."""
    random = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for name, shape in design.shapes().items():
        fan = 1.0 if name == "opcodes" else 2.0 / shape[0] if len(shape) == 2 else 0.0
        found[name] = (random.standard_normal(shape) * fan**0.5).astype(np.float32)
    last = f"head{len(design.head)}"
    found[last] *= 0.01
    found[f"{last}.bias"][:] = 0.0 if design.residual else level
    found["call"] = np.array(np.log(CALL_S), np.float32)
    return found


# --- batches ----------------------------------------------------------------------------------------------


def batches(groups: Array, size: int, random: np.random.Generator) -> Iterator[Array]:
    """Places of samples, whole groups together in a random order."""
    order = np.argsort(groups, kind="stable")
    cuts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    taken: list[Array] = []
    for k in random.permutation(len(cuts)):
        taken.append(cuts[k])
        if sum(map(len, taken)) >= size:
            yield np.concatenate(taken)
            taken = []
    if taken:
        yield np.concatenate(taken)


def pairs(groups: Array, level: Array, noise: Array, random: np.random.Generator) -> tuple[Array, Array]:
    """Slower and faster samples of one group, where they differ by more than the noise of both."""
    slow, fast = [], []
    for g in dict.fromkeys(groups.tolist()):
        mine = np.flatnonzero(groups == g)
        a, b = (mine[x] for x in np.triu_indices(len(mine), 1))
        clear = np.abs(level[a] - level[b]) > np.maximum(noise[a], noise[b])
        a, b = a[clear], b[clear]
        if len(a) > MOST_PAIRS:
            some = random.choice(len(a), MOST_PAIRS, replace=False)
            a, b = a[some], b[some]
        later = level[a] > level[b]
        slow.append(np.where(later, a, b))
        fast.append(np.where(later, b, a))
    return np.concatenate(slow), np.concatenate(fast)


# --- training ---------------------------------------------------------------------------------------------


def train(
    samples: Samples, which: Array, recipe: Recipe, scales: Scales, told: Callable[[str], None] | None = None
) -> Weights:
    """Weights that were fitted to some of the samples."""
    torch.manual_seed(recipe.seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    random = np.random.default_rng(recipe.seed)
    level = np.log(samples.seconds[which]).astype(np.float32)
    first = first_weights(recipe.design, recipe.seed, float(level.mean()))
    weights = {n: torch.tensor(x, requires_grad=True) for n, x in first.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=recipe.rate, weight_decay=recipe.decay)
    steps = recipe.epochs * len([*batches(samples.group[which], recipe.batch, random)])
    done = 0
    for epoch in range(recipe.epochs):
        losses = []
        for some in batches(samples.group[which], recipe.batch, random):
            for part in optimizer.param_groups:
                part["lr"] = recipe.rate * _rate(done / steps, WARM / recipe.epochs)
            loss = _loss(samples, which[some], recipe, scales, weights, random)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
            done += 1
        if told is not None:
            told(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")
    return {n: x.detach().numpy() for n, x in weights.items()}


def _rate(at: float, warm: float) -> float:
    """Of the rate, what counts after a part of all steps: it rises, then falls as a cosine."""
    return at / warm if at < warm else 0.5 * (1 + cos(pi * (at - warm) / max(1e-9, 1 - warm)))


def _loss(
    samples: Samples,
    some: Array,
    recipe: Recipe,
    scales: Scales,
    weights: Weights,
    random: np.random.Generator,
) -> Any:
    batch = tensors(batch_of(samples, scales, some))
    level = np.log(samples.seconds[some]).astype(np.float32)
    noise = np.nan_to_num(samples.spread[some].astype(np.float32), posinf=1.0)
    found = forward(weights, recipe.design, batch, Torch(recipe.drop))
    trust = torch.from_numpy(1 / (1 + (noise / HALF) ** 2))
    loss = (trust * (found - torch.from_numpy(level)) ** 2).sum() / trust.sum()
    if recipe.rank == "none":
        return loss
    slow, fast = pairs(samples.group[some], level, noise, random)
    if not len(slow):
        return loss
    apart = (found[torch.from_numpy(slow)] - found[torch.from_numpy(fast)]) / CLEAR
    each = torch.relu(1 - apart) if recipe.rank == "hinge" else torch.nn.functional.softplus(-apart)
    return loss + recipe.rank_weight * CLEAR * each.mean()


def trained(
    samples: Samples,
    which: Array,
    recipe: Recipe,
    seeds: Sequence[int] = (0,),
    told: Callable[[str], None] | None = None,
) -> Model:
    """A model of one member for each seed."""
    scales = Scales.of([g for s in which for g in samples.graphs_of(int(s))])
    members = tuple(train(samples, which, replace(recipe, seed=s), scales, told) for s in seeds)
    return Model(recipe.design, scales, members)
