"""The launches of an operator as a picture (SVG text): what is fused, what runs side by side, what waits.

    plan_svg(kernels, "encoder layer")

A box is a kernel with its statements; boxes in one frame are one launch, side by side where they are packed,
one below the other where a barrier is between.  Time runs from left to right; a line goes from a kernel to
those that read what it writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polyfuse.ir.kernel import Kernel, KernelGraph, touched_memory
from polyfuse.svg import EDGE, FAINT, MARGIN, head, num, rect, text

_WIDE, _LINE, _GAP, _PAD, _TITLE, _MOST = 190, 15, 46, 10, 56, 7
_KINDS = {"kernel": "#e7effa", "library": "#fdf0e1", "part": "#e8f5ec"}


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
    parts = [*head(title, x - _GAP + MARGIN, height)]
    for k, column in zip(kernels.kernels, columns, strict=True):
        parts += _frame(k, column)
    parts += _edges(kernels, [b for c in columns for b in c])
    for column in columns:
        parts += [line for b in column for line in _box(b)]
    return "\n".join([*parts, "</svg>"])


def _leaves(k: Kernel) -> tuple[Kernel, ...]:
    """The kernels of a launch: stages in order, and what a pack holds."""
    inner = k.parts or k.packed
    return tuple(x for p in inner for x in _leaves(p)) if inner else (k,)


def _lines(k: Kernel) -> tuple[str, ...]:
    """The statements of a kernel, as far as there is room."""
    if k.library is not None:
        return (str(k.library),)
    names = [s.name for s in k.graph.statements if not s.name.endswith("__init")]
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
