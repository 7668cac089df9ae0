"""Assembles docs/reference/stdlib.md from the files of the standard library and their comments.

    python docs/build_stdlib_reference.py            writes docs/reference/stdlib.md
    python docs/build_stdlib_reference.py --check    fails if it is not up to date

In a file of the library the first comment says what family of operators it holds. The comment in
front of each operator says what it computes, and ends in a line ``# Source: ...``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from page import publish

from polyfuse.frontend_dsl.semantics.signature import Signature, signature
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.formatter import function_text
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.library import read, source_files

TARGET = Path(__file__).parent / "reference" / "stdlib.md"

_HEAD = """\
<!-- Made by docs/build_stdlib_reference.py from polyfuse/stdlib/*.pf; edit the comments there. -->
# The standard library

Operators written in the language itself, in [polyfuse/stdlib](../../polyfuse/stdlib). Every program may
call them as whole statements, `y = softmax(x)`, and `pf.stdlib` compiles them as they are. A call is
opened: its statements are scheduled and fused with those around it.

An operator of your own file goes before one of the library that has the same name.

Below, `F` and other float types stand for f64, f32, f16 or bf16, `I` for an integer type, and `B...` for
any number of axes, also none. f16 and bf16 are computed in f32 and rounded where a tensor is declared
with them: at results, and at arguments and results of operators that are called.
"""
_TABLE = "| operator | generic in | what it computes | source |\n|---|---|---|---|\n"


class UndocumentedError(ValueError):
    """An operator or a file of the library has no comment, or not of the form it should have."""


def build() -> str:
    """The whole page: a section with a table for each file."""
    parts = [_HEAD]
    for name in source_files():
        program = parse_text(read(name), name)
        rows = "".join(_row(program, op) for op in program.ops)
        rows += "".join(_function_row(program, f) for f in program.functions)
        parts.append(f"\n## {name.removesuffix('.pf')}\n\n{_heading(program)}\n\n{_TABLE}{rows}")
    return "".join(parts)


def _heading(program: ast.Program) -> str:
    """The first comment of a file, up to a line without one."""
    lines = program.source.text.splitlines()
    count = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    if not count:
        raise UndocumentedError(f"{program.source.name} does not begin with a comment")
    return _joined(lines[:count])


def _row(program: ast.Program, op: ast.OpDef) -> str:
    """A line of the table."""
    what, source = comment_of(program, op)
    sig = signature(op)
    cells = (f"`{str(sig).removesuffix(' -> ()')}`", _generic(sig), what, source)
    return f"| {' | '.join(c.replace('|', chr(92) + '|') for c in cells)} |\n"


def _function_row(program: ast.Program, function: ast.FnDef) -> str:
    what, source = comment_of(program, function)
    return f"| `{function_text(function)}` | | {what} | {source} |\n"


def comment_of(program: ast.Program, op: ast.OpDef | ast.FnDef) -> tuple[str, str]:
    """What the comment in front of an operator says, and its source."""
    lines = program.source.text.splitlines()
    first = last = op.span.line - 1
    while first and lines[first - 1].startswith("#"):
        first -= 1
    found = lines[first:last]
    start = next((i for i, line in enumerate(found) if line.startswith("# Source: ")), 0)
    if not start:
        raise UndocumentedError(f"{op.span}: the comment of '{op.name}' does not end in '# Source: ...'")
    source = _joined(found[start:]).removeprefix("Source: ").removesuffix(".")
    return _joined(found[:start]).removesuffix("."), source


def _joined(comment: list[str]) -> str:
    return " ".join(line.removeprefix("#").strip() for line in comment)


def _generic(sig: Signature) -> str:
    kinds = [f"{name} ({kind})" for name, kind in sig.generics]
    return ", ".join([*kinds, *(f"{name}..." for name in sig.rank_variables)])


if __name__ == "__main__":
    sys.exit(publish(TARGET, build(), sys.argv[1:]))
