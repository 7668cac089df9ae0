"""Words of two integers of 16 bits in NumPy (`layers.paired_steps`)."""

from __future__ import annotations

from typing import Any

import numpy as np

# An array of integers, or one.
Integers = Any


def word(low: Integers, high: Integers) -> Integers:
    """The low 16 bits of both."""
    return np.bitwise_or(np.left_shift(high, 16), np.bitwise_and(low, 0xFFFF))


def dot_words(a: Integers, b: Integers) -> Integers:
    """The products of halves, added."""
    low = np.multiply(_low(a), _low(b))
    return np.add(low, np.multiply(np.right_shift(a, 16), np.right_shift(b, 16)))


def _low(x: Integers) -> Integers:
    """The lower half with its sign."""
    return np.subtract(np.bitwise_xor(np.bitwise_and(x, 0xFFFF), 0x8000), 0x8000)
