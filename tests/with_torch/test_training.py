"""Training of the learned cost model: it learns, twice the same, and NumPy asks what was trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from timed_samples import made_up

from benchmarks.learned_trees import boosted
from polyfuse.learn.evaluate import batch_of, figures, held_out_kernels, predicted
from polyfuse.learn.model import Design, NumPy, Scales, forward
from polyfuse.learn.train import Recipe, Torch, first_weights, pairs, tensors, train, trained

SMALL = Recipe(Design(width=24, embedding=8, head=(32,)), epochs=40, batch=32, rate=1e-2)


def test_three_hundred_kernels_beat_the_mean_and_the_projected_time() -> None:
    samples = made_up(50, 6)
    split = held_out_kernels(samples)
    model = trained(samples, split.train, SMALL)
    found = figures(samples, split.test, predicted(model, samples, split.test))
    mean = np.exp(np.log(samples.seconds[split.train]).mean())
    assert found.mape < 0.3 * figures(samples, split.test, np.full(len(split.test), mean)).mape
    assert found.mape < 0.8 * figures(samples, split.test, samples.projected[split.test]).mape


def test_trees_are_a_peer() -> None:
    samples = made_up(50, 6)
    split = held_out_kernels(samples)
    known, unseen = boosted(samples, split.train, (split.train, split.test), 0)
    mean = np.full(len(split.test), np.exp(np.log(samples.seconds[split.train]).mean()))
    assert figures(samples, split.train, known).mape < figures(samples, split.test, unseen).mape
    assert figures(samples, split.test, unseen).mape < 0.5 * figures(samples, split.test, mean).mape
    assert (boosted(samples, split.train, (split.test,), 0)[0] == unseen).all()


@pytest.mark.parametrize(
    "design", [Design(), Design(layers=0, pooling=("max",)), Design(pooling=())], ids=str
)
def test_numpy_asks_what_torch_trained(design: Design) -> None:
    samples = made_up(4, 3)
    scales = Scales.of(samples.graphs)
    weights = first_weights(design, 1, -9.0)
    batch = batch_of(samples, scales, np.arange(len(samples)))
    found = forward({n: torch.from_numpy(w) for n, w in weights.items()}, design, tensors(batch), Torch(0.0))
    np.testing.assert_allclose(found.numpy(), forward(weights, design, batch, NumPy()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", ["none", "hinge", "logistic"])
def test_the_same_seed_gives_the_same_weights(rank: str) -> None:
    samples = made_up(8, 4)
    every, scales = np.arange(len(samples)), Scales.of(samples.graphs)
    recipe = replace(SMALL, epochs=2, rank=rank)
    one, two = (train(samples, every, recipe, scales) for _ in range(2))
    other = train(samples, every, replace(recipe, seed=1), scales)
    assert all((one[n] == two[n]).all() for n in one)
    assert any((one[n] != other[n]).any() for n in one)


def test_pairs_are_of_one_group_and_clearly_apart() -> None:
    groups, level = np.array([0, 0, 1, 1, 0]), np.log([1.0, 2.0, 3.0, 3.01, 1.5])
    slow, fast = pairs(groups, level, np.full(5, 0.05), np.random.default_rng(0))
    assert {*zip(slow.tolist(), fast.tolist(), strict=True)} == {(1, 0), (4, 0), (1, 4)}
