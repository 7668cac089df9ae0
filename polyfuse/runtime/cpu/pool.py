"""The thread pool from Python: `Pool.get()`, `StepArray`, `PreparedCall`.

The pool itself is ``pool.cpp``, compiled once per machine and cached.  A call of a kernel is one foreign
function call whose six arguments were converted beforehand: about half a microsecond.  The GIL is
released while kernels run.
"""

from __future__ import annotations

import ctypes
import importlib.resources
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from polyfuse.diagnostics import ToolchainError
from polyfuse.runtime.toolchain.compiler import load_shared
from polyfuse.support.processes import ForkLock

ENV_THREADS = "POLYFUSE_NUM_THREADS"
MAX_THREADS = 1024
FLUSH_DENORMALS = 1
"""The flag of a call that flushes denormals to zero inside its kernels."""
SPIN_NS = 1_500_000


class _Step(ctypes.Structure):
    _fields_ = (
        ("run", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
        ("parallel", ctypes.c_int64),
        ("series", ctypes.c_int64),
        ("rounds", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class Step:
    """Run the kernel at address `run` for iterations [0, count), `chunk` of them at a time.

    `parallel` steps share their chunks among the threads; others run on the caller, in order.  The first step
    of a `series` of so many has them run one after the other in so many `rounds`; iterations of a round r
    are [r * count, (r + 1) * count).
    """

    run: int
    count: int
    chunk: int
    parallel: bool
    series: int = 1
    rounds: int = 1


class StepArray:
    """The steps of one call as the pool reads them: at `address`, for as long as this object lives, with the
    `library` that has their kernels."""

    def __init__(self, steps: Sequence[Step], library: object = None) -> None:
        self.steps = tuple(steps)
        self.library = library
        self.array = (_Step * max(1, len(self.steps)))(
            *[_Step(s.run, s.count, s.chunk, int(s.parallel), s.series, s.rounds) for s in self.steps]
        )
        self.address = ctypes.addressof(self.array)

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call ready to be repeated: set `buffers[i]` (addresses) and `numbers[i]`, then `call()`.

    `call()` returns 0, or ENOMEM if there is no scratch memory (see `check`).  The two arrays are
    shared: two Python threads that use the same PreparedCall at once need one each.
    """

    call: Callable[[], int]
    buffers: ctypes.Array[ctypes.c_void_p]
    numbers: ctypes.Array[ctypes.c_int64]
    steps: StepArray
    scratch_bytes: int
    flags: int

    def check(self) -> None:
        """`call()`, raising MemoryError where it returns ENOMEM."""
        if self.call():
            raise MemoryError("no memory for the scratch space of a kernel")


class Pool:
    """The process's only thread pool."""

    _instance: Pool | None = None
    _lock = ForkLock()

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        address = ctypes.cast(library.pf_run, ctypes.c_void_p).value
        assert address is not None
        self.run_address: int = address
        """Where ``pf_run`` is, for generated code that calls it itself."""
        library.pf_set_spin.argtypes = [ctypes.c_int64]
        for query in (library.pf_wakeups, library.pf_moves, library.pf_fp_state):
            query.restype = ctypes.c_int64
        # No argtypes on pf_run: arguments come as ctypes objects already, and checking costs time.

    @classmethod
    def get(cls) -> Pool:
        """The pool, compiled and loaded at the first call; no thread starts before it is needed.

        Raises ToolchainError: PF701-PF704 as `load_shared`, PF705 for a bad POLYFUSE_NUM_THREADS.
        """
        pool = cls._instance
        if pool is None:
            with cls._lock:
                pool = cls._instance or cls._load()
                cls._instance = pool
        return pool

    @classmethod
    def _load(cls) -> Pool:
        threads = default_threads()
        source = importlib.resources.files("polyfuse.runtime.cpu").joinpath("pool.cpp").read_text("utf-8")
        pool = cls(load_shared(source, extra_flags=("-pthread",)))
        pool.set_threads(threads)
        return pool

    @property
    def threads(self) -> int:
        """Threads that share parallel steps, the caller included."""
        return int(self._library.pf_threads())

    def set_threads(self, n: int) -> int:
        """Use `n` threads from the next call on (1 to 1024, clipped); waits for a call that runs.

        With more threads than cores nobody spins for long: the spinner would hold up a worker.
        """
        n = int(self._library.pf_set_threads(max(1, min(n, MAX_THREADS))))
        self.set_spin_ns(SPIN_NS if n <= available_cores() else 0)
        return n

    def set_spin_ns(self, ns: int) -> None:
        """How long an idle thread spins before it sleeps. 0 is polite to other thread pools."""
        self._library.pf_set_spin(ns)

    @property
    def started(self) -> int:
        """Workers that exist now (not counting callers)."""
        return int(self._library.pf_started())

    @property
    def wakeups(self) -> int:
        """How often a sleeping worker was woken so far."""
        return int(self._library.pf_wakeups())

    @property
    def moves(self) -> int:
        """How often a worker was moved off the core of the caller so far."""
        return int(self._library.pf_moves())

    def fp_state(self) -> int:
        """The floating-point control register of this thread (mxcsr, fpcr; 0 where unknown)."""
        return int(self._library.pf_fp_state())

    def prepare(
        self,
        steps: StepArray,
        *,
        buffers: int,
        numbers: Sequence[int] = (),
        scratch_bytes: int = 0,
        flush_denormals: bool = True,
    ) -> PreparedCall:
        """A call with room for `buffers` addresses; `scratch_bytes` per thread, 64-byte aligned."""
        addresses = (ctypes.c_void_p * max(1, buffers))()
        values = (ctypes.c_int64 * max(1, len(numbers)))(*numbers)
        flags = FLUSH_DENORMALS if flush_denormals else 0
        call = partial(
            self._library.pf_run,
            steps.array,  # passed as its address, and kept alive by this call
            ctypes.c_int64(len(steps)),
            addresses,
            values,
            ctypes.c_int64(scratch_bytes),
            ctypes.c_int64(flags),
        )
        return PreparedCall(call, addresses, values, steps, scratch_bytes, flags)


def available_cores() -> int:
    """Cores this process may use: its affinity mask where the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def default_threads() -> int:
    """``$POLYFUSE_NUM_THREADS``, else one thread per available core. Raises ToolchainError PF705."""
    text = os.environ.get(ENV_THREADS, "").strip()
    if not text:
        return min(available_cores(), MAX_THREADS)
    if not text.isdecimal() or not 1 <= int(text) <= MAX_THREADS:
        raise ToolchainError(
            f"{ENV_THREADS} is {text!r}, not a number of threads",
            code="PF705",
            hint=f"give a whole number from 1 to {MAX_THREADS}, or unset it to use every core of the process",
        )
    return int(text)
