"""Helper processes that stay: one line of text each way, with a deadline, over a pair of pipes.

A child starts with the first request, serves all threads of this process one request at a time, and is
killed when an answer does not come in time, when an interrupt comes instead, and at exit.  The next request
starts another.  A process forked from ours starts its own.  The side of the child is a module that prints
its greeting and then answers lines (`serve`); nothing else may write to the pipe.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from polyfuse.diagnostics import ToolchainError

ENV_JOBS = "POLYFUSE_JOBS"
MOST_JOBS = 1024
START_LIMIT_S = 20.0


class ChildDied(Exception):
    """The child ended, or closed its pipe."""


class ChildLate(Exception):
    """The child did not answer in time."""


class ChildUnavailable(Exception):
    """No such process can be started here."""


def jobs() -> int:
    """How many processes a compilation may use: ``$POLYFUSE_JOBS``, else the cores that this one may use.

    Raises ToolchainError PF705 for what is no number of processes.
    """
    text = os.environ.get(ENV_JOBS, "").strip()
    if not text:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return min(cores or 1, MOST_JOBS) if os.name == "posix" else 1
    if not text.isdecimal() or not 1 <= int(text) <= MOST_JOBS:
        raise ToolchainError(
            f"{ENV_JOBS} is {text!r}, not a number of processes",
            code="PF705",
            hint=f"give a whole number from 1 to {MOST_JOBS}, or unset it to use every core of the process",
        )
    return int(text)


def peak_memory() -> int:
    """The most memory that this process had so far, in bytes, or the largest that it waited for, if that
    had more; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    waited = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    return max(_own_peak() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, waited)


def _own_peak() -> int:
    """The peak of this program alone, or 0: Linux's ``ru_maxrss`` is also that of whoever started it."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Child:
    """A process that runs `module` of this package, and the pipes to it. `command` is replaced in tests.

    session: in a session of its own, so that an interrupt from the terminal does not reach it.
    """

    module: str
    greeting: str
    command: Sequence[str] = ()
    session: bool = True
    starts: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    process: subprocess.Popen[bytes] | None = None
    _owner: int = 0
    _unavailable: bool = False
    _pending: bytes = b""

    def __post_init__(self) -> None:
        self.command = self.command or (sys.executable, "-P", "-m", self.module)
        _children.add(self)

    @property
    def running(self) -> bool:
        """Is it there, and ours?"""
        return self.process is not None and self._owner == os.getpid() and self.process.poll() is None

    def exchange(self, request: bytes, limit_s: float) -> bytes:
        """A line for a line, both without their newlines; hold `lock`. Raises ChildDied or ChildLate.

        After anything but an answer, the child must be killed: its answer would still come.
        """
        deadline = time.monotonic() + limit_s
        self._write(request + b"\n", deadline)
        return self.read_line(deadline)

    def ensure_started(self) -> None:
        """Start the process if it does not run; hold `lock`. Raises ChildUnavailable, ChildDied."""
        if self.process is not None and self._owner != os.getpid():
            self._forget()
        if self.process is not None and self.process.poll() is not None:
            self.kill()
        if self.process is None:
            self._start()

    def _start(self) -> None:
        if self._unavailable:
            raise ChildUnavailable("no helper process")
        package = str(Path(__file__).resolve().parents[2])
        known = os.environ.get("PYTHONPATH")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([package, *([known] if known else [])])}
        try:
            self.process = subprocess.Popen(
                list(self.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                close_fds=True,
                start_new_session=self.session,
                env=env,
            )
        except OSError as error:
            self._unavailable = True
            raise ChildUnavailable(str(error)) from None
        self._owner, self._pending, self.starts = os.getpid(), b"", self.starts + 1
        os.set_blocking(self._pipe("stdin").fileno(), False)
        os.set_blocking(self._pipe("stdout").fileno(), False)
        self._greet()

    def _greet(self) -> None:
        """Wait until the child is ready: its start does not count against the time of a request."""
        process, ended = self.process, False
        try:
            ready = self.read_line(time.monotonic() + START_LIMIT_S) == self.greeting.encode()
        except ChildDied:
            ready, ended = False, True
        except ChildLate:
            ready = False
        except BaseException:
            self.kill()
            raise
        if ready:
            return
        if ended and process is not None:  # how, before it is killed here
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
        killed = process is not None and process.returncode == -signal.SIGKILL
        self.kill()
        if killed:
            raise ChildDied("the helper was ended")
        self._unavailable = True
        raise ChildUnavailable("the helper process does not start")

    def _pipe(self, name: str) -> IO[bytes]:
        pipe: IO[bytes] | None = getattr(self.process, name)
        if pipe is None or pipe.closed:
            raise ChildDied("the helper was ended")
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
                raise ChildDied("the helper closed its pipe") from None

    def read_line(self, deadline: float) -> bytes:
        """The next line that the child writes."""
        pipe = self._pipe("stdout").fileno()
        found = [self._pending]
        while b"\n" not in found[-1]:
            _wait(pipe, select.POLLIN, deadline)
            try:
                chunk = os.read(pipe, 1 << 16)
            except BlockingIOError:
                continue
            if not chunk:
                raise ChildDied("the helper ended")
            found.append(chunk)
        line, self._pending = b"".join(found).split(b"\n", 1)
        return line

    def end(self) -> None:
        """End the child, with all in its session; whoever waits for its answer gets ChildDied."""
        process = self.process
        if process is None or self._owner != os.getpid() or process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.session:
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()

    def kill(self) -> None:
        """`end`, and close the pipes; hold `lock`, or be the only one who knows it."""
        self.end()
        process, mine = self.process, self._owner == os.getpid()
        if process is None or not mine:
            self._forget()
            return
        self.process = None
        _close(process)
        process.wait()

    def _forget(self) -> None:
        """In a forked child: close our copies of the pipes; the helper belongs to the parent."""
        process, self.process, self._pending = self.process, None, b""
        if process is not None:
            process.returncode = 0  # not ours to wait for
            _close(process)

    def after_fork(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self.lock = threading.Lock()
        self._forget()


_children: weakref.WeakSet[Child] = weakref.WeakSet()


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _wait(pipe: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(pipe, event)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(1 + left * 1000):
        raise ChildLate("the time limit was reached")


@atexit.register
def _end_all() -> None:
    for child in list(_children):
        child.kill()


def _children_after_fork() -> None:
    for child in list(_children):
        child.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_children_after_fork)


# --- the side of the child -------------------------------------------------------------------------


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Should the caller be gone, the clock ends this process: isl cannot be interrupted."""
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def serve(greeting: str, answer: Callable[[str], str], idle_s: float | None = None) -> None:
    """Answer lines until the caller closes the pipe, or nothing was asked for `idle_s` seconds."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    print(greeting, file=out, flush=True)
    while True:
        if idle_s is not None and not select.select([sys.stdin], [], [], idle_s)[0]:
            return
        line = sys.stdin.readline()
        if not line:
            return
        print(answer(line), file=out, flush=True)


# --- locks ------------------------------------------------------------------------------------------------

# Locks that a forked child finds open.
#
# A child has one thread, that which forked.  A lock that another thread held at that moment has nobody there
# to open it, and a child that asks for it waits for ever.


class ForkLock:
    """A reentrant lock for `with`; in a forked child it is open. What it guards must be whole at each moment:
    the child goes on with what the other thread left."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _after_fork(self) -> None:
        if self._lock.acquire(
            blocking=False
        ):  # open, or held by the thread that forked, which opens it itself
            self._lock.release()
        else:
            self._lock = threading.RLock()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
