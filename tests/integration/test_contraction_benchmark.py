"""The benchmark of contractions: tiles and BLAS compute the same, and both are timed."""

from __future__ import annotations

import sys
from math import erf
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of the package

from benchmarks.contractions import HEADS, measured  # noqa: E402
from benchmarks.product_peers import CASES, Case, call_of  # noqa: E402


def test_tiles_and_blas_are_timed_and_agree() -> None:
    found = measured((33, 65, 70), 1, 0.01)
    assert tuple(found) == HEADS
    assert all(found[name] > 0 for name in HEADS)
    assert found["error"] < 4


FORMS = (
    Case(9, 8, 11),
    Case(9, 8, 11, turned=True),
    Case(9, 8, 11, gelu=True),
    Case(9, 8, 11, 3),
    Case(9, 8, 11, 3, turned=True),
    Case(9, 8, 11, dtype="f16"),
    Case(9, 8, 11, dtype="bf16"),
)


@pytest.mark.parametrize("case", FORMS, ids=[c.label for c in FORMS])
def test_cases_beside_peers_compute_what_they_say(case: Case) -> None:
    x, w, s = (a.astype("f8") for a in case.factors())
    z = x @ (w.swapaxes(-1, -2) if case.turned else w)
    if case.gelu:
        z += s
        z *= 0.5 * (1 + np.vectorize(erf)(z * 0.5**0.5))
    found = np.asarray(call_of("polyfuse", case, 1)(), "f8")
    close = {"f32": 1e-5, "f16": 1e-2, "bf16": 1e-1}[case.dtype]
    np.testing.assert_allclose(found, z, rtol=close, atol=close)


def test_each_case_is_another() -> None:
    assert len({c.label for c in CASES}) == len({c.text + c.label for c in CASES}) == len(CASES) >= 16
