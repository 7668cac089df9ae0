"""Calls of the operators in `examples/operators`, each at an ordinary size and at an odd one.

`CASES` is a list of `OperatorCase`; what NumPy says of them is in `operator_checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import operator_checks
from targets import Call

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.ir.dtypes import F8E4M3, F8E5M2
from polyfuse.ir.tensor_graph import TensorGraph

Array = npt.NDArray[Any]
FOLDER = Path(__file__).parents[2] / "examples" / "operators"


@cache
def parsed(file: str) -> pf.Program:
    return pf.parse(FOLDER / f"{file}.pf")


@dataclass(frozen=True)
class OperatorCase:
    """One call: arrays and scalars by name, and size parameters.

    `tolerance` is how far float64 may be from NumPy: constants of programs are numbers of f32.
    """

    file: str
    op: str
    inputs: Mapping[str, Any]
    given: Mapping[str, int] = field(default_factory=dict)
    tolerance: float = 2e-6

    def __str__(self) -> str:
        shapes = "-".join("x".join(map(str, np.shape(a))) or "scalar" for a in self.inputs.values())
        return f"{self.op}-{shapes}{''.join(f'-{n}{v}' for n, v in self.given.items())}"

    def graph(self) -> TensorGraph:
        """Its tensor graph, sizes open, without the optional tensors that are no inputs."""
        op = parsed(self.file).op(self.op)
        absent = [p.name for p in op.signature.params if p.optional and p.name not in self.inputs]
        return op.without(*absent).graph()

    def sizes(self, graph: TensorGraph) -> dict[str, int]:
        return bind_sizes(graph, {n: np.shape(a) for n, a in self.inputs.items()}, self.given)

    def bound(self) -> Call:
        """The graph with sizes and inputs, as tests of layers and targets call it."""
        graph = self.graph()
        inputs = {n: np.asarray(a, graph.tensor(n).dtype.numpy) for n, a in self.inputs.items()}
        return Call(str(self), self.op, graph, self.sizes(graph), inputs)

    def expected(self) -> dict[str, Array]:
        """What NumPy says: results and inout parameters by name, in float64."""
        wide = {n: np.asarray(a) for n, a in self.inputs.items()}
        wide = {n: a.astype("f8") if a.dtype.kind == "f" else a for n, a in wide.items()}
        found = getattr(operator_checks, self.op)(**wide, **self.given)
        if not isinstance(found, dict):
            (result,) = (r.name for r in parsed(self.file).op(self.op).signature.results)
            found = {result: found}
        return {n: np.asarray(a) for n, a in found.items()}

    def call(self, **how: Any) -> dict[str, Array]:
        """Compiles and runs it on copies of the inputs, as users do; `how` goes to `pf.compile`."""
        arrays = {n: np.array(a) if np.ndim(a) else a for n, a in self.inputs.items()}
        compiled = pf.compile(parsed(self.file), self.op, **how)
        found = compiled(**arrays, **self.given)
        results = found if isinstance(found, tuple) else () if found is None else (found,)
        names = [r.name for r in compiled.signature.results]
        inouts = {p.name: arrays[p.name] for p in compiled.signature.params if p.inout}
        return {**dict(zip(names, map(np.asarray, results), strict=True)), **inouts}


CASES: list[OperatorCase] = []
_rng = np.random.default_rng(20261127)


def normal(*shape: int) -> Array:
    return _rng.standard_normal(shape).astype("f4")


def positive(*shape: int) -> Array:
    return _rng.uniform(0.2, 1.8, shape).astype("f4")


def uniform(*shape: int) -> Array:
    return _rng.uniform(0, 1, shape).astype("f4")


def integers(high: int, *shape: int) -> Array:
    return _rng.integers(0, high, shape)


def add(
    op: str,
    *calls: Mapping[str, Any],
    given: tuple[Mapping[str, int], ...] = ({}, {}),
    file: str = "",
    tolerance: float = 2e-6,
) -> None:
    for inputs, sizes in zip(calls, given, strict=True):
        CASES.append(OperatorCase(file or op, op, inputs, sizes, tolerance))


# --- images -----------------------------------------------------------------------------------------------

add(
    "pooling",
    {"x": normal(2, 4, 16, 16)},
    {"x": normal(1, 3, 11, 7)},
    given=({}, {"K": 3, "S": 2, "P": 1}),
)
add(
    "convolution",
    {"x": normal(2, 4, 16, 16), "w": normal(8, 4, 3, 3), "bias": normal(8)},
    {"x": normal(1, 6, 13, 9), "w": normal(9, 2, 3, 2)},
    given=({"P": 1}, {"S": 3, "P": 2, "D": 2, "G": 3}),
)
add(
    "group_norm",
    {"x": normal(2, 16, 8, 8), "gamma": normal(16), "beta": normal(16)},
    {"x": normal(3, 21, 3, 5), "gamma": normal(21)},
    given=({"G": 4}, {"G": 7}),
)


def regions(images: int, count: int, height: float, width: float) -> Array:
    """Some of them go over the edges."""
    begin = _rng.uniform((-2, -2), (width - 2, height - 2), (count, 2))
    end = begin + _rng.uniform(1, (width, height), (count, 2))
    return np.concatenate([integers(images, count, 1), begin, end], 1).astype("f4")


add(
    "roi_align",
    {"x": normal(2, 4, 16, 16), "roi": regions(2, 8, 16, 16)},
    {"x": normal(3, 3, 7, 11), "roi": regions(3, 5, 14, 22), "scale": np.float32(0.5)},
    given=({"P": 4}, {"P": 3, "S": 3}),
    tolerance=1e-5,
)


def deformed(n: int, c: int, m: int, k: int, size: tuple[int, int], out: tuple[int, int]) -> dict[str, Array]:
    return {
        "x": normal(n, c, *size),
        "offset": normal(n, 2 * k * k, *out),
        "weight": normal(m, c, k, k),
    }


add(
    "deformable_sampling",
    {**deformed(2, 4, 4, 3, (8, 8), (8, 8)), "mask": positive(2, 9, 8, 8)},
    deformed(1, 3, 5, 2, (9, 7), (5, 4)),
    given=({}, {"K": 2, "S": 2, "P": 1}),
    tolerance=1e-5,
)
add(
    "ssim",
    {"x": positive(2, 3, 16, 16), "y": positive(2, 3, 16, 16)},
    {
        "x": positive(3, 1, 9, 13),
        "y": positive(3, 1, 9, 13),
        "range": np.float32(2),
        "sigma": np.float32(0.8),
    },
    given=({}, {"K": 5}),
)

# --- boxes ------------------------------------------------------------------------------------------------


def boxes(count: int, spread: float) -> Array:
    begin = _rng.uniform(0, spread, (count, 2))
    return np.concatenate([begin, begin + _rng.uniform(2, 6, (count, 2))], 1).astype("f4")


add(
    "ciou",
    {"box": boxes(32, 4), "target": boxes(32, 4)},
    {"box": boxes(7, 9), "target": boxes(7, 9)},
)
add("nms", {"box": boxes(32, 6)}, {"box": boxes(13, 4), "most": np.float32(0.3)})

# --- sequences and states ---------------------------------------------------------------------------------


def log_softmax(x: Array) -> Array:
    return (x - np.log(np.exp(x).sum(-1, keepdims=True))).astype("f4")


add(
    "ctc",
    {
        "logp": log_softmax(normal(8, 3, 4)),
        "target": 1 + integers(3, 3, 3),
        "steps": np.array([8, 6, 7]),
        "length": np.array([3, 0, 2]),
    },
    {
        "logp": log_softmax(normal(7, 2, 3)),
        "target": np.array([[1, 1, 2, 1, 0], [2, 1, 2, 2, 1]]),
        "steps": np.array([6, 7]),
        "length": np.array([4, 5]),
    },
    tolerance=1e-5,
)
add(
    "viterbi",
    {"first": normal(4), "step": normal(4, 4), "seen": normal(4, 6, 4)},
    {"first": normal(3), "step": normal(3, 3), "seen": normal(5, 7, 3)},
)


def tracks(b: int, d: int, m: int) -> dict[str, Array]:
    root, noise = normal(b, d, d), normal(d, d)
    return {
        "x": normal(b, d),
        "p": (root @ root.transpose(0, 2, 1) + np.eye(d)).astype("f4"),
        "f": (np.eye(d) + 0.3 * normal(d, d)).astype("f4"),
        "q": (0.1 * noise @ noise.T).astype("f4"),
        "h": normal(m, d),
        "r": positive(m),
        "z": normal(b, m),
    }


add("kalman_step", tracks(8, 4, 2), tracks(3, 5, 3), tolerance=1e-5)
add(
    "connected_components",
    {"label": np.arange(32), "src": integers(32, 24), "dst": integers(32, 24)},
    {"label": integers(13, 13), "src": integers(13, 7), "dst": integers(13, 7)},
)


def weights(n: int) -> Array:
    w = positive(n)
    return (w / w.sum()).astype("f4")


add(
    "sinkhorn",
    {"cost": positive(16, 16), "a": weights(16), "b": weights(16), "eps": np.float32(0.5)},
    {"cost": positive(7, 11), "a": weights(7), "b": weights(11), "eps": np.float32(0.3)},
    given=({"T": 4}, {"T": 5}),
    tolerance=1e-4,
)

# --- orders -----------------------------------------------------------------------------------------------

add(
    "router",
    {"logits": normal(32, 8), "x": normal(32, 16)},
    {"logits": normal(13, 3), "x": normal(13, 5)},
    given=({"C": 8}, {"C": 7}),
)
add(
    "lovasz",
    {"x": normal(32, 4), "label": integers(4, 32)},
    {"x": normal(11, 5), "label": 1 + integers(2, 11)},
)
add(
    "top_p",
    {"x": normal(8, 32), "u": uniform(8)},
    {"x": normal(5, 13), "u": uniform(5), "most": np.float32(0.6), "temperature": np.float32(0.7)},
)
add(
    "beam_step",
    {"logp": log_softmax(normal(4, 4, 16)), "score": normal(4, 4), "seen": integers(16, 4, 4, 5)},
    {
        "logp": log_softmax(normal(2, 3, 7)),
        "score": normal(2, 3),
        "seen": integers(2, 2, 3, 1),
        "end": np.int64(1),
    },
)

# --- sparse and quantised ---------------------------------------------------------------------------------


def rows_of(count: int, elements: int) -> Array:
    """Where rows begin and the last one ends; some are empty."""
    return np.concatenate([[0], np.sort(integers(elements + 1, count - 1)), [elements]])


add(
    "ragged_softmax",
    {"x": normal(64), "start": rows_of(8, 64)},
    {"x": normal(37), "start": np.array([0, 0, 30, 30, 31, 37, 37])},
)
add(
    "csr_attention",
    {
        "q": normal(16, 2, 8),
        "k": normal(16, 2, 8),
        "v": normal(16, 2, 8),
        "ptr": rows_of(16, 64),
        "col": integers(16, 64),
    },
    {
        "q": normal(5, 3, 7),
        "k": normal(9, 3, 7),
        "v": normal(9, 3, 7),
        "ptr": rows_of(5, 23),
        "col": integers(9, 23),
    },
)


def packed(k: int, n: int, groups: int, m: int) -> dict[str, Array]:
    return {
        "x": normal(m, k).astype("f2"),
        "q": integers(2**32, k // 8, n).astype("u4"),
        "scale": (0.1 * positive(groups, n)).astype("f2"),
        "zero": integers(2**32, groups, n // 8).astype("u4"),
    }


add(
    "int4_matmul",
    packed(64, 32, 4, 8),
    packed(24, 40, 2, 5),
    given=({"G": 16}, {"G": 12}),
    tolerance=1e-3,
)

# --- numbers ----------------------------------------------------------------------------------------------

add("fft", {"re": normal(8, 16), "im": normal(8, 16)}, {"re": normal(3, 16), "im": normal(3, 16)})
add(
    "butterfly",
    {"re": normal(8, 32), "im": normal(8, 32)},
    {"re": normal(3, 30), "im": normal(3, 30)},
    given=({"M": 16}, {"M": 3}),
    file="fft",
)
add(
    "quaternion_rotation",
    {"q": normal(8, 4), "p": normal(8, 16, 3)},
    {"q": normal(5, 4), "p": normal(5, 7, 3)},
)
add(
    "mel_filter_bank",
    {"power": positive(16, 129)},
    {"power": positive(7, 101), "rate": np.float32(8000), "low": np.float32(50)},
    given=({"M": 20}, {"M": 13}),
    tolerance=1e-5,
)

# --- losses -----------------------------------------------------------------------------------------------

add(
    "histogram_loss",
    {"x": normal(16, 8), "label": integers(4, 16)},
    {"x": normal(11, 5), "label": integers(3, 11)},
    given=({}, {"R": 14}),
    tolerance=1e-5,
)
add(
    "focal",
    {"x": normal(16, 8), "target": integers(2, 16, 8).astype("f4")},
    {"x": normal(7, 3), "target": integers(2, 7, 3).astype("f4"), "gamma": np.float32(1.5)},
)
add(
    "arcface",
    {"x": normal(16, 8), "centre": normal(10, 8), "label": integers(10, 16)},
    {"x": normal(7, 5), "centre": -normal(3, 5), "label": integers(3, 7), "margin": np.float32(0.9)},
    tolerance=1e-5,
)
add(
    "dice",
    {"x": normal(2, 4, 8, 8), "label": integers(4, 2, 8, 8)},
    {"x": normal(3, 3, 5, 7), "label": integers(2, 3, 5, 7), "smooth": np.float32(0.1)},
)

# --- steps of optimizers ----------------------------------------------------------------------------------

add(
    "lars",
    {"p": normal(64), "g": normal(64), "m": normal(64)},
    {"p": normal(37), "g": normal(37), "m": normal(37), "lr": np.float32(0.3)},
)
add(
    "adafactor",
    {"p": normal(16, 32), "g": normal(16, 32), "r": positive(16), "c": positive(32), "step": np.int64(3)},
    {"p": normal(7, 5), "g": 9 * normal(7, 5), "r": positive(7), "c": positive(5), "step": np.int64(1)},
)
add(
    "muon", {"g": normal(8, 16), "m": normal(8, 16)}, {"g": normal(5, 11), "m": normal(5, 11)}, tolerance=1e-5
)
add("newton_schulz", {"x": 0.1 * normal(8, 16)}, {"x": 0.2 * normal(7, 5)}, file="muon", tolerance=1e-5)
add(
    "ema",
    {"average": normal(64), "p": normal(64), "step": np.int64(3)},
    {"average": normal(37), "p": normal(37), "step": np.int64(10**6), "decay": np.float32(0.99)},
)

# --- bits -------------------------------------------------------------------------------------------------

_OTHER = {"seed": np.uint64(2**64 - 3), "stream": np.uint64(2**40 + 1), "p": np.float32(0.3)}
add(
    "dropout_norm",
    {"x": normal(8, 64), "r": normal(8, 64), "gamma": normal(64), "beta": normal(64), "seed": np.uint64(5)},
    {"x": normal(3, 37), "r": normal(3, 37), "gamma": normal(37), "beta": normal(37), **_OTHER},
    file="rng_dropout",
)


def gradient_of_norm(t: int, h: int) -> dict[str, Array]:
    numbers = {"dy": normal(t, h), "s": normal(t, h), "gamma": normal(h)}
    return {**numbers, "mu": 0.1 * normal(t), "rstd": positive(t)}


add(
    "dropout_norm_backward",
    {**gradient_of_norm(8, 64), "seed": np.uint64(5)},
    {**gradient_of_norm(3, 37), **_OTHER},
    file="rng_dropout",
    tolerance=1e-5,
)

add("fp8_quantise", {"x": normal(8, 64)}, {"x": 1e-3 * normal(5, 37)}, file="fp8_matmul")


def in_eighths(m: int, n: int, k: int) -> dict[str, Array]:
    x, w = normal(m, k).astype(F8E5M2.numpy), normal(n, k).astype(F8E4M3.numpy)
    return {"x": x, "w": w, "of_x": positive(m), "of_w": positive(n)}


add("fp8_matmul", in_eighths(8, 16, 64), in_eighths(3, 5, 37))
