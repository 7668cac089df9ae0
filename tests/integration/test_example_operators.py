"""The operators of examples/operators: against NumPy, with every subset of the layers on every target.

Each at an ordinary size and at an odd one. In a usual run every third operator is compiled in two of the
sixteen ways, drawn by its name, and some by the CUDA compiler; `make test-all` does all.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys

import numpy as np
import pytest
from operator_cases import CASES, FOLDER, OperatorCase
from targets import DEVICES, Call, compare_results, told_apart
from thinned import thinned
from ways import WAYS, check, first_failure

from polyfuse.checking import check_text
from polyfuse.codegen.cuda.emit import emit_cuda_together
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import evaluate as evaluate_index
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.runtime.cuda.compiler import compile_cuda, find_nvcc, find_nvrtc
from polyfuse.runtime.inputs import fits
from polyfuse.runtime.interpreter.interpreter import InterpretedKernels
from polyfuse.runtime.reference.evaluate import evaluate

NO_CUDA = find_nvrtc() is None and find_nvcc() is None
FILES = sorted(path.stem for path in FOLDER.glob("*.pf"))


def test_every_file_has_two_cases() -> None:
    assert sorted({case.file for case in CASES}) == FILES
    for file in FILES:
        assert len([case for case in CASES if case.file == file]) >= 2


def test_the_page_is_up_to_date() -> None:
    script = str(FOLDER.parents[1] / "docs" / "build_examples.py")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", FILES)
def test_files_are_formatted_and_sound(file: str) -> None:
    """Without errors and lints."""
    text = (FOLDER / f"{file}.pf").read_text()
    assert format_program(parse_text(text, file)) == text
    found = check_text(text, file).found.found
    assert not found, "\n".join(d.render() for d in found)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_numpy(case: OperatorCase) -> None:
    call = case.bound()
    found = evaluate(call.graph, call.sizes, call.inputs)
    expected = case.expected()
    outputs = {t.alias or t.name: t.name for t in call.graph.tensors if t.role is Role.OUTPUT}
    assert sorted(outputs) == sorted(expected)
    for name, want in expected.items():
        got = found[outputs[name]]
        assert got.value.shape == want.shape, name
        assert not got.undecided.any(), name
        np.testing.assert_allclose(got.value, want, case.tolerance, case.tolerance, err_msg=name)


@pytest.mark.parametrize("case", thinned(CASES, 6), ids=str)
def test_calls_as_users_make_them(case: OperatorCase) -> None:
    """Compiled by default, and checked by the interpreter."""
    for how in ({"target": "cpu"}, {"target": "interpret", "checked": True}):
        found = case.call(**how)
        for name, want in case.expected().items():
            np.testing.assert_allclose(found[name], want, 1e-3, 1e-4, err_msg=f"{name}, {how}")


@pytest.mark.parametrize("file", thinned(FILES, 3))
def test_layers_and_targets_agree(file: str) -> None:
    calls = [case.bound() for case in CASES if case.file == file]
    dice = random.Random(file)
    ways = [dice.choice([w for w in WAYS if w.on_cpu == x]) for x in (True, False)]
    check([(call, way) for call in calls for way in ways])


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_all_layers_and_targets_agree(file: str) -> None:
    calls = [case.bound() for case in CASES if case.file == file]
    check([(call, way) for call in calls for way in WAYS])
    for call in calls:
        want = evaluate(call.graph, call.sizes, call.inputs)
        for way in (w for w in WAYS if w.on_cpu):  # whose kernels the interpreter runs
            arrays = call.memory()
            request = way.request(call)
            InterpretedKernels(request.kernels, checked=True, copied=request.copied).run(arrays)
            compare_results(call, arrays, want, f"{way}, interpreted")


def compile_for_gpus(calls: list[Call], ways: list[tuple[GpuTarget, bool, bool]]) -> None:
    """The CUDA compiler takes them, for devices, with loops fused or not, stitched or not."""
    requests = [r for call in calls for _, r in told_apart([call.device_request(*way, None) for way in ways])]
    code = emit_cuda_together(requests)[0]
    assert compile_cuda(code.source, "sm_90", timeout_s=300).resources


needs_cuda = pytest.mark.skipif(
    NO_CUDA, reason="neither NVRTC (pip install nvidia-cuda-nvrtc-cu12) nor nvcc is here"
)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("values", [(np.nan,), (np.inf, -np.inf)], ids=["nan", "infinities"])
def test_special_values_agree(file: str, values: tuple[float, ...]) -> None:
    """One of each float argument is such a value. What then hangs on a comparison may be anything."""
    rng, dice = np.random.default_rng(len(file)), random.Random(file)
    calls = [case.bound() for case in CASES if case.file == file]
    for call in calls:
        for name, array in call.inputs.items():
            if array.dtype.kind == "f" and array.ndim:
                call.inputs[name] = array.copy()
                for value in values:
                    call.inputs[name].flat[rng.integers(array.size)] = value
    ways = [dice.choice([w for w in WAYS if w.stitched and w.on_cpu == x]) for x in (True, False)]
    failure = first_failure([(call, way) for call in calls for way in ways], vague=True)
    assert failure is None, str(failure)


def smallest_sizes(graph: TensorGraph, least: int) -> dict[str, int] | None:
    """Sizes of at least so much that the operator takes, with the least sum."""
    choices = itertools.product(range(least, least + 3), repeat=len(graph.sizes))
    found = (dict(zip(graph.sizes, values, strict=True)) for values in sorted(choices, key=sum))
    return next((sizes for sizes in found if fits(graph, sizes)), None)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[::2], ids=str)
@pytest.mark.parametrize("least", [0, 1])
def test_smallest_sizes_agree(case: OperatorCase, least: int) -> None:
    """Without elements, and with one where there have to be some; integers are 0."""
    graph = case.graph()
    sizes = smallest_sizes(graph, least)
    if sizes is None:
        pytest.skip("sizes of this operator are larger")
    rng, inputs = np.random.default_rng(least), {}
    for t in (t for t in graph.tensors if t.role in (Role.INPUT, Role.INOUT)):
        values = rng.uniform(0.2, 1.8, [evaluate_index(e, sizes) for e in t.shape])
        inputs[t.name] = (values if t.dtype.is_float else np.zeros_like(values)).astype(t.dtype.numpy)
    call = Call(f"{case.op} at {sizes}", case.op, graph, sizes, inputs)
    dice = random.Random(str(case))
    check([(call, dice.choice([w for w in WAYS if w.on_cpu == x])) for x in (True, False)])


@needs_cuda
@pytest.mark.parametrize("file", thinned(FILES, 6))
def test_cuda_compiles(file: str) -> None:
    calls = [case.bound() for case in CASES if case.file == file]
    compile_for_gpus(calls[1:2], [(GpuTarget(sms=132), True, True)])


@needs_cuda
@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_cuda_compiles_with_all_layers(file: str) -> None:
    """For a large GPU, and for one whose reductions are split."""
    devices = (GpuTarget(sms=132), DEVICES["usual"])
    ways = [(d, f, s) for d in devices for f in (True, False) for s in (True, False)]
    compile_for_gpus([case.bound() for case in CASES if case.file == file], ways)
