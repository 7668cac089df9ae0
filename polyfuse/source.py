"""Source text and places in it: what every error points at.

A `Span` is a half-open range of characters of one `SourceText`.  Lines and columns
are 1-based and count Unicode code points, as editors show them.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class SourceText:
    """A named program text. `name` is a path or a label such as ``<string>``."""

    name: str
    text: str

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0] + [i + 1 for i, c in enumerate(self.text) if c == "\n"]

    def line_column(self, offset: int) -> tuple[int, int]:
        """The 1-based (line, column) of a character offset."""
        line = bisect.bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of a 1-based line, without its newline."""
        start = self._line_starts[number - 1]
        end = self.text.find("\n", start)
        return self.text[start : len(self.text) if end < 0 else end].rstrip("\r")


@dataclass(frozen=True, slots=True)
class Span:
    """Characters ``start <= i < end`` of a source text."""

    source: SourceText = field(repr=False)
    start: int
    end: int

    @property
    def line(self) -> int:
        return self.source.line_column(self.start)[0]

    @property
    def column(self) -> int:
        return self.source.line_column(self.start)[1]

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}:{self.column}"

    def to(self, other: Span) -> Span:
        """The smallest span that covers both; this one where the other is in another text."""
        if other.source is not self.source:
            return self
        return Span(self.source, min(self.start, other.start), max(self.end, other.end))

    def caret_lines(self, limit: int = 110) -> str:
        """The source line and carets under the span; a long line is cut around the span."""
        line_no, column = self.source.line_column(self.start)
        line = self.source.line(line_no)
        cut = max(0, column - 1 - limit // 2) if len(line) > limit else 0
        shown = _printable(line[cut : cut + limit])
        width = max(1, min(self.end - self.start, len(shown) - (column - 1 - cut)))
        prefix = f"{line_no:5d} | "
        return f"{prefix}{shown}\n{' ' * (len(prefix) - 2)}| {' ' * (column - 1 - cut)}{'^' * width}"


@dataclass(frozen=True, slots=True)
class CalledSpan(Span):
    """A place in a function, and that of the call which brought it here."""

    call: Span


def called(span: Span, call: Span) -> CalledSpan:
    """A place in the body of a function that is called there; calls on the way stay."""
    by = called(span.call, call) if isinstance(span, CalledSpan) else call
    return CalledSpan(span.source, span.start, span.end, by)


def _printable(text: str) -> str:
    """One character for each, so that carets stay under what they mark, whatever the text holds."""
    return "".join(c if c.isprintable() else ("\N{SYMBOL FOR NULL}" if c == "\0" else " ") for c in text)


NO_SPAN = Span(SourceText("<generated>", ""), 0, 0)
