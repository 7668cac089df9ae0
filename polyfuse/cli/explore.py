"""`polyfuse explore`: a local page on which the compiler can be watched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfuse.cli import completion, files, screen
from polyfuse.cli.text import utf8


def explore(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="A .pf file, or stdlib:OPERATOR; without it, an example.",
            autocompletion=completion.programs,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=65535, help="The port; without it 8765, or a free one."),
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", metavar="", help="Print the address, and open no browser.")
    ] = False,
) -> None:
    """Open a page that shows what the compiler makes of an operator while you edit it: pictures of points,
    dependences and schedules, decisions with reasons, kernels, code, costs, a run.

    The page is for this machine alone: its address has a token, without which nothing is answered. The file
    is read and never written; imports are read from its folder only.

    Needs starlette and uvicorn: pip install '.[explore]' in a clone of polyfuse.

    Examples:

      polyfuse explore norms.pf

      polyfuse explore stdlib:softmax --no-browser
    """
    from polyfuse.explore import server

    server.require_packages()
    text, name, folder = _text_of(file)
    try:
        at = server.bound(port)
    except OSError as error:
        raise typer.BadParameter(f"--port {port}: {error.strerror}") from None
    settings = server.settings_for(at.getsockname()[1], text, name, folder)
    screen.show(f"The explorer is at {settings.address}\nCtrl-C ends it.")
    if not no_browser:
        typer.launch(settings.address)
    server.main(settings, at)


def _text_of(file: str | None) -> tuple[str | None, str, Path | None]:
    """The text of a file, its name, and the folder of its imports."""
    if file is None:
        return None, "program.pf", None
    if file.startswith(files.LIBRARY):
        from polyfuse.cli.compiler import source_of, standard_operator

        operator = standard_operator(file.removeprefix(files.LIBRARY).strip())
        return source_of(operator) + "\n", f"{operator.name}.pf", None
    path = files.existing(file)
    return utf8(path), path.name, path.parent
