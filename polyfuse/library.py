"""The standard library: operators written in the language itself, one file per family."""

from __future__ import annotations

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from polyfuse.diagnostics import ArgumentError
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.names import did_you_mean
from polyfuse.frontend_dsl.syntax.parse import parse_text

LISTED = "`polyfuse stdlib` lists them"
"""The hint for an operator whose name is like none."""


def _folder() -> Traversable:
    return resources.files("polyfuse") / "stdlib"


def source_files() -> tuple[str, ...]:
    """The names of the library's files, sorted; `read` gives their text."""
    return tuple(sorted(f.name for f in _folder().iterdir() if f.name.endswith(".pf")))


def read(name: str) -> str:
    """The text of one file of the library."""
    return (_folder() / name).read_text(encoding="utf-8")


@cache
def standard_programs() -> tuple[ast.Program, ...]:
    """The files of the standard library, parsed once per process."""
    return tuple(load_text_of(name) for name in source_files())


def load_text_of(name: str) -> ast.Program:
    """One file of the standard library; its imports are the library's other files."""
    return parse_text(read(name), f"stdlib/{name}")


def standard_operator(name: str) -> ast.OpDef:
    """An operator of the library. Raises ArgumentError PF411 if there is none of that name."""
    ops = {op.name: op for p in standard_programs() for op in p.ops}
    if name not in ops:
        hint = did_you_mean(name, ops) or LISTED
        raise ArgumentError(f"there is no operator '{name}'", code="PF411", hint=hint)
    return ops[name]


def source_of(op: ast.OpDef) -> str:
    """An operator as its file has it, with the comment above it."""
    lines = op.span.source.text[: op.span.start].splitlines()
    above: list[str] = []
    while lines and lines[-1].startswith("#"):
        above.insert(0, lines.pop())
    return "\n".join([*above, op.span.text])
