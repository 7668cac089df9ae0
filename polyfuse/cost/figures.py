"""What the cost model says of kernels: figures of each, and their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyfuse.cost.device import Occupancy
from polyfuse.cost.operations import Operations


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds of one kernel, by what they are spent on.

    The greatest of the first four counts (`spent`); in one launch of several kernels, that of each.
    """

    memory: float
    cache: float
    operations: float
    latency: float
    overhead: float
    barriers: float
    spent: float

    @property
    def seconds(self) -> float:
        return self.overhead + self.spent + self.barriers

    @property
    def bound(self) -> str:
        """What takes longest."""
        parts = {
            "memory": self.memory, "cache": self.cache, "operations": self.operations,
            "latency": self.latency, "overhead": self.overhead + self.barriers,
        }  # fmt: skip
        return max(parts, key=lambda n: parts[n])


@dataclass(frozen=True, slots=True)
class KernelEstimate:
    """Figures of one launch (CPU: of one step of the plan).

    read, written: bytes outside of the kernel, every element touched once.  levels: bytes moved, by the
    name of the level.  operations: weighted ones.  blocks, threads: of a block; waves: times that the
    resident blocks are exchanged; occupancy: None on a CPU.
    """

    name: str
    read: float
    written: float
    levels: tuple[tuple[str, float], ...]
    work: Operations
    blocks: int
    threads: int
    waves: float
    occupancy: Occupancy | None
    block_barriers: int
    grid_barriers: int
    terms: Terms

    @property
    def seconds(self) -> float:
        return self.terms.seconds


def terms(
    memory: float, cache: float, operations: float, latency: float, overhead: float, barriers: float = 0.0
) -> Terms:
    """Of one kernel."""
    spent = max(memory, cache, operations, latency)
    return Terms(memory, cache, operations, latency, overhead, barriers, spent)


def by_level(nbytes: Sequence[float], bandwidths: Sequence[float]) -> list[float]:
    """Seconds of each level: what comes from a level passes all nearer ones."""
    padded = [*nbytes, *[0.0] * (len(bandwidths) - len(nbytes))]
    return [sum(padded[k:]) / rate for k, rate in enumerate(bandwidths)]


def joined(name: str, parts: Sequence[KernelEstimate], barriers_s: float) -> KernelEstimate:
    """One launch that runs several kernels with barriers of all blocks, or workers, between."""
    levels: dict[str, float] = {}
    for p in parts:
        for level, nbytes in p.levels:
            levels[level] = levels.get(level, 0.0) + nbytes
    memory, cache, ops, latency, spent = (
        sum(x)
        for x in zip(
            *(
                (p.terms.memory, p.terms.cache, p.terms.operations, p.terms.latency, p.terms.spent)
                for p in parts
            ),
            strict=True,
        )
    )
    waits = len(parts) - 1
    return replace(
        parts[0],
        name=name,
        read=sum(p.read for p in parts),
        written=sum(p.written for p in parts),
        levels=tuple(levels.items()),
        work=sum((p.work for p in parts), Operations()),
        blocks=max(p.blocks for p in parts),
        threads=max(p.threads for p in parts),
        waves=max(p.waves for p in parts),
        block_barriers=sum(p.block_barriers for p in parts),
        grid_barriers=waits,
        terms=Terms(memory, cache, ops, latency, parts[0].terms.overhead, barriers_s, spent),
    )


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of all kernels of an operator on one machine; `print` shows a line for each."""

    machine: str
    kernels: tuple[KernelEstimate, ...]
    call_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.call_s + sum(k.seconds for k in self.kernels)

    @property
    def read(self) -> float:
        return sum(k.read for k in self.kernels)

    @property
    def written(self) -> float:
        return sum(k.written for k in self.kernels)

    @property
    def launches(self) -> int:
        return len(self.kernels)

    def __str__(self) -> str:
        rows = [("kernel", "us", "bound by", "read", "written", "operations", "blocks", "threads", "waves")]
        for k in self.kernels:
            rows.append(
                (
                    k.name,
                    f"{k.seconds * 1e6:.1f}",
                    k.terms.bound,
                    f"{k.read / 1e6:.2f} MB",
                    f"{k.written / 1e6:.2f} MB",
                    f"{k.work.weighted / 1e6:.1f} M",
                    str(k.blocks),
                    str(k.threads),
                    f"{k.waves:.2f}",
                )
            )
        widths = [max(len(r[c]) for r in rows) for c in range(len(rows[0]))]
        lines = ["  ".join(x.rjust(w) for x, w in zip(r, widths, strict=True)) for r in rows]
        head = f"{self.machine}: {self.seconds * 1e6:.1f} us, {len(self.kernels)} kernels"
        return "\n".join([head, *lines])
