"""The examples in docstrings of the public API run, and give what they show."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest
from docstrings import objects

import polyfuse as pf

OBJECTS = {
    name: thing
    for name, thing in objects().items()
    if any(t.examples for t in doctest.DocTestFinder().find(thing))
}


@pytest.mark.parametrize("name", OBJECTS)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for found in doctest.DocTestFinder(recurse=True).find(OBJECTS[name], name, module=False):
        found.globs = {"pf": pf, "np": np}
        assert runner.run(found, clear_globs=True).failed == 0, found.name
