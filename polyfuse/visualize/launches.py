"""The launches of an operator as a picture (SVG text): what is fused, what runs side by side, what waits.

    plan_svg(kernels, "encoder layer")
    layers_svg([("no layer", unfused.ir), ("layer I", fused.ir), ...], "softmax")

A box is a kernel with its statements; boxes in one frame are one launch, side by side where they are packed,
one below the other where a barrier is between.  Time runs from left to right; a line goes from a kernel to
those that read what it writes.  `layers_svg` has a line for each stage of a compilation, and a column for
each statement: the box of a kernel grows over what is fused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from polyfuse.ir.kernel import Kernel, KernelGraph, touched_memory
from polyfuse.ir.tensor_graph import Purpose
from polyfuse.visualize.svg import CHAR, EDGE, FAINT, MARGIN, PAPER, Picture, colour, num, page, rect, text

_WIDE, _LINE, _GAP, _PAD, _TITLE, _MOST = 190, 15, 46, 10, 74, 7
_KINDS = {"kernel": colour("blue-soft"), "library": colour("orange-soft")}


@dataclass(frozen=True, slots=True)
class _Box:
    """A kernel on the page."""

    kernel: Kernel
    x: float
    y: float
    lines: tuple[str, ...]

    @property
    def height(self) -> float:
        return _LINE * (len(self.lines) + 1) + _PAD


def plan_svg(kernels: KernelGraph, title: str) -> str:
    """An SVG of the kernels in launch order."""
    columns: list[list[_Box]] = []
    x = float(MARGIN)
    for k in kernels.kernels:
        y, column = float(_TITLE + _PAD), list[_Box]()
        for part in _leaves(k):
            box = _Box(part, x + _PAD, y, _lines(part))
            column.append(box)
            y += box.height + _PAD
        columns.append(column)
        x += _WIDE + 2 * _PAD + _GAP
    height = max((b.y + b.height for c in columns for b in c), default=_TITLE) + MARGIN + _PAD
    parts: list[str] = []
    for k, column in zip(kernels.kernels, columns, strict=True):
        parts += _frame(k, column)
    parts += _edges(kernels, [b for c in columns for b in c])
    for column in columns:
        parts += [line for b in column for line in _box(b)]
    return page(title, x - _GAP + MARGIN, height, parts)


def plan_picture(kernels: KernelGraph, title: str) -> Picture:
    """The kernels in launch order."""
    return Picture(plan_svg(kernels, title))


def plan_html(made: Sequence[KernelGraph], words: str) -> str:
    """What a notebook shows of a function: the kernels that were made last, or some words where none were."""
    return (
        plan_picture(made[-1], made[-1].graph.name)._repr_html_() if made else f"<code>{escape(words)}</code>"
    )


def _leaves(k: Kernel) -> tuple[Kernel, ...]:
    """The kernels of a launch: stages in order, and what a pack holds."""
    inner = k.parts or k.packed
    return tuple(x for p in inner for x in _leaves(p)) if inner else (k,)


def _lines(k: Kernel) -> tuple[str, ...]:
    """The statements of a kernel, as far as there is room."""
    if k.library is not None:
        return (str(k.library),)
    names = [s.name for s in k.graph.statements if s.purpose is not Purpose.INIT]
    shown = [n if len(n) < 26 else n[:24] + ".." for n in names[:_MOST]]
    return (*shown, *([f"and {len(names) - _MOST} more"] if len(names) > _MOST else []))


def _frame(k: Kernel, column: list[_Box]) -> Iterator[str]:
    first, last = column[0], column[-1]
    top = first.y - _PAD
    yield rect(first.x - _PAD, top, _WIDE + 2 * _PAD, last.y + last.height + _PAD - top, "none", EDGE, 8)
    how = f"{len(k.packed)} side by side" if k.packed else f"{len(k.parts)} stages" if k.parts else ""
    yield text(first.x - _PAD, top - 6, f"{k.name} {how}".strip(), family="s", fill=FAINT)


def _box(b: _Box) -> Iterator[str]:
    kind = "library" if b.kernel.library is not None else "kernel"
    yield rect(b.x, b.y, _WIDE, b.height, _KINDS[kind], EDGE, 5)
    label = "library call" if kind == "library" else b.kernel.name
    yield text(b.x + 8, b.y + _LINE, label, family="b")
    for n, line in enumerate(b.lines):
        yield text(b.x + 8, b.y + _LINE * (n + 2), line, family="m")


def _edges(kernels: KernelGraph, boxes: list[_Box]) -> Iterator[str]:
    """A line from each kernel to the next ones that read what it wrote last."""
    memory = {t.name: t for t in kernels.graph.tensors}
    writer: dict[str, _Box] = {}
    for b in boxes:
        touched = touched_memory(b.kernel, memory)
        sources = {id(writer[m]): writer[m] for m in sorted(touched.read) if m in writer}
        for a in sources.values():
            if a.x != b.x:
                x1, y1, x2, y2 = a.x + _WIDE, a.y + a.height / 2, b.x, b.y + b.height / 2
                middle = (x1 + x2) / 2
                bend = f"{num(middle)} {num(y1)} {num(middle)} {num(y2)}"
                curve = f"M{num(x1)} {num(y1)} C{bend} {num(x2)} {num(y2)}"
                yield f'<path class="arrow" d="{curve}"/>'
        for m in touched.written:
            writer[m] = b


# Of a line of stages: its height, and the room that a launch and a kernel take around what they hold.
_ROW, _CHIP, _LAUNCH, _KERNEL = 92, 24, 14, 7


def layers_svg(stages: Sequence[tuple[str, KernelGraph]], title: str) -> str:
    """Stages of one operator below one another, each with a heading; at least one.

    Statements have the order of the last stage; those that it lacks come where the stages before have them.
    """
    columns = _columns([kernels for _, kernels in stages])
    x = float(MARGIN + _LAUNCH)
    spots: dict[str, tuple[float, float]] = {}
    for name in columns:
        wide = CHAR * len(_label(name)) + 2 * _PAD
        spots[name] = x, wide
        x += wide + 2 * _LAUNCH
    parts: list[str] = []
    for row, (heading, kernels) in enumerate(stages):
        y = float(_TITLE + _ROW * row)
        parts.append(text(MARGIN, y + 14, f"{heading}: {_counted(kernels)}", family="h"))
        for k in kernels.kernels:
            parts += _launch(k, spots, y + 44)
    return page(title, x + MARGIN, _TITLE + _ROW * len(stages) + MARGIN, parts)


def _columns(stages: Sequence[KernelGraph]) -> list[str]:
    """Names of the statements of all stages, those of the last one first placed."""
    order: list[str] = []
    for kernels in reversed(stages):
        last = -1
        for name in (n for k in kernels.kernels for leaf in _leaves(k) for n in _statements(leaf)):
            if name not in order:
                order.insert(last + 1, name)
            last = order.index(name)
    return order


def _statements(k: Kernel) -> list[str]:
    """What a kernel computes, without first values of totals and rows that are only kept."""
    left_out = (Purpose.INIT, Purpose.COPY)
    named = [s.name for s in k.graph.statements if s.purpose not in left_out]
    return list(dict.fromkeys(named))


def _label(name: str) -> str:
    """``mu__sum`` is the sum that the value ``mu`` is made of."""
    total = name.removesuffix("__sum")
    return name if total == name else f"sum of {total}"


def _counted(kernels: KernelGraph) -> str:
    inner, launches = sum(len(_leaves(k)) for k in kernels.kernels), len(kernels.kernels)
    words = f"{inner} kernel{'s' if inner != 1 else ''}"
    return words if inner == launches else f"{words} in {launches} launch{'es' if launches != 1 else ''}"


def _launch(k: Kernel, spots: dict[str, tuple[float, float]], y: float) -> Iterator[str]:
    """The frame of a launch, the boxes of its kernels, their statements."""
    leaves = [names for leaf in _leaves(k) if (names := _statements(leaf))]
    if len(leaves) > 1:
        yield _around([n for names in leaves for n in names], spots, y, _LAUNCH, PAPER, "6 4")
    for names in leaves:
        yield _around(names, spots, y, _KERNEL, _KINDS["library" if k.library else "kernel"])
    for name in (n for names in leaves for n in names):
        left, wide = spots[name]
        yield rect(left, y, wide, _CHIP, PAPER, EDGE, 4)
        yield text(left + _PAD, y + 16, _label(name), family="m")


def _around(
    names: Sequence[str],
    spots: dict[str, tuple[float, float]],
    y: float,
    room: int,
    fill: str,
    dash: str = "",
) -> str:
    """A box around statements; dashed ones are launches."""
    left = min(spots[n][0] for n in names) - room
    right = max(spots[n][0] + spots[n][1] for n in names) + room
    box = rect(left, y - room, right - left, _CHIP + 2 * room, fill, FAINT, 6)
    return box.replace("/>", f' stroke-dasharray="{dash}"/>') if dash else box


# --- timelines --------------------------------------------------------------------------------------------

# Times of launches as a timeline that Perfetto and chrome://tracing open (Trace Event Format, JSON).
#
# text = timeline("encoder layer", [("k0: a, b", 12e-6), ("k1: c", 3e-6)])


def timeline(
    title: str, launches: Sequence[tuple[str, float]], facts: Mapping[str, object] | None = None
) -> str:
    """JSON of launches that run one after the other, each with its name and seconds."""
    events: list[dict[str, object]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": title}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "launches"}},
    ]
    start = 0.0
    for name, seconds in launches:
        events.append({"name": name, "ph": "X", "pid": 1, "tid": 1, "ts": start, "dur": seconds * 1e6})
        start += seconds * 1e6
    return json.dumps(
        {"traceEvents": events, "displayTimeUnit": "ns", "otherData": dict(facts or {})}, indent=1
    )


def launch_names(kernels: Sequence[Kernel], launched: Sequence[str]) -> list[str]:
    """For each launch of a plan, its kernel and the first of its statements."""
    statements = {k.name: k.computed for k in kernels}
    return [f"{name}: {', '.join(statements[name][:4])}" for name in launched]
