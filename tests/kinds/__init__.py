"""Random programs of fourteen kinds, each of which finds its way into one part of the compiler.

    call = kind_call("scatters", 7)

The same for the same kind and seed everywhere.  Programs are small and so varied in what one kind has (index
forms, layouts, types, special values) that a wrong answer shows in some of a hundred; what the whole
language has together is in `programs`.
"""

from __future__ import annotations

from collections.abc import Callable

from targets import Call

from kinds.bits import bits
from kinds.casts import casts
from kinds.contractions import contraction
from kinds.inouts import inouts
from kinds.integers import integers
from kinds.pieces import pieces
from kinds.ranges import ranges
from kinds.rows import half_rows, rows
from kinds.scans import scans
from kinds.scatters import scatter
from kinds.segments import segments
from kinds.special import special
from kinds.windows import windows

KINDS: dict[str, Callable[[int], Call]] = {
    "contractions": contraction,
    "scatters": scatter,
    "pieces": pieces,
    "scans": scans,
    "ranges": ranges,
    "inouts": inouts,
    "integers": integers,
    "rows": rows,
    "half_rows": half_rows,
    "special": special,
    "casts": casts,
    "windows": windows,
    "bits": bits,
    "segments": segments,
}


def kind_call(kind: str, seed: int) -> Call:
    """The program of a kind and seed, with its inputs."""
    return KINDS[kind](seed)
