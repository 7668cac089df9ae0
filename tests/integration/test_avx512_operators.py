"""Operators on an emulated processor with AVX-512, against the float64 reference.

The standard library, models, workloads, and random programs whose ways and thresholds are drawn; a usual run
has a few.  The long run:

    POLYFUSE_TEST_GROUPS=1000:1100 pytest -m slow tests/integration/test_avx512_operators.py -k "many"
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from avx512 import avx512_machine, can_emulate
from drawn_ways import DrawnWay, drawn_thresholds, drawn_way
from kinds import KINDS, kind_call
from models import MODELS, Model
from stdlib_cases import CASES, StdlibCase
from targets import Call
from ways import check, first_failure

from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.workload import load, names

pytestmark = pytest.mark.skipif(not can_emulate(), reason="needs gcc for a processor with AVX2")

USUAL = DrawnWay(LoopFusion(), Stitching(), Packing(), knobs=CpuKnobs(core=Core()))
TOGETHER = 16
FIRST, LAST = map(int, os.environ.get("POLYFUSE_TEST_GROUPS", "0:4").split(":"))
FEW = ("softmax", "layer_norm", "gelu", "matmul", "lstm_cell", "cross_entropy")


@pytest.fixture(autouse=True, params=[True, False], ids=["bf16", "plain"])
def machine(request: pytest.FixtureRequest) -> Iterator[None]:
    with avx512_machine(request.param):
        yield


def check_usual(calls: Sequence[Call]) -> None:
    check([(call, USUAL) for call in calls])


def call_of(case: StdlibCase | Model) -> Call:
    graph = case.graph()
    kinds = {n: graph.tensor(n).dtype.numpy for n in case.inputs}
    inputs = {n: np.ascontiguousarray(a, kinds[n]).reshape(np.shape(a)) for n, a in case.inputs.items()}
    return Call(str(case), case.op, graph, case.sizes(graph), inputs)


def workload_call(name: str, times: int) -> Call:
    """At its sizes for tests, or some times as large and odd."""
    workload = load(name)
    sizes = {n: v * times + times // 2 for n, v in workload.module.SMALL.items()}
    graph = workload.graph
    inputs = {n: np.asarray(a, graph.tensor(n).dtype.numpy) for n, a in workload.inputs(sizes).items()}
    return Call(name, name, graph, sizes, inputs)


def check_group(kind: str, group: int, count: int = TOGETHER) -> None:
    """Programs for cores with vectors of 64 bytes, most of them, in drawn ways."""
    pairs = []
    for seed in range(group * TOGETHER, group * TOGETHER + count):
        dice, way = random.Random(f"core {seed}"), drawn_way(7 * seed + 1, on_cpu=True)
        if dice.random() < 0.7:
            core = dice.choice((Core(), Core(l1=1024, l2=4096)))
            way = replace(way, knobs=replace(way.knobs, core=core))
        pairs.append((kind_call(kind, seed), way))
    with drawn_thresholds(group):
        failure = first_failure(pairs, flush_denormals=bool(group % 2), vague=True)
    assert failure is None, f"thresholds of group {group}; {failure}"


def test_a_few_operators() -> None:
    found = {(c.op, c.dtype): c for c in CASES if c.op in FEW and c.dtype in ("f32", "bf16")}
    check_usual([call_of(case) for case in found.values()])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(CASES), TOGETHER))
def test_the_standard_library(first: int) -> None:
    check_usual([call_of(case) for case in CASES[first : first + TOGETHER]])


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_models(model: Model) -> None:
    check_usual([call_of(model)])


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("name", names())
def test_workloads(name: str, times: int) -> None:
    check_usual([workload_call(name, times)])


@pytest.mark.parametrize("kind", ["half_rows"])
def test_random_programs(kind: str) -> None:
    check_group(kind, 0, count=5)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(FIRST, LAST))
@pytest.mark.parametrize("kind", KINDS)
def test_many_random_programs(kind: str, group: int) -> None:
    check_group(kind, group)
