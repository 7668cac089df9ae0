"""Compile times grow hardly faster than programs: held by counts, not by time.

Calls of functions, Python's and isl's, from the text to C++ are counted between n and 4n steps of one kind;
isl's own work is held by a budget of its operations. `benchmarks.compile_growth` measures the seconds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import polyfuse as pf
from polyfuse.codegen.cpu.emit import CpuCode
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.driver import feedback
from polyfuse.driver.lowering import Lowered, Passes, lower_piece
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.poly.model import isl_bridge

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "tests"),
    str(ROOT / "tests" / "helpers"),
]  # neither is part of the package


from benchmarks.compile_growth import BAR, exponent, failures  # noqa: E402
from benchmarks.growth_programs import FAMILIES, MODEL, transformer  # noqa: E402

# Chains of clamped stencils and files of errors are held by tests of their own.
COUNTED = [n for n, f in FAMILIES.items() if n != "stencils" and not f.wrong]
START, MORE = 16, 4
# Norms are three statements each; up to 16 results are a cluster that is tried by fewer layers.
STARTS = {"layer norms": 6, "results": 20}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This process does all of the work, and learns nothing from earlier compilations."""
    monkeypatch.setenv("POLYFUSE_JOBS", "1")
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))


def compiled(text: str, sizes: dict[str, int], target: str = "cpu") -> tuple[Lowered, CpuCode | CudaCode]:
    """From text to C++."""
    graph = pf.parse(text).op().graph()
    passes = {"stitching": Stitching(), "packing": Packing()}
    options = pf.Options(threads=2, verify=False, dump=None)
    made = Compilation(graph, sizes, LoopFusion(), options, target=target, **passes)  # type: ignore[arg-type]
    return emitted(Watch(options), made)


def calls(run: Callable[[], object]) -> int:
    """Functions that a computation calls, in this thread."""
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.machine("zen3")
@pytest.mark.thin(2)
def test_work_grows_hardly_faster_than_the_program(name: str) -> None:
    family = FAMILIES[name]

    def work(n: int) -> int:
        return calls(lambda: compiled(family.text(n), dict(family.sizes), family.target))

    work(2)  # what is made once in a process
    start = STARTS.get(name, START)
    fixed, few, many = work(1), work(start), work(MORE * start)
    found = math.log((many - fixed) / (few - fixed)) / math.log((MORE * start - 1) / (start - 1))
    assert found < BAR, (fixed, few, many)


@pytest.mark.parametrize("name", ["pieces of rows", "scatters", "row sums"])
@pytest.mark.machine("zen3")
def test_isl_has_little_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the operations that a context may take; some were above, or beyond what it may take."""
    monkeypatch.setattr(isl_bridge, "MAX_OPERATIONS", 4_000_000)
    low, _ = compiled(FAMILIES[name].text(96), dict(FAMILIES[name].sizes))
    assert not any("maximal number of operations" in str(d) for d in low.decisions)


@pytest.mark.machine("zen3")
def test_equal_layers_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six layers of 40 operators are as many clusters to lower as three; of each two the last statement
    differs, which writes the result."""
    lowered: list[int] = []

    def counted(graph: TensorGraph, passes: Passes) -> object:
        lowered[-1] += 1
        return lower_piece(graph, passes)

    monkeypatch.setattr(feedback, "lower_piece", counted)
    lengths = []
    for layers in (3, 6):
        lowered.append(0)
        low, code = compiled(transformer(layers), dict(MODEL))
        lengths.append(len(code.source))
        assert len(low.scheduled.graph.statements) >= 35 * layers
    assert lowered[0] == lowered[1] < 60  # each form by all layers, some by fewer
    assert lengths[1] < 2 * lengths[0]  # bodies of equal kernels are printed once


@pytest.mark.machine("zen3")
def test_a_kernel_that_takes_no_more_pieces_says_so() -> None:
    low, _ = compiled(FAMILIES["pieces of rows"].text(50), dict(FAMILIES["pieces of rows"].sizes))
    said = [d for d in low.decisions if "40 pieces of a row" in str(d)]
    assert len(said) == 1 and not said[0].taken
    few, _ = compiled(FAMILIES["pieces of rows"].text(40), dict(FAMILIES["pieces of rows"].sizes))
    assert not any("pieces of a row" in str(d) for d in few.decisions)


def test_exponents_are_those_of_what_is_beyond_the_fixed_cost() -> None:
    counts = [10, 20, 40, 80, 160]
    assert exponent(counts, [0.5 + 0.01 * (n - 1) for n in counts], 0.5) == pytest.approx(1.0)
    assert exponent(counts, [3.0 + 1e-4 * (n - 1) ** 2 for n in counts], 3.0) == pytest.approx(2.0)


def test_what_is_above_its_bar_is_told() -> None:
    rows = [
        {"family": "statements", "exponent": 1.1, "counts": [64, 1024], "times": [1.0, 31.0]},
        {"family": "sums", "exponent": 1.31, "counts": [8, 128], "times": [1.0, 2.0]},
    ]
    assert failures(rows, 9.9) == ["sums: exponent 1.31", "1024 statements: 31.0 s"]
    assert failures([], 10.5) == ["12 layers of a transformer: 10.5 s"]
