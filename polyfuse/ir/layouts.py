"""How the memory of an operator's arguments lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Layouts:
    """By name, what is not dense and row-major.

    strided   tensors with strides of their own, known when they are passed
    orders    axes of inputs as they lie in memory, where that is another order
    """

    strided: frozenset[str] = frozenset()
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


DENSE = Layouts()
