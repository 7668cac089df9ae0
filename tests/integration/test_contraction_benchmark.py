"""The benchmark of contractions: tiles and BLAS compute the same, and both are timed."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of the package

from benchmarks.contractions import HEADS, measured  # noqa: E402


def test_tiles_and_blas_are_timed_and_agree() -> None:
    found = measured((33, 65, 70), 1, 0.01)
    assert tuple(found) == HEADS
    assert all(found[name] > 0 for name in HEADS)
    assert found["error"] < 4
