"""Which thread of a GPU kernel touches which element, as a picture (SVG text).

    thread_svg(kernel, statement)

A line is what the threads of a row do in one round; its boxes are threads, a box has the elements of one
vector.  What one thread of the first block touches is coloured: its elements of every round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, islice

from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.index_expr import IndexExpr, evaluate
from polyfuse.ir.kernel import Kernel, placement
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Statement, statement_reads
from polyfuse.visualize.svg import EDGE, FAINT, HUES, INK, MARGIN, PAPER, colour, page, rect, text

_CELL, _LINE, _LABEL, _TITLE, _FOOT = 7, 26, 190, 62, 40
_MINE, _OTHER = colour("green"), colour("green-soft")
MOST_THREADS = 32
Place = tuple[tuple[int, ...], int, int, int, int]


def thread_places(kernel: Kernel, statement: str, row: int, count: int) -> list[Place]:
    """(block, row of the block, round, thread, element of the vector) of the first `count` elements of a row.

    A row is what the last dim of a statement runs over while the others stay; `row` is a value of the
    dim before.
    """
    dims = kernel.graph.statement(statement).dims
    where = placement(kernel)[statement]
    fixed = {d.name: evaluate(d.lower, {}) for d in dims[:-1]}
    if len(dims) > 1:
        fixed[dims[-2].name] += row
    return [_place(where, {**fixed, dims[-1].name: h}) for h in range(count)]


def _place(where: Mapping[Coordinate, tuple[IndexExpr, ...]], point: Mapping[str, int]) -> Place:
    def value(c: Coordinate) -> int:
        found = where.get(c, ())
        return evaluate(found[-1], point) if found else 0

    block = tuple(evaluate(e, point) for e in where.get(Coordinate.BLK, ()))
    inside = (Coordinate.ROW, Coordinate.ROUND, Coordinate.THREAD, Coordinate.VECTOR)
    row, number, thread, element = map(value, inside)
    return block, row, number, thread, element


def thread_svg(kernel: Kernel, statement: str, *, thread: int = 5, rows: int = 2, rounds: int = 8) -> str:
    """The first rows of a block: at most `rounds` rounds of each, at most 32 threads of a round."""
    last = kernel.graph.statement(statement).dims[-1]
    length = evaluate(last.upper, {}) - evaluate(last.lower, {})
    x, y = kernel.threads
    title = f"{statement} in {kernel.name}: {x} x {y} threads, vectors of {kernel.vector}"
    lines: list[str] = []
    top = MARGIN + _TITLE
    for row in range(rows):
        places = thread_places(kernel, statement, row, length)
        for (block, ty, number), group in islice(groupby(places, key=lambda p: p[:3]), rounds):
            mine = thread if (any(block), ty) == (False, 0) else None
            label = f"block {', '.join(map(str, block))}, ty {ty}, round {number}"
            lines += _line(top, label, list(group), mine)
            top += _LINE
        top += _LINE // 2
    width = 2 * MARGIN + _LABEL + min(x, MOST_THREADS) * (kernel.vector * _CELL + 4) + 40
    what = f"what thread tx = {thread}, ty = 0 of block 0 touches"
    note = f"green: {what}; a box: {kernel.vector} elements at once"
    foot = text(MARGIN, top + 16, note, family="s", fill=FAINT)
    return page(title, width, top + _FOOT, [*lines, foot])


def _line(top: float, label: str, places: list[Place], thread: int | None) -> list[str]:
    """One round: a box for each thread, with a cell for each element."""
    found = [text(MARGIN, top + 14, label, family="m")]
    left: float = MARGIN + _LABEL
    boxes = [list(g) for _, g in groupby(places, key=lambda p: p[3])]
    for box in boxes[:MOST_THREADS]:
        fill = _MINE if box[0][3] == thread else _OTHER
        width = len(box) * _CELL
        found.append(rect(left, top, width, _LINE - 8, fill, EDGE, 2))
        ticks = "".join(f"M{left + k * _CELL:g} {top + 3:g}v{_LINE - 14}" for k in range(1, len(box)))
        if ticks:
            found.append(f'<path d="{ticks}" stroke="{PAPER}"/>')
        left += width + 4
    if len(boxes) > MOST_THREADS:
        found.append(text(left, top + 14, "...", family="m", fill=FAINT))
    return found


# --- producer and consumer --------------------------------------------------------------------------------

# Where a producer and a consumer run on a GPU, as a picture (SVG text).
#
#     placement_svg(kernel, producer, consumer, along="h")
#
# Two grids of statement instances, side by side or one below the other; a colour is a block of threads, a
# number the thread in it. One instance of the consumer is framed, and so are the instances of the producer
# that it needs: what goes between them stays in a thread, stays in a block, or leaves it.


_WIDE, _HIGH, _BETWEEN, _PLACEMENT_TITLE, _HEADING, _PLACEMENT_FOOT = 34, 22, 60, 40, 30, 40
_WIDEST = 800  # pixels of grids side by side
_MOST_ROWS = 10  # of a grid
_PAPERS = tuple(colour(f"{hue}-soft") for hue in HUES)
_LEAST = 560

Point = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Spot:
    """Where an instance runs: its block, and its thread (None: every thread of the row)."""

    block: tuple[int, ...]
    row: int
    thread: int | None

    def __str__(self) -> str:
        return f"{self.row}.{'*' if self.thread is None else self.thread}"


def spots(kernel: Kernel, statement: str) -> list[tuple[dict[str, int], Spot]]:
    """All instances of a statement, with the place of each."""
    where = placement(kernel)[statement]
    return [(p, _spot(where, p)) for p in _instances(kernel.graph.statement(statement))]


def _spot(where: Mapping[Coordinate, tuple[IndexExpr, ...]], point: Point) -> Spot:
    def last(c: Coordinate) -> int | None:
        return evaluate(where[c][-1], point) if where.get(c) else None

    block = tuple(evaluate(e, point) for e in where.get(Coordinate.BLK, ()))
    return Spot(block, last(Coordinate.ROW) or 0, last(Coordinate.THREAD))


def _instances(s: Statement) -> list[dict[str, int]]:
    found: list[dict[str, int]] = [{}]
    for d in s.dims:  # whose bounds may use those before
        found = [{**p, d.name: k} for p in found for k in range(evaluate(d.lower, p), evaluate(d.upper, p))]
    return found


def needed(producer: Statement, consumer: Statement, point: Point) -> list[dict[str, int]]:
    """The instances of the producer that write what one of the consumer reads."""
    wanted = {_element(r.indices, point) for r in statement_reads(consumer) if r.tensor == producer.target}
    return [p for p in _instances(producer) if _element(producer.write, p) in wanted]


def _element(indices: tuple[Index, ...], point: Point) -> tuple[int, ...] | None:
    """The element at some indices; None where data say which."""
    plain = [i for i in indices if not isinstance(i, EXPR_TYPES)]
    return tuple(evaluate(i, point) for i in plain) if len(plain) == len(indices) else None


def placement_svg(kernel: Kernel, producer: str, consumer: str, *, along: str, title: str = "") -> str:
    """Both statements, with at most two dims each; the dim `along` is drawn from left to right."""
    made, used = kernel.graph.statement(producer), kernel.graph.statement(consumer)
    users = spots(kernel, consumer)
    chosen = [p for p, _ in users[len(users) // 2 + 1 if len(users) > 2 else 0 :][:1]]
    blocks = sorted({s.block for n in (producer, consumer) for _, s in spots(kernel, n)})
    x, top = float(MARGIN), float(MARGIN + _PLACEMENT_TITLE + _HEADING)
    parts: list[str] = []
    notes = ["colour: a block; row.thread in it, * for every thread; framed: an element and what it needs"]
    widest = lowest = 0.0
    before = [p for c in chosen for p in needed(made, used, c)]
    for s, framed in ((made, before), (used, chosen)):
        cells = _some_rows(list(_cells(kernel, s, along, blocks, framed)), notes)
        width = max([len(_heading(s)) * 7.5, *(c.left + _WIDE for c in cells)])
        if parts and x + width > _WIDEST:
            x, top = float(MARGIN), lowest + _HEADING + 10
        parts.append(text(x, top - 12, _heading(s), family="b"))
        parts += [line for c in cells for line in c.draw(x, top)]
        widest, lowest = max(widest, x + width), max([lowest, top, *(top + c.top + _HIGH for c in cells)])
        x += width + _BETWEEN
    heading = title or f"{producer} to {consumer} in {kernel.name}"
    width = max(widest + MARGIN, _LEAST, 2 * MARGIN + len(heading) * 10.5)
    foot = [text(MARGIN, lowest + 24 + 20 * k, note, family="s", fill=FAINT) for k, note in enumerate(notes)]
    return page(heading, width, lowest + _PLACEMENT_FOOT + 20 * (len(notes) - 1), [*parts, *foot])


def _heading(s: Statement) -> str:
    reduced = ", ".join(d.name for d in s.dims if d.reduce)
    words = f", reduced over {reduced}" if reduced else ""
    return f"{s.name}[{', '.join(d.name for d in s.dims)}]{words}"


def _some_rows(cells: list[_Cell], notes: list[str]) -> list[_Cell]:
    """Of many rows those around the first one with a frame; a note says which."""
    last = max((c.row for c in cells), default=0)
    if last < _MOST_ROWS:
        return cells
    middle = min((c.row for c in cells if c.framed), default=0)
    first = max(0, min(middle - _MOST_ROWS // 2, last + 1 - _MOST_ROWS))
    note = f"rows {first} to {first + _MOST_ROWS - 1} of {last + 1}"
    if note not in notes:
        notes.append(note)
    return [replace(c, row=c.row - first) for c in cells if 0 <= c.row - first < _MOST_ROWS]


@dataclass(frozen=True, slots=True)
class _Cell:
    left: float
    row: int
    words: str
    fill: str
    framed: bool

    @property
    def top(self) -> float:
        return self.row * _HIGH

    def draw(self, x: float, y: float) -> Iterator[str]:
        stroke = INK if self.framed else EDGE
        inset = 2 if self.framed else 0
        side = (_WIDE - 4 - inset, _HIGH - 4 - inset)
        box = rect(x + self.left + inset / 2, y + self.top + inset / 2, *side, self.fill, stroke, 2)
        yield box.replace("/>", ' stroke-width="2.5"/>') if self.framed else box
        yield text(x + self.left + _WIDE / 2 - 2, y + self.top + 13, self.words, family="n")


def _cells(
    kernel: Kernel, s: Statement, along: str, blocks: list[tuple[int, ...]], framed: list[dict[str, int]]
) -> Iterator[_Cell]:
    found = spots(kernel, s.name)
    first = {d.name: min((p[d.name] for p, _ in found), default=0) for d in s.dims}
    across = [along] if along in first else [*first][1:][-1:]  # the last of two, of one that has not this dim
    down = [n for n in first if n not in across]
    if len(down) > 1:
        what = f"{s.name} has {len(first)} dims, and a picture of places 2"
        raise ArgumentError(what, code="PF915", hint="draw statements with fewer dims")
    for point, spot in found:
        column, line = (sum(point[n] - first[n] for n in names) for names in (across, down))
        fill = _PAPERS[blocks.index(spot.block) % len(_PAPERS)]
        yield _Cell(column * _WIDE, line, str(spot), fill, point in framed)
