"""Arrays of other libraries on a GPU: in without copies, on the stream that their library works on.

torch says by its current stream what comes before and after; everything else says it through the array
interface or DLPack (`runtime.cuda.arguments`).  Results are made by the library that the arguments are from.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np

from polyfuse.diagnostics import ArgumentError
from polyfuse.interop.torch_tensors import is_torch, require_memory
from polyfuse.runtime.cuda.arguments import DeviceView, device_view, on_device

ResultKind = Literal["numpy", "torch", "cupy", "device"]

_TORCH_DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int64": np.dtype(np.int64),
    "int32": np.dtype(np.int32),
    "int16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
    "uint64": np.dtype(np.uint64),
    "uint32": np.dtype(np.uint32),
    "uint16": np.dtype(np.uint16),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}


def to_device(value: object, name: str) -> DeviceView | None:
    """The memory of an array on a GPU; None for values that are not there.

    Raises ArgumentError PF402 for a dtype that the language does not have, PF417 for memory that cannot be
    used as it is, PF420 or PF421 for tensors that are more than their memory.
    """
    if is_torch(value):
        return _torch_view(value, name)
    return device_view(value, name) if on_device(value) else None


def result_kind(values: Iterable[object]) -> ResultKind:
    """Where the results of a call belong: with the arrays among its arguments, if these agree.

    numpy    there are no arrays, or one is on the host
    torch, cupy    all arrays are of this library, on a GPU: `empty_result` makes the memory
    device   all arrays are on a GPU: results are our own `DeviceArray`
    """
    kinds = {_kind(v) for v in values if not _is_number(v)}
    if not kinds or "numpy" in kinds:
        return "numpy"
    return kinds.pop() if len(kinds) == 1 else "device"


def empty_result(
    kind: Literal["torch", "cupy"], shape: Sequence[int], dtype: np.dtype[Any], device: int
) -> Any:
    """Uninitialised memory of torch or cupy on a GPU."""
    library: Any = sys.modules[kind]
    if kind == "torch":
        return library.empty(tuple(shape), dtype=torch_dtype(library, dtype), device=f"cuda:{device}")
    with library.cuda.Device(device):
        return library.empty(tuple(shape), dtype)


def torch_dtype(torch: Any, dtype: np.dtype[Any]) -> Any:
    """What torch calls a dtype."""
    return getattr(torch, next(n for n, t in _TORCH_DTYPES.items() if t == dtype))


def torch_dtypes(torch: Any) -> list[tuple[Any, np.dtype[Any]]]:
    """All dtypes that this torch has of those of the language, beside NumPy's."""
    return [(getattr(torch, name), d) for name, d in _TORCH_DTYPES.items() if hasattr(torch, name)]


def _kind(value: object) -> ResultKind:
    if is_torch(value):
        tensor: Any = value
        return "torch" if tensor.device.type == "cuda" else "numpy"
    cupy: Any = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        return "cupy"
    return "device" if on_device(value) else "numpy"


def _is_number(value: object) -> bool:
    """Scalars have no say in where results go, on whichever side they are."""
    return isinstance(value, (bool, int, float, np.generic)) or getattr(value, "shape", None) == ()


def _torch_view(tensor: Any, name: str) -> DeviceView | None:
    torch: Any = sys.modules["torch"]
    require_memory(tensor, name)
    if tensor.device.type == "cpu":
        return None
    if tensor.device.type != "cuda" or tensor.layout is not torch.strided or tensor.is_neg():
        raise ArgumentError(
            f"argument '{name}' cannot be used as it is: {tensor.layout} on {tensor.device}",
            code="PF417",
            hint="dense tensors on the CPU or a CUDA device; .resolve_neg() where a negation is pending",
        )
    dtype = _TORCH_DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise ArgumentError(
            f"argument '{name}' has dtype {tensor.dtype}, which the language does not have", code="PF402"
        )

    def compact() -> DeviceView:
        dense = _torch_view(tensor.contiguous(), name)
        assert dense is not None
        return dense

    return DeviceView(
        address=tensor.data_ptr(),
        dtype=dtype,
        shape=tuple(tensor.shape),
        strides=tuple(s * dtype.itemsize for s in tensor.stride()),
        device=tensor.device.index,
        stream=torch.cuda.current_stream(tensor.device).cuda_stream,
        owner=tensor,
        compact=compact,
    )
