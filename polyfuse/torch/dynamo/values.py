"""Values of nodes while a region is lowered: a shape, a dtype, and what gives an element.

A value that is `stored` lies in a tensor of the graph, or is a view of one: reading it several times costs
little.  Any other is computed where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    DType,
)
from polyfuse.ir.index_expr import IndexExpr
from polyfuse.torch.dynamo.index_maps import Index, unravel
from polyfuse.torch.dynamo.sizes import Extent, equal, is_number, to_ir

Shape: TypeAlias = tuple[Extent, ...]
Indices: TypeAlias = Sequence[Index]
Element: TypeAlias = Callable[[Indices], g.Expr]
"""The expression of an element in the compute dtype of the value."""

DTYPES: dict[str, DType] = {
    "float64": F64, "float32": F32, "float16": F16, "bfloat16": BF16, "int64": I64, "int32": I32,
    "int16": I16, "int8": I8, "uint8": U8, "bool": BOOL,
}  # fmt: skip
"""Those of torch that regions have, by torch's names."""


def dtype_of(dtype: Any) -> DType | None:
    """The language's dtype for one of torch's; None where it has none."""
    return DTYPES.get(str(dtype).removeprefix("torch."))


@dataclass(frozen=True)
class Value:
    """See the module docstring.  `number`: what all elements are, where that is known."""

    shape: Shape
    dtype: DType
    at: Element
    stored: bool = False
    number: float | int | bool | None = None

    def view(self, shape: Sequence[Extent], indices: Callable[[Indices], Indices]) -> Value:
        """The value in another shape: `indices` gives the indices here of an element there."""
        return replace(self, shape=tuple(shape), at=lambda idx: self.at(indices(idx)))

    def computed(self, at: Element, dtype: DType | None = None) -> Value:
        """Of the same shape, computed by `at`."""
        return Value(self.shape, dtype or self.dtype, at)

    def broadcast(self, idx: Indices) -> g.Expr:
        """The element that stands at `idx` of a larger shape, as torch broadcasts."""
        mine = idx[len(idx) - len(self.shape) :]
        ones = (is_number(n) and n == 1 for n in self.shape)
        return self.at([Index() if one else i for i, one in zip(mine, ones, strict=True)])


Splits: TypeAlias = dict[Extent, tuple[Extent, ...]]
"""Extents that views of a region cut, and into which factors."""


@dataclass(frozen=True)
class Storage:
    """A tensor of the graph.

    Its axes are those of the value in the order of memory, without those of extent 1, and cut into the
    factors that views make of them: what views read of it is affine then, whatever the sizes are.
    """

    name: str
    shape: Shape
    dtype: DType
    order: tuple[int, ...]
    splits: Splits
    in_memory: bool = False
    """A tensor without axes is an array of one element: kernels of a GPU take numbers from the host."""

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of the value that it has, in its order."""
        return tuple(d for d in self.order if not (is_number(n := self.shape[d]) and n == 1))

    @property
    def extents(self) -> tuple[IndexExpr, ...]:
        """The shape of the tensor."""
        found = tuple(to_ir(f) for d in self.axes for f in fine(self.shape[d], self.splits))
        return found or (to_ir(1),) * self.in_memory

    def subscripts(self, idx: Indices) -> tuple[Index, ...]:
        """Where an element of the value is."""
        parts = (unravel(idx[d], fine(self.shape[d], self.splits)) for d in self.axes)
        return tuple(i for part in parts for i in part) or (Index(),) * self.in_memory

    def read(self, idx: Indices) -> g.Expr:
        """An element, in the compute dtype."""
        e: g.Expr = g.Read(self.name, tuple(i.ir() for i in self.subscripts(idx)), self.dtype)
        return e if self.dtype.compute is self.dtype else g.Cast(e, self.dtype.compute)

    @property
    def value(self) -> Value:
        """What is stored in it."""
        return Value(self.shape, self.dtype, self.read, stored=True)


def fine(extent: Extent, splits: Splits) -> tuple[Extent, ...]:
    """The factors of an extent."""
    found = splits.get(extent)
    if found is None:
        return (extent,)
    return tuple(f for part in found for f in fine(part, splits))


def note_split(splits: Splits, one: Sequence[Extent], many: Sequence[Extent]) -> None:
    """One axis is several in another shape: it has these factors from now on, if it had none."""
    long = tuple(m for m in many if not (is_number(m) and m == 1))
    if len(one) == 1 and len(long) > 1 and not any(equal(m, one[0]) for m in long):
        splits.setdefault(one[0], long)
