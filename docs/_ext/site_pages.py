"""The Sphinx extension that gathers the sources of the site in the folder that Sphinx reads.

    pages of the repository, links mended    ->  the same names, from `docs` on
    docs/errors.d, the registry of passes,
    the command, the API, the library        ->  pages that nobody writes
    chapters that sphinx-gallery ran         ->  their pages in Markdown
    index pages                              ->  with tables of contents

Files are written only where they change, so that Sphinx reads anew what changed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from chapters import as_markdown
from contents import toctrees, with_cards, with_contents
from links import DOCS, MOVED, ROOT, on_site, place
from made import Pages, api, commands, errors, passes, shown_files

COURSES = ("course",)
CHAPTERS = ROOT / "build" / "site-chapters"
# Pages of the repository that the site does not show as they are: others are made in their place.
_REPLACED = {"README.md", "docs/reference/stdlib.md"}


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("builder-inited", forget_stale, priority=1)
    app.connect("builder-inited", link_chapters, priority=2)
    app.connect("builder-inited", write_chapters, priority=900)  # after sphinx-gallery
    app.connect("builder-inited", write_pages, priority=901)
    return {"version": "1", "parallel_read_safe": True}


# --- what is kept -------------------------------------------------------------------------------------------


def package_key() -> str:
    """A hash of what decides the outputs of chapters and the figures of the library."""
    files = sorted(p for p in (ROOT / "polyfuse").rglob("*") if p.suffix in (".py", ".pf", ".h", ".cpp"))
    found = hashlib.sha256()
    for file in (*files, ROOT / "benchmarks" / "stdlib_sizes.py", Path(__file__).with_name("gallery.py")):
        found.update(file.read_bytes())
    return found.hexdigest()


def forget_stale(app: Any) -> None:
    """What the package made before it changed is made anew."""
    source, key = Path(app.srcdir), package_key()
    mark = source / ".package"
    if not mark.is_file() or mark.read_text() != key:
        for folder in (*COURSES, "stdlib"):
            shutil.rmtree(source / folder, ignore_errors=True)
        mark.write_text(key)


def link_chapters(app: Any) -> None:
    """sphinx-gallery reads folders with a header, of which it makes an index; ours have their own."""
    for folder in CHAPTERS.iterdir() if CHAPTERS.is_dir() else ():
        shutil.rmtree(folder)
    for folder in COURSES:
        to = CHAPTERS / folder
        to.mkdir(parents=True)
        (to / "GALLERY_HEADER.rst").write_text(f"{folder}\n======\n")
        for chapter in sorted((DOCS / folder).glob("[0-9]*.py")):
            (to / chapter.name).symlink_to(chapter)


# --- pages --------------------------------------------------------------------------------------------------


def write_chapters(app: Any) -> None:
    """Chapters that sphinx-gallery wrote, in Markdown, beside its own files, which Sphinx leaves out."""
    for folder in COURSES:
        for made in sorted(Path(app.srcdir, folder).glob("[0-9]*.rst")):
            origin = DOCS / folder / f"{made.stem}.py"
            if origin.is_file():
                text = on_site(as_markdown(made.read_text(encoding="utf-8")), origin)
                _write(made.with_suffix(".md"), text)


def write_pages(app: Any) -> None:
    """All other pages, and tables of contents."""
    source = Path(app.srcdir)
    shown: set[Path] = set()
    pages: Pages = {}
    for page in repository_pages():
        pages[place(page)] = on_site(page.read_text(encoding="utf-8"), page, shown.add)
    pages["index.md"] = with_cards(pages["index.md"])
    pages |= passes(pages["passes/index.md"]) | api(pages["api/index.md"])
    pages |= errors() | commands() | _library(source)
    pages |= shown_files(shown)
    chapters = {f"{f}/{p.name}": p.read_text() for f in COURSES for p in (source / f).glob("[0-9]*.md")}
    below = toctrees({**pages, **chapters})
    below["api/index.md"] = sorted(n for n in pages if n.startswith("api/") and n.endswith(".rst"))
    below["reference/cli.md"] = ["reference/commands.md"]
    for index, names in below.items():
        pages[index] = with_contents(pages[index], names, first=index == "index.md")
    for name, text in pages.items():
        _write(source / name, text)
    _forget(source, {*pages, *chapters})
    shutil.copytree(DOCS / "pictures", source / "pictures", dirs_exist_ok=True)


def repository_pages() -> list[Path]:
    """Pages that people wrote, and those that are committed although a program made them."""
    found = [p for p in DOCS.rglob("*.md") if p.parent.name not in ("errors.d", "_ext")]
    found += [ROOT / name for name in MOVED if "/" not in name]
    return sorted(p for p in found if p.relative_to(ROOT).as_posix() not in _REPLACED)


def _library(source: Path) -> Pages:
    """The gallery of the library; it is made anew when the package has changed."""
    kept = source / "stdlib" / "pages.json"
    if kept.is_file():
        found: Pages = json.loads(kept.read_text(encoding="utf-8"))
        return found
    sys.path[:0] = [str(DOCS), str(ROOT)]
    from gallery import library

    pages, pictures = library()
    for name, text in pictures.items():
        _write(source / name, text)
    _write(kept, json.dumps(pages))
    return pages


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _forget(source: Path, known: set[str]) -> None:
    """Pages of an earlier build that are no more; what sphinx-gallery wrote stays."""
    for path in (*source.rglob("*.md"), *source.rglob("*.rst")):
        name = path.relative_to(source)
        if name.as_posix() not in known and name.parts[0] not in COURSES:
            path.unlink()
