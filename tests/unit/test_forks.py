"""Locks in a forked child: open, unless the thread that forked holds them."""

from __future__ import annotations

import os
import threading

import pytest

from polyfuse.forks import ForkLock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def in_child(lock: ForkLock) -> int:
    """How a child ends that opens the lock and then asks for it: 0, or 1 if something is wrong with it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        lock.__exit__()
        with lock:
            os._exit(0)
    finally:
        os._exit(1)


def test_the_thread_that_forked_still_holds_its_lock() -> None:
    lock = ForkLock()
    with lock:
        assert in_child(lock) == 0


def test_what_another_thread_held_is_open() -> None:
    lock, held, done = ForkLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        with lock:  # waits for ever if it is not open
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    done.set()
    thread.join()
