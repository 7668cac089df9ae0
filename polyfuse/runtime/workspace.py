"""Where temporaries of a plan lie in its one block of workspace.

Two whose lifetimes do not meet may have the same place.  Those of most bytes are placed first, each at the
lowest place that is free over its lifetime; the block is at most as large as all of them side by side.
Source of the order: Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (2020),
greedy by size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.launch_plan import Kind, PlanBuffer


@dataclass(frozen=True, slots=True)
class Space:
    """Where a buffer lies in the block."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Places by buffer, the bytes of the block, and what it would be if nothing shared a place."""

    spaces: Mapping[str, Space]
    nbytes: int
    apart: int


def layout(
    buffers: Sequence[PlanBuffer], copied: Sequence[str], sizes: Mapping[str, int], align: int, start: int = 0
) -> Layout:
    """Places of workspace buffers and of entry copies, which are there from the first step to the last.

    `start` bytes at the beginning of the block are for something else.
    """
    wanted: list[tuple[int, int, PlanBuffer]] = []
    for k, b in enumerate(buffers):
        if b.kind is Kind.WORKSPACE or b.name in copied:
            nbytes = evaluate(product(b.shape), sizes) * b.dtype.bytes
            wanted.append((-(-(-nbytes // align) * align), k, b))
    spaces: dict[str, Space] = {}
    placed: list[tuple[int, int, PlanBuffer]] = []
    for less, _, b in sorted(wanted, key=lambda w: w[:2]):
        size, offset = -less, start
        for low, high, other in placed:  # by place
            if _meet(b, other) and offset < high:
                if offset + size <= low:
                    break
                offset = high
        spaces[b.name] = Space(offset, evaluate(product(b.shape), sizes) * b.dtype.bytes)
        placed.append((offset, offset + size, b))
        placed.sort(key=lambda p: p[:2])
    end = max((high for _, high, _ in placed), default=start)
    return Layout(spaces, end, start - sum(less for less, _, _ in wanted))


def _meet(a: PlanBuffer, b: PlanBuffer) -> bool:
    """Are both alive at some step?"""
    if a.live is None or b.live is None:
        return True
    return a.live[0] <= b.live[1] and b.live[0] <= a.live[1]
