"""What the scripts that make pages share."""

from __future__ import annotations

import sys
from pathlib import Path


def publish(target: Path, text: str, arguments: list[str]) -> int:
    """Write a page, or with ``--check`` compare it with what is there; the exit status."""
    if "--check" not in arguments:
        target.write_text(text, encoding="utf-8")
        return 0
    if target.is_file() and target.read_text(encoding="utf-8") == text:
        return 0
    print(f"{target} is not up to date: run `make pages`", file=sys.stderr)
    return 1
