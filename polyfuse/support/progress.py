"""How far a long compilation is.

Whoever does a part of it that takes long calls `tell` with the phase, how many pieces of it are done, and
how many there are.  Who hears it, is said around the compilation (`followed`): a function, a line on a
terminal or in a notebook after the first second, or nobody.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a compilation is: `done` of `total` pieces of a phase, so many seconds after it began."""

    phase: str
    done: int
    total: int
    seconds: float

    def __str__(self) -> str:
        count = f" {self.done} of {self.total}" if self.total > 1 else ""
        return f"{self.phase}{count}, {self.seconds:.0f} s"


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class _Follower:
    report: Report
    start: float


_follower: ContextVar[_Follower | None] = ContextVar("follower", default=None)


def tell(phase: str, done: int, total: int) -> None:
    """A phase begins, or one more of its pieces is done."""
    follower = _follower.get()
    if follower is not None:
        follower.report(Progress(phase, done, total, time.perf_counter() - follower.start))


@contextmanager
def followed(wanted: bool | Report | None) -> Iterator[None]:
    """Tell what is done inside to a function; to a line on standard error (True); to nobody (False).

    None: to whom it is told already, else to a line where people look at it, a terminal or a notebook.
    """
    if wanted is None and (_follower.get() is not None or not _looked_at()):
        yield
        return
    line = _Line()
    report = wanted if callable(wanted) else line.show
    token = _follower.set(None if wanted is False else _Follower(report, time.perf_counter()))
    try:
        yield
    finally:
        _follower.reset(token)
        line.clear()


def _looked_at() -> bool:
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


class _Line:
    """A line that is written over, from the first second on, and is gone in the end."""

    def __init__(self) -> None:
        self._width = 0

    def show(self, progress: Progress) -> None:
        if progress.seconds >= AFTER_S:
            self._write(f"polyfuse: {progress}")

    def clear(self) -> None:
        if self._width:
            self._write("")
            print(end="\r", file=sys.stderr, flush=True)

    def _write(self, text: str) -> None:
        print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
        self._width = len(text)
