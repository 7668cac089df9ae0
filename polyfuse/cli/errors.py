"""What happens to errors: diagnostics on standard error, exit codes, reproducers of internal ones.

    0    all is well
    1    the program or its result is wrong, or something it needs is missing
    2    wrong usage: unknown options, files that do not exist, sizes that do not fit
    3    a bug in polyfuse; a reproducer was written

A user never sees a traceback; it is in the reproducer, with the source, the options and the versions.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from polyfuse.cli import files
from polyfuse.diagnostics import ArgumentError, Diagnostic, InternalError, PolyfuseError

WRONG, USAGE, BUG = 1, 2, 3
_FROM_DATA = "PF45"  # an index in the data is out of range: the call is well-formed


class Guarded(TyperGroup):
    """A group of commands whose errors are reported as this module says."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments for the line that runs the command again."""
        ctx.meta["polyfuse.arguments"] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        files.opened.clear()
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            with guard(ctx.meta.get("polyfuse.arguments", [])):
                return super().invoke(ctx)


@contextmanager
def guard(arguments: Sequence[str]) -> Iterator[None]:
    """Report whatever is raised inside and leave with the exit code for it."""
    try:
        yield
    except (typer.Exit, typer.Abort, KeyboardInterrupt):
        raise
    except PolyfuseError as error:
        raise typer.Exit(_report(error, arguments)) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(WRONG) from None
    except MemoryError:
        _say("error: not enough memory; choose smaller sizes")
        raise typer.Exit(WRONG) from None
    except Exception as error:
        if hasattr(error, "exit_code"):  # wrong usage, which the command line reports
            raise
        if isinstance(error, OSError) and error.filename is not None:
            _say(f"error: {error.filename}: {error.strerror}")
            raise typer.Exit(WRONG) from None
        _bug(error, arguments)
        raise typer.Exit(BUG) from None


def _report(error: PolyfuseError, arguments: Sequence[str]) -> int:
    from polyfuse.cli.screen import severity_line

    for k, diagnostic in enumerate(error.diagnostics):
        severity_line(("\n" if k else "") + in_options(diagnostic).render())
    if len(error.diagnostics) > 1:
        _say(f"\n{len(error.diagnostics)} errors")
    if isinstance(error, InternalError):
        _bug(error, arguments)
        return BUG
    if isinstance(error, ArgumentError) and not error.code.startswith(_FROM_DATA):
        return USAGE
    return WRONG


def in_options(found: Diagnostic) -> Diagnostic:
    """The same, where the hint has an argument of Python that is an option of the command.

    give values, as in sizes={'S': 64}     becomes     give values, as in --size S=64
    """
    if found.hint is None:
        return found
    given = re.sub(r"\bsizes=\{([^}]*)\}", lambda m: f"--size {_pairs(m[1])}", found.hint)
    return replace(found, hint=re.sub(r"\bsizes=(?=$|[\s,.;])", "--size", given))


def _pairs(entries: str) -> str:
    """Entries of a dict as an option has them."""
    return re.sub(r"'(\w+)': ?", r"\1=", entries).replace(", ", ",")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _show_warning(message: Warning | str, category: type[Warning], *place: object, **rest: object) -> None:
    """A warning as one line or one diagnostic, without the place in our code."""
    from polyfuse.cli.screen import severity_line

    text = str(message)
    severity_line(text if "warning PF" in text else f"warning {text}")


# --- reproducers ------------------------------------------------------------------------------------------


def _bug(error: Exception, arguments: Sequence[str]) -> None:
    trace = "".join(traceback.format_exception(error)).rstrip()
    last = trace.splitlines()[-1]
    path, rerun = write_reproducer(arguments, trace)
    _say(f"polyfuse has a bug: {last}")
    _say(f"The program, the options and the versions are in {path}; please report it.")
    _say(f"run it again: {rerun}")


def write_reproducer(arguments: Sequence[str], trace: str) -> tuple[Path, str]:
    """A .pf file with all that is needed to see the error again, and the command that runs it."""
    file, text = next(iter(files.opened.items()), (None, ""))
    called = f"arguments: {shlex.join(arguments)}"
    head = ["A bug in polyfuse.", "", called, *_versions(), "", *trace.splitlines()]
    body = "\n".join(f"# {x}".rstrip() for x in head) + "\n\n" + text
    name = f"polyfuse-bug-{hashlib.sha256(body.encode()).hexdigest()[:8]}.pf"
    path = _store(name, body)
    again = [str(path) if text and a == file else a for a in arguments]
    return path, shlex.join(["polyfuse", *again])


def _store(name: str, text: str) -> Path:
    """In the current folder if it can be written, else in the one for temporary files."""
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        try:
            with (folder / name).open("w", encoding="utf-8") as f:
                f.write(text)
            return Path(name) if folder == Path.cwd() else folder / name
        except OSError:
            continue
    return Path(os.devnull)


def _versions() -> list[str]:
    from importlib.metadata import PackageNotFoundError, version

    found = [f"python {platform.python_version()} on {platform.platform()}"]
    for name in ("polyfuse", "numpy", "islpy", "lark"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} is not installed")
    found += [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("POLYFUSE_") or k == "CXX"]
    return found
