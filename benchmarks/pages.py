"""The measured part of a page of the documentation: between two marks, or from the first to the end.

A page with several such parts has a name in the mark of each: ``<!-- measured: gpu -->``.
"""

from __future__ import annotations

from pathlib import Path

BEGIN, END = "<!-- measured -->", "<!-- end -->"


def write_measured(page: Path, found: str, part: str = "") -> None:
    """Put a text in place of the part of the page that was measured before."""
    mark = BEGIN.replace(" -->", f": {part} -->") if part else BEGIN
    before, _, rest = page.read_text(encoding="utf-8").partition(mark)
    _, end, after = rest.partition(END)
    tail = f"\n{end}{after}" if end else ""
    page.write_text(f"{before}{mark}\n\n{found.rstrip()}\n{tail}", encoding="utf-8")
