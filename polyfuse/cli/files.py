"""Programs from files, standard input and the standard library; files written whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from polyfuse.cli.compiler import Diagnostics, Operator, Program


LIBRARY = "stdlib:"
STDIN = "<stdin>"

opened: dict[str, str] = {}
"""What the command read so far, argument -> text: for the reproducer of an internal error."""


def open_operator(file: str, op: str | None) -> Operator:
    """The operator that FILE and --op name."""
    if file.startswith(LIBRARY):
        if op and op != file.removeprefix(LIBRARY):
            raise typer.BadParameter(f"'{file}' names the operator already; leave out --op {op}")
        return _library_operator(file)
    from polyfuse.cli.screen import note

    program = open_program(file)
    if not program.ops:
        raise typer.BadParameter(f"there is no operator in '{file}'")
    operator = program.op(op)
    if op is None and len(program.ops) > 1:
        note(f"operator {operator.name}, the last of {len(program.ops)} (choose another with --op)")
    return operator


def _library_operator(file: str) -> Operator:
    from polyfuse.cli.compiler import stdlib

    program, name = stdlib(), file.removeprefix(LIBRARY)
    if not name:
        raise typer.BadParameter("name an operator, as stdlib:softmax; `polyfuse stdlib` lists them")
    operator = program.op(name)
    opened[file] = ""
    return operator


def open_program(file: str) -> Program:
    """A parsed and checked program. Warnings are printed, errors raised."""
    from polyfuse.cli.screen import severity_line

    program, found = read_program(file)
    found.raise_if_errors()
    for warning in found.warnings:
        severity_line(warning.render())
    return program


def read_program(file: str) -> tuple[Program, Diagnostics]:
    """A program with all that was found in it. Raises DslError if its syntax is wrong."""
    from polyfuse.cli.compiler import Program, check_program, load, load_text, standard_programs

    if file.startswith(LIBRARY):
        raise typer.BadParameter(f"'{file}' is not a file")
    if file == "-":
        text = sys.stdin.read()
        opened[file] = text
        programs = load_text(text, STDIN, Path.cwd()).programs
    else:
        path = existing(file)
        with suppress(OSError, UnicodeError):
            opened[file] = path.read_text(encoding="utf-8")
        programs = load(path).programs
    main = programs[-1]
    others = (*programs[:-1], *standard_programs())
    return Program((main, *others)), check_program(main, others)


def existing(file: str) -> Path:
    """The path of a file that can be read, or a usage error."""
    path = Path(file)
    try:
        if path.is_dir():
            raise typer.BadParameter(f"'{file}' is a folder, not a file")
        with path.open("rb"):
            return path
    except FileNotFoundError:
        hint = f" (did you mean {LIBRARY}{file}?)" if _is_standard(file) else ""
        raise typer.BadParameter(f"there is no file '{file}'{hint}") from None
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else e
        raise typer.BadParameter(f"cannot read '{file}': {reason}") from None


def _is_standard(name: str) -> bool:
    from polyfuse.cli.compiler import stdlib

    return name.isidentifier() and name in stdlib().ops


def write_whole(path: Path, text: str) -> None:
    """Replace a file by one rename: whoever reads it sees the old or the new one. Its mode stays."""
    path = Path(os.path.realpath(path))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as f:
            f.write(text)
        os.chmod(name, path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def deliver(text: str, output: str | None) -> None:
    """Print a text, or write it to the file that `-o` names."""
    from polyfuse.cli.screen import show

    if output is None or output == "-":
        show(text)
        return
    write_whole(Path(output), text if text.endswith("\n") else text + "\n")
