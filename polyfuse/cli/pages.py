"""The pages of errors: `polyfuse explain PF402` shows one, `polyfuse errors` lists them.

They are docs/errors.d of the checkout; a wheel carries them inside the package.
"""

from __future__ import annotations

import difflib
import importlib.resources
import re
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from polyfuse.cli import screen

CODE = re.compile(r"PF\d+", re.IGNORECASE)


def folder() -> Traversable:
    """Where the pages are: in the installed package, else in the checkout."""
    installed = importlib.resources.files("polyfuse").joinpath("error_pages")
    return installed if installed.is_dir() else Path(__file__).parents[2] / "docs" / "errors.d"


def page(code: str) -> str:
    """The page of a code. Raises BadParameter where there is none."""
    found = folder().joinpath(f"{code.upper()}.md")
    if not found.is_file():
        near = difflib.get_close_matches(code.upper(), codes(), n=3)
        meant = f" (near it: {', '.join(sorted(near))})" if near else ""
        raise typer.BadParameter(f"there is no error {code.upper()}{meant}; `polyfuse errors` lists them")
    return found.read_text(encoding="utf-8").removeprefix("# ")


def codes() -> list[str]:
    """All codes, in order."""
    return sorted(p.name.removesuffix(".md") for p in folder().iterdir() if CODE.match(p.name))


def titles() -> dict[str, str]:
    """Code -> title, in order."""
    return {code: page(code).partition("\n")[0].partition(": ")[2] for code in codes()}


def errors(
    begin: Annotated[
        str, typer.Argument(metavar="CODE", help="How the codes begin: PF3 for ranges and indices.")
    ] = "PF",
) -> None:
    """List the errors and warnings.

    `polyfuse explain PF402` says when one happens and how to mend it.

    Examples:

      polyfuse errors

      polyfuse errors PF2
    """
    found = {code: title for code, title in titles().items() if code.startswith(begin.upper())}
    if not found:
        raise typer.BadParameter(f"no code begins with {begin}; they begin with PF1 to PF9")
    for code, title in found.items():
        screen.show(f"{code}  {title}")
