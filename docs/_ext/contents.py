"""Who is listed where: tables of contents that are made of the lists of index pages.

An index page has plain lists or tables whose items begin with a link; a code host shows them as well.  On the
site a hidden `toctree` behind it says the same to the navigation, and the table of the first page is cards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath

TITLED = re.compile(r"^- \[([^\]`\n]*)\]\(([^)\s#]+)\)", re.MULTILINE)
TABLE = re.compile(r"^\| (.+) \.\.\. \| .+ \|\n\|[-|]+\|\n((?:\| .+ \|\n)+)", re.MULTILINE)
ITEM = re.compile(r"^(?:- |\| )\[[^\]\n]*\]\(([^)\s#]+)\)", re.MULTILINE)


def toctrees(pages: Mapping[str, str], root: str = "index.md") -> dict[str, list[str]]:
    """For each index page, by its name, the pages below it in the order of its lists, each once."""
    below: dict[str, list[str]] = {}
    taken, left = {root}, [root]
    while left:
        index = left.pop(0)
        found = [os.path.normpath(PurePosixPath(index).parent / name) for name in ITEM.findall(pages[index])]
        below[index] = [p for p in dict.fromkeys(found) if p in pages and p not in taken]
        taken |= set(below[index])
        left += [p for p in below[index] if PurePosixPath(p).name == "index.md"]
    return below


def with_contents(text: str, below: list[str], first: bool = False) -> str:
    """A page with its hidden table of contents; parts of the site are called as their links are.

    So are all pages that the first one lists: their names stand at the top of every page.
    """
    titles = {target: title for title, target in TITLED.findall(text)}
    named = [p for p in below if p in titles and (first or PurePosixPath(p).name == "index.md")]
    names = "\n".join(_entry(p, titles[p] if p in named else "") for p in below)
    return f"{text.rstrip()}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n" if below else text


def _entry(page: str, title: str) -> str:
    name = "/" + str(PurePosixPath(page).with_suffix(""))
    return f"{title} <{name}>" if title else name


def with_cards(text: str) -> str:
    """A table whose first column goes on where its heading stops, as a card for each row.

    | You ... | begin with |
    |---|---|
    | use JAX | [an operator](howto/jax.md) |    ->    a card "You use JAX" with the second cell
    """
    return TABLE.sub(lambda m: _grid(m[1], [row.strip("| ").split(" | ") for row in m[2].splitlines()]), text)


def _grid(begin: str, rows: list[list[str]]) -> str:
    cards = [f"```{{grid-item-card}} {begin} {title}\n{body}\n```" for title, body in rows]
    return "````{grid} 1 1 2 2\n:gutter: 3\n\n" + "\n\n".join(cards) + "\n````\n"
