"""The files of C++ beside this one (`*.h`), which sources are put together from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources


def read(name: str) -> str:
    """A template file without its first paragraph, which is addressed to the reader."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return text.split("\n\n", 1)[1]


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The functions of a text, by name; an empty line ends each."""
    for block in text.split("\n\n"):
        defined = re.search(r"^PF_(?:INLINE|APART) [\w ]*?(pf_\w+)\(", block, re.MULTILINE)
        if defined is not None:
            yield defined[1], block.strip("\n") + "\n"
