"""Every error code has a page in docs/errors.d, every page a code, and the index lists them."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from package_sources import ROOT, literals, modules

_CODE = re.compile(r"PF[1-9]\d\d\b")


def _generator() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))  # where the script finds what the scripts share
    spec = importlib.util.spec_from_file_location("build_errors", ROOT / "docs" / "build_errors.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()


@cache
def _codes_of_the_package() -> dict[str, list[str]]:
    """Code -> the places that use it: string literals that are a code or begin with one."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for line, text in literals(module):
            if found := _CODE.match(text):
                places[found[0]].append(f"{module.where}:{line}")
    return dict(sorted(places.items()))


def test_every_code_is_documented() -> None:
    documented = GENERATOR.fragments()
    missing = [f"{c} ({p[0]})" for c, p in _codes_of_the_package().items() if c not in documented]
    assert not missing, "write docs/errors.d/PFnnn.md for: " + ", ".join(missing)


def test_every_page_has_a_code() -> None:
    used = _codes_of_the_package()
    assert not [c for c in GENERATOR.fragments() if c not in used]


def test_the_index_is_up_to_date() -> None:
    assert GENERATOR.TARGET.read_text(encoding="utf-8") == GENERATOR.build(), "run `make pages`"


def test_the_index_has_a_line_for_each_code() -> None:
    text = GENERATOR.TARGET.read_text(encoding="utf-8")
    lines = re.findall(r"""^- \[(PF\d+)\]\(errors.d/\1.md\): .* <a id="(pf\d+)"></a>$""", text, re.MULTILINE)
    assert lines == [(c, c.lower()) for c in GENERATOR.fragments()]


def test_build(tmp_path: Path) -> None:
    (tmp_path / "PF201.md").write_text("# PF201: unknown name\n\n## Why\n\n```\n# code\n```\n")
    (tmp_path / "PF102.md").write_text("# PF102: too long\nText.\n")
    text = GENERATOR.build(tmp_path)
    assert '## Text and syntax (PF1xx)\n\n- [PF102](errors.d/PF102.md): too long <a id="pf102"></a>\n' in text
    assert text.index("errors.d/PF102.md") < text.index("errors.d/PF201.md")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PF201.md", "# PF202: another\n\nText."),
        ("PF201.md", "# unknown name\n\nText."),
        ("PF201.md", "# PF201: unknown name\n"),
        ("notes.txt", "# PF201: unknown name\n\nText."),
    ],
)
def test_bad_fragment(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(GENERATOR.BadFragmentError, match=re.escape(name)):
        GENERATOR.build(tmp_path)
