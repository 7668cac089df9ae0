"""What the C++ compiler says of loops that it did not vectorise is kept with the code, and explained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.runtime.toolchain.compiler import find_compiler
from polyfuse.runtime.toolchain.vector_report import REPORT, Missed, missed, not_vectorised, to_json

UNIT = """\
PF_INLINE float pf_f(float x) {
  for (int k = 0; k < 9; ++k) x *= x;
}
#define PF_EXPORT extern "C"

static __attribute__((noinline)) void pf_k0_0_body(
    float* b_y) {
  for (pf_i64 c0 = 0; c0 < 9; ++c0) {
    for (pf_i64 c1 = 0; c1 < 9; ++c1) {
      b_y[(c0 * 9) + c1] = 1;
    }
    for (pf_i64 c2 = 0; c2 < 9; ++c2) {
      b_y[c2] = b_y[c2 - 1];
    }
  }
}
"""
REPORTED = """\
kernel.cpp:2:21: missed: couldn't vectorize loop
kernel.cpp:2:21: missed: not vectorized: control flow in loop.
kernel.cpp:8:25: missed: couldn't vectorize loop
kernel.cpp:8:25: missed: not vectorized: loop nest containing two or more consecutive inner loops.
kernel.cpp:12:27: missed: couldn't vectorize loop
kernel.cpp:13:15: missed: not vectorized: unsupported use in stmt.
kernel.cpp:9:27: optimized: loop vectorized using 64 byte vectors
kernel.cpp:9:27: missed: couldn't vectorize loop
"""
CHAIN = """op f(x: f32[N]) -> (y: f32[N]) where N >= 1 {
  y[0] = x[0]
  y[i] = 0.5 * y[i-1] + x[i] for i in 1..N
}"""


def test_innermost_loops_of_kernels_are_told() -> None:
    """Not those around others, those in functions of the prelude, and what is left of vector loops."""
    assert missed(UNIT, REPORTED) == [Missed("k0_0", "c2", ("y",), "unsupported use in stmt")]
    assert missed(UNIT, "") == []


def test_files_that_say_nothing(tmp_path: Path) -> None:
    assert not_vectorised(tmp_path) == ()
    (tmp_path / REPORT).write_bytes(b"{")
    assert not_vectorised(tmp_path) == ()
    (tmp_path / REPORT).write_bytes(to_json([Missed("k0_0", "c2", (), "control flow in loop")]))
    (line,) = not_vectorised(tmp_path)
    assert str(line) == "- vectorise k0_0: the loop over c2 is no vector loop; gcc: control flow in loop"


def test_explain_says_so_from_the_cache_as_well() -> None:
    if find_compiler().kind != "gcc":
        pytest.skip("other compilers report otherwise")
    x = np.ones(300, "f4")

    def told(text: str) -> list[str]:
        f = pf.compile(text, target="cpu")
        return [line for line in f.explain(x).splitlines() if line.startswith("- vectorise")]

    first, again = told(CHAIN), told(CHAIN)
    assert first == again and len(first) == 1 and "writes y" in first[0] and "gcc: " in first[0]
    assert told("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] ** 2 }") == []
