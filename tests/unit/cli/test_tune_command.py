"""`polyfuse tune`: a search from the command line, its plan in a file, and who takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from polyfuse.cli import app
from polyfuse.cli.tune import seconds_of
from polyfuse.tuning.search import Tuned
from polyfuse.tuning.table import Row, Tuning, Variant

TEXT = """op soft(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  y[t, h] = e[t, h] / sum[k](e[t, k])
}
"""
SMALL = ("--size", "T=6", "--size", "H=10")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("soft.pf").write_text(TEXT)
    return "soft.pf"


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, [*words])


def test_a_plan_is_searched_kept_and_taken(program: str) -> None:
    quick = ("--cost", "projected", "--no-measure", "--budget", "none", "--steps", "6", "--threads", "1")
    done = invoke("tune", program, *SMALL, *quick, "--out", "plan.json")
    assert done.exit_code == 0, done.output
    assert "soft(T=6, H=10)" in done.output and "projected us" in done.output
    assert "6 plans by the projected model, 0 measured" in done.output and "--plan plan.json" in done.output
    (entry,) = json.loads(Path("plan.json").read_text())["choices"].values()
    assert entry["operator"] == "soft"
    told = invoke("explain", program, *SMALL, "--plan", "plan.json", "--target", "cpu")
    assert told.exit_code == 0 and "pinned by plan.json" in told.output, told.output
    other = invoke("run", program, "--size", "T=7", "--size", "H=10", "--plan", "plan.json")
    assert other.exit_code == 2 and "PF428" in other.output and "at T=6, H=10" in other.output


def test_what_is_told_of_a_measured_plan(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    plan = Variant(("kernels apart",))
    rows = (Row(Variant(), 2e-6, 3e-6, spread=0.01), Row(plan, 1e-6, 2e-6, spread=0.02))

    def tune(operator: object, **settings: Any) -> Tuned:
        asked.update(settings)
        return Tuned(Tuning("soft", rows, plan, seconds=3.0, sizes=(("T", 6),), judge="learned"), 40, True)

    monkeypatch.setattr("polyfuse.cli.compiler.tune", tune, raising=False)
    done = invoke("tune", program, *SMALL, "--budget", "2m", "--search", "random", "--cost", "learned")
    assert done.exit_code == 0, done.output
    assert asked["budget"] == 120.0 and asked["search"] == "random" and asked["cost"] == "learned"
    assert asked["sizes"] == {"T": 6, "H": 10} and asked["measure"]
    assert "40 plans by the learned model, 2 measured in 3 s; interrupted" in done.output
    assert "kernels apart: 1.50 times as fast" in done.output and "2.0 +- 2%" in done.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--budget", "soon"), "takes a time"),
        (("--budget", "0s"), "takes a time"),
        (("--search", "best"), "there is no search 'best'"),
        (("--cost", "best"), "no model of cost"),
        (("--size", "K=3"), "no size 'K'"),
    ],
)
def test_wrong_usage(program: str, words: tuple[str, ...], told: str) -> None:
    done = invoke("tune", program, *words)
    assert done.exit_code == 2 and told in " ".join(done.output.split())


def test_times() -> None:
    assert [seconds_of(t) for t in ("90", "60s", "1.5m", "2h", "none")] == [90, 60, 90, 7200, None]
