"""Random programs with several reductions under layer II, against the float64 reference.

Each of 200 programs is compiled with two of the eight pairs of {none, I, II, I and II} x {cpu, emulate},
drawn by its seed; `make test-all` runs all eight, and more programs.  A failure names its seed, so that
`check([(call_of(seed), way)])` runs it alone.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from stitching_programs import stitching_program
from targets import DEVICES, Call
from thinned import thinned
from ways import check

from polyfuse.codegen.cpu.emit import Request
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.driver.lowering import schedule
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import entry_copies, form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.cpu import executable

TOGETHER = 12
GROUPS = range(17)
MORE_GROUPS = range(17, 50)


@dataclass(frozen=True)
class Way:
    """Layers, and where the kernels run: "cpu", or the name of an emulated device."""

    loops: bool
    stitched: bool
    target: str

    def __str__(self) -> str:
        layers = [name for name, on in (("I", self.loops), ("II", self.stitched)) if on]
        return f"layers {' and '.join(layers) or 'none'}, {self.target}"

    @property
    def on_cpu(self) -> bool:
        return self.target == "cpu"

    @property
    def pair(self) -> tuple[bool, bool, bool]:
        return self.loops, self.stitched, self.on_cpu

    def request(self, call: Call) -> Request:
        if not self.on_cpu:
            return call.device_request(DEVICES[self.target], self.loops, self.stitched, None)
        scheduled = schedule(fixed_graph(call.graph, call.sizes), LoopFusion() if self.loops else None)
        kernels, _ = form_kernels(scheduled, 2, Stitching(rows=1) if self.stitched else None)
        return Request(kernels, copied=entry_copies(kernels)[0])


def call_of(seed: int) -> Call:
    p = stitching_program(seed)
    return Call(f"seed {seed}", p.text, instantiate(parse_text(p.text), p.op), p.sizes, p.inputs)


def all_ways(seed: int) -> list[Way]:
    device = random.Random(seed).choice(list(DEVICES))
    return [Way(i, ii, t) for i in (False, True) for ii in (False, True) for t in ("cpu", device)]


def drawn_ways(seed: int) -> list[Way]:
    """Two of them, one with layer II at least."""
    rng, ways = random.Random(f"ways of {seed}"), all_ways(seed)
    first = rng.choice([w for w in ways if w.stitched])
    return [first, rng.choice([w for w in ways if w != first])]


def test_all_pairs_are_drawn() -> None:
    seeds = range(len(GROUPS) * TOGETHER)
    assert len(seeds) >= 200
    times = Counter(w.pair for s in seeds for w in drawn_ways(s))
    assert len(times) == 8 and min(times.values()) >= 10
    assert {w.target for s in seeds for w in drawn_ways(s)} == {"cpu", *DEVICES}


def test_programs_are_varied() -> None:
    programs = [stitching_program(s) for s in range(len(GROUPS) * TOGETHER)]
    reductions = Counter(sum(p.text.count(f"{r}[") for r in ("sum", "mean", "max", "min")) for p in programs)
    assert set(range(1, 6)) <= set(reductions)
    assert {len(p.sizes) for p in programs} == {2, 3, 4}
    assert sum("id" in p.text for p in programs) >= 10
    assert sum(max(p.sizes.values()) > 128 for p in programs) >= 10
    assert sum(p.text.split("{")[0].count(": f32", p.text.index("->")) > 1 for p in programs) >= 40
    assert stitching_program(3).text == stitching_program(3).text


@pytest.mark.parametrize("group", thinned(GROUPS, 17))
def test_layers_agree(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if group % 2:  # blocks, strips and partial sums of a few iterations each, as large programs have
        for name, value in (
            ("mapping_smallest_parallel", 4),
            ("mapping_fewest_factored", 3),
            ("mapping_strip", 3),
            ("sinking_sunk_strip", 2),
        ):
            monkeypatch.setattr(FITTED, name, value)
        monkeypatch.setattr(executable, "PARALLEL_WORK", 1)
    seeds = range(group * TOGETHER, (group + 1) * TOGETHER)
    check([(call, w) for s in seeds for call in [call_of(s)] for w in drawn_ways(s)])


@pytest.mark.slow
@pytest.mark.parametrize("group", [*GROUPS, *MORE_GROUPS])
def test_all_layers_agree(group: int) -> None:
    seeds = range(group * TOGETHER, (group + 1) * TOGETHER)
    check([(call, w) for s in seeds for call in [call_of(s)] for w in all_ways(s)])
