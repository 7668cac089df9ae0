"""Iteration domains and dependences as pictures.

domain("{ S[i, j] : 0 <= j <= i < N }", N=5)      the points
dependences(op, T=3, H=4)                         and what needs what
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from polyfuse.poly.model.points import Node, Pair, Point, Space, is_isl
from polyfuse.visualize.grids import CELL, DOT, Panel, Sheet, hue_of, panels_of
from polyfuse.visualize.sources import Source, source_of
from polyfuse.visualize.svg import BAD, Picture, colour

MOST_ARROWS = 120
MOST_BACK = 40
MOST_GIVEN = 200  # characters of a set that are shown


def domain(given: object, /, *names: str, title: str = "", **sizes: int) -> Picture:
    """The points of an iteration domain.

    Parameters
    ----------
    given : str, object of islpy, Program, Operator, or a stage
        A set of isl such as ``"{ S[i, j] : 0 <= j <= i < N }"``, or an operator, whose statements are drawn.
    *names : str
        Statements, by their names or by what they define; all if none is named.
    title : str, optional
        A title of your own.
    **sizes : int
        Values of sizes; small ones.

    Returns
    -------
    Picture
        A panel for each statement, with at most 400 points and three dims. The first of three dims is cut
        into slices. The coloured area is the convex hull; small dots are integer points in it that the
        domain leaves out.

    Raises
    ------
    ArgumentError
        PF910 for what has no points, PF911 for a size without value, PF912 for a set without end, PF913 for
        too many points, PF914 for a name of no statement, PF915 for more than three dims.

    Examples
    --------
    >>> import polyfuse as pf
    >>> picture = pf.visualize.domain("[N] -> { S[i, j] : 0 <= j <= i < N }", N=5)
    >>> picture.svg.count("<circle class=\\"point\\"")
    15

    >>> op = pf.parse("op f(x: f32[T, H]) -> (y: f32[T]) { y[t] = sum[h](x[t, h]) }")
    >>> picture = pf.visualize.domain(op, T=3, H=4)
    """
    source = source_of(given, names, sizes)
    sheet, _ = sheet_of(source, title or titled("Iteration domain", source))
    _draw_points(sheet, source.spaces)
    _legend(sheet, source.spaces)
    return sheet.picture()


def subtitles(source: Source, *others: object) -> list[str]:
    """What isl was given, and the sizes."""
    sizes = ", ".join(f"{n} = {v}" for n, v in source.sizes.items())
    texts = [" ".join(str(g).split()) for g in (source.given, *others) if is_isl(g)]
    return [*(t for t in texts if len(t) <= MOST_GIVEN), *([sizes] if sizes else [])]


def titled(what: str, source: Source) -> str:
    return f"{what} of {source.title}" if source.title else what


def sheet_of(
    source: Source, title: str, *others: object, radius: float = DOT, step: float = 0
) -> tuple[Sheet, list[Panel]]:
    """A page with the panels of all points, and the hulls of statements."""
    sheet = Sheet(title, subtitles(source, *others), radius)
    panels = panels_of(source.spaces)
    sheet.place(panels, step=step)
    if not panels:
        sheet.note("There are no points.")
    hues = {s.name: hue_of(k) for k, s in enumerate(source.spaces)}
    for p in panels:
        for name in dict.fromkeys(n for n, _ in p.cells):
            sheet.hull(p, name, hues[name])
    return sheet, panels


def _draw_points(sheet: Sheet, spaces: Sequence[Space]) -> None:
    for k, s in enumerate(spaces):
        for point in s.points:
            sheet.point((s.name, point), colour(hue_of(k)), s.shown(point))


def _legend(sheet: Sheet, spaces: Sequence[Space]) -> None:
    rows = [(colour(hue_of(k)), _counted(s)) for k, s in enumerate(spaces)]
    sheet.legend(rows)


def _counted(s: Space) -> str:
    dims = f"[{', '.join(s.dims)}]" if all(s.dims) else ""
    return f"{s.name}{dims}: {len(s.points)} point{'s' * (len(s.points) != 1)}"


# --- dependences -------------------------------------------------------------------------------------------


def dependences(
    given: object,
    relation: object = None,
    /,
    *,
    schedule: object = None,
    names: Sequence[str] = (),
    at: Sequence[int | str] | None = None,
    tiles: int = 0,
    title: str = "",
    **sizes: int,
) -> Picture:
    """Points, and an arrow from each to those that need it: from producer to consumer.

    Parameters
    ----------
    given : str, object of islpy, Program, Operator, or a stage
        An operator or a stage, whose own dependences are drawn; a relation of isl such as
        ``"{ S[i] -> S[i + 1] : 0 <= i < 4 }"``; or a set, with the relation after it.
    relation : str or object of islpy, optional
        Dependences between the points of the set.
    schedule : stage, schedule tree, str or object of islpy, optional
        An order. Arrows that go back in time under it are red, and the first of them is named.
    names : sequence of str, optional
        Statements, by their names or by what they define; all if none is named.
    at : sequence of int, optional
        A point: only arrows from it and to it are drawn. A name before the numbers means the point of this
        statement alone: ``at=("e", 0, 2)``.
    tiles : int, optional
        Draw a line around points whose times agree in so many entries of those that differ: tiles of a
        schedule whose loops over tiles are outside.
    title : str, optional
        A title of your own.
    **sizes : int
        Values of sizes; small ones.

    Returns
    -------
    Picture
        Of more than 120 arrows those to one point of each statement are drawn, and a note says so.

    Raises
    ------
    ArgumentError
        As `domain` does, and PF916 for a schedule that gives a point no time.

    Examples
    --------
    >>> import polyfuse as pf
    >>> picture = pf.visualize.dependences("{ S[i, j] -> S[i + 1, j - 1] : 0 <= i < 3 and 0 < j < 4 }")

    The same, under a schedule that runs columns one after the other:

    >>> points = "{ S[i, j] : 0 <= i < 4 and 0 <= j < 4 }"
    >>> needs = "{ S[i, j] -> S[i + 1, j - 1] }"
    >>> picture = pf.visualize.dependences(points, needs, schedule="{ S[i, j] -> [j, i] }")
    >>> "Illegal" in picture.svg
    True
    """
    source = source_of(given, names, sizes, relation, schedule)
    arrows = source.dependences(relation)
    times = None if schedule is None else source.times(schedule)
    back = [a for a in arrows if times is not None and times[a[0]] >= times[a[1]]]
    sheet, _ = sheet_of(source, title or titled("Dependences", source), relation, schedule, step=CELL)
    draw_tiles(sheet, {} if times is None else times, tiles)
    _draw_arrows(sheet, source.spaces, arrows, back, at)
    _draw_points(sheet, source.spaces)
    _tell(sheet, source.spaces, arrows, back)
    if times is not None:
        sheet.note(*(_witness(source.spaces, back[0], times) if back else (_LEGAL,)))
    return sheet.picture()


def draw_tiles(sheet: Sheet, times: Mapping[Node, Point], entries: int) -> None:
    """A line around points whose times agree in the first entries, of those that are not all equal."""
    if not entries or not times:
        return
    counted = [k for k, values in enumerate(zip(*times.values(), strict=True)) if len(set(values)) > 1]
    groups: dict[Point, list[Node]] = {}
    for node, moment in times.items():
        groups.setdefault(tuple(moment[k] for k in counted[:entries]), []).append(node)
    for first, nodes in sorted(groups.items()):
        sheet.outline(nodes, f"tile {_vector(first)}")


_LEGAL = "No arrow goes back in time: the schedule is legal at these sizes."


def _tell(sheet: Sheet, spaces: Sequence[Space], arrows: Sequence[Pair], back: Sequence[Pair]) -> None:
    """Legends of points and arrows."""
    if len(spaces) > 1:
        _legend(sheet, spaces)
    wrong = set(back)
    hues = _arrow_hues(spaces)
    ahead = _distances(spaces, [a for a in arrows if a not in wrong])
    sheet.legend([(colour(hues[name]), line) for name, line in ahead], arrows=True)
    sheet.legend([(BAD, f"{line}, back in time") for _, line in _distances(spaces, back)], arrows=True)


def _draw_arrows(
    sheet: Sheet,
    spaces: Sequence[Space],
    arrows: Sequence[Pair],
    back: Sequence[Pair],
    at: Sequence[int | str] | None,
) -> None:
    """Arrows that fit: all, those at a point, or those to one point of each statement."""
    wrong = set(back)
    shown = list(arrows)
    if at is not None:
        shown = [a for a in arrows if any(_is_at(node, at) for node in a)]
        sheet.note(f"Arrows of {_at_words(at)} only: {len(shown)} of {len(arrows)}.")
    elif len(arrows) > MOST_ARROWS:
        chosen = _middles(arrows)
        shown = [a for a in arrows if a[1] in chosen[a[0][0], a[1][0]]] + list(back[:MOST_BACK])
        shown = list(dict.fromkeys(shown))
        sheet.note(f"Arrows to one point of each statement only: {len(shown)} of {len(arrows)}.")
    hues = _arrow_hues(spaces)
    for a in sorted(shown, key=lambda a: a in wrong):
        sheet.arrow(*a, "bad" if a in wrong else hues[a[0][0]], _arrow_tip(spaces, a))


def _is_at(node: Node, at: Sequence[int | str]) -> bool:
    """Is it the point that is asked for, by its place or by name and place?"""
    return tuple(at) in (node[1], (node[0], *node[1]))


def _at_words(at: Sequence[int | str]) -> str:
    named = bool(at) and isinstance(at[0], str)
    place = f"({', '.join(map(str, at[named:]))})"
    return f"{at[0]}{place}" if named else f"points at {place}"


def _arrow_hues(spaces: Sequence[Space]) -> Mapping[str, str]:
    """The colour of the arrows that leave a statement: its own, where there are several."""
    alone = len(spaces) == 1
    return {s.name: "faint" if alone else hue_of(k) for k, s in enumerate(spaces)}


def _middles(arrows: Sequence[Pair]) -> Mapping[tuple[str, str], Sequence[Node]]:
    """Of each two statements, the consumer in the middle."""
    sinks: dict[tuple[str, str], dict[Node, None]] = {}
    for a, b in arrows:
        sinks.setdefault((a[0], b[0]), {})[b] = None
    return {key: [sorted(found)[len(found) // 2]] for key, found in sinks.items()}


def _arrow_tip(spaces: Sequence[Space], arrow: Pair) -> str:
    a, b = arrow
    far = _distance(spaces, arrow)
    words = f"{_shown(spaces, a)} → {_shown(spaces, b)}"
    return words if far is None else f"{words}, distance {_vector(far)}"


def _shown(spaces: Sequence[Space], node: Node) -> str:
    return next(s for s in spaces if s.name == node[0]).shown(node[1])


def _vector(values: Sequence[int]) -> str:
    return f"({', '.join(map(str, values))})"


def _distance(spaces: Sequence[Space], arrow: Pair) -> Point | None:
    """Consumer minus producer; None where the two have other dims."""
    a, b = arrow
    dims = {s.name: s.dims for s in spaces}
    if dims[a[0]] != dims[b[0]]:
        return None
    return tuple(y - x for x, y in zip(a[1], b[1], strict=True))


MOST_DISTANCES = 4


def _distances(spaces: Sequence[Space], arrows: Sequence[Pair]) -> list[tuple[str, str]]:
    """For each two statements the producer, and a line: how many arrows, and how far they go."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for a in arrows:
        groups.setdefault((a[0][0], a[1][0]), []).append(a)
    lines = []
    order = [s.name for s in spaces]
    for first, second in sorted(groups, key=lambda g: (order.index(g[0]), order.index(g[1]))):
        found = groups[first, second]
        words = f"{first} → {second}: {len(found)} arrow{'s' * (len(found) != 1)}"
        far = Counter(d for a in found if (d := _distance(spaces, a)) is not None)
        some = [_vector(d) for d in sorted(far)]
        if len(some) > MOST_DISTANCES:
            some = [*some[: MOST_DISTANCES - 1], f"and {len(some) - MOST_DISTANCES + 1} more"]
        if some:
            words += f", distance{'s' * (len(far) != 1)} {', '.join(some)}"
        lines.append((first, words))
    return lines


def _witness(spaces: Sequence[Space], arrow: Pair, times: Mapping[Node, Point]) -> tuple[str, str]:
    a, b = arrow
    first, second = _shown(spaces, a), _shown(spaces, b)
    when = "at the same time as" if times[a] == times[b] else "before"
    words = (
        f"Illegal: {second} needs {first} and runs {when} it, at {_vector(times[b])} and {_vector(times[a])}"
    )
    return f"{words}. This arrow goes back in time.", BAD
