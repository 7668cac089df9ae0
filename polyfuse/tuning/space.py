"""Where plans are searched: what lies beside a plan, and walks that look for the one a model likes best.

    Variant --beside--> Variant     a change taken or left; clusters merged or split; a node moved
    annealed, drawn                 walks from plan to plan; each plan is asked of the model once

Walks know no machine and no clock: what a plan takes is told by a function, and whether to go on by another.
The same seed takes the same steps.

Source: annealing over fusion plans by a model, in Kaufman et al., A Learned Performance Model for Tensor
Processing Units, MLSys 2021.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from polyfuse.layers.clustering.cuts import Cut, Cuts
from polyfuse.tuning.table import EVERY, Variant

# How often a step cuts the graph otherwise, where it can be cut.
OF_CUTS = 0.4
# A walk ends where so many steps one after the other came to nothing new.
IDLE = 200
# A step that takes longer by this part is taken with a chance of 1/e: at first, and in the end.
HOT, COLD = 0.2, 0.01
# Changes of a plan that is drawn, at most.
MOST_DRAWN = 4

Seconds = Callable[[Variant], float]
"""What a model says of a plan; infinite where it cannot be made."""


@dataclass(frozen=True)
class Space:
    """Plans of one graph. cuts: how it can be cut, `usual` is how it is; changes: those that can matter."""

    cuts: Cuts
    usual: Cut
    changes: tuple[str, ...]

    @property
    def cuttable(self) -> bool:
        """Has the graph several nodes?"""
        return len(self.cuts.nodes.statements) > 1

    def beside(self, plan: Variant, dice: random.Random) -> Variant:
        """A plan that differs in one step; the same one where the step leads nowhere."""
        if self.cuttable and (not self.changes or dice.random() < OF_CUTS):
            cut = self.cuts.changed(plan.cut or self.usual, dice)
            return plan if cut is None else having(plan, Variant((), cut))
        if not self.changes:
            return plan
        name = dice.choice(self.changes)
        if name in plan.changes:
            return Variant(tuple(c for c in plan.changes if c != name), plan.cut)
        return having(plan, Variant((name,)))

    def drawn(self, dice: random.Random) -> Variant:
        """A plan some steps away from the usual one, its cut drawn."""
        plan = Variant()
        if self.cuttable and dice.random() < OF_CUTS:
            plan = Variant((), self.cuts.drawn(dice, dice.choice((0.3, 0.6, 0.9))))
        for name in dice.sample(self.changes, min(dice.randrange(MOST_DRAWN + 1), len(self.changes))):
            plan = having(plan, Variant((name,)))
        return plan


def having(plan: Variant, step: Variant) -> Variant:
    """A plan with a step taken; what changes the same thing is left."""
    cut = plan.cut if step.joined(Variant((), plan.cut)) is not None else None
    kept = [c for c in plan.changes if Variant((c,)).joined(step) is not None]
    changes = sorted((*kept, *step.changes), key=_PLACES.__getitem__)
    return Variant(tuple(changes), cut if step.cut is None else step.cut)


_PLACES: Mapping[str, int] = {name: k for k, name in enumerate(EVERY)}


@dataclass
class Walk:
    """Plans that were asked about, by the seconds that a model says of each."""

    seconds: Seconds
    known: dict[Variant, float] = field(default_factory=dict)
    idle: int = 0

    def ask(self, plan: Variant) -> float:
        """Of a plan, asked once."""
        if plan in self.known:
            self.idle += 1
        else:
            self.idle = 0
            self.known[plan] = self.seconds(plan)
        return self.known[plan]

    @property
    def best(self) -> Variant:
        """The one with the fewest seconds; of several the first."""
        return min(self.known, key=self.known.__getitem__)

    @property
    def ranked(self) -> list[Variant]:
        """By rising seconds, without those that cannot be made."""
        able = [v for v, s in self.known.items() if math.isfinite(s)]
        return sorted(able, key=self.known.__getitem__)


Steps = Iterator[float]
"""Before each step which part of the search is over, from 0 to 1; it ends with the search."""


def first_steps(walk: Walk, plans: Sequence[Variant], steps: Steps) -> None:
    """The usual plan, and those that differ from it in one change."""
    for plan, _ in zip(plans, steps, strict=False):
        walk.ask(plan)


def annealed(space: Space, walk: Walk, dice: random.Random, steps: Steps) -> None:
    """From the best plan on, to plans beside the present one: always to a faster one, by chance to a slower
    one, the less likely the later."""
    at = walk.best
    for over in steps:
        other = space.beside(at, dice)
        slower = _slower(walk.known[at], walk.ask(other))
        heat = HOT * (COLD / HOT) ** over
        if slower <= 0 or dice.random() < math.exp(-slower / heat):
            at = other
        if walk.idle >= IDLE:
            break


def _slower(here: float, there: float) -> float:
    """The logarithm of how many times as long it takes there; what cannot be made takes infinitely long."""
    if not math.isfinite(there):
        return math.inf
    return math.log(max(there, 1e-12) / max(here, 1e-12)) if math.isfinite(here) else -math.inf


def drawn(space: Space, walk: Walk, dice: random.Random, steps: Steps) -> None:
    """Plans that have nothing to do with each other."""
    for _ in steps:
        walk.ask(space.drawn(dice))
        if walk.idle >= IDLE:
            break


WALKS: Mapping[str, Callable[[Space, Walk, random.Random, Steps], None]] = {
    "anneal": annealed,
    "random": drawn,
}
