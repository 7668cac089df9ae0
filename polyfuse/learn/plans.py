"""Ways of compiling one operator that samples are drawn from: variants of its code, and plans of its fusion.

A variant is one that tuning would try (`tuning.candidates.proposals`), or two of them.  A plan cuts the graph
in another way: by other layers, other limits, or by a cut that is drawn (`DrawnCuts`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from polyfuse.decisions import Decision
from polyfuse.driver.pipeline import Compilation
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.target import Target, as_target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering, search_of
from polyfuse.layers.clustering.quotient import Quotient
from polyfuse.layers.clustering.search import bits
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.tuning.table import Variant


@dataclass(frozen=True, slots=True)
class DrawnCuts(Clustering):
    """A graph cut at random: nodes that must stay together merge along data flow, each pair by chance."""

    seed: int = 0
    joined: float = 0.5

    def clusters(
        self,
        graph: TensorGraph,
        decisions: list[Decision],
        machine: Target | int = 2,
        remote: bool = True,
        core: Core | None = None,
        strided: frozenset[str] = frozenset(),
    ) -> list[tuple[str, ...]]:
        """The clusters of a graph; contractions are apart."""
        nodes = search_of(graph, as_target(machine), self.most).nodes
        dice = random.Random(self.seed)
        found = Quotient(len(nodes.statements), nodes.edges)
        readers = [[*bits(s)] for s in nodes.shared]
        pairs = [*nodes.edges, *(tuple(sorted(dice.sample(r, 2))) for r in readers if len(r) > 1)]
        dice.shuffle(pairs)
        for pair in pairs:
            alone = any(nodes.alone >> k & 1 for k in pair)
            a, b = (found.group(k) for k in pair)
            if not alone and dice.random() < self.joined and found.can_merge(a, b):
                found.merge(a, b)
        names = [s.name for s in graph.statements]
        groups = [sorted(s for k in members for s in nodes.statements[k]) for members in found.ordered()]
        decisions.append(Decision("clusters", graph.name, True, f"{len(groups)} clusters, drawn"))
        return [tuple(names[s] for s in members) for members in groups]


def pairs(changes: Sequence[str], seed: str) -> Iterator[Variant]:
    """Two changes at once, in an order that is drawn, where both can be made."""
    dice = random.Random(f"pairs {seed}")
    every = list(combinations(changes, 2))
    dice.shuffle(every)
    for one, other in every:
        both = Variant((one,)).joined(Variant((other,)))
        if both is not None:
            yield both


def plans(base: Compilation, seed: str) -> Iterator[tuple[str, Compilation]]:
    """Ways of fusing a graph without end, by name."""
    dice = random.Random(f"plans {seed}")
    usual = base.clustering
    free = replace(usual, feedback="failures")
    yield "unfused", replace(base, fusion=None, stitching=None, packing=None, clustering=free)
    while True:
        fusion, of_fusion = dice.choice(_FUSIONS)
        stitching, of_stitching = dice.choice(_STITCHINGS)
        packing, of_packing = dice.choice(_PACKINGS)
        cut, of_cut = _cut(usual, dice)
        name = ", ".join(filter(None, (of_cut, of_fusion, of_stitching, of_packing)))
        yield name, replace(base, fusion=fusion, stitching=stitching, packing=packing, clustering=cut)


_FUSIONS: tuple[tuple[LoopFusion | None, str], ...] = (
    *((LoopFusion(), ""),) * 5,
    (LoopFusion(rematerialise=False), "temporaries stored"),
    (LoopFusion(partition="rules"), "micro-graphs"),
    (None, "no loop fusion"),
)
_STITCHINGS: tuple[tuple[Stitching | None, str], ...] = (
    *((Stitching(), ""),) * 3,
    (Stitching(rows=1), "stitched wherever possible"),
    (Stitching(online=False), "reductions in two passes"),
    (None, "kernels apart"),
)
_PACKINGS: tuple[tuple[Packing | None, str], ...] = (
    *((Packing(), ""),) * 3,
    (Packing(always=True), "packed wherever possible"),
    (None, "no packs"),
)


def _cut(usual: Clustering, dice: random.Random) -> tuple[Clustering, str]:
    """A clustering, without feedback: what is drawn shall be made."""
    free = replace(usual, feedback="failures")
    kind = dice.randrange(5)
    if kind == 0:
        return free, "as it is"
    if kind == 1:
        most = dice.choice((2, 3, 4, 6, 10))
        return replace(free, most=most, whole=0), f"at most {most}"
    if kind == 2:
        return replace(free, whole=0, partition="search"), "search"
    seed, joined = dice.randrange(1 << 16), dice.choice((0.3, 0.6, 0.9))
    return DrawnCuts(
        most=usual.most, whole=0, library=usual.library, feedback="failures", seed=seed, joined=joined
    ), f"cut {seed} of {joined}"
