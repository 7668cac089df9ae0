"""Inputs for a trial run, told as data: another process makes them without knowing the operator.

Values are of the kinds that `runtime.inputs` gives, but large arrays repeat a pattern: what is timed has no
branches on data, and a million random numbers say as much as a hundred millions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.runtime.arena import Arena
from polyfuse.runtime.arguments import Array
from polyfuse.runtime.inputs import KEPT, index_limits

# A prime: rows of usual lengths do not begin with the same number.
PATTERN = 1_000_003


@dataclass(frozen=True, slots=True)
class Recipe:
    """One input. below: integers from 0 on stay below it; offsets: they rise from 0 to it; mask: mostly 0,
    some large negative numbers; value: of a scalar with a default."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    below: int | None = None
    offsets: bool = False
    mask: bool = False
    value: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Recipe:
        return cls(**{**data, "shape": tuple(data["shape"])})

    def make(self, seed: int) -> Array:
        """The array, in memory as kernels get it."""
        dtype = BY_NAME[self.dtype].numpy
        made = Arena.get().empty(self.shape, dtype)
        count = math.prod(self.shape)
        random = np.random.default_rng(seed)
        if self.value is not None:
            made[...] = self.value
        elif self.offsets:
            steps = np.linspace(0, min(self.below or 0, _most(dtype)), self.shape[-1] if self.shape else 1)
            made[...] = steps.astype(dtype)
        else:
            pattern = self._pattern(min(count, PATTERN), random).astype(dtype)
            flat = made.reshape(-1)
            for start in range(0, count, PATTERN):
                part = flat[start : start + PATTERN]
                part[...] = pattern[: len(part)]
        return made

    def _pattern(self, count: int, random: np.random.Generator) -> Array:
        kind = BY_NAME[self.dtype]
        if kind.is_bool:
            return np.asarray(random.random(count) < KEPT)
        if kind.is_float and self.mask:
            return np.where(random.random(count) < KEPT, 0.0, -1e4)
        if kind.is_float:
            scalar = not self.shape
            return random.uniform(0.1, 1.0, count) if scalar else random.standard_normal(count, np.float32)
        if self.below is not None:
            return random.integers(0, max(1, min(self.below, _most(kind.numpy))), count)
        if not self.shape:
            return random.integers(1, 9, count)  # a count, such as a step
        return random.integers(0 if self.dtype == "u8" else -8, 8, count)


def _most(dtype: np.dtype[Any]) -> int:
    return int(np.iinfo(dtype).max)


def recipes(graph: TensorGraph, sizes: Mapping[str, int]) -> list[Recipe]:
    """One for each input of a graph, in its order."""
    limits = index_limits(graph, sizes)
    found = []
    for t in map(graph.tensor, graph.inputs):
        shape = tuple(evaluate(e, sizes) for e in t.shape)
        limit = limits.get(t.name)
        mask = t.dtype.is_float and bool(shape) and "mask" in t.name.lower()
        value = None if t.default is None else float(t.default)
        below, offsets = (limit.below, limit.offsets) if limit and t.dtype.is_integer else (None, False)
        found.append(Recipe(t.name, t.dtype.name, shape, below, offsets, mask, value))
    return found
