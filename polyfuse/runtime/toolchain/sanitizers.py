"""Compiled code under AddressSanitizer and UndefinedBehaviorSanitizer: flags, and memory with redzones.

`python -m polyfuse.runtime.toolchain.run_sanitized` starts a process for it.  There every kernel, the pool
and the launcher are compiled with checks of each access, and whatever a kernel is given lies apart from all
else: each result, each temporary and each array of a worker is an allocation of exactly its size, so that one
element too far is found.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfuse.diagnostics import ToolchainError

ENV_SANITIZE = "POLYFUSE_SANITIZE"
_FLAGS = (
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fsanitize-recover=all",  # options of the runtime say whether the first report ends the process
    "-fno-omit-frame-pointer",
    "-g1",
    "-O0",  # the last one counts: with -O1 checks take ten times as long to compile
    "-DPF_SANITIZED",
)


@cache
def sanitized() -> bool:
    """Is code compiled with sanitizers in this process? Raises ToolchainError PF705 where that cannot be."""
    text = os.environ.get(ENV_SANITIZE, "").strip()
    if text in ("", "0"):
        return False
    if text != "1" or not hasattr(ctypes.CDLL(None), "__asan_init"):
        raise ToolchainError(
            f"{ENV_SANITIZE} is {text!r}, but the runtime of AddressSanitizer is not loaded"
            if text == "1"
            else f"{ENV_SANITIZE} is {text!r}, not 0 or 1",
            code="PF705",
            hint="start it by `python -m polyfuse.runtime.toolchain.run_sanitized`: it sets what is needed",
        )
    return True


def sanitizer_flags() -> tuple[str, ...]:
    """What the compiler needs besides its own flags."""
    return _FLAGS if sanitized() else ()


def compiler_environment() -> dict[str, str]:
    """Of a compiler's process: it has no use for the sanitizers' runtime."""
    return {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" or not sanitized()}


class _Allocation:
    """The base of an array on exactly so many bytes, which are freed with it."""

    __slots__ = ("__array_interface__", "_address")

    def __init__(self, nbytes: int, alignment: int) -> None:
        found = ctypes.c_void_p()
        if _libc().posix_memalign(ctypes.byref(found), ctypes.c_size_t(alignment), ctypes.c_size_t(nbytes)):
            raise MemoryError(f"cannot allocate {nbytes} bytes")
        self._address = found.value or 0
        self.__array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (self._address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        _libc().free(ctypes.c_void_p(self._address))


def exact_block(nbytes: int, alignment: int) -> tuple[NDArray[np.uint8], int]:
    """An array of bytes between redzones, and its address."""
    made = _Allocation(nbytes, alignment)
    return np.asarray(made), made._address


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
