"""Colours for programs: a lexer for Pygments, and the rules that the TextMate grammar is made of.

Pygments finds the lexer by its entry point, as `polyfuse` and for files that end in .pf. The grammar is
editors/vscode/syntaxes/polyfuse.tmLanguage.json, which `make pages` writes. Both take words from the tables
of the language: its grammar, functions, reductions and dtypes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

from polyfuse.frontend_dsl.syntax.grammar_file import grammar_text
from polyfuse.frontend_dsl.syntax.names import CONSTANTS, REDUCTIONS, WORDS
from polyfuse.ir.dtypes import BY_NAME

DECLARING = ("op", "fn")
"""Words that begin an item; its name follows."""

KEYWORDS = tuple(
    word
    for word in re.findall(r'^[A-Z]+: "([a-z]+)"$', grammar_text(), flags=re.M)
    if word not in (*DECLARING, "true", "false")
)


def _words(given: Iterable[str]) -> str:
    return rf"\b(?:{'|'.join(sorted(map(re.escape, given), key=lambda w: (-len(w), w)))})\b"


NAME = r"[A-Za-z_][A-Za-z0-9_]*"
RULES: tuple[tuple[str, str, object], ...] = (
    (r"#[^\n]*", "comment.line.number-sign", Comment.Single),
    (r'"[^"\n]*"', "string.quoted.double", String.Double),
    (_words(("true", "false", *CONSTANTS)), "constant.language", Keyword.Constant),
    (_words(BY_NAME), "storage.type", Keyword.Type),
    (_words(KEYWORDS), "keyword.control", Keyword),
    (_words(REDUCTIONS) + r"(?=\[)", "support.function.reduction", Name.Builtin),
    (_words((*WORDS, *REDUCTIONS)) + r"(?=\()", "support.function", Name.Builtin),
    (rf"\b{NAME}(?=\()", "entity.name.function", Name.Function),
    (r"\b[0-9][0-9_]*\.[0-9][0-9_]*(?:[eE][+-]?[0-9]+)?", "constant.numeric.float", Number.Float),
    (r"\b[0-9][0-9_]*[eE][+-]?[0-9]+", "constant.numeric.float", Number.Float),
    (r"\b0[xX][0-9a-fA-F_]+", "constant.numeric.hex", Number.Hex),
    (r"\b[0-9][0-9_]*", "constant.numeric.integer", Number.Integer),
    (rf"\b{NAME}", "variable.other", Name),
    (r"\.\.\.?|->|[<>=!]=|<<|>>|\+=|\*\*|//|[-+*/%<>=&|^~?]", "keyword.operator", Operator),
)
"""A pattern, its scope of TextMate, its token of Pygments: the first that fits where the text is read."""


class PolyfuseLexer(RegexLexer):
    """Operators of polyfuse, for Pygments."""

    name = "Polyfuse"
    aliases = ("polyfuse", "pf")
    filenames = ("*.pf",)
    mimetypes = ("text/x-polyfuse",)
    url = "https://pypi.org/project/polyfuse"
    version_added = ""
    tokens = {  # noqa: RUF012
        "root": [
            (r"\s+", Text.Whitespace),
            (rf"{_words(DECLARING)}(?=\s+{NAME})", Keyword.Declaration, "declared"),
            *((pattern, token) for pattern, _, token in RULES),
            (r"[\[\](){},:;]", Punctuation),
        ],
        "declared": [(r"\s+", Text.Whitespace), (NAME, Name.Function, "#pop")],
    }


def textmate() -> dict[str, object]:
    """The grammar of TextMate, as VS Code and others read it."""
    declared = {
        "match": rf"({_words(DECLARING)})(\s+)({NAME})",
        "captures": {
            "1": {"name": "storage.type.function.polyfuse"},
            "3": {"name": "entity.name.function.polyfuse"},
        },
    }
    rules = [{"match": pattern, "name": f"{scope}.polyfuse"} for pattern, scope, _ in RULES]
    return {
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "name": "Polyfuse",
        "scopeName": "source.polyfuse",
        "fileTypes": ["pf"],
        "patterns": [rules[0], declared, *rules[1:]],
    }
