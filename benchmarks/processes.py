"""Contenders as child processes that take turns.

Each has a process of its own: two pools of spinning threads in one process, or two that run at the same time,
slow each other down. Who is not at turn is stopped by SIGSTOP, so that nothing of it spins.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TUNABLES = (
    "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592:glibc.malloc.hugetlb=1"
)
"""glibc's allocator that keeps freed memory and uses huge pages: for large results often much faster."""


class ContenderError(RuntimeError):
    """A contender could not do what it was asked."""


@dataclass(frozen=True)
class Seat:
    """A contender with one setting of the allocator; `label` names it in reports."""

    contender: str
    tuned: bool = False

    @property
    def label(self) -> str:
        return self.contender + (" (tuned malloc)" if self.tuned else "")


class Child:
    """The process of one seat. Stopped, except while it answers."""

    def __init__(self, seat: Seat, threads: int, cache: Path) -> None:
        self.seat = seat
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        command = [sys.executable, "-m", "benchmarks.worker", seat.contender, str(threads)]
        self._process = subprocess.Popen(
            [*command, str(theirs_in), str(theirs_out)],
            cwd=ROOT,
            env=_environment(seat, threads, cache),
            pass_fds=(theirs_in, theirs_out),
            stdout=sys.stderr,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = os.fdopen(ours_out, "w"), os.fdopen(ours_in)
        self.versions: dict[str, str] = self._receive()["versions"]
        self._signal(signal.SIGSTOP)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, **command: Any) -> dict[str, Any]:
        """The answer to one command. Raises ContenderError with the child's message."""
        with self._awake():
            self._out.write(json.dumps(command) + "\n")
            self._out.flush()
            return self._receive()

    @contextmanager
    def _awake(self) -> Iterator[None]:
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _receive(self) -> dict[str, Any]:
        line = self._in.readline()
        if not line:
            raise ContenderError(f"{self.seat.label}: the process ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderError(f"{self.seat.label}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._out, self._in):
            with suppress(OSError):
                pipe.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


def _environment(seat: Seat, threads: int, cache: Path) -> dict[str, str]:
    """Caches are empty folders of this run, so that every first call compiles."""
    number = str(threads)
    own = cache / seat.label.replace(" ", "_")
    own.mkdir(mode=0o700, exist_ok=True)
    env: Mapping[str, str] = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
        "POLYFUSE_CACHE_DIR": str(own),
        "POLYFUSE_NUM_THREADS": number,
        "OMP_NUM_THREADS": number,
        "TORCHINDUCTOR_CACHE_DIR": str(own),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
    }
    return {**env, "GLIBC_TUNABLES": TUNABLES} if seat.tuned else dict(env)
