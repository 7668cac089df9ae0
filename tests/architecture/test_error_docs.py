"""Every error code has a section in docs/errors.md, and every section a code."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import defaultdict
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


def test_every_section_has_a_code() -> None:
    used = _codes_of_the_package()
    assert not [c for c in GENERATOR.fragments() if c not in used]


def test_page_is_up_to_date() -> None:
    assert GENERATOR.TARGET.read_text(encoding="utf-8") == GENERATOR.build(), "run `make pages`"


def test_page_has_an_anchor_for_each_code() -> None:
    text = GENERATOR.TARGET.read_text(encoding="utf-8")
    anchors = re.findall(r'<a id="(pf\d+)"></a>', text)
    assert anchors == [c.lower() for c in GENERATOR.fragments()]
    assert set(re.findall(r"\]\(#(pf\d+)\)", text)) <= set(anchors), "a link to a code that has no section"


def test_build(tmp_path: Path) -> None:
    (tmp_path / "PF201.md").write_text("# PF201: unknown name\n\n## Why\n\n```\n# code\n```\n")
    (tmp_path / "PF102.md").write_text("# PF102: too long\nText.\n")
    text = GENERATOR.build(tmp_path)
    assert text.index("## PF102: too long") < text.index("## PF201: unknown name")
    assert '<a id="pf201"></a>\n\n## PF201: unknown name\n\n### Why\n\n```\n# code\n```\n' in text
    assert "- [PF102](#pf102): too long" in text


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
