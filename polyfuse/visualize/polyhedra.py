"""Iteration domains and dependences as pictures.

    domain("{ S[i, j] : 0 <= j <= i < N }", N=5)      the points
    dependences(op, T=3, H=4)                         and what needs what
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from polyfuse.poly.model.points import Node, Pair, Point, Space
from polyfuse.visualize.grids import Panel, Sheet, hue_of, panels_of
from polyfuse.visualize.sources import Source, source_of
from polyfuse.visualize.svg import BAD, FAINT, Picture, colour

MOST_ARROWS = 120
MOST_BACK = 40


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
        A panel for each statement, with at most 400 points and three dims. The first of three dims is cut into
        slices. The coloured area is the convex hull; small dots are integer points in it that the domain
        leaves out.

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
    sheet, panels = _sheet(source, title or _titled("Iteration domain", source))
    _draw_points(sheet, panels, source.spaces)
    _legend(sheet, source.spaces)
    return sheet.picture()


def _titled(what: str, source: Source) -> str:
    return f"{what} of {source.title}" if source.title else what


def _sheet(source: Source, title: str, radius: float = 6) -> tuple[Sheet, list[Panel]]:
    """A page with the panels of all points, and the hulls of statements."""
    sizes = ", ".join(f"{n} = {v}" for n, v in source.sizes.items())
    sheet = Sheet(title, sizes, radius)
    panels = panels_of(source.spaces)
    sheet.place(panels)
    if not panels:
        sheet.note("There are no points.")
    hues = {s.name: hue_of(k) for k, s in enumerate(source.spaces)}
    for p in panels:
        for name in dict.fromkeys(n for n, _ in p.cells):
            sheet.hull(p, name, hues[name])
    return sheet, panels


def _draw_points(sheet: Sheet, panels: Sequence[Panel], spaces: Sequence[Space]) -> None:
    for k, s in enumerate(spaces):
        for point in s.points:
            sheet.point((s.name, point), colour(hue_of(k)), s.shown(point))


def _legend(sheet: Sheet, spaces: Sequence[Space]) -> None:
    rows = [(colour(hue_of(k)), _counted(s)) for k, s in enumerate(spaces)]
    sheet.legend(rows)


def _counted(s: Space) -> str:
    dims = f"[{', '.join(s.dims)}]" if all(s.dims) else ""
    return f"{s.name}{dims}: {len(s.points)} point{'s' * (len(s.points) != 1)}"
