"""The operators of the demo: where each is written, its sizes and inputs, and its counterpart in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import demo_numpy
import numpy as np
from demo_numpy import Arrays

CHANNELS = ("gamma", "beta", "running_mean", "running_var")


class Maker:
    """Seeded inputs."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)

    def normal(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape, dtype=np.float32)

    def positive(self, *shape: int) -> np.ndarray:
        return self.rng.random(shape, dtype=np.float32) + np.float32(0.01)

    def ids(self, count: int, *shape: int) -> np.ndarray:
        return self.rng.integers(0, count, shape)


@dataclass(frozen=True)
class Case:
    """An operator, its sizes (full, quick), its inputs, and the same in NumPy.

    `part` gives the slice of inputs and results on which the reference is evaluated: a choice along an
    axis that the operator treats independently.  `part_of` says in words what that is.
    """

    title: str
    file: str
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    make: Callable[..., Arrays]
    numpy: Callable[[Arrays], Arrays]
    part: Mapping[str, Any]
    part_of: str
    op: str = field(default="")

    @property
    def name(self) -> str:
        return self.op or self.file


def layer_norm_inputs(n: Maker, t: int, h: int) -> Arrays:
    vectors = {name: n.normal(h) for name in ("bias", "gamma", "beta")}
    return {"x": n.normal(t, h), "r": n.normal(t, h), **vectors}


def softmax_inputs(n: Maker, b: int, heads: int, s: int) -> Arrays:
    mask = np.where(n.positive(b, 1, 1, s) < 0.2, np.float32(-1e4), np.float32(0))
    return {"x": n.normal(b, heads, s, s), "mask": mask}


def gelu_inputs(n: Maker, t: int, h: int) -> Arrays:
    return {"x": n.normal(t, h), "bias": n.normal(h)}


def batch_norm_inputs(n: Maker, b: int, c: int, h: int) -> Arrays:
    return {"x": n.normal(b, c, h, h), **{name: n.positive(c) for name in CHANNELS}}


def lstm_inputs(n: Maker, b: int, h: int) -> Arrays:
    return {"gx": n.normal(b, 4 * h), "gh": n.normal(b, 4 * h), "bias": n.normal(4 * h), "c": n.normal(b, h)}


def adamw_inputs(n: Maker, count: int) -> Arrays:
    return {
        "p": n.normal(count),
        "g": n.normal(count),
        "m": n.normal(count),
        "v": n.positive(count),
        "step": 10,
    }


def stencil_inputs(n: Maker, points: int, steps: int) -> Arrays:
    return {"start": n.normal(points), "dt": n.positive(steps) * np.float32(0.4)}


def embedding_inputs(n: Maker, b: int, s: int, words: int, d: int) -> Arrays:
    return {
        "word": n.normal(words, d), "position": n.normal(s, d), "kind": n.normal(2, d),
        "ids": n.ids(words, b, s), "kinds": n.ids(2, b, s), "gamma": n.normal(d), "beta": n.normal(d),
    }  # fmt: skip


def each(step: int, *names: str) -> dict[str, Any]:
    return dict.fromkeys(names, np.s_[::step])


CASES = (
    Case(
        "bias+residual+LayerNorm", "bias_residual_layer_norm", ((4096, 768), (96, 128)),
        layer_norm_inputs, demo_numpy.layer_norm, each(8, "x", "r", "y"), "every 8th row",
    ),
    Case(
        "masked softmax", "masked_softmax", ((8, 12, 128), (2, 3, 32)),
        softmax_inputs, demo_numpy.softmax, {"x": np.s_[:, ::4], "y": np.s_[:, ::4]}, "every 4th head",
    ),
    Case(
        "bias+GELU", "bias_gelu", ((4096, 3072), (96, 256)),
        gelu_inputs, demo_numpy.gelu, each(32, "x", "y"), "every 32nd row", op="bias_gelu",
    ),
    Case(
        "BatchNorm train+ReLU", "batch_norm_train", ((32, 64, 56), (4, 16, 8)),
        batch_norm_inputs, demo_numpy.batch_norm,
        {n: np.s_[:, ::16] if n in "xy" else np.s_[::16] for n in (*"xy", *CHANNELS)},
        "every 16th channel",
    ),
    Case(
        "LSTM cell", "lstm_cell", ((256, 1024), (16, 64)),
        lstm_inputs, demo_numpy.lstm, each(4, "gx", "gh", "c", "h_next", "c_next"), "every 4th row",
    ),
    Case(
        "AdamW", "adamw", ((21_900_000,), (50_000,)),
        adamw_inputs, demo_numpy.adamw, each(64, "p", "g", "m", "v"), "every 64th parameter",
    ),
    Case(
        "stencil over time", "stencil", ((65_536, 256), (1000, 32)),
        stencil_inputs, demo_numpy.stencil, {"dt": np.s_[:16], "u": np.s_[:17]}, "the first 16 steps",
    ),
    Case(
        "embedding+LayerNorm", "embedding_layer_norm", ((8, 512, 30_522, 768), (2, 16, 500, 64)),
        embedding_inputs, demo_numpy.embedding, each(2, "ids", "kinds", "y"), "every 2nd text",
    ),
)  # fmt: skip
