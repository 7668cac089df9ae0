"""Arrays of other libraries on the CPU: in without copies where possible, out as they came.

NumPy arrays pass as they are.  Anything with DLPack or the array interface (torch, jax) becomes a NumPy
view; results go back through the library of the first such argument.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from polyfuse.diagnostics import ArgumentError, PolyfuseError
from polyfuse.interop.torch_tensors import is_torch, require_memory
from polyfuse.ir.dtypes import I64, from_numpy
from polyfuse.runtime.cuda.arguments import on_device

Array = np.ndarray[Any, np.dtype[Any]]
_ON_GPU = 'compile it with target="cuda", or '


def to_numpy(value: object, name: str) -> tuple[object, Callable[[Array], object] | None]:
    """(NumPy view or the value itself, how results go back: None for NumPy and plain numbers).

    Raises ArgumentError PF417 for an array that lives on another device, PF420 or PF421 for one that is more
    than its memory, PF400 for what cannot be read.
    """
    if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(
            f"argument '{name}' is a masked array, and its mask would be lost",
            code="PF421",
            hint=f"pass {name}.filled(value), or {name}.data and the mask as an argument of its own",
        )
    if isinstance(value, (np.ndarray, np.generic, bool, int, float)):
        return value, None
    with readable(name):
        return _viewed(value, name)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Whatever the argument's own protocol raises is an ArgumentError PF400 that names it."""
    try:
        yield
    except PolyfuseError:
        raise
    except Exception as error:
        message = f"argument '{name}' cannot be read as an array: {type(error).__name__}: {error}"
        hint = f"make it one before: np.asarray({name}), with rows of one length"
        raise ArgumentError(message, code="PF400", hint=hint) from error


def _viewed(value: object, name: str) -> tuple[object, Callable[[Array], object] | None]:
    if isinstance(value, (list, tuple)):
        np.shape(value)  # rows of one length
        return value, None
    if is_torch(value):
        return _torch_view(value, name), to_torch
    if on_device(value):
        raise _elsewhere(name, "a GPU", f"{_ON_GPU}copy it first, as with cupy.asnumpy or .get()")
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value), None
        except (BufferError, RuntimeError, TypeError) as error:
            raise ArgumentError(f"argument '{name}': {error}", code="PF417") from error
    return np.asarray(value), None


def _elsewhere(name: str, where: str, remedy: str) -> ArgumentError:
    return ArgumentError(
        f"argument '{name}' lives on {where}; this operator is compiled for the CPU",
        code="PF417",
        hint=remedy,
    )


_QUARTERS = ("float8_e4m3fn", "float8_e5m2")


def _torch_view(tensor: Any, name: str) -> Array:
    import ml_dtypes

    torch = sys.modules["torch"]
    require_memory(tensor, name)
    if tensor.device.type != "cpu":
        there = _ON_GPU if tensor.device.type == "cuda" else ""
        raise _elsewhere(name, str(tensor.device), f"{there}move it: {name}.cpu()")
    try:
        bare = tensor.detach()
        if bare.dtype == torch.bfloat16:
            view: Array = bare.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
            return view
        for quarter in _QUARTERS:
            if str(bare.dtype) == f"torch.{quarter}":
                bytes_: Array = bare.view(torch.uint8).numpy()
                return bytes_.view(getattr(ml_dtypes, quarter))
        plain: Array = bare.numpy()
        return plain
    except (AssertionError, RuntimeError, TypeError) as error:  # sparse, negated, of a dtype that NumPy lacks
        raise ArgumentError(f"argument '{name}' cannot be used as it is: {error}", code="PF417") from error


def to_torch(array: Array) -> object:
    """A tensor on the array's memory."""
    import ml_dtypes

    torch = sys.modules["torch"]
    if array.dtype == np.dtype(ml_dtypes.bfloat16):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.name in _QUARTERS:
        return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


# --- integer arrays of fewer than 64 bits -----------------------------------------------------------------


_NARROW = ("int32", "int16", "int8", "uint32", "uint16", "uint8")


def widened(value: Any) -> Any:
    """The array as int64, made by its own library, if it holds narrower integers; else the value itself."""
    if isinstance(value, np.ndarray):
        dtype = from_numpy(value.dtype.newbyteorder("="))
        narrow = dtype is not None and dtype.is_integer and dtype != I64 and I64.holds(dtype)
        return value.astype(np.int64) if narrow else value
    if is_torch(value):
        torch: Any = sys.modules["torch"]
        return value.to(torch.int64) if str(value.dtype).removeprefix("torch.") in _NARROW else value
    cupy: Any = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray) and str(value.dtype) in _NARROW:
        return value.astype(np.int64)
    return value
