"""Writes the TextMate grammar of the VS Code extension from the words of the language.

python docs/build_editors.py            writes editors/vscode/syntaxes/polyfuse.tmLanguage.json
python docs/build_editors.py --check    fails if it is not up to date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from page import publish

from polyfuse.highlight import textmate

TARGET = Path(__file__).parents[1] / "editors" / "vscode" / "syntaxes" / "polyfuse.tmLanguage.json"


def build() -> str:
    """The grammar as text."""
    return json.dumps(textmate(), indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(publish(TARGET, build(), sys.argv[1:]))
