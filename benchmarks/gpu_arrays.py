"""Arrays of a target: torch tensors on the device for "cuda", NumPy arrays for the others; and large inputs
made quickly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

# What torch has by the same name, and NumPy does not know: such arrays go there as integers of their width.
_AS_INTEGERS = {
    np.dtype(ml_dtypes.bfloat16): "int16",
    np.dtype(ml_dtypes.float8_e4m3fn): "uint8",
    np.dtype(ml_dtypes.float8_e5m2): "uint8",
}
POOL = 1_000_003
"""Numbers that are drawn; a prime, so that rows of large arrays that repeat them differ."""


def to_device(a: Any, target: str, device: str = "cuda") -> Any:
    """An argument for a target; numbers and arrays without axes stay what they are."""
    if target != "cuda" or not isinstance(a, np.ndarray) or a.ndim == 0:
        return a[()] if isinstance(a, np.ndarray) and a.ndim == 0 else a
    import torch

    a = np.ascontiguousarray(a)
    if a.dtype in _AS_INTEGERS:
        return torch.from_numpy(a.view(_AS_INTEGERS[a.dtype])).view(getattr(torch, a.dtype.name)).to(device)
    return torch.from_numpy(a).to(device)


def to_host(a: Any) -> Any:
    """A result as NumPy sees it."""
    if not hasattr(a, "detach"):
        return np.asarray(a)
    import torch

    a = a.detach().cpu()
    for dtype, integers in _AS_INTEGERS.items():
        if a.dtype == getattr(torch, dtype.name, None):  # older ones have no floats of 8 bits
            return a.view(getattr(torch, integers)).numpy().view(dtype)
    return a.numpy()


class Pool:
    """Stands in for a NumPy generator: large arrays repeat numbers that were drawn once."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def standard_normal(self, size: Any, dtype: Any = "f8") -> Any:
        return self._spread(size, lambda n: self._rng.standard_normal(n, dtype))

    def random(self, size: Any, dtype: Any = "f8") -> Any:
        return self._spread(size, lambda n: self._rng.random(n, dtype))

    def integers(self, low: int, high: int, size: Any) -> Any:
        return self._spread(size, lambda n: self._rng.integers(low, high, n))

    def _spread(self, size: Any, draw: Any) -> Any:
        shape = tuple(size) if isinstance(size, Sequence) else (size,)
        count = math.prod(shape)
        drawn = draw(min(count, POOL))
        return drawn.reshape(shape) if len(drawn) == count else np.resize(drawn, shape)
