"""Variants run in a child process: the caller's side of `polyfuse.tuning.trial`.

Each request has a time limit.  A variant that ends the child, or does not answer, is told as TrialFailed; the
next request starts a new child, in which what it needs is run again.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from types import TracebackType
from typing import Any, Protocol, Self

from polyfuse.decisions import format_bytes
from polyfuse.driver.pipeline import Compilation
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.tensor_graph import Role
from polyfuse.runtime.cache.disk import Cache
from polyfuse.runtime.cpu.memory import usable_memory
from polyfuse.runtime.cpu.pool import Pool
from polyfuse.support.processes import Child, ChildDied, ChildLate, ChildUnavailable
from polyfuse.tuning.trial import READY, recipes

# Seconds for the inputs, and for a turn of calls; what is left to a request where no time is.
PREPARE_S, TURN_S, LEAST_S = 8.0, 3.0, 0.1
# Of the machine's memory, what a trial may take: arguments, results, a copy of these.
SHARE = 0.25


class TrialFailed(Exception):
    """A variant, or all of them, cannot be measured."""


class Timer(Protocol):
    """What measures variants, by the keys of their plans in the cache."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...

    def begin(self) -> None:
        """Get ready for the first run, in a thread of its own; what fails shows then."""
        ...

    def first(self, key: str, limit_s: float) -> float:
        """Seconds of the first run, which has a limit; its results must be those of the first variant that
        ran."""
        ...

    def seconds(self, key: str, calls: int) -> float:
        """The shortest of some calls."""
        ...


class ChildTimer:
    """A child process with inputs for one operator; no request waits beyond the deadline."""

    module = "polyfuse.tuning.trial"

    def __init__(self, base: Compilation, child: Child | None = None, deadline: float = float("inf")) -> None:
        self._deadline = deadline
        self._preparing = threading.Lock()
        self._over = False
        self._child = child or Child(self.module, READY)
        self._base = base
        self._ready = False
        self._reference: str | None = None
        self._loaded: set[str] = set()

    def __enter__(self) -> Self:
        need, have = _bytes(self._base), usable_memory() * SHARE
        if need > have:
            raise TrialFailed(f"a trial would take {format_bytes(need)}, more than {format_bytes(have)}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._over = True
        self._child.end()
        with self._child.lock:
            self._child.kill()

    def begin(self) -> None:
        with contextlib.suppress(TrialFailed):
            self._prepared()

    def first(self, key: str, limit_s: float) -> float:
        self._prepared()
        if self._reference not in (None, key) and self._reference not in self._loaded:
            self._run(str(self._reference), TURN_S)
        seconds = self._run(key, limit_s)
        self._reference = self._reference or key
        return seconds

    def seconds(self, key: str, calls: int) -> float:
        self._prepared()
        if key not in self._loaded:
            self.first(key, TURN_S)
        return float(self._ask(TURN_S, do="time", key=key, calls=calls)["seconds"])

    def _run(self, key: str, limit_s: float) -> float:
        found = float(self._ask(limit_s, do="run", key=key)["seconds"])
        self._loaded.add(key)
        return found

    def _prepared(self) -> None:
        with self._preparing:
            if not self._ready:
                self._prepare()

    def _prepare(self) -> None:
        made = [r.as_json() for r in recipes(self._base.graph, self._base.sizes)]
        options, pool = self._base.options, Pool.get()
        threads = min(options.threads or pool.threads, pool.threads)
        root, flush = str(Cache.open_default().root), options.denormals == "flush"
        self._ask(PREPARE_S, do="prepare", inputs=made, root=root, flush=flush, threads=threads)
        self._ready = True

    def _ask(self, limit_s: float, **request: object) -> dict[str, Any]:
        """One exchange. Raises TrialFailed; then the child is gone, unless it said so itself."""
        limit_s = max(LEAST_S, min(limit_s, self._deadline - time.monotonic()))
        with self._child.lock:
            if self._over:
                raise TrialFailed("it is over")
            try:
                self._child.ensure_started()
                found: dict[str, Any] = json.loads(
                    self._child.exchange(json.dumps(request).encode(), limit_s)
                )
            except (ChildDied, ChildLate, ChildUnavailable, ValueError) as error:
                self._child.kill()
                self._ready = False
                self._loaded.clear()
                raise TrialFailed(_told(error, limit_s)) from None
            except BaseException:
                self._child.kill()
                raise
        if "error" in found:
            raise TrialFailed(str(found["error"]))
        return found


class GpuTimer(ChildTimer):
    """The same on a GPU. What does not fit its memory is told by the device; a first run has more time, as
    loading and comparing take most of it."""

    module = "polyfuse.tuning.gpu_trial"

    def __enter__(self) -> Self:
        return self

    def first(self, key: str, limit_s: float) -> float:
        return super().first(key, max(limit_s, TURN_S))


def _told(error: Exception, limit_s: float) -> str:
    match error:
        case ChildLate():
            return f"it did not end in {limit_s:g} s"
        case ChildUnavailable():
            return "no process can be started for trials"
        case _:
            return "it crashed"


def _bytes(base: Compilation) -> float:
    """What a trial takes: arguments once, results and what is changed twice."""
    total = 0.0
    for t in base.graph.tensors:
        size = math.prod((evaluate(product(t.shape), base.sizes), BY_NAME[t.dtype.name].bytes))
        total += {Role.INPUT: 1, Role.OUTPUT: 2, Role.INOUT: 3}.get(t.role, 1) * size
    return total
