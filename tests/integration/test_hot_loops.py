"""Object code of hot loops: no worse than the baseline, vectors, and no call of a math library."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from equivalence import cpu_source

from polyfuse import stdlib
from polyfuse.codegen.math.prelude import FUNCTIONS, prelude
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.signature import infer_generics
from polyfuse.ir import dtypes as dt
from polyfuse.ir.ops import OPS
from polyfuse.runtime.toolchain.compiler import find_compiler

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of the package

from stdlib_cases import programs_for  # noqa: E402

from benchmarks import stdlib_sizes  # noqa: E402
from benchmarks.counts import MARK, PAGE, baseline, source_of, table, worse  # noqa: E402
from benchmarks.hot_loops import (  # noqa: E402
    MARCHES,
    Counts,
    compiler_key,
    disassembled,
    hot_loops,
    missing,
    total,
)
from benchmarks.workload import select  # noqa: E402

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
V3, V4 = MARCHES
CASES = {case: workload for workload, case in select([])}
# What a target may compute by a call: copies of memory, and functions of our own.
OWN = re.compile(r"pf_|^mem(cpy|set|move)|^\*%")


def foreign(disassembly: str) -> list[str]:
    """What loops call that is none of ours."""
    return [c for loop in hot_loops(disassembly) for c in loop.called if not OWN.search(c)]


# Of fifty tensors one optimizer, the longer one.
@pytest.mark.parametrize("march", [pytest.param(V3, marks=pytest.mark.slow), V4])
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] * c.startswith("adam50")) for c in CASES]
)
def test_no_loop_is_worse_than_the_baseline(case: str, march: str) -> None:
    workload = CASES[case]
    disassembly = disassembled(source_of(workload.graph, workload.cases[case], march), march)
    assert foreign(disassembly) == []
    now = total(hot_loops(disassembly))
    assert now.vector + now.packed > 0
    known = baseline().get(compiler_key(), {}).get(march, {})
    if case not in known:
        pytest.skip(f"no baseline of {case} for {compiler_key()}: `python -m benchmarks.counts --update`")
    assert worse(now, known[case]) == [], "if that is meant: `python -m benchmarks.counts --update`"


def test_the_baseline_has_every_case_and_the_page_shows_it() -> None:
    page = PAGE.read_text("utf-8").split(MARK)[1]
    assert set(baseline()) and "gcc-12" in baseline()
    for compiler, marches in baseline().items():
        assert set(marches) == set(MARCHES)
        for march, rows in marches.items():
            assert set(rows) == set(CASES), f"{compiler}, {march}"
            assert "\n".join(table(rows)) in page


@pytest.mark.parametrize("march", MARCHES)
def test_a_clip_before_a_cast_stays_in_vectors(march: str) -> None:
    """gcc 12 makes branches of it, element by element, unless it is kept from that."""
    text = "op f(x: f32[N, M]) -> (y: u8[N, M]) { y[n, m] = u8(min(max(x[n, m] * 0.5, 0.0), 255.0)) }"
    now = total(hot_loops(disassembled(cpu_source(text, N=1000, M=1540), march)))
    assert now.scalar == 0 and now.vector + now.packed > now.instructions // 2


OF_TWO = {o.name for o in OPS.values() if o.arity == 2}


@pytest.mark.parametrize("march", MARCHES)
def test_functions_of_the_prelude_call_nothing(march: str) -> None:
    names = [n for n in sorted(FUNCTIONS) if re.fullmatch(r"pf_[a-z0-9]+_f(32|64)", n)]
    loops = []
    for n in names:
        c = "float" if n.endswith("32") else "double"
        args = "x[k], z[k]" if n.split("_")[1] in OF_TWO else "x[k]"
        loops.append(
            f'extern "C" void loop_{n}({c}* __restrict y, const {c}* x, const {c}* z, long n) '
            f"{{ for (long k = 0; k < n; ++k) y[k] = {n}({args}); }}"
        )
    disassembly = disassembled(prelude(names) + "\n".join(loops), march)
    found = hot_loops(disassembly)
    assert not any(loop.called for loop in found)
    vectors = {loop.function for loop in found if loop.counts().vector > 0}
    # AVX2 converts no integers of 64 bits to the floats of this loop.
    assert vectors >= {f"loop_{n}" for n in names if not n.startswith(("pf_isnan", "pf_bits"))}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", stdlib_sizes.table())
def test_no_operator_of_the_library_calls_a_math_library(name: str, dtype: str) -> None:
    sig = stdlib.op(name).signature
    generic = {p.name for p in sig.params if dict(sig.generics).get(p.dtype) == "float"}
    if not generic and dtype == "f8":
        pytest.skip("its types are fixed")
    given = stdlib_sizes.arguments(sig, stdlib_sizes.table()[name])
    given = {n: np.asarray(a).astype(dtype) if n in generic else a for n, a in given.items()}
    kinds = {n: k for n, a in given.items() if (k := dt.from_numpy(np.asarray(a).dtype)) is not None}
    dtypes, ranks = infer_generics(sig, kinds, {n: np.ndim(a) for n, a in given.items()})
    graph = instantiate(programs_for(name), name, dtypes=dtypes, ranks=ranks)
    shapes = {n: np.shape(a) for n, a in given.items()}
    sizes = bind_sizes(graph, shapes, stdlib_sizes.given(sig, stdlib_sizes.table()[name]))
    disassembly = disassembled(source_of(graph, sizes, V4), V4)
    assert foreign(disassembly) == []


SAMPLE = """
extern "C" float expf(float);
extern "C" void f(float* __restrict y, const float* x, long n) {
  for (long k = 0; k < n; ++k) y[k] = x[k] * 2.0f;
}
extern "C" void g(float* y, float* x, long n) {
  for (long k = 0; k < n; ++k) y[k] = expf(x[k]);
}
extern "C" float h(const float* x, long n, long m) {
  float s = 0;
  for (long j = 0; j < m; ++j) {
    for (long k = 0; k < n; ++k) s = s / x[j * n + k];
    s = s + 1.0f;
  }
  return s;
}
"""


def test_what_is_counted() -> None:
    loops = hot_loops(disassembled(SAMPLE, V3))
    inner = {name: [x for x in loops if x.function == name and not x.around] for name in "fgh"}
    assert sum(x.counts().vector for x in inner["f"]) >= 2
    assert not any(x.counts().calls for x in inner["f"])
    (g,) = inner["g"]
    assert g.called == ("expf",) and foreign(disassembled(SAMPLE, V3)) == ["expf"]
    assert g.counts().stores == 1 and g.counts().loads >= 1
    assert all(x.counts().divisions >= 1 and x.counts().scalar >= 1 for x in inner["h"])
    assert any(x.around and x.counts().around >= 2 for x in loops if x.function == "h")


def test_worse_is_found_and_noise_is_not() -> None:
    then = Counts(loops=1, instructions=100, vector=80, loads=20, stores=10).as_json()
    assert worse(Counts(1, 105, 84, 22, 10), then) == []
    assert worse(Counts(1, 80, 70, 15, 8), then) == []
    assert worse(Counts(1, 100, 80, 20, 10, calls=1), then) == ["calls: 1 instead of 0"]
    assert worse(Counts(1, 100, 60, 20, 10), then) == ["vector instructions: 60% of all instead of 80%"]
    assert worse(Counts(1, 100, 80, 30, 10, scalar=8), then) == [
        "loads: 30 instead of 20",
        "scalar: 8 instead of 0",
    ]


def test_the_key_of_a_compiler() -> None:
    c = find_compiler()
    assert re.fullmatch(r"(gcc|clang)-\d+", compiler_key(c))
