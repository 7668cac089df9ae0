"""Windows that slide: pools, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import I64
from polyfuse.torch.dynamo.index_maps import Index, Quotient, data_index, inside, ravel, unravel, variable
from polyfuse.torch.dynamo.lowerings.structure import conjunction, guarded, select
from polyfuse.torch.dynamo.lowerings.table import Arguments, Node, lowers, tensor_of
from polyfuse.torch.dynamo.sizes import to_ir, whole
from polyfuse.torch.dynamo.terms import Term, constant, converted, of_index
from polyfuse.torch.dynamo.values import Indices, Shape, Value

if TYPE_CHECKING:
    from polyfuse.torch.dynamo.lowering import Lowering


def _each(x: Any, count: int, default: Sequence[int]) -> tuple[int, ...]:
    """A parameter of each axis."""
    if x is None or (isinstance(x, list | tuple) and not x):
        return tuple(default)
    every = list(x) if isinstance(x, list | tuple) else [x]
    return tuple(every * count if len(every) == 1 else every)


@dataclass(frozen=True)
class _Window:
    """Sizes, strides, paddings and dilations of the last axes."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @staticmethod
    def of(a: Arguments, count: int) -> _Window:
        size = _each(a["kernel_size"], count, ())
        ones = (1,) * count
        return _Window(
            size,
            _each(a.get("stride"), count, size),
            _each(a.get("padding"), count, (0,) * count),
            _each(a.get("dilation"), count, ones),
        )

    @property
    def rank(self) -> int:
        """How many axes it slides along."""
        return len(self.size)

    def places(self, idx: Indices, inner: Sequence[Index]) -> list[Index]:
        """The element of the input at a place of the window."""
        lead = len(idx) - self.rank
        return [*idx[:lead]] + [
            idx[lead + k] * self.stride[k] + inner[k] * self.dilation[k] + -self.padding[k]
            for k in range(self.rank)
        ]

    def loops(self) -> tuple[list[Index], tuple[g.IterDim, ...]]:
        """Loops over a window."""
        names = [f"w{k}" for k in range(self.rank)]
        dims = tuple(
            g.IterDim(n, to_ir(0), to_ir(s), True) for n, s in zip(names, self.size, strict=True) if s > 1
        )
        return [variable(n, s) for n, s in zip(names, self.size, strict=True)], dims


def _has_means(node: Node, a: Arguments) -> str:
    return _is_plain(node, a) or ("" if tensor_of(node).dtype.is_floating_point else "means of integers")


def _is_plain(node: Node, a: Arguments) -> str:
    if a.get("ceil_mode"):
        return "windows that begin inside and end outside (ceil_mode)"
    included = a.get("count_include_pad", True) or not any(_each(a.get("padding"), 2, (0, 0)))
    return "" if included else "windows that count less at the border"


def _statement(low: Lowering, kind: str, shape: Shape, made: Any, w: _Window, element: Any) -> None:
    """A reduction over the window of each element."""
    indices, dims = low.loops(shape)
    inner, own = w.loops()
    expr = element(indices, inner)
    low.statement(made, (*dims, *own), indices, expr, kind if own else None)


# --- pools of maxima --------------------------------------------------------------------------------------


@lowers(
    "aten.max_pool2d_with_indices",
    "aten.max_pool3d_with_indices",
    group="pools",
    refuse=_is_plain,
    alone=True,
)
def _max_pool(low: Lowering, node: Node, a: Arguments) -> list[Value]:
    v, count = low.stored_value(a["self"]), 3 if "3d" in str(node.target) else 2
    w, shape, dtype = _Window.of(a, count), low.shapes(node)[0], v.dtype.compute
    least = constant(-math.inf if dtype.is_float else dtype.limits[0], dtype)
    most = low.temporary(shape, dtype)
    _statement(low, "max", shape, most, w, lambda i, k: guarded(v, w.places(i, k), least))
    first = low.temporary(shape, I64)
    indices, dims = low.loops(shape)
    n = math.prod(w.size)
    place = variable("w", n)
    own = (g.IterDim("w", to_ir(0), to_ir(n), True),) if n > 1 else ()
    at = guarded(v, w.places(indices, unravel(place, w.size)), least)
    expr = at if own else constant(0, I64)
    low.statement(first, (*dims, *own), indices, expr, "argmax" if own else None)
    return [most.value, Value(shape, I64, lambda i: _flat_place(first.value, w, i, v.shape))]


def _flat_place(first: Value, w: _Window, idx: Indices, shape: Shape) -> g.Expr:
    """Where in the last axes of the input the maximum of a window is."""
    at = data_index(first.at(idx), math.prod(w.size))
    lead = len(idx) - w.rank
    places = w.places(idx, unravel(at, w.size))[lead:]
    return ravel(places, shape[lead:]).number()


@lowers(
    "aten.max_pool2d_with_indices_backward",
    "aten.max_pool3d_with_indices_backward",
    group="pools",
    alone=True,
)
def _max_pool_backward(low: Lowering, node: Node, a: Arguments) -> Value:
    dy, k, shape = low.value(a["grad_output"]), low.stored_value(a["indices"]), low.shape(node)
    count = 3 if "3d" in str(node.target) else 2
    made = low.target(shape, low.dtype(node).compute, True)
    zero = constant(0, made.dtype)
    low.define(made, lambda idx: zero)
    indices, dims = low.loops(dy.shape, "e")
    lead = len(shape) - count
    flat = Term(converted(k.at(indices), I64))
    where: list[Index] = []
    for n in reversed(shape[lead + 1 :]):
        size = Term(of_index(to_ir(n), I64))
        where.insert(0, data_index((flat % size).expr, n))
        flat = flat // size
    where.insert(0, data_index(flat.expr, shape[lead]))
    low.statement(made, dims, [*indices[:lead], *where], converted(dy.at(indices), made.dtype), "sum", True)
    return made.value


# --- pools of means ---------------------------------------------------------------------------------------


@lowers(
    "aten.avg_pool2d", "aten.avg_pool3d", group="pools", overloads=("default",), refuse=_has_means, alone=True
)
def _avg_pool(low: Lowering, node: Node, a: Arguments) -> Value:
    v, count = low.value(a["self"]), 3 if "3d" in str(node.target) else 2
    w, shape, dtype = _Window.of(a, count), low.shape(node), v.dtype.compute
    zero, total = constant(0, dtype), low.temporary(low.shape(node), dtype)
    _statement(low, "sum", shape, total, w, lambda i, k: guarded(v, w.places(i, k), zero))
    by = Term(constant(a["divisor_override"] or math.prod(w.size), dtype))
    found = total.value
    return found.computed(lambda idx: (Term(found.at(idx)) / by).expr)


@lowers(
    "aten.avg_pool2d_backward",
    "aten.avg_pool3d_backward",
    group="pools",
    overloads=("default",),
    refuse=_has_means,
    alone=True,
)
def _avg_pool_backward(low: Lowering, node: Node, a: Arguments) -> Value:
    dy, shape = low.value(a["grad_output"]), low.shape(node)
    w = _Window.of(a, 3 if "3d" in str(node.target) else 2)
    dtype = dy.dtype.compute
    zero, total = constant(0, dtype), low.temporary(shape, dtype)
    _statement(low, "sum", shape, total, w, lambda i, k: _gradient(dy, w, i, k, zero))
    by = Term(constant(a["divisor_override"] or math.prod(w.size), dtype))
    found = total.value
    return found.computed(lambda idx: (Term(found.at(idx)) / by).expr)


def _gradient(dy: Value, w: _Window, idx: Indices, inner: Sequence[Index], zero: g.Expr) -> g.Expr:
    """What comes from the window in which an element has a place; 0 where there is no such window."""
    lead = len(idx) - w.rank
    tests: list[g.Expr | None] = []
    places: list[Index] = []
    for k in range(w.rank):
        at = idx[lead + k] + w.padding[k] + inner[k] * -1
        stride = w.stride[k]
        tests.append(inside(at, whole(dy.shape[lead + k] * stride)))
        if stride > 1:
            tests.append((Term((at % stride).number()) == 0).expr)
            at = Index(((1, Quotient(at, stride)),))
        places.append(at)
    return select(conjunction(tests), dy.at([*idx[:lead], *places]), zero)
