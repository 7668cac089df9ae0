"""The benchmark of calls, as it runs without a GPU: short, and what it says of itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of the package

from benchmarks import calls  # noqa: E402
from polyfuse.runtime.cuda.launcher import DeviceLauncher  # noqa: E402
from polyfuse.runtime.cuda.open import cuda_available  # noqa: E402


@pytest.fixture(autouse=True)
def no_gpu() -> None:
    if cuda_available():
        pytest.skip("there is a GPU: what it measures there is measured on purpose")


def test_each_case_is_measured_for_each_library() -> None:
    found = calls.measure(calls=2, rounds=1)
    assert list(found) == list(calls.CASES)
    for name, libraries in found.items():
        assert list(libraries) == ["torch", "our own"]
        for times in libraries.values():
            assert set(times) == {"plain", "bound"} | ({"out"} if "in place" not in name else set())
            assert all(t > 0 for t in times.values())
    lines = calls.table(found).splitlines()
    assert len(lines) == 2 + 2 * len(calls.CASES) and len({line.count("|") for line in lines}) == 1


def test_what_is_measured_is_the_short_way() -> None:
    if DeviceLauncher.get() is None:
        pytest.skip("this interpreter has no launcher, or there is no C++ compiler")
    with calls.no_gpu():
        make = calls.libraries(False)["torch"]
        for case in calls.CASES.values():
            for name, call in calls.ways(case, make, in_place=True).items():
                call()
                if name == "plain":
                    f, given = call.func, call.args  # type: ignore[attr-defined]
                    assert f._device_short.call(given) is not NotImplemented


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "calls.json"
    assert calls.main(["--only", "add", "--calls", "2", "--rounds", "1", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "no GPU" in printed and "| add, 2 arguments | torch |" in printed
    assert list(json.loads(file.read_text())) == ["add, 2 arguments"]
    with pytest.raises(SystemExit) as left:
        calls.main(["--help"])
    assert left.value.code == 0 and "--rounds" in capsys.readouterr().out
