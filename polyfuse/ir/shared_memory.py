"""Which arrays of a GPU kernel lie in the same shared memory, and where.

Arrays with the same `Buffer.place` and elements of the same size are never needed at the same time: they
begin at the same address, and the largest of them is the *home* of all.
"""

from __future__ import annotations

from collections.abc import Iterable

from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import Buffer, Scope

# Every array begins at a multiple of so many bytes.
ALIGNMENT = 16


def nbytes(b: Buffer) -> int:
    return evaluate(b.elements, {}) * b.dtype.bytes


def aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def homes(buffers: Iterable[Buffer]) -> dict[str, Buffer]:
    """Shared array -> the one in whose memory it lies: itself, if it is alone there or the largest."""
    together: dict[object, list[Buffer]] = {}
    for b in buffers:
        if b.scope is Scope.SHARED:
            place = b.tensor if b.place is None else (b.place, b.dtype.bytes)
            together.setdefault(place, []).append(b)
    return {b.tensor: max(group, key=nbytes) for group in together.values() for b in group}


def offsets(buffers: Iterable[Buffer]) -> tuple[dict[str, int], int]:
    """Where each shared array begins, and the bytes of all."""
    found = homes(buffers)
    begins: dict[str, int] = {}
    total = 0
    for home in found.values():
        if home.tensor not in begins:
            begins[home.tensor] = aligned(total)
            total = begins[home.tensor] + nbytes(home)
    return {name: begins[home.tensor] for name, home in found.items()}, total
