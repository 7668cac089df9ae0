"""The statements of an operator as a picture (SVG text): what each computes, and what it reads.

    graph_svg(graph)

Arguments stand on the left; a statement is right of everything that it reads. Of an operator with many
statements their names only are shown.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from polyfuse.ir.tensor_graph import Role, Statement, TensorGraph, format_index, statement_reads
from polyfuse.visualize.svg import CHAR, EDGE, MARGIN, PAPER, colour, num, page, rect, text

LINE, PAD, ACROSS, DOWN, TOP = 16, 10, 56, 16, 64
WRAP, MOST_LINES, MOST_TEXTS = 36, 5, 40
_FILLS = {Role.INPUT: "grey-soft", Role.INOUT: "grey-soft", Role.TEMP: "blue-soft", Role.OUTPUT: "green-soft"}


@dataclass(frozen=True, slots=True)
class _Box:
    """A statement, or an argument, on the page."""

    lines: tuple[str, ...]
    tip: str
    fill: str
    x: float
    y: float

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * CHAR + 2 * PAD

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + PAD


def graph_svg(graph: TensorGraph) -> str:
    """An SVG of the arguments and statements, from left to right."""
    sources = {s.name: _sources(graph, s) for s in graph.statements}
    read = {n for found in sources.values() for n in found}
    columns: dict[str, int] = {n: 0 for n in graph.inputs if n in read}
    for s in graph.statements:
        columns[s.name] = 1 + max((columns.get(n, 0) for n in sources[s.name] if n != s.name), default=0)
    boxes = _placed(graph, columns)
    width = max((b.x + b.width for b in boxes.values()), default=0) + MARGIN
    height = max((b.y + b.height for b in boxes.values()), default=TOP) + MARGIN
    parts = [p for name, found in sources.items() for n in found for p in _edge(boxes[n], boxes[name])]
    parts += [p for b in boxes.values() for p in _drawn(b)]
    return page(graph.name, max(width, 2 * MARGIN + len(graph.name) * 11.5), height, parts)


def _sources(graph: TensorGraph, s: Statement) -> list[str]:
    """What a statement reads: arguments, and the statements that define the rest."""
    found: dict[str, None] = {}
    for r in statement_reads(s):
        writers = [w.name for w in graph.writers(r.tensor)] or [r.tensor]
        found |= dict.fromkeys(n for n in writers if n != s.name)
    return list(found)


def _placed(graph: TensorGraph, columns: dict[str, int]) -> dict[str, _Box]:
    """Each column as wide as its widest box, boxes below one another."""
    wordy = len(graph.statements) <= MOST_TEXTS
    known = {s.name: s for s in graph.statements}
    boxes: dict[str, _Box] = {}
    x = float(MARGIN)
    for column in sorted(set(columns.values())):
        y = float(TOP)
        widest = 0.0
        for name in (n for n, c in columns.items() if c == column):
            box = (
                _statement(graph, known[name], wordy, x, y) if name in known else _argument(graph, name, x, y)
            )
            boxes[name] = box
            y += box.height + DOWN
            widest = max(widest, box.width)
        x += widest + ACROSS
    return boxes


def _argument(graph: TensorGraph, name: str, x: float, y: float) -> _Box:
    t = graph.tensor(name)
    words = f"{t.name}: {t.dtype}[{', '.join(map(str, t.shape))}]"
    return _Box(_cut(words), words, _FILLS[t.role], x, y)


def _statement(graph: TensorGraph, s: Statement, wordy: bool, x: float, y: float) -> _Box:
    whole = str(s)
    left = f"{s.target}[{', '.join(map(format_index, s.write))}]"
    right = whole.partition("= ")[2].partition("  for ")[0]
    sign = f" {s.reduction}= " if s.accumulate else " = "
    lines = _cut(left + sign + right) if wordy else _cut(s.name)
    return _Box(lines, whole, _FILLS[graph.tensor(s.target).role], x, y)


def _cut(words: str) -> tuple[str, ...]:
    lines = textwrap.wrap(words, WRAP, subsequent_indent="  ", break_on_hyphens=False)
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], "  ..."]
    return tuple(lines)


def _edge(a: _Box, b: _Box) -> Iterator[str]:
    x1, y1, x2, y2 = a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2
    middle = max((x1 + x2) / 2, x1 + ACROSS / 3)
    bend = f"{num(middle)} {num(y1)} {num(x2 - ACROSS / 2)} {num(y2)}"
    yield f'<path class="arrow" d="M{num(x1)} {num(y1)}C{bend} {num(x2)} {num(y2)}"/>'


def _drawn(b: _Box) -> Iterator[str]:
    yield rect(b.x, b.y, b.width, b.height, colour(b.fill), EDGE if b.fill != PAPER else PAPER, 5)
    for k, line in enumerate(b.lines):
        indent = (len(line) - len(line.lstrip())) * CHAR
        at = b.y + PAD + 7 + k * LINE
        yield text(b.x + PAD + indent, at, line.lstrip(), family="m", tip=b.tip if k == 0 else "")
