"""The statements of an operator as a picture (SVG text): what each computes, and what it reads.

    graph_svg(graph)

Arguments come first, then statements in their order; an arrow on the left leads from what is read to what
reads it. Of an operator with many statements their names only are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from polyfuse.ir.tensor_graph import Role, TensorGraph, statement_reads
from polyfuse.visualize.schedule import statement_lines
from polyfuse.visualize.svg import CHAR, EDGE, MARGIN, clean, colour, num, page, rect, text

LINE, PAD, DOWN, TOP, TITLE_CHAR = 16, 10, 12, 62, 11.5
MOST_TEXTS = 40
# How far an arrow bulges: for each box that it passes, at most.
BULGE, LEAST, MOST = 11, 16, 140
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

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def graph_svg(graph: TensorGraph) -> str:
    """An SVG of the arguments and statements, one below the other."""
    sources = {s.name: _sources(graph, s.name) for s in graph.statements}
    used = {n for found in sources.values() for n in found}
    names = [*(n for n in graph.inputs if n in used), *sources]
    place = {n: k for k, n in enumerate(names)}
    edges = [(n, name) for name, found in sources.items() for n in found if n in place]
    bulges = {e: min(LEAST + BULGE * abs(place[e[1]] - place[e[0]]), MOST) for e in edges}
    left, y = MARGIN + 0.8 * max(bulges.values(), default=0), float(TOP)
    boxes: dict[str, _Box] = {}
    for name in names:
        box = boxes[name] = _box(graph, name, left, y)
        y += box.height + DOWN
    parts = [_edge(boxes[a], boxes[b], bulges[a, b], f"{b} reads {a}") for a, b in edges]
    parts += [p for b in boxes.values() for p in _drawn(b)]
    right = max((b.x + b.width for b in boxes.values()), default=0.0)
    return page(
        graph.name, max(right, MARGIN + len(graph.name) * TITLE_CHAR) + MARGIN, y + MARGIN - DOWN, parts
    )


def _sources(graph: TensorGraph, name: str) -> list[str]:
    """What a statement reads: arguments, and the statements that define the rest."""
    found: dict[str, None] = {}
    for r in statement_reads(graph.statement(name)):
        found |= dict.fromkeys([w.name for w in graph.writers(r.tensor)] or [r.tensor])
    return [n for n in found if n != name]


def _box(graph: TensorGraph, name: str, x: float, y: float) -> _Box:
    if name not in {s.name for s in graph.statements}:
        t = graph.tensor(name)
        words = f"{t.name}: {t.dtype}[{', '.join(map(str, t.shape))}]"
        return _Box((words,), words, _FILLS[t.role], x, y)
    s = graph.statement(name)
    lines = statement_lines(name, graph) if len(graph.statements) <= MOST_TEXTS else (name,)
    return _Box(lines, str(s), _FILLS[graph.tensor(s.target).role], x, y)


def _edge(a: _Box, b: _Box, bulge: float, tip: str) -> str:
    y1, y2 = a.middle + 4, b.middle - 4
    bend = f"{num(a.x - bulge)} {num(y1)} {num(b.x - bulge)} {num(y2)}"
    curve = f"M{num(a.x)} {num(y1)}C{bend} {num(b.x)} {num(y2)}m-6 -4l6 4l-6 4"
    return f'<path class="arrow" d="{curve}"><title>{escape(clean(tip))}</title></path>'


def _drawn(b: _Box) -> Iterator[str]:
    yield rect(b.x, b.y, b.width, b.height, colour(b.fill), EDGE, 5)
    for k, line in enumerate(b.lines):
        indent = (len(line) - len(line.lstrip())) * CHAR
        at = b.y + PAD + 7 + k * LINE
        yield text(b.x + PAD + indent, at, line.lstrip(), family="m", tip=b.tip if k == 0 else "")
