"""What an emulated run found, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyfuse.diagnostics import Diagnostic, EmulationError
from polyfuse.ir.launch_plan import GridLaunch
from polyfuse.runtime.arguments import Array
from polyfuse.runtime.emulator.engine import NAME, FindingRecord


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `array` and `index` (of an element) where it concerns memory."""

    code: str
    launch: int
    function: str
    message: str
    array: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True)
class Sectors:
    """Sectors of 32 bytes that warps loaded from a buffer, and stored to it, in one launch.

    One access of a warp touches as many as its lanes' elements lie in: 4 for 32 neighbours of 4 bytes, 32 for
    lanes that are far apart, 1 for a value that all lanes read.  An atomic update is a store.  `fetched`:
    those of the loads that the block had not loaded before, as if its cache held all that it loads.
    """

    launch: int
    function: str
    buffer: str
    loads: int
    stores: int
    fetched: int = 0


@dataclass(frozen=True, slots=True)
class EmulationReport:
    """Of one run. `total` counts findings, of which `findings` keeps a few of each kind and array.

    `loads` and `stores` (where counted): buffer -> how often each element was, as an array of the launches
    by the buffer's shape.  `sectors` (where counted): one for each launch and buffer that it touches.
    """

    findings: tuple[Finding, ...] = ()
    total: int = 0
    launches: int = 0
    blocks: int = 0
    seconds: float = 0.0
    loads: Mapping[str, Array] = field(default_factory=dict)
    stores: Mapping[str, Array] = field(default_factory=dict)
    sectors: tuple[Sectors, ...] = ()

    @property
    def transactions(self) -> int:
        """All sectors that were loaded and stored."""
        return sum(s.loads + s.stores for s in self.sectors)

    def raise_if_wrong(self) -> None:
        """Raises EmulationError (PF730 to PF739) with all that was found."""
        if self.findings:
            raise EmulationError([Diagnostic(f.code, f.message, hint=_HINTS[f.code]) for f in self.findings])


_HINTS = {
    "PF730": "a barrier is missing between the two, or they should be the same thread",
    "PF731": "an initialisation is missing, or the index is not the one that was stored",
    "PF732": "the guard of the access, or the extent of the array, is wrong",
    "PF733": "shorter vectors, another layout, or an alignment that the plan demands",
    "PF734": "a barrier and a shuffle need all their threads: move them out of conditions on threads",
    "PF735": "launch fewer blocks (each with more work), or cut the kernel in two",
    "PF736": "a loop does not end: its step may be 0, or it waits for what nobody does",
    "PF738": "the private arrays of a thread are too large",
    "PF739": "the plan must state the shared memory that the kernel declares",
}
_CODES = ("", "PF730", "PF731", "PF732", "PF733", "PF734", "PF735", "PF736", "PF738")
_DOES = ("", "reads", "writes", "updates (atomic)")
_DID = ("", "read", "written", "updated (atomic)")
_WAITS = ("runs", "waits at a block barrier", "waits at a shuffle", "waits at a grid barrier", "has ended")
_NO_THREAD, _NO_BLOCK = -1, -2


def finding(record: FindingRecord, number: int, launch: GridLaunch) -> Finding:
    """The words for a record of the engine."""
    code = _CODES[record.problem]
    array = record.array.decode()
    message = f"{launch.function}: {_MESSAGES[code](record, array, launch)}"
    return Finding(code, number, launch.function, message, array, int(record.index) if array else 0)


def too_much_shared(number: int, launch: GridLaunch, declared: int) -> Finding:
    message = f"a block declares {declared} bytes of shared memory, the plan says {launch.shared_bytes}"
    return Finding("PF739", number, launch.function, f"{launch.function}: {message}")


def _thread(block: int, thread: int, launch: GridLaunch) -> str:
    x, y = launch.threads
    place = f"({thread % x}, {thread // x})" if y > 1 else str(thread)
    return f"thread {place} of block {block}"


def _who(r: FindingRecord, launch: GridLaunch) -> str:
    return _thread(r.block, r.thread, launch)


def _race(r: FindingRecord, array: str, launch: GridLaunch) -> str:
    other = _thread(r.other_block, r.other_thread, launch)
    between = "grid barrier" if r.block != r.other_block else "barrier"
    return (
        f"race: {_who(r, launch)} {_DOES[r.access]} {array}[{r.index}], which {other} has"
        f" {_DID[r.other_access]}, with no {between} in between"
    )


def _unwritten(r: FindingRecord, array: str, launch: GridLaunch) -> str:
    return f"{_who(r, launch)} {_DOES[r.access]} {array}[{r.index}], which nothing has written"


def _bounds(r: FindingRecord, array: str, launch: GridLaunch) -> str:
    last = r.low + r.count - 1
    return f"{_who(r, launch)} {_DOES[r.access]} {array}[{r.index}], out of the range {r.low}..{last}"


def _misaligned(r: FindingRecord, array: str, launch: GridLaunch) -> str:
    return (
        f"{_who(r, launch)} {_DOES[r.access]} a vector of {r.count} bytes at {array}[{r.index}];"
        f" element 0 lies at a multiple of {r.low} bytes, as far as the plan says"
    )


def _divergence(r: FindingRecord, _: str, launch: GridLaunch) -> str:
    if r.other_thread == _NO_BLOCK:
        if r.low:
            return f"blocks wait at different grid barriers, in lines {r.line} and {r.low} of {NAME}"
        return (
            f"{r.index} of {r.count} blocks wait at the grid barrier in line {r.line} of {NAME},"
            " the others have ended"
        )
    where = f"{_who(r, launch)} {_WAITS[r.access]} in line {r.line} of {NAME}"
    if r.access == _WAITS.index("waits at a shuffle"):
        where += f" for the lanes {r.index:#010x}"
    if r.other_thread == _NO_THREAD:
        return f"{where}, which names a lane that does not exist or that it can never meet"
    if r.other_thread == r.thread:
        return f"{where}, which leaves out the lane itself or the one it reads"
    other = f"{_thread(r.other_block, r.other_thread, launch)} {_WAITS[r.other_access]}"
    if r.low:
        other += f" in line {r.low}"
    counts = [f"{n} {w}" for n, w in zip(r.counts, _COUNTED, strict=False) if n]
    return f"{where}, {other} (of {r.count} threads: {', '.join(counts)})"


_COUNTED = ("running", "at a block barrier", "at a shuffle", "at a grid barrier", "ended")


def _not_resident(r: FindingRecord, _: str, launch: GridLaunch) -> str:
    if r.count == 0:
        return f"a grid barrier (line {r.line} of {NAME}) in a launch that is not cooperative"
    return (
        f"the grid barrier in line {r.line} of {NAME} waits for ever: {r.index} of {r.count} blocks"
        " are resident, and the others cannot start before these end"
    )


def _time_out(r: FindingRecord, _: str, launch: GridLaunch) -> str:
    return f"{_who(r, launch)} still ran when the time was up"


def _stack(r: FindingRecord, _: str, launch: GridLaunch) -> str:
    return f"{_who(r, launch)} needs more stack than the emulator gave it"


_MESSAGES = {
    "PF730": _race,
    "PF731": _unwritten,
    "PF732": _bounds,
    "PF733": _misaligned,
    "PF734": _divergence,
    "PF735": _not_resident,
    "PF736": _time_out,
    "PF738": _stack,
}
