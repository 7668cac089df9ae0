"""Writes docs/reference/environment.md from the table in `polyfuse.options`.

python docs/build_environment.py            writes it
python docs/build_environment.py --check    fails if it is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from page import publish

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


if __name__ == "__main__":
    sys.exit(publish(TARGET, build(), sys.argv[1:]))
