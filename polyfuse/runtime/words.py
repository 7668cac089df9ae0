"""Words of two integers of 16 bits, of four bytes, or of two bf16, in NumPy (`layers.paired_steps`)."""

from __future__ import annotations

from typing import Any

import numpy as np

# An array of numbers, or one.
Integers = Any
Floats = Any
_UPPER = np.uint32(0xFFFF0000)


def word(low: Integers, high: Integers) -> Integers:
    """The low 16 bits of both."""
    return np.bitwise_or(np.left_shift(high, 16), np.bitwise_and(low, 0xFFFF))


def dot_words(a: Integers, b: Integers) -> Integers:
    """The products of halves, added."""
    low = np.multiply(_low(a), _low(b))
    return np.add(low, np.multiply(np.right_shift(a, 16), np.right_shift(b, 16)))


def half(low: Integers, high: Integers) -> Integers:
    """The low 8 bits of both."""
    return np.bitwise_or(np.left_shift(np.bitwise_and(high, 0xFF), 8), np.bitwise_and(low, 0xFF))


def dot_bytes(a: Integers, b: Integers) -> Integers:
    """The products of bytes, added: those of `a` have signs, those of `b` none."""
    total = np.zeros_like(a)
    for shift in range(0, 32, 8):
        one, other = (np.bitwise_and(np.right_shift(x, shift), 0xFF) for x in (a, b))
        signed = np.subtract(np.bitwise_xor(one, 0x80), 0x80)
        total = np.add(total, np.multiply(signed, other))
    return total


def pair(low: Floats, high: Floats) -> Floats:
    """The upper 16 bits of both, as an f32 that is no number."""
    return np.bitwise_or(_bits(high) & _UPPER, _bits(low) >> 16).view(np.float32)


def dot_pairs(a: Floats, b: Floats) -> Floats:
    """The products of bf16, added."""
    low = np.multiply((_bits(a) << 16).view(np.float32), (_bits(b) << 16).view(np.float32))
    upper = np.multiply((_bits(a) & _UPPER).view(np.float32), (_bits(b) & _UPPER).view(np.float32))
    return np.add(low, upper)


def _bits(x: Floats) -> Integers:
    return np.asarray(x, np.float32).view(np.uint32)


def _low(x: Integers) -> Integers:
    """The lower half with its sign."""
    return np.subtract(np.bitwise_xor(np.bitwise_and(x, 0xFFFF), 0x8000), 0x8000)
