"""Libraries of kernels in this process: loaded for those that use them, and unloaded with the last one.

`KernelLibrary` is held by whatever has an address of its functions: an executable, the steps of a call
(`runtime.pool.StepArray`), a function taken from it.  The system counts how often a file is loaded, so two
operators of one source have a library each.  No thread is in a kernel when the last owner goes: whoever calls
holds an owner, and the pool returns when all threads have left the kernels.
"""

from __future__ import annotations

import _ctypes
import ctypes
import weakref
from collections.abc import Callable
from pathlib import Path

from polyfuse.runtime.sanitizers import sanitized

# Not documented, so not everywhere: without it libraries stay.
_close: Callable[[int], None] | None = getattr(_ctypes, "dlclose", None)
_symbol: Callable[[int, str], int] | None = getattr(_ctypes, "dlsym", None)


class KernelLibrary(ctypes.CDLL):
    """A library that the process no longer has when nothing refers to this object. Functions of ctypes do,
    and to themselves: with one of them it stays until the garbage collector runs.

    It stays where the process ends, and with sanitizers, whose reports name functions of libraries that are
    there.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        if _close is not None and not sanitized():
            weakref.finalize(self, _close, self._handle).atexit = False

    def address(self, name: str) -> int:
        """Where a function is, for as long as the library is there."""
        if _symbol is not None:
            return _symbol(self._handle, name)
        found = ctypes.cast(self[name], ctypes.c_void_p).value
        assert found is not None
        return found
