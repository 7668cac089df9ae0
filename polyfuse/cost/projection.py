"""The time of one variant of CPU code, projected from what single resources of a machine can do.

    phase    = max(memory, core) + SHARED * min(memory, core)
    memory   = max over levels (bytes from it or from beyond / bandwidth); a plain store to memory moves twice
    core     = max(sum over kinds (elements * seconds of one), chains of additions * latency)
    rows     = rows that data finds beyond L2 * wait for the beginning of one
    kernel   = step + (sum of its phases + rows) / share of the threads that have work + claims of chunks

`cost.speed_of_light` says what a good kernel of this schedule would take, for decisions between schedules;
this model also sees what code generation varies (`ir.cpu_core`): prefetched rows let the memory of one
phase overlap the core of another, so that the kernel takes the longer of both sums, if the last phase reads
them too; non-temporal stores move once; more accumulators shorten chains and lengthen the totals; chunks
balance threads and cost a claim each.  Contractions take the cycles of their tiles (`cost.cpu_device`).
Strips, partial results and what workers keep are in the kernels.  Lines that loops ask for shortly before
(`Buffer.soon`) are taken to come as the others do.

Source: PAI's PROJ (resources -> throughput and latency, the slower of both), for a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, exp, prod

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.cpu_time import ACCESS, COMBINED, STRIDED
from polyfuse.cost.extents import Touched, dims_of, instances, union
from polyfuse.cost.figures import by_level
from polyfuse.cost.nests import OUTSIDE, Nest, data_rows, nests
from polyfuse.cost.operations import counts, cpu_weight
from polyfuse.cost.traffic import Footprints, Keeping, distances, footprints, growing_traffic
from polyfuse.ir.cpu_core import LANE_VECTORS, CpuKnobs
from polyfuse.ir.index_expr import as_index, evaluate
from polyfuse.ir.kernel import PARALLEL_WORK, Kernel, KernelGraph, work
from polyfuse.ir.schedule_tree import Coordinate

# Of the shorter one of memory and core, what the longer one does not hide.
SHARED = 0.2
# Of the last cache, what is there for one program's data.
L3_PART = 0.75
CHUNKS = 8
CLAIM_S = 60e-9
# Until the beginning of a row is there that data finds; others come at the same time.
ROW_S = 5e-9


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds of one single precision element in one thread, in vectors, with all data in L1, by what is
    done: "plain" arithmetic, a "load", a "store", or a function by its name."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    measured: bool = False

    def on(self, machine: CpuDevice) -> Rates:
        """The same where plain arithmetic takes no longer than a fused multiply-add."""
        plain = min(self.seconds["plain"], machine.threads / machine.operations)
        return replace(self, seconds={**self.seconds, "plain": plain})

    def of(self, kind: str) -> float:
        found = self.seconds.get(kind)
        return found if found is not None else self.seconds["plain"] * cpu_weight(kind)


def table_rates(machine: CpuDevice) -> Rates:
    """What the cost model assumes, for a machine on which functions were not measured."""
    plain = machine.threads / machine.operations
    return Rates({"plain": plain, "load": ACCESS * plain, "store": ACCESS * plain})


@dataclass(frozen=True, slots=True)
class Projected:
    """Seconds of one kernel: of memory and core alone, of both together, on all threads that have work."""

    name: str
    memory: float
    core: float
    busy: float
    overhead: float
    threads: int

    @property
    def seconds(self) -> float:
        return self.busy + self.overhead

    @property
    def bound(self) -> str:
        if self.overhead > self.busy:
            return "overhead"
        return "memory" if self.memory > self.core else "core"


@dataclass(frozen=True, slots=True)
class Projection:
    """Of all kernels of an operator, with the call."""

    kernels: tuple[Projected, ...]
    call_s: float

    @property
    def seconds(self) -> float:
        return self.call_s + sum(k.seconds for k in self.kernels)


def project(
    kernels: KernelGraph, machine: CpuDevice, knobs: CpuKnobs | None = None, rates: Rates | None = None
) -> Projection:
    """The time of kernels whose sizes are known."""
    return project_steps(steps_of(kernels), machine, knobs, rates)


def project_steps(
    steps: Sequence[Step], machine: CpuDevice, knobs: CpuKnobs | None = None, rates: Rates | None = None
) -> Projection:
    """The same of steps that are there."""
    own, known = knobs or CpuKnobs(), (rates or table_rates(machine)).on(machine)
    made = []
    for s in steps:
        each = [_Kernel(p, machine, own, known).projected() for p in s.parts]
        made.append(each[0] if len(each) == 1 else _side_by_side(s.kernel.name, each))
    return Projection(tuple(made), machine.call_s)


@dataclass(frozen=True)
class Part:
    """A kernel with its nests, and the bytes touched since each of its tensors was touched last."""

    kernel: Kernel
    nests: tuple[Nest, ...]
    since: Mapping[str, float]


@dataclass(frozen=True)
class Step:
    """A launch: a kernel, which is its only part, or several side by side."""

    kernel: Kernel
    parts: tuple[Part, ...]


def steps_of(kernels: KernelGraph) -> tuple[Step, ...]:
    """The launches of kernels, in order."""
    steps = [p for k in kernels.kernels for p in k.parts or (k,)]
    parts = [p for s in steps for p in s.packed or (s,)]
    found = [nests(p) for p in parts]
    rows = zip(parts, found, since_touched(parts, found), strict=True)
    made = iter([Part(*row) for row in rows])
    return tuple(Step(s, tuple(next(made) for _ in s.packed or (s,))) for s in steps)


def _side_by_side(name: str, parts: Sequence[Projected]) -> Projected:
    """A pack: all work over all threads, one step."""
    most = max(p.threads for p in parts)
    return Projected(
        name,
        sum(p.memory for p in parts),
        sum(p.core for p in parts),
        sum(p.busy * p.threads for p in parts) / most,
        max(p.overhead for p in parts),
        most,
    )


def since_touched(
    kernels: Sequence[Kernel], known: Sequence[tuple[Nest, ...]] | None = None
) -> list[dict[str, float]]:
    """As `traffic.distances`, with what is written in place counted once, and results that pass the caches
    not at all. `known`: the nests of the kernels."""
    alias = {t.name: t.alias or t.name for k in kernels for t in k.graph.tensors}
    merged: list[Footprints] = []
    for own in known or [nests(k) for k in kernels]:
        mine: dict[str, tuple[int, tuple[Touched, ...]]] = {}
        for name, (item, boxes) in footprints(own).items():
            memory = alias[name]
            mine[memory] = item, (*mine.get(memory, (item, ()))[1], *boxes)
        merged.append(mine)
    rows = distances(merged)
    past = {n for k in kernels for n in _streamed(k)}
    saved = sum(item * union(boxes) for k in merged for n, (item, boxes) in k.items() if n in past)
    return [{n: max(0.0, row[m] - saved) for n, m in alias.items() if m in row} for row in rows]


def _streamed(k: Kernel) -> set[str]:
    """Results that a kernel streams."""
    return {b.tensor for b in k.buffers if b.past}


def kept(nbytes: float, capacity: float) -> float:
    """Of bytes that are swept again and again, the part that is still in a cache of that capacity when its
    turn comes, where the cache replaces at random: h = exp((h - 1) nbytes / capacity)."""
    if nbytes <= capacity:
        return 1.0
    h = 0.0
    for _ in range(60):
        h = exp((h - 1.0) * nbytes / capacity)
    return h


class _Kernel:
    """One kernel, phase by phase."""

    def __init__(self, part: Part, machine: CpuDevice, knobs: CpuKnobs, rates: Rates) -> None:
        self.kernel, self.nests, self.since = part.kernel, part.nests, part.since
        self.machine, self.knobs, self.rates = machine, knobs, rates

    def projected(self) -> Projected:
        m, blocks = self.machine, max(1.0, max((n.block_count for n in self.nests), default=1.0))
        most = min(m.threads, self.knobs.threads or m.threads)
        threads = most if blocks > 1 and self._work() >= PARALLEL_WORK else 1
        chunks = min(blocks, threads * (self.knobs.chunks or CHUNKS)) if threads > 1 else 1
        # Threads claim chunks; in the last round some of them have none.
        idle = ceil(chunks / threads) * threads / chunks
        memory = [x * m.threads / threads * idle for x in self._memory()]
        core = [self._core(n) / threads * idle for n in self.nests]
        return Projected(
            self.kernel.name,
            sum(memory),
            sum(core),
            self._together(memory, core) + self._found_rows() / threads * idle,
            (m.step_s if threads > 1 else 0.0) + CLAIM_S * chunks / threads,
            threads,
        )

    def _work(self) -> int:
        counts = [(s, round(instances(found))) for n in self.nests for s, found in n.timed]
        return evaluate(work((s, as_index(count)) for s, count in counts), {})

    def _found_rows(self) -> float:
        """Seconds that one thread waits for the beginnings of rows that data finds: the hardware does not
        foresee those that come from beyond L2."""
        far = self.machine.levels[1].capacity * self.machine.threads
        rows = 0.0
        for n in self.nests:
            for s, found in n.timed:
                lanes = dims_of(n.vector.of(s.name)) if n.vector and s.name in dict(n.vector.exprs) else set()
                for tensor, dims in data_rows(s):
                    if self.since.get(tensor, 0.0) > far:
                        rows += prod(found[d].length for d in dims - lanes if d in found)
        return rows * ROW_S

    @cached_property
    def _comes_ahead(self) -> bool:
        """Does the next row come while phases compute? Not where the last one reads nothing of it: there the
        requests wait for memory in its place."""
        ahead = {b.tensor for b in self.kernel.buffers if b.ahead}
        loops = [n for n in self.nests if n.count(Coordinate.VECTOR) > 1]
        return bool(ahead and loops) and ahead <= {a.tensor for a in loops[-1].accesses if not a.written}

    def _together(self, memory: Sequence[float], core: Sequence[float]) -> float:
        """Phases one after the other; prefetched rows come while other phases compute."""
        if self._comes_ahead:
            return _overlapped(sum(memory), sum(core))
        return sum(_overlapped(a, b) for a, b in zip(memory, core, strict=True))

    def _memory(self) -> list[float]:
        """Seconds of each nest's traffic, with all threads at work."""
        m = self.machine
        keeping = Keeping(lambda b: m.level(b / m.threads), m.level, m.level, True)
        rates = [x.bandwidth for x in m.levels]
        before: tuple[float, ...] = ()
        found = []
        sums = growing_traffic(self.nests, self.since, keeping)
        for nest, all_so_far in zip(self.nests, sums, strict=True):
            now = all_so_far.by_level
            bytes_here = [b - (before[i] if i < len(before) else 0.0) for i, b in enumerate(now)]
            padded = [*bytes_here, *[0.0] * (len(rates) - len(bytes_here))]
            near = padded[-1] * self._still_near(nest)
            padded[-2], padded[-1] = padded[-2] + near, padded[-1] - near
            padded[-1] += self._more_for_stores(nest)
            found.append(max(by_level(padded, rates)))
            before = now
        return found

    def _hit(self, tensor: str) -> float:
        """Of a first touch, what the last cache still has of it."""
        return kept(self.since[tensor], L3_PART * self.machine.levels[-2].capacity)

    def _still_near(self, nest: Nest) -> float:
        """The same, of all that would come from memory."""
        far = [a for a in nest.accesses if a.scope in OUTSIDE and self._hit(a.tensor) < 1]
        total = sum(a.nbytes for a in far)
        return sum(a.nbytes * self._hit(a.tensor) for a in far) / total if total else 0.0

    def _more_for_stores(self, nest: Nest) -> float:
        """Bytes of memory that stores move besides: plain ones read first what lies there, non-temporal
        ones also write what would have stayed in a cache."""
        past = _streamed(self.kernel)
        outside = [a for a in nest.accesses if a.written and a.scope in OUTSIDE]
        plain = sum(a.nbytes * (1 - self._hit(a.tensor)) for a in outside if a.tensor not in past)
        return plain + sum(a.nbytes * self._hit(a.tensor) for a in outside if a.tensor in past)

    def _core(self, n: Nest) -> float:
        """Seconds of one thread."""
        rates, lanes = self.rates, self.machine.lanes
        if n.tiles is not None:
            return self.machine.tiles_s(n.tiles)
        stores = sum(instances(found) for s, found in n.timed if s.reduction is None)
        one = sum(rates.of(kind) * times for kind, times in counts(n.timed).items())
        one += max(0.0, n.loads - stores) * rates.of("load") + min(stores, n.loads) * rates.of("store")
        strided = n.strided() * STRIDED * rates.of("plain")
        if not any(x.coordinate is Coordinate.VECTOR for x in n.loops):
            return one * lanes + strided
        trip = max(1.0, n.count(Coordinate.VECTOR))
        full = ceil(trip / lanes) * lanes / trip
        sums = n.lane_sums
        return max(one * full, sums * self._chain(trip)) + sums * self._combined(trip) + strided

    def _accumulators(self, trip: float) -> float:
        """Lanes of one sum, as `codegen.cpu.vectorize.reductions` has them."""
        lanes = self.knobs.lane_bytes / 4 if self.knobs.lane_bytes else LANE_VECTORS * self.machine.lanes
        while lanes > 32 and lanes * 4 > trip:
            lanes /= 2
        return lanes

    def _chain(self, trip: float) -> float:
        """Seconds of the additions of one sum that wait for each other."""
        return trip / self._accumulators(trip) * self.machine.core.latency * self.machine.cycle_s

    def _combined(self, trip: float) -> float:
        """Seconds to set up one sum's lanes, and to add them up."""
        return (
            COMBINED * self._accumulators(trip) / (LANE_VECTORS * self.machine.lanes) * self.rates.of("plain")
        )


def _overlapped(memory: float, core: float) -> float:
    return max(memory, core) + SHARED * min(memory, core)
