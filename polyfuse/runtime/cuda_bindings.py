"""NVIDIA's Python bindings (`cuda-bindings`) as an `Api`: the functions of `CtypesApi`, called faster."""

from __future__ import annotations

from typing import Any

from polyfuse.diagnostics import DeviceError
from polyfuse.runtime.cuda_api import QUERIES, Api, Call
from polyfuse.runtime.cuda_errors import NO_DRIVER_HINT, NOT_READY, is_lost, status_error

# The bindings take no plain numbers where the header has an enumeration: (its name, which argument).
_ENUMS = {
    "cuDeviceGetAttribute": ("CUdevice_attribute", 0),
    "cuFuncGetAttribute": ("CUfunction_attribute", 0),
    "cuFuncSetAttribute": ("CUfunction_attribute", 1),
    "cuPointerGetAttribute": ("CUpointer_attribute", 0),
    "cuStreamBeginCapture": ("CUstreamCaptureMode", 1),
}
_FLOATS = {"cuEventElapsedTime"}


def bindings_api() -> Api | None:
    """NVIDIA's bindings, or None where they are not installed or do not find a driver."""
    try:
        from cuda.bindings import driver as module

        module.cuDriverGetVersion()  # looks for the library
    except Exception:  # whatever keeps them from loading, ctypes is the other way
        return None
    return BindingsApi(module)


class BindingsApi:
    """`cuda.bindings.driver` as an `Api`."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._made: dict[str, Call] = {}
        self.lost = 0

    @property
    def name(self) -> str:
        return "cuda-bindings"

    def function(self, name: str) -> Call:
        if name not in self._made:
            self._made[name] = self._bind(name)
        return self._made[name]

    def device_name(self, device: int) -> str:
        text = self._ask("cuDeviceGetName", 256, device)[1]
        return bytes(text).split(b"\0", 1)[0].decode(errors="replace")

    def _bind(self, name: str) -> Call:
        raw, ask = getattr(self._module, name), self._ask
        convert = float if name in _FLOATS else int
        if name in _ENUMS:
            kind, place = _ENUMS[name]
            enum = getattr(self._module, kind)

            def with_enum(*inputs: Any) -> Any:
                given = list(inputs)
                given[place] = enum(given[place])
                return _results(ask(name, *given), convert)

            return with_enum
        if name in QUERIES:
            return lambda *inputs: int(ask(name, *inputs)[0]) == 0
        if name == "cuLaunchKernel":

            def launch(*inputs: Any) -> None:
                (status,) = raw(*inputs)
                if status:
                    self._fail(status, name)

            return launch
        return lambda *inputs: _results(ask(name, *inputs), convert)

    def _ask(self, name: str, *inputs: Any) -> tuple[Any, ...]:
        """(status, results), when the status is success or "not ready" to a question."""
        try:
            answer: tuple[Any, ...] = getattr(self._module, name)(*inputs)
        except RuntimeError as error:  # the library, or the function in it, was not found
            raise DeviceError(
                f"CUDA's driver cannot be used: {error}", code="PF740", hint=NO_DRIVER_HINT
            ) from error
        status = int(answer[0])
        if status and not (status == NOT_READY and name in QUERIES):
            self._fail(status, name)
        return answer

    def _fail(self, status: Any, function: str) -> None:
        number = int(status)
        self.lost = self.lost or (number if is_lost(number) else 0)
        names = tuple(
            bytes(text).decode(errors="replace")
            for ask in (self._module.cuGetErrorName, self._module.cuGetErrorString)
            if (text := ask(self._module.CUresult(number))[1])
        )
        raise status_error(number, function, (names[0], names[1]) if len(names) == 2 else None)


def _results(answer: tuple[Any, ...], convert: Call) -> Any:
    values = [convert(v) for v in answer[1:]]
    return None if not values else values[0] if len(values) == 1 else tuple(values)
