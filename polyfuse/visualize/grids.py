"""Points of iteration domains and arrays on a page: panels with axes, points, hulls, arrows, legends.

    panels = panels_of(spaces)                   one panel for each statement, or for each slice of it
    sheet = Sheet("Iteration domain", ["T = 4"])
    sheet.place(panels)                          gives every point its place on the page
    sheet.arrow(a, b, ...); sheet.legend(...)
    sheet.picture()

The first of two dims runs down and the second to the right, as elements of a matrix are written; of three
dims the first is cut into slices.  Statements share a panel where they have the same dims and no point in
common.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from xml.sax.saxutils import escape

from polyfuse.poly.model.points import Node, Point, Space
from polyfuse.visualize.svg import (
    CHAR,
    EDGE,
    FAINT,
    HUES,
    INK,
    MARGIN,
    PAPER,
    ROOT,
    SMALL,
    Picture,
    clean,
    colour,
    num,
    page,
    text,
)

CELL = 34
DOT, DISC = 6, 13  # radius of a point, and of one with a number
TICKS, HEADING, GAP = 20, 22, 30
WIDEST, NARROWEST = 800, 540
LINE = 20
SANS_CHAR = 7.2  # width of a character of small text, rounded up
TITLE_CHAR = 11.5
LONGEST = 28  # characters of a name in a heading


# --- panels ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """The values of a dim that a panel shows, both ends included."""

    name: str
    low: int
    high: int

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    @property
    def widest(self) -> float:
        return max(len(str(self.low)), len(str(self.high))) * SMALL

    def ticks(self, room: float) -> range:
        """Values with a number, so many that numbers with this room each do not touch."""
        return range(self.low, self.high + 1, max(1, -int(-(room + 4) // CELL)))


@dataclass(frozen=True, slots=True)
class Panel:
    """A grid with the points of some statements, or with a slice of them. `down` is None for a single row."""

    heading: str
    names: tuple[str, ...]
    across: Axis
    down: Axis | None
    cells: Mapping[Node, tuple[int, int]]  # row and column, from 0

    @property
    def left(self) -> float:
        if self.down is None:
            return DISC
        return max(self.down.widest, (len(self.down.name) + 1) * CHAR) + DISC

    @property
    def width(self) -> float:
        grid = self.left + self.across.count * CELL + (len(self.across.name) + 2) * CHAR
        return max(grid, len(self.heading) * CHAR + 8)

    @property
    def height(self) -> float:
        return HEADING + TICKS + (self.down.count if self.down else 1) * CELL

    @property
    def is_row(self) -> bool:
        return self.down is None or self.down.count == 1

    def spot(self, row: int, column: int) -> tuple[float, float]:
        """The middle of a cell, from the corner of the panel."""
        return self.left + (column + 0.5) * CELL, HEADING + TICKS + (row + 0.5) * CELL


def panels_of(spaces: Sequence[Space]) -> list[Panel]:
    """Panels of all spaces, in their order."""
    groups: list[list[Space]] = []
    for s in spaces:
        fitting = (g for g in groups if g[0].dims == s.dims and all(_apart(s, other) for other in g))
        group = next(fitting, None)
        if group is None:
            groups.append([s])
        else:
            group.append(s)
    return [p for g in groups for p in _panels(g)]


def _apart(a: Space, b: Space) -> bool:
    return set(a.points).isdisjoint(b.points)


def _panels(group: Sequence[Space]) -> Iterator[Panel]:
    dims, nodes = group[0].dims, [n for s in group for n in s.nodes]
    names = tuple(s.name for s in group)
    if not nodes:
        return
    if len(dims) < 3:
        yield _panel(_heading(group), names, dims, {n: n[1] for n in nodes}, nodes)
        return
    for value in sorted({point[0] for _, point in nodes}):
        inside = {n: n[1][1:] for n in nodes if n[1][0] == value}
        told = [_short(", ".join(names)), f"{dims[0] or 'first'} = {value}"]
        yield _panel(": ".join(filter(None, told)), names, dims[1:], inside, nodes)


def _heading(group: Sequence[Space]) -> str:
    dims = ", ".join(group[0].dims) if all(group[0].dims) else ""
    return f"{_short(', '.join(s.name for s in group))}[{dims}]" if dims else _short(group[0].name)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _panel(
    heading: str,
    names: tuple[str, ...],
    dims: tuple[str, ...],
    inside: Mapping[Node, Point],
    nodes: Sequence[Node],
) -> Panel:
    """A panel as large as all points of the statements ask for, so that slices are alike."""
    width = len(dims)
    points = [point[len(point) - width :] for _, point in nodes]
    axes = [Axis(_short(d), *_range([p[k] for p in points])) for k, d in enumerate(dims)]
    across = axes[-1] if axes else Axis("", 0, 0)
    down = axes[0] if width == 2 else None
    cells = {}
    for node, point in inside.items():
        row = point[0] - down.low if down else 0
        cells[node] = (row, point[-1] - across.low if point else 0)
    return Panel(heading, names, across, down, cells)


def _range(values: Sequence[int]) -> tuple[int, int]:
    return min(values), max(values)


# --- a page ------------------------------------------------------------------------------------------------


class Sheet:
    """A page that grows: panels from left to right, then legends and notes below."""

    def __init__(self, title: str, subtitles: Sequence[str], radius: float = DOT) -> None:
        self.title = title
        self.radius = radius
        self.spots: dict[Node, tuple[float, float]] = {}
        self.right = float(MARGIN)
        self.bottom = MARGIN + 22.0
        self._heads: dict[str, str] = {}  # of arrows
        self._under: list[str] = []  # hulls and axes
        self._lines: list[str] = []
        self._over: list[str] = []  # points and legends
        for words in subtitles:
            self.note(words)
        self.bottom += 14

    def place(self, panels: Sequence[Panel], *, step: float = 0) -> None:
        """Put panels side by side, in rows that fit a page; each lies a `step` lower than the one before, so
        that arrows between them do not cover each other.  Panels of one row each lie below one another."""
        if all(p.is_row for p in panels):
            _, self.bottom = self.stack(panels, MARGIN, self.bottom)
            return
        x, y, lowest = float(MARGIN), self.bottom, self.bottom
        for p in panels:
            if x > MARGIN and x + p.width > WIDEST:
                x, y = float(MARGIN), lowest + GAP
            self._put(p, x, y)
            lowest = max(lowest, y + p.height)
            x += p.width + GAP
            y += step
        self.bottom = lowest + 10

    def stack(self, panels: Sequence[Panel], left: float, top: float) -> tuple[float, float]:
        """Put panels below one another; where they end, to the right and below."""
        y, right = top, left
        for p in panels:
            self._put(p, left, y)
            y += p.height + GAP
            right = max(right, left + p.width)
        return right, y - GAP + 10

    def row(self, panels: Sequence[Panel], left: float, top: float) -> tuple[float, float]:
        """Put panels side by side, or below one another if that is too wide; where they end."""
        if left + sum(p.width + GAP for p in panels) > WIDEST:
            return self.stack(panels, left, top)
        x = left
        for p in panels:
            self._put(p, x, top)
            x += p.width + GAP
        return x - GAP, top + max(p.height for p in panels) + 10

    def _put(self, p: Panel, x: float, y: float) -> None:
        self._under.append(_lattice(p, x, y))
        self._over += _axes(p, x, y)
        for node, cell in p.cells.items():
            dx, dy = p.spot(*cell)
            self.spots[node] = (x + dx, y + dy)
        self.right = max(self.right, x + p.width)

    def hull(self, panel: Panel, name: str, hue: str) -> None:
        """The area of a statement's points in a panel, and the integer points in it that it leaves out."""
        mine = [node for node in panel.cells if node[0] == name]
        corners = _hull([self.spots[n] for n in mine])
        path = (
            "M" + "L".join(f"{num(x)} {num(y)}" for x, y in corners) + ("Z" if len(corners) > 1 else "h0.1")
        )
        self._under.append(f'<path class="hull" d="{path}" style="--c:{colour(hue + "-soft")}"/>')
        taken = set(self.spots.values())
        x0, y0 = self.spots[mine[0]]
        row, column = panel.cells[mine[0]]
        for r in range(panel.down.count if panel.down else 1):
            for c in range(panel.across.count):
                spot = (x0 + (c - column) * CELL, y0 + (r - row) * CELL)
                if spot not in taken and _inside(spot, corners):
                    self._lines.append(
                        f'<circle class="hole" cx="{num(spot[0])}" cy="{num(spot[1])}" r="2"/>'
                    )

    def point(self, node: Node, fill: str, tip: str, words: str = "", ink: str = "", more: str = "") -> None:
        """A point; `words` stand in it, `more` are attributes."""
        x, y = self.spots[node]
        inner = f"<title>{escape(clean(tip))}</title>" if tip else ""
        disc = f'<circle class="point" cx="{num(x)}" cy="{num(y)}" r="{num(self.radius)}" fill="{fill}"/>'
        label = text(x, y + 3.5, words, family="n", fill=ink) if words else ""
        self._over.append(f"<g{more}>{inner}{disc}{label}</g>")

    def outline(self, nodes: Iterable[Node], tip: str) -> None:
        """A line around cells of points that belong together, without the edges that two of them share."""
        corners = {(x - CELL / 2, y - CELL / 2) for x, y in (self.spots[n] for n in nodes)}
        edges: dict[str, None] = {}
        for x, y in sorted(corners):
            for dx, dy, edge in (
                (-CELL, 0, f"M{num(x)} {num(y)}v{CELL}"),
                (CELL, 0, f"M{num(x + CELL)} {num(y)}v{CELL}"),
                (0, -CELL, f"M{num(x)} {num(y)}h{CELL}"),
                (0, CELL, f"M{num(x)} {num(y + CELL)}h{CELL}"),
            ):
                if (x + dx, y + dy) not in corners:
                    edges[edge] = None
        style = f'fill="none" stroke="{INK}" stroke-width="1.4" stroke-linecap="round"'
        tip = f"<title>{escape(clean(tip))}</title>"
        self._under.append(f'<path class="group" d="{"".join(edges)}" {style}>{tip}</path>')

    def over(self, part: str) -> None:
        """Something above points."""
        self._over.append(part)

    def line(self, part: str) -> None:
        """Something below points."""
        self._lines.append(part)

    def arrow(self, a: Node, b: Node, name: str, tip: str) -> None:
        """From a point to another, past those between them, in a colour of the table."""
        (x1, y1), (x2, y2) = self.spots[a], self.spots[b]
        others = [spot for node, spot in self.spots.items() if node not in (a, b)]
        free = not any(_between(spot, (x1, y1), (x2, y2), self.radius) for spot in others)
        path, low = _curve(x1, y1, x2, y2, self.radius, free)
        self.bottom = max(self.bottom, low + 8)
        self._heads[name] = _marker(name)
        style = f'stroke="{colour(name)}" marker-end="url(#{ROOT}-{name})"'
        self._lines.append(
            f'<path class="line" d="{path}" {style}><title>{escape(clean(tip))}</title></path>'
        )

    def legend(self, rows: Sequence[tuple[str, str]], *, arrows: bool = False) -> None:
        """Lines with a coloured mark each, a dot or an arrow: a colour, and words."""
        for fill, words in rows:
            x, y = MARGIN + 6, num(self.bottom + 10)
            dot = f'<circle cx="{x}" cy="{y}" r="5" fill="{fill}"/>'
            arrow = (
                f'<path d="M{x - 7} {y}h9" fill="none" stroke="{fill}" stroke-width="2"/>'
                f'<path d="M{x} {y}m0 -4l7 4l-7 4z" fill="{fill}"/>'
            )
            self._over.append(arrow if arrows else dot)
            self._words(MARGIN + 20, words, "")
        self.bottom += 4 if rows else 0

    def note(self, words: str, fill: str = FAINT) -> None:
        """A remark, in lines as wide as the page."""
        self._words(MARGIN, words, fill)

    def _words(self, left: float, words: str, fill: str) -> None:
        room = int((max(self.right, NARROWEST) - left) / SANS_CHAR)
        for line in textwrap.wrap(clean(words), room):
            self.bottom += LINE
            self._over.append(text(left, self.bottom - 6, line, family="s", fill=fill))
            self.right = max(self.right, left + len(line) * SANS_CHAR)

    def picture(self, css: str = "") -> Picture:
        """What is on the page so far."""
        width = max(self.right, MARGIN + len(self.title) * TITLE_CHAR) + MARGIN
        heads = [f"<defs>{''.join(self._heads.values())}</defs>"] if self._heads else []
        parts = [*heads, *self._under, *self._lines, *self._over]
        return Picture(page(self.title, width, self.bottom + MARGIN - 6, parts, css=_CSS + css))


_CSS = (
    f".{ROOT} .hull{{fill:var(--c);stroke:var(--c);stroke-width:24;"
    "stroke-linejoin:round;stroke-linecap:round}"
    f".{ROOT} .hole{{fill:{FAINT};opacity:.6}}"
    f".{ROOT} .grid{{stroke:{EDGE};stroke-width:.6;fill:none}}"
    f".{ROOT} .point{{stroke:{PAPER};stroke-width:1.2}}"
    f".{ROOT} .halo{{paint-order:stroke;stroke:{PAPER};stroke-width:3;stroke-linejoin:round}}"
    f".{ROOT} .line{{fill:none;stroke-width:1.4}}"
)


def _marker(name: str) -> str:
    """The head of an arrow."""
    return (
        f'<marker id="{ROOT}-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour(name)}"/></marker>'
    )


def hue_of(position: int) -> str:
    """The colour of the statement at a position."""
    return HUES[position % len(HUES)]


def _lattice(p: Panel, x: float, y: float) -> str:
    """The lines of a panel's grid."""
    left, top, rows = x + p.left, y + HEADING + TICKS, p.down.count if p.down else 1
    lines = [f"M{num(left)} {num(top + (r + 0.5) * CELL)}h{num(p.across.count * CELL)}" for r in range(rows)]
    lines += [f"M{num(left + (c + 0.5) * CELL)} {num(top)}v{num(rows * CELL)}" for c in range(p.across.count)]
    return f'<path class="grid" d="{"".join(lines)}"/>'


def _axes(p: Panel, x: float, y: float) -> Iterator[str]:
    """Heading, names of dims, and ticks of a panel."""
    left, top = x + p.left, y + HEADING + TICKS
    yield text(x, y + 12, p.heading, family="b halo", tip=", ".join(p.names))
    if p.across.name or p.across.count > 1:
        for value in p.across.ticks(p.across.widest):
            middle = left + (value - p.across.low + 0.5) * CELL
            yield text(middle, top - 7, str(value), family="n halo", fill=FAINT)
    if p.across.name:
        yield text(left + p.across.count * CELL + 2, top - 6, f"{p.across.name}→", family="m halo")
    if p.down is None:
        return
    if p.down.name:
        yield text(x, top - 6, f"{p.down.name}↓", family="m halo")
    for value in range(p.down.low, p.down.high + 1):
        at = left - 10 - len(str(value)) * SMALL / 2
        middle = top + (value - p.down.low + 0.5) * CELL + 3.5
        yield text(at, middle, str(value), family="n halo", fill=FAINT)


# --- geometry ----------------------------------------------------------------------------------------------


def _curve(x1: float, y1: float, x2: float, y2: float, radius: float, free: bool) -> tuple[str, float]:
    """A path from the rim of a point to that of another, and how far down it goes: straight where the way is
    free, else a curve that leaves what is between aside."""
    dx, dy = x2 - x1, y2 - y1
    length = hypot(dx, dy)
    if length == 0:
        r = radius + 2
        return f"M{num(x1 + 3)} {num(y1 - r)}c10 -16 -16 -16 -7 -1", y1
    bend = 0.0 if free else 14 + 0.12 * length
    nx, ny = -dy / length, dx / length
    if ny < 0 or (ny == 0 and nx < 0):
        nx, ny = -nx, -ny
    cx, cy = (x1 + x2) / 2 + nx * bend, (y1 + y2) / 2 + ny * bend
    start, end = _towards(x1, y1, cx, cy, radius + 1), _towards(x2, y2, cx, cy, radius + 2)
    middle = f"Q{num(cx)} {num(cy)} " if bend else "L"
    path = f"M{num(start[0])} {num(start[1])}{middle}{num(end[0])} {num(end[1])}"
    return path, max(y1, y2, (y1 + y2) / 4 + cy / 2)


def _between(
    spot: tuple[float, float], a: tuple[float, float], b: tuple[float, float], radius: float
) -> bool:
    """Does a line from one spot to another go through a point at a third?"""
    (px, py), (ax, ay) = spot, a
    dx, dy = b[0] - ax, b[1] - ay
    square = dx * dx + dy * dy
    share = ((px - ax) * dx + (py - ay) * dy) / square if square else 0.0
    return 0 < share < 1 and hypot(ax + share * dx - px, ay + share * dy - py) < radius


def _towards(x: float, y: float, tx: float, ty: float, by: float) -> tuple[float, float]:
    length = hypot(tx - x, ty - y)
    return x + (tx - x) / length * by, y + (ty - y) / length * by


def _cross(o: tuple[float, float], a: tuple[float, float], b: tuple[float, float]) -> float:
    return (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0])


def _hull(spots: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of the convex hull, in order around it (Andrew's monotone chain)."""
    ordered = sorted(set(spots))
    if len(ordered) < 3:
        return ordered

    def chain(way: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = []
        for spot in way:
            while len(found) > 1 and _cross(found[-2], found[-1], spot) <= 0:
                found.pop()
            found.append(spot)
        return found[:-1]

    return chain(ordered) + chain(ordered[::-1])


def _inside(spot: tuple[float, float], corners: Sequence[tuple[float, float]]) -> bool:
    """Is a spot in a convex hull, its rim included?"""
    if len(corners) < 3:
        a, b = corners[0], corners[-1]
        between = min(a[0], b[0]) <= spot[0] <= max(a[0], b[0]) and min(a[1], b[1]) <= spot[1] <= max(
            a[1], b[1]
        )
        return between and abs(_cross(a, b, spot)) < 1e-6
    pairs = zip(corners, [*corners[1:], corners[0]], strict=True)
    return all(_cross(a, b, spot) >= -1e-6 for a, b in pairs)
