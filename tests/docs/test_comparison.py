"""The comparison with other compilers: each source is numbered, linked and used, and the page has a date."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "comparison.md").read_text(encoding="utf-8")
BODY, _, SOURCES = TEXT.partition("## Sources")


def test_sources_are_numbered_linked_and_used() -> None:
    lines = re.findall(r"^(\d+)\. .*\]\((https://[^)]+)\)", SOURCES, re.MULTILINE)
    assert [int(n) for n, _ in lines] == list(range(1, len(lines) + 1))
    assert len({url for _, url in lines}) == len(lines) >= 15
    used = {int(n) for group in re.findall(r"\[(\d+(?:, \d+)*)\](?!\()", BODY) for n in group.split(", ")}
    assert used == set(range(1, len(lines) + 1))


def test_it_has_a_date_and_each_row_a_cell_for_each() -> None:
    assert re.search(r"on \d{4}-\d{2}-\d{2}", BODY)
    rows = [line for line in BODY.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1 and len(rows) > 8
