"""Plans that are pinned, drawn at random: whatever a plan says, results agree with the reference."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from graph_programs import graph_call
from targets import Call
from ways import check

from polyfuse.codegen.cpu.emit import Request
from polyfuse.driver.pipeline import Compilation, Watch, compilation, lowered
from polyfuse.layers.clustering.clusters import cuts_of
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options
from polyfuse.tuning.candidates import compilation_of
from polyfuse.tuning.space import Space
from polyfuse.tuning.table import CHANGES, PLAN_CHANGES, Variant

LAYERS = ((), ("loop",), ("stitch",), ("pack",), ("loop", "stitch"), ("loop", "pack"), ("stitch", "pack"))
ALL = (*LAYERS, ("loop", "stitch", "pack"))
STEPS = 6


def usual(call: Call, layers: tuple[str, ...]) -> Compilation:
    """A program as these layers have it."""
    return compilation(
        call.graph,
        call.sizes,
        target="cpu",
        fusion=LoopFusion() if "loop" in layers else None,
        stitching=Stitching() if "stitch" in layers else None,
        packing=Packing() if "pack" in layers else None,
        clustering=None,
        options=Options(threads=2, verify=False, dump=None, library="never"),
    )


class Pinned:
    """A plan that some steps from the usual one lead to, written and read again."""

    on_cpu = True

    def __init__(self, seed: int, layers: tuple[str, ...]) -> None:
        self.dice, self.layers, self.plan = random.Random(seed), layers, Variant()

    def request(self, call: Call) -> Request:
        base = usual(call, self.layers)
        graph = base.prepared(Watch(base.options), [])
        changes = ("temporaries stored", "kernels apart", "micro-graphs", *PLAN_CHANGES)
        assert {*changes} <= {*CHANGES, *PLAN_CHANGES}
        space = Space(cuts_of(graph), tuple(base.clusters_of(graph, [])), changes)
        for _ in range(STEPS):
            self.plan = space.beside(self.plan, self.dice)
        pinned = compilation_of(base, Variant.of_json(self.plan.as_json()))
        made = lowered(Watch(base.options), replace(pinned, options=base.options))
        return Request(made.kernels, frozenset(), made.copied, False, pinned.knobs)

    def __str__(self) -> str:
        return f"{self.plan} with {', '.join(self.layers) or 'no layers'}"


def agree(seed: int) -> None:
    """A program by each subset of the layers, each with a plan of its own."""
    call = graph_call(seed)
    check([(call, Pinned(100 * seed + k, layers)) for k, layers in enumerate(ALL)])


@pytest.mark.parametrize("seed", range(1))
def test_pinned_plans_agree_with_the_reference(seed: int) -> None:
    agree(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 24))
def test_more_pinned_plans_agree_with_the_reference(seed: int) -> None:
    agree(seed)
