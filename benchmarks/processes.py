"""The contenders of the workloads as processes: each with one setting of the allocator, and empty caches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.turns import TUNABLES, environment
from benchmarks.turns import Child as Process


@dataclass(frozen=True)
class Seat:
    """A contender with one setting of the allocator; `label` names it in reports."""

    contender: str
    tuned: bool = False

    @property
    def label(self) -> str:
        return self.contender + (" (tuned malloc)" if self.tuned else "")


class Child(Process):
    """The process of one seat. Stopped, except while it answers."""

    def __init__(self, seat: Seat, threads: int, cache: Path) -> None:
        self.seat = seat
        command = ["benchmarks.worker", seat.contender, str(threads)]
        super().__init__(seat.label, command, _environment(seat, threads, cache))
        self.versions: dict[str, str] = self.greeting["versions"]


def _environment(seat: Seat, threads: int, cache: Path) -> dict[str, str]:
    """Caches are empty folders of this run, so that every first call compiles."""
    own = cache / seat.label.replace(" ", "_")
    own.mkdir(mode=0o700, exist_ok=True)
    places = {"POLYFUSE_CACHE_DIR": str(own), "TORCHINDUCTOR_CACHE_DIR": str(own)}
    return environment(threads, **places, **({"GLIBC_TUNABLES": TUNABLES} if seat.tuned else {}))
