"""The page of passes is up to date, and what it says of names holds."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain

from package_sources import ROOT

from polyfuse.driver.targets import passes


def test_page_is_up_to_date() -> None:
    script = str(ROOT / "docs" / "build_passes.py")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_name_means_one_pass_in_each_list() -> None:
    for name, found in passes().items():
        names = [p.name for p in found]
        assert len(set(names)) == len(names), name


def test_each_pass_has_a_line_for_people() -> None:
    for p in chain(*passes().values()):
        assert p.does and not p.does.endswith(".") and "," not in p.name and " " not in p.name, p.name


def test_no_pass_is_called_as_an_idea_of_others() -> None:
    """A name that can be switched off is a pass or an idea, never both."""
    every = [p for p in chain(*passes().values()) if p.optional]
    assert not {p.name for p in every} & {p.idea for p in every if ":" in p.name}
