"""Random programs whose default was 10 to 36 times slower than less fusion: what is chosen for them now."""

from __future__ import annotations

from functools import cache

import pytest
from machines import decided_for
from thinned import thinned

import polyfuse as pf
from benchmarks.random_programs import Drawn, draw
from polyfuse.cost.machines import machine_of
from polyfuse.driver.feedback import seconds_of
from polyfuse.driver.lowering import Lowered
from polyfuse.driver.pipeline import Compilation, Watch, emitted, told
from polyfuse.driver.targets import this_core
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.target import CpuTarget
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options

# Seeds, the numbers of their programs, and what is to be found in what explain() says of these.
WORST = {
    (39, 71): "+ transpose y0: columns of",
    (39, 99): "- feedback ",
    (39, 135): "+ transpose y0: columns of",
    (39, 139): "- feedback t3, t3__2, t4, t5, y0: layer I alone ",
    (39, 175): "+ transpose y0: columns of",
    (39, 199): "+ transpose y0: columns of",
    (39, 239): "+ transpose y0: columns of",
    (39, 245): "- feedback t3__sum, t3, t4, t5__sum, t5, y0: layer I alone ",
    (39, 355): "+ transpose y0: columns of",
    (39, 427): "feedback t1, t1__2, t2, t3, y0: ",
    # Results are turned around after whole rows, and after the steps of a recurrence.
    (40, 99): "+ transpose y0: columns of",
    (40, 91): "+ transpose y0: columns of",
    # Lanes load a power of two apart.
    (40, 89): "+ lanes t3__part: ",
    # Lanes jump over lines that L1 does not hold.
    (40, 68): "- feedback t1, t2, t4, t5__function, t5, t6 and 1 more: layer I alone ",
    (40, 290): "- feedback t1__sum, t1, t2, t3, t4, y0: layer I alone ",
    (40, 512): "- feedback t1__sum, t1, t2, t3, t4, t4__2 and 3 more: no fusion ",
    # Fewer layers may be in parts.
    (40, 319): "- feedback t1, t2__sum, t2, t3, t4, y0: rows in pieces: ",
    # Clamped reads are lanes with indices of their own.
    (40, 368): "- feedback t1, t2__sum, t2, t3, y0: no fusion ",
    # A large cluster is tried without fusion.
    (40, 67): "no fusion ",
}
# How much longer the model may say that the default takes than the best of less fusion.
BOUND = 1.25


@cache
def program(seed: int, number: int) -> Drawn:
    return next(p for p in draw(seed) if p.number == number)


def compiled(
    place: tuple[int, int], fusion: LoopFusion | None, stitching: Stitching | None
) -> tuple[Lowered, str]:
    """Kernels as on a Zen 5 with two threads, and what is said of them."""
    graph = pf.parse(program(*place).text).op().graph()
    with decided_for("zen5"):
        c = Compilation(
            graph,
            {},
            fusion,
            Options(threads=2, progress=False, verify=True),
            stitching=stitching,
            packing=Packing(),
            knobs=CpuKnobs(core=this_core()),
        )
        low, code = emitted(Watch(c.options), c)
        return low, "\n".join(map(str, told(low.decisions, code, low.kernels)))


@pytest.mark.parametrize(("place", "expected"), thinned(WORST.items(), 3, several=True))
def test_the_default_is_no_slower_than_less_fusion(place: tuple[int, int], expected: str) -> None:
    low, said = compiled(place, LoopFusion(), Stitching())
    assert expected in said
    others = [
        compiled(place, fusion, stitching)[0]
        for fusion, stitching in ((None, None), (LoopFusion(), None), (None, Stitching()))
    ]
    machine = machine_of(CpuTarget(2))
    best = min(seconds_of(o.kernels, machine) for o in others)
    assert seconds_of(low.kernels, machine) <= BOUND * best + 10e-6
