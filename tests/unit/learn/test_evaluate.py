"""Splits and figures of predicted times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from timed_samples import made_up

from polyfuse.learn.evaluate import (
    calibrated,
    confidence,
    figures,
    held_out_code_path,
    held_out_kernels,
    held_out_machine,
    held_out_programs,
    held_out_sizes,
    kendall,
    on_core,
    operators,
    repeated,
    ridge,
    samples_of,
    stem,
    switching,
    timed_elsewhere,
)
from polyfuse.learn.features import KERNEL_FEATURES
from polyfuse.learn.samples import Samples, merge


@pytest.fixture(scope="module")
def samples() -> Samples:
    return made_up()


def test_every_sample_is_on_one_side(samples: Samples) -> None:
    for split in (f(samples) for f in (held_out_programs, held_out_sizes, held_out_kernels)):
        assert sorted([*split.train, *split.test]) == list(range(len(samples)))
        assert 0.1 < len(split.test) / len(samples) <= 0.2


def test_held_out_programs_share_no_operator(samples: Samples) -> None:
    names = [f"stdlib/op{k // 2} drawn {k % 2}" for k in range(len(samples.programs))]
    named = replace(samples, programs=names, default=np.zeros(len(samples), bool))
    split = held_out_programs(named)
    of = operators(named)[named.program]
    assert not {*of[split.train]} & {*of[split.test]}
    assert len({*of}) == len(names) // 2


def test_programs_of_the_same_nodes_are_one_operator() -> None:
    few = made_up(3, 1)
    assert len({*operators(few)}) == 3
    one, two = (int(few.sample_graph[few.sample_start[k]]) for k in (1, 2))  # programs of one kernel each
    graphs = list(few.graphs)
    graphs[two] = replace(graphs[two], opcodes=graphs[one].opcodes[::-1])
    found = operators(replace(few, graphs=graphs))
    assert found[1] == found[2] != found[0]


def test_files_of_a_folder_are_one_set_and_tell_programs_apart_by_core(tmp_path: Path) -> None:
    few = made_up(3, 1)
    for name in ("cpu_b_avx2", "cpu_a", "gpu_c"):
        few.save(tmp_path / f"{name}.xz")
    found = samples_of(str(tmp_path))
    assert found.programs == [on_core(p, core) for core in ("a", "b_avx2") for p in few.programs]
    assert samples_of(tmp_path / "cpu_a.xz", tmp_path / "cpu_b_avx2.xz").programs == found.programs
    assert len(found) == 2 * len(few) and samples_of(tmp_path / "gpu_c.xz").programs == few.programs


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("half/emb_sum_ln V=100 P=64 f16", "emb_sum_ln"),
        ("rows/softmax f64 4096x16", "softmax"),
        ("rows/bias, residual, LayerNorm 15728x200", "bias, residual, layernorm"),
        ("workload/bias_gelu_4096", "bias_gelu"),
        ("model/dien part 1", "dien"),
        ("random/12", "random/12"),
        (on_core("random/12", "avx2"), "random/12"),
        (on_core("half/softmax T=1024 H=64 f16", "avx2"), "softmax"),
        ("operator/means of rows", "operator/means of rows"),
    ],
)
def test_sizes_are_no_part_of_an_operator(name: str, expected: str) -> None:
    assert stem(name) == expected


def test_the_code_path_is_held_out_where_there_are_two(samples: Samples) -> None:
    assert held_out_code_path(samples) is None
    column, graphs = KERNEL_FEATURES.index("vector bytes"), list(samples.graphs)
    wide = graphs[samples.sample_graph[0]]
    kernel = wide.kernel.copy()
    kernel[column] = 7.0
    graphs[samples.sample_graph[0]] = replace(wide, kernel=kernel)
    split = held_out_code_path(replace(samples, graphs=graphs))
    assert split is not None and split.test.tolist() == [0]


def on_machine(samples: Samples, core: str, l1: float, factor: float) -> Samples:
    """The same programs on another machine, which takes so many times as long."""
    column, graphs = KERNEL_FEATURES.index("L1 size"), []
    for g in samples.graphs:
        kernel = g.kernel.copy()
        kernel[column] = l1
        graphs.append(replace(g, kernel=kernel))
    names = [on_core(p, core) for p in samples.programs]
    return replace(samples, graphs=graphs, programs=names, seconds=factor * samples.seconds)


def test_a_machine_is_held_out_with_what_was_timed_on_both() -> None:
    old, new = made_up(10, 4, seed=1), made_up(40, 4, seed=1)
    both = merge([on_machine(old, "old", 5.0, 1.0), on_machine(new, "new", 4.0, 2.0)])
    split, more = held_out_machine(both), held_out_machine(both, calibration=20)
    assert split is not None and more is not None
    assert split.train.tolist() == list(range(len(old)))
    assert len(split.test) == len(old)
    np.testing.assert_allclose(timed_elsewhere(both, split), both.seconds[split.test] / 2)
    added = sorted({*more.train} - {*split.train})
    assert more.test.tolist() == split.test.tolist() and len(added) == 20
    names = [both.programs[both.program[k]] for k in added]
    assert all(n.endswith("@ new") for n in names)
    assert not {stem(n) for n in names} & {stem(n) for n in old.programs}
    assert held_out_machine(old) is None


def test_machines_share_what_is_held_out() -> None:
    old, new = (on_machine(made_up(20, 4), name, l1, 1.0) for name, l1 in (("old", 5.0), ("new", 4.0)))
    both = merge([old, new])
    for split in (f(both) for f in (held_out_programs, held_out_sizes, held_out_kernels)):
        mine = {(both.programs[both.program[k]].partition(" @ ")[0], int(both.label[k])) for k in split.test}
        rest = {(both.programs[both.program[k]].partition(" @ ")[0], int(both.label[k])) for k in split.train}
        assert len(split.test) and not mine & rest


def test_measured_times_are_perfect(samples: Samples) -> None:
    every = np.arange(len(samples))
    found = figures(samples, every, samples.seconds)
    assert (found.mape, found.first, found.five, found.error) == (0, 0, 0, 0)
    assert found.right == found.pairs > 0
    np.testing.assert_allclose(found.tau, 1)
    wrong = figures(samples, every, 1 / samples.seconds)
    assert wrong.right == 0 and wrong.first > wrong.five >= 0
    np.testing.assert_allclose(wrong.tau, -1)


def test_figures_of_two_groups() -> None:
    """By hand: groups of 1, 2, 4 seconds and of 1, 3."""
    base = made_up(2, 3)
    s = replace(base, seconds=np.array([1.0, 2, 4, 1, 3, 9]), spread=np.zeros(6, np.float32))
    found = figures(s, np.arange(5), np.array([2.0, 1, 8, 1, 3]))
    assert (found.samples, found.groups, found.pairs, found.right) == (5, 2, 4, 3)
    np.testing.assert_allclose(found.mape, (1 + 0.5 + 1) / 5)
    np.testing.assert_allclose(found.tau, (1 / 3 + 1) / 2)
    np.testing.assert_allclose((found.first, found.error, found.default), (0.5, 0.5, 0.0))


def test_a_choice_without_a_measurement() -> None:
    """The default takes 2 and 1 seconds; what is named first 1 and 4."""
    s = replace(made_up(2, 3), seconds=np.array([2.0, 1, 4, 1, 4, 9]))
    predicted = np.array([[2.0, 1, 4, 1, 0.8, 9]])
    all_of_them = switching(s, np.arange(6), predicted, 1.0)
    assert (all_of_them.groups, all_of_them.switched, all_of_them.slower) == (2, 2, 1)
    np.testing.assert_allclose((all_of_them.gain, all_of_them.worst), ((2 * 0.25) ** 0.5, 0.25))
    surely = switching(s, np.arange(6), predicted, 0.75)
    assert (surely.switched, surely.slower, surely.worst) == (1, 0, 1.0)
    another = np.array([[2.0, 1, 4, 1, 1.2, 0.7]])
    agreed = switching(s, np.arange(6), np.concatenate([predicted, another]), 1.0)
    assert (agreed.switched, agreed.slower) == (1, 0) and np.isclose(agreed.gain, 2**0.5)


def test_confidence(samples: Samples) -> None:
    every, wrong = np.arange(len(samples)), 1 / samples.seconds
    assert confidence(samples, every, samples.seconds, wrong) == 1
    assert confidence(samples, every, wrong, samples.seconds) == 0
    assert confidence(samples, every, wrong, wrong) == 0


def test_a_repeat_is_as_far_apart_as_repeats_are(samples: Samples) -> None:
    every = np.arange(len(samples))
    found = figures(samples, every, repeated(samples, every))
    assert 0 < found.mape < 0.01 < figures(samples, every, samples.projected).mape


def test_linear_baselines(samples: Samples) -> None:
    split = held_out_kernels(samples)
    before = figures(samples, split.test, samples.projected[split.test]).mape
    assert figures(samples, split.test, calibrated(samples, split)).mape < before
    assert figures(samples, split.test, ridge(samples, split)).mape < before


def test_kendall() -> None:
    from scipy.stats import kendalltau

    random = np.random.default_rng(0)
    for _ in range(5):
        x, y = random.integers(0, 6, 9), random.integers(0, 6, 9)
        np.testing.assert_allclose(kendall(x, y), kendalltau(x, y).statistic)
    assert kendall(np.ones(3), np.arange(3)) is None
