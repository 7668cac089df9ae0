"""The process that NVRTC runs in, seen from ours.

In our own process NVRTC could not be interrupted, and a crash of it would be ours.  A helper costs 40 ms once
and 1 ms for each compilation; it is killed when one takes too long, and ends with our process, which closes
its pipe.  A forked process starts a helper of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfuse.runtime.cuda import nvrtc_process


class HelperEnded(Exception):
    """The helper crashed, was killed, or could not be started; the message says which."""


class HelperLate(Exception):
    """The helper did not answer in time and was killed."""


@dataclass(slots=True)
class Helper:
    """A helper process for one library. One compilation at a time; threads wait for each other."""

    library: str
    _process: subprocess.Popen[bytes] | None = None
    _owner: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def compile(self, source: str, options: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """The answer of the helper. Raises HelperEnded or HelperLate."""
        request = json.dumps({"source": source, "options": list(options)}).encode("ascii") + b"\n"
        with self._lock:
            process = self._running()
            late = threading.Event()

            def stop() -> None:
                late.set()
                process.kill()

            timer = threading.Timer(timeout_s, stop)
            timer.start()
            line = b""
            try:
                line = _exchange(process, request)
            finally:
                timer.cancel()
                if late.is_set() or not line.endswith(b"\n"):
                    self.end()  # also after an interrupt: its answer would still come
        if line.endswith(b"\n"):
            return dict(json.loads(line))
        if late.is_set():
            raise HelperLate
        raise HelperEnded(f"ended with status {process.returncode}")

    def end(self) -> None:
        """End the process, if there is one and it is ours."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._owner == os.getpid():
            process.kill()
            process.wait()
        else:
            process.returncode = 0  # our parent's: not ours to wait for
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not written yet
                    pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and (self._owner != os.getpid() or self._process.poll() is not None):
            self.end()
        if self._process is None:
            self._process, self._owner = _start(self.library), os.getpid()
        return self._process

    def after_fork(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self._lock = threading.Lock()


def _start(library: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", str(Path(nvrtc_process.__file__)), library]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise HelperEnded(f"could not be started: {error}") from None


def _exchange(process: subprocess.Popen[bytes], request: bytes) -> bytes:
    """A line for a line; nothing, or a part, from a helper that ended."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(request)
        process.stdin.flush()
        return process.stdout.readline()
    except (BrokenPipeError, ConnectionResetError):
        return b""


_helpers: dict[str, Helper] = {}


def _after_fork() -> None:
    for one in _helpers.values():
        one.after_fork()


@atexit.register
def _end() -> None:
    for one in _helpers.values():
        one.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def helper(library: str) -> Helper:
    """The helper of this process for a library."""
    return _helpers.setdefault(library, Helper(library))
