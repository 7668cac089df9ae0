"""Clusters lowered side by side: by this process and, where there is much to do, by helpers.

    this process   takes clusters in order, and looks after each how long the rest may take
    helpers        are started when that is longer than their start, and take the largest of the rest

So a small graph costs nothing more, and nobody waits for a helper that starts.  Results are put in order of
the clusters, whoever made them.  A cluster whose helper dies, fails or takes too long is lowered here; an
interrupt ends the helpers that work.
"""

from __future__ import annotations

import base64
import copyreg
import io
import os
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from polyfuse.diagnostics import ScheduleError
from polyfuse.driver.feedback import Lessons, pieces_of
from polyfuse.driver.lowering import Made, Passes
from polyfuse.ir.dtypes import BY_NAME, DType
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.options import ENVIRONMENT
from polyfuse.runtime.cache.plans import KeptLessons
from polyfuse.source import SourceText
from polyfuse.support.processes import Child, ChildDied, ChildLate, ChildUnavailable, jobs, peak_memory
from polyfuse.support.progress import tell

# --- messages ---------------------------------------------------------------------------------------------

# What a process and those that lower clusters for it say to each other.
#
# Lines are pickles in base 64.  Both ends are the same program on the same machine, and the pipe is private.


GREETING = "polyfuse lowering helper 1"
# A cluster takes up to half a second, and isl may be asked several times for seconds each.
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Begin:
    """What the next clusters are lowered by; `kept`: lessons are those of the cache on disk."""

    passes: Passes
    kept: bool
    environment: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """Kernels of a cluster, or None where it failed; the largest memory of the helper so far, in bytes."""

    made: Made | None
    peak: int


def pack(value: object) -> bytes:
    """A line. Dtypes keep their identity, source texts become one object again."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = copyreg.dispatch_table.copy()
    pickler.dispatch_table[DType] = _reduced_dtype
    pickler.dispatch_table[SourceText] = _reduced_source
    pickler.dump(value)
    return base64.b64encode(out.getvalue())


def unpack(line: bytes | str) -> Any:
    """The value of a line that `pack` made."""
    return pickle.loads(base64.b64decode(line))


def _reduced_dtype(dtype: DType) -> tuple[Any, ...]:
    return _dtype, (dtype.name,)


def _dtype(name: str) -> DType:
    return BY_NAME[name]


def _reduced_source(source: SourceText) -> tuple[Any, ...]:
    return _source, (source.name, source.text)


@lru_cache(maxsize=64)
def _source(name: str, text: str) -> SourceText:
    return SourceText(name, text)


# Seconds of work left from which a helper pays: its start takes a quarter of a second, and its first cluster
# longer than the later ones (measured: docs/lab/long_compilations.md).
START_PAYS_S = 0.8
# The same for one that runs already.
WARM_PAYS_S = 0.1
# Each holds about 60 MiB.
MOST_HELPERS = 15

PHASE = "clusters scheduled"


def lower_all(
    graphs: Sequence[TensorGraph],
    passes: Passes,
    lessons: Lessons,
    *,
    refused: ScheduleError | None = None,
) -> list[Made]:
    """Kernels of each cluster; `refused` says that the only one failed as one piece already.

    Raises ScheduleError where one cannot be compiled.
    """
    if len(graphs) == 1:
        return [pieces_of(graphs[0], passes, lessons, refused)]
    work = _Work(list(graphs), passes, lessons)
    try:
        work.run()
    finally:
        work.end()
    return [pieces_of(g, passes, lessons) if m is None else m for g, m in zip(graphs, work.made, strict=True)]


@dataclass(slots=True)
class _Work:
    """Clusters to be taken, and what became of those that were."""

    graphs: list[TensorGraph]
    passes: Passes
    lessons: Lessons
    made: list[Made | None] = field(init=False)
    left: list[int] = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)
    busy: dict[Child, threading.Thread] = field(default_factory=dict)
    done: int = 0

    def __post_init__(self) -> None:
        self.made = [None] * len(self.graphs)
        self.left = list(range(len(self.graphs)))

    def run(self) -> None:
        """Take clusters until none is left, and wait for the helpers."""
        spent, statements = 0.0, 0
        while (k := self._take(0)) is not None:
            start = time.perf_counter()
            self._put(k, pieces_of(self.graphs[k], self.passes, self.lessons))
            spent += time.perf_counter() - start
            statements += len(self.graphs[k].statements)
            tell(PHASE, self.done, len(self.graphs))
            self._called_in(spent, statements)
        for thread in self.busy.values():
            while thread.is_alive():
                thread.join(0.2)
                tell(PHASE, self.done, len(self.graphs))

    def end(self) -> None:
        """Take nothing more; helpers that are at work are ended."""
        with self.lock:
            self.left.clear()
        for child, thread in self.busy.items():
            if thread.is_alive():
                child.end()
        for thread in self.busy.values():
            thread.join(5.0)

    def _take(self, place: int) -> int | None:
        with self.lock:
            return self.left.pop(place) if self.left else None

    def _largest(self) -> int | None:
        with self.lock:
            if not self.left:
                return None
            best = max(range(len(self.left)), key=lambda n: len(self.graphs[self.left[n]].statements))
            return self.left.pop(best)

    def _put(self, k: int, made: Made | None) -> None:
        with self.lock:
            self.made[k] = made
            self.done += 1

    def _called_in(self, spent: float, statements: int) -> None:
        """Call in as many helpers as the work that is left pays for."""
        with self.lock:
            rest = sum(len(self.graphs[k].statements) for k in self.left)
            most = min(len(self.left), jobs() - 1, MOST_HELPERS)
        if most <= len(self.busy) or self.passes.clustering.feedback == "measure":
            return  # times are not measured beside other work
        expected = rest * spent / statements
        for child in _children(most):
            if child not in self.busy and len(self.busy) < most:
                pays = WARM_PAYS_S if child.running else START_PAYS_S
                if expected < pays * (len(self.busy) + 1):
                    return
                thread = threading.Thread(target=self._helped, args=(child,), daemon=True)
                self.busy[child] = thread
                thread.start()

    def _helped(self, child: Child) -> None:
        """What a helper does, in a thread that waits for it."""
        if not child.lock.acquire(blocking=False):  # it works for another thread's compilation
            return
        try:
            child.ensure_started()
            if unpack(child.exchange(self._begin(), LIMIT_S)).made is None:
                return
            while (k := self._largest()) is not None:
                answer: Answer = unpack(child.exchange(pack(self.graphs[k]), LIMIT_S))
                _peaks[child] = answer.peak
                self._put(k, answer.made)
        except ChildUnavailable:
            return
        except (ChildDied, ChildLate, ValueError, EOFError, RecursionError, pickle.PickleError):
            child.kill()
        finally:
            child.lock.release()

    def _begin(self) -> bytes:
        ours = {v.name: os.environ.get(v.name) for v in ENVIRONMENT}
        return pack(Begin(self.passes, isinstance(self.lessons, KeptLessons), ours))


_helpers: list[Child] = []
_peaks: dict[Child, int] = {}


def _children(count: int) -> list[Child]:
    """So many helpers, those that run first."""
    while len(_helpers) < count:
        _helpers.append(Child("polyfuse.driver.parallel_helper", GREETING))
    return sorted(_helpers[:count], key=lambda c: not c.running)


def peak_bytes() -> int:
    """The most memory that this process had so far, or a compiler, with that of the helpers, in bytes."""
    return peak_memory() + sum(_peaks.values())
