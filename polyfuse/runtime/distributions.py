"""Distributions of float inputs with which an operator's results are numbers.

Normally distributed inputs suit most operators, but a logarithm, a root or a division wants others: a
probability, a variance, boxes whose corners are in order.  Which input wants which is found by trying: the
float64 reference computes the operator at small sizes, and what is NaN or undecided is counted.  So it
follows from what the operator does with its inputs, not from their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyfuse.diagnostics import PolyfuseError
from polyfuse.ir.tensor_graph import Tensor, TensorGraph
from polyfuse.runtime.arguments import Array
from polyfuse.runtime.inputs import default_sizes, fits, instances, make_inputs
from polyfuse.runtime.reference.agreement import MOST_UNDECIDED, unchecked
from polyfuse.runtime.reference.evaluate import evaluate

TRIED = 1 << 18
"""Statement instances of a trial."""
_ROUNDS = 3

Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


@dataclass(frozen=True)
class Distribution:
    """How values of one input are drawn, and what that is called."""

    text: str
    draw: Draw


def between(low: float, high: float) -> Distribution:
    """The same probability for all numbers of a range."""
    return Distribution(
        f"between {low:g} and {high:g}", lambda random, shape: random.uniform(low, high, shape)
    )


def exactly(values: Array) -> Distribution:
    """An array that is there already."""
    return Distribution("given", lambda random, shape: values)


def rising(axis: int) -> Distribution:
    """Numbers above zero that rise along an axis: corners of boxes, borders of intervals, times."""

    def draw(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return np.asarray(np.cumsum(random.uniform(0.1, 1.0, shape), axis=axis))

    return Distribution(f"rising along axis {axis}", draw)


def _shares(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    values = random.uniform(0.1, 1.0, shape)
    return np.asarray(0.95 * values / values.sum(axis=-1, keepdims=True))


def _definite(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    noise = random.uniform(-0.5, 0.5, shape) / max(1, shape[-1])
    return np.asarray(noise + np.swapaxes(noise, -1, -2) + 2.0 * np.eye(shape[-1]))


PROBABILITIES = between(0.05, 0.95)
SHARES = Distribution("positive, with a sum below 1 along the last axis", _shares)
DEFINITE = Distribution("symmetric and positive definite", _definite)
NUMBERS = (PROBABILITIES, between(1.5, 3.0), between(0.002, 0.02))
NEGATIVE = between(-0.95, -0.05)


def candidates(shape: Sequence[int]) -> Iterator[Distribution]:
    """What is tried for an input of a shape, the most usual ones first."""
    yield from NUMBERS
    if shape:
        yield from map(rising, range(len(shape)))
        yield SHARES
    if len(shape) >= 2 and shape[-1] == shape[-2]:
        yield DEFINITE
    yield NEGATIVE


def suitable(
    graph: TensorGraph,
    sizes: Mapping[str, int],
    seed: int,
    given: Mapping[str, Distribution],
    *,
    whole: bool = False,
) -> dict[str, Distribution]:
    """By input: the distributions with which the results are numbers; empty if the usual ones do.

    `given` are those that are chosen already; with `whole` they fit these sizes only. Where none is good,
    the best.
    """
    tried = _trial_sizes(graph, sizes, whole)
    if tried is None:
        return {}
    trial = _Trial(graph, tried, seed, dict(given))
    try:
        return trial.search()
    except PolyfuseError:  # whoever runs the operator reports it
        return {}


def _trial_sizes(graph: TensorGraph, sizes: Mapping[str, int], whole: bool) -> dict[str, int] | None:
    if instances(graph, sizes) <= TRIED:
        return dict(sizes)
    if whole:
        return None
    small = default_sizes(graph, {}, most=TRIED)
    return small if fits(graph, small, TRIED) else None


@dataclass
class _Trial:
    graph: TensorGraph
    sizes: Mapping[str, int]
    seed: int
    given: dict[str, Distribution]

    def search(self) -> dict[str, Distribution]:
        """One input after the other, from the best of the choices that all inputs share."""
        best: dict[str, Distribution] = {}
        least = self._bad(best)
        if least[0] == 0:
            return {}
        free = self._free()
        for choice in self._of_all(free):
            if (bad := self._bad(choice)) < least:
                best, least = choice, bad
        for _ in range(_ROUNDS):
            before = least
            for t in free:
                for choice in self._of_one(t, best):
                    if least[0] and (bad := self._bad(choice)) < least:
                        best, least = choice, bad
            if least == before or not least[0]:
                break
        return self._needed(best, least)

    def _needed(self, best: dict[str, Distribution], least: tuple[int, float]) -> dict[str, Distribution]:
        """The choices without those that change nothing."""
        for name in list(best):
            without = {n: d for n, d in best.items() if n != name}
            if self._bad(without) <= least:
                best = without
        return best

    def _free(self) -> list[Tensor]:
        inputs = map(self.graph.tensor, self.graph.inputs)
        return [t for t in inputs if t.dtype.is_float and t.default is None and t.name not in self.given]

    def _shape(self, t: Tensor) -> tuple[int, ...]:
        return tuple(self._inputs[t.name].shape)

    def _of_all(self, free: Sequence[Tensor]) -> Iterator[dict[str, Distribution]]:
        kinds = [list(candidates(self._shape(t))) for t in free]
        for text in dict.fromkeys(d.text for ds in kinds for d in ds):
            same = {t.name: d for t, ds in zip(free, kinds, strict=True) for d in ds if d.text == text}
            yield same

    def _of_one(self, t: Tensor, chosen: Mapping[str, Distribution]) -> Iterator[dict[str, Distribution]]:
        yield {n: d for n, d in chosen.items() if n != t.name}
        for d in candidates(self._shape(t)):
            yield {**chosen, t.name: d}

    def _bad(self, chosen: Mapping[str, Distribution]) -> tuple[int, float]:
        """(results of which too much cannot be checked, the share of what cannot, of all tensors)."""
        inputs = make_inputs(self.graph, self.sizes, self.seed, {**self.given, **chosen})
        self._inputs: dict[str, Any] = inputs
        found = evaluate(self.graph, self.sizes, inputs, checked=False)
        shares = {n: unchecked(e, inputs) for n, e in found.items()}
        results = [t.name for t in self.graph.tensors if t.name in self.graph.outputs or t.alias is not None]
        return sum(shares[n] >= MOST_UNDECIDED for n in results), sum(shares.values())
