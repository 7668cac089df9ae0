"""What the shell is offered while a command line is typed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyfuse.cli import app
from polyfuse.cli.stages import STAGES
from polyfuse.options import TARGETS

PROGRAM = """\
op first(x: f32[N]) -> (y: f32[N]) { y[i] = exp(x[i]) }
op second[F: float](x: F[B..., T, H]) -> (y: F[B..., T]) { y[b..., t] = sum[h](x[b..., t, h]) }
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ops.pf").write_text(PROGRAM, encoding="utf-8")
    Path("broken.pf").write_text("op f(", encoding="utf-8")
    Path("notes.txt").write_text("", encoding="utf-8")
    Path("more").mkdir()


def offered(*words: str) -> list[str]:
    """What may stand for the last word, which is unfinished."""
    env = {
        "_POLYFUSE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("polyfuse", *words)),
        "COMP_CWORD": str(len(words)),
    }
    return CliRunner().invoke(app, prog_name="polyfuse", env={**os.environ, **env}).stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("emit", "ops.pf", "--stage", ""), list(STAGES)),
        (("emit", "ops.pf", "--stage", "sche"), ["schedule", "schemes"]),
        (("run", "ops.pf", "--target", ""), list(TARGETS)),
        (("run", "ops.pf", "--layers", "loop,"), ["loop,stitch", "loop,pack", "loop,none"]),
        (("run", "ops.pf", "--op", ""), ["first", "second"]),
        (("run", "ops.pf", "--size", ""), ["B_0=", "T=", "H="]),
        (("run", "ops.pf", "--size", "T=3,"), ["T=3,B_0=", "T=3,H="]),
        (("run", "ops.pf", "--op", "first", "--size", ""), ["N="]),
        (("run", "ops.pf", "--rank", ""), ["B="]),
        (("run", "ops.pf", "--dtype", ""), ["F="]),
        (("run", "ops.pf", "--dtype", "F=b"), ["F=bf16", "F=bool"]),
        (("run", "stdlib:softmax", "--size", "H"), ["H="]),
        (("run", "stdlib:linear", "--without", ""), ["bias"]),
        (("run", "stdlib:layer_norm_"), ["stdlib:layer_norm_stats", "stdlib:layer_norm_backward"]),
        (("run", "std"), ["stdlib:"]),
        (("check", ""), ["broken.pf", "more/", "ops.pf"]),
        (("stdlib", "rms_norm"), ["rms_norm", "rms_norm_backward"]),
        (("explain", "PF40"), [f"PF40{k}" for k in range(10)]),
    ],
    ids=lambda p: " ".join(p) if isinstance(p, tuple) else "",
)
def test_what_is_offered(words: tuple[str, ...], expected: list[str]) -> None:
    assert offered(*words) == expected


@pytest.mark.parametrize("file", ["broken.pf", "missing.pf", "more", "-", "stdlib:none"])
def test_a_file_without_operators_offers_nothing(file: str) -> None:
    assert offered("run", file, "--size", "") == []
