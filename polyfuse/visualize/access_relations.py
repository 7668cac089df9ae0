"""Who reads and writes what: points of an iteration domain between the elements of arrays.

accesses("{ S[i, j] -> A[j, i] : 0 <= i < 3 and 0 <= j < 4 }")
accesses(op, "y", T=3, H=4)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product

from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.model.domains import Access, PolyModel, build_model
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.model.points import (
    MOST_DIMS,
    Node,
    Pair,
    Point,
    Space,
    ends,
    pairs,
    read_map,
    spaces,
)
from polyfuse.visualize.grids import CELL, GAP, Panel, Sheet, hue_of, panels_of
from polyfuse.visualize.polyhedra import subtitles
from polyfuse.visualize.sources import MOST_POINTS, Source, source_of
from polyfuse.visualize.svg import MARGIN, Picture, colour

MOST_ARROWS = 120
READ, WRITE = "blue", "orange"
BETWEEN = 3 * GAP


@dataclass(frozen=True, slots=True)
class _Use:
    """What a statement does with an array."""

    words: str  # "y reads x"
    hue: str
    array: Space
    arrows: tuple[Pair, ...]
    by_data: bool = False  # do values say which element it is?


def accesses(
    given: object, /, *names: str, at: Sequence[int] | None = None, title: str = "", **sizes: int
) -> Picture:
    """Points between the arrays that they read and those that they write, and arrows from each point to the
    elements that it touches.

    Parameters
    ----------
    given : str, object of islpy, Program, Operator, or a stage
        A relation of isl such as ``"{ S[i, j] -> A[j, i] : 0 <= i < 3 and 0 <= j < 4 }"``, or an operator.
    *names : str
        The statement, by its name or by what it defines; it may be left out where there is only one.
    at : sequence of int, optional
        A point: only its arrows are drawn.
    title : str, optional
        A title of your own.
    **sizes : int
        Values of sizes; small ones.

    Returns
    -------
    Picture
        Blue arrows read, orange ones write. A line below says what kind of access it is: one to one,
        transposed, a broadcast, a projection, a window. Of more than 120 arrows those of one point are drawn,
        and a note says so.

    Raises
    ------
    ArgumentError
        As `domain` does; PF914 where there are several statements and none is named.

    Examples
    --------
    >>> import polyfuse as pf
    >>> picture = pf.visualize.accesses("{ S[i, j] -> A[j, i] : 0 <= i < 3 and 0 <= j < 4 }")
    >>> "transposed" in picture.svg
    True

    >>> op = pf.parse("op f(x: f32[T, H], b: f32[H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] + b[h] }")
    >>> "broadcast" in pf.visualize.accesses(op, T=2, H=3).svg
    True
    """
    source = source_of(given, names, sizes)
    if source.graph is None:
        points, uses = _of_relation(source)
    else:
        points, uses = _of_graph(source.graph, source)
    shown_title = title or (f"Accesses in {source.title}" if source.title else "Accesses")
    sheet = Sheet(shown_title, subtitles(source))
    _place(sheet, panels_of(points), uses)
    _draw(sheet, points, uses, at)
    return sheet.picture()


# --- what is drawn -----------------------------------------------------------------------------------------


def _of_relation(source: Source) -> tuple[tuple[Space, ...], list[_Use]]:
    """Both ends of a relation that isl was given. What has the name of a statement gets a prime."""
    with isl_lock:
        relation = read_map(source.given, source.domain.get_ctx())
        first, second = ends(relation)
        points = spaces(first, source.sizes, MOST_POINTS)
        found = {s.name: s for s in spaces(second, source.sizes, MOST_POINTS)}
        arrows = pairs(relation, source.sizes)
    groups: dict[tuple[str, str], list[Pair]] = {}
    for a, b in arrows:
        groups.setdefault((a[0], b[0]), []).append((a, b))
    taken = {s.name for s in points}
    uses = []
    for (name, array), group in groups.items():
        key = f"{array}'" if array in taken else array
        space = Space(key, found[array].dims, found[array].points)
        uses.append(_Use(f"{name} → {key}", WRITE, space, tuple((x, (key, y[1])) for x, y in group)))
    return points, uses


def _of_graph(graph: TensorGraph, source: Source) -> tuple[tuple[Space, ...], list[_Use]]:
    """Statements of one target with all that they read and write."""
    points = source.spaces
    if len({graph.statement(s.name).target for s in points}) > 1:
        names = ", ".join(s.name for s in points)
        raise ArgumentError("accesses are drawn of one statement", code="PF914", hint=f"name one of {names}")
    uses = []
    with isl_lock:
        model = build_model(graph)
        for s in points:
            read: dict[str, list[Access]] = {}
            for a in model.reads:
                if a.statement == s.name:
                    read.setdefault(a.tensor, []).append(a)
            uses += [_use(model, "reads", READ, found) for found in read.values()]
            uses.append(_use(model, "writes", WRITE, [model.writes[s.name]]))
    return points, uses


def _use(model: PolyModel, verb: str, hue: str, found: Sequence[Access]) -> _Use:
    """All reads of an array by a statement, or its write."""
    name, tensor = found[0].statement, found[0].tensor
    array = _array(model.graph, tensor, verb)
    maps = (model.union_map([a.relation]) for a in found)
    every = sorted({(a[1], b[1]) for m in maps for a, b in pairs(m, {})})
    arrows = tuple(((name, p), (array.name, q)) for p, q in every)
    return _Use(f"{name} {verb} {tensor}", hue, array, arrows, any(a.may for a in found))


def _array(graph: TensorGraph, tensor: str, verb: str) -> Space:
    """All elements of an array, under a name that no statement has."""
    shape = [evaluate(e, {}) for e in graph.tensor(tensor).shape]
    name = f"{verb} {tensor}[{', '.join(map(str, shape))}]"
    if len(shape) > MOST_DIMS:
        what = f"{name} has {len(shape)} dims, and a picture {MOST_DIMS}"
        raise ArgumentError(what, code="PF915", hint="draw a statement of arrays with fewer dims")
    points = tuple(product(*map(range, shape)))
    if len(points) > MOST_POINTS:
        what = f"a picture has at most {MOST_POINTS} elements of an array, and {name} has {len(points):,}"
        raise ArgumentError(what, code="PF913", hint="take smaller sizes")
    return Space(name, ("",) * len(shape), points)


# --- on the page -------------------------------------------------------------------------------------------


def _place(sheet: Sheet, points: Sequence[Panel], uses: Sequence[_Use]) -> None:
    """Arrays that are read, points, arrays that are written: from left to right, or a line for each of the
    three if points are rows.

    What is read and written lies apart, so that arrows do not cross.
    """
    read, written = (panels_of(_arrays(uses, hue)) for hue in (READ, WRITE))
    left, top = float(MARGIN), sheet.bottom
    if all(p.is_row for p in points):
        for line in (c for c in (read, points, written) if c):
            _, low = sheet.row(line, left, top)
            top = low + GAP - 10
        sheet.bottom = top - GAP + 10
        return
    lows = []
    for k, column in enumerate(c for c in (read, points, written) if c):
        right, low = sheet.stack(column, left, top + k % 2 * CELL)
        left = right + BETWEEN
        lows.append(low)
    sheet.bottom = max(lows)


def _arrays(uses: Sequence[_Use], *hues: str) -> list[Space]:
    return list({u.array.name: u.array for u in uses if u.hue in hues}.values())


def _draw(sheet: Sheet, points: Sequence[Space], uses: Sequence[_Use], at: Sequence[int] | None) -> None:
    every = [a for u in uses for a in u.arrows]
    chosen = None if at is None else tuple(at)
    if chosen is None and len(every) > MOST_ARROWS:
        nodes = sorted({a for a, _ in every})
        chosen = nodes[len(nodes) // 2][1]
    touched: set[Node] = set()
    for use in uses:
        for a, b in use.arrows:
            if chosen in (None, a[1]):
                touched |= {a, b}
                sheet.arrow(a, b, use.hue, f"{use.words}: {_element(a)} → {_element(b)}")
    if chosen is not None:
        sheet.note(f"Arrows of the point ({', '.join(map(str, chosen))}) only, of {len(every)}.")
    for group, hue in ((points, hue_of(0)), (_arrays(uses, READ, WRITE), "grey")):
        for s in group:
            for p in s.points:
                is_used = chosen is None or (s.name, p) in touched
                fill = colour(hue) if is_used else colour("edge")
                sheet.point((s.name, p), fill, s.shown(p) if group is points else _element((s.name, p)))
    sheet.legend([(colour(u.hue), f"{u.words}: {_kind(u)}") for u in uses], arrows=True)


def _element(node: Node) -> str:
    return f"{node[0]}({', '.join(map(str, node[1]))})"


def _kind(use: _Use) -> str:
    """What kind of access it is, from all its arrows."""
    out = Counter(a for a, _ in use.arrows)
    into = Counter(b for _, b in use.arrows)
    if not out:
        return "nothing at these sizes"
    most, shared = max(out.values()), max(into.values())
    if use.by_data:
        return f"the data say which of up to {most} elements"
    if most > 1:
        window = "a window of" if _is_window(use.arrows) else "up to"
        return f"{window} {most} elements for a point"
    if shared > 1:
        words = "a projection" if use.hue == WRITE else "a broadcast"
        return f"{words}: up to {shared} points for an element"
    return "one to one" + (", transposed" if _is_transposed(use.arrows) else "")


def _is_window(arrows: Sequence[Pair]) -> bool:
    """Are the elements of each point a box without holes?"""
    found: dict[Node, list[Point]] = {}
    for a, b in arrows:
        found.setdefault(a, []).append(b[1])
    return all(_volume(points) == len(points) for points in found.values())


def _volume(points: Sequence[Point]) -> int:
    volume = 1
    for values in zip(*points, strict=True):
        volume *= max(values) - min(values) + 1
    return volume


def _is_transposed(arrows: Sequence[Pair]) -> bool:
    """Are the indices of the elements those of the points in another order?"""
    width = len(arrows[0][1][1])
    if any(len(a[1]) != width for a, _ in arrows):
        return False
    orders = permutations(range(width))
    fits = [o for o in orders if all(b[1] == tuple(a[1][k] for k in o) for a, b in arrows)]
    return bool(fits) and tuple(range(width)) not in fits
