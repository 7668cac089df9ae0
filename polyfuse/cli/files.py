"""Programs from files, standard input and the standard library; files written whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from polyfuse.diagnostics import Diagnostic, DslError, nearest

if TYPE_CHECKING:
    from polyfuse.cli.compiler import Checked, Operator, Program, ast


LIBRARY = "stdlib:"
STDIN = "<stdin>"

opened: dict[str, str] = {}
"""What the command read so far, argument -> text: for the reproducer of an internal error."""


def open_operator(file: str, op: str | None, without: Sequence[str] | None = None) -> Operator:
    """The operator that FILE and --op name, without the optional tensors that --without names."""
    from polyfuse.diagnostics import ArgumentError

    operator = _named(file, op)
    try:
        return operator.without(*without) if without else operator
    except ArgumentError as error:
        message, hint = error.diagnostics[0].message, error.diagnostics[0].hint
        raise typer.BadParameter(f"--without: {message}; {hint}") from None


def _named(file: str, op: str | None) -> Operator:
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
    from polyfuse.cli.compiler import Program, check_loaded, standard_programs
    from polyfuse.cli.screen import severity_line

    checked = check_loaded(_loaded(file))
    checked.found.raise_if_errors()
    for warning in checked.found.warnings:
        severity_line(warning.render())
    main, others = checked.program, checked.programs[1:]
    return Program((main, *others, *(p for p in standard_programs() if p not in others)))


def check_program(file: str) -> Checked:
    """A program with all that was found in it. Raises DslError if its syntax is wrong."""
    from polyfuse.cli.compiler import check_programs

    return check_programs(_loaded(file))


def check_text(text: str, file: str) -> tuple[ast.Program | None, Sequence[Diagnostic]]:
    """A text in place of a file: its program, None if its syntax is wrong, and all that was found."""
    from polyfuse.cli.compiler import check_programs, load_text

    try:
        checked = check_programs(load_text(text, file, Path(file).parent).programs)
    except DslError as error:
        return None, error.diagnostics
    return checked.program, checked.found.found


def _loaded(file: str) -> tuple[ast.Program, ...]:
    """A program behind all that it imports."""
    from polyfuse.cli.compiler import load_file, load_text

    if file.startswith(LIBRARY):
        raise typer.BadParameter(f"'{file}' is not a file")
    if file == "-":
        opened[file] = text = sys.stdin.read()
        return load_text(text, STDIN, Path.cwd()).programs
    path = existing(file)
    with suppress(OSError, UnicodeError):
        opened[file] = path.read_text(encoding="utf-8")
    return load_file(path).programs


def expanded(names: Sequence[str]) -> list[str]:
    """Folders become the .pf files in them, at any depth, sorted; hidden folders are left out."""
    found: list[str] = []
    for name in names:
        folder = Path(name)
        if name == "-" or not folder.is_dir():
            found.append(name)
            continue
        inside = [p for p in sorted(folder.rglob("*.pf")) if not _hidden(p.relative_to(folder))]
        if not inside:
            raise typer.BadParameter(f"there is no .pf file in the folder '{name}'")
        found += [str(p) for p in inside]
    return list(dict.fromkeys(found))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def existing(file: str) -> Path:
    """The path of a file that can be read, or a usage error."""
    path = Path(file)
    try:
        if path.is_dir():
            raise typer.BadParameter(f"'{file}' is a folder, not a file")
        with path.open("rb"):
            return path
    except FileNotFoundError:
        meant = f"{LIBRARY}{file}" if _is_standard(file) else _beside(path)
        hint = f" (did you mean {meant}?)" if meant else ""
        raise typer.BadParameter(f"there is no file '{file}'{hint}") from None
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else e
        raise typer.BadParameter(f"cannot read '{file}': {reason}") from None


def _is_standard(name: str) -> bool:
    from polyfuse.cli.compiler import standard_programs

    return name.isidentifier() and any(op.name == name for p in standard_programs() for op in p.ops)


def _beside(path: Path) -> Path | None:
    """The program in the same folder whose name is spelled most like that of a file that is not there."""
    with suppress(OSError):
        found = nearest(path.with_suffix(".pf").name, [p.name for p in path.parent.glob("*.pf")])
        return path.with_name(found) if found else None
    return None


def write_whole(path: Path, text: str) -> None:
    """Replace a file by one rename: whoever reads it sees the old or the new one. Its mode stays.

    Usage errors for a folder, and for one that there is not.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise typer.BadParameter(f"'{path}' is a folder, not a file")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder '{path.parent}'; make it first")
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
