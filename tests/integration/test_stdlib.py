"""Operators in files against NumPy and SciPy, and the form of the files.

The standard library first, then examples and workloads.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stdlib_cases import CASES, PROGRAMS, StdlibCase, programs, programs_for

import polyfuse as pf
from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.check import check_program
from polyfuse.frontend_dsl.syntax.ast import Program
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.library import read, source_files
from polyfuse.poly.legality.ranges import prove_ranges
from polyfuse.runtime.reference.evaluate import evaluate

ROOT = Path(__file__).parents[2]
FILES = source_files()
OPS = sorted(op.name for p in programs().values() for op in p.ops)

# float64 values of operators whose constants and scalars hold f32 numbers are that far from exact.
TOLERANCE = {"f64": 1e-11, "f32": 2e-6, "f16": 2e-6, "bf16": 2e-6}


def result_tensor(graph: TensorGraph, name: str) -> str:
    """The tensor that holds a result, or what an inout parameter becomes."""
    return next((t.name for t in graph.tensors if t.alias == name), name)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_numpy(case: StdlibCase) -> None:
    graph = case.graph()
    sizes = case.sizes(graph)
    found = evaluate(graph, sizes, case.inputs)
    expected = case.expected()
    assert {result_tensor(graph, n) for n in expected} == {
        *graph.outputs,
        *(t.name for t in graph.tensors if t.alias),
    }
    tolerance = max(case.tolerance, TOLERANCE[case.dtype])
    for name, want in expected.items():
        got = found[result_tensor(graph, name)]
        assert got.value.shape == want.shape, name
        assert not got.undecided.any(), name
        np.testing.assert_allclose(got.value, want, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_access_is_proved(case: StdlibCase) -> None:
    """At the sizes of the case nothing stays open."""
    graph = case.graph()
    diags = Diagnostics()
    still_open = prove_ranges(graph, case.sizes(graph), diags)
    diags.raise_if_errors()
    assert not still_open


@pytest.mark.parametrize("op", OPS)
def test_no_size_breaks_it(op: str) -> None:
    """With symbolic sizes proofs may stay open, but none fails."""
    for graph in {str(c.graph()): c.graph() for c in CASES if c.op == op and c.dtype == "f32"}.values():
        diags = Diagnostics()
        prove_ranges(graph, {}, diags)
        diags.raise_if_errors()


def test_every_operator_has_cases() -> None:
    assert sorted({case.op for case in CASES}) == OPS


def test_every_operator_is_tried_at_two_float_types() -> None:
    for op in OPS:
        assert {"f32", "f64"} <= {c.dtype for c in CASES if c.op == op}, op


@pytest.mark.parametrize("name", FILES)
def test_is_formatted(name: str) -> None:
    assert format_program(programs()[name]) == read(name)


@pytest.mark.parametrize("name", FILES)
def test_checks_without_warnings(name: str) -> None:
    program = programs()[name]
    others = tuple(p for p in programs().values() if p is not program)
    found = check_program(program, others).found
    assert not found, "\n".join(d.render() for d in found)


def test_operator_names_are_distinct() -> None:
    assert len(OPS) == len(set(OPS))
    assert programs_for("softmax")[0] is programs()["softmax.pf"]


def test_reference_is_up_to_date() -> None:
    """If not: make pages."""
    run = [sys.executable, str(ROOT / "docs" / "build_stdlib_reference.py"), "--check"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- examples and workloads --------------------------------------------------------------------------

OTHERS = sorted((*ROOT.glob("examples/*.pf"), *ROOT.glob("benchmarks/*/*.pf")))
WORKLOADS = [path for path in OTHERS if path.parent.name == "workloads"]


def stated_sizes(path: Path) -> list[dict[str, int]]:
    """What the line ``# sizes: T=1024 H=3072; T=4096 H=3072`` of a workload says."""
    line = next(x for x in path.read_text().splitlines() if x.startswith("# sizes: "))
    each = line.removeprefix("# sizes: ").split(";")
    return [{n: int(v) for n, v in (pair.split("=") for pair in one.split())} for one in each]


def main_graph(path: Path) -> TensorGraph:
    """The last operator of a file, which is the one that runs."""
    program = parse_text(path.read_text(), path.name)
    assert not program.imports
    return instantiate((program, *library_of(path)), program.ops[-1].name)


def library_of(path: Path) -> tuple[Program, ...]:
    """The library, for the ablation's operators; examples and workloads stand alone."""
    return tuple(programs().values()) if path.parent.name == "ablation" else ()


def _name(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


@pytest.mark.parametrize("path", OTHERS, ids=_name)
def test_other_files_are_formatted_and_sound(path: Path) -> None:
    program = parse_text(path.read_text(), path.name)
    assert format_program(program) == path.read_text()
    found = check_program(program, library_of(path)).found
    assert not found, "\n".join(d.render() for d in found)


@pytest.mark.parametrize("path", WORKLOADS, ids=_name)
def test_workloads_fit_their_sizes(path: Path) -> None:
    graph = main_graph(path)
    assert graph.name == path.stem
    for sizes in stated_sizes(path):
        assert sorted(sizes) == sorted(graph.sizes)
        diags = Diagnostics()
        assert not prove_ranges(graph, sizes, diags)
        diags.raise_if_errors()


@pytest.mark.parametrize("path", OTHERS, ids=_name)
def test_other_files_agree_with_numpy(path: Path) -> None:
    graph = main_graph(path)
    inputs, expect = PROGRAMS[path.stem]
    case = StdlibCase(graph.name, "f32", inputs, expect)
    found = evaluate(graph, case.sizes(graph), inputs)
    expected = case.expected(graph.outputs)
    for name, want in expected.items():
        got = found[result_tensor(graph, name)]
        assert got.value.shape == want.shape and not got.undecided.any(), name
        np.testing.assert_allclose(got.value, want, rtol=2e-6, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("path", [p for p in OTHERS if p.parent.name == "ablation"], ids=_name)
def test_operators_of_the_ablation_compile(path: Path) -> None:
    graph = main_graph(path)
    inputs, expect = PROGRAMS[path.stem]
    found = pf.compile(pf.parse(path), graph.name, target="cpu")(**inputs)
    wanted = StdlibCase(graph.name, "f32", inputs, expect).expected(graph.outputs)
    results = found if isinstance(found, tuple) else (found,)
    for name, got in zip(graph.outputs, results, strict=True):
        np.testing.assert_allclose(got, wanted[name], rtol=2e-5, atol=2e-5, err_msg=name)


def test_a_histogram_counts_borders_and_nothing_outside() -> None:
    """On a CPU, where quotients are exact."""
    x = np.array([0.0, 0.25, 0.5, 1.0, np.nan, np.inf, -np.inf, -0.5], np.float32)
    assert pf.compile(pf.stdlib, "histogram")(x, 0.0, 1.0, K=4).tolist() == [1, 1, 1, 1]
