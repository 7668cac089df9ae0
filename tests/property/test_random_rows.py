"""Random operators over rows and columns, on every target, against the float64 reference.

Compiled for the CPU with arrays that lie in memory in many ways, fused and unfused, and in the emulator of a
GPU. Few seeds in a usual run; `make test-all` runs many more. A failure names its seed, and shows the
operator and the layouts.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from row_arrays import LAYOUTS, Array, laid_out
from row_programs import RowProgram, random_row_program
from targets import Call, check_emulated, check_everywhere
from thinned import thinned

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import Role, Tensor, TensorGraph
from polyfuse.runtime.cpu import executable
from polyfuse.runtime.reference.agreement import FEW_ELEMENTS, MOST_UNDECIDED, agrees
from polyfuse.runtime.reference.evaluate import Evaluated, evaluate

TOGETHER = 10
GROUPS = range(10)
# The long run: POLYFUSE_TEST_ROWS=200:800 chooses other seeds (a group is 10 of them).
FIRST, LAST = map(int, os.environ.get("POLYFUSE_TEST_ROWS", "10:60").split(":"))
MORE_GROUPS = range(FIRST, LAST)
# Elements: few where an operator is computed in many ways, fewer where it is on threads that take turns.
FEW, FEWEST = 3000, 1200


def graph_of(p: RowProgram) -> TensorGraph:
    return instantiate(parse_text(p.text), p.op)


def seeds_of(group: int) -> range:
    return range(group * TOGETHER, (group + 1) * TOGETHER)


def is_vague(want: Evaluated) -> bool:
    """Are so many elements undecided that arrays cannot be said to agree?"""
    return want.undecided.size >= FEW_ELEMENTS and bool(want.undecided.mean() >= MOST_UNDECIDED)


def outputs(graph: TensorGraph) -> list[Tensor]:
    return [t for t in graph.tensors if t.role is Role.OUTPUT]


def is_decided(p: RowProgram) -> bool:
    graph = graph_of(p)
    want = evaluate(graph, p.sizes, p.inputs)
    return not any(is_vague(want[t.name]) for t in outputs(graph))


# --- compiled, with arrays of any layout ---


def check_compiled(seed: int) -> None:
    """Two calls that make new arrays, and one into arrays of the caller's."""
    p = random_row_program(seed)
    graph = graph_of(p)
    want = evaluate(graph, p.sizes, p.inputs)
    function = pf.compile(p.text, p.op, target="cpu", threads=2)
    made, again = called(p, graph, function), called(p, graph, function)
    given = called(p, graph, function, {n: np.zeros(a.shape, a.dtype) for n, a in made.items()})
    for name, a in made.items():
        assert a.tobytes() == again[name].tobytes(), f"seed {seed}, {name}: another call differs\n{p}"
        for how, found in (("made", a), ("given", given[name])):
            outcome = agrees(found, want[name], graph.tensor(name).dtype)
            vague = is_vague(want[name]) and outcome.worst_ratio <= 1 and not outcome.mismatches
            assert outcome or vague, f"seed {seed}, {name}, {how}: {outcome.message}\n{p}"


def called(
    p: RowProgram, graph: TensorGraph, function: Any, like: dict[str, Array] | None = None
) -> dict[str, Array]:
    """All results of a call, which must change nothing else; in new arrays, or in given ones like these."""
    changed = {t.alias: t.name for t in outputs(graph) if t.alias}
    names = [t.name for t in outputs(graph) if not t.alias]
    arguments = p.arguments()
    if like and names:
        out = {n: laid_out(like[n], p.layouts[n]) for n in names}
        function(**arguments, out=out)
        results = dict(out)
    else:
        found = function(**arguments)
        results = dict(zip(names, found if isinstance(found, tuple) else (found,), strict=False))
    for name, a in arguments.items():
        if name in changed:
            results[changed[name]] = a
        else:
            assert a.tobytes() == p.inputs[name].tobytes(), f"seed {p.seed}: {name} has changed\n{p}"
    return results


def check_group(group: int) -> None:
    for seed in seeds_of(group):
        try:
            check_compiled(seed)
        except pf.PolyfuseError as e:
            raise AssertionError(f"seed {seed}: {e!r}\n{random_row_program(seed)}") from e


@pytest.mark.parametrize("group", thinned(GROUPS, 10))
def test_arrays_of_any_layout(group: int) -> None:
    check_group(group)


@pytest.fixture
def shared(parallel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small operators are shared out among workers as large ones are."""
    monkeypatch.setattr(executable, "PARALLEL_WORK", 1)


@pytest.mark.parametrize("group", thinned(range(1000, 1010), 10))
def test_arrays_of_any_layout_on_two_threads(group: int, shared: None) -> None:
    check_group(group)


# --- compiled and interpreted, fused and unfused, and on a GPU that is emulated ---


def calls_of(group: int, points: int) -> list[Call]:
    """Those about which enough can be said."""
    programs = [random_row_program(seed, points) for seed in seeds_of(group)]
    return [Call(f"seed {p.seed}", str(p), graph_of(p), p.sizes, p.inputs) for p in programs if is_decided(p)]


@pytest.mark.parametrize("group", thinned(GROUPS, 10))
def test_fused_and_unfused_agree(group: int) -> None:
    check_everywhere(calls_of(group, FEW))


@pytest.mark.parametrize("group", thinned(GROUPS, 10))
def test_emulated_kernels_agree(group: int) -> None:
    check_emulated(calls_of(group, FEWEST))


# --- the long run ---


@pytest.mark.slow
@pytest.mark.parametrize("group", MORE_GROUPS)
def test_arrays_of_any_layout_in_many(group: int) -> None:
    check_group(group)


@pytest.mark.slow
@pytest.mark.parametrize("group", MORE_GROUPS)
def test_arrays_of_any_layout_on_two_threads_in_many(group: int, shared: None) -> None:
    check_group(group)


@pytest.mark.slow
@pytest.mark.parametrize("group", MORE_GROUPS)
def test_fused_and_unfused_agree_on_many(group: int) -> None:
    check_everywhere(calls_of(group, FEW))


@pytest.mark.slow
@pytest.mark.parametrize("group", MORE_GROUPS)
def test_emulated_kernels_agree_on_many(group: int) -> None:
    """Fused or not, stitched or not."""
    check_emulated(calls_of(group, FEWEST), fused=(True, False), stitched=(False, True), orders=("random",))


# --- the operators themselves ---


def test_same_seed_same_operator() -> None:
    for seed in range(20):
        one, other = random_row_program(seed), random_row_program(seed)
        assert str(one) == str(other)
        assert {n: a.tobytes() for n, a in one.inputs.items()} == {
            n: a.tobytes() for n, a in other.inputs.items()
        }


def test_arrays_in_every_layout_are_equal() -> None:
    for shape in ((), (5,), (0, 3), (4, 7), (2, 3, 4)):
        a = np.arange(np.prod(shape)).reshape(shape)
        for layout in LAYOUTS:
            np.testing.assert_array_equal(laid_out(a, layout), a, strict=True)


def test_nearly_all_operators_are_decided() -> None:
    vague = [seed for seed in range(60) if not is_decided(random_row_program(seed, FEW))]
    assert len(vague) < 4, vague
