"""Ways of compiling one operator that samples are drawn from: variants of its code, and plans of its fusion.

A variant is one that tuning would try (`tuning.candidates.proposals`), or two of them.  A plan cuts the graph
in another way: by other layers, other limits, or by a cut that is drawn (`layers.clustering.cuts`).  Both are
values of `tuning.table.Variant`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations

from polyfuse.driver.pipeline import Compilation, Watch
from polyfuse.layers.clustering.clusters import cuts_of
from polyfuse.layers.clustering.cuts import Cut, Cuts
from polyfuse.tuning.candidates import compilation_of
from polyfuse.tuning.table import Variant


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
    """Ways of fusing a graph without end, by name. None has feedback: what is drawn shall be made."""
    dice = random.Random(f"plans {seed}")
    free = replace(base, clustering=replace(base.clustering, feedback="failures"))
    yield "unfused", compilation_of(free, Variant(("no loop fusion", "kernels apart", "no packs")))

    @cache
    def cuts(changes: tuple[str, ...]) -> Cuts:
        return cuts_of(compilation_of(free, Variant(changes)).prepared(Watch(base.options), []))

    while True:
        fusion, stitching, packing = (dice.choice(some) for some in (_FUSIONS, _STITCHINGS, _PACKINGS))
        layers = tuple(filter(None, (fusion, stitching, packing)))
        more, cut, of_cut = _cut(dice)
        drawn = cut and cut(cuts(layers))
        name = ", ".join([of_cut, *layers])
        yield name, compilation_of(free, Variant((*more, *layers), drawn))


# Changes of `tuning.table.EVERY`, by how often they are drawn; "" leaves a layer as it is.
_FUSIONS = (*("",) * 5, "temporaries stored", "micro-graphs", "no loop fusion")
_STITCHINGS = (*("",) * 3, "stitched wherever possible", "reductions in two passes", "kernels apart")
_PACKINGS = (*("",) * 3, "packed wherever possible", "no packs")


def _cut(dice: random.Random) -> tuple[tuple[str, ...], Callable[[Cuts], Cut] | None, str]:
    """How the graph is cut: changes, or what draws a cut; and what samples call it."""
    kind = dice.randrange(5)
    if kind == 0:
        return (), None, "as it is"
    if kind == 1:
        most = dice.choice((2, 3, 4, 6, 10))
        return (f"clusters of at most {most}",), None, f"at most {most}"
    if kind == 2:
        return ("clusters by search",), None, "search"
    seed, joined = dice.randrange(1 << 16), dice.choice((0.3, 0.6, 0.9))
    return (), lambda cuts: cuts.drawn(random.Random(seed), joined), f"cut {seed} of {joined}"
