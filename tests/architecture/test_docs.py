"""The documentation tells the truth where a program can see it: links, modules, commands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from package_sources import PACKAGE, ROOT

import polyfuse

PAGES = tuple(sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/*.md")]))
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made on the usual hosts, and explicit ones."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}
    return made | set(re.findall(r'<a id="([^"]+)"></a>', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links(page: Path) -> None:
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link} leads nowhere"
        if anchor:
            assert anchor in _anchors(target), f"{page.name}: {link} has no such section"


def _links(page: Path) -> set[Path]:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve() for link in links if "://" not in link}


def test_the_index_leads_to_every_page() -> None:
    """Directly, or by the index of a folder or of the errors that it names."""
    seen, new = set(), {ROOT / "docs" / "index.md"}
    while new:
        seen |= new
        indexes = {p for p in new if p.name in ("index.md", "errors.md")}
        new = {p for index in indexes for p in _links(index)} - seen
    assert not [str(p.relative_to(ROOT)) for p in sorted({*PAGES} - seen)]


def test_the_changelog_tells_of_this_version() -> None:
    """Its newest release is the version of the package, with a date; the pages and the package agree."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, _ = re.findall(r"^## \[(\d[^\]]*)\] - (\d{4}-\d{2}-\d{2})$", text, re.MULTILINE)[0]
    assert (
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"] == version
    )
    assert polyfuse.__version__ == version
    assert text.index("## [Unreleased]") < text.index(f"## [{version}]")


def test_modules_and_folders_of_the_architecture_page_exist() -> None:
    """A path is one of the package or the end of one; a folder is one of the package or the repository."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_0-9/]+\.(?:py|cpp))`", text))
    have = {p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py")}
    have |= {p.relative_to(ROOT).as_posix() for p in ROOT.glob("tests/**/*.py")}
    assert len(named) > 20
    assert not [n for n in sorted(named) if not any(f"/{h}".endswith(f"/{n}") for h in have)]
    folders = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+)`", text))
    assert len(folders) > 10
    assert not [f for f in sorted(folders) if not (PACKAGE / f).is_dir() and not (ROOT / f).exists()]
    assert len(text.splitlines()) <= 200


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert {a or b for a, b in named} <= targets
