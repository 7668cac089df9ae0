"""The page of the Python API lists every public name; the site shows their docstrings behind it."""

from __future__ import annotations

import re

from package_sources import ROOT

import polyfuse as pf

MODULES = {"torch", "jax", "visualize"}


def test_every_public_name_is_on_it_and_no_other() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    lines = re.findall(r"^- (.*)", text, re.MULTILINE)
    listed = {name for line in lines for name in re.findall(r"`pf\.(\w+)`", line)}
    assert listed - MODULES == {*pf.__all__} - {"__version__"} - MODULES
    assert listed >= MODULES
