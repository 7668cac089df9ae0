"""What the warps of a kernel do, counted in its machine code: the noun of the projected model of GPUs.

`runtime.cuda.warp_trace` makes it from a disassembly; cost makes a time of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# What executes instructions; "issue" is what hands them out. The order is that of tables.
PIPES = ("issue", "fma", "alu", "mufu", "lsu", "fp64", "control")
# Bytes of a lane in one access that are as many as there can be.
WIDEST = 16


@dataclass(frozen=True, slots=True)
class WarpWork:
    """Of one warp, the mean over those of a few blocks.

    instructions: executed, by pipe ("issue": all).  loads, stores: bytes of global memory by the bytes of an
    access.  again: bytes of loads that the warp read shortly before.  shared: bytes of shared memory.
    cycles: from the first instruction to the last one, if all others leave it alone; trips: how often
    it waits for memory in these.  in_flight: bytes of loads that are on the way at once, at most.
    block_barriers, grid_barriers: executed.  cut: the trace was too long, and counts only its beginning.
    phases: the same of each part between barriers of the grid, where there are any.
    """

    instructions: Mapping[str, float] = field(default_factory=dict)
    loads: Mapping[int, float] = field(default_factory=dict)
    stores: Mapping[int, float] = field(default_factory=dict)
    again: float = 0.0
    shared: float = 0.0
    cycles: float = 0.0
    trips: float = 0.0
    in_flight: float = 0.0
    block_barriers: float = 0.0
    grid_barriers: float = 0.0
    cut: bool = False
    phases: tuple[WarpWork, ...] = ()

    @property
    def nbytes(self) -> float:
        """Of global memory."""
        return sum(self.loads.values()) + sum(self.stores.values())

    @property
    def wide(self) -> float:
        """The share of these that accesses of 16 bytes a lane move."""
        widest = self.loads.get(WIDEST, 0.0) + self.stores.get(WIDEST, 0.0)
        return widest / self.nbytes if self.nbytes else 1.0


@dataclass(frozen=True, slots=True)
class HotLoops:
    """What stands in the innermost loops that touch global memory, counted once each, and elsewhere.

    divisions: of integers, by constants (a high half of a product) or by variables; narrow: accesses of
    global memory of fewer than 16 bytes a lane.
    """

    loops: int = 0
    divisions: int = 0
    divisions_outside: int = 0
    narrow: int = 0
    accesses: int = 0
