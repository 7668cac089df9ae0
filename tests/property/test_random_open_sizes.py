"""Random programs with random sizes open: calls at many sizes, 0 and 1 and primes among them, against the
reference, in several layouts of memory.  The long run:

    POLYFUSE_TEST_GROUPS=100:200 pytest -m slow tests/property/test_random_open_sizes.py
"""

from __future__ import annotations

import os

import pytest
from kinds import KINDS, kind_call
from open_calls import check_sizes, drawn_choice, random_sizes
from programs import random_program

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import TensorGraph

TARGETS = ("cpu", "interpret", "emulate")
CALLS = 6
FIRST, LAST = map(int, os.environ.get("POLYFUSE_TEST_GROUPS", "3:9").split(":"))

pytestmark = pytest.mark.filterwarnings("ignore::polyfuse.PolyfuseWarning")


def program_of(kind: str, seed: int) -> tuple[str, TensorGraph]:
    if kind == "programs":
        p = random_program(seed)
        return p.text, instantiate(parse_text(p.text), p.op)
    call = kind_call(kind, seed)
    return call.text, call.graph


def check(kind: str, target: str, seed: int) -> None:
    text, graph = program_of(kind, seed)
    choice = drawn_choice(graph, seed)
    f = pf.compile(text, target=target, threads=2, **choice)
    try:
        check_sizes(f, graph, list(random_sizes(graph, CALLS, seed, tries=200)), seed)
    except BaseException as error:
        error.add_note(f"{kind} {seed} on {target} with {choice}\n{text}")
        raise


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [*KINDS, "programs"])
@pytest.mark.thin(3)
def test_open_sizes(kind: str, target: str) -> None:
    check(kind, target, seed=TARGETS.index(target))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST, LAST))
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [*KINDS, "programs"])
def test_many_open_sizes(kind: str, target: str, seed: int) -> None:
    check(kind, target, seed)
