"""What one warp executes: its machine code is followed from the first instruction to EXIT.

Integers and predicates are computed as far as they follow from parameters, places in the grid and
constants; what memory or floats give is unknown.  So the trip counts of loops are those of the run, with
whatever the assembler unrolled, and so are counts of instructions, widths of accesses and what waits for
what.  The warp is followed by its first lane.  Of a branch that nobody knows, slow paths (calls, code behind
the end) are not taken, loops end, and what could be skipped is not.

A scoreboard tells when an instruction can be issued: in order, one a cycle, when its operands are there.
Source of the latencies: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture" (2024).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeVar

from polyfuse.ir.warp_work import HotLoops, WarpWork
from polyfuse.runtime.cuda.integer_ops import Value, compute
from polyfuse.runtime.cuda.sass import Function, Instruction

# --- what executes an instruction, and when its result is there --------------------------------------------

FMA = ("FFMA", "FMUL", "FADD", "FFMA32I", "FADD32I", "FMUL32I", "HFMA2", "HADD2", "HMUL2", "FSWZADD")
INTEGER_FMA = ("IMAD", "IDP", "IMUL")  # on half of the lanes of the fma pipe
MUFU = ("MUFU", "I2F", "F2I", "F2F", "FRND", "POPC", "FLO", "BREV", "I2I", "FCHK")
FP64 = ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX")
GLOBAL = ("LDG", "STG", "LD", "ST", "ATOM", "ATOMG", "RED", "REDG")
SHARED = ("LDS", "STS", "ATOMS", "LDSM")
LOCAL = ("LDL", "STL")
LSU = (*GLOBAL, *SHARED, *LOCAL, "SHFL", "LDC", "S2R", "REDUX", "MATCH")
CONTROL = (
    "BRA", "BRX", "EXIT", "CALL", "RET", "BSSY", "BSYNC", "BREAK", "BAR", "WARPSYNC", "NOP", "YIELD",
    "MEMBAR", "ERRBAR", "CGAERRBAR", "CCTL", "VOTE", "VOTEU", "ENDCOLLECTIVE", "NANOSLEEP", "DEPBAR",
    "ACQBULK", "UCGABAR_ARV", "UCGABAR_WAIT",
)  # fmt: skip

MEMORY_CYCLES = 1000.0
CACHED_CYCLES = 270.0
LATENCY = {"fma": 4.0, "alu": 5.0, "mufu": 20.0, "fp64": 16.0, "control": 1.0, "lsu": 24.0}
LATENCIES = {"LDS": 29.0, "LDSM": 33.0, "SHFL": 24.0, "LDC": 30.0, "S2R": 25.0, "BAR": 25.0, "MEMBAR": 100.0}
MOST_STEPS = 200_000
SAMPLED = 3
# A warp finds in a cache what it read so few bytes of its own before.
NEAR = 32 * 1024
WARP = 32


@cache
def pipe_of(name: str) -> str:
    """What executes instructions of this name."""
    for pipe, names in (("fma", (*FMA, *INTEGER_FMA)), ("mufu", MUFU), ("fp64", FP64), ("lsu", LSU)):
        if name in names:
            return pipe
    return "control" if name in CONTROL else "alu"


@cache
def slots(name: str) -> float:
    """Of its pipe: products of integers have half of the lanes."""
    return 2.0 if name in INTEGER_FMA else 1.0


# --- a launch ----------------------------------------------------------------------------------------------


# From sm_100 on parameters begin here in the constant bank, and the dims of the launch here.
_NEWER, _DIMS = 0x380, 0x360


@dataclass(frozen=True, slots=True)
class TracedLaunch:
    """How a kernel is launched: blocks and threads along x, y and z; the bytes of its parameters, which lie
    at `base` of the constant bank. Addresses among them are numbers like others."""

    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]
    parameters: bytes
    base: int = 0x210

    def constant(self, offset: int) -> Value:
        """The 32-bit word of bank 0 at an offset."""
        dims = (*self.threads, 0, *self.blocks) if self.base >= _NEWER else (*self.threads, *self.blocks)
        word = (offset - _DIMS if self.base >= _NEWER else offset) // 4
        if 0 <= word < len(dims):
            return dims[word]
        at = offset - self.base
        if 0 <= at <= len(self.parameters) - 4:
            return int(struct.unpack_from("<I", self.parameters, at)[0])
        return None

    @property
    def warps(self) -> int:
        x, y, z = self.threads
        return -(-x * y * z // WARP)


def work_of(function: Function, launch: TracedLaunch) -> WarpWork:
    """What a warp does, the mean over some warps of two blocks: blocks in the second half of a grid may have
    nothing to do. Where neither has, the first block is followed as well."""
    count, (x, y, z) = launch.warps, launch.blocks
    warps = sorted({k * (count - 1) // max(1, min(SAMPLED, count) - 1) for k in range(min(SAMPLED, count))})
    decoded = decode(function)

    def followed(blocks: Iterable[int]) -> list[_Trace]:
        made = [_Trace(function, launch, warp, block, decoded) for block in blocks for warp in warps]
        for t in made:
            t.run()
        return made

    traces = followed(sorted({x * y * z // 4, x * y * z * 3 // 4}))
    if not any(c.loads or c.stores for t in traces for c in t.phases):
        traces += followed([0])
    cut = any(t.cut for t in traces)
    parts = max(len(t.phases) for t in traces)
    phases = tuple(
        _mean([t.phases[k] for t in traces if k < len(t.phases)], len(traces), cut) for k in range(parts)
    )
    return phases[0] if parts == 1 else replace(_whole(phases), phases=phases)


def _mean(counts: Sequence[_Counts], n: int, cut: bool) -> WarpWork:
    """Of what `n` warps do; those that ended early are not among the counts."""

    def mean(what: Callable[[_Counts], float]) -> float:
        return sum(map(what, counts)) / n

    return WarpWork(
        instructions=_summed([c.instructions for c in counts], n),
        loads=_summed([c.loads for c in counts], n),
        stores=_summed([c.stores for c in counts], n),
        again=mean(lambda c: c.again),
        shared=mean(lambda c: c.shared),
        cycles=max(c.cycles for c in counts),
        trips=max(c.trips for c in counts),
        in_flight=mean(lambda c: c.in_flight),
        block_barriers=mean(lambda c: c.block_barriers),
        grid_barriers=max(c.grid_barriers for c in counts),
        cut=cut,
    )


def _whole(phases: Sequence[WarpWork]) -> WarpWork:
    """All phases one after the other."""
    return WarpWork(
        instructions=_summed([p.instructions for p in phases]),
        loads=_summed([p.loads for p in phases]),
        stores=_summed([p.stores for p in phases]),
        again=sum(p.again for p in phases),
        shared=sum(p.shared for p in phases),
        cycles=sum(p.cycles for p in phases),
        trips=sum(p.trips for p in phases),
        in_flight=max(p.in_flight for p in phases),
        block_barriers=sum(p.block_barriers for p in phases),
        grid_barriers=sum(p.grid_barriers for p in phases),
        cut=any(p.cut for p in phases),
    )


Key = TypeVar("Key", str, int)


def _summed(tables: Sequence[Mapping[Key, float]], n: int = 1) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for t in tables:
        for k, v in t.items():
            found[k] = found.get(k, 0.0) + v
    return {k: v / n for k, v in found.items()}


# --- one warp ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Counts:
    """Of one warp, up to a barrier of the grid or its end; the fields are those of `WarpWork`."""

    instructions: dict[str, float] = field(default_factory=dict)
    loads: dict[int, float] = field(default_factory=dict)
    stores: dict[int, float] = field(default_factory=dict)
    again: float = 0.0
    shared: float = 0.0
    cycles: float = 0.0
    trips: float = 0.0
    in_flight: float = 0.0
    block_barriers: float = 0.0
    grid_barriers: float = 0.0


@dataclass(frozen=True, slots=True)
class Decoded:
    """What is asked of an instruction each time that it is executed. `waits`: the registers that it reads,
    and its guard; `places`: what it takes of its pipe; `goes`: it may jump."""

    instruction: Instruction
    written: tuple[str, ...]
    waits: tuple[str, ...]
    pipe: str
    places: float
    latency: float
    goes: bool


def decode(function: Function) -> tuple[Decoded, ...]:
    """All instructions of a kernel."""
    found = []
    for i in function.code:
        (written, read), pipe = registers(i), pipe_of(i.name)
        waits = (*read, i.guard.lstrip("!")) if i.guard else read
        latency = LATENCIES.get(i.name, LATENCY[pipe])
        goes = i.jumps or i.name in ("CALL", "RET")
        found.append(Decoded(i, written, waits, pipe, slots(i.name), latency, goes))
    return tuple(found)


@dataclass(slots=True)
class _Trace:
    function: Function
    launch: TracedLaunch
    warp: int
    block: int
    decoded: tuple[Decoded, ...] = ()
    phases: list[_Counts] = field(default_factory=lambda: [_Counts()])
    values: dict[str, Value] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    from_memory: set[str] = field(default_factory=set)
    seen: dict[tuple[int, int], float] = field(default_factory=dict)
    loaded: float = 0.0
    flying: list[tuple[float, float]] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    now: float = 0.0
    started: float = 0.0
    cut: bool = False
    spins: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        self.spins = spins(self.function)
        self.decoded = self.decoded or decode(self.function)

    def run(self) -> None:
        code, place = self.decoded, 0
        self.cut = True
        for _ in range(MOST_STEPS):
            step = self._step(code[place], place) if 0 <= place < len(code) else None
            if step is None:
                self.cut = False
                break
            place = step
        self.phases[-1].cycles = self.now - self.started

    def _at_grid_barrier(self) -> None:
        """The next phase begins."""
        self.phases[-1].cycles = self.now - self.started
        self.phases[-1].grid_barriers = 1
        self.started = self.now
        self.phases.append(_Counts())

    def _step(self, d: Decoded, place: int) -> int | None:
        """Execute an instruction; the place of the next one, None after EXIT."""
        counts, i = self.phases[-1].instructions, d.instruction
        counts["issue"] = counts.get("issue", 0.0) + 1
        counts[d.pipe] = counts.get(d.pipe, 0.0) + d.places
        guard = self._truth(i.guard) if i.guard else True
        if d.goes:
            return self._jump(i, place, guard)
        if i.name == "EXIT":
            # Where nobody knows, the warp goes on: some lanes have more to do.
            return None if guard is True else place + 1
        if guard is not False:
            self._issue(d, guard)
        return place + 1

    # --- where it goes ------------------------------------------------------------------------------------

    def _jump(self, i: Instruction, place: int, guard: bool | None) -> int:
        self.now += 1
        if i.name == "RET":
            return self.calls.pop() if self.calls else place + 1
        if "DIV" in i.modifiers or i.target is None:
            return place + 1
        if i.name == "CALL":
            if guard is True:
                self.calls.append(place + 1)
                return i.target
            return place + 1
        taken = guard
        for p in i.operands[:-1]:  # BRA P1, `(label)
            also = self._truth(p)
            taken = False if False in (taken, also) else None if None in (taken, also) else True
        if taken is None:
            taken = self._guessed(i.target, place)
        if taken and any(place < first and last < i.target for first, last in self.spins):
            self._at_grid_barrier()  # one warp waits for all, behind a barrier of the block
        return i.target if taken else place + 1

    def _guessed(self, target: int, place: int) -> bool:
        """Is a jump taken of which nobody knows whether it is?"""
        code = self.function.code
        if target <= place:
            if (target, place) in self.spins:
                self._at_grid_barrier()
            return False
        between = code[place + 1 : target]
        return any(j.name == "CALL" for j in between) and not any(j.name == "EXIT" for j in between)

    # --- values -------------------------------------------------------------------------------------------

    def _truth(self, predicate: str) -> bool | None:
        """Of a predicate as it is printed, with `!` before it."""
        if predicate in ("", "PT", "UPT"):
            return True
        if predicate in ("!PT", "!UPT"):
            return False
        value = self.values.get(predicate.lstrip("!"))
        return None if value is None else bool(value) != predicate.startswith("!")

    def value(self, operand: str) -> Value:
        """Of a source operand."""
        text = operand.replace(".reuse", "")
        if text in ("RZ", "URZ", "SRZ"):
            return 0
        if text.lstrip("!") in ("PT", "UPT") or text.lstrip("!").startswith(("P", "UP")):
            truth = self._truth(text)
            return None if truth is None else int(truth)
        number = _immediate(text)
        if number is not None:
            return number
        negative, inverted = text.startswith("-"), text.startswith("~")
        text = text.lstrip("-~")
        if text.startswith("|"):
            inner = self.value(text.strip("|"))
            found = inner if inner is None or inner < 1 << 31 else -inner & 0xFFFFFFFF
        elif text.startswith("c["):
            found = self._constant(text)
        else:
            found = self.values.get(text.partition(".")[0])
        if found is None:
            return None
        return (-found if negative else ~found if inverted else found) & 0xFFFFFFFF

    def _constant(self, text: str) -> Value:
        """Of a word of a constant bank, whose place may be a sum of registers and a number."""
        bank, _, rest = text[2:].partition("][")
        parts = [self.value(part) for part in rest.rstrip("]").split("+")]
        if bank != "0x0" or None in parts:
            return None
        return self.launch.constant(sum(part for part in parts if part is not None))

    def special(self, name: str) -> Value:
        """Of a special register."""
        x, y, _ = self.launch.threads
        bx, by, _ = self.launch.blocks
        thread, block = self.warp * WARP, self.block
        known = {
            "SR_TID.X": thread % x, "SR_TID.Y": thread // x % y, "SR_TID.Z": thread // (x * y),
            "SR_CTAID.X": block % bx, "SR_CTAID.Y": block // bx % by, "SR_CTAID.Z": block // (bx * by),
            "SR_LANEID": 0, "SR_CgaCtaId": 0, "SRZ": 0,
        }  # fmt: skip
        return known.get(name)

    # --- time ---------------------------------------------------------------------------------------------

    def _issue(self, d: Decoded, guard: bool | None) -> None:
        """Wait for what it reads; say when what it writes is there."""
        i, ready, start, latency = d.instruction, self.ready, self.now + 1, d.latency
        waited = False
        for r in d.waits:
            there = ready.get(r, 0.0)
            if there > self.now + 1:
                waited = waited or r in self.from_memory
                start = max(start, there)
        if waited:
            self.phases[-1].trips += 1
            self.from_memory.clear()
        self.now = start
        if i.name in GLOBAL:
            latency = self._global(i, d.written)
        elif i.name in SHARED or i.name in LOCAL:
            self.phases[-1].shared += i.width * WARP
        elif i.name == "BAR":
            self.phases[-1].block_barriers += 1
            self.now += latency
        elif i.name == "MEMBAR":
            self.now += latency
        if d.written:
            self.values.update(compute(i, d.written, self, known=guard is True))
            for r in d.written:
                ready[r] = start + latency

    def _global(self, i: Instruction, written: Sequence[str]) -> float:
        """Count an access; how long a load takes."""
        address = self._address(i)
        counts, stored = self.phases[-1], i.name in ("STG", "ST", "RED", "REDG")
        table = counts.stores if stored else counts.loads
        table[i.width] = table.get(i.width, 0.0) + i.width * WARP
        if stored:
            return 1.0
        self.loaded += i.width * WARP
        if address is not None:
            before = self.seen.get((address, i.width))
            self.seen[address, i.width] = self.loaded
            if before is not None and self.loaded - before <= NEAR:
                counts.again += i.width * WARP
                return CACHED_CYCLES
        self.from_memory.update(written)
        self.flying = [(end, n) for end, n in self.flying if end > self.now]
        self.flying.append((self.now + MEMORY_CYCLES, i.width * WARP))
        counts.in_flight = max(counts.in_flight, sum(n for _, n in self.flying))
        return MEMORY_CYCLES

    def _address(self, i: Instruction) -> int | None:
        """Of the first lane, where it is known."""
        text = next((o for o in i.operands if "[" in o and "R" in o.rpartition("[")[2]), "")
        base, _, offset = text.rpartition("[")[2].rstrip("]").partition("+")
        name = base.partition(".")[0]
        low, high = self.values.get(name), self.values.get(_next(name))
        if low is None or high is None:
            return None
        return (high << 32 | low) + (int(offset, 16) if offset.startswith(("0x", "-0x")) else 0)


@cache
def _immediate(text: str) -> Value:
    try:
        if text.startswith(("0x", "-0x")):
            return int(text, 16) & 0xFFFFFFFF
    except ValueError:
        return None
    return None


def _next(register: str) -> str:
    """The register that has the high half."""
    head = register.rstrip("0123456789")
    digits = register[len(head) :]
    return f"{head}{int(digits) + 1}" if digits else register


def spins(function: Function) -> tuple[tuple[int, int], ...]:
    """The loops in which a warp waits for other blocks: their first and last places."""
    code = function.code
    return tuple(
        (i.target, k)
        for k, i in enumerate(code)
        if i.jumps and i.target is not None and i.target < k and _waits(code[i.target : k])
    )


def _waits(code: Sequence[Instruction]) -> bool:
    """Does a loop load what other blocks store, and nothing else?"""
    accesses = [i for i in code if i.name in GLOBAL]
    return bool(accesses) and all("STRONG" in i.modifiers for i in accesses)


# --- registers ---------------------------------------------------------------------------------------------

_NO_RESULT = ("STG", "ST", "STS", "STL", "RED", "REDG", "BAR", "MEMBAR", "BSSY", "BSYNC", "NOP", "WARPSYNC")


@cache
def registers(i: Instruction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of registers and predicates that an instruction writes, and of those that it reads."""
    plain = [o.replace(".reuse", "") for o in i.operands]
    results = 0 if i.name in _NO_RESULT else 1
    while results and results < len(plain) and _is_predicate(plain[results]) and _writes_more(i, results):
        results += 1
    if results and _is_predicate(plain[0] if plain else "") and i.name in ("LOP3", "SHFL", "IADD3", "LEA"):
        results = 2  # the predicate comes first
    written = [r for o in plain[:results] for r in _span(o, i.width if i.name in LSU else _bytes(i))]
    read = [r for o in plain[results:] for r in _read(i, o)]
    return tuple(written), tuple(read)


def _is_predicate(operand: str) -> bool:
    return operand.lstrip("!").startswith(("P", "UP")) and not operand.startswith("!")


def _writes_more(i: Instruction, at: int) -> bool:
    if i.name in ("ISETP", "FSETP", "UISETP", "DSETP", "PLOP3", "UPLOP3", "HSETP2"):
        return at < 2
    return i.name in ("IADD3", "UIADD3", "LEA", "ULEA") and "X" not in i.modifiers


def _bytes(i: Instruction) -> int:
    wide = "WIDE" in i.modifiers or i.name in ("DADD", "DMUL", "DFMA", "CS2R")
    return 8 if wide or "64" in i.modifiers else 4


def _read(i: Instruction, operand: str) -> list[str]:
    """Registers of a source operand: those of an address are a pair, of what is stored as many as it has."""
    if "[" in operand:
        inside = operand.rpartition("[")[2].rstrip("]")
        bytes_of = 8 if i.name in GLOBAL else 4
        return [r for k, part in enumerate(inside.split("+")) for r in _span(part, 4 if k else bytes_of)]
    wide = i.width if i.name in ("STG", "STS", "ST", "STL") else 4
    if i.name in ("DADD", "DMUL", "DFMA", "DSETP") or ("WIDE" in i.modifiers and operand == i.operands[-1]):
        wide = 8
    return _span(operand, wide)


def _span(operand: str, nbytes: int) -> list[str]:
    text = operand.lstrip("-~!|").rstrip("|").partition(".")[0]
    if text in ("RZ", "URZ", "PT", "UPT") or not text.startswith(("R", "UR", "P", "UP")):
        return []
    head = text.rstrip("0123456789")
    digits = text[len(head) :]
    if not digits:
        return []
    count = 1 if "P" in head else max(1, nbytes // 4)
    return [f"{head}{int(digits) + k}" for k in range(count)]


# --- hot loops ---------------------------------------------------------------------------------------------

_MAGIC = 1 << 20  # a multiplier that no stride of an array has


def hot_loops(function: Function) -> HotLoops:
    """What stands in the innermost loops that touch global memory, or in all code where there is no such
    loop."""
    code = function.code
    ends = next((k for k, i in enumerate(code) if i.name == "EXIT" and not i.guard), len(code) - 1)
    hot = [x for x in function.loops() if x.inner and x.last <= ends and _streams(code[x.first : x.last + 1])]
    inside = [i for x in hot for i in code[x.first : x.last + 1]]
    access = [i for i in (inside or code[: ends + 1]) if i.name in ("LDG", "STG")]
    return HotLoops(
        len(hot),
        _divisions(inside),
        _divisions(code[: ends + 1]) - _divisions(inside),
        sum(i.width < 16 for i in access),
        len(access),
    )


def _streams(code: Sequence[Instruction]) -> bool:
    """Does a loop touch global memory, but not to wait for others?"""
    return any(i.name in ("LDG", "STG") and "STRONG" not in i.modifiers for i in code)


def _divisions(code: Sequence[Instruction]) -> int:
    """Of integers: by a constant the high half of a product, by a variable a float reciprocal."""
    return sum(_by_constant(i) or (i.name == "F2I" and "TRUNC" in i.modifiers) for i in code)


def _by_constant(i: Instruction) -> bool:
    high = i.name in ("IMAD", "UIMAD") and ("HI" in i.modifiers or "WIDE" in i.modifiers)
    return high and any((_immediate(o) or 0) >= _MAGIC for o in i.operands[1:3])
