"""The standard library: operators written in the language itself, one file per family."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable


def _folder() -> Traversable:
    return resources.files("polyfuse") / "stdlib"


def source_files() -> tuple[str, ...]:
    """The names of the library's files, sorted; `read` gives their text."""
    return tuple(sorted(f.name for f in _folder().iterdir() if f.name.endswith(".pf")))


def read(name: str) -> str:
    """The text of one file of the library."""
    return (_folder() / name).read_text(encoding="utf-8")
