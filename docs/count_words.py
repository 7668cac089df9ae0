"""Counts the words of the documentation, and how long its sentences are.

    python docs/count_words.py             pages, longest first, then the sum and the mean sentence
    python docs/count_words.py --longest   the longest sentences with their pages

Counted is what people write and read: pages of `docs`, chapters of the course (their text, not their code),
README and CONTRIBUTING.  Not counted are programs and outputs (fenced code), pages that a program made, parts
that a program wrote (between `<!-- NAME -->` and `<!-- end -->`), and the pages of error codes, of which a
reader wants one; their sum is told apart.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
WORDS, MEAN = 60_000, 20.0

_NOT_READ = re.compile(
    r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)`*$"
    r"|<!-- (?!end ).*?(?:<!-- end -->|\Z)|^<a id=.*?</a>$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=\|)|\n(?=#)|(?<=\|)\n")
_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[A-Z`\"'(*\[])")


@dataclass(frozen=True)
class Page:
    """A page: its words, and the sentences of its paragraphs and lists."""

    path: Path
    words: int
    sentences: tuple[str, ...]


def pages() -> list[Page]:
    """All that is counted."""
    found = [p for p in DOCS.rglob("*.md") if p.parent.name != "errors.d"]
    found += (DOCS / "course").glob("[0-9]*.py")
    found += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [counted(p) for p in sorted(found) if not is_made(p)]


def is_made(path: Path) -> bool:
    """Did a program make the whole page?"""
    return path.read_text(encoding="utf-8").startswith("<!-- Made by")


def counted(path: Path) -> Page:
    """The figures of one page."""
    text = path.read_text(encoding="utf-8")
    text = _NOT_READ.sub("\n\n", chapter_text(text) if path.suffix == ".py" else text)
    words = len(re.findall(r"\w[^\s|]*", _LINK.sub(r"\1", text)))
    return Page(path, words, tuple(sentences(text)))


def chapter_text(source: str) -> str:
    """The text of a chapter: its docstring, and comments below `# %%`."""
    parts = [ast.get_docstring(ast.parse(source)) or ""]
    for cell in re.split(r"^# %%.*\n", source, flags=re.MULTILINE)[1:]:
        lines = re.match(r"(?:#.*\n)*", cell)
        parts.append(re.sub(r"^# ?", "", lines[0] if lines else "", flags=re.MULTILINE))
    return "\n\n".join(parts)


def sentences(text: str) -> Iterator[str]:
    """Sentences of paragraphs and list items; headings, cells of tables and lone words are none."""
    for block in _BLOCK.split(text):
        block = block.strip()
        if block.startswith(("#", "|", "<")):
            continue
        plain = " ".join(_LINK.sub(r"\1", re.sub(r"`[^`]+`", "code", block)).split())
        plain = re.sub(r"^(?:[-*]|\d+\.) ", "", plain)
        yield from (s for s in _END.split(plain) if s.count(" ") >= 2)


def mean(found: list[Page]) -> float:
    """Words of a sentence, in the mean."""
    lengths = [len(s.split()) for p in found for s in p.sentences]
    return sum(lengths) / len(lengths)


def main(arguments: list[str]) -> None:
    """Print what is asked for."""
    found = pages()
    if "--longest" in arguments:
        every = sorted(((len(s.split()), s, p) for p in found for s in p.sentences), key=lambda x: -x[0])
        for length, sentence, page in every[:40]:
            print(f"{length} {page.path.relative_to(ROOT)}: {sentence}\n")
        return
    for page in sorted(found, key=lambda p: -p.words):
        print(f"{page.words:7,} {page.path.relative_to(ROOT)}")
    apart = sum(counted(p).words for p in (DOCS / "errors.d").glob("*.md"))
    print(f"{sum(p.words for p in found):7,} words (at most {WORDS:,}), and {apart:,} on pages of errors")
    print(f"{mean(found):7.1f} words a sentence in the mean (at most {MEAN:.0f})")


if __name__ == "__main__":
    main(sys.argv[1:])
