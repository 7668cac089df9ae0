"""isl's helper on a machine that hardly lets it run: it stands still for most of the time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from polyfuse.poly.scheduling import isl_worker

HALTED = """
import os, signal, time
from polyfuse.poly.scheduling import isl_worker as worker
pid = os.getpid()
if os.fork() == 0:
    while os.getppid() == pid:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.04)
    os._exit(0)
worker.main()
"""


@contextmanager
def halted_helper() -> Iterator[isl_worker.Helper]:
    """Meanwhile isl's helper is such a one, and nothing is known of earlier problems."""
    helper = isl_worker.Helper(command=(sys.executable, "-c", HALTED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isl_worker, "_helper", helper)
        patch.setattr(isl_worker, "_given_up", {})
        yield helper
    helper.kill()
