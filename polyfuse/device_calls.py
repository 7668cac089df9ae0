"""Calls of kernels on a GPU: arguments and results there, on the host, or some on each side.

What lies on the device is used as it lies; results are made where the arguments are.  How host memory gets
to the device and back is the executable's matter (`runtime.cuda_call`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyfuse.calls import Back, CallMemory, Given, require_output, require_writable, tensors_of
from polyfuse.interop.arrays import readable, to_numpy
from polyfuse.interop.device_arrays import empty_result, result_kind, to_device
from polyfuse.ir.dtypes import BF16
from polyfuse.ir.tensor_graph import Role, Tensor
from polyfuse.runtime.cuda import CudaExecutable
from polyfuse.runtime.cuda_arguments import DeviceView, shadow


def given_on_gpu(values: Mapping[str, Any]) -> Given:
    """Arguments for kernels on a GPU: views of what is there, NumPy values of all else.

    Raises ArgumentError PF402, PF417, PF420 or PF421 for arrays that cannot be used.
    """
    found: dict[str, Any] = {}
    back: Back | None = None
    for name, value in values.items():
        with readable(name):
            view = to_device(value, name)
        if view is None:
            found[name], mine = to_numpy(value, name)
            back = back or mine
        else:
            found[name] = view
    return Given(found, back, result_kind(values.values()), tensors_of(values))


class GpuCallMemory(CallMemory):
    """Memory of a call of a `CudaExecutable`."""

    def _argument(self, t: Tensor, value: Any) -> Any:
        if not isinstance(value, DeviceView):
            return super()._argument(t, value)
        # Its dtype and shape are those that the executable was made for: they were checked then.
        if t.role is Role.INOUT:
            require_writable(t, value.writeable, shadow(value))
        return value

    def _given_output(self, name: str) -> Any:
        view = to_device(self.out[name], name) if name in self.out else None
        return super()._given_output(name) if view is None else view

    def _output(self, t: Tensor, shape: tuple[int, ...], given: Any) -> Any:
        if not isinstance(given, DeviceView):
            return super()._output(t, shape, given)
        require_output(t, shape, given, given.writeable, shadow(given))
        return given

    def _fresh(self, t: Tensor, shape: tuple[int, ...]) -> Any:
        kind = self.given.kind
        if kind == "numpy":
            return super()._fresh(t, shape)
        executable = self.instance.built.executable
        assert isinstance(executable, CudaExecutable)
        if kind == "device" or (kind == "cupy" and t.dtype is BF16):  # a type that cupy may not know
            made: Any = executable.device_array(shape, t.dtype.numpy, self._stream())
        else:
            made = empty_result(kind, shape, t.dtype.numpy, executable.driver.properties.index)
        self.out[t.name] = made
        return to_device(made, t.name)

    def _require_room(self) -> None:
        if self.given.kind == "numpy":
            super()._require_room()

    def _stream(self) -> int | None:
        """The one stream of all arguments on the device, if there is such a one."""
        views = (a for a in self.arrays.values() if isinstance(a, DeviceView))
        streams = {v.stream for v in views if v.stream is not None}
        return streams.pop() if len(streams) == 1 else None
