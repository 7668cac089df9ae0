"""Answers about one program: what a name is, where it is made, its renaming, what may stand at a place.

A text whose syntax is wrong has diagnostics and completion; all else needs a tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from polyfuse.checking import Checked, check_text
from polyfuse.diagnostics import Diagnostic, DslError
from polyfuse.frontend_dsl.semantics.signature import signature
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import identifiers
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.names import (
    CONSTANTS,
    FUNCTIONS,
    GENERIC_KINDS,
    REDUCTIONS,
    WORDS,
    Library,
    representative,
)
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.library import standard_programs
from polyfuse.lsp.symbols import Kind, Symbol, at, symbols, targets
from polyfuse.source import SourceText, Span

KEYWORDS = ("if", "else", "for", "in", "and", "or", "not", "true", "false", "let")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KINDS = (*GENERIC_KINDS, ast.SIZE)
# Never names, whatever stands around them.
_RESERVED = frozenset(("if", "else", "for", "and", "or", "not", "true", "false"))


class RenameError(ValueError):
    """A name cannot be changed to another; the message says why."""


@dataclass(frozen=True)
class Proposal:
    """What may stand at a place."""

    label: str
    kind: str
    detail: str = ""


@dataclass
class Document:
    """A text, by the path that its imports are relative to; one that is `alone` cannot import."""

    text: str
    path: str
    alone: bool = False
    found: Sequence[Diagnostic] = field(init=False)
    checked: Checked | None = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.checked = check_text(self.text, self.path, None if self.alone else Path(self.path).parent)
            self.found = self.checked.found.found
        except DslError as error:
            self.checked, self.found = None, error.diagnostics

    @cached_property
    def program(self) -> ast.Program | None:
        """The syntax tree; of a text that imports what is not there, as of any other that can be read."""
        if self.checked is not None:
            return self.checked.program
        try:
            return parse_text(self.text, self.path)
        except DslError:
            return None

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """All names of the text."""
        return symbols(self.program) if self.program is not None else ()

    def place_of(self, d: Diagnostic) -> Span:
        """Where a finding is shown: one of an imported file at the import, one without a place at the top."""
        if d.span is not None and d.span.source.name == self.path:
            return d.span
        source = SourceText(self.path, self.text)
        for m in re.finditer(r'^\s*import\s*"([^"\n]*)"', self.text, re.M):
            if d.span is not None and Path(self.path).parent / m[1] == Path(d.span.source.name):
                return Span(source, m.start(1) - 1, m.end(1) + 1)
        return Span(source, 0, 0)

    def formatted(self) -> str | None:
        """The text in its canonical layout."""
        return format_program(self.program) if self.program is not None else None

    def references(self, offset: int) -> list[Span]:
        """All places of what has its name at a place."""
        symbol = at(self.symbols, offset)
        return [s.span for s in self.symbols if symbol is not None and s.is_same(symbol)]

    # --- definitions ---

    def definition(self, offset: int) -> Span | None:
        """Where what has its name at a place is made: its first definition, its parameter, its operator."""
        symbol = at(self.symbols, offset)
        if symbol is None:
            return None
        if symbol.kind is Kind.OPERATOR:
            called = self._operator(symbol.name)
            return called.name_span if called is not None else None
        same = [s for s in self.symbols if s.is_same(symbol)]
        op = self._op_at(offset)
        results = [] if op is None else [p.name_span for p in op.results]
        made = [s.span for s in same if s.declares and s.span not in results]
        return next(iter([*made, *(s.span for s in same)]), None)

    def _operator(self, name: str) -> ast.OpDef | None:
        """An operator that the text defines, imports or finds in the library."""
        if self.program is None:
            return None
        others = self.checked.programs[1:] if self.checked is not None else ()
        found = Library((self.program, *others, *standard_programs())).find(name, self.program)
        return found[0] if found is not None else None

    def _op_at(self, offset: int) -> ast.OpDef | None:
        ops = self.program.ops if self.program is not None else ()
        return next((op for op in ops if op.span.start <= offset <= op.span.end), None)

    # --- hover ---

    def hover(self, offset: int) -> tuple[Span, str] | None:
        """What a name is, in Markdown: type, range, formula."""
        symbol, op = at(self.symbols, offset), self._op_at(offset)
        if symbol is None or op is None:
            return None
        match symbol.kind:
            case Kind.OPERATOR:
                called = self._operator(symbol.name)
                lines = _of_operator(called) if called is not None else []
            case Kind.FUNCTION:
                lines = _of_function(symbol.name)
            case Kind.TENSOR:
                lines = self._of_tensor(symbol, op)
            case Kind.VARIABLE:
                lines = self._of_variable(symbol, op)
            case Kind.SIZE:
                lines = _of_size(symbol.name, op)
            case Kind.GENERIC:
                kind = next(g.kind for g in op.generics if g.name == symbol.name)
                lines = [_code(f"{symbol.name}: {kind}"), f"shown for {_instance(op)}"]
        return (symbol.span, "\n\n".join(lines)) if lines else None

    def _graph(self, op: ast.OpDef) -> TensorGraph | None:
        return self.checked.graphs.get(op.name) if self.checked is not None else None

    def _of_tensor(self, symbol: Symbol, op: ast.OpDef) -> list[str]:
        declared = next((p for p in (*op.params, *op.results) if p.name == symbol.name), None)
        lines = []
        if declared is not None:
            lines.append(_code(declared.span.text))
        else:
            graph = self._graph(op)
            made = next((t for t in graph.tensors if t.name == symbol.name), None) if graph else None
            if made is not None:
                shape = f"[{', '.join(map(str, made.shape))}]" if made.shape else ""
                at_instance = f" ({_instance(op)})" if op.generics else ""
                lines.append(_code(f"{made.name}: {made.dtype}{shape}") + at_instance)
        formulas = [s.span.text for s in op.body if symbol.name in targets(s)]
        return [*lines, _code("\n".join(formulas))] if formulas else lines

    def _of_variable(self, symbol: Symbol, op: ast.OpDef) -> list[str]:
        """The range, of the statements that the variable's own became."""
        stmt = next((s for s in op.body if s.span.start <= symbol.span.start < s.span.end), None)
        graph = self._graph(op)
        if stmt is None or graph is None:
            return []
        reduced = symbol.scope != stmt.span.start
        inside = [s for s in graph.statements if stmt.span.start <= s.span.start < stmt.span.end]
        names = (symbol.name, *(f"{symbol.name}_{k}" for k in range(4)))
        dims = [d for s in inside for d in s.dims if d.name in names and d.reduce == reduced]
        return [_code("\n".join(dict.fromkeys(map(str, dims))))] if dims else []

    # --- renaming ---

    def renamed(self, offset: int, new: str) -> list[Span]:
        """The places to change. Raises RenameError where the program would be another one."""
        symbol, op = at(self.symbols, offset), self._op_at(offset)
        if symbol is None or op is None or self.program is None or symbol.kind is Kind.FUNCTION:
            raise RenameError("there is no name here that can be changed")
        if not _IDENTIFIER.fullmatch(new) or new in _RESERVED:
            raise RenameError(f"'{new}' is not a name")
        taken = identifiers(op) | {o.name for o in self.program.ops}
        if new != symbol.name and (new in taken or new in BY_NAME):
            raise RenameError(f"there is something called '{new}' already")
        spans = self.references(offset)
        if symbol.kind is Kind.OPERATOR and not any(o.name == symbol.name for o in self.program.ops):
            raise RenameError(f"'{symbol.name}' is defined in another file")
        text = self.text
        for span in sorted(spans, key=lambda s: s.start, reverse=True):
            text = text[: span.start] + new + text[span.end :]
        before, after = _codes(self.found), _codes(Document(text, self.path).found)
        if before != after:
            raise RenameError(f"with '{new}' for '{symbol.name}' the program would not mean the same")
        return spans

    # --- completion ---

    def proposals(self, offset: int) -> list[Proposal]:
        """What may stand at a place, whether or not the text around it can be read."""
        before = self.text[:offset]
        line = before.rpartition("\n")[2]
        if "#" in line or line.count('"') % 2:
            return []
        begin = next(iter(reversed([m.start() for m in re.finditer(r"^\s*op\b", before, re.M)])), None)
        code = re.sub(r"#[^\n]*", "", before[begin or 0 :])
        if begin is None or (code.count("{") and code.count("{") == code.count("}")):
            return [Proposal("op", "keyword"), Proposal("import", "keyword")]
        typed = re.sub(r"[A-Za-z_0-9]*$", "", code).rstrip()
        if typed.endswith(":"):
            inside = re.match(r"\s*op\s+\w+\s*\[[^\]]*$", code) is not None
            generics = re.findall(rf"(\w+)\s*:\s*(?:{'|'.join(GENERIC_KINDS)})\b", code)
            return [Proposal(n, "type") for n in (_KINDS if inside else (*BY_NAME, *generics))]
        names = [Proposal(n, "name") for n in _names_around(self.text, begin)]
        if "{" not in code:
            return [*names, *(Proposal(n, "keyword") for n in ("inout", "where"))]
        return [*names, *self._words()]

    def _words(self) -> Iterator[Proposal]:
        yield from (Proposal(n, "function", "function") for n in WORDS)
        yield from (Proposal(n, "function", f"{n}[i](...)") for n in REDUCTIONS)
        yield from (Proposal(n, "constant") for n in CONSTANTS)
        yield from (Proposal(n, "type") for n in BY_NAME)
        yield from (Proposal(n, "keyword") for n in KEYWORDS)
        own = self.program.ops if self.program is not None else ()
        known = {op.name: op for p in standard_programs() for op in p.ops} | {op.name: op for op in own}
        yield from (Proposal(n, "operator", str(signature(op))) for n, op in known.items())


def _names_around(text: str, begin: int) -> list[str]:
    """The names written in the operator that begins at a place."""
    end = re.compile(r"^\s*op\b", re.M).search(text, begin + 4)
    code = re.sub(r"#[^\n]*", "", text[begin : end.start() if end else len(text)])
    known = {*WORDS, *REDUCTIONS, *BY_NAME, *KEYWORDS, *_KINDS, "op", "inout", "where"}
    return [n for n in dict.fromkeys(_IDENTIFIER.findall(code)) if n not in known]


def _codes(found: Sequence[Diagnostic]) -> list[str]:
    return sorted(d.code for d in found)


def _code(text: str) -> str:
    return f"```polyfuse\n{text}\n```"


def _of_operator(op: ast.OpDef) -> list[str]:
    """The signature, and the comment above it."""
    above = op.span.source.text[: op.span.start].splitlines()
    comment: list[str] = []
    while above and above[-1].startswith("#"):
        comment.insert(0, above.pop().lstrip("# "))
    where = f" where {', '.join(e.span.text for e in op.where)}" if op.where else ""
    return [_code(f"op {signature(op)}{where}"), *(["  \n".join(comment)] if comment else [])]


def _of_function(name: str) -> list[str]:
    if name in BY_NAME:
        return [f"conversion to `{name}`"]
    least, most = FUNCTIONS.get(name, (1, 1))
    more = ", ..." if most > least else ""
    return [_code(f"{name}({', '.join('xyzw'[:least])}{more})"), "function of numbers"]


def _of_size(name: str, op: ast.OpDef) -> list[str]:
    """Where a size is given, and what is said of it."""
    given = [p.span.text for p in op.params if any(_mentions(e, name) for e in p.type.extents)]
    held = [e.span.text for e in op.where if _mentions(e, name)]
    lines = [f"size `{name}`, from {', '.join(f'`{g}`' for g in given)}" if given else f"size `{name}`"]
    return [*lines, *([f"where {', '.join(f'`{h}`' for h in held)}"] if held else [])]


def _mentions(e: ast.Expr, name: str) -> bool:
    return re.search(rf"\b{name}\b", e.span.text) is not None


def _instance(op: ast.OpDef) -> str:
    """`F = f32`: the types that an operator is checked with."""
    return ", ".join(f"{g.name} = {representative(g.kind)}" for g in op.generics if g.kind != "size")
