"""The modules of the package as syntax trees, and what they import: shared by the architecture tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "polyfuse"


@dataclass(frozen=True)
class Module:
    """One Python file: its dotted name, text and syntax tree, which is made when a test wants it."""

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def where(self) -> str:
        """The path as a reader of the repository knows it."""
        return str(self.path.relative_to(ROOT))


@dataclass(frozen=True, order=True)
class Import:
    """One import: the modules or names asked for, and whether only type checkers see it."""

    line: int
    target: str
    typing_only: bool


@cache
def modules(folder: Path = PACKAGE, prefix: str = "polyfuse") -> tuple[Module, ...]:
    """All modules below a folder, sorted by name."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = [prefix, *path.relative_to(folder).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found.append(Module(name, path, text))
    return tuple(found)


@cache
def imports(module: Module) -> tuple[Import, ...]:
    """Every import anywhere in a module; ``from a import b`` asks for ``a.b`` (a module or a name in one)."""
    typing_only = {id(n) for guard in _typing_guards(module.tree) for n in ast.walk(guard)}
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    found = []
    for node in ast.walk(module.tree):
        for target in _targets(node, package):
            assert isinstance(node, ast.Import | ast.ImportFrom | ast.Call)
            found.append(Import(node.lineno, target, id(node) in typing_only))
    return tuple(found)


def _targets(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=origin, names=names, level=level):
            if level:
                above = package.split(".")[: len(package.split(".")) - level + 1]
                origin = ".".join([*above, *([origin] if origin else [])])
            return [f"{origin}.{alias.name}" for alias in names]
        case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__")):
            # importlib.import_module("islpy") is an import as well.
            first = node.args[0] if node.args else None
            return [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []
        case _:
            return []


def _typing_guards(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                yield from node.body
            case _:
                pass


@cache
def literals(module: Module) -> tuple[tuple[int, str], ...]:
    """Every string literal (also the pieces of f-strings) with its line, but no docstrings."""
    nodes = list(ast.walk(module.tree))
    prose = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
    return tuple(
        (n.lineno, n.value)
        for n in nodes
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in prose
    )
