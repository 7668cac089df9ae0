"""Kernels with sanitizers: what goes one element too far is found, wherever it lies; what is right passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sanitized_faults import TEXTS
from sanitized_processes import in_sanitized

TESTS = Path(__file__).resolve().parents[2]
FAULTS = TESTS / "helpers" / "sanitized_faults.py"


def test_each_fault_is_reported() -> None:
    on = "halt_on_error=0"
    ran = in_sanitized(str(FAULTS), *TEXTS, ASAN_OPTIONS=on, UBSAN_OPTIONS=on)
    found = set(re.findall(r"\bfault_(\w+)", ran.stderr))
    assert found == set(TEXTS) - {"right"}, ran.stderr
    assert ran.stdout.strip() == "ended"


@pytest.mark.parametrize("name", ["own_array", "overflow"])
def test_the_first_fault_ends_the_process(name: str) -> None:
    ran = in_sanitized(str(FAULTS), "right", name)
    assert ran.returncode != 0 and f"fault_{name}" in ran.stderr and "ended" not in ran.stdout


@pytest.mark.parametrize(
    "tests", ["unit/runtime/test_launcher.py", "property/test_random_kinds.py::test_kinds_agree[scans-0]"]
)
def test_right_code_has_no_report(tests: str) -> None:
    plain = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ran = in_sanitized(*plain, str(TESTS / tests), POLYFUSE_LAUNCHER="1", POLYFUSE_VERIFY="0")
    assert ran.returncode == 0, ran.stdout + ran.stderr


# The rest of the loop begins behind the row's start, and its lanes end behind the row's end.
SHIFTED_ROW = """
import numpy as np, polyfuse as pf
text = "op f(x: f16[T, N], g: f16[N + 1]) -> (y: f16[T, N]) { y[t, i] = x[t, i] * g[i + 1] }"
g = np.arange(64, dtype="f2")
y = pf.compile(text)(np.full((64, 63), 2, "f2"), g)
assert (y == 2 * g[1:]).all()
print("ended")
"""


def test_lanes_end_in_a_row_that_is_shared() -> None:
    ran = in_sanitized("-c", SHIFTED_ROW)
    assert ran.stdout.strip() == "ended", ran.stderr
