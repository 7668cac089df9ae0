"""Random programs with passes switched off: each optional pass is one that the code is as right without.

Programs of all kinds are compiled in drawn ways, on a CPU and for emulated devices, with drawn sets of passes
off, and each pass alone is off over a few programs.  A failure shows its program, made smaller, and the
passes that it takes.  The long run:

    POLYFUSE_TEST_GROUPS=1000:1400 pytest -m slow tests/property/test_random_passes.py
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace

import pytest
from drawn_ways import DrawnWay, drawn_thresholds, drawn_way
from kinds import KINDS, kind_call
from programs import random_program
from reduce_program import reduced
from row_programs import random_row_program
from targets import Call
from test_random_kinds import failure_of
from test_random_recurrences import call_of as recurrence_call
from thinned import thinned
from ways import Failure, Pair

from polyfuse.codegen.cpu.emit import emit_together
from polyfuse.codegen.passes import observed
from polyfuse.driver.targets import passes
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching

TOGETHER = 4
SOURCES = (*KINDS, "programs", "row_programs", "recurrences")
GROUPS = range(3)
FIRST, LAST = map(int, os.environ.get("POLYFUSE_TEST_GROUPS", "3:15").split(":"))
MORE_GROUPS = range(FIRST, LAST)

OPTIONAL = tuple(dict.fromkeys(p.name for found in passes().values() for p in found if p.optional))
ALL_LAYERS = DrawnWay(LoopFusion(), Stitching(rows=1), Packing())


def call_of(source: str, seed: int) -> Call:
    """A program of a kind, or one of those that have the whole language."""
    if source in KINDS:
        return kind_call(source, seed)
    if source == "recurrences":
        return recurrence_call(seed)
    p = random_program(seed) if source == "programs" else random_row_program(seed, 300)
    return Call(f"{source} {seed}", p.text, instantiate(parse_text(p.text), p.op), p.sizes, p.inputs)


def without(way: DrawnWay, *names: str) -> DrawnWay:
    return replace(way, knobs=replace(way.knobs, disabled=names))


def drawn_names(seed: int) -> tuple[str, ...]:
    """One pass, a few, half of them, all but a few, all."""
    dice = random.Random(f"passes {seed}")
    count = dice.choice((1, 2, 5, len(OPTIONAL) // 2, len(OPTIONAL) - 3, len(OPTIONAL)))
    return tuple(sorted(dice.sample(OPTIONAL, count)))


def chosen(source: str, group: int) -> list[Pair]:
    """Programs of a group, each on a CPU, one of them for a device, too."""
    found: list[Pair] = []
    for k, seed in enumerate(range(group * TOGETHER, (group + 1) * TOGETHER)):
        call = call_of(source, seed)
        found.append((call, without(drawn_way(3 * seed, on_cpu=True), *drawn_names(2 * seed))))
        if k == 0:
            found.append((call, without(drawn_way(3 * seed + 1, on_cpu=False), *drawn_names(2 * seed + 1))))
    return found


def check(pairs: list[Pair], thresholds: int) -> None:
    with drawn_thresholds(thresholds):
        failure = failure_of(pairs)
        if failure is not None:
            smaller = reduced(failure, lambda call, way: failure_of([(call, way)]))
            pytest.fail(f"thresholds of group {thresholds}; {smaller}", pytrace=False)


@pytest.mark.parametrize("group", thinned(GROUPS, 3))
@pytest.mark.parametrize("source", SOURCES)
def test_programs_agree_without_some_passes(source: str, group: int) -> None:
    check(chosen(source, group), group)


@pytest.mark.slow
@pytest.mark.parametrize("group", MORE_GROUPS)
@pytest.mark.parametrize("source", SOURCES)
def test_many_agree_without_some_passes(source: str, group: int) -> None:
    check(chosen(source, group), group)


# Of each kind a program; which of two, and on what, follows from the pass.
@pytest.mark.parametrize("k", thinned(range(len(OPTIONAL)), 20))
def test_programs_agree_without_one_pass(k: int) -> None:
    name = OPTIONAL[k]
    calls = [call_of(s, 7 + k % 2) for s in SOURCES]
    device = next(w for s in range(k, k + 99) if (w := drawn_way(s)).device)
    check(
        [(c, without(ALL_LAYERS, name)) for c in calls] + [(c, without(device, name)) for c in calls[:3]], k
    )


def test_sets_of_passes_are_varied() -> None:
    drawn = [drawn_names(s) for s in range(200)]
    assert {len(d) for d in drawn} >= {1, 2, 5, len(OPTIONAL)}
    times = Counter(n for d in drawn for n in d)
    assert set(times) == set(OPTIONAL) and min(times.values()) > 40


def test_what_is_off_does_not_run() -> None:
    names, ran = ("unswitch", "unroll-and-jam:reductions"), set[str]()
    with observed(lambda pipeline, name, loops: ran.add(name)):
        emit_together([without(ALL_LAYERS, *names).request(call_of("rows", 1))])
    assert "fuse-loops" in ran and not ran & {*names}


def test_a_failure_is_told_with_the_passes_that_it_takes() -> None:
    """Names of passes that do not matter are left out."""
    names = drawn_names(1)
    assert len(names) > 4
    call, way = call_of("pieces", 0), without(DrawnWay(), *names)

    def judge(call: Call, way: DrawnWay) -> Failure | None:
        off = way.knobs.disabled
        return Failure(call, way, "wrong", "as planted") if {names[1], names[3]} <= {*off} else None

    found = reduced(Failure(call, way, "wrong", "as planted"), judge)  # type: ignore[arg-type]
    assert found.way == without(DrawnWay(), names[1], names[3])
