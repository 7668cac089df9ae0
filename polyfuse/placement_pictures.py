"""Where a producer and a consumer run on a GPU, as a picture (SVG text).

    placement_svg(kernel, producer, consumer, along="h")

Two grids of statement instances side by side; a colour is a block of threads, a number the thread in it.
One instance of the consumer is framed, and so are the instances of the producer that it needs: what goes
between them stays in a thread, stays in a block, or leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from polyfuse.ir.index_expr import IndexExpr, evaluate
from polyfuse.ir.kernel import Kernel, placement
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Statement, statement_reads
from polyfuse.svg import EDGE, FAINT, INK, MARGIN, head, rect, text

_WIDE, _HIGH, _BETWEEN, _TITLE, _HEADING, _FOOT = 34, 22, 60, 40, 30, 40
_PAPERS = ("#e8f5ec", "#fdf0e1", "#e7effa", "#f7e8f2", "#fbf7d5", "#e3f4f4", "#efe9fb", "#f0efe9")
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
    ranges = [range(evaluate(d.lower, {}), evaluate(d.upper, {})) for d in s.dims]
    return [dict(zip((d.name for d in s.dims), values, strict=True)) for values in product(*ranges)]


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
    chosen = users[len(users) // 2 + 1 if len(users) > 2 else 0][0]
    blocks = sorted({s.block for n in (producer, consumer) for _, s in spots(kernel, n)})
    top, x = MARGIN + _TITLE + _HEADING, float(MARGIN)
    parts: list[str] = []
    lowest = 0.0
    for s, framed in ((made, needed(made, used, chosen)), (used, [chosen])):
        parts.append(text(x, top - 12, _heading(s), family="b"))
        right, bottom = x, float(top)
        for box in _cells(kernel, s, along, blocks, framed):
            parts += box.draw(x, top)
            right, bottom = max(right, x + box.left + _WIDE), max(bottom, top + box.top + _HIGH)
        x = max(right, x + len(_heading(s)) * 7.5) + _BETWEEN
        lowest = max(lowest, bottom)
    heading = title or f"{producer} to {consumer} in {kernel.name}"
    width = max(x - _BETWEEN + MARGIN, _LEAST, 2 * MARGIN + len(heading) * 10.5)
    note = "colour: a block; row.thread in it, * for every thread; framed: an element and what it needs"
    foot = text(MARGIN, lowest + 24, note, family="s", fill=FAINT)
    return "\n".join([*head(heading, width, lowest + _FOOT), *parts, foot, "</svg>", ""])


def _heading(s: Statement) -> str:
    return f"{s.name}[{', '.join(d.name + ('*' if d.reduce else '') for d in s.dims)}]"


@dataclass(frozen=True, slots=True)
class _Cell:
    left: float
    top: float
    words: str
    fill: str
    framed: bool

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
    down = [d for d in s.dims if d.name != along]
    assert len(down) <= 1, "a picture has two dims"
    first = {d.name: evaluate(d.lower, {}) for d in s.dims}
    for point, spot in spots(kernel, s.name):
        column = point[along] - first[along] if along in point else 0
        line = point[down[0].name] - first[down[0].name] if down else 0
        fill = _PAPERS[blocks.index(spot.block) % len(_PAPERS)]
        yield _Cell(column * _WIDE, line * _HIGH, str(spot), fill, point in framed)
