"""What GPU kernels take: registers, spills, memory, and how many blocks fit a multiprocessor.

The compiler says the first, without a GPU; the rest follows from the table of devices (`cost.device`).
Accesses of global memory are counted in the PTX as instructions, each once, whatever loops they stand in.
Where nvdisasm prints the machine code, a second table has what the projected model makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyfuse.cost.device import Device, Occupancy, occupancy
from polyfuse.cost.gpu_projection import RATES
from polyfuse.driver.machine_work import LaunchProjection
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.launch_plan import GridLaunch, GridPlan
from polyfuse.runtime.cuda.compiler import Cubin
from polyfuse.runtime.cuda.cubin import Resources

WIDE = 16
_FUNCTION = re.compile(r"\.(entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")
_CALL = re.compile(r"\bcall(?:\.uni)?\s+(?:\([^)]*\)\s*,\s*)?([\w$]+)")
_ACCESS = re.compile(r"^\s*(?:@!?%\w+\s+)?(ld|st)\.global((?:\.\w+)*)\s", re.MULTILINE)
_PARTS = re.compile(r"\.v([248])\b")
_BITS = re.compile(r"\.[a-z]+(8|16|32|64|128)$")


@dataclass(frozen=True, slots=True)
class Accesses:
    """Instructions that access global memory, and how many of them move 16 bytes a thread."""

    all: int = 0
    wide: int = 0

    def __str__(self) -> str:
        return f"{self.wide} of {self.all}"


@dataclass(frozen=True, slots=True)
class KernelResources:
    """One GPU function: its launch, what it takes, and how many blocks are resident (None: unknown)."""

    launch: GridLaunch
    blocks: int
    taken: Resources
    occupancy: Occupancy | None
    loads: Accesses
    stores: Accesses

    @property
    def function(self) -> str:
        return self.launch.function

    @property
    def shared(self) -> int | None:
        """Bytes of shared memory of a block, with those that the launch asks for."""
        own = self.taken.shared
        return None if own is None else own + self.launch.dynamic_bytes

    def row(self) -> tuple[str, ...]:
        """The cells of `HEADINGS`."""
        x, y = self.launch.threads
        fits, taken = self.occupancy, self.taken
        resident = ("unknown",) * 3
        if fits is not None:
            resident = f"{fits.fraction:.0%}", f"{fits.blocks_per_sm} blocks", fits.limiter
        spills = taken.spill_stores, taken.spill_loads
        return (
            self.function,
            str(self.blocks),
            f"{x} x {y}",
            told(taken.registers),
            "unknown" if None in spills else f"{spills[0]}/{spills[1]}",
            told(taken.stack),
            told(self.shared),
            *resident,
            str(self.loads),
            str(self.stores),
        )


def told(figure: int | None) -> str:
    """A figure, where there is one."""
    return "unknown" if figure is None else str(figure)


HEADINGS = (
    "kernel", "blocks", "threads", "registers", "spills", "stack", "shared",
    "occupancy", "resident", "limited by", "16-byte loads", "16-byte stores",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResourceTable:
    """All functions of an operator, in launch order, on one device; `print` shows them.

    Registers are those of a thread, bytes: spills (stored/loaded) and stack of a thread, shared memory of
    a block.  Occupancy is the share of a multiprocessor's warps that are resident.  `projected`: what the
    projected model says of each function; nothing where `unprojected` says why.
    """

    device: Device
    compiler: str
    kernels: tuple[KernelResources, ...]
    projected: tuple[LaunchProjection, ...] = ()
    unprojected: str = ""

    def __str__(self) -> str:
        d = self.device
        head = f"{d.name} ({d.arch}, {d.sms} multiprocessors of {d.sm.max_warps} warps), {self.compiler}"
        lines = [head, *_columns([HEADINGS, *(k.row() for k in self.kernels)])]
        if self.projected:
            rows = [PROJECTED, *map(_projected_row, self.projected)]
            lines += ["projected from machine code, in microseconds", *_columns(rows)]
        return "\n".join([*lines, f"no projected time: {self.unprojected}"] if self.unprojected else lines)


# Seconds of memory, of each pipe, of resident warps, of launch and barriers; all together.
PROJECTED = ("kernel", "in flight", "memory", *RATES, "latency", "fixed", "all", "limit")


def _projected_row(p: LaunchProjection) -> tuple[str, ...]:
    t = p.time
    terms = (t.memory_s, *(t.pipes[name] for name in RATES), t.latency_s, t.fixed_s, t.seconds)
    flying = f"{t.in_flight / 1024:.1f} KiB"
    return p.work.launch.function, flying, *(f"{1e6 * s:.1f}" for s in terms), t.limit


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of cells, the first column to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([r[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(r[1:], widths[1:], strict=True))])
        for r in rows
    ]


def resource_table(plan: GridPlan, made: Cubin, device: Device) -> ResourceTable:
    """The table for a plan of known sizes and its compiled source."""
    texts = _entries(made.ptx)
    found = []
    for launch in plan.launches:
        if launch.library is not None:
            continue
        taken = made.resources.get(launch.function, Resources())
        fits = _fits(device, launch, taken)
        ptx = texts.get(launch.function, "")
        found.append(
            KernelResources(
                launch, evaluate(launch.blocks, {}), taken, fits, _accesses(ptx, "ld"), _accesses(ptx, "st")
            )
        )
    return ResourceTable(device, made.compiler, tuple(found))


def _fits(device: Device, launch: GridLaunch, taken: Resources) -> Occupancy | None:
    if taken.registers is None or taken.shared is None:
        return None
    threads = launch.threads[0] * launch.threads[1]
    return occupancy(device, threads, taken.registers, taken.shared + launch.dynamic_bytes)


def _entries(ptx: str) -> dict[str, str]:
    """The text of each kernel in a PTX module, with that of the functions it calls."""
    starts = list(_FUNCTION.finditer(ptx))
    ends = [s.start() for s in starts[1:]] + [len(ptx)]
    texts: dict[str, str] = {}
    for s, end in zip(starts, ends, strict=True):  # a function may be declared first
        texts[s[2]] = texts.get(s[2], "") + ptx[s.start() : end]
    return {s[2]: "".join(texts[n] for n in _called(s[2], texts)) for s in starts if s[1] == "entry"}


def _called(name: str, texts: Mapping[str, str]) -> list[str]:
    """A function, and those that it calls, directly or not."""
    found = [name]
    for n in found:  # grows as it goes
        found += [c for c in dict.fromkeys(_CALL.findall(texts[n])) if c in texts and c not in found]
    return found


def _accesses(ptx: str, what: str) -> Accesses:
    sizes = [_bytes(suffix) for kind, suffix in _ACCESS.findall(ptx) if kind == what]
    return Accesses(len(sizes), sum(n >= WIDE for n in sizes))


def _bytes(suffix: str) -> int:
    """Bytes that an access moves, from its type: ``.nc.v4.f32`` 16, ``.u16`` 2."""
    parts, bits = _PARTS.search(suffix), _BITS.search(suffix)
    return (int(parts[1]) if parts else 1) * (int(bits[1]) if bits else 0) // 8
