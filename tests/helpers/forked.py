"""Children of this process, and locks that another thread holds when they are forked."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from polyfuse.support.processes import ForkLock

# A child that waits for ever is ended then.
LIMIT_S = 60


def right_in_child(check: Callable[[], bool]) -> bool:
    """Is what a forked child is asked true?"""
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LIMIT_S)
            os._exit(0 if check() else 1)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@contextmanager
def held_by_another_thread(*locks: ForkLock) -> Iterator[None]:
    """As while another thread compiles."""
    inside, end = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            inside.set()
            end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()
