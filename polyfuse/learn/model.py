"""Seconds of kernels, predicted by a graph network; NumPy is all it needs.

    node      = relu(embedding of its opcode, its features)
    layer     = node + relu(node, mean of its producers, mean of its consumers)      GraphSAGE, some times
    kernel    = mean, max and sum over its nodes, with features of the kernel
    log(time) = feed forward (kernel)  +  log(projected time), where the model is a correction of that one

A sample is one kernel or the kernels of a plan: their times, and that of the call, add up.  `forward` is
written once for arrays of NumPy and tensors of PyTorch (`Operations`): what was trained is what is asked.

Source: Kaufman et al., A Learned Performance Model for Tensor Processing Units, MLSys 2021.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polyfuse.diagnostics import PolyfuseError
from polyfuse.learn.features import FEATURES_VERSION, KERNEL_FEATURES, NODE_FEATURES, OPCODES, KernelGraph

Array = NDArray[Any]
Weights = Mapping[str, Any]

POOLS = ("mean", "max", "sum")
PROJECTED = "projected ns"
"""The kernel feature that a residual model corrects: the time by `polyfuse.cost.projection`."""
# After scaling no column counts for more than so many standard deviations.
MOST = 6.0
# A sum over nodes is scaled by this, so that it is of the size of a mean.
SUM = 1 / 16
# Logarithms of seconds that a prediction may have.
LEAST_LOG, MOST_LOG = -19.0, 6.0
CALL_S = 1e-6
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Design:
    """What a model is made of: the ablations are others of these.

    layers: of GraphSAGE, 0 for nodes that do not see each other.  pooling: of `POOLS`; none leaves the nodes
    out.  kernel: are features of kernels seen?  head: widths of the hidden layers of the feed-forward part;
    none makes it linear.  residual: is the projected time corrected, or the time told from nothing?
    """

    layers: int = 2
    width: int = 32
    embedding: int = 8
    pooling: tuple[str, ...] = POOLS
    kernel: bool = True
    head: tuple[int, ...] = (32,)
    residual: bool = True

    @property
    def pooled(self) -> int:
        """Columns that the head gets."""
        return self.width * len(self.pooling) + len(KERNEL_FEATURES) * self.kernel

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by its name."""
        found: dict[str, tuple[int, ...]] = {"call": ()}
        if self.pooling:
            found["opcodes"] = (len(OPCODES), self.embedding)
            found["nodes"] = (self.embedding + len(NODE_FEATURES), self.width)
            found["nodes.bias"] = (self.width,)
            for k in range(self.layers):
                found[f"layer{k}"] = (3 * self.width, self.width)
                found[f"layer{k}.bias"] = (self.width,)
        widths = (self.pooled, *self.head, 1)
        for k, (a, b) in enumerate(pairwise(widths)):
            found[f"head{k}"] = (a, b)
            found[f"head{k}.bias"] = (b,)
        return found


# --- features as columns of a batch -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """How columns are made alike: by their mean and deviation in the training data. What is the same in all
    of it, such as a core, tells nothing of others."""

    mean: Array
    deviation: Array

    @classmethod
    def of(cls, columns: Array) -> Scale:
        """Of what the training data has."""
        level = columns.astype(np.float64)
        mean, deviation = level.mean(axis=0), level.std(axis=0)
        return cls(mean.astype(np.float32), np.where(deviation > 1e-6, deviation, np.inf).astype(np.float32))

    def __call__(self, columns: Array) -> Array:
        return np.clip((columns.astype(np.float32) - self.mean) / self.deviation, -MOST, MOST)


@dataclass(frozen=True, slots=True)
class Scales:
    """Of nodes and of kernels."""

    nodes: Scale
    kernels: Scale

    @classmethod
    def of(cls, graphs: Sequence[KernelGraph]) -> Scales:
        """Of the graphs of the training data."""
        return cls(Scale.of(_rows(graphs)), Scale.of(np.stack([g.kernel for g in graphs])))


def _rows(graphs: Sequence[KernelGraph]) -> Array:
    return np.concatenate([np.zeros((0, len(NODE_FEATURES)), np.float32), *(g.nodes for g in graphs)])


@dataclass(frozen=True)
class Batch:
    """Graphs side by side, and which of them make up each sample. Edges are there twice, ordered by where
    they end and by where they begin; `graph_of` and `sample_of` rise."""

    opcodes: Any
    nodes: Any
    into: tuple[Any, Any]
    out_of: tuple[Any, Any]
    degrees: tuple[Any, Any]
    graph_of: Any
    sizes: Any
    kernels: Any
    projected: Any
    members: Any
    sample_of: Any
    samples: int

    @classmethod
    def of(
        cls, graphs: Sequence[KernelGraph], scales: Scales, members: Array, sample_of: Array, samples: int
    ) -> Batch:
        """`members` are places in `graphs`, `sample_of` says of each whose kernel it is."""
        counts = np.array([len(g.opcodes) for g in graphs], np.int64)
        starts = np.cumsum(counts) - counts
        edges = [g.edges.astype(np.int64) + s for g, s in zip(graphs, starts, strict=True)]
        both = np.concatenate([np.zeros((2, 0), np.int64), *edges], axis=1)
        total = int(counts.sum())
        kernels = np.stack([g.kernel for g in graphs])
        return cls(
            np.concatenate([np.zeros(0, np.int64), *(g.opcodes for g in graphs)]).astype(np.int64),
            scales.nodes(_rows(graphs)),
            _ordered(both[0], both[1]),
            _ordered(both[1], both[0]),
            (_degree(both[1], total), _degree(both[0], total)),
            np.repeat(np.arange(len(graphs)), counts),
            np.maximum(counts, 1).astype(np.float32)[:, None],
            scales.kernels(kernels),
            _log_seconds(kernels[:, KERNEL_FEATURES.index(PROJECTED)]),
            members,
            sample_of,
            samples,
        )


def _log_seconds(feature: Array) -> Array:
    """Of log2(1 + ns)."""
    ns: Array = np.exp2(feature.astype(np.float32)) - 1
    return np.log(np.maximum(ns, 1.0)) + np.float32(np.log(1e-9))


def _ordered(ends: Array, at: Array) -> tuple[Array, Array]:
    order = np.argsort(at, kind="stable")
    return ends[order], at[order]


def _degree(at: Array, count: int) -> Array:
    return np.maximum(np.bincount(at, minlength=count), 1).astype(np.float32)[:, None]


# --- the network ------------------------------------------------------------------------------------------


class Operations(Protocol):
    """What `forward` needs of NumPy or PyTorch. `index` rises in `sums` and `most`."""

    def relu(self, x: Any) -> Any: ...
    def join(self, parts: Sequence[Any]) -> Any:
        """Columns side by side."""
        ...

    def sums(self, x: Any, index: Any, count: int) -> Any:
        """Of the rows with each index; 0 where there is none."""
        ...

    def most(self, x: Any, index: Any, count: int) -> Any:
        """The maximum of these; 0 where there is none."""
        ...

    def exp(self, x: Any) -> Any: ...
    def log(self, x: Any) -> Any: ...
    def within(self, x: Any, low: float, high: float) -> Any: ...
    def drop(self, x: Any) -> Any:
        """While a model is trained, without some of its entries."""
        ...


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of equal numbers in an index that rises, longest first: where each begins and which number it
    has; of so many, `longer[k]`, there is a row k + 1 after the first."""

    starts: Array
    numbers: Array
    longer: Array

    @classmethod
    def of(cls, index: Array) -> _Runs:
        starts = np.flatnonzero(np.diff(index, prepend=-1))
        lengths = np.diff(starts, append=len(index))
        order = np.argsort(-lengths, kind="stable")
        above = np.arange(1, lengths.max(initial=1))
        longer = len(lengths) - np.searchsorted(lengths[order][::-1], above, side="right")
        return cls(starts[order], index[starts[order]], longer)


# In longer runs `reduceat` is as fast as a step for each row.
LONG_RUN = 48


class NumPy:
    """The operations on arrays. What it knows of an index it keeps: one for each batch."""

    def __init__(self) -> None:
        self._runs: dict[int, _Runs] = {}

    def relu(self, x: Array) -> Array:
        return np.maximum(x, 0.0)

    def join(self, parts: Sequence[Array]) -> Array:
        return np.concatenate(parts, axis=1)

    def sums(self, x: Array, index: Array, count: int) -> Array:
        return self._reduced(np.add, x, index, count)

    def most(self, x: Array, index: Array, count: int) -> Array:
        return self._reduced(np.maximum, x, index, count)

    def exp(self, x: Array) -> Array:
        return np.exp(x)

    def log(self, x: Array) -> Array:
        return np.log(x)

    def within(self, x: Array, low: float, high: float) -> Array:
        return np.clip(x, low, high)

    def drop(self, x: Array) -> Array:
        return x

    def _reduced(self, how: np.ufunc, x: Array, index: Array, count: int) -> Array:
        found = np.zeros((count, *x.shape[1:]), x.dtype)
        if id(index) not in self._runs:
            self._runs[id(index)] = _Runs.of(index)
        runs = self._runs[id(index)]
        if len(runs.longer) > LONG_RUN:
            starts = np.sort(runs.starts)
            found[index[starts]] = how.reduceat(x, starts, axis=0)
            return found
        made = x[runs.starts]
        for row, some in enumerate(runs.longer, 1):
            how(made[:some], x[runs.starts[:some] + row], out=made[:some])
        found[runs.numbers] = made
        return found


def forward(weights: Weights, design: Design, batch: Batch, ops: Operations) -> Any:
    """Logarithms of the seconds of each sample."""
    kernels = ops.exp(_kernels(weights, design, batch, ops))
    call = ops.exp(weights["call"])
    return ops.log(ops.sums(kernels[batch.members], batch.sample_of, batch.samples) + call)


def _kernels(weights: Weights, design: Design, batch: Batch, ops: Operations) -> Any:
    """The same of each kernel by itself."""
    columns = [_pooled(weights, design, batch, ops)] if design.pooling else []
    x = ops.join([*columns, batch.kernels] if design.kernel else columns)
    for k in range(len(design.head)):
        x = ops.drop(ops.relu(x @ weights[f"head{k}"] + weights[f"head{k}.bias"]))
    last = len(design.head)
    found = (x @ weights[f"head{last}"] + weights[f"head{last}.bias"])[:, 0]
    return ops.within(found + batch.projected if design.residual else found, LEAST_LOG, MOST_LOG)


def _pooled(weights: Weights, design: Design, batch: Batch, ops: Operations) -> Any:
    h = ops.join([weights["opcodes"][batch.opcodes], batch.nodes])
    h = ops.relu(h @ weights["nodes"] + weights["nodes.bias"])
    count = len(batch.opcodes)
    for k in range(design.layers):
        around = [
            ops.sums(h[ends], at, count) / degree
            for (ends, at), degree in zip((batch.into, batch.out_of), batch.degrees, strict=True)
        ]
        h = h + ops.relu(ops.join([h, *around]) @ weights[f"layer{k}"] + weights[f"layer{k}.bias"])
    sums = ops.sums(h, batch.graph_of, len(batch.sizes))
    pools = {"mean": lambda: sums / batch.sizes, "sum": lambda: sums * SUM}
    pools["max"] = lambda: ops.most(h, batch.graph_of, len(batch.sizes))
    return ops.join([pools[name]() for name in design.pooling])


# --- a trained model --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A design with weights. Several members, trained from different seeds, are asked together: the mean of
    the logarithms counts.  `about`: what it was trained on, and how good it was there."""

    design: Design
    scales: Scales
    members: tuple[Weights, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def wins(self, vector_bytes: int, threads: int) -> bool:
        """Was it better than the projected model on programs that it never saw, on such cores, with so many
        threads?"""
        judged = vector_bytes in self.about.get("vector bytes", ()) and threads in self.about.get(
            "threads", ()
        )
        return judged and bool(self.about.get("wins"))

    def seconds(self, plans: Sequence[Sequence[KernelGraph]]) -> Array:
        """Predicted time of each plan, a list of its kernels; of one batch, whatever their number."""
        return _mean(self.each(plans))

    def each(self, plans: Sequence[Sequence[KernelGraph]]) -> Array:
        """The same by each member: (members, plans)."""
        if not plans:
            return np.zeros((len(self.members), 0))
        places: dict[int, int] = {}
        graphs: list[KernelGraph] = []
        for g in (g for plan in plans for g in plan):
            if places.setdefault(id(g), len(graphs)) == len(graphs):
                graphs.append(g)
        members = np.array([places[id(g)] for plan in plans for g in plan], np.int64)
        sample_of = np.repeat(np.arange(len(plans)), [len(plan) for plan in plans])
        if not graphs:
            calls = np.array([[w["call"]] for w in self.members], np.float64)
            return np.exp(np.repeat(calls, len(plans), axis=1))
        return self.each_of_batch(Batch.of(graphs, self.scales, members, sample_of, len(plans)))

    def of_batch(self, batch: Batch) -> Array:
        """Seconds of the samples of a batch."""
        return _mean(self.each_of_batch(batch))

    def each_of_batch(self, batch: Batch) -> Array:
        """The same by each member: (members, samples)."""
        ops = NumPy()
        found = [forward(w, self.design, batch, ops) for w in self.members]
        return np.exp(np.array(found, np.float64))

    def save(self, path: Path) -> None:
        """Write it as one file."""
        told = {
            "format": FORMAT,
            "features": FEATURES_VERSION,
            "design": asdict(self.design),
            "about": dict(self.about),
        }
        arrays = {f"{k}/{name}": np.asarray(x) for k, w in enumerate(self.members) for name, x in w.items()}
        for part in ("nodes", "kernels"):
            scale = getattr(self.scales, part)
            arrays |= {f"{part}/{n}": getattr(scale, n) for n in ("mean", "deviation")}
        np.savez_compressed(path, told=np.array(json.dumps(told)), **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Model:
        """Raises PolyfuseError PF775 for a file that is none, or of other features than these."""
        try:
            with np.load(path, allow_pickle=False) as found:
                arrays = {name: found[name] for name in found.files}
            told = json.loads(str(arrays.pop("told")))
            same = (told["format"], told["features"]) == (FORMAT, FEATURES_VERSION)
        except (OSError, ValueError, KeyError) as e:
            raise _unusable(path, str(e)) from None
        if not same:
            raise _unusable(path, f"it has features of version {told['features']}, not {FEATURES_VERSION}")
        return cls._read(path, told, arrays)

    @classmethod
    def _read(cls, path: Path, told: Mapping[str, Any], arrays: Mapping[str, Array]) -> Model:
        lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in told["design"].items()}
        design = Design(**lists)
        shapes = design.shapes()
        count = len({name.partition("/")[0] for name in arrays}) - 2
        try:
            members = tuple({n: arrays[f"{k}/{n}"] for n in shapes} for k in range(count))
            scales = [
                Scale(*(arrays[f"{part}/{n}"] for n in ("mean", "deviation")))
                for part in ("nodes", "kernels")
            ]
        except KeyError as e:
            raise _unusable(path, f"it lacks {e}") from None
        wrong = [n for w in members for n, s in shapes.items() if w[n].shape != s]
        if wrong:
            raise _unusable(path, f"{wrong[0]} has another shape")
        return cls(design, Scales(*scales), members, told["about"])


def _mean(each: Array) -> Array:
    """The geometric mean of what members say."""
    found: Array = np.exp(np.log(each).mean(axis=0))
    return found


def _unusable(path: Path, why: str) -> PolyfuseError:
    return PolyfuseError(
        f"{path} is no model of times that this version can ask: {why}",
        code="PF775",
        hint="train one: `python -m benchmarks.learned train`",
    )


@cache
def shipped(kind: str = "cpu") -> Model | None:
    """The model that came with the package for one kind of target; None where there is none."""
    path = Path(str(files("polyfuse.learn"))) / f"{kind}.npz"
    return Model.load(path) if path.exists() else None
