"""The glossary: each term once, in order, with an anchor; the words that it replaces are gone.

A word in quotes after *Not:* occurs in no page that users read and in no text of the package that they see.
Words without quotes have other meanings as well, and nobody looks for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pytest
from package_sources import ROOT, literals, modules

PAGE = ROOT / "docs" / "glossary.md"
TEXT = PAGE.read_text(encoding="utf-8")
ENTRY = re.compile(r'^- <a id="([^"]+)"></a>\*\*(.+?)\*\*(.*?)(?=^- |^## |\Z)', re.MULTILINE | re.DOTALL)
# Of what is emitted: no user has to read it.
COMMENT = re.compile(r"^\s*// .*$", re.MULTILINE)
# Pages that users read; `docs/architecture.md` names modules, whose names are older.
READ = ("course", "errors.d", "explanation", "howto", "lab", "reference")
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("comparison.md", "language.md", "performance.md")),
    *(p for folder in READ for p in (ROOT / "docs" / folder).glob("*.*")),
)


def anchor(term: str) -> str:
    return re.sub(r"[^\w\- ]", "", term).lower().replace(" ", "-")


def replaced() -> list[str]:
    """Words in quotes after *Not:*."""
    after = [rest.partition("*Not:*")[2] for _, _, rest in ENTRY.findall(TEXT)]
    return [" ".join(word.split()) for text in after for word in re.findall(r'"([^"]+)"', text)]


@cache
def shown() -> tuple[tuple[str, str], ...]:
    """Pages, and texts of the package that are no docstrings: where, and what with single spaces."""
    pages = [(str(p.relative_to(ROOT)), p.read_text(encoding="utf-8")) for p in PAGES]
    return tuple((where, " ".join(text.split())) for where, text in (*pages, *_texts()))


def _texts() -> Iterator[tuple[str, str]]:
    for module in modules():
        for line, text in literals(module):
            yield f"{module.where}:{line}", COMMENT.sub("", text)


def test_terms_are_in_order_with_their_anchors() -> None:
    found = ENTRY.findall(TEXT)
    assert len(found) == len(re.findall(r"^- ", TEXT, re.MULTILINE)) > 40
    assert [made for made, _, _ in found] == [anchor(term) for _, term, _ in found]
    assert len({made for made, _, _ in found}) == len(found)
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        terms = [term.lower() for _, term, _ in ENTRY.findall(section)]
        assert terms == sorted(terms), section.splitlines()[0]


@pytest.mark.parametrize("word", replaced())
def test_words_that_it_replaces_are_gone(word: str) -> None:
    pattern = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
    assert not [where for where, text in shown() if pattern.search(text)]


def test_words_are_looked_for_where_users_read() -> None:
    """In pages and in texts of the package, of which both are found."""
    assert len(replaced()) >= 12 and len(PAGES) > 100
    assert any("non-temporal stores:" in text for where, text in shown() if where.startswith("polyfuse"))


def test_terms_of_readers_lead_to_where_they_are_explained() -> None:
    """By the link behind the arrow, to another page; of terms of code most do."""
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
    without = {
        name: [term for _, term, rest in ENTRY.findall(text) if not re.search(r" →\s+\[[^]]+\]\([^#)]", rest)]
        for name, text in sections.items()
    }
    for name in ("The language", "Sets and proofs", "Gradients"):
        assert not without[name]
    assert sum(map(len, without.values())) < 0.1 * len(ENTRY.findall(TEXT))


def test_the_index_and_the_rules_name_it() -> None:
    for page in (PAGE.with_name("index.md"), ROOT / "CONTRIBUTING.md"):
        assert str(PAGE.relative_to(page.parent)) in page.read_text(encoding="utf-8"), page
