"""Samples in files, and how they are collected: drawn, made, timed, put together."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.pipeline import Compilation
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import statement_reads
from polyfuse.layers.clustering.clusters import cuts_of
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.learn import timing
from polyfuse.learn.collect import gather, make_programs, time_programs
from polyfuse.learn.features import KERNEL_FEATURES, NODE_FEATURES, KernelGraph
from polyfuse.learn.making import MADE, Program, Wanted, made_files
from polyfuse.learn.plans import plans
from polyfuse.learn.samples import PLANS, VARIANTS, Sample, collected, load, merge
from polyfuse.options import Options
from polyfuse.runtime.toolchain.compiler import find_compiler

TEXT = """op f(x: f32[T, H]) -> (y: f32[T, H], z: f32[T]) {
  m[t] = sum[h](x[t, h])
  e[t, h] = exp(x[t, h] * 0.1)
  z[t] = sum[h](e[t, h]) + m[t]
  y[t, h] = e[t, h] / z[t]
}"""


def kernel(number: float, nodes: int = 3) -> KernelGraph:
    shape = (nodes, len(NODE_FEATURES))
    return KernelGraph(
        np.arange(nodes, dtype=np.int16),
        np.full(shape, number, np.float32),
        np.array([[0, 1], [1, 2]], np.int32),
        np.full(len(KERNEL_FEATURES), number, np.float32),
    )


def sample(program: str = "p", label: str = "a", task: int = VARIANTS, *steps: float) -> Sample:
    graphs = tuple(map(kernel, steps or (1,)))
    return Sample(program, "random", task, label, label == "a", 1e-6, 0.01, 2e-6, graphs)


def test_a_file_gives_back_what_was_put_in(tmp_path: Path) -> None:
    given = [sample("p", "a", VARIANTS, 1, 2), sample("p", "b", VARIANTS, 2), sample("q", "a", PLANS, 3)]
    collected(given, {"threads": 1}).save(tmp_path / "s.xz")
    found = load(tmp_path / "s.xz")
    assert found.about == {"threads": 1} and len(found) == 3
    assert len(found.graphs) == 3  # the second step of one is that of another
    for k, s in enumerate(given):
        other = found.sample(k)
        assert replace(other, graphs=(), spread=s.spread) == replace(s, graphs=())
        assert other.spread == pytest.approx(s.spread)
        assert [g.key for g in other.graphs] == [g.key for g in s.graphs]


def test_a_group_is_a_program_and_a_task() -> None:
    found = collected([sample("p", "a"), sample("p", "b"), sample("p", "a", PLANS), sample("q", "a")])
    assert found.group.tolist() == [0, 0, 1, 2]
    assert found.families[found.family[0]] == "random"


def test_of_samples_with_one_name_the_first_counts() -> None:
    first, second = (
        collected([sample("p", "a")], {"timed": 1}),
        collected([sample("p", "a", 0, 5)], {"timed": 2}),
    )
    found = merge([first, second])
    assert len(found) == 1 and found.about["timed"] == 3
    assert found.graphs[0].key == kernel(1).key


@pytest.mark.parametrize("data", [b"", b"no samples at all", b"\xfd7zXZ\x00\x00"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "s.xz"
    file.write_bytes(data)
    with pytest.raises(ArgumentError) as refused:
        load(file)
    assert refused.value.code == "PF770"


def test_samples_of_other_features_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected([sample()]).save(tmp_path / "s.xz")
    monkeypatch.setattr("polyfuse.learn.samples.KINDS", {"cpu": (999, KERNEL_FEATURES)})
    with pytest.raises(ArgumentError, match="version"):
        load(tmp_path / "s.xz")


# --- drawn cuts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_drawn_cut_has_each_statement_once_and_no_cycle(seed: int) -> None:
    graph = instantiate(parse_text(TEXT), "f")
    cuts = cuts_of(graph)
    found = cuts.drawn(random.Random(seed), 0.5)
    assert sorted(n for c in found for n in c) == sorted(s.name for s in graph.statements)
    of = {graph.statement(n).target: k for k, c in enumerate(found) for n in c}
    for k, c in enumerate(found):
        for name in c:
            reads = {r.tensor for r in statement_reads(graph.statement(name))} & set(of)
            assert all(of[t] <= k for t in reads)
    assert found == cuts.drawn(random.Random(seed), 0.5) == cuts.checked(found[::-1])


def test_plans_are_drawn_by_a_seed() -> None:
    base = Compilation(instantiate(parse_text(TEXT), "f"), {"T": 8, "H": 8}, LoopFusion(), Options(threads=1))

    def first(seed: str) -> list[str]:
        return [name for name, _ in islice(plans(base, seed), 8)]

    assert first("a") == first("a") != first("b")


# --- timing -----------------------------------------------------------------------------------------------


def test_repeats_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    clock = iter(range(10**6))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) * 1e-3)

    def of(name: str) -> Callable[[], None]:
        return lambda: order.append(name)

    times = timing.in_turns({"a": (of("a"), 1e-3), "b": (of("b"), 1e-3)}, math.inf)
    assert [len(t) for t in times.values()] == [timing.ROUNDS] * 2
    # a warm call and a timed one each, and each round begins with another plan
    assert "".join(order[:8]) == "aabbbbaa"


def test_what_spreads_is_timed_again_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[list[str]] = []

    def turns(found: timing.Calls, until: float) -> dict[str, list[float]]:
        rounds.append([*found])
        good = len(rounds) > 1
        return {k: [1.0] * 7 if k == "a" or (good and k == "b") else [1.0, 2.0, 3.0] * 3 for k in found}

    monkeypatch.setattr(timing, "in_turns", turns)
    found = timing.measured(dict.fromkeys("abc", (print, 1.0)), math.inf)
    assert rounds == [["a", "b", "c"], ["b", "c"], ["c"]]
    assert found["a"][1] == found["b"][1] == 0.0 and found["c"][1] > timing.NOISY


def test_what_was_noisy_may_be_timed_later(tmp_path: Path) -> None:
    made, old = tmp_path / "p.made", {"a": (1.0, 0.0)}
    assert timing.known_result(made) is None and not timing.has_noise(made)
    first = timing.Result(old, {"b": "spreads by 30%", "c": "it computes another y"})
    made.with_suffix(timing.TIMED).write_text(json.dumps(first.as_json()))
    assert timing.has_noise(made) and timing.known_result(made) == first
    again = timing.Result({"b": (2.0, 0.01)}, {"a": "spreads by 20%", "c": "it computes another y"})
    assert again.beside(first).seconds == {"a": (1.0, 0.0), "b": (2.0, 0.01)}
    assert again.beside(first).notes == {"c": "it computes another y"}


def test_code_can_be_made_for_another_core() -> None:
    options = Options(threads=1)
    own, other = Wanted().knobs(options).on, Wanted(core="avx2").knobs(options).on
    assert (other.vector_bytes, other.registers, other.l1) == (32, 16, own.l1)


def source() -> list[Program]:
    """A program, and one that cannot be made."""
    graph = instantiate(parse_text(TEXT), "f")
    wrong = instantiate(parse_text("op g(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }"), "g")
    sizes = {"T": 96, "H": 64}
    return [
        Program("one", "random", lambda: (graph, sizes)),
        Program("large", "random", lambda: (wrong, {"N": 1 << 40})),
    ]


def test_a_program_is_made_timed_and_gathered(tmp_path: Path) -> None:
    find_compiler()
    told: list[str] = []
    wanted = Wanted(variants=2, plans=2)
    count = make_programs(tmp_path, source, ["one", "large"], wanted, 100, 1, told.append)
    assert count >= 4 and any("TooLarge" in t for t in told)
    assert make_programs(tmp_path, source, ["one", "large"], wanted, 100, 1, told.append) == 0
    (made,) = made_files(tmp_path)
    assert made.suffix == MADE and np.isnan(load(made).seconds).all()
    assert time_programs(tmp_path, 30, None, told.append) >= 2
    assert time_programs(tmp_path, 30, None, told.append) == 0  # it is timed
    # what spreads on a busy machine counts here as well
    file = made.with_suffix(timing.TIMED)
    known = load(made).about["keys"]
    times = {k: [1e-6, 0.0] for k in known}
    file.write_text(json.dumps({"seconds": times, "notes": {}, "complete": True}))
    found = gather(tmp_path, tmp_path / "all.xz", wanted)
    assert len(found) == len(known) and found.about["timed"] == len(set(known))
    assert found.default.sum() == 2 and {*found.task.tolist()} == {VARIANTS, PLANS}
    assert (found.projected > 0).all() and found.about["threads"] == 1
    assert len(load(tmp_path / "all.xz")) == len(found)
