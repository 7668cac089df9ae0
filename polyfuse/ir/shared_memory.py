"""Which arrays of a GPU kernel lie in the same memory, and where: those of a block and those of a thread.

Arrays with the same `Buffer.place` are never needed at the same time: they begin at the same address, and the
largest of them is the *home* of all.  In shared memory they have elements of the same size; those of a thread
have the same type and extents, and lie in registers.
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


def homes(buffers: Iterable[Buffer], scope: Scope = Scope.SHARED) -> dict[str, Buffer]:
    """Array -> the one in whose memory it lies: itself, if it is alone there or the largest."""
    together: dict[object, list[Buffer]] = {}
    for b in buffers:
        if b.scope is scope:
            kind = b.dtype.bytes if scope is Scope.SHARED else (b.dtype, b.extents)
            together.setdefault(b.tensor if b.place is None else (b.place, kind), []).append(b)
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


def registers(buffers: Iterable[Buffer]) -> int:
    """What a thread's arrays and scalars take, in registers of 4 bytes."""
    known = tuple(buffers)
    arrays = {h.tensor: h for h in homes(known, Scope.LOCAL).values()}.values()
    return sum(words(b.dtype.bytes, evaluate(b.elements, {})) for b in (*arrays, *_scalars(known)))


def words(element: int, count: int) -> int:
    """Registers of 4 bytes for so many elements; those of a byte take two."""
    return -(-max(2, element) * count // 4)


def _scalars(buffers: Iterable[Buffer]) -> list[Buffer]:
    return [b for b in buffers if b.scope is Scope.REGISTER]
