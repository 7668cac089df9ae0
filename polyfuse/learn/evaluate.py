"""How good predicted times are: splits of samples, figures, and what they are compared with.

    held-out programs   whole operators that nobody trained on: what counts
    held-out sizes      operators at sizes that nobody trained on
    held-out kernels    single samples, whose programs are known: what can be reached at best
    held-out code path  trained on vectors of one width, tested on another
    held-out machine    trained on one machine, tested on what was timed on both, without and with a few
                        samples of other programs of the new one

A repeat of the measurement is the ceiling, the projected model what there was before.  NumPy is all it needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfuse.learn.features import KERNEL_FEATURES
from polyfuse.learn.model import Batch, Model, Scales
from polyfuse.learn.samples import Samples, load, merge

Array = NDArray[Any]

HELD_OUT_SEED = 45
"""Draws the programs that are held out; chosen before any model was trained."""
PART = 0.2
# Samples of a group differ clearly if one takes so much longer, and more than repeats are apart.
CLEAR = 0.05
# A choice that takes so many times as long is a loss.
SLOWER = 1.03
# How often groups are drawn again.
DRAWS = 2000
# The best of so many that a model names first.
FIRST = 5


@dataclass(frozen=True)
class Split:
    """Places of samples to train on, and of others to be judged by."""

    name: str
    train: Array
    test: Array


def held_out_programs(samples: Samples, seed: int = HELD_OUT_SEED, part: float = PART) -> Split:
    """Whole operators, at all their sizes, with all that have the same nodes."""
    return _drawn("programs", operators(samples)[samples.program], seed, part)


def held_out_sizes(samples: Samples, seed: int = HELD_OUT_SEED, part: float = PART) -> Split:
    """Operators at single choices of sizes, on all machines."""
    return _drawn("sizes", whole_programs(samples)[samples.program], seed, part)


def held_out_kernels(samples: Samples, seed: int = HELD_OUT_SEED, part: float = PART) -> Split:
    """Single samples, on all machines; what the compiler picks untuned is in two groups of its program, and
    on one side."""
    program = whole_programs(samples)[samples.program]
    return _drawn("kernels", np.where(samples.default, -1 - program, ways(samples)), seed, part)


def held_out_code_path(samples: Samples) -> Split | None:
    """The samples with the usual vectors train, those with others test; None where all have the same."""
    wide = _of_core(samples, "vector bytes")
    known, place, counts = np.unique(wide, return_inverse=True, return_counts=True)
    usual = place == counts.argmax()
    return Split("code path", np.flatnonzero(usual), np.flatnonzero(~usual)) if len(known) > 1 else None


def held_out_machine(samples: Samples, calibration: int = 0, seed: int = HELD_OUT_SEED) -> Split | None:
    """What was timed on the machine with the smallest L1 and on another one, too, tests; all of the others
    train, and for a calibration so many samples of other programs on the tested one. None where all have
    the same."""
    size, wide = _of_core(samples, "L1 size"), _of_core(samples, "vector bytes")
    usual = wide == wide.max()
    here, there = usual & (size == size.min()), usual & (size > size.min())
    if not there.any():
        return None
    way, program = ways(samples), whole_programs(samples)[samples.program]
    test = here & np.isin(way, way[there])
    train = there.copy()
    others = np.unique(program[here & ~np.isin(program, program[test])])
    for p in np.random.default_rng(seed).permutation(others):
        if (train & here).sum() >= calibration:
            break
        train |= here & (program == p)
    return Split("machine", np.flatnonzero(train), np.flatnonzero(test))


def timed_elsewhere(samples: Samples, split: Split) -> Array:
    """What the tested samples of `held_out_machine` take on the machine that trains."""
    way = ways(samples)
    known = dict(zip(way[split.train].tolist(), samples.seconds[split.train].tolist(), strict=True))
    return np.array([known[w] for w in way[split.test].tolist()])


def whole_programs(samples: Samples) -> Array:
    """A number for each program, one for all machines."""
    names = [name.partition(ELSEWHERE)[0] for name in samples.programs]
    numbers = {name: k for k, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])


def ways(samples: Samples) -> Array:
    """A number for each sample: the same program compiled in the same way has one for all machines."""
    rows = np.stack([whole_programs(samples)[samples.program], samples.task, samples.label], axis=1)
    return np.unique(rows, axis=0, return_inverse=True)[1].ravel()


def _drawn(name: str, keys: Array, seed: int, part: float) -> Split:
    """All samples with the same key are on the same side."""
    known, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    out = np.zeros(len(known), bool)
    for k in np.random.default_rng(seed).permutation(len(known)):
        if counts[out].sum() + counts[k] <= part * len(keys):
            out[k] = True
    return Split(name, np.flatnonzero(~out[place]), np.flatnonzero(out[place]))


def operators(samples: Samples) -> Array:
    """A number for each program: programs that have the same nodes in what the compiler picks untuned are one
    operator, and so are those of one name at different sizes."""
    names = [stem(name) for name in samples.programs]
    above = {name: name for name in names}

    def top(name: str) -> str:
        while above[name] != name:
            name = above[name]
        return name

    first: dict[tuple[bytes, ...], str] = {}
    for s in np.flatnonzero(samples.default):
        name = names[samples.program[s]]
        nodes = tuple(np.sort(g.opcodes).tobytes() for g in samples.graphs_of(int(s)))
        above[top(name)] = top(first.setdefault(nodes, name))
    numbers = {name: k for k, name in enumerate(dict.fromkeys(map(top, names)))}
    return np.array([numbers[top(name)] for name in names])


ELSEWHERE = " @ "


def on_core(program: str, core: str) -> str:
    """What a program is called where samples of several cores are together."""
    return f"{program}{ELSEWHERE}{core}"


def samples_of(*places: str | PathLike[str]) -> Samples:
    """The samples of files, and of those for a CPU that are in folders. The name of a file says which core
    they are for, and the programs of several files say it, too."""
    files = [f for p in map(Path, places) for f in (sorted(p.glob("cpu_*.xz")) if p.is_dir() else [p])]
    found = [(f.stem.removeprefix("cpu_"), load(f)) for f in files]
    if len(found) == 1:
        return found[0][1]
    return merge([replace(x, programs=[on_core(p, core) for p in x.programs]) for core, x in found])


def stem(program: str) -> str:
    """A program's name without its sizes, types and core: ``half/softmax_4096 T=8 f16`` is a ``softmax``.
    Random programs and those with names in words keep them."""
    program = program.partition(ELSEWHERE)[0]
    kind, _, name = program.partition("/")
    if kind in ("operator", "random", "example"):
        return program
    words = name.split()
    end = next((k for k, w in enumerate(words) if k and _SIZES.match(w)), len(words))
    return re.sub(r"_(\d+|big|small)$", "", " ".join(words[:end])).lower()


# A word of a name behind which no part of the operator comes.
_SIZES = re.compile(r"\w+=|\d+x\d|drawn|part|b?f\d+$")


def _of_core(samples: Samples, feature: str) -> Array:
    """A figure of the core that each sample is for."""
    column = KERNEL_FEATURES.index(feature)
    first = samples.sample_graph[samples.sample_start[:-1]]
    return np.array([samples.graphs[g].kernel[column] for g in first])


# --- predictions ------------------------------------------------------------------------------------------


def batch_of(samples: Samples, scales: Scales, which: Array) -> Batch:
    """The batch of some samples, each graph once."""
    starts, ends = samples.sample_start[which], samples.sample_start[which + 1]
    places = [samples.sample_graph[a:b] for a, b in zip(starts, ends, strict=True)]
    used, members = np.unique(np.concatenate(places), return_inverse=True)
    graphs = [samples.graphs[k] for k in used]
    return Batch.of(graphs, scales, members, np.repeat(np.arange(len(which)), ends - starts), len(which))


def predicted(model: Model, samples: Samples, which: Array, at_once: int = 512) -> Array:
    """Seconds of some samples by a model."""
    parts = [which[k : k + at_once] for k in range(0, len(which), at_once)]
    return np.concatenate([np.zeros(0), *(model.of_batch(batch_of(samples, model.scales, p)) for p in parts)])


def predicted_by_each(model: Model, samples: Samples, which: Array) -> Array:
    """The same by each member: (members, samples)."""
    return np.stack([predicted(replace(model, members=(m,)), samples, which) for m in model.members])


def calibrated(samples: Samples, split: Split) -> Array:
    """The projected times of the tested samples on the line that fits the others: a + b log projected."""
    x, y = np.log(samples.projected), np.log(samples.seconds)
    b, a = np.polyfit(x[split.train], y[split.train], 1)
    return _array(np.exp(a + b * x[split.test]))


def ridge(samples: Samples, split: Split, weight: float = 1.0) -> Array:
    """A linear correction of the projected time, by the features of kernels: of a plan their mean, and its
    length."""
    rows = np.stack([_features(samples, s) for s in range(len(samples))])
    mean, deviation = rows[split.train].mean(axis=0), rows[split.train].std(axis=0) + 1e-6
    x = np.column_stack([(rows - mean) / deviation, np.ones(len(rows))])
    y = np.log(samples.seconds / samples.projected)
    a = x[split.train]
    solved = np.linalg.solve(a.T @ a + weight * np.eye(x.shape[1]), a.T @ y[split.train])
    return _array(samples.projected[split.test] * np.exp(x[split.test] @ solved))


def _array(x: Any) -> Array:
    return np.asarray(x)


def _features(samples: Samples, sample: int) -> Array:
    kernels = np.array([g.kernel for g in samples.graphs_of(sample)], np.float64)
    return np.array([*kernels.mean(axis=0), np.log(len(kernels)), np.log(samples.projected[sample])])


def repeated(samples: Samples, which: Array, seed: int = HELD_OUT_SEED) -> Array:
    """Another measurement of the same, as far apart from the first one as its repeats were: the ceiling."""
    spread = np.minimum(samples.spread[which], 1.0)
    return samples.seconds[which] * np.exp(
        np.random.default_rng(seed).uniform(-0.5, 0.5, len(which)) * spread
    )


# --- figures ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figures:
    """samples, groups: how many.  mape: mean of |predicted / measured - 1|.  tau: Kendall's rank correlation
    within groups, its mean.  pairs, right: of a group that differ clearly, and how many of them are ordered
    rightly.  first, five: how much slower the best of the first one, or five, that the predictions name is
    than the best of all, the mean over groups.  error: the same of the first one as the paper has it, losses
    over times of the best, summed up.  default: what the compiler's own choice loses."""

    samples: int
    groups: int
    mape: float
    tau: float
    pairs: int
    right: int
    first: float
    five: float
    error: float
    default: float


def figures(samples: Samples, which: Array, seconds: Array) -> Figures:
    """Figures of predicted times of some samples."""
    measured = samples.seconds[which]
    each = [_Group.of(samples, which[m], seconds[m]) for m in _groups(samples.group[which])]
    taus = [g.tau for g in each if g.tau is not None]
    own = [g.default for g in each if g.default is not None]
    best = sum(g.best for g in each)
    return Figures(
        len(which),
        len(each),
        _mean(np.abs(seconds / measured - 1)),
        _mean(taus),
        sum(g.pairs for g in each),
        sum(g.right for g in each),
        _mean([g.first for g in each]),
        _mean([g.five for g in each]),
        sum(g.first * g.best for g in each) / best if best else 0.0,
        _mean(own),
    )


def _groups(groups: Array) -> list[Array]:
    """Places of each group with several samples."""
    order = np.argsort(groups, kind="stable")
    cuts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(order) else []
    return [c for c in cuts if len(c) > 1]


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


@dataclass(frozen=True, slots=True)
class _Group:
    best: float
    tau: float | None
    pairs: int
    right: int
    first: float
    five: float
    default: float | None

    @classmethod
    def of(cls, samples: Samples, which: Array, seconds: Array) -> _Group:
        t, noise = samples.seconds[which], samples.spread[which]
        best, order = float(t.min()), np.argsort(seconds, kind="stable")
        a, b = np.triu_indices(len(t), 1)
        apart = np.abs(np.log(t[a] / t[b])) > np.maximum(np.log1p(CLEAR), np.maximum(noise[a], noise[b]))
        same = (t[a] < t[b]) == (seconds[a] < seconds[b])
        own = t[samples.default[which]]
        return cls(
            best,
            kendall(seconds, t),
            int(apart.sum()),
            int((apart & same & (seconds[a] != seconds[b])).sum()),
            float(t[order[0]] / best - 1),
            float(t[order[:FIRST]].min() / best - 1),
            float(own[0] / best - 1) if len(own) else None,
        )


def kendall(x: Array, y: Array) -> float | None:
    """Kendall's tau-b of two lists; None where one of them has no order."""
    a, b = np.triu_indices(len(x), 1)
    u, v = np.sign(x[a] - x[b]), np.sign(y[a] - y[b])
    scale = np.sqrt(np.abs(u).sum() * np.abs(v).sum())
    return float((u * v).sum() / scale) if scale else None


def confidence(samples: Samples, which: Array, one: Array, other: Array, seed: int = HELD_OUT_SEED) -> float:
    """How sure it is that what `one` names first is faster than what `other` does: of groups that are drawn
    again and again, with repeats, the part in which it is, in the geometric mean."""
    found = []
    for m in _groups(samples.group[which]):
        t = np.log(samples.seconds[which[m]])
        found.append(t[np.argmin(other[m])] - t[np.argmin(one[m])])
    gains = np.array(found)
    drawn = np.random.default_rng(seed).integers(0, len(gains), (DRAWS, len(gains)))
    return float((gains[drawn].mean(axis=1) > 0).mean())


@dataclass(frozen=True, slots=True)
class Switching:
    """What it brings to take what a model names first of what is faster than the compiler's own choice by so
    much, by each of its members.  switched: groups in which it is another; gain: geometric mean over all
    groups of the time before over the time after; slower: groups that lost more than 3 %; worst: the least
    gain."""

    sure: float
    groups: int
    switched: int
    gain: float
    slower: int
    worst: float


def switching(samples: Samples, which: Array, each: Array, sure: float) -> Switching:
    """The same for predicted times of some samples, (members, samples); groups without the compiler's own
    choice do not count."""
    gains, switched = [], 0
    for m in _groups(samples.group[which]):
        t, own = samples.seconds[which[m]], np.flatnonzero(samples.default[which[m]])
        if len(own):
            able = (each[:, m] < sure * each[:, m[own[:1]]]).all(axis=0)
            first = int(np.argmin(np.where(able, np.log(each[:, m]).mean(axis=0), np.inf)))
            switched += bool(able.any())
            gains.append(t[own[0]] / t[first] if able.any() else 1.0)
    g = np.array(gains or [1.0])
    slower = int((g < 1 / SLOWER).sum())
    return Switching(sure, len(gains), switched, float(np.exp(np.log(g).mean())), slower, float(g.min()))


def importance(
    model: Model, samples: Samples, which: Array, groups: Mapping[str, tuple[str, ...]], seed: int = 0
) -> dict[str, float]:
    """By how much the mean error of log time grows when a group of kernel features has the values of other
    kernels: what the model reads in them."""
    batch = batch_of(samples, model.scales, which)
    level = np.log(samples.seconds[which])
    usual = float(np.mean(np.abs(np.log(model.of_batch(batch)) - level)))
    found = {}
    for name, features in groups.items():
        columns = [KERNEL_FEATURES.index(f) for f in features]
        order = np.random.default_rng(seed).permutation(len(batch.kernels))
        kernels = batch.kernels.copy()
        kernels[:, columns] = kernels[order][:, columns]
        other = model.of_batch(replace(batch, kernels=kernels))
        found[name] = float(np.mean(np.abs(np.log(other) - level))) - usual
    return found
