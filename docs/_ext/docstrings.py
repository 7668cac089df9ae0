"""Docstrings as reStructuredText: what stands in columns is a list of names, what is indented is code."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ENTRY = re.compile(r"(\*{0,2}\w[\w, =*.\"'/|\[\]-]*?)(?: {2,}|  )(\S.*)")
_SECTION = re.compile(r"^(?:Parameters|Returns|Raises|Examples|Yields|Notes|See Also)\n-+$", re.MULTILINE)


def as_rst(lines: list[str]) -> list[str]:
    """The lines of a docstring.  One in numpydoc's form stays as it is."""
    text = "\n".join(lines).strip("\n")
    if _SECTION.search(text):
        return lines
    found: list[str] = []
    for paragraph in re.split(r"\n{2,}", text):
        told = len(found) > 1 and found[-2].endswith("::")  # that what follows is code
        found += [*(paragraph.splitlines() if told else _paragraph(paragraph)), ""]
    return found


def _paragraph(text: str) -> Iterator[str]:
    lines = text.splitlines()
    entries = _entries(lines)
    if entries:
        for names, meaning in entries:
            yield f"``{names}``"
            yield f"    {meaning}"
    elif text.startswith((" ", "@", ">>>")) or any("   " in line for line in lines):
        if text.startswith(">>>"):
            yield from lines
            return
        yield "::"
        yield ""
        yield from (f"    {line}" for line in lines)
    else:
        yield from lines


def _entries(lines: list[str]) -> list[tuple[str, str]]:
    """Names and what they mean, where a paragraph is a list of them: `name    meaning`, going on indented."""
    found: list[tuple[str, str]] = []
    for line in lines:
        m = _ENTRY.fullmatch(line)
        if m and not line.startswith(" "):
            found.append((m[1].strip(), m[2]))
        elif found and line.startswith("  "):
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        else:
            return []
    return found
