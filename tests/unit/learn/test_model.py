"""The graph network in NumPy: what it computes, what it is asked, what a file of it must have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from timed_samples import graph

from polyfuse.diagnostics import PolyfuseError
from polyfuse.learn import model as model_module
from polyfuse.learn.features import KERNEL_FEATURES, NODE_FEATURES, KernelGraph
from polyfuse.learn.model import POOLS, Batch, Design, Model, NumPy, Scales

DESIGNS = (
    Design(),
    Design(layers=0, residual=False),
    Design(pooling=()),
    Design(pooling=("max",), kernel=False),
    Design(pooling=(), head=()),
)


def random_weights(design: Design, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        n: np.asarray(random.standard_normal(s) * 0.2, np.float32) if n != "call" else np.float32(-14)
        for n, s in design.shapes().items()
    }


def random_model(design: Design, graphs: list[KernelGraph], members: int = 1) -> Model:
    return Model(design, Scales.of(graphs), tuple(random_weights(design, k) for k in range(members)))


def graphs(count: int, seed: int = 1) -> list[KernelGraph]:
    random = np.random.default_rng(seed)
    return [graph(random) for _ in range(count)]


@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_a_batch_gives_what_each_sample_gives_alone(design: Design) -> None:
    some = graphs(6)
    plans = [[some[0]], [some[1], some[2]], [some[3], some[3], some[4]], [], [some[5]]]
    model = random_model(design, some, members=2)
    alone = [model.seconds([plan])[0] for plan in plans]
    np.testing.assert_allclose(model.seconds(plans), alone, rtol=1e-5)
    assert len(model.seconds([])) == 0


def test_times_of_kernels_add_up() -> None:
    some = graphs(2)
    model = random_model(Design(), some)
    a, b, both, none = model.seconds([[some[0]], [some[1]], some, []])
    np.testing.assert_allclose(both, a + b - none, rtol=1e-5)
    np.testing.assert_allclose(none, np.exp(-14), rtol=1e-5)


def test_the_order_of_nodes_does_not_count() -> None:
    g = graphs(1)[0]
    order = np.random.default_rng(3).permutation(len(g.opcodes))
    back = np.argsort(order)
    other = KernelGraph(g.opcodes[order], g.nodes[order], back[g.edges].astype(np.int32), g.kernel)
    model = random_model(Design(), [g])
    np.testing.assert_allclose(model.seconds([[g]]), model.seconds([[other]]), rtol=1e-5)


def test_edges_count_only_where_nodes_see_each_other() -> None:
    g = graphs(1)[0]
    other = KernelGraph(g.opcodes, g.nodes, g.edges[::-1], g.kernel)
    for layers, same in ((0, True), (1, False)):
        model = random_model(Design(layers=layers), [g])
        assert np.allclose(model.seconds([[g]]), model.seconds([[other]]), rtol=1e-6) == same


@pytest.mark.parametrize("pool", POOLS)
def test_pooling(pool: str) -> None:
    """One node twice is the same to mean and max, and more to the sum."""
    g = graphs(1)[0]
    none = np.zeros((2, 0), np.int32)
    once = KernelGraph(g.opcodes[:1], g.nodes[:1], none, g.kernel)
    twice = KernelGraph(g.opcodes[[0, 0]], g.nodes[[0, 0]], none, g.kernel)
    model = random_model(Design(pooling=(pool,)), [g])
    assert np.allclose(model.seconds([[once]]), model.seconds([[twice]]), rtol=1e-5) == (pool != "sum")


def test_a_residual_model_without_a_correction_tells_the_projected_time() -> None:
    g = graphs(1)[0]
    design = Design()
    weights = {n: np.zeros_like(w) for n, w in random_weights(design).items()} | {"call": np.float32(-30)}
    model = Model(design, Scales.of([g]), (weights,))
    ns = 2.0 ** g.kernel[KERNEL_FEATURES.index("projected ns")] - 1
    np.testing.assert_allclose(model.seconds([[g]]), [ns * 1e-9], rtol=1e-4)


def test_a_kernel_without_nodes() -> None:
    """A call of a library has figures and no loops."""
    some = graphs(2)
    nodes, edges = np.zeros((0, len(NODE_FEATURES)), np.float32), np.zeros((2, 0), np.int32)
    empty = KernelGraph(np.zeros(0, np.int16), nodes, edges, some[0].kernel)
    model = random_model(Design(), some)
    found = model.seconds([[empty], [some[1]], [empty, some[1]]])
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[1], model.seconds([[some[1]]])[0], rtol=1e-5)


def test_a_file_keeps_a_model(tmp_path: Path) -> None:
    some = graphs(4)
    model = Model(Design(head=(8,)), Scales.of(some), (random_weights(Design(head=(8,))),) * 2, {"data": "x"})
    model.save(tmp_path / "m.npz")
    other = Model.load(tmp_path / "m.npz")
    assert (other.design, other.about, len(other.members)) == (model.design, model.about, 2)
    assert (other.seconds([some]) == model.seconds([some])).all()


def test_a_file_of_other_features_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.npz"
    random_model(Design(), graphs(1)).save(path)
    monkeypatch.setattr(model_module, "FEATURES_VERSION", 1000)
    with pytest.raises(PolyfuseError, match="features of version") as caught:
        Model.load(path)
    assert caught.value.diagnostics[0].code == "PF775"
    path.write_bytes(b"nothing")
    with pytest.raises(PolyfuseError, match="PF775"):
        Model.load(path)


def test_where_a_model_is_asked_unless_told_otherwise() -> None:
    model = random_model(Design(), graphs(1))
    assert not model.wins(64, 1)
    judged = replace(model, about={"wins": True, "vector bytes": [64], "threads": [1]})
    assert judged.wins(64, 1) and not judged.wins(32, 1) and not judged.wins(64, 2)


def test_what_is_the_same_everywhere_tells_nothing() -> None:
    some = graphs(5)
    column = KERNEL_FEATURES.index("vector bytes")
    other = some[0].kernel.copy()
    other[column] += 1
    model = random_model(Design(), some)
    one, two = model.seconds([[some[0]], [replace(some[0], kernel=other)]])
    assert one == two


def test_fifty_candidates_are_cheap() -> None:
    """Multiplications of one prediction of fifty kernels of fifty nodes: some milliseconds of one core."""
    design, count, nodes = Design(), 50, 50
    shapes = design.shapes()
    of_nodes = sum(
        a * b for n, (a, b) in ((n, s) for n, s in shapes.items() if len(s) == 2) if "head" not in n
    )
    of_heads = sum(s[0] * s[1] for n, s in shapes.items() if "head" in n and len(s) == 2)
    assert 3 * (count * nodes * of_nodes + count * of_heads) < 200e6
    batch = Batch.of(
        [graph(np.random.default_rng(k), nodes) for k in range(count)],
        Scales.of(graphs(3)), np.arange(count), np.arange(count), count,
    )  # fmt: skip
    assert batch.nodes.shape == (count * nodes, len(NODE_FEATURES))


def test_sums_and_maxima_of_rows() -> None:
    x, index = np.array([[1.0], [-3.0], [-5.0], [-4.0]]), np.array([0, 2, 2, 4])
    assert NumPy().sums(x, index, 6).ravel().tolist() == [1, 0, -8, 0, -4, 0]
    assert NumPy().most(x, index, 6).ravel().tolist() == [1, 0, -3, 0, -4, 0]


@pytest.mark.parametrize(("count", "rows"), [(5, 0), (7, 20), (3, 400), (100, 150)])
def test_short_and_long_runs_have_their_sums_and_maxima(count: int, rows: int) -> None:
    random = np.random.default_rng(rows)
    index, x = np.sort(random.integers(0, count, rows)), random.standard_normal((rows, 3))
    ops, each = NumPy(), [x[index == k] for k in range(count)]
    for _ in range(2):  # what is kept of the index is asked again
        np.testing.assert_allclose(ops.sums(x, index, count), [e.sum(axis=0) for e in each], atol=1e-12)
        wanted = [e.max(axis=0) if len(e) else np.zeros(3) for e in each]
        assert np.array_equal(ops.most(x, index, count), wanted)
