"""Locks in a forked child: open, unless the thread that forked holds them."""

from __future__ import annotations

import os

import pytest
from forked import held_by_another_thread, right_in_child

from polyfuse.support.processes import ForkLock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def test_the_thread_that_forked_still_holds_its_lock() -> None:
    lock = ForkLock()

    def opened_and_taken_again() -> bool:
        lock.__exit__()
        with lock:
            return True

    with lock:
        assert right_in_child(opened_and_taken_again)


def test_what_another_thread_held_is_open() -> None:
    lock = ForkLock()

    def taken() -> bool:
        with lock:
            return True

    with held_by_another_thread(lock):
        assert right_in_child(taken)
