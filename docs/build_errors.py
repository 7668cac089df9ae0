"""Writes docs/errors.md, the index of the pages docs/errors.d/PF*.md, one for each error code.

    python docs/build_errors.py            writes docs/errors.md
    python docs/build_errors.py --check    fails if it is not up to date

A page is called after its code, begins with ``# PF101: title``, and may have ``##`` headings.  Messages
end in ``more: polyfuse explain PF101``, which prints it; other pages link to the anchor of its line in the
index, ``errors.md#pf101``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from page import publish

FOLDER = Path(__file__).parent / "errors.d"
TARGET = Path(__file__).parent / "errors.md"

GROUPS = {
    "1": "Text and syntax",
    "2": "Names and types",
    "3": "Ranges, pieces and indices",
    "4": "Calls from Python",
    "5": "Scheduling and legality",
    "6": "Kernels and code generation",
    "7": "Compiler and run time",
    "8": "Cache and files",
    "9": "Internal, and pictures",
}
_HEAD = """\
<!-- Made by docs/build_errors.py from docs/errors.d/; edit the pages there. -->
# Errors

Every error and warning of polyfuse has a code, and every code has a page. An error is shown as

```
add.pf:2:17: error PF201: unknown tensor 'z'
    2 |   y[i] = x[i] + z[i]
      |                 ^
  more: polyfuse explain PF201
```

`polyfuse explain PF201` prints the page of a code, `polyfuse errors` lists them.

In Python, `error.diagnostics` holds all findings: `code`, `message`, `span` (with `line` and `column`),
`hint`, and `related` places. `polyfuse.fixes.fix_of(diagnostic)` gives the hint as edits, where it
leaves no choice.
"""
_TITLE = re.compile(r"# (PF[1-9]\d\d): (\S.*)")


class BadFragmentError(ValueError):
    """A file in docs/errors.d is not a fragment."""


def fragments(folder: Path = FOLDER) -> dict[str, tuple[str, str]]:
    """Code -> (title, text below it), sorted by code. Raises BadFragmentError."""
    found = {}
    for path in sorted(folder.iterdir()):
        first, _, body = path.read_text(encoding="utf-8").partition("\n")
        title = _TITLE.fullmatch(first.rstrip())
        if title is None or path.name != f"{title[1]}.md":
            raise BadFragmentError(f"{path}: a fragment is called PF101.md and begins with '# PF101: title'")
        if not body.strip():
            raise BadFragmentError(f"{path}: says nothing below its title")
        found[title[1]] = (title[2], body.strip())
    return found


def build(folder: Path = FOLDER) -> str:
    """The index: by group a line for each code, with an anchor, which leads to its page."""
    parts = [_HEAD]
    group = ""
    for code, (title, _) in fragments(folder).items():
        if code[2] != group:
            group = code[2]
            parts.append(f"\n## {GROUPS[group]} (PF{group}xx)\n\n")
        parts.append(f'- [{code}](errors.d/{code}.md): {title} <a id="{code.lower()}"></a>\n')
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(publish(TARGET, build(), sys.argv[1:]))
