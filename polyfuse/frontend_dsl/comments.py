"""Hands a program's comments to the formatter, each once and in order of place."""

from __future__ import annotations

import re

from polyfuse.frontend_dsl import ast
from polyfuse.source import Span

_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")


class Comments:
    """A cursor over the comments of a program and over the text between its parts."""

    def __init__(self, program: ast.Program) -> None:
        self._text = program.source.text
        self._source = program.source
        self._left = list(reversed(program.comments))
        self._end = 0

    def before(self, offset: int) -> list[ast.Comment]:
        """Takes the comments that begin before an offset."""
        taken = []
        while self._left and self._left[-1].span.start < offset:
            taken.append(self._left.pop())
        return taken

    def leading(self, span: Span) -> list[ast.Comment]:
        """Takes the comments in front of a node."""
        return self.before(span.start)

    def inside(self, span: Span) -> list[ast.Comment]:
        """Takes the comments within a node, and counts the node as printed."""
        taken = self.before(span.end)
        self._end = max(self._end, span.end)
        return taken

    def rest(self) -> list[ast.Comment]:
        """Takes all that are left."""
        return self.before(len(self._text) + 1)

    def any_before(self, offset: int) -> bool:
        return bool(self._left) and self._left[-1].span.start < offset

    def trailing(self, offset: int) -> str:
        """Takes the comment behind a node that ends at `offset`, as the text to append.

        Only punctuation may lie between the two.
        """
        if not self._left or self._left[-1].own_line:
            return ""
        comment = self._left[-1]
        between = self._text[offset : comment.span.start]
        if comment.span.start < offset or between.strip(" \t,;)"):
            return ""
        self._left.pop()
        self.done(comment.span)
        return f"  {comment.text}"

    def blank_before(self, span: Span) -> bool:
        """Whether a blank line lies between what was printed last and `span`."""
        gap = self._text[self._end : span.start]
        return span.start > self._end and _BLANK_LINE.search(gap) is not None

    def done(self, span: Span) -> None:
        """Counts a node or a comment as printed."""
        self._end = max(self._end, span.end)

    def skip_to(self, offset: int) -> None:
        """Counts everything before an offset as printed."""
        self._end = max(self._end, offset)

    def brace_of(self, op: ast.OpDef) -> int:
        """The offset behind the ``{`` of an operator."""
        return self._after(op.name_span.end, "{")

    def closing_after(self, offset: int) -> int:
        """The offset of the next ``)`` that is not in a comment."""
        return max(0, self._after(offset, ")") - 1)

    def _after(self, offset: int, char: str) -> int:
        for match in re.compile(rf"#[^\n]*|{re.escape(char)}").finditer(self._text, offset):
            if match.group() == char:
                return match.end()
        return 0
