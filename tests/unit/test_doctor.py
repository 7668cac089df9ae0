"""The doctor: what it finds, with and without a compiler, and that it never raises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyfuse.runtime import doctor
from polyfuse.runtime.doctor import Finding


def _by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {f"{f.group}.{f.name}": f for f in findings}


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(folder))
    return folder


def test_a_good_machine(private_cache: Path) -> None:
    found = _by_name(doctor.examine())
    assert [f.name for f in found.values() if f.state == "missing"] == []
    assert found["Software.numpy"].detail[0].isdigit()
    assert found["Compiler.C++"].state == "ok"
    assert found["Cache.folder"].detail == str(private_cache)
    assert found["Targets.cpu"].state == "ok"
    assert "not built" in found["Targets.cuda"].detail
    assert found["Environment.POLYFUSE_CACHE_DIR"].detail == str(private_cache)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    findings = doctor.examine()
    found = _by_name(findings)
    compiler = found["Compiler.C++"]
    assert compiler.state == "missing"
    assert "PF701" in compiler.detail
    assert compiler.remedy is not None and "apt install g++" in compiler.remedy
    assert found["Targets.cpu"].state == "note"
    assert found["Targets.interpret"].state == "ok"
    assert not doctor.can_measure(findings)


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NEEDED", ("numpy", "no_such_package"))
    found = _by_name(doctor.examine())["Software.no_such_package"]
    assert (found.state, found.remedy) == ("missing", "pip install no-such-package")


def test_threads_that_are_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_NUM_THREADS", "many")
    found = _by_name(doctor.examine())["Machine.threads"]
    assert found.state == "missing" and "PF705" in found.detail


def test_a_cache_that_others_can_write(private_cache: Path) -> None:
    private_cache.mkdir()
    private_cache.chmod(0o777)
    found = _by_name(doctor.examine())["Cache.folder"]
    assert found.state == "note" and "others can write to it" in found.detail
    assert found.remedy is not None


def test_json() -> None:
    findings = doctor.examine()
    text = json.dumps(doctor.as_dict(findings, [{"read": 1.0}]))
    back = json.loads(text)
    assert back["software"]["python"]["state"] == "ok"
    assert back["measured"] == [{"read": 1.0}]
    assert "measured" not in doctor.as_dict(findings, [])


@pytest.mark.slow
def test_measurements() -> None:
    rates = doctor.measurements()
    sizes = [r["working_set_bytes"] for r in rates]
    assert sizes == sorted(set(sizes)) and all(r["read"] > 0 for r in rates)
