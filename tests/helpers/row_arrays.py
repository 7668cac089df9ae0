"""Numbers of row programs, and how arrays of them lie in memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from polyfuse.ir.dtypes import BY_NAME

Array = np.ndarray[Any, np.dtype[Any]]

# What a share of the elements may be: among them ends of f16, and numbers that are subnormal there.
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 65504.0, -65504.0, 6e-8, -1e-7, 1e-30)
TAME = ("normal", "normal", "normal", "positive", "integers", "zeros")


def random_values(rng: random.Random, shape: tuple[int, ...], dtype: str, special: bool) -> Array:
    """Floats of moderate size, some of them special if asked for."""
    numbers = np.random.default_rng(rng.randrange(1 << 32))
    values = numbers.standard_normal(shape)
    match rng.choice(TAME):
        case "positive":
            values = np.abs(values) + 0.125
        case "integers":
            values = np.round(values * 2.0)
        case "zeros":
            values = np.where(numbers.random(shape) < 0.6, 0.0, values)
    if special:
        share = rng.choice([0.2, 0.02, 0.002])
        values = np.where(numbers.random(shape) < share, numbers.choice(SPECIAL, shape), values)
    return np.asarray(values).astype(BY_NAME[dtype].numpy)


def random_indices(rng: random.Random, shape: tuple[int, ...], dtype: str, size: int, beyond: bool) -> Array:
    """Places among `size`, or some beyond both ends of them."""
    numbers = np.random.default_rng(rng.randrange(1 << 32))
    low, high = (-3, size + 4) if beyond else (0, size)
    return np.asarray(numbers.integers(low, high, shape)).astype(BY_NAME[dtype].numpy)


def _transposed(a: Array) -> Array:
    return np.array(a.T, order="C").T


def _steps(a: Array) -> Array:
    around = np.full([2 * n + 1 for n in a.shape], 5, a.dtype)
    return _filled(around[tuple(slice(0, 2 * n, 2) for n in a.shape)], a)


def _row_steps(a: Array) -> Array:
    return _filled(np.full((3 * a.shape[0], *a.shape[1:]), 5, a.dtype)[::3], a)


def _reversed(a: Array) -> Array:
    back = (slice(None, None, -1),) * a.ndim
    return np.array(a[back], order="C")[back]


def _offset(a: Array) -> Array:
    return _filled(np.zeros(a.size + 4, a.dtype)[1 : 1 + a.size].reshape(a.shape), a)


def _wide(a: Array) -> Array:
    around = np.full((*a.shape[:-1], a.shape[-1] + 5), 9, a.dtype)
    return _filled(around[..., 1 : 1 + a.shape[-1]], a)


def _wide_transposed(a: Array) -> Array:
    return _wide(a.T).T


def _filled(view: Array, a: Array) -> Array:
    view[...] = a
    return view


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "contiguous": lambda a: np.array(a, order="C"),
    "transposed": _transposed,
    "steps": _steps,
    "row steps": _row_steps,
    "reversed": _reversed,
    "offset": _offset,
    "wide": _wide,
    "wide transposed": _wide_transposed,
}
DENSE = "contiguous"


def random_layout(rng: random.Random) -> str:
    return DENSE if rng.random() < 0.6 else rng.choice(list(LAYOUTS))


def laid_out(a: Array, layout: str) -> Array:
    """A new array equal to `a`, laid out in memory as said."""
    return LAYOUTS[layout](a) if a.ndim else np.array(a)
