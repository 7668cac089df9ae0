"""What a case of the operators is: one text in the tensor language, and the same in PyTorch and JAX."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import polyfuse as pf
from benchmarks.workload import at_line

Array = np.ndarray[Any, Any]
NUMPY_DTYPES = {"i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8", "u8": "u1"}


class Draw:
    """Random arrays, the same in every process."""

    def __init__(self, name: str) -> None:
        self._rng = np.random.default_rng(zlib.crc32(name.encode()))

    def __call__(self, *shape: int, dtype: str = "f32") -> Array:
        """Normal numbers."""
        if dtype == "f64":
            return self._rng.standard_normal(shape)
        found = self._rng.standard_normal(shape, dtype="f4")
        return found if dtype == "f32" else found.astype(half(dtype))

    def unit(self, *shape: int) -> Array:
        """Numbers between 0 and 1, neither of the two."""
        return self._rng.random(shape, dtype="f4") * np.float32(0.998) + np.float32(0.001)

    def ints(self, low: int, high: int, *shape: int, dtype: str = "i64") -> Array:
        """Integers from `low` on, below `high`."""
        return self._rng.integers(low, high, shape, dtype=NUMPY_DTYPES[dtype])

    def coins(self, *shape: int) -> Array:
        """True or false."""
        return self._rng.random(shape) < 0.5


def half(dtype: str) -> Any:
    """NumPy's dtype of f16 or bf16."""
    import ml_dtypes

    return {"f16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype]


@dataclass(frozen=True)
class Case:
    """`text` is an operator `f`, or the name of one of the standard library.  `torch` takes the modules
    torch and torch.nn.functional, `jax` takes jax and jax.numpy, then both the arrays.

    `updated`: which arguments change in place; PyTorch's function does it too, JAX's returns the new ones.
    `eager`: what an expert calls instead where nothing is compiled.  `tolerance` replaces the dtype's.
    """

    name: str
    text: str
    inputs: Callable[[Draw], tuple[Array, ...]]
    torch: Callable[..., Any]
    jax: Callable[..., Any]
    updated: tuple[int, ...] = ()
    eager: Callable[..., Any] | None = None
    tolerance: float | None = None

    @property
    def operator(self) -> str:
        """The name of the operator in its program."""
        return self.text if self.text.isidentifier() else "f"

    def program(self) -> pf.Program:
        """What holds the operator."""
        return pf.stdlib if self.text.isidentifier() else pf.parse(self.text)

    def arguments(self) -> tuple[Array, ...]:
        """Fresh arrays that begin at cache lines, in the order of the signature."""
        return tuple(map(at_line, self.inputs(Draw(self.name))))
