"""Finds the grammar (installed wheel or checkout) and builds the parser, once per process.

grammar_text()  the text of grammars/polyfuse.lark
parser()        the Lark object, its callbacks bound to `build_ast.Builder`
"""

from __future__ import annotations

import importlib.resources
from functools import lru_cache
from pathlib import Path

from lark import Lark

from polyfuse.frontend_dsl.syntax.build_ast import Builder

GRAMMAR_NAME = "polyfuse.lark"
START = "program"


def grammar_text() -> str:
    """The grammar: from package `polyfuse.grammars` where installed, else from the checkout's folder."""
    try:
        package = importlib.import_module("polyfuse.grammars")
        return importlib.resources.files(package).joinpath(GRAMMAR_NAME).read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        checkout = Path(__file__).resolve().parents[3] / "grammars" / GRAMMAR_NAME
        return checkout.read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def parser() -> Lark:
    """The LALR parser. It holds no state of a parse, so threads may share it."""
    return Lark(
        grammar_text(),
        parser="lalr",
        lexer="basic",
        start=START,
        transformer=Builder(),
        maybe_placeholders=True,
    )
