"""Limits that every module keeps: small files, small functions, docstrings, nothing left to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_sources import PACKAGE, ROOT, Module, modules

MODULE_LINES = 700
FUNCTION_LINES = 70

# What users import. The methods of these classes are part of it.
PUBLIC = tuple(
    m
    for m in modules()
    if m.name in ("polyfuse", "polyfuse.api", "polyfuse.options", "polyfuse.diagnostics", "polyfuse.source")
    or m.name
    in ("polyfuse.decisions", "polyfuse.cli", "polyfuse.driver.pipeline", "polyfuse.driver.compiled")
    or m.name.startswith("polyfuse.interop")
)
METHODS_TOO = ("polyfuse.api", "polyfuse.driver.compiled", "polyfuse.options", "polyfuse.interop")

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (n for n in ast.walk(tree) if isinstance(n, Function))


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_size(module: Module) -> None:
    lines = module.text.count("\n")
    assert lines < MODULE_LINES, f"{module.where} has {lines} lines: cut it in two"
    for f in _functions(module.tree):
        length = (f.end_lineno or f.lineno) - f.lineno + 1
        assert length < FUNCTION_LINES, f"{module.where}:{f.lineno} {f.name} has {length} lines"


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_no_bare_except(module: Module) -> None:
    bare = [n.lineno for n in ast.walk(module.tree) if isinstance(n, ast.ExceptHandler) and n.type is None]
    assert not bare, f"{module.where}: lines {bare}"


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_every_module_says_what_it_is(module: Module) -> None:
    if module.text.strip():
        assert ast.get_docstring(module.tree), module.where


@pytest.mark.parametrize("module", PUBLIC, ids=lambda m: m.name)
def test_public_docstrings(module: Module) -> None:
    silent = [f"{module.where}:{n.lineno} {n.name}" for n in _public(module) if not ast.get_docstring(n)]
    assert not silent, "\n".join(silent)


def _public(module: Module) -> Iterator[ast.ClassDef | Function]:
    for node in module.tree.body:
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
            continue
        yield node
        if isinstance(node, ast.ClassDef) and module.name.startswith(METHODS_TOO):
            yield from (f for f in node.body if isinstance(f, Function) and _is_public_method(f))


def _is_public_method(f: Function) -> bool:
    """Properties are left out: their names and types often say everything."""
    return not f.name.startswith("_") and not any("property" in ast.unparse(d) for d in f.decorator_list)


def _texts() -> Iterator[Path]:
    for folder in (PACKAGE, ROOT / "grammars", ROOT / "examples", ROOT / "benchmarks", ROOT / "docs"):
        for suffix in ("*.py", "*.pf", "*.lark", "*.h", "*.cpp", "*.md"):
            yield from folder.rglob(suffix)


def test_nothing_is_left_to_do() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(_texts())
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not found, "\n".join(found)


def test_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").is_file()
