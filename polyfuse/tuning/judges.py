"""How long the code of a variant takes, without running it: by the projected or by the learned model.

    cost="projected"    `cost.projection`, with rates that were measured on this machine
    cost="learned"      `learn.model`, the graph network whose weights come with the package
    cost="auto"         the learned model on cores and for threads where it was better than the other one, on
                        programs that it never saw

A learned model is of one kind of target.  Where there is none, or a variant has no features, the projected
model answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.projection import Rates, project
from polyfuse.driver.lowering import Lowered
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.learn.features import kernel_graphs, learned_cpu
from polyfuse.learn.model import Model, shipped
from polyfuse.options import Options


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of a plan by each member of a model: the networks of a learned one, the projected one alone.

    >>> two = Prediction((1.0, 4.0))
    >>> two.seconds
    2.0
    >>> two.surely_less(Prediction((2.0, 8.0)), 0.6), two.surely_less(Prediction((0.5, 99.0)), 0.6)
    (True, False)
    """

    each: Sequence[float]

    @property
    def seconds(self) -> float:
        """The geometric mean."""
        if len(self.each) == 1:
            return self.each[0]
        return math.exp(math.fsum(map(math.log, self.each)) / len(self.each))

    def surely_less(self, other: Prediction, part: float) -> bool:
        """Does each member say that this takes less than such a part of the other?  Where networks that
        began from other seeds disagree, they know too little of such kernels."""
        return all(a < part * b for a, b in zip(self.each, other.each, strict=False))


def surest(predictions: Sequence[Prediction], part: float) -> int:
    """The place of the fastest plan that is surely below such a part of the first one; else 0, the first."""
    usual = predictions[0]
    able = [k for k, p in enumerate(predictions) if p.surely_less(usual, part)]
    return min(able, key=lambda k: predictions[k].seconds, default=0)


class Judge(Protocol):
    """A cost model of variants."""

    @property
    def name(self) -> str:
        """What tables call its times: ``projected``, ``learned``."""
        ...

    def predict(self, made: Lowered, knobs: CpuKnobs) -> Prediction:
        """Of all kernels of a variant, with the call."""
        ...


@dataclass(frozen=True)
class ProjectedJudge:
    """The projected model."""

    machine: CpuDevice
    rates: Rates
    name: str = "projected"

    def predict(self, made: Lowered, knobs: CpuKnobs) -> Prediction:
        return Prediction((project(made.kernels, self.machine, knobs, self.rates).seconds,))


@dataclass(frozen=True)
class LearnedJudge:
    """A learned model, asked for some threads."""

    model: Model
    threads: int
    name: str = "learned"

    def predict(self, made: Lowered, knobs: CpuKnobs) -> Prediction:
        graphs = kernel_graphs(made.kernels, learned_cpu(knobs.on, self.threads), knobs)
        return Prediction(tuple(map(float, self.model.each([graphs])[:, 0])))


def learned_for(options: Options, target: str, core: Core, threads: int) -> Model | None:
    """The learned model that options want asked, if there is one for a target."""
    if options.cost == "projected" or target != "cpu":
        return None
    found = shipped(target)
    if options.cost == "learned" or found is None:
        return found
    return found if found.wins(core.vector_bytes, threads) else None


def judge_for(options: Options, core: Core, machine: CpuDevice, rates: Rates) -> Judge:
    """Which model tells how long variants take on this machine."""
    model = learned_for(options, "cpu", core, machine.threads)
    return ProjectedJudge(machine, rates) if model is None else LearnedJudge(model, machine.threads)
