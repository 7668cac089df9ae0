"""The page of the Python API is made from the docstrings, and up to date."""

from __future__ import annotations

import subprocess
import sys

from package_sources import ROOT

import polyfuse as pf


def test_page_is_up_to_date() -> None:
    script = str(ROOT / "docs" / "build_api_reference.py")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_on_it() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    missing = [
        n for n in pf.__all__ if n not in ("__version__",) and f"`{n}`" not in text and f"pf.{n}`" not in text
    ]
    assert not missing
