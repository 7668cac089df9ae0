"""The table of environment variables is complete, and the page made from it up to date."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

from package_sources import ROOT, literals, modules

from polyfuse.options import ENVIRONMENT


def test_page_is_up_to_date() -> None:
    script = str(ROOT / "docs" / "build_environment.py")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_variable_is_in_the_table() -> None:
    listed = [v.name for v in ENVIRONMENT]
    assert len(set(listed)) == len(listed)
    ours = {text for m in modules() for _, text in literals(m) if re.fullmatch(r"POLYFUSE_[A-Z0-9_]+", text)}
    assert ours == {n for n in listed if n.startswith("POLYFUSE_")}


def test_no_other_variable_is_read() -> None:
    """Names that are written out where the environment is read."""
    known = {v.name for v in ENVIRONMENT} | {"PATH", "PYTHONPATH"}  # what every program reads
    read = {
        node.args[0].value
        for m in modules()
        for node in ast.walk(m.tree)
        if isinstance(node, ast.Call)
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and ast.unparse(node.func) in ("os.environ.get", "os.getenv")
    }
    assert read <= known
