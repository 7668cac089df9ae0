"""What `explain()` says of loops is what was printed: the decisions beside the text, over the workloads and
the operators that are timed, for cores that are named."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from thinned import thinned

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # the benchmarks are not part of the package

from benchmarks.golden_programs import of_case, programs
from benchmarks.operators import CASES, Case
from polyfuse.api import parse
from polyfuse.codegen.cpu.pipeline import PIPELINES
from polyfuse.codegen.decisions import as_printed
from polyfuse.decisions import Decision
from polyfuse.driver.kernel_stages import Kernels
from polyfuse.driver.pipeline import Compilation, Watch, printed
from polyfuse.driver.targets import told
from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "passes.md"
CORES = {"avx512": Core(), "avx2": AVX2}
WAYS = [(core, threads) for core in CORES for threads in (1, 4)]
KINDS = ("stream", "prefetch lines", "prefetch rows", "transpose", "tile")
# Each way has a part of the operators in a usual run, all of them in a long one.
EVERY = [(c, *WAYS[(k + s) % len(WAYS)]) for s in range(len(WAYS)) for k, c in enumerate(CASES)]


WORKLOADS = [name for name in programs() if name.startswith("workload/")]

# What is in the text: a name or a call that only some passes make, those that make it wherever they change
# something, and those that may.
_LANES = "outer-vectorize:recurrences"
TRACES = (
    (r"\btile\d+_row\b", ("register-tiling",), ()),
    (
        r"\bpf_turn\w*<",
        ("transpose-tiles:loads", "transpose-tiles:stores", _LANES),
        ("outer-vectorize:short-rows",),
    ),
    (r"\bnext_", ("software-pipelining",), ()),
    (
        r"\brow1_",
        ("unroll-and-jam:interleaved-rows", "unroll-and-jam:recurrences", "software-pipelining"),
        (),
    ),
    (r"\ball_", ("unroll-and-jam:batched-rows", "unroll-and-jam:batched-loops"), (_LANES,)),
    (r"\bwide\d+\b", ("invariant-motion:conversions",), ()),
)


def decided(
    graph: TensorGraph, sizes: Mapping[str, int], core: Core, threads: int
) -> tuple[tuple[Decision, ...], str]:
    """The decisions as they are told, and the functions."""
    options = Options(threads=threads, verify=False)
    layers = {"stitching": Stitching(), "packing": Packing(), "knobs": CpuKnobs(core=core)}
    compilation = Compilation(graph, sizes, LoopFusion(), options, **layers)
    low = compilation.lowered(Watch(options))
    code = printed(Watch(options), compilation, low)
    return told(low.decisions, code, low.kernels), code.source[code.source.index("#define PF_EXPORT") :]


def has(kind: str, name: str, text: str) -> bool:
    """Does the text of functions have what a decision says of a tensor?"""
    requests = re.findall(rf"__builtin_prefetch\(&b_{name}\[.*", text)
    turned = [t for t in re.findall(r"pf_turn(?:_short)?<[^;]*;", text) if f"&b_{name}[" in t]
    match kind:
        case "stream":
            return f"pf_stream(&b_{name}[" in text
        case "prefetch rows":
            return any(", 0, 2)" not in r for r in requests)
        case "prefetch lines":
            return bool(requests) or any(re.match(r"pf_turn<\d, 1>", t) for t in turned)
        case "transpose":
            return bool(turned)
        case _:
            return bool(re.search(r"_acc\[\d+\]\[|PF_SUMS", text))


PARTS = [EVERY[k : k + len(CASES)] for k in range(0, len(EVERY), len(CASES))]


@pytest.mark.parametrize(
    ("case", "core", "threads"), [p for part in PARTS for p in thinned(part, 9, several=True)]
)
def test_what_is_told_of_an_operator_is_in_its_text(case: Case, core: str, threads: int) -> None:
    compare(*decided(*of_case(case), CORES[core], threads))


@pytest.mark.parametrize(
    ("name", "core"), thinned([(n, c) for n in WORKLOADS for c in CORES], 3, several=True)
)
def test_what_is_told_of_a_workload_is_in_its_text(name: str, core: str) -> None:
    compare(*decided(*programs()[name](), CORES[core], 4))


def compare(decisions: tuple[Decision, ...], text: str) -> None:
    """Each decision about loops, and each pass that leaves a trace, beside the text."""
    acted = {d.kind for d in decisions if d.taken}
    for trace, always, sometimes in TRACES:
        if re.search(trace, text):
            assert acted & {*always, *sometimes}, f"{trace} is there, and no pass says so"
        else:
            assert not acted & {*always}, f"{trace} is not there"
    mine = [(d, name) for d in decisions if d.kind in KINDS for name in d.subject.split(", ")]
    taken = {(d.kind, name) for d, name in mine if d.taken}
    alike = {
        "prefetch lines": "prefetch rows",
        "prefetch rows": "prefetch lines",
    }  # requests of both are alike in the text
    for d, name in mine:
        if d.taken:
            assert has(d.kind, name, text), str(d)
        elif d.kind != "tile" and not {(d.kind, name), (alike.get(d.kind, ""), name)} & taken:
            assert not has(d.kind, name, text), str(d)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("threads", (1, 4))
def test_the_gradient_of_an_rms_norm_goes_past_the_caches(core: str, threads: int) -> None:
    """Its loop stores the one gradient and adds to the other: `explain()` said what it did not do."""
    (case,) = (c for c in CASES if c.name == "gradient of an RMS norm, one dot of a row")
    decisions, text = decided(*of_case(case), CORES[core], threads)
    assert [d.taken for d in decisions if d.kind == "stream"] == [True]
    assert "pf_stream(&b_dx[" in text


def test_the_page_of_passes_shows_what_is_told() -> None:
    decisions, _ = decided(*programs()["workload/res_ln_1024"](), CORES["avx512"], 4)
    names = {p.name for line in PIPELINES for p in line.passes}
    told_lines = [str(d) for d in decisions if d.kind in names]
    assert len(told_lines) > 2
    assert "\n".join(told_lines) in PAGE.read_text(encoding="utf-8")


def test_a_decision_is_divided_by_what_was_printed() -> None:
    plan = [
        Decision("prefetch lines", "a, b, c", True, "lines come early"),
        Decision("map", "x", True, ""),
    ]
    kept, left, other = as_printed(plan, {("prefetch lines", "a"), ("prefetch lines", "c"), ("stream", "b")})
    assert str(kept) == "+ prefetch lines a, c: lines come early"
    assert str(left) == "- prefetch lines b: no vector loop goes along lines that are not near yet"
    assert other == plan[1]
    assert as_printed([Decision("stream", "y", False, "why")], set()) == (
        Decision("stream", "y", False, "why"),
    )


STEPS = """op f(x: f32[N], i: i64[N]) -> (y: f32[N], z: f32[N]) {
  y[n] = 2.0 * x[n]
  z[n] = x[i[n]] }"""


def test_kernels_tell_the_same_as_the_compiled_function() -> None:
    """z is stored by a loop that loads by data, so only y goes past the caches."""
    kernels: Kernels = parse(STEPS).op().specialize(N=1 << 22).schedule().lower(target="cpu")
    text, said = kernels.code().source, kernels.explain()
    for name in ("y", "z"):
        assert (f"pf_stream(&b_{name}[" in text) == bool(re.search(rf"\+ stream [^:]*\b{name}\b", said))
