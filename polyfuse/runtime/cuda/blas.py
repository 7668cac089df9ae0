"""Matrix products of a plan on a GPU, by cuBLAS: the same interface as `runtime.cpu.blas` on a CPU.

The library is loaded through ctypes where it is found: NVIDIA's wheel, a toolkit, the system.  There is one
handle for each context; a call sets the stream that its launch belongs to.  Sums are in f32 for f32, f16 and
bf16 (never TF32, no sums in half precision), in f64 for f64.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from polyfuse.diagnostics import DeviceError
from polyfuse.ir.contraction import MatrixProduct
from polyfuse.ir.dtypes import DType
from polyfuse.ir.gemm import Gemm, gemm_of
from polyfuse.runtime.cuda.compiler import find_library
from polyfuse.runtime.cuda.driver import Driver

WHEELS = ("nvidia-cublas-cu12", "nvidia-cublas", "nvidia-cublas-cu13")
INSTALL = "pip install nvidia-cublas-cu12"

# The library's enumerations: cudaDataType, cublasComputeType_t, cublasOperation_t, cublasMath_t.
TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}
COMPUTE_F32, COMPUTE_F64 = 68, 70
OP_N, OP_T = 0, 1
FULL_SUMS = 16  # no reduced precision in sums of half precision; the default otherwise
ALGORITHM = -1

Call = Callable[[Sequence[int], int], None]


@cache
def find_cublas() -> str | None:
    """Where the library is, or None. Nothing is loaded."""
    found = find_library("cublas", WHEELS)
    return found[0] if found else None


class Blas:
    """The library in one context. Raises DeviceError PF748 where it refuses."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._lock = threading.Lock()
        handle = ctypes.c_void_p()
        self._check(library.cublasCreate_v2(ctypes.byref(handle)), "cublasCreate")
        self._handle = handle
        self._check(library.cublasSetMathMode(handle, ctypes.c_int(FULL_SUMS)), "cublasSetMathMode")

    def step(
        self, product: MatrixProduct, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, DType]
    ) -> Call:
        """A product as a step: called with the addresses of left, right and result, and a stream."""
        gemm = gemm_of(product, shapes)
        assert gemm is not None, "layers.library_calls asks before"
        operands = (product.left, product.right, product.out)
        places = [x.place for x in (gemm.first, gemm.second, gemm.result)]
        types = [dtypes[operands[k].tensor] for k in places]

        def run(addresses: Sequence[int], stream: int) -> None:
            self._run(gemm, [addresses[k] for k in places], types, stream)

        return run

    def _run(self, gemm: Gemm, addresses: Sequence[int], types: Sequence[DType], stream: int) -> None:
        wide = types[2].name == "f64"
        scalar = ctypes.c_double if wide else ctypes.c_float
        one, zero = scalar(1.0), scalar(0.0)
        compute = ctypes.c_int(COMPUTE_F64 if wide else COMPUTE_F32)
        with self._lock:  # the stream belongs to the handle
            check, library, handle = self._check, self._library, self._handle
            check(library.cublasSetStream_v2(handle, ctypes.c_void_p(stream)), "cublasSetStream")
            for offsets in gemm.offsets():
                a, b, c = (
                    (
                        ctypes.c_void_p(base + start * t.bytes),
                        ctypes.c_int(TYPES[t.name]),
                        ctypes.c_int(x.leading),
                        ctypes.c_longlong(x.step),
                    )
                    for base, start, t, x in zip(
                        addresses, offsets, types, (gemm.first, gemm.second, gemm.result), strict=True
                    )
                )
                status = library.cublasGemmStridedBatchedEx(
                    handle,
                    *(ctypes.c_int(OP_T if x.transposed else OP_N) for x in (gemm.first, gemm.second)),
                    *(ctypes.c_int(n) for n in (gemm.rows, gemm.columns, gemm.over)),
                    ctypes.byref(one), *a, *b, ctypes.byref(zero), *c,
                    ctypes.c_int(gemm.batch), compute, ctypes.c_int(ALGORITHM),
                )  # fmt: skip
                check(status, "cublasGemmStridedBatchedEx")

    def _check(self, status: int, call: str) -> None:
        if status:
            raise DeviceError(f"cuBLAS refused: {call} returned status {status}", code="PF748")


_opened: WeakKeyDictionary[Driver, Blas] = WeakKeyDictionary()
_opening = threading.Lock()


def load_library() -> Any:
    """The library itself. Raises DeviceError PF748 if it cannot be loaded."""
    path = find_cublas()
    try:
        return ctypes.CDLL(path or "libcublas.so")
    except OSError as error:
        raise DeviceError(f"cuBLAS cannot be loaded: {error}", code="PF748", hint=INSTALL) from None


def blas_of(driver: Driver) -> Blas:
    """The library in a driver's context, which must be current."""
    with _opening:
        if driver not in _opened:
            _opened[driver] = Blas(load_library())
        return _opened[driver]
