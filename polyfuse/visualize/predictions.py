"""Times that a model told, beside those of the clock.

pf.visualize.predictions(measured, predicted)
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from polyfuse.diagnostics import ArgumentError
from polyfuse.visualize.svg import FAINT, MARGIN, SMALL, Picture, colour, num, page, text

SIDE, LEFT, TOP, DOT = 300, 90, 84, 2.2
UNITS = {0: "1 s", -3: "1 ms", -6: "1 us", -9: "1 ns"}


def predictions(measured: Iterable[float], predicted: Iterable[float], *, title: str = "") -> Picture:
    """Where the times that a model told stand beside measured ones.

    Parameters
    ----------
    measured : iterable of float
        Seconds, by the clock.
    predicted : iterable of float
        Seconds, by the model, in the same order.
    title : str, optional
        A title of your own.

    Returns
    -------
    Picture
        A dot for each pair: measured times to the right, predicted ones upwards, in powers of ten. On the
        line both agree; above it the model told too much.

    Raises
    ------
    ArgumentError
        PF918 where one list is longer than the other, both are empty, or a time is no positive number.

    Examples
    --------
    >>> import polyfuse as pf
    >>> picture = pf.visualize.predictions([1e-6, 2e-5], [2e-6, 1.5e-5], title="two kernels")
    """
    pairs = _pairs([float(s) for s in measured], [float(s) for s in predicted])
    every = [math.log10(s) for pair in pairs for s in pair]
    low, high = math.floor(min(every)), max(math.ceil(max(every)), math.floor(min(every)) + 1)

    def across(seconds: float) -> float:
        return SIDE * (math.log10(seconds) - low) / (high - low)

    bottom = TOP + SIDE
    parts = [text(MARGIN, TOP - 22, "predicted", family="s", fill=FAINT), *_grid(low, high)]
    parts.append(f'<path d="M{LEFT} {bottom}L{LEFT + SIDE} {TOP}" stroke="{FAINT}" fill="none"/>')
    parts += [_dot(LEFT + across(m), bottom - across(p)) for m, p in pairs]
    parts.append(text(LEFT, bottom + 36, "measured", family="s", fill=FAINT))
    shown = title or "Predicted and measured times"
    width = max(LEFT + SIDE, 12 * len(shown)) + 2 * MARGIN
    return Picture(page(shown, width, bottom + 60, parts))


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{num(x)}" cy="{num(y)}" r="{DOT}" fill="{colour("blue")}"/>'


def _pairs(measured: list[float], predicted: list[float]) -> list[tuple[float, float]]:
    if len(measured) != len(predicted) or not measured:
        why = f"{len(measured)} measured times stand beside {len(predicted)} predicted ones"
        raise ArgumentError(why, code="PF918", hint="give one predicted time for each measured one")
    for k, s in enumerate((*measured, *predicted)):
        if not 0 < s < math.inf:
            which = "predicted" if k >= len(measured) else "measured"
            why = f"the {which} time {k % len(measured)} is {s}, which an axis of powers of ten has not"
            raise ArgumentError(why, code="PF918", hint="times are positive seconds; leave this pair out")
    return list(zip(measured, predicted, strict=True))


def _grid(low: int, high: int) -> list[str]:
    """Lines at the powers of ten; each is named where there is room."""
    parts, every = [], 1 if high - low <= 6 else 3
    for e in range(low, high + 1):
        at, label = SIDE * (e - low) / (high - low), _label(e) if e % every == 0 else ""
        x, y = LEFT + at, TOP + SIDE - at
        parts.append(f'<path class="rail" d="M{num(x)} {TOP}V{TOP + SIDE}M{LEFT} {num(y)}H{LEFT + SIDE}"/>')
        if label:
            parts.append(text(x, TOP + SIDE + 16, label, family="n", fill=FAINT))
            parts.append(text(LEFT - 12 - len(label) * SMALL / 2, y + 4, label, family="n", fill=FAINT))
    return parts


def _label(exponent: int) -> str:
    """``1 us``, ``10 us``, ``100 ns`` ..."""
    unit = min(max(3 * (exponent // 3), -9), 0)
    return f"{10.0 ** (exponent - unit):g}{UNITS[unit][1:]}"
