"""Run the items of a part in worker processes until they are done or time is up.

An item whose process dies is recorded as crashed and the others go on in a new process.  An item in progress
when time is up is left without a result: the next run does it again.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.ahead import compile_ahead
from gpu.install import environment
from gpu.job import Job
from gpu.pack import ROOT
from gpu.parts import Limits, limits
from gpu.record import Record

GRACE_S = 10.0
"""What an item in progress may take beyond the deadline before it is stopped."""
LOGS = ROOT / "build" / "gpu-logs"


@dataclass
class Setting:
    """Where and how long: `deadline` by time.monotonic()."""

    folder: Path
    search: Sequence[Path]
    deadline: float

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()


class Worker:
    """One process of `gpu.worker`."""

    def __init__(self, part: str, job: Job, setting: Setting, number: int) -> None:
        self.log = log_file(f"{part}-{number}")
        with self.log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpu.worker", part, job.as_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(setting.search) | job.variables,
                start_new_session=True,
            )

    def ask(self, item: str, timeout_s: float) -> dict[str, Any] | None:
        """The answer; None if none came in time. Raises EOFError if the process ended."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps(item).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise EOFError from error
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            if not ready.select(timeout_s):
                return None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> int:
        """Stop the process, with all that it started; its exit status."""
        if self._process.stdin:
            self._process.stdin.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])


def log_file(name: str) -> Path:
    """Where a process of a run writes what it has to say."""
    LOGS.mkdir(parents=True, exist_ok=True)
    return LOGS / f"{name}.txt"


def run_part(part: str, items: Sequence[str], job: Job, setting: Setting, record: Record) -> None:
    """Do the items; results go into the record, a line each to the terminal."""
    waiting, bounds = deque(record.plan(part, items)), limits(part)
    if bounds.ahead and len(waiting) > 1:
        # Each process compiles alone: there are as many as cores.
        variables = environment(setting.search) | job.variables | {"POLYFUSE_JOBS": "1"}
        limit_s = bounds.ahead * setting.left
        found = compile_ahead(part, list(waiting), job, variables, log_file(f"{part}-ahead"), limit_s)
        print(f"{part}: {len(found)} compilations made ahead", flush=True)
    count = min(job.workers if bounds.parallel else 1, len(waiting))
    threads = [
        threading.Thread(target=_serve, args=(part, k, waiting, bounds, job, setting, record))
        for k in range(count)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def _serve(
    part: str, number: int, waiting: deque[str], bounds: Limits, job: Job, setting: Setting, record: Record
) -> None:
    seat = _Seat(part, number, job, setting, bounds)
    try:
        while setting.left > bounds.usual_s:
            try:
                item = waiting.popleft()
            except IndexError:
                return
            result = seat.ask(item)
            if result is not None and result.pop("broken", False) and len(pieces := split(item)) > 1:
                found = [(piece, seat.ask(piece)) for piece in pieces]
                result = merged([(piece, r) for piece, r in found if r is not None])
                result = None if any(r is None for _, r in found) else result
            if result is None:
                return
            result.pop("broken", None)
            record.put(part, item, result)
            print(f"{part}: {item}: {result['status']}", flush=True)
    finally:
        seat.leave()


class _Seat:
    """A worker process that is replaced when it dies, hangs or has lost the device."""

    def __init__(self, part: str, number: int, job: Job, setting: Setting, bounds: Limits) -> None:
        self._make = lambda: Worker(part, job, setting, number)
        self._setting, self._bounds = setting, bounds
        self._worker: Worker | None = None

    def ask(self, item: str) -> dict[str, Any] | None:
        """The result of an item, `broken` if it cost the process; None if the time of the run is up."""
        allowed = min(self._bounds.most_s, self._setting.left + GRACE_S)
        self._worker = self._worker or self._make()
        try:
            result = self._worker.ask(item, max(0.0, allowed))
        except EOFError:
            words = f"status {self._worker.end()}\n{self._worker.last_words()}"
            result = {"status": "crashed", "message": words, "broken": True}
        if result is None and allowed >= self._bounds.most_s:
            result = {"status": "timeout", "message": f"no answer after {allowed:.0f} s", "broken": True}
        if result is None or result.get("broken"):
            self.leave()
        return result

    def leave(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def split(item: str) -> list[str]:
    """The single calls of a group `kind first-last`."""
    kind, _, numbers = item.partition(" ")
    first, dash, last = numbers.partition("-")
    if not (dash and first.isdigit() and last.isdigit()):
        return [item]
    return [f"{kind} {k}-{k}" for k in range(int(first), int(last) + 1)]


def merged(found: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """One result of the results of a group's calls, made one by one because the group broke its process."""
    bad = [(name, r) for name, r in found if r["status"] != "ok"]
    return {
        "status": "failed" if bad else "ok",
        "compared": sum(r.get("compared", 0) for _, r in found),
        "wrong": sum(r.get("wrong", 1) for _, r in bad),
        "message": "\n".join(f"{name}: {r['status']}: {r.get('message', '')}" for name, r in bad)[:2000],
        "seconds": round(sum(r.get("seconds", 0.0) for _, r in found), 3),
    }
