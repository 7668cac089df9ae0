"""Where in the user's Python source a builder was called: the places that its errors point at.

A node made by the builder carries a span of the *Python* file, down to the columns of the expression
where the interpreter knows them.  Without a source (an interactive session) the line number stays.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType

from polyfuse.source import NO_SPAN, SourceText, Span

_OURS = ("polyfuse.frontend_dsl.builder_", "polyfuse.builder")


def here() -> Span:
    """The place in the innermost frame that is no part of the builder."""
    for frame in _frames(sys._getframe(1)):
        if not frame.f_globals.get("__name__", "").startswith(_OURS):
            return _place(frame.f_code, frame.f_lasti, frame.f_lineno)
    return NO_SPAN


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


@lru_cache(maxsize=4096)
def _place(code: CodeType, instruction: int, line: int) -> Span:
    source = _source(code.co_filename)
    starts = [0, *(i + 1 for i, c in enumerate(source.text) if c == "\n")]
    if line >= len(starts):
        bare = SourceText(source.name, "\n" * (line - 1))
        return Span(bare, line - 1, line - 1)
    found = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    first, last, left, right = found
    if first is None or last is None or left is None or right is None or last >= len(starts):
        text = source.line(line)
        begin = starts[line - 1] + len(text) - len(text.lstrip())
        return Span(source, begin, max(begin, starts[line - 1] + len(text)))
    return Span(source, _offset(source, starts, first, left), _offset(source, starts, last, right))


def _offset(source: SourceText, starts: list[int], line: int, column: int) -> int:
    """The offset of a character; the interpreter counts columns in bytes."""
    before = source.line(line).encode("utf-8", "surrogatepass")[:column]
    return starts[line - 1] + len(before.decode("utf-8", "ignore"))


@lru_cache(maxsize=64)
def _source(file: str) -> SourceText:
    return SourceText(file, "".join(linecache.getlines(file)))
