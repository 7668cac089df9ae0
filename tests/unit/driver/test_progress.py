"""Progress of a long compilation: who hears of it, and what they see."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from test_parallel_lowering import blocks, eventually

import polyfuse as pf
from polyfuse.cli import screen
from polyfuse.diagnostics import ArgumentError
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.options import Options
from polyfuse.support import progress
from polyfuse.support.progress import Progress, followed, tell

ARRAYS = np.ones((5, 9), "f4"), np.ones((9, 9), "f4")
CUT = Clustering(whole=2, library="never")


class Terminal:
    """Standard error, of which the last line is looked at."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, text: str) -> None:
        self.lines += [part for part in text.split("\r") if part]

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch: pytest.MonkeyPatch, after_s: float) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(progress, "AFTER_S", after_s)
    return made


def compiled(**how: Any) -> pf.Compiled:
    return pf.compile(blocks(3), target="interpret", clustering=CUT, checked=True, **how)


def test_a_function_hears_of_steps_and_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_JOBS", "1")
    told: list[Progress] = []
    compiled(progress=told.append)(*ARRAYS)
    steps = [p.phase for p in told]
    assert steps.index("graph") < steps.index("clusters") < steps.index("kernels")
    pieces = [p for p in told if p.phase == "clusters scheduled"]
    assert [p.done for p in pieces] == list(range(1, len(pieces) + 1))
    assert {p.total for p in pieces} == {len(pieces)} and len(pieces) > 2
    assert all(a.seconds <= b.seconds for a, b in pairwise(told))


def test_what_a_function_raises_ends_the_compilation() -> None:
    def stop(p: Progress) -> None:
        raise KeyboardInterrupt

    f = compiled(progress=stop)
    with pytest.raises(KeyboardInterrupt):
        f(*ARRAYS)
    assert progress._follower.get() is None


def test_a_line_on_a_terminal_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch, 60.0)
    compiled()(*ARRAYS)
    assert terminal.lines == []
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    monkeypatch.setenv("POLYFUSE_JOBS", "1")  # two helpers may be done between two lines
    compiled()(*ARRAYS)
    assert any(line.startswith("polyfuse: clusters scheduled 2 of") for line in terminal.lines)
    assert not terminal.lines[-1].strip() and len(terminal.lines[-1]) >= len(terminal.lines[-2].strip())


def test_nothing_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch, 0.0)
    compiled(progress=False)(*ARRAYS)
    assert terminal.lines == []


def test_nothing_where_nobody_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    compiled()(*ARRAYS)
    assert capsys.readouterr().err == ""
    compiled(progress=True)(*ARRAYS)
    assert "polyfuse: " in capsys.readouterr().err


def test_a_notebook_looks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    compiled()(*ARRAYS)
    assert "polyfuse: " in capsys.readouterr().err


def test_the_outer_display_stays() -> None:
    told: list[Progress] = []
    with followed(told.append), followed(None):
        tell("a step", 1, 2)
        with followed(False):
            tell("another", 1, 2)
    tell("outside", 1, 2)
    assert [str(replace(p, seconds=3.2)) for p in told] == ["a step 1 of 2, 3 s"]


def test_options() -> None:
    for wrong in (1, "yes", 0.5):
        with pytest.raises(ArgumentError) as refused:
            Options(progress=wrong)  # type: ignore[arg-type]
        assert refused.value.code == "PF490"


def test_what_a_compilation_took() -> None:
    f = compiled()
    text = f.cost(*ARRAYS)
    assert text.startswith("compiled in ") and "kernels" in text
    built = f.built(*ARRAYS)
    assert 10 << 20 < built.peak_bytes < 1 << 40 and f"{built.peak_bytes >> 20} MiB" in text


def test_the_commands_show_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(screen, "err", lambda: console)
    with screen.working("compiling"):
        tell("graph", 0, 1)
        tell("clusters scheduled", 3, 16)
        assert eventually(lambda: "compiling: clusters scheduled 3 of 16" in out.getvalue())
        tell("launches", 0, 1)
        assert eventually(lambda: "compiling: launches" in out.getvalue())


def test_the_commands_are_silent_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with screen.working("compiling"):
        compiled()(*ARRAYS)
    assert capsys.readouterr().err == ""
