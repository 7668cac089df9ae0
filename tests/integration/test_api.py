"""The stages of the Python side: each gives the next, and says what is wrong when it cannot."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.ir.schedule_tree import Band, Leaf, Sequence, shape
from polyfuse.ir.tensor_graph import TensorGraph

TEXT = """# centre and scale
op centre(x: f32[T, H]) -> (y: f32[T, H]) {
  mu[t] = sum[h](x[t, h]) / H
  c[t, h] = x[t, h] - mu[t]
  y[t, h] = c[t, h] * 2.0
}
op soft[F: float](x: F[B..., H]) -> (y: F[B..., H]) {
  e[b..., h] = exp(x[b..., h])
  y[b..., h] = e[b..., h] / sum[k](e[b..., k])
}
"""
PROGRAM = pf.parse(TEXT)
X = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
CENTRED = (X - X.mean(1, keepdims=True)) * 2


def test_from_text_to_numbers() -> None:
    assert PROGRAM.ops == ("centre", "soft")
    operator = PROGRAM.op("centre")
    assert operator.name == "centre" and str(operator) == "centre(x: f32[T, H]) -> (y: f32[T, H])"
    special = operator.specialize(T=6, H=8)
    assert isinstance(special.graph, TensorGraph) and special.graph.sizes == ()
    plain = special.schedule()
    fused = plain.apply(pf.LoopFusion())
    assert len(fused.shape) > 0 and fused.shape == shape(fused.tree)
    kernels = fused.lower()
    assert kernels.launches == len(kernels.kernels) < plain.lower().launches
    for target in ("cpu", "interpret", "auto"):
        memory: dict[str, Any] = {"x": X, "y": np.zeros((6, 8), np.float32)}
        executable = kernels.build(target)
        executable.run(memory)
        np.testing.assert_allclose(memory["y"], CENTRED, rtol=1e-5, atol=1e-5)
        assert bool(executable.source) == (target != "interpret")


def test_an_executable_checks_its_memory() -> None:
    text = "op f(x: f32[N, M]) -> (y: f32[N, M]) { y[n, m] = x[n, m] * 2.0 }"
    special = pf.parse(text).op().specialize(N=3, M=4)
    x, y = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    for target in ("cpu", "interpret"):
        executable = special.schedule().apply(pf.LoopFusion()).lower().build(target)
        executable.run({"x": x, "y": y})  # the two dims became one
        assert (y == 2).all()
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"x": x}, "PF408.*'y'"),
            ({"x": x[:2], "y": y}, "PF405.*'x'"),
            ({"x": x, "y": np.zeros(12, np.float32)}, "PF401.*'y'"),
            ({"x": x, "y": y.astype(np.float64)}, "PF402.*'y'"),
            ({"x": np.ones((4, 3), np.float32).T, "y": y}, "PF418.*'x'"),
        ]
        for arrays, message in wrong:
            with pytest.raises(pf.ArgumentError, match=message):
                executable.run(arrays)


def test_stages_are_immutable() -> None:
    special = PROGRAM.op("centre").specialize(T=6, H=8)
    fused = special.schedule().apply(pf.LoopFusion())
    for stage in (PROGRAM, PROGRAM.op("centre"), special, fused, fused.lower()):
        field = dataclasses.fields(stage)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(stage, field, None)


@pytest.mark.parametrize("layers", [("loop",), ()])
@pytest.mark.parametrize("target", ["cpu", "interpret"])
def test_compile(layers: tuple[str, ...], target: Any) -> None:
    f = pf.compile(PROGRAM, "centre", target=target, layers=layers)
    np.testing.assert_allclose(f(X), CENTRED, rtol=1e-5, atol=1e-5)
    assert "centre" in repr(f)
    built = f.built(X)
    assert (built.kernels.kernels and set(built.seconds) >= {"build"}) or target == "interpret"


def test_the_last_operator_is_the_default() -> None:
    assert PROGRAM.op().name == "soft"
    y = pf.compile(TEXT)(X)
    np.testing.assert_allclose(y.sum(1), np.ones(6), rtol=1e-5)


def test_partial_sizes_stay_symbolic() -> None:
    special = PROGRAM.op("centre").specialize(H=8)
    assert special.graph.sizes == ("T",)
    kernels = special.schedule().apply(pf.LoopFusion()).lower()
    assert "T" in str(kernels) and "N_T" in kernels.code().source
    for use in (lambda: kernels.build(), lambda: kernels.global_bytes, lambda: kernels.shared_bytes):
        with pytest.raises(pf.ScheduleError, match=r"PF513: the sizes T are open"):
            use()


def test_generics() -> None:
    operator = PROGRAM.op("soft")
    graph = operator.graph({"F": "f64"}, {"B": 2})
    assert len(graph.tensor("x").shape) == 3 and str(graph.tensor("x").dtype) == "f64"
    special = operator.specialize({"F": "f16"}, {"B": 0}, H=4)
    assert [str(e) for e in special.graph.tensor("y").shape] == ["4"]


def test_trees_by_hand() -> None:
    plain = PROGRAM.op("centre").specialize(T=6, H=8).schedule()
    tree = plain.tree
    assert isinstance(tree, Sequence)
    assert plain.with_tree(tree).tree == tree and plain.legality()
    with pytest.raises(pf.ScheduleError, match="PF501") as caught:
        plain.with_tree(Sequence(tree.children[::-1]))
    assert "y(t=0, h=0) reads an element before it is written" in str(caught.value)
    assert "it needs c(t=0, h=0)" in str(caught.value)
    assert not plain.legality(Sequence(tree.children[::-1]))
    with pytest.raises(pf.ScheduleError, match="each statement of the graph once"):
        plain.with_tree(tree.children[0])
    with pytest.raises(pf.ScheduleError, match="each statement of the graph once"):
        plain.with_tree(Sequence((*tree.children, Leaf("mu"))))
    broken = plain.with_tree(Sequence(tree.children[::-1]), check=False)
    with pytest.raises(pf.ScheduleError):
        broken.lower()  # the proof is made in any case


def test_a_tree_that_does_not_tell_instances_apart() -> None:
    plain = pf.parse("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }").op().specialize(N=4).schedule()
    assert isinstance(plain.tree, Band)
    with pytest.raises(pf.ScheduleError, match="PF502"):
        plain.with_tree(plain.tree.child)


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "operator": (lambda: PROGRAM.op("center"), "(?s)PF411.*'center'.*centre"),
    "operator of compile": (lambda: pf.compile(PROGRAM, "sof"), "(?s)PF411.*soft"),
    "operator of nothing": (lambda: pf.compile("# later"), "PF411: the program has no operator"),
    "size": (lambda: PROGRAM.op("centre").specialize(M=3), "(?s)PF412.*'M'.*T, H"),
    "negative size": (lambda: PROGRAM.op("centre").specialize(T=-1), "PF412.*-1"),
    "a size that is no integer": (lambda: PROGRAM.op("centre").specialize(T=1.5), "PF412.*1.5"),  # type: ignore[arg-type]
    "layers as a text": (lambda: pf.compile(PROGRAM, layers="loop"), r"(?s)PF413.*\('loop',\)"),  # type: ignore[arg-type]
    "layer": (lambda: pf.compile(PROGRAM, layers=("lop",)), "(?s)PF413.*'lop'.*loop"),
    "target": (lambda: pf.compile(PROGRAM, target="tpu"), "(?s)PF414.*'tpu'.*cpu"),  # type: ignore[arg-type]
    "option": (lambda: pf.compile(PROGRAM, denormals="drop"), "PF490.*'drop'"),
    "statement": (
        lambda: PROGRAM.op("centre").specialize(T=2, H=2).schedule().explain("mo", "y"),
        "(?s)PF416.*'mo'.*mu",
    ),
    "pass": (
        lambda: PROGRAM.op("centre").specialize(T=2, H=2).schedule().apply("fuse"),  # type: ignore[arg-type]
        "(?s)PF413.*LoopFusion",
    ),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_names(call: Callable[[], object], message: str) -> None:
    with pytest.raises(pf.ArgumentError, match=message):
        call()


def test_unknown_switches() -> None:
    with pytest.raises(pf.ArgumentError, match="speed") as refused:
        pf.compile(PROGRAM, speed=3)
    assert refused.value.code == "PF490"


def test_the_decorated_function_names_the_operators_parameters() -> None:
    def scale(x: Any, factor: Any) -> Any:
        """op scale(x: f32[N], a: f32) -> (y: f32[N]) { y[i] = a * x[i] }"""

    with pytest.raises(pf.ArgumentError, match="takes x, factor, its operator takes x, a"):
        pf.op(scale)


def test_stages_lack_what_is_not_theirs() -> None:
    special = PROGRAM.op("centre").specialize(T=6, H=8)
    assert not hasattr(special, "lower") and not hasattr(special.schedule(), "build")
    assert not hasattr(PROGRAM, "schedule")


def test_a_stage_names_the_missing_call() -> None:
    operator: Any = PROGRAM.op("centre")
    special = operator.specialize(T=6, H=8)
    for stage, name, call in (
        (operator, "schedule", "specialize()"),
        (special, "apply", "schedule()"),
        (special.schedule(), "build", "lower()"),
        (special.schedule().lower(), "run", "build()"),
    ):
        with pytest.raises(AttributeError, match=rf"'{name}': call \.{re.escape(call)} first"):
            getattr(stage, name)
        assert not hasattr(stage, "no_such_name")


def test_representations_are_short() -> None:
    special = PROGRAM.op("centre").specialize(T=6, H=8)
    for value in (PROGRAM, PROGRAM.op("centre"), special, special.schedule(), special.schedule().lower()):
        assert repr(value).startswith("<polyfuse ") and len(repr(value)) < 200


def test_sizes_that_a_constraint_forbids() -> None:
    text = "op f(x: f32[N]) -> (y: f32[M]) where N == 2*M, M >= 1 { y[i] = x[2*i] }"
    operator = pf.parse(text).op()
    assert operator.specialize(N=8, M=4).graph.sizes == ()
    for sizes in ({"N": 8, "M": 3}, {"M": 0}):
        with pytest.raises(pf.ArgumentError, match="PF407"):
            operator.specialize(**sizes)


def test_sizes_that_read_out_of_range() -> None:
    program = pf.parse("op f(x: f32[N]) -> (y: f32) { y = x[3] }")
    with pytest.raises(pf.DslError, match=r"(?s)PF350.*N"):
        program.op().specialize(N=3)
    with pytest.raises(pf.DslError, match="PF350"):
        pf.compile(program)(np.ones(2, np.float32))
    assert pf.compile(program)(np.arange(4, dtype=np.float32)) == 3


def test_compare() -> None:
    plain = PROGRAM.op("centre").specialize(T=6, H=8).schedule()
    lines = pf.compare(plain.lower(), plain.apply(pf.LoopFusion()).lower()).splitlines()
    assert lines[0].split()[:2] == ["launches", "global"] and len(lines) == 3
    first, second = (line.split() for line in lines[1:])
    assert first[0] == "[0]" and int(first[1]) == 4 and int(second[1]) < 4
    assert len({len(line) for line in lines}) == 1
    assert pf.compare() == lines[0].strip() or pf.compare().split() == lines[0].split()


def test_figures() -> None:
    kernels = PROGRAM.op("centre").specialize(T=6, H=8).schedule().lower()
    assert kernels.barriers == kernels.library_calls == kernels.shared_bytes == 0
    row, grid = 6 * 4, 6 * 8 * 4
    assert kernels.global_bytes == (grid + row) + 2 * row + (grid + row + grid) + 2 * grid


@pf.op
def axpy(x, y, a):  # type: ignore[no-untyped-def]
    """op axpy(x: f32[N], y: f32[N], a: f32 = 2.0) -> (z: f32[N]) { z[i] = a * x[i] + y[i] }"""


def test_decorator() -> None:
    np.testing.assert_allclose(axpy(X[0], X[1], a=3.0), 3 * X[0] + X[1], rtol=1e-6)

    def nothing() -> None:
        pass

    with pytest.raises(pf.ArgumentError, match=r"PF415.*nothing"):
        pf.op(nothing)

    def wrong() -> None:
        """op wrong(x: f32[N]) -> (y: f32[N]) { y[i] = z[i] }"""

    with pytest.raises(pf.DslError, match=r"test_api.py.*wrong"):
        pf.op(wrong)


def test_standard_library() -> None:
    assert {"softmax", "layer_norm", "adamw"} <= set(pf.stdlib.ops)
    f = pf.compile(pf.stdlib, "softmax")
    np.testing.assert_allclose(f(X).sum(-1), np.ones(6), rtol=1e-5)
    g = pf.compile("op f(x: f32[T, H]) -> (y: f32[T, H]) { s = softmax(x); y[t, h] = s[t, h] * 2.0 }")
    np.testing.assert_allclose(g(X).sum(1), np.full(6, 2), rtol=1e-5)


def test_decisions_are_told() -> None:
    f = pf.compile(PROGRAM, "centre")
    text = f.explain(X)
    assert "+ rematerialise mu" in text and "+ schedule centre: legal" in text
    assert f.explain(X) == "\n".join(map(str, f.built(X).decisions))


def test_copies_of_entry_values_are_told() -> None:
    for right, sign in (("p[N - 1 - i]", "- in place p"), ("2.0 * p[i]", "+ in place p")):
        operator = pf.parse(f"op f(inout p: f32[N]) {{ p[i] = {right} }}").op()
        assert sign in operator.specialize(N=8).schedule().lower().explain()


def test_a_program_prints_itself() -> None:
    assert pf.parse(str(PROGRAM)).ops == PROGRAM.ops and "# centre and scale" in str(PROGRAM)


def test_dump(tmp_path: Any) -> None:
    pf.compile(PROGRAM, "centre", dump=tmp_path / "steps")(X)
    names = sorted(p.name for p in (tmp_path / "steps").iterdir())
    assert [n.split("_", 1)[1] for n in names][:4] == ["source.txt", "graph.txt", "clean.txt", "clusters.txt"]
    assert any(n.endswith(".cpp") for n in names)
    (tmp_path / "file").touch()
    with pytest.raises(
        pf.ArgumentError, match=r"(?s)PF490: the folder of dumps cannot be written: .*POLYFUSE_DUMP"
    ):
        pf.compile(PROGRAM, "centre", dump=tmp_path / "file" / "steps")(X)
