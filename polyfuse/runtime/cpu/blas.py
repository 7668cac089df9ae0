"""Matrix products of a plan, by NumPy and the BLAS that it comes with.

A call is a step like others: the pool runs it on the thread that called, through a function that finds the
operands in the pointer table.  Memory is not copied: groups of axes are merged and turned as views.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from polyfuse.ir.contraction import MatrixProduct, Operand
from polyfuse.ir.dtypes import DType
from polyfuse.runtime.arguments import Array

_ENTRY = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
)


class LibraryStep:
    """A matrix product as a step of the pool; `address` lives as long as this object."""

    def __init__(
        self,
        product: MatrixProduct,
        places: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
        dtype: DType,
        failures: list[BaseException],
    ) -> None:
        """`places`: where buffers are in the pointer table.  What goes wrong is added to `failures`."""
        self._operands = tuple(
            (places[x.tensor], shapes[x.tensor], x) for x in (product.left, product.right, product.out)
        )
        self._dtype = dtype.numpy
        self._failures = failures
        self._entry = _ENTRY(self._run)  # kept: the pool has only its address
        address = ctypes.cast(self._entry, ctypes.c_void_p).value
        assert address is not None
        self.address: int = address

    def _run(self, buffers: Any, *_: object) -> None:
        try:
            left, right, out = (self._view(buffers[place], shape, x) for place, shape, x in self._operands)
            with np.errstate(all="ignore"):  # as in kernels: not a number is a value
                np.matmul(left, right, out=out)
        except BaseException as error:  # must not leave through foreign code
            self._failures.append(error)

    def _view(self, address: int, shape: tuple[int, ...], x: Operand) -> Array:
        nbytes = int(np.prod(shape, dtype=np.int64)) * self._dtype.itemsize
        memory: Any = (ctypes.c_char * nbytes).from_address(address)
        return matrices(np.frombuffer(memory, self._dtype).reshape(shape), x)


def matrices(array: Array, x: Operand) -> Array:
    """An array as [batch..., outer, inner], without a copy."""
    turned = array.transpose((*x.batch, *x.outer, *x.inner))
    batch = turned.shape[: len(x.batch)]
    outer = int(np.prod(turned.shape[len(x.batch) : len(x.batch) + len(x.outer)], dtype=np.int64))
    merged = turned.reshape((*batch, outer, -1))
    assert np.may_share_memory(merged, array) or not array.size
    return merged
