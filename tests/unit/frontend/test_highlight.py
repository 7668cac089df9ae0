"""Colours: the lexer of Pygments, the grammar of TextMate, the words that both take from the language."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.token import Comment, Error, Keyword, Name, Number, Operator, String

from polyfuse.frontend_dsl.syntax.names import FUNCTIONS
from polyfuse.highlight import KEYWORDS, PolyfuseLexer, textmate
from polyfuse.library import source_files, standard_programs

VSCODE = Path(__file__).parents[3] / "editors" / "vscode"
TEXT = """\
import "a.pf"  # why
op rows[F: float](inout x: F[T, H]) -> (y: f32[T, H]) where H >= 1 {
  y[t, h] = max[k in 0..2](x[t, k]) + max(rows_of(x), 1.5e-3) if true else max  ;  z max= 10
}
"""


def tokens(text: str = TEXT) -> list[tuple[object, str]]:
    return [(kind, value) for kind, value in PolyfuseLexer().get_tokens(text) if value.strip()]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Keyword, "import"),
        (String.Double, '"a.pf"'),
        (Comment.Single, "# why"),
        (Keyword.Declaration, "op"),
        (Name.Function, "rows"),
        (Keyword.Type, "f32"),
        (Operator, ">="),
        (Name.Builtin, "max"),
        (Name.Function, "rows_of"),
        (Name, "max"),
        (Number.Float, "1.5e-3"),
        (Number.Integer, "10"),
        (Operator, ".."),
        (Keyword.Constant, "true"),
    ],
)
def test_tokens(kind: object, value: str) -> None:
    assert (kind, value) in tokens()


def test_every_program_of_the_library_is_read() -> None:
    for program in standard_programs():
        assert not [v for kind, v in tokens(program.source.text) if kind is Error]
    assert source_files()


def test_pygments_finds_the_lexer() -> None:
    assert get_lexer_by_name("polyfuse").__class__.__name__ == "PolyfuseLexer"
    assert get_lexer_for_filename("a.pf").__class__.__name__ == "PolyfuseLexer"


def test_words_of_the_language() -> None:
    assert {"if", "else", "for", "in", "where", "inout", "let", "import"} <= set(KEYWORDS)
    patterns = " ".join(str(p.get("match")) for p in textmate()["patterns"])  # type: ignore[attr-defined]
    assert all(re.search(rf"\b{name}\b", patterns) for name in FUNCTIONS)


def test_the_extension_has_the_grammar() -> None:
    grammar = json.loads((VSCODE / "syntaxes" / "polyfuse.tmLanguage.json").read_text(encoding="utf-8"))
    assert grammar == textmate(), "run `make pages`"


def test_the_extension_names_what_there_is() -> None:
    package = json.loads((VSCODE / "package.json").read_text(encoding="utf-8"))
    for part in (*package["contributes"]["languages"], *package["contributes"]["grammars"]):
        assert (VSCODE / (part.get("path") or part["configuration"])).is_file()
    assert (VSCODE / package["main"]).is_file()
    assert package["contributes"]["grammars"][0]["scopeName"] == textmate()["scopeName"]
    command = package["contributes"]["configuration"]["properties"]["polyfuse.command"]["default"]
    assert command == ["polyfuse", "lsp"]
    json.loads((VSCODE / "language-configuration.json").read_text(encoding="utf-8"))
