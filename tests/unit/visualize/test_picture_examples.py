"""The examples of the page of pictures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "pictures.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) > 5
    known: dict[str, object] = {}
    for block in blocks:
        exec(block, known)
    assert (tmp_path / "triangle.svg").is_file()
    import polyfuse as pf

    assert {n for n in pf.visualize.__all__ if n != "Picture"} == set(
        re.findall(r"^\| `(\w+)` \|", text, re.M)
    )
