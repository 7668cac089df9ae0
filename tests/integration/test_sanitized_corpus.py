"""The standard library, examples, models and the operators of the benchmarks, as compiled with sanitizers.

A report ends the process with an exit status; `sanitized_corpus.py` says what runs there.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sanitized_processes import in_sanitized

SCRIPT = Path(__file__).resolve().parents[1] / "helpers" / "sanitized_corpus.py"
PARTS = 16
CORPORA = ("stdlib", "examples", "models", "operators")


def check(corpus: str, part: str, *sizes: str) -> None:
    ran = in_sanitized(str(SCRIPT), corpus, part, *sizes, seconds=1100, POLYFUSE_VERIFY="0")
    assert ran.returncode == 0, ran.stdout + ran.stderr[-8000:]
    number, *words = ran.stdout.split()
    assert words == ["operators"] and int(number) > 0, ran.stdout + ran.stderr[-8000:]


def test_one_has_no_report() -> None:
    check("operators", ":1", "tails")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("part", range(PARTS))
def test_all_have_no_report(corpus: str, part: int) -> None:
    check(corpus, f"{part}::{PARTS}")
