"""The how-to pages: their code runs as it stands there, in the order of the page, and prints what they show.

Blocks that need PyTorch or JAX, and those after them, run in tests/with_torch.
"""

from __future__ import annotations

import re
from pathlib import Path

import pages
import pytest

ROOT = Path(__file__).resolve().parents[2]
HOWTO = sorted(p for p in (ROOT / "docs" / "howto").glob("*.md") if p.name != "index.md")


@pytest.fixture(autouse=True)
def as_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what tests set for themselves."""
    for name in ("POLYFUSE_VERIFY", "POLYFUSE_DUMP", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("page", HOWTO, ids=lambda p: p.stem)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    pages.run(page, pages.without_peers(pages.blocks(page)), tmp_path)


@pytest.mark.parametrize("page", HOWTO, ids=lambda p: p.stem)
def test_a_page_is_one_screen(page: Path) -> None:
    words = len(re.findall(r"\S+", page.read_text(encoding="utf-8")))
    assert 100 <= words <= 500


# --- the mechanism ----------------------------------------------------------------------------------------


def page_of(folder: Path, *parts: tuple[str, str]) -> Path:
    page = folder / "page.md"
    page.write_text("# A page\n\n" + "\n\n".join(f"```{lang}\n{text}\n```" for lang, text in parts))
    return page


@pytest.mark.parametrize(
    "parts",
    [
        (("python", "print(1)"), ("", "2")),
        (("python", "assert False"),),
        (("python", "x = 1 / 0"), ("", "ValueError: ...")),
        (("python", "y = x"),),
        (("console", "$ echo one\ntwo"),),
        (("console", "$ echo one"),),
        (("c", "// main.c\nint x;"), ("console", "$ cat main.c\nint y;")),
    ],
)
def test_a_page_that_is_wrong_is_found(parts: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    page = page_of(tmp_path, *parts)
    with pytest.raises((AssertionError, NameError)):
        pages.run(page, pages.blocks(page), tmp_path)


def test_a_page_that_is_right_runs(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        ("python", "x = 1\nprint('a 12 us')"),
        ("", "a ... us"),
        ("sh", "rm -rf /nowhere; false"),
        ("python", "x += 1\n1 / (x - 2)"),
        ("", "ZeroDivisionError: division by zero"),
        ("pf", "# a.pf\nop f"),
        ("console", "$ cat a.pf\n# a.pf\nop f\n$ echo $PWD\n/...\n"),
        ("python", "import torch.nowhere"),
        ("python", "1 / 0"),
    )
    found = pages.blocks(page)
    assert [b.language for b in found][-2:] == ["python", "python"] and found[0].line == 4
    assert pages.run(page, pages.without_peers(found), tmp_path) == 4
