"""Which thread of a GPU kernel touches which element, as a picture (SVG text).

    thread_svg(kernel, statement)

A line is what the threads of a row do in one round; its boxes are threads, a box has the elements of one
vector.  What one thread of the first block touches is coloured: its elements of every round.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby, islice

from polyfuse.ir.index_expr import IndexExpr, evaluate
from polyfuse.ir.kernel import Kernel, placement
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.svg import EDGE, FAINT, MARGIN, PAPER, head, rect, text

_CELL, _LINE, _LABEL, _TITLE, _FOOT = 7, 26, 190, 62, 40
_MINE, _OTHER = "#1a7f4b", "#e8f5ec"
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
    return "\n".join([*head(title, width, top + _FOOT), *lines, foot, "</svg>", ""])


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
