"""isl's scheduler in one long-lived helper process, because it cannot be interrupted in ours.

`solve` sends a `Job` (isl texts) to ``python -m polyfuse.poly.worker`` and gets the text of a schedule
back: one line of JSON each way, nothing executable.  The helper starts on the first job, serves the
whole process (all threads, one job at a time), and is killed when a job passes its time limit, when it
answers nonsense and at exit; the next job starts another.  A process forked from ours starts its own.

Where no helper can be started, or with ``POLYFUSE_WORKER=0``, jobs run in this process under isl's
limit on operations, which is a rough measure of time but never hangs.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

import islpy as isl

# What isl counts is allocations: this many a second on a slow machine (measured: 5 to 12 million).
OPERATIONS_PER_SECOND = 4_000_000
START_LIMIT_S = 20.0
MEMORY_LIMIT = 4 << 30
READY = "polyfuse scheduling helper 1"


class WorkerError(Exception):
    """A job gave no schedule."""


class Infeasible(WorkerError):
    """isl proved, or gave up on the ground, that no affine schedule exists."""


class Refused(WorkerError):
    """isl reported another error."""


class OverBudget(WorkerError):
    """The time limit (in the helper) or the limit on operations (in this process) was reached."""


class HelperDied(WorkerError):
    """The helper ended or answered nonsense, twice for the same job."""


class HelperUnavailable(WorkerError):
    """No helper process can be started here."""


@dataclass(frozen=True, slots=True)
class Job:
    """One call of isl's scheduler. All fields are isl texts; `options` are its integer settings."""

    domain: str
    context: str
    validity: str
    coincidence: str
    proximity: str
    options: tuple[tuple[str, int], ...] = ()


def _wanted() -> bool:
    return os.environ.get("POLYFUSE_WORKER", "1") != "0" and os.name == "posix"


def prepare() -> None:
    """Start the helper if need be, so that its start counts against no time limit."""
    if _wanted():
        with contextlib.suppress(HelperUnavailable):
            helper().start()


def solve(job: Job, limit_s: float) -> str:
    """The text of a schedule for a job. Raises Infeasible, OverBudget, HelperDied or Refused."""
    if _wanted():
        with contextlib.suppress(HelperUnavailable):
            return helper().call(job, limit_s)
    return compute(job, max(1, int(limit_s * OPERATIONS_PER_SECOND)))


def compute(job: Job, max_operations: int = 0) -> str:
    """Run isl's scheduler here, in a context of its own; 0 operations mean no limit."""
    context = isl.Context()
    for name, value in job.options:
        getattr(context, f"set_schedule_{name}")(value)
    try:
        constraints = isl.ScheduleConstraints.on_domain(isl.UnionSet.read_from_str(context, job.domain))
        constraints = constraints.set_context(isl.Set.read_from_str(context, job.context))
        for kind in ("validity", "coincidence", "proximity"):
            relation = isl.UnionMap.read_from_str(context, getattr(job, kind))
            constraints = getattr(constraints, f"set_{kind}")(relation)
    except isl.Error as error:
        raise Refused(str(error)) from None
    context.set_max_operations(max_operations)
    try:
        schedule = constraints.compute_schedule()
    except isl.Error as error:
        if "unable to carry" in str(error):
            raise Infeasible("unable to carry dependences") from None
        # Out of operations or memory, isl may complain of anything.
        raise OverBudget(f"isl gave up: {error}") from None
    context.set_max_operations(0)
    return str(schedule.to_str())


# --- the side of the caller ------------------------------------------------------------------------


@dataclass(slots=True)
class Helper:
    """A helper process and the pipe to it. `command` is replaced in tests."""

    command: Sequence[str] = field(
        default_factory=lambda: (sys.executable, "-P", "-m", "polyfuse.poly.worker")
    )
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _owner: int = 0
    _unavailable: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pending: bytes = b""

    def start(self) -> None:
        """Start the process if it does not run. Raises HelperUnavailable."""
        with self._lock:
            self._ensure_started()

    def call(self, job: Job, limit_s: float) -> str:
        """Solve a job; a helper that dies or answers nonsense is replaced once."""
        with self._lock:
            for _ in range(2):
                self._ensure_started()
                try:
                    return self._exchange(job, limit_s)
                except HelperDied:
                    self.kill()
                except (Infeasible, Refused):
                    raise
                except BaseException:
                    self.kill()  # out of time, or an interrupt: its answer would still come
                    raise
            raise HelperDied("the scheduling helper failed twice on this problem")

    def _exchange(self, job: Job, limit_s: float) -> str:
        deadline = time.monotonic() + limit_s
        request = {"job": asdict(job), "limit_s": limit_s}
        self._write(json.dumps(request).encode() + b"\n", deadline)
        answer = _parse_answer(self._read_line(deadline))
        match answer.get("kind"):
            case "schedule":
                return str(answer["text"])
            case "infeasible":
                raise Infeasible(str(answer["text"]))
            case "budget":
                raise OverBudget(str(answer["text"]))
            case "failed":
                raise Refused(str(answer["text"]))
        raise HelperDied("the scheduling helper answered nonsense")

    def _ensure_started(self) -> None:
        if self._process is not None and self._owner != os.getpid():
            self._forget()
        if self._process is not None and self._process.poll() is not None:
            self.kill()
        if self._process is None:
            self._start()

    def _start(self) -> None:
        if self._unavailable:
            raise HelperUnavailable("no helper process")
        package = str(Path(__file__).resolve().parents[2])
        known = os.environ.get("PYTHONPATH")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([package, *([known] if known else [])])}
        try:
            self._process = subprocess.Popen(
                list(self.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                close_fds=True,
                start_new_session=True,
                env=env,
            )
        except OSError as error:
            self._unavailable = True
            raise HelperUnavailable(str(error)) from None
        self._owner, self._pending, self.starts = os.getpid(), b"", self.starts + 1
        os.set_blocking(self._pipe("stdin").fileno(), False)
        os.set_blocking(self._pipe("stdout").fileno(), False)
        self._greet()

    def _greet(self) -> None:
        """Wait until the helper is ready: its start does not count against a job's time."""
        try:
            ready = self._read_line(time.monotonic() + START_LIMIT_S) == READY.encode()
        except WorkerError:
            ready = False
        if not ready:
            self.kill()
            self._unavailable = True
            raise HelperUnavailable("the helper process does not start")

    def _pipe(self, name: str) -> IO[bytes]:
        pipe: IO[bytes] | None = getattr(self._process, name)
        assert pipe is not None
        return pipe

    def _write(self, data: bytes, deadline: float) -> None:
        pipe = self._pipe("stdin").fileno()
        while data:
            _wait(pipe, select.POLLOUT, deadline)
            try:
                data = data[os.write(pipe, data) :]
            except BlockingIOError:
                continue
            except OSError:
                raise HelperDied("the scheduling helper closed its pipe") from None

    def _read_line(self, deadline: float) -> bytes:
        pipe = self._pipe("stdout").fileno()
        while b"\n" not in self._pending:
            _wait(pipe, select.POLLIN, deadline)
            try:
                chunk = os.read(pipe, 1 << 16)
            except BlockingIOError:
                continue
            if not chunk:
                raise HelperDied("the scheduling helper ended")
            self._pending += chunk
        line, self._pending = self._pending.split(b"\n", 1)
        return line

    def kill(self) -> None:
        """End the helper now, if it is ours."""
        process, mine = self._process, self._owner == os.getpid()
        if process is None or not mine:
            self._forget()
            return
        process.kill()
        self._process = None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.wait()

    def _forget(self) -> None:
        """In a forked child: close our copies of the pipe; the helper belongs to the parent."""
        process, self._process, self._pending = self._process, None, b""
        if process is not None:
            process.returncode = 0  # not ours to wait for
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def after_fork(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self._lock = threading.Lock()
        self._forget()


def _wait(pipe: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(pipe, event)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(1 + left * 1000):
        raise OverBudget("the time limit was reached")


def _parse_answer(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("text"), str):
        raise HelperDied("the scheduling helper answered nonsense")
    return answer


_helper = Helper()
atexit.register(_helper.kill)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helper.after_fork)


def helper() -> Helper:
    """The helper of this process."""
    return _helper


# --- the side of the helper ------------------------------------------------------------------------


def answer(line: str) -> dict[str, str]:
    """What the helper says to one line."""
    request = json.loads(line)
    names = {f.name for f in fields(Job)}
    given = {k: v for k, v in request["job"].items() if k in names}
    given["options"] = tuple((str(k), int(v)) for k, v in given.get("options", ()))
    # isl cannot be interrupted; should the caller be gone, the clock ends this process.
    signal.setitimer(signal.ITIMER_REAL, float(request["limit_s"]) + 1)
    try:
        return {"kind": "schedule", "text": compute(Job(**given))}
    except Infeasible as error:
        return {"kind": "infeasible", "text": str(error)}
    except OverBudget as error:
        return {"kind": "budget", "text": str(error)}
    except WorkerError as error:
        return {"kind": "failed", "text": str(error)}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def serve() -> None:
    """Answer lines until the caller closes the pipe. Nothing else may write to the pipe."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        if hard == resource.RLIM_INFINITY or hard > MEMORY_LIMIT:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, hard))
    print(READY, file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(line)), file=out, flush=True)


if __name__ == "__main__":
    serve()
