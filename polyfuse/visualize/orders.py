"""When the points of iteration domains run, as a picture that moves.

schedule_order("{ S[i, j] : 0 <= i < 3 and 0 <= j < 4 }", "{ S[i, j] -> [j, i] }")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyfuse.diagnostics import ArgumentError
from polyfuse.poly.model.points import Node, Point
from polyfuse.visualize.grids import CELL, DISC, Sheet
from polyfuse.visualize.polyhedra import draw_tiles, sheet_of, titled
from polyfuse.visualize.sources import Source, source_of
from polyfuse.visualize.svg import EDGE, FAINT, INK, PAPER, ROOT, Picture, num

# The colours of time, from first to last: dark to light, in steps that look alike (viridis).
RAMP = (
    "#440154",
    "#482878",
    "#3e4a89",
    "#31688e",
    "#26828e",
    "#1f9e89",
    "#35b779",
    "#6ece58",
    "#b5de2b",
    "#fde725",
)
DARK, LIGHT = "#000000", "#ffffff"  # numbers on light points and on dark ones
STEP_S, REST_S, LONGEST_S = 0.35, 2.5, 20.0
"""Seconds of a step, of the rest after the last one, and of all steps at most."""


def schedule_order(
    given: object,
    schedule: object = None,
    /,
    *,
    names: Sequence[str] = (),
    parallel: bool = False,
    frame: int | None = None,
    tiles: int = 0,
    title: str = "",
    **sizes: int,
) -> Picture:
    """Points with numbers and colours that say when each runs; the picture moves.

    Parameters
    ----------
    given : str, object of islpy, Program, Operator, or a stage
        What runs: a set of isl, or an operator or a stage. Of a stage that has a schedule, and of a schedule
        tree of isl, the schedule need not be given.
    schedule : stage, schedule tree, str or object of islpy, optional
        When it runs: a relation from points to times such as ``"{ S[i, j] -> [j, i] }"``, a schedule tree of
        isl or of polyfuse. An operator without one runs in program order.
    names : sequence of str, optional
        Statements, by their names or by what they define; all if none is named.
    parallel : bool, optional
        Let the iterations of parallel loops run at once, for the schedule of an operator.
    frame : int, optional
        A still picture at this step: what ran before is coloured, what runs now has a ring, the rest is pale.
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
        Without animation, and for readers who want less motion, all points with their numbers. Points that
        run at the same time have the same number.

    Raises
    ------
    ArgumentError
        As `domain` does, PF916 for a schedule that gives a point no time, PF917 for a frame that is none.

    Examples
    --------
    >>> import polyfuse as pf
    >>> points = "{ S[i, j] : 0 <= i < 3 and 0 <= j < 4 }"
    >>> columns = pf.visualize.schedule_order(points, "{ S[i, j] -> [j, i] }")
    >>> tiles = pf.visualize.schedule_order(
    ...     points, "{ S[i, j] -> [floor(i/2), floor(j/2), i, j] }", frame=5
    ... )

    Rows of a softmax need nothing from each other, so they run side by side:

    >>> rows = pf.visualize.schedule_order(pf.stdlib.softmax, parallel=True, B_0=3, H=4)
    """
    source = source_of(given, names, sizes, schedule)
    times = source.times(schedule, parallel=parallel)
    moments = sorted(set(times.values()))
    if frame is not None and not 0 <= frame < max(len(moments), 1):
        hint = f"frames are 0 to {len(moments) - 1}"
        raise ArgumentError(f"there is no frame {frame}", code="PF917", hint=hint)
    sheet, _ = sheet_of(
        source, title or titled("Order of execution", source), schedule, radius=DISC, step=CELL / 2
    )
    draw_tiles(sheet, source.times(schedule) if parallel else times, tiles)
    _draw_path(sheet, times)
    _draw_numbers(sheet, source, times, moments, frame)
    _draw_scale(sheet, len(moments), frame)
    return sheet.picture(_RULES + (_motion(len(moments)) if frame is None else ""))


_RULES = (
    f".{ROOT} .way{{fill:none;stroke:{FAINT};stroke-width:1;opacity:.5}}"
    f".{ROOT} .now{{fill:none;stroke:{INK};stroke-width:2.5;opacity:0}}"
    f".{ROOT} .later .point{{stroke:{EDGE}}}"
)


def _draw_path(sheet: Sheet, times: Mapping[Node, Point]) -> None:
    """A line through the points in order, where one runs at a time."""
    if len(set(times.values())) < len(times):
        return
    spots = [sheet.spots[n] for n in sorted(times, key=lambda n: times[n])]
    path = "L".join(f"{num(x)} {num(y)}" for x, y in spots)
    sheet.line(f'<path class="way" d="M{path}"/>')


def _draw_numbers(
    sheet: Sheet, source: Source, times: Mapping[Node, Point], moments: Sequence[Point], frame: int | None
) -> None:
    rank = {moment: k for k, moment in enumerate(moments)}
    shown = {s.name: s for s in source.spaces}
    for node, moment in times.items():
        k = rank[moment]
        later = frame is not None and k > frame
        fill = PAPER if later else _ramp(k, len(moments))
        when = f"({', '.join(map(str, moment))})"
        tip = f"{shown[node[0]].shown(node[1])} runs at {when}, as number {k}"
        how = f' class="step" style="--k:{k}"' if frame is None else ' class="later"' if later else ""
        sheet.point(node, fill, tip, str(k), FAINT if later else _ink(fill), how)
        if frame in (None, k):
            x, y = sheet.spots[node]
            style = f"--k:{k}" if frame is None else "opacity:1"
            ring = f'cx="{num(x)}" cy="{num(y)}" r="{DISC + 2}" style="{style}"'
            sheet.over(f'<circle class="now" {ring}/>')


def _draw_scale(sheet: Sheet, count: int, frame: int | None) -> None:
    steps = f"{count} step{'s' * (count != 1)}, dark ones first"
    sheet.note(f"Step {frame} of {steps}." if frame is not None else f"{steps}.".capitalize())


def _ramp(k: int, count: int) -> str:
    """The colour of the k-th of some moments."""
    at = k / max(count - 1, 1) * (len(RAMP) - 1)
    low = min(int(at), len(RAMP) - 2)
    share = at - low
    a, b = (_channels(RAMP[low + j]) for j in (0, 1))
    return "#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in zip(a, b, strict=True))


def _channels(value: str) -> tuple[int, ...]:
    return tuple(int(value[i : i + 2], 16) for i in (1, 3, 5))


def _ink(fill: str) -> str:
    """Black or white, whichever is easier to read on a colour: at a luminance of 0.179 both are."""
    shares = (c / 255 for c in _channels(fill))
    red, green, blue = (s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return DARK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else LIGHT


def _motion(count: int) -> str:
    """Rules of the animation: a clock, `--pf-now`, that runs through all steps and rests; points and rings
    follow it. Where it stands still, all steps are done."""
    clock = f"--{ROOT}-now"
    run = min(count * STEP_S, LONGEST_S)
    whole = run + REST_S
    end = 100 * run / whole
    since = f"(var({clock}) - var(--k))"
    return (
        f'@property {clock}{{syntax:"<number>";inherits:true;initial-value:99999}}'
        f"@keyframes {ROOT}-run{{0%{{{clock}:0}}{num(end)}%{{{clock}:{count}}}100%{{{clock}:{count + 1}}}}}"
        f".{ROOT}{{{clock}:99999;animation:{ROOT}-run {whole:.2f}s linear -{run:.2f}s infinite}}"
        f".{ROOT} .step{{opacity:clamp(.25,calc({since}*4),1)}}"
        f".{ROOT} .now{{opacity:clamp(0,calc(min({since}*4,(1.5 - {since})*4)),1)}}"
        f"@media(prefers-reduced-motion:reduce){{.{ROOT}{{animation:none}}}}"
    )
