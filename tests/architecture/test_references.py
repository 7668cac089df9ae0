"""Comments, docstrings and pages name modules and files that are there."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from package_sources import PACKAGE, ROOT, Module, modules

# `codegen.transforms.unswitch`; the package's name may stand before it, names of the module behind it.
# Two packages have the names of others'.
TOP = "|".join(sorted({p.parent.name for p in PACKAGE.glob("*/__init__.py")} - {"torch", "jax"}))
NAME = re.compile(rf"`(?:polyfuse\.)?((?:{TOP})(?:\.\w+)+)`")
FILE = re.compile(r"\b((?:tests|benchmarks|docs|polyfuse)/[\w/.]+\.(?:py|md|txt|json|h))\b")


# A path in backquotes on a page; those of the package may leave its name out.
PATH = re.compile(r"`([\w.]+(?:/[\w.]+)+\.(?:py|h|md|txt|json|pf))`")
PAGES = tuple(sorted((*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md")))


def prose(module: Module) -> Iterator[tuple[int, str]]:
    """Comments and docstrings, each with its line."""
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(module.tree):
        match node:
            case ast.Expr(ast.Constant(str() as text)):
                yield node.lineno, text


@cache
def known() -> dict[str, Module]:
    return {m.name.removeprefix("polyfuse."): m for m in modules()}


def is_there(name: str) -> bool:
    """Is it a module, or what stands in one?"""
    if name in known():
        return True
    above, _, inside = name.rpartition(".")
    if above in known():
        module = known()[above]
        # Most packages have nothing but their modules.
        return len(module.tree.body) > 1 and re.search(rf"\b{inside}\b", module.text) is not None
    return above.count(".") > 0 and is_there(above)


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_what_prose_names_is_there(module: Module) -> None:
    texts = list(prose(module))
    named = [(line, name) for line, text in texts for name in NAME.findall(text)]
    gone = [found for found in named if not is_there(found[1])]
    gone += [(line, f) for line, text in texts for f in FILE.findall(text) if not (ROOT / f).exists()]
    assert not gone, "\n".join(f"{module.where}:{line}: {name}" for line, name in gone)
    itself = [line for line, name in named if f"polyfuse.{name}" == module.name]
    assert not itself, f"{module.where} sends its readers to itself: lines {itself}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not [name for name in NAME.findall(text) if not is_there(name)]
    paths = [name for name in PATH.findall(text) if "PFnnn" not in name]
    assert not [name for name in paths if not any((top / name).exists() for top in (ROOT, PACKAGE))]


def test_names_are_found() -> None:
    found = NAME.findall("(`codegen.transforms.unswitch`, `polyfuse.ir.loop_ir.For`)")
    assert found == ["codegen.transforms.unswitch", "ir.loop_ir.For"]
    assert all(map(is_there, (*found, "ir.loop_ir", "runtime.cpu.pool.StepArray")))
    assert not any(map(is_there, ("ir.work", "codegen.skewed", "ir.loop_ir.Skewed", "tuning_turns.x")))
