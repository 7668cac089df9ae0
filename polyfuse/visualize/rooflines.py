"""What kernels move and compute, as the cost model has it: bars of bytes, and the roofline.

    pf.visualize.traffic(apart, fused, names=("apart", "fused"))
    pf.visualize.roofline(apart, fused, names=("apart", "fused"))

The roofline is that of Williams, Waterman and Patterson (CACM 2009): operations a second over operations a
byte, under a slope for each level of memory and the roof of the lanes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.figures import Estimate
from polyfuse.cost.gpu_time import L2_BYTES_PER_CLOCK
from polyfuse.cost.machines import Machine
from polyfuse.diagnostics import ArgumentError
from polyfuse.visualize.stages import no_stage
from polyfuse.visualize.svg import CHAR, FAINT, HUES, INK, MARGIN, SMALL, Picture, colour, page, rect, text

BAR, ROW, TOP, LONGEST = 16, 26, 84, 420
WIDTH, HEIGHT, LEFT = 460, 300, 96


def traffic(*stages: Any, names: tuple[str, ...] = (), device: str | None = None, title: str = "") -> Picture:
    """The bytes that the kernels of each stage read and write in global memory.

    Parameters
    ----------
    *stages : Kernels
        At known sizes.
    names : tuple of str, optional
        What each is called.
    device : str, optional
        A GPU of the table, for kernels of a GPU.
    title : str, optional
        A title of your own.

    Returns
    -------
    Picture
        A bar for each stage: bytes read, then bytes written.

    Raises
    ------
    ArgumentError
        PF910 for an object without kernels, and as `Kernels.estimate` does.

    Examples
    --------
    >>> import polyfuse as pf
    >>> unfused = pf.stdlib.softmax.specialize(B_0=64, H=128).schedule()
    >>> stages = [s.lower(target="cpu") for s in (unfused, unfused.apply(pf.LoopFusion()))]
    >>> picture = pf.visualize.traffic(*stages, names=("apart", "fused"))
    """
    rows = _estimates(stages, names, device)
    left = MARGIN + max(len(name) for name, _ in rows) * CHAR + 12
    most = max(e.read + e.written for _, e in rows) or 1.0
    parts, widest = [], 0.0
    for k, (name, found) in enumerate(rows):
        y, x = TOP + k * ROW, left
        parts.append(text(MARGIN, y, name, family="m"))
        for nbytes, hue in ((found.read, "blue"), (found.written, "orange")):
            parts.append(rect(x, y - 12, max(nbytes / most * LONGEST, 1.0), BAR, colour(hue), colour(hue), 2))
            x += nbytes / most * LONGEST
        words = f"{_bytes(found.read)} read, {_bytes(found.written)} written"
        parts.append(text(x + 10, y, words, family="s", fill=FAINT))
        widest = max(widest, x + 10 + len(words) * CHAR)
    words = "bytes read (blue) and written (orange), by the cost model"
    parts.insert(0, text(MARGIN, TOP - 30, words, family="s", fill=FAINT))
    shown = title or f"Memory traffic on {rows[0][1].machine}"
    widest = max(widest, MARGIN + len(words) * CHAR, MARGIN + len(shown) * 11.5)
    return Picture(page(shown, widest + MARGIN, TOP + len(rows) * ROW, parts))


def roofline(
    *stages: Any, names: tuple[str, ...] = (), device: str | None = None, title: str = ""
) -> Picture:
    """Where each stage stands under the roofline of its machine.

    Parameters
    ----------
    *stages : Kernels
        At known sizes, all of one target.
    names : tuple of str, optional
        What each is called.
    device : str, optional
        A GPU of the table, for kernels of a GPU.
    title : str, optional
        A title of your own.

    Returns
    -------
    Picture
        Operations a second over operations a byte, both axes logarithmic. A point is a stage: its operations
        by the time that the cost model expects. It is below the slope of the level its bytes come from.

    Raises
    ------
    ArgumentError
        PF910 for an object without kernels or with nothing to do, and as `Kernels.estimate` does.

    Examples
    --------
    >>> import polyfuse as pf
    >>> kernels = pf.stdlib.softmax.specialize(B_0=64, H=128).schedule().lower(target="cpu")
    >>> picture = pf.visualize.roofline(kernels, names=("apart",))
    """
    rows = _estimates(stages, names, device)
    machine: Machine = stages[0].machine(device)
    points = [(name, *_point(found)) for name, found in rows]
    levels, roof = _levels(machine), machine.operations
    axes = _Axes.around([p[1] for p in points], [p[2] for p in points], [roof / b for _, b in levels], roof)
    parts, line = axes.grid(), TOP + HEIGHT + 56
    for k, (name, bandwidth) in enumerate(reversed(levels)):
        dashes = ("", "8 4", "2 4", "8 4 2 4")[k % 4]
        parts += axes.roof(bandwidth, roof, dashes)
        parts.append(_stroke(f"M{MARGIN} {line - 4}h34", dashes))
        parts.append(text(MARGIN + 44, line, f"{name}: {_bytes(bandwidth)} a second", family="s"))
        line += ROW
    for k, (name, x, y) in enumerate(points):
        fill, tip = colour(HUES[k % len(HUES)]), f"{name}: {x:.2f} operations a byte, {_rate(y)}"
        parts.append(_dot(axes.x(x), axes.y(y), fill, tip))
        parts += [_dot(MARGIN + 17, line - 4, fill, tip), text(MARGIN + 44, line, tip, family="s")]
        line += ROW
    return Picture(page(title or f"Roofline of {machine.name}", LEFT + WIDTH + 2 * MARGIN, line, parts))


def _dot(x: float, y: float, fill: str, tip: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{fill}"><title>{escape(tip)}</title></circle>'


def _stroke(path: str, dashes: str) -> str:
    return f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="2" stroke-dasharray="{dashes}"/>'


# --- figures -----------------------------------------------------------------------------------------------


def _estimates(stages: Sequence[Any], names: Sequence[str], device: str | None) -> list[tuple[str, Estimate]]:
    for stage in stages or (None,):
        if not hasattr(stage, "estimate"):
            raise no_stage(stage, "kernels", "scheduled.lower()")
    called = [*names, *(f"stage {k}" for k in range(len(names), len(stages)))]
    return [(name, stage.estimate(device)) for name, stage in zip(called, stages, strict=False)]


def _point(found: Estimate) -> tuple[float, float]:
    """Operations a byte, operations a second."""
    work, nbytes = sum(k.work.weighted for k in found.kernels), found.read + found.written
    if not work or not nbytes:
        raise ArgumentError("these kernels compute nothing", code="PF910", hint="draw pf.visualize.traffic")
    return work / nbytes, work / found.seconds


def _levels(machine: Machine) -> list[tuple[str, float]]:
    """Bytes a second of each level, the nearest first."""
    if isinstance(machine, CpuDevice):
        return [(level.name, level.bandwidth) for level in machine.levels]
    return [("L2", L2_BYTES_PER_CLOCK * machine.sms * machine.clock), ("memory", machine.memory_bandwidth)]


def _bytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def _rate(a_second: float) -> str:
    return f"{a_second / 1e9:,.0f} G operations a second"


# --- axes --------------------------------------------------------------------------------------------------


class _Axes:
    """Two logarithmic axes over whole decades."""

    def __init__(self, low: tuple[int, int], high: tuple[int, int]) -> None:
        self.low, self.high = low, high

    @classmethod
    def around(cls, xs: Sequence[float], ys: Sequence[float], ridges: Sequence[float], roof: float) -> _Axes:
        """The decades that hold all points, and the ridges under the roof."""
        across, up = [*xs, *ridges], [*ys, roof]
        low = math.floor(math.log10(min(across))), math.floor(math.log10(min(up)))
        return cls(low, (math.ceil(math.log10(max(across) * 2)), math.ceil(math.log10(max(up) * 1.3))))

    def x(self, value: float) -> float:
        return LEFT + WIDTH * (math.log10(value) - self.low[0]) / (self.high[0] - self.low[0])

    def y(self, value: float) -> float:
        return TOP + HEIGHT * (1 - (math.log10(value) - self.low[1]) / (self.high[1] - self.low[1]))

    def grid(self) -> list[str]:
        """Lines at the decades, with what they stand for."""
        bottom = TOP + HEIGHT
        parts = [text(MARGIN, TOP - 22, "G operations a second", family="s", fill=FAINT)]
        for e in range(self.low[0], self.high[0] + 1):
            x = self.x(10.0**e)
            parts.append(f'<path class="rail" d="M{x:.1f} {TOP}V{bottom}"/>')
            parts.append(text(x, bottom + 16, f"{10.0**e:g}", family="n", fill=FAINT))
        for e in range(self.low[1], self.high[1] + 1):
            y, label = self.y(10.0**e), f"{10.0 ** (e - 9):g}"
            parts.append(f'<path class="rail" d="M{LEFT} {y:.1f}H{LEFT + WIDTH}"/>')
            parts.append(text(LEFT - 12 - len(label) * SMALL / 2, y + 4, label, family="n", fill=FAINT))
        return [*parts, text(LEFT, bottom + 34, "operations a byte", family="s", fill=FAINT)]

    def roof(self, bandwidth: float, top: float, dashes: str) -> list[str]:
        """The slope of a level up to the roof; it begins where the picture does."""
        first = max(10.0 ** self.low[0], 10.0 ** self.low[1] / bandwidth)
        start, ridge = (self.x(first), self.y(bandwidth * first)), (self.x(top / bandwidth), self.y(top))
        line = f"M{start[0]:.1f} {start[1]:.1f}L{ridge[0]:.1f} {ridge[1]:.1f}H{LEFT + WIDTH}"
        return [_stroke(line, dashes)]
