"""Locks that a forked child finds open.

A child has one thread, that which forked.  A lock that another thread held at that moment has nobody there to
open it, and a child that asks for it waits for ever.
"""

from __future__ import annotations

import os
import threading
import weakref


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
