"""Random programs, fused and unfused, compiled and interpreted, against the float64 reference.

10 programs for each test in a run; `make test-all` runs many more.  A failure names its seed and shows
the program.
"""

from __future__ import annotations

import itertools
import os

import pytest
from programs import random_program
from targets import Call, check_everywhere
from thinned import thinned

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.layers.contractions import contraction
from polyfuse.runtime.cpu import executable

TOGETHER = 10
GROUPS = range(10)
# The long run: POLYFUSE_TEST_GROUPS=200:800 chooses other seeds (a group is 10 of them).
FIRST, LAST = map(int, os.environ.get("POLYFUSE_TEST_GROUPS", "10:150").split(":"))
MORE_GROUPS = range(FIRST, LAST)


def call_of(seed: int) -> Call:
    p = random_program(seed)
    graph = instantiate(parse_text(p.text), p.op)
    scheduler = "isl" if seed % 10 == 0 else "auto"
    return Call(f"seed {seed}", p.text, graph, p.sizes, p.inputs, scheduler)


def check_group(group: int) -> None:
    check_everywhere([call_of(group * TOGETHER + k) for k in range(TOGETHER)])


@pytest.mark.parametrize("group", thinned(GROUPS, 10))
def test_fused_and_unfused_agree(group: int) -> None:
    check_group(group)


# Groups of seeds that once went wrong: one row with as many columns as terms, one step.
LARGE = (10020, 10021, 10022, 10023, 10040, 10041)


@pytest.mark.parametrize("group", thinned(LARGE, 6))
def test_small_programs_on_the_paths_of_large_ones(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, strips and partial sums of a few iterations each, run by several workers."""
    for name, value in (("smallest_parallel", 4), ("fewest_factored", 3), ("strip", 3)):
        monkeypatch.setattr(FITTED, f"mapping_{name}", value)
    monkeypatch.setattr(FITTED, "sinking_sunk_strip", 2)
    monkeypatch.setattr(executable, "PARALLEL_WORK", 1)
    check_group(group)


CONTRACTIONS = range(5050, 5058)
FEW = 5


@pytest.mark.parametrize("group", thinned(CONTRACTIONS, 8))
def test_every_contraction_in_tiles(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As large ones are, in programs of which each has one or more."""
    for name in ("FEWEST_PRODUCTS", "FEWEST_ROWS", "FEWEST_COLUMNS", "FEWEST_OVER"):
        monkeypatch.setattr(contraction, name, 1)
    seeds = filter(has_contraction, itertools.count(group * 1000))
    check_everywhere([call_of(seed) for seed in itertools.islice(seeds, FEW)])


def has_contraction(seed: int) -> bool:
    call = call_of(seed)
    fixed = fixed_graph(call.graph, call.sizes)
    return any(contraction.contraction_of(fixed, s) is not None for s in fixed.statements)


@pytest.mark.slow
@pytest.mark.parametrize("group", MORE_GROUPS)
def test_fused_and_unfused_agree_on_many(group: int) -> None:
    check_group(group)


@pytest.mark.parametrize("seed", [381, 641, 795, 1175])
def test_tensors_of_16_bits_in_programs_of_64_are_cast(seed: int) -> None:
    p = random_program(seed)
    instantiate(parse_text(p.text), p.op)
