"""The demo with small sizes: it agrees, writes what it says, and notices what is wrong."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    sys.path.insert(0, str(ROOT / "examples"))  # as for a script there
    try:
        return importlib.import_module("demo")
    finally:
        sys.path.pop(0)


def test_quick(demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--quick", "--output", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert [r["name"] for r in found["rows"]] == [c.name for c in demo.CASES]
    for row in found["rows"]:
        assert row["problems"] == [] and 0 <= row["worst_error_ratio"] < 1
        assert row["seconds"] > 0 and row["floor_s"] > 0
        assert 1 <= row["kernels_after"] <= row["kernels_before"]
        assert row["title"] in shown
        ElementTree.parse(tmp_path / f"{row['name']}.svg")
    assert "bias_residual_layer_norm.svg" in shown.replace("\n", "")


def test_a_wrong_result_is_noticed(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against NumPy, and against the reference: here both are asked about something else."""
    case = next(c for c in demo.CASES if c.name == "lstm_cell")

    def wrong(a: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {n: 2 * y for n, y in case.numpy(a).items()}

    monkeypatch.setattr(demo, "CASES", (replace(case, numpy=wrong),))
    assert demo.main(["--quick", "--output", str(tmp_path)]) == 1
    assert "far from that of NumPy" in capsys.readouterr().out
    shifted = {**case.part, "c": np.s_[1::4]}
    monkeypatch.setattr(demo, "CASES", (replace(case, part=shifted),))
    assert demo.main(["--quick", "--output", str(tmp_path)]) == 1
    assert "against the reference" in capsys.readouterr().out


def test_every_example_is_shown(demo: ModuleType) -> None:
    assert {c.file for c in demo.CASES} == {p.stem for p in (ROOT / "examples").glob("*.pf")}
