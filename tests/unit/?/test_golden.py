"""The command that compares generated code: what it says, and what it writes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # the benchmarks are not part of the package

from benchmarks import golden
from polyfuse.diagnostics import ScheduleError

RELU = [f"stdlib/relu|{target}" for target in ("cuda", "zen3", "zen5")]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command's file, without the hashing of real programs."""
    path = tmp_path / "codegen.txt"
    monkeypatch.setattr(golden, "FILE", path)
    monkeypatch.setattr(golden, "recorded", lambda: _recorded(path))
    monkeypatch.setattr(golden, "all_digests", lambda chosen, jobs: golden._digests(chosen))
    monkeypatch.setattr(golden, "text_of", lambda name, target: f"{name} for {target}")
    return path


_recorded = golden.recorded


def test_what_is_written_is_found_again(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert golden.main(["--write"]) == 0 and golden.main([]) == 0
    assert "0 differ" in capsys.readouterr().out
    lines = file.read_text().splitlines()
    assert lines == sorted(lines) and len(lines) == len(golden.cases())


def test_what_differs_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden.main(["--write"])
    lines = [line for line in file.read_text().splitlines() if "stdlib/relu|zen5" not in line]
    lines = [line[:-1] + "?" if "stdlib/relu|cuda" in line else line for line in lines]
    file.write_text("\n".join([*lines, "stdlib/unknown|zen3 0123456789abcdef"]))
    capsys.readouterr()
    assert golden.main([]) == 1
    out = capsys.readouterr().out
    assert "stdlib/relu|cuda: " in out and "stdlib/relu|zen5: is new" in out
    assert "stdlib/unknown|zen3: is gone" in out and "3 differ" in out
    assert golden.main(["--only", "stdlib/relu|"]) == 1
    assert "3 cases, 2 differ" in capsys.readouterr().out


def test_some_cases_are_written_anew(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden.main(["--write"])
    before = _recorded(file)
    monkeypatch.setattr(golden, "text_of", lambda name, target: "other")
    golden.main(["--write", "--only", "stdlib/relu|"])
    after = _recorded(file)
    assert [c for c in before if before[c] != after[c]] == RELU and list(before) == list(after)


def test_texts_are_written(file: Path, tmp_path: Path) -> None:
    assert golden.main(["--texts", str(tmp_path / "t"), "--only", "stdlib/relu|"]) == 0
    found = sorted(p.name for p in (tmp_path / "t").iterdir())
    assert found == [f"stdlib_relu_{t}.txt" for t in ("cuda", "zen3", "zen5")]


def test_an_unknown_case_is_wrong_usage(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        golden.main(["--only", "no such program"])
    assert "no case has no such program" in capsys.readouterr().err


def test_a_refusal_is_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*a: object) -> None:
        raise ScheduleError("no", code="PF502")

    monkeypatch.setattr(golden, "emitted", refused)
    assert golden.digest(golden.text_of("stdlib/relu", "zen3")) == "PF502"


def test_settings_and_lessons_of_the_user_play_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    want = golden.text_of("stdlib/softmax", "zen3")
    monkeypatch.setenv("POLYFUSE_NUM_THREADS", "7")
    monkeypatch.setenv("POLYFUSE_DUMP", "/dev/null/none")
    assert golden.text_of("stdlib/softmax", "zen3") == want
    assert os.environ["POLYFUSE_NUM_THREADS"] == "7"
    assert want != golden.text_of("stdlib/softmax", "cuda")
