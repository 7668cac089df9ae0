"""The generated code is what it was, but for names: a part of what `python -m benchmarks.golden` compares."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from halted import halted_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the benchmarks are not part of the package

from benchmarks import golden

RECORDED = golden.recorded()


@pytest.mark.parametrize("name", golden.some())
def test_code_is_what_it_was(name: str) -> None:
    now = {f"{name}|{target}": golden.digest(golden.text_of(name, target)) for target in golden.TARGETS}
    changed = golden.differences(now, {case: RECORDED[case] for case in now if case in RECORDED})
    hint = "python -m benchmarks.golden --show FOLDER --only shows what differs, --write accepts it"
    assert not changed, f"{changed}: {hint}"


def test_the_file_has_all_programs_and_no_others() -> None:
    assert sorted(RECORDED) == list(RECORDED) == sorted(golden.cases())
    groups = {name.partition("/")[0] for name in golden.programs()}
    assert {name.partition("/")[0] for name in golden.some()} == groups
    assert 90 < len(golden.some()) < 120


def test_a_busy_machine_makes_the_same_code() -> None:
    """isl orders the recurrence of this layer; its helper has a sixth of the time that it would have."""
    case = "operator/GRU layer|zen3"
    with halted_helper() as helper:
        assert golden.digest(golden.text_of(*case.split("|"))) == RECORDED[case]
        assert helper.starts == 1
