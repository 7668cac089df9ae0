"""Every tutorial runs from top to bottom, quickly, from any folder, and leaves no files behind."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
TUTORIALS = sorted(FOLDER.glob("*.py"))
LIMIT_S = 60  # they take one to three seconds on an idle machine


def test_there_are_tutorials() -> None:
    assert len(TUTORIALS) >= 9


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda t: t.stem)
def test_runs(tutorial: Path, tmp_path: Path) -> None:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(tutorial)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert done.stdout.strip() and not done.stderr
    assert list(tmp_path.iterdir()) == []
    print(f"{tutorial.name}: {time.perf_counter() - start:.1f} s")


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda t: t.stem)
def test_is_a_tutorial(tutorial: Path) -> None:
    """Prose and code alternate, claims are asserted, and the index and the links lead somewhere."""
    text = tutorial.read_text(encoding="utf-8")
    prose, code = text.count("# %% [markdown]\n"), len(re.findall(r"^# %%$", text, re.MULTILINE))
    assert prose >= 5 and code >= 5
    assert len(re.findall(r"^ *assert ", text, re.MULTILINE)) >= 5
    for target in re.findall(r"\]\(([\w./]+\.(?:py|md))\)", text):
        assert (FOLDER / target).exists(), target
    assert f"({tutorial.name})" in (FOLDER / "index.md").read_text(encoding="utf-8")
