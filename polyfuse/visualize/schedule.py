"""Schedule trees as pictures: SVG text, without any library.

    tree_svg(tree, title, graph)         one tree
    before_after_svg(before, after)      two trees of an operator, side by side or one below the other

Time runs downwards.  A band is a box headed by its loops, a sequence a numbered column, a leaf a card
with the statement in it.  Boxes are measured bottom-up and drawn top-down, each as wide as what holds it.
The same tree gives the same text, byte by byte.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from polyfuse.ir.index_expr import IVar
from polyfuse.ir.schedule_tree import (
    Band,
    Coordinate,
    Leaf,
    Member,
    ScheduledGraph,
    Sequence,
    Tree,
    reducing,
    word_of,
)
from polyfuse.ir.tensor_graph import IterDim, Statement, TensorGraph
from polyfuse.visualize.svg import CHAR, EDGE, FAINT, MARGIN, PAPER, colour, num, page, rect, text

LINE = 17
PAD = 10
GAP = 8
RAIL = 26  # room for the numbers of a sequence
PILL = 22
WRAP = 62
MOST_LINES = 5


@dataclass(frozen=True, slots=True)
class _Colour:
    strong: str
    soft: str
    word: str
    meaning: str  # for the legend


PARALLEL = _Colour(colour("green"), colour("green-soft"), "parallel", "parallel: no iteration needs another")
ANY_ORDER = _Colour(
    colour("olive"), colour("olive-soft"), "reduction (any order)", "reduction: any order, one element"
)
ORDERED = _Colour(
    colour("orange"), colour("orange-soft"), "ordered", "ordered: one iteration after the other"
)
MIXED = _Colour(EDGE, colour("plain"), "", "")


def tree_svg(tree: Tree, title: str, graph: TensorGraph | None = None) -> str:
    """One schedule tree as SVG; with the graph, leaves show statements and loops their ranges."""
    return _page(title, [_Panel("", _box(tree, graph))])


def before_after_svg(before: ScheduledGraph, after: ScheduledGraph) -> str:
    """Two schedules, each with the number of its loop nests."""
    panels = [
        _Panel(f"{word}: {_count(count_nests(s.tree), 'loop nest')}", _box(s.tree, s.graph))
        for word, s in (("before", before), ("after", after))
    ]
    return _page(after.graph.name, panels)


def count_nests(tree: Tree) -> int:
    """Innermost loop nests: neighbouring leaves run in one, everything else in one each.

    `B1([B1(s+sum); mu; B1(y)])` has 3.
    """
    match tree:
        case Leaf():
            return 1
        case Band(_, child):
            return count_nests(child)
        case Sequence(children):
            after_leaf = [False, *(isinstance(c, Leaf) for c in children)]
            return sum(
                0 if isinstance(c, Leaf) and joined else count_nests(c)
                for c, joined in zip(children, after_leaf, strict=False)
            )


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


# --- boxes -----------------------------------------------------------------------------------------


class _Box(Protocol):
    @property
    def width(self) -> float: ...

    @property
    def height(self) -> float: ...

    @property
    def kinds(self) -> frozenset[_Colour]: ...

    def draw(self, x: float, y: float, width: float) -> Iterator[str]: ...


def _box(tree: Tree, graph: TensorGraph | None) -> _Box:
    match tree:
        case Leaf(name):
            return _Card(statement_lines(name, graph))
        case Sequence(children):
            return _Column(tuple(_box(c, graph) for c in children))
        case Band(members, child):
            return _Loops(tuple(_loop(m, graph) for m in members), _box(child, graph))


@dataclass(frozen=True, slots=True)
class _Card:
    """A statement."""

    lines: tuple[str, ...]

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * CHAR + 2 * PAD

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + PAD

    @property
    def kinds(self) -> frozenset[_Colour]:
        return frozenset()

    def draw(self, x: float, y: float, width: float) -> Iterator[str]:
        yield rect(x, y, width, self.height, PAPER, EDGE, 4)
        for k, line in enumerate(self.lines):
            indent = (len(line) - len(line.lstrip())) * CHAR
            yield text(x + PAD + indent, y + PAD + 8 + k * LINE, line.lstrip(), family="m")


@dataclass(frozen=True, slots=True)
class _Column:
    """A sequence: numbered, one below the other."""

    children: tuple[_Box, ...]

    @property
    def width(self) -> float:
        return RAIL + max(c.width for c in self.children)

    @property
    def height(self) -> float:
        return sum(c.height for c in self.children) + GAP * (len(self.children) - 1)

    @property
    def kinds(self) -> frozenset[_Colour]:
        return frozenset().union(*(c.kinds for c in self.children))

    def draw(self, x: float, y: float, width: float) -> Iterator[str]:
        middle = x + 8
        length = self.height - self.children[-1].height
        yield f'<path class="rail" d="M{num(middle)} {num(y + 14)}v{num(length)}"/>'
        for k, child in enumerate(self.children):
            yield f'<circle cx="{num(middle)}" cy="{num(y + 14)}" r="8" fill="{PAPER}" stroke="{EDGE}"/>'
            yield text(middle, y + 17.5, str(k + 1), family="n", fill=FAINT)
            yield from child.draw(x + RAIL, y, width - RAIL)
            y += child.height + GAP


@dataclass(frozen=True, slots=True)
class _Loop:
    """A line at the head of a band: the loop, and what is to be said of it."""

    name: str
    note: str
    colour: _Colour

    @property
    def pill(self) -> float:
        return (len(self.name) + 4) * CHAR + 16

    @property
    def width(self) -> float:
        return self.pill + PAD + len(self.note) * CHAR

    def draw(self, x: float, y: float) -> Iterator[str]:
        yield rect(x, y, self.pill, PILL - 2, self.colour.strong, self.colour.strong, 10)
        yield text(x + 8, y + 14, f"for {self.name}", family="b", fill=PAPER)
        yield text(x + self.pill + PAD, y + 14, self.note, family="m", fill=FAINT)


@dataclass(frozen=True, slots=True)
class _Loops:
    """A band: its loops, outermost first, around what they run."""

    loops: tuple[_Loop, ...]
    child: _Box

    @property
    def width(self) -> float:
        return 2 * PAD + max(self.child.width, *(x.width for x in self.loops))

    @property
    def height(self) -> float:
        return 3 * PAD + len(self.loops) * (PILL + 4) - 4 + self.child.height

    @property
    def kinds(self) -> frozenset[_Colour]:
        return self.child.kinds.union(loop.colour for loop in self.loops)

    def draw(self, x: float, y: float, width: float) -> Iterator[str]:
        kinds = {loop.colour for loop in self.loops}
        kind = self.loops[0].colour if len(kinds) == 1 else MIXED
        yield rect(x, y, width, self.height, kind.soft, kind.strong, 6)
        y += PAD
        for loop in self.loops:
            yield from loop.draw(x + PAD, y)
            y += PILL + 4
        yield from self.child.draw(x + PAD, y - 4 + PAD, width - 2 * PAD)


# --- texts -----------------------------------------------------------------------------------------


def statement_lines(name: str, graph: TensorGraph | None) -> tuple[str, ...]:
    """The statement, without its name and ranges (loops show those), cut into lines."""
    s = _statement(graph, name)
    if s is None:
        return (name,)
    left, sign, right = str(s).removeprefix(f"{name}: ").partition("  for ")[0].partition("= ")
    text = f"{left}{sign}{_without_outer(right)}".replace("[]", "")
    lines = textwrap.wrap(text, WRAP, subsequent_indent="    ", break_on_hyphens=False)
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"    ... ({len(lines) - MOST_LINES + 1} more lines)"]
    return tuple(lines)


def _without_outer(text: str) -> str:
    """`(a + b)` without its parentheses, `(a) + (b)` as it is."""
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if k == len(text) - 1 and text[0] == "(" else text
    return text


def _statement(graph: TensorGraph | None, name: str) -> Statement | None:
    return next((s for s in graph.statements if s.name == name), None) if graph else None


def _loop(m: Member, graph: TensorGraph | None) -> _Loop:
    kind = {c.word: c for c in (PARALLEL, ANY_ORDER, ORDERED)}[word_of(m, graph)]
    notes = [kind.word]
    ranges = _ranges(m, graph)
    if len(ranges) == 1:
        notes.append(ranges[0])
    if m.coordinate is not Coordinate.SEQ:
        notes.append(m.coordinate.value)
    reduced = reducing(m, graph)
    if reduced:
        notes.append(f"reduces {' '.join(reduced)}")
    values = _values(m)
    if values:
        notes.append(values)
    return _Loop(m.name, textwrap.shorten(", ".join(notes), WRAP, placeholder=" ..."), kind)


def _ranges(m: Member, graph: TensorGraph | None) -> list[str]:
    """`0..4096`, where the loop is a plain dim; one entry for each that differs."""
    found = [f"{d.lower}..{d.upper}" for s, e in m.exprs if (d := _dim(graph, s, e)) is not None]
    return list(dict.fromkeys(found)) if len(found) == len(m.exprs) else []


def _dim(graph: TensorGraph | None, statement: str, value: object) -> IterDim | None:
    s = _statement(graph, statement)
    if s is None or not isinstance(value, IVar):
        return None
    return next((d for d in s.dims if d.name == value.name), None)


def _values(m: Member) -> str:
    """`a at t - 1; b at t` where a loop is not simply the dim of its name."""
    texts = {s: str(e) for s, e in m.exprs}
    if set(texts.values()) == {m.name}:
        return ""
    if len(set(texts.values())) == 1:
        return f"at {next(iter(texts.values()))}"
    return "; ".join(f"{s} at {e}" for s, e in texts.items())


# --- page ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Panel:
    heading: str
    box: _Box

    @property
    def width(self) -> float:
        return max(self.box.width, len(self.heading) * CHAR)


_TITLE, _HEADING, _BETWEEN, _LEGEND = 44, 26, 56, 20
_WIDEST = 800  # pixels of panels side by side


def _page(title: str, panels: list[_Panel]) -> str:
    inner = sum(p.width for p in panels) + _BETWEEN * (len(panels) - 1)
    beside = inner <= _WIDEST
    x, y = float(MARGIN), float(MARGIN + _TITLE)
    parts: list[str] = []
    right = bottom = 0.0
    for k, p in enumerate(panels):
        if k:
            parts.append(
                _arrow(x - _BETWEEN + 10, y + _HEADING + 14, 0) if beside else _arrow(x + 30, y - 44, 90)
            )
        if p.heading:
            parts.append(text(x, y + _HEADING - 12, p.heading, family="h"))
        top = y + (_HEADING if p.heading else 0)
        parts += p.box.draw(x, top, p.width)
        right, bottom = max(right, x + p.width), max(bottom, top + p.box.height)
        x, y = (x + p.width + _BETWEEN, y) if beside else (x, bottom + _BETWEEN)
    kinds = frozenset().union(*(p.box.kinds for p in panels))
    rows = [kind for kind in (PARALLEL, ANY_ORDER, ORDERED) if kind in kinds]
    parts += _legend(MARGIN, bottom + _LEGEND + 10, rows)
    words = max((len(kind.meaning) * CHAR + 18 for kind in rows), default=0.0)
    width = MARGIN + max(right, MARGIN + words, MARGIN + len(title) * 12.5)
    return page(title, width, bottom + _LEGEND * (len(rows) + 1) + MARGIN - 10, parts)


def _legend(x: float, y: float, kinds: Iterable[_Colour]) -> Iterator[str]:
    """A line for each kind of loop that is drawn."""
    for kind in kinds:
        yield rect(x, y - 10, 12, 12, kind.strong, kind.strong, 3)
        yield text(x + 18, y, kind.meaning, family="s", fill=FAINT)
        y += _LEGEND


def _arrow(x: float, y: float, turn: int) -> str:
    """From a panel to the next one: to the right, or turned down."""
    turned = f' transform="rotate({turn} {num(x)} {num(y)})"' if turn else ""
    return f'<path class="arrow" d="M{num(x)} {num(y)}h{_BETWEEN - 20}m-7 -6l7 6l-7 6"{turned}/>'
