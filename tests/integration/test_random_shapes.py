"""A thousand random (B, T): how many compilations they cost, and that results are right at some of them."""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kinds import KINDS, kind_call
from open_calls import are_small

import polyfuse as pf
from polyfuse.diagnostics import ArgumentError, DslError
from polyfuse.driver.open_sizes import NotOpen, affine, region
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.runtime.inputs import make_inputs

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the benchmarks are not part of the package

from benchmarks.open_sizes import CASES, shapes_of

FEW, MANY, CHECKED = 24, 1000, 10
MOST_COMPILATIONS = 4

pytestmark = pytest.mark.filterwarnings("ignore::polyfuse.PolyfuseWarning")


def check_operator(name: str, count: int) -> None:
    """Calls at so many shapes, some of them beside the interpreter's."""
    case, rng = CASES[name], np.random.default_rng(1)
    f = pf.compile(pf.stdlib, case.operator, sizes="auto", threads=2)
    exact = pf.compile(pf.stdlib, case.operator, target="interpret", sizes="open")
    for k, (b, t) in enumerate(shapes_of(count, seed=0)):
        args = case.inputs(rng, b, t)
        found = f(*args)
        if k % (count // CHECKED) == 0 and sum(a.size for a in args) < 4096:
            for mine, other in zip(_several(found), _several(exact(*args)), strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
    assert len(f.variants) <= MOST_COMPILATIONS


def _several(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", ["softmax", "cross entropy"])
def test_random_shapes_cost_four_compilations_at_most(name: str) -> None:
    check_operator(name, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_thousand_shapes_cost_four_compilations_at_most(name: str) -> None:
    check_operator(name, MANY)


def shapes_of_two(graph: TensorGraph, sizes: dict[str, int], count: int, seed: int) -> list[dict[str, int]]:
    """Sizes of which two that can be open have random values."""
    rng = random.Random(seed)
    names, _ = affine(graph, tuple(sizes), sizes)
    varied = sorted(rng.sample(sorted(names), min(2, len(names))))
    drawn = ({**sizes, **{n: rng.randint(1, 70) for n in varied}} for _ in range(4 * count))
    return list(islice((s for s in drawn if are_small(graph, s)), count))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_random_kinds_cost_four_compilations_at_most(kind: str, seed: int) -> None:
    """What they compute is compared in `tests/property/test_random_open_sizes.py`."""
    call = kind_call(kind, seed)
    many = shapes_of_two(call.graph, dict(call.sizes), MANY, seed)
    varied = {n for s in many for n, v in s.items() if v != many[0][n]}
    try:
        region(call.graph, {n: v for n, v in many[0].items() if n not in varied})
    except NotOpen as why:  # numbers of the type have no room for all sizes, and the like
        pytest.skip(str(why))
    f = pf.compile(call.text, sizes="auto", threads=2)
    given, done = {p.name for p in f.signature.size_params}, 0
    for k, sizes in enumerate(many):
        with suppress(DslError, ArgumentError):  # sizes, or numbers among the inputs, that may not be given
            inputs = {n: np.asarray(a) for n, a in make_inputs(call.graph, sizes, k).items()}
            f(**{n: a if a.shape else a[()] for n, a in inputs.items()}, **{n: sizes[n] for n in given})
            done += 1
    assert done > len(many) / 2
    assert len(f.variants) <= MOST_COMPILATIONS, [str(v) for v in f.variants]
