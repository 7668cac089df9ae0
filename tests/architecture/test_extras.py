"""Optional packages: texts name extras that there are, in a form that works, for polyfuse is in no index."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from polyfuse.diagnostics import install

ROOT = Path(__file__).resolve().parents[2]
KINDS = (".md", ".py", ".js")


def texts() -> dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [ROOT / name for name in listed.stdout.splitlines() if name.endswith(KINDS)]
    return {str(f.relative_to(ROOT)): f.read_text(encoding="utf-8") for f in files if f.exists()}


def test_no_text_installs_an_extra_from_an_index() -> None:
    asks = re.compile(r"""polyfuse\[[a-z-]""")
    own = str(Path(__file__).relative_to(ROOT))
    assert [n for n, text in texts().items() if n != own and asks.search(text)] == []


def test_extras_that_texts_name_are_there() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    told = [(n, e) for n, text in texts().items() for e in re.findall(r"'\.\[([a-z-]+)\]'", text)]
    told += [(n, e) for n, text in texts().items() for e in re.findall(r'\binstall\("([a-z-]+)"\)', text)]
    assert len({e for _, e in told}) >= 6
    assert [(n, e) for n, e in told if e not in extras] == []


def test_the_hint_says_where_it_works() -> None:
    assert install("lsp") == "pip install '.[lsp]' in a clone of polyfuse"
