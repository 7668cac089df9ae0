"""`polyfuse check`, `polyfuse fmt` and `polyfuse stdlib`: programs as text."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated

import typer

from polyfuse.cli import completion, files, screen, settings


def check(
    file: settings.Files,
    strict: Annotated[bool, typer.Option("--strict", metavar="", help="Warnings count as errors.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", metavar="", help="Carry out the hints that keep the meaning.")
    ] = False,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", metavar="", help="With --fix: all hints that are edits.")
    ] = False,
) -> None:
    """Check programs: every error and warning of every file.

    Reads out of range are proved impossible for all sizes where that can be decided; the rest is
    proved when sizes are known. A comment # pf: ignore[PF298] silences a warning of its statement.

    Examples:

      polyfuse check norms.pf losses.pf

      polyfuse check operators/

      polyfuse check --fix norms.pf
    """
    errors = warnings = operators = 0
    if unsafe and not fix:
        raise typer.BadParameter("--unsafe is for --fix")
    if fix and "-" in file:
        raise typer.BadParameter("--fix is for files")
    for name in files.expanded(file):
        if fix:
            _mend(name, unsafe)
        e, w, n = _check(name)
        errors, warnings, operators = errors + e, warnings + w, operators + n
    counts = [
        f"{n} {what}{'s' if n != 1 else ''}" for n, what in ((errors, "error"), (warnings, "warning")) if n
    ]
    said = ", ".join(counts) or "no errors"
    screen.show(f"{operators} operator{'s' if operators != 1 else ''}: {said}")
    if errors or (strict and warnings):
        raise typer.Exit(1)


def _check(name: str) -> tuple[int, int, int]:
    """(errors, warnings, operators) of a file; findings are printed."""
    from polyfuse.diagnostics import DslError

    try:
        checked = files.check_program(name)
    except DslError as error:
        for d in error.diagnostics:
            screen.severity_line(d.render())
        return len(error.diagnostics), 0, 0
    found = checked.found
    for d in sorted(found.found, key=lambda d: d.span.start if d.span else -1):
        screen.severity_line(d.render())
    return len(found.errors), len(found.warnings), len(checked.program.ops)


def _mend(name: str, unsafe: bool) -> None:
    """Carry out hints, and replace the file if there were any."""
    from polyfuse.cli.compiler import mended

    old = utf8(files.existing(name))
    new, count = mended(old, lambda text: files.check_text(text, name), unsafe)
    if count:
        files.write_whole(Path(name), new)
        screen.note(f"mended {name}: {count} edit{'s' if count != 1 else ''}")


def fmt(
    file: settings.Files,
    check: Annotated[
        bool, typer.Option("--check", metavar="", help="Write nothing; exit with 1 if a file would change.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", metavar="", help="Write nothing; show what would change.")
    ] = False,
) -> None:
    """Lay out programs in the one canonical way; comments stay.

    A file is replaced whole or not at all. One whose syntax is wrong stays as it is.

    Examples:

      polyfuse fmt operators/

      polyfuse fmt --check --diff norms.pf

      polyfuse fmt - < draft.pf
    """
    from polyfuse.cli.compiler import format_program, parse_text

    changed = 0
    for name in files.expanded(file):
        old = sys.stdin.read() if name == "-" else utf8(files.existing(name))
        files.opened[name] = old
        new = format_program(parse_text(old, files.STDIN if name == "-" else name))
        new = new if new.endswith("\n") else new + "\n"
        changed += new != old
        if diff and new != old:
            _show_diff(name, old, new)
        if name == "-" and not (check or diff):
            screen.show(new)
        elif new != old and not (check or diff):
            files.write_whole(Path(name), new)
            screen.note(f"formatted {name}")
        elif new != old and check:
            screen.note(f"{name} would change")
    if check and changed:
        raise typer.Exit(1)


def utf8(path: Path) -> str:
    """The text of a file, or a usage error."""
    try:
        with path.open(encoding="utf-8", newline="") as f:
            return f.read()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"'{path}' is not UTF-8 text") from None


def _show_diff(name: str, old: str, new: str) -> None:
    from rich.text import Text

    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in difflib.unified_diff(
        old.splitlines(), new.splitlines(), name, f"{name} (formatted)", lineterm=""
    ):
        screen.out().print(Text(line, style=styles.get(line[:1], "")), soft_wrap=True)


def stdlib(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="An operator: show its source.",
            autocompletion=completion.library_operators,
        ),
    ] = None,
) -> None:
    """List the operators of the standard library, or show the source of one.

    Programs call them by name; for other commands stdlib:NAME is a FILE.

    Examples:

      polyfuse stdlib

      polyfuse stdlib layer_norm
    """
    from polyfuse.cli.compiler import signature, source_of, standard_operator, standard_programs

    if name is not None:
        screen.show(source_of(standard_operator(name)))
        return
    for program in standard_programs():
        screen.out().print(Path(program.source.name).stem.replace("_", " "), style="bold")
        for op in program.ops:
            screen.out().print(f"  {signature(op)}", soft_wrap=True)
