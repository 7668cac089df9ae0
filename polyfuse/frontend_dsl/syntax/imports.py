"""Follows imports: `load_file`, `load_text`, and `load`, which takes either.

An import names a ``.pf`` file relative to the file it stands in and may only lead deeper into that
file's folder: no absolute paths, no ``..``, no symbolic link that leads out. Every file is read once,
however often it is imported; a cycle is an error.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath

from polyfuse.diagnostics import ArgumentError, Diagnostic, Diagnostics, DslError
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.parse import check_duplicates, parse_text, read_source

MAX_IMPORT_DEPTH = 32
MAX_FILES = 256


@dataclass(frozen=True, slots=True)
class Loaded:
    """A program with all it imports: imported files before importing ones, the asked one last."""

    programs: tuple[ast.Program, ...]

    @property
    def main(self) -> ast.Program:
        """The file or text that was asked for."""
        return self.programs[-1]

    @property
    def ops(self) -> tuple[ast.OpDef, ...]:
        """The operators of all files; their names are distinct."""
        return tuple(op for program in self.programs for op in program.ops)


def load(text_or_path: str | os.PathLike[str], name: str = "<string>") -> Loaded:
    """Loads a path object, a string that ends in ``.pf`` (a path), or any other string (a program text)."""
    given: object = text_or_path
    if isinstance(text_or_path, str):
        if "\n" in text_or_path or not text_or_path.strip().endswith(".pf"):
            return load_text(text_or_path, name)
        text_or_path = text_or_path.strip()
    elif not isinstance(given, os.PathLike):
        hint = "decode it: text.decode('utf-8')" if isinstance(given, bytes) else None
        message = f"a program is a string or the path of a file, not of type {type(given).__name__}"
        raise ArgumentError(message, code="PF114", hint=hint)
    return load_file(text_or_path)


def load_file(path: str | os.PathLike[str]) -> Loaded:
    """Parses a file and everything it imports. Raises `DslError` with all that was found."""
    loader = _Loader()
    program = parse_text(read_source(path), str(path))
    real = Path(path).resolve()
    return loader.run(program, Path(path).parent, real)


def load_text(text: str, name: str = "<string>", folder: str | os.PathLike[str] | None = None) -> Loaded:
    """Parses a text; its imports are looked up in `folder`, without which they are errors."""
    program = parse_text(text, name)
    return _Loader().run(program, None if folder is None else Path(folder), None)


@dataclass(slots=True)
class _Loader:
    """One load: what was read, what is being read, what went wrong."""

    done: dict[Path, None] = field(default_factory=dict)
    programs: list[ast.Program] = field(default_factory=list)
    chain: list[tuple[Path, ast.Import | None]] = field(default_factory=list)
    found: Diagnostics = field(default_factory=Diagnostics)

    def run(self, program: ast.Program, folder: Path | None, real: Path | None) -> Loaded:
        if real is not None:
            self.chain.append((real, None))
        self._follow(program, folder)
        self.programs.append(program)
        if not self.found.errors:
            check_duplicates(tuple(op for p in self.programs for op in p.ops), self.found)
        self.found.raise_if_errors()
        return Loaded(tuple(self.programs))

    def _follow(self, program: ast.Program, folder: Path | None) -> None:
        for node in program.imports:
            if folder is None:
                message = "a text that is not in a file cannot import"
                self.found.error("PF107", message, node.span, "save it as a .pf file, or give its folder")
                continue
            path = self._locate(node, folder)
            if path is not None:
                self._read(node, path)

    def _read(self, node: ast.Import, path: Path) -> None:
        """Parses an imported file, after what it imports in turn."""
        real = path.resolve()
        if any(real == open_file for open_file, _ in self.chain):
            self._cycle(node, real)
            return
        if real in self.done:
            return
        if len(self.chain) >= MAX_IMPORT_DEPTH or len(self.done) >= MAX_FILES:
            message = f"too many imports: at most {MAX_FILES} files, {MAX_IMPORT_DEPTH} deep"
            self.found.error("PF107", message, node.span)
            return
        self.done[real] = None
        try:
            program = parse_text(read_source(path), str(path))
        except DslError as error:
            self.found.found.extend(_placed(d, node) for d in error.diagnostics)
            return
        self.chain.append((real, node))
        self._follow(program, path.parent)
        self.chain.pop()
        self.programs.append(program)

    def _cycle(self, node: ast.Import, real: Path) -> None:
        start = [file for file, _ in self.chain].index(real)
        related = tuple(
            (by.span, f"which is imported by '{by.span.source.name}'")
            for _, by in reversed(self.chain[start + 1 :])
            if by is not None
        )
        message = f"import cycle: '{node.path}' is already being imported"
        self.found.error("PF112", message, node.span, "move what both need into a third file", related)

    def _locate(self, node: ast.Import, folder: Path) -> Path | None:
        """The file of an import, or None after an error."""
        problem = _spelling_problem(node.path)
        if problem is None:
            path = folder / node.path
            try:
                problem = _place_problem(path, folder)
            except (OSError, RuntimeError, ValueError) as error:
                problem = (f"cannot read '{node.path}': {error}", None)
            if problem is None:
                return path
        self.found.error("PF107", problem[0], node.span, problem[1])
        return None


def _placed(diagnostic: Diagnostic, node: ast.Import) -> Diagnostic:
    """An error without a place (an unreadable file) is shown at the import."""
    if diagnostic.span is not None:
        return diagnostic
    return Diagnostic(diagnostic.code, diagnostic.message, node.span, diagnostic.hint)


def _spelling_problem(path: str) -> tuple[str, str | None] | None:
    """What is wrong with the path of an import as it is written: a message and a hint."""
    parts = path.split("/")
    if path.startswith(("/", "~")) or PureWindowsPath(path).drive:
        return f"import of an absolute path: '{path}'", "imports are relative to the importing file"
    if "\\" in path:
        return f"'\\' in an import path: '{path}'", "folders are separated by '/'"
    if ".." in parts:
        return (
            f"'..' in an import path: '{path}'",
            "imports stay inside the folder of the importing file; put shared files below it",
        )
    if not path.endswith(".pf"):
        return f"'{path}' is not the name of a .pf file", 'write the whole name: import "norms.pf"'
    return None


def _place_problem(path: Path, folder: Path) -> tuple[str, str | None] | None:
    """What is wrong with where an import leads to."""
    if not path.resolve().is_relative_to(folder.resolve()):
        return (
            f"'{path}' leads out of the folder '{folder}'",
            "it is (or lies behind) a symbolic link; copy the file",
        )
    if not path.exists():
        return f"there is no file '{path}'", "imports are looked up relative to the importing file"
    if not path.is_file():
        return f"'{path}' is not a file", None
    return None
