"""One core of a CPU as register tiles see it: vector registers, what computes in them, the caches behind."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Core:
    """The defaults are a core with vectors of 64 bytes.

    vector_bytes, registers   of one vector register, and how many there are
    units, latency, loads     fused multiply-adds begun in a cycle, cycles that one takes, loads in a cycle
    l1, l2, line              bytes of its own data caches, and of a line of them
    """

    vector_bytes: int = 64
    registers: int = 32
    units: int = 2
    latency: int = 4
    loads: int = 2
    l1: int = 48 * KIB
    l2: int = 1024 * KIB
    line: int = 64
