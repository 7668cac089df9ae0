"""Random graphs of the shape of models, cut, fused, stitched and packed in every way, on a CPU and emulated.

Each program is compiled in two of the sixteen ways that there are (eight subsets of the
layers, two targets), drawn by its seed.  `make test-all` runs more, in all ways.
"""

from __future__ import annotations

import random

import pytest
from graph_programs import graph_call
from thinned import thinned
from ways import WAYS, Way, check

TOGETHER = 10
GROUPS = range(10)
MORE_GROUPS = range(10, 24)


def drawn(seed: int) -> list[Way]:
    """Two ways, one of them with the seed's number, so that all are drawn."""
    return [WAYS[seed % 16], random.Random(f"way {seed}").choice(WAYS)]


@pytest.mark.parametrize("group", thinned(GROUPS, 10))
def test_random_graphs_agree(group: int) -> None:
    seeds = range(group * TOGETHER, (group + 1) * TOGETHER)
    check([(graph_call(s), way) for s in seeds for way in drawn(s)])


def test_all_ways_are_drawn() -> None:
    assert {w for g in GROUPS[::3] for s in range(g * TOGETHER, (g + 1) * TOGETHER) for w in drawn(s)} == set(
        WAYS
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(MORE_GROUPS.start * TOGETHER, MORE_GROUPS.stop * TOGETHER))
def test_all_ways_agree_on_more(seed: int) -> None:
    check([(graph_call(seed), way) for way in WAYS])
