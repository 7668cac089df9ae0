"""Writes docs/reference/environment.md from the table in `polyfuse.options`.

python docs/build_environment.py            writes it
python docs/build_environment.py --check    fails if it is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from polyfuse.options import ENVIRONMENT

TARGET = Path(__file__).parent / "reference" / "environment.md"

_HEAD = """\
<!-- Made by docs/build_environment.py from polyfuse/options.py. -->
# Environment variables

Read when they are needed, not at import. An empty value counts as unset. What a call can set too is
an option of `polyfuse.options.Options`, which wins over the variable.

| variable | meaning | without it |
|---|---|---|
"""


def build() -> str:
    """The whole page."""
    return _HEAD + "".join(f"| `{v.name}` | {v.meaning} | {v.default} |\n" for v in ENVIRONMENT)


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` compare it; the exit status."""
    if "--check" not in arguments:
        TARGET.parent.mkdir(exist_ok=True)
        TARGET.write_text(build(), encoding="utf-8")
        return 0
    if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == build():
        return 0
    print(f"{TARGET} is not up to date: run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
