"""Jobs for a child process: one at a time, within a time limit; the latest of each page wins.

    answer = await Jobs(limit_s=30).ask(page, {"do": "view", ...})

A job that takes too long is ended with its process; the next one has another.  When a page asks again,
what it asked before is dropped: at once where it waits, after a short while where it runs, since many jobs
are nearly done and a new process costs a second.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyfuse.support.processes import Child, ChildDied, ChildLate, ChildUnavailable

MODULE, GREETING = "polyfuse.explore.child", "explorer 1"
PATIENCE_S = 1.0
"""So long a job that nobody waits for may still run."""
SUPERSEDED: Mapping[str, Any] = {"superseded": True}


@dataclass(eq=False)
class _Job:
    page: str
    dropped: bool = False


@dataclass(eq=False)
class Jobs:
    """A child and what it is asked. `command` and `patience_s` are replaced in tests."""

    limit_s: float
    command: Sequence[str] = ()
    patience_s: float = PATIENCE_S
    child: Child = field(init=False)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    latest: dict[str, _Job] = field(default_factory=dict)
    running: _Job | None = None

    def __post_init__(self) -> None:
        self.child = Child(MODULE, GREETING, self.command)

    async def ask(self, page: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer; `SUPERSEDED` where the page has asked for something else by now."""
        job = _Job(page)
        before = self.latest.get(page)
        self.latest[page] = job
        if before is not None:
            before.dropped = True
            if self.running is before:
                asyncio.get_running_loop().call_later(self.patience_s, self._end, before)
        try:
            async with self.lock:
                if job.dropped:
                    return SUPERSEDED
                self.running = job
                try:
                    answered = await asyncio.to_thread(self._exchanged, json.dumps(request).encode())
                finally:
                    self.running = None
        finally:
            if self.latest.get(page) is job:
                del self.latest[page]
        return SUPERSEDED if job.dropped else answered

    async def start(self) -> None:
        """Start the child, so that the first job need not wait for it."""
        async with self.lock:
            await asyncio.to_thread(self._start)

    def close(self) -> None:
        """End the child."""
        self.child.end()

    def _end(self, job: _Job) -> None:
        if self.running is job:
            self.child.end()

    def _start(self) -> None:
        with self.child.lock:
            try:
                self.child.ensure_started()
            except ChildDied:
                self.child.kill()  # the first job says so
            except ChildUnavailable:
                self._renew()

    def _renew(self) -> None:
        """Another child for one that did not start in time: on a busy machine the next one may."""
        self.child = Child(MODULE, GREETING, self.command)

    def _exchanged(self, line: bytes) -> Mapping[str, Any]:
        with self.child.lock:
            try:
                self.child.ensure_started()
                found = json.loads(self.child.exchange(line, self.limit_s))
                return found if isinstance(found, dict) else {}
            except ChildLate:
                self.child.kill()
                what = f"the compilation took longer than {self.limit_s:g} s and was ended"
                return {
                    "errors": [failed("PF821", what, "choose smaller sizes")],
                    "late": True,
                }
            except (ChildDied, ChildUnavailable) as error:
                self.child.kill()
                if isinstance(error, ChildUnavailable):
                    self._renew()
                what = f"the process that compiles has ended: {error}"
                return {"errors": [failed("PF821", what, "choose smaller sizes; it is started again")]}
            except BaseException:
                self.child.kill()  # its answer would still come
                raise


def failed(code: str, message: str, hint: str) -> dict[str, Any]:
    """An error without a place, as the page shows those of a text."""
    return {
        "code": code, "severity": "error", "message": message, "hint": hint, "placed": False,
        "from": 0, "to": 0, "line": 0, "column": 0, "related": [], "fix": None,
    }  # fmt: skip
