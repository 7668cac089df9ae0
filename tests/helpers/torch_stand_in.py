"""A stand-in for what torch knows of a tensor apart from its memory: gradients, versions, wrappers."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Marks:
    """Of a tensor, what torch says of it; a base of stand-ins for tensors."""

    requires_grad = False
    inference = False
    wrapped = False
    tangent: object = None
    version = 0

    def is_inference(self) -> bool:
        return self.inference


class Modes(ModuleType):
    """Of torch, what it says of tensors: a base of stand-ins for torch."""

    def __init__(self, tensor: type[Marks]) -> None:
        super().__init__("torch")
        self.Tensor = tensor
        self.nn = SimpleNamespace(Parameter=type("Parameter", (tensor,), {}))
        self.grad_mode, self.in_inference_mode = True, False
        self.is_grad_enabled = lambda: self.grad_mode
        self.is_inference_mode_enabled = lambda: self.in_inference_mode
        self._C = SimpleNamespace(_functorch=SimpleNamespace(is_functorch_wrapped_tensor=lambda t: t.wrapped))
        self.autograd = SimpleNamespace(
            forward_ad=SimpleNamespace(unpack_dual=lambda t: SimpleNamespace(tangent=t.tangent)),
            graph=SimpleNamespace(increment_version=self._increment),
        )

    @staticmethod
    def _increment(tensor: Marks) -> None:
        assert not tensor.inference
        tensor.version += 1


class HostTensor(Marks):
    """A tensor on the host, whose memory is an array's."""

    def __init__(self, array: Array, device: str = "cpu", **marks: Any) -> None:
        self.array, self.dtype = array, f"torch.{array.dtype}"
        self.device = SimpleNamespace(type=device)
        for name, value in marks.items():
            setattr(self, name, value)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def to(self, dtype: str) -> HostTensor:
        return HostTensor(self.array.astype(dtype.removeprefix("torch.")))

    def detach(self) -> HostTensor:
        return self

    def numpy(self) -> Array:
        return self.array


class HostTorch(Modes):
    """As much of torch as calls on the host use."""

    def __init__(self) -> None:
        super().__init__(HostTensor)
        self.bfloat16, self.int64, self.strided = "torch.bfloat16", "torch.int64", "torch.strided"

    def from_numpy(self, array: Array) -> HostTensor:
        return HostTensor(array)
