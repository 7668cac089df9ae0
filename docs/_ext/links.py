"""Links between files of the repository, as links between pages of the site.

A page keeps links that lead somewhere on a code host: to other pages, to chapters (`.py`), to files and
folders of the repository.  On the site the same links lead to pages; what lies outside of `docs` has a page
that shows it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_CODE = re.compile(r"(^(`{3,}).*?^\2`*$|(?<!`)`[^`\n]+`(?!`))", re.MULTILINE | re.DOTALL)

# Where pages are that do not lie in `docs`, or not where the site has them.
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "CHANGELOG.md": "changelog.md",
    "docs/errors.md": "errors/index.md",
    "docs/reference/stdlib.md": "stdlib/index.md",
    "docs/reference/passes.md": "passes/index.md",
    "docs/reference/api.md": "api/index.md",
}


def place(path: Path) -> str:
    """The page of the site that shows a file or folder of the repository, relative to its root.

    docs/howto/jax.md -> howto/jax.md              docs/course/02_sets.py -> course/02_sets.md
    docs/errors.d/PF402.md -> errors/PF402.md      examples/demo.py -> sources/examples/demo.py.md
    """
    name = path.relative_to(ROOT).as_posix()
    if name in MOVED:
        return MOVED[name]
    if path.parent == DOCS / "errors.d":
        return f"errors/{path.name}"
    if path.is_relative_to(DOCS) and path.suffix == ".md":
        return path.relative_to(DOCS).as_posix()
    if path.parent == DOCS / "course" and path.suffix == ".py":
        return path.relative_to(DOCS).with_suffix(".md").as_posix()
    return f"sources/{name}/index.md" if path.is_dir() else f"sources/{name}.md"


def on_site(text: str, page: Path, shown: Callable[[Path], None] = lambda path: None) -> str:
    """The text of a page of the repository with the links that its page on the site has.

    `shown` is told each file and folder that a page of its own shows.  A link that leads nowhere stays as it
    is: Sphinx finds it.
    """
    here = Path(place(page)).parent

    def moved(m: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / m[2]))
        if "://" in m[2] or m[2].startswith("mailto:") or not target.exists() or _is_picture(target):
            return m[0]
        found = place(target)
        if target == DOCS / "errors.md" and m[3] != ")":
            return f"{m[1]}{os.path.relpath('errors', here)}/{m[3][1:-1].upper()}.md)"
        if found.startswith("sources/"):
            shown(target)
        return f"{m[1]}{os.path.relpath(found, here)}{m[3]}"

    return outside_code(text, lambda part: _with_targets(LINK.sub(moved, part)))


def _with_targets(text: str) -> str:
    """Anchors as MyST has them: `<a id="x"></a>` before a block, or in a line."""
    text = re.sub(r"^<a id=\"([^\"]+)\"></a>$", r"(\1)=", text, flags=re.MULTILINE)
    return re.sub(r"<a id=\"([^\"]+)\"></a>", r"[]{#\1}", text)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """A Markdown text that is changed where it is no code."""
    parts, end = [], 0
    for code in _CODE.finditer(text):
        parts += [change(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, change(text[end:])])


def _is_picture(path: Path) -> bool:
    return path.suffix in (".svg", ".png") and path.is_relative_to(DOCS)
