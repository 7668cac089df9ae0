"""`docs/internals/where.md`: twenty questions, whose answers name files and what is defined in them."""

from __future__ import annotations

import ast
import re

import pytest
from package_sources import ROOT

PAGE = ROOT / "docs" / "internals" / "where.md"
TEXT = PAGE.read_text(encoding="utf-8")
QUESTION = re.compile(r"^### (.+)\n\n((?:- .*\n(?:  .*\n)*)+)", re.MULTILINE)
# An answer begins with a file and names in it; more of both may follow, up to the colon.
HEAD = re.compile(r"^- ((?:`[^`]+`[ ,\n]*)+):", re.MULTILINE)
QUESTIONS = 20


def answers() -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """By question: files, and names that are defined in each."""
    return {q: [a for head in HEAD.findall(text) for a in _files(head)] for q, text in QUESTION.findall(TEXT)}


def _files(head: str) -> list[tuple[str, tuple[str, ...]]]:
    found: list[tuple[str, tuple[str, ...]]] = []
    for word in re.findall(r"`([^`]+)`", head):
        if "/" in word:
            found.append((word, ()))
        else:
            file, names = found[-1]
            found[-1] = file, (*names, word)
    return found


def defined(tree: ast.Module) -> set[str]:
    """Names at the top of a module."""
    named = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    assigned = [t for n in tree.body if isinstance(n, ast.Assign) for t in n.targets]
    assigned += [n.target for n in tree.body if isinstance(n, ast.AnnAssign)]
    return named | {t.id for t in assigned if isinstance(t, ast.Name)}


def test_there_are_twenty_and_each_has_an_answer() -> None:
    assert len(re.findall(r"^### ", TEXT, re.MULTILINE)) == len(answers()) == QUESTIONS
    assert all(found for found in answers().values())
    # Every bullet was understood.
    assert len(HEAD.findall(TEXT)) == len(re.findall(r"^- ", TEXT, re.MULTILINE))


@pytest.mark.parametrize("question", answers())
def test_what_an_answer_names_is_there(question: str) -> None:
    for file, names in answers()[question]:
        path = ROOT / file
        assert path.is_file(), file
        missing = set(names) - defined(ast.parse(path.read_text(encoding="utf-8"))) if names else set()
        assert not missing, f"{file}: {sorted(missing)}"


def test_other_pages_lead_there() -> None:
    for page in (ROOT / "docs" / "index.md", ROOT / "docs" / "architecture.md"):
        assert f"({PAGE.relative_to(page.parent)})" in page.read_text(encoding="utf-8"), page
