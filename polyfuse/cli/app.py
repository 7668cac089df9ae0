"""The command `polyfuse` with all its subcommands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated

import typer

from polyfuse import __version__
from polyfuse.cli import build, explain, explore, kernels, pages, run, stages, text, tools, tune
from polyfuse.cli.errors import Guarded

_HELP = """Compile, run and look into fused tensor operators.

FILE is a .pf file, - for standard input, or stdlib:softmax for an operator of the standard library.
"""

_EPILOG = """Exit codes: 0 all is well; 1 the program or its result is wrong;
2 wrong usage; 3 a bug in polyfuse. More: docs/reference/cli.md"""

app = typer.Typer(
    cls=Guarded,
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polyfuse {__version__}")
        raise typer.Exit


@app.callback()
def polyfuse(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the command itself."""


_WORK, _LOOK, _TEXT, _TOOLS = "Run", "Look inside", "Programs", "Installation"


def _add(panel: str, command: Callable[..., None]) -> None:
    """A command whose help is its docstring, each paragraph as one line so that any width suits it. Brackets
    are no markup."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    text = "\n\n".join(p if p.startswith(" ") else " ".join(p.split()) for p in paragraphs)
    app.command(help=re.sub(r"\[(?=[a-z])", r"\\[", text), rich_help_panel=panel)(command)


_add(_WORK, run.run)
_add(_WORK, kernels.compare)
_add(_WORK, tune.tune)
_add(_WORK, build.build)
_add(_LOOK, stages.emit)
_add(_LOOK, explain.explain)
_add(_LOOK, explain.passes)
_add(_LOOK, explore.explore)
_add(_TEXT, stages.grad)
_add(_TEXT, text.check)
_add(_TEXT, text.fmt)
_add(_TEXT, text.stdlib)
_add(_TEXT, pages.errors)
_add(_TOOLS, tools.doctor)
_add(_TOOLS, tools.lsp)
app.add_typer(tools.cache, rich_help_panel=_TOOLS)
