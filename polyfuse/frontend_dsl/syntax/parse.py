"""Text to syntax tree: `parse_text`, `parse_file` (imports are resolved by `imports.load`).

    text --prescan, Tokenizer--> tokens --Lark's LALR table--> Builder --> ast.Program

The parser is driven one token at a time.  Where it stumbles, the error is kept, its stack is cut back
to the last place where a statement (or an operator) could begin, the input is skipped to the end of
that statement (or to the next ``op`` or ``fn``), and parsing goes on, so that a file shows several syntax
errors at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from lark import UnexpectedToken
from lark.parsers.lalr_analysis import Shift

from polyfuse.diagnostics import Diagnostics, DslError
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.build_ast import MAX_HEIGHT, SourceToken
from polyfuse.frontend_dsl.syntax.errors import accepted, explain
from polyfuse.frontend_dsl.syntax.grammar_file import parser
from polyfuse.frontend_dsl.syntax.lexical import MAX_ERRORS, MAX_SOURCE_BYTES, Tokenizer, check_size, prescan
from polyfuse.source import SourceText, Span

MAX_STACK = 3000
"""Symbols waiting on the parser's stack; programs within the other limits stay below 2000."""

MAX_SKIPPED = 50_000
"""Tokens passed over behind errors before the parser gives up looking for more."""

_BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"


def parse_text(text: str, name: str = "<string>") -> ast.Program:
    """The syntax tree of a program text. Raises `DslError` with every syntax error found.

    A byte order mark at the start is dropped; lines may end in CR LF.
    """
    check_size(name, text)
    source = SourceText(name, text.removeprefix(_BOM))
    scanned = prescan(source)
    run = _Run(source)
    items = run.parse(iter(Tokenizer(scanned, tuple(parser().terminals))))
    _check_order(items, run.found)
    ops = tuple(item for item in items if isinstance(item, ast.OpDef))
    functions = tuple(item for item in items if isinstance(item, ast.FnDef))
    check_duplicates(ops, run.found)
    check_duplicates(functions, run.found)
    run.found.raise_if_errors()
    imports = tuple(item for item in items if isinstance(item, ast.Import))
    return ast.Program(source, imports, ops, tuple(scanned.comments), functions)


def parse_file(path: str | os.PathLike[str]) -> ast.Program:
    """The syntax tree of one file; imports are not followed (see `imports.load`)."""
    return parse_text(read_source(path), str(path))


def read_source(path: str | os.PathLike[str]) -> str:
    """The text of a file; bytes that are not UTF-8 become half surrogates, which `prescan` reports."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_SOURCE_BYTES + 16)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DslError(f"cannot read '{path}': {reason}", code="PF107") from error
    return data.decode("utf-8", "surrogateescape")


def check_duplicates(ops: Sequence[ast.OpDef | ast.FnDef], found: Diagnostics) -> None:
    """PF108 for every operator, or function, whose name was taken before."""
    first: dict[str, ast.OpDef | ast.FnDef] = {}
    for op in ops:
        if op.name in first:
            place = first[op.name].name_span
            what = "operator" if isinstance(op, ast.OpDef) else "function"
            message = f"{what} '{op.name}' is defined twice"
            found.error(
                "PF108", message, op.name_span, "rename one of them", ((place, "first defined here"),)
            )
        else:
            first[op.name] = op


def _check_order(items: list[ast.Import | ast.OpDef | ast.FnDef], found: Diagnostics) -> None:
    """PF101 for an import after an operator."""
    seen_op = False
    for item in items:
        seen_op = seen_op or not isinstance(item, ast.Import)
        if seen_op and isinstance(item, ast.Import):
            message = "imports stand before the first operator"
            found.error("PF101", message, item.span, "move this line to the top of the file")


class _Run:
    """One parse: drives Lark's parser state and recovers from errors."""

    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._state = parser().parse_interactive("").parser_state
        self._table = cast("dict[Any, dict[str, tuple[Any, Any]]]", self._state.parse_conf.states)
        self._previous: SourceToken | None = None
        self._after_broken = False
        self._skipped = 0
        self.found = Diagnostics()

    def parse(self, tokens: Iterator[SourceToken]) -> list[ast.Import | ast.OpDef | ast.FnDef]:
        """Feeds all tokens; the items that were understood."""
        feed, stack = self._state.feed_token, self._state.state_stack
        token = next(tokens, None)
        while token is not None:
            try:
                feed(token)
            except (UnexpectedToken, DslError) as error:
                token = self._recover(token, tokens, error)
                if len(self.found.errors) >= MAX_ERRORS or self._skipped > MAX_SKIPPED:
                    return []
                continue
            if len(stack) > MAX_STACK:
                self._too_deep(token)
                return []
            self._previous = token
            if token.type != "END":
                self._after_broken = False
            token = next(tokens, None)
        return self._finish()

    def _finish(self) -> list[ast.Import | ast.OpDef | ast.FnDef]:
        end = self._marker("$END")
        try:
            items: list[ast.Import | ast.OpDef | ast.FnDef] = self._state.feed_token(end, is_end=True)
        except UnexpectedToken:
            expected = accepted(self._state.state_stack, self._table)
            self.found.found.append(explain(self._previous, end, expected))
            return []
        return items

    def _marker(self, kind: str) -> SourceToken:
        """A token that stands for no text."""
        end = self._previous.end_pos if self._previous is not None else len(self._source.text)
        token = SourceToken(kind, "", end, end_pos=end)
        token.source, token.depth = self._source, 0
        return token

    def _too_deep(self, token: SourceToken) -> None:
        start = token.start_pos
        message = f"this statement is nested too deep (the limit is {MAX_HEIGHT} levels)"
        hint = "give a part of the expression a name in a statement of its own"
        self.found.error("PF103", message, Span(self._source, start, token.end_pos), hint)

    def _recover(
        self, token: SourceToken, tokens: Iterator[SourceToken], error: UnexpectedToken | DslError
    ) -> SourceToken | None:
        """Keeps the error, cuts the stack back, and returns the token to go on with."""
        expected = accepted(self._state.state_stack, self._table)
        echo = self._after_broken and "BROKEN_STATEMENT" in expected
        if isinstance(error, DslError):
            for diagnostic in error.diagnostics:
                self.found.found.append(diagnostic)
        elif not echo:
            self.found.found.append(explain(self._previous, token, expected))
        in_body = self._cut_back()
        resume: SourceToken | None = token
        while resume is not None and not _resumes(resume, in_body) and self._skipped <= MAX_SKIPPED:
            self._previous = resume
            self._skipped += 1
            resume = next(tokens, None)
        self._after_broken = in_body
        return resume

    def _cut_back(self) -> bool:
        """Pops to where a statement or an item can begin and puts a broken one there; whether in a body."""
        states, values = self._state.state_stack, self._state.value_stack
        while True:
            actions = self._table[states[-1]]
            for kind in ("BROKEN_STATEMENT", "BROKEN_ITEM"):
                if kind in actions and actions[kind][0] is Shift:
                    self._state.feed_token(self._marker(kind))
                    return kind == "BROKEN_STATEMENT"
            states.pop()
            values.pop()


def _resumes(token: SourceToken, in_body: bool) -> bool:
    """Whether parsing can go on at this token after a broken statement or item."""
    if in_body:
        return (token.type == "END" and token.depth == 1) or (token.type == "RBRACE" and token.depth == 0)
    return token.type in ("OP", "FN", "IMPORT") and token.depth == 0
