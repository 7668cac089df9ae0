"""Views: which element of its base an element of a view is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyfuse.torch.dynamo.index_maps import Index, reshaped, unravel
from polyfuse.torch.dynamo.lowerings.table import Arguments, Node, lowers, tensor_of
from polyfuse.torch.dynamo.sizes import (
    Extent,
    dense_order,
    equal,
    extent_of,
    is_number,
    whole,
)
from polyfuse.torch.dynamo.values import Indices, Value

if TYPE_CHECKING:
    from polyfuse.torch.dynamo.lowering import Lowering

# --- of the same axes, in other order or number -----------------------------------------------------------


@lowers(
    "aten.view", "aten._unsafe_view", "aten.reshape", "aten.view_copy", "aten._reshape_alias",
    group="views", overloads=("default",), is_view=True, reshapes=True,
)  # fmt: skip
def _view(low: Lowering, node: Node, a: Arguments) -> Value:
    v, shape = low.value(a["self"]), low.shape(node)
    return v.view(shape, lambda idx: reshaped(idx, shape, v.shape))


@lowers(
    "aten.alias", "aten.detach", "aten.lift_fresh_copy", "aten.lift_fresh", "aten.alias_copy",
    "aten.detach_copy", group="views", is_view=True,
)  # fmt: skip
def _alias(low: Lowering, node: Node, a: Arguments) -> Value:
    return low.value(a["self"])


def _permuted(v: Value, order: list[int]) -> Value:
    """Axis d is axis order[d] of the base."""
    back = [order.index(d) for d in range(len(order))]
    return v.view([v.shape[d] for d in order], lambda idx: [idx[d] for d in back])


@lowers("aten.permute", "aten.permute_copy", group="views", is_view=True)
def _permute(low: Lowering, node: Node, a: Arguments) -> Value:
    v = low.value(a["self"])
    return _permuted(v, [d % len(v.shape) for d in a["dims"]])


@lowers("aten.t", "aten.t_copy", group="views", is_view=True)
def _t(low: Lowering, node: Node, a: Arguments) -> Value:
    v = low.value(a["self"])
    return _permuted(v, list(reversed(range(len(v.shape)))))


@lowers("aten.transpose", "aten.transpose_copy", group="views", overloads=("int",), is_view=True)
def _transpose(low: Lowering, node: Node, a: Arguments) -> Value:
    v = low.value(a["self"])
    order = list(range(len(v.shape)))
    if order:
        one, other = a["dim0"] % len(order), a["dim1"] % len(order)
        order[one], order[other] = other, one
    return _permuted(v, order)


@lowers("aten.unsqueeze", "aten.unsqueeze_copy", group="views", is_view=True)
def _unsqueeze(low: Lowering, node: Node, a: Arguments) -> Value:
    v = low.value(a["self"])
    d = a["dim"] % (len(v.shape) + 1)
    return v.view(low.shape(node), lambda idx: [*idx[:d], *idx[d + 1 :]])


@lowers("aten.squeeze", "aten.squeeze_copy", group="views", is_view=True)
def _squeeze(low: Lowering, node: Node, a: Arguments) -> Value:
    v = low.value(a["self"])
    asked = low.axes(a.get("dim"), len(v.shape)) if a.get("dim") != [] else ()
    gone = [d for d in asked if equal(v.shape[d], 1)]
    return without_axes(v, gone)


def without_axes(v: Value, gone: list[int]) -> Value:
    """The value without axes of one element."""
    kept = [d for d in range(len(v.shape)) if d not in gone]

    def indices(idx: Indices) -> Indices:
        return [idx[kept.index(d)] if d in kept else Index() for d in range(len(v.shape))]

    return v.view([v.shape[d] for d in kept], indices)


@lowers("aten.expand", "aten.expand_copy", group="views", is_view=True)
def _expand(low: Lowering, node: Node, a: Arguments) -> Value:
    v, shape = low.value(a["self"]), low.shape(node)
    new = len(shape) - len(v.shape)
    ones = [equal(n, 1) for n in v.shape]
    return v.view(shape, lambda idx: [Index() if one else idx[new + d] for d, one in enumerate(ones)])


# --- of a part --------------------------------------------------------------------------------------------


def shifted(v: Value, axis: int, start: Extent, length: Extent, step: Extent = 1) -> Value:
    """Elements start, start + step, ... along an axis."""
    shape = [*v.shape[:axis], length, *v.shape[axis + 1 :]]
    return v.view(shape, lambda idx: [*idx[:axis], idx[axis] * step + start, *idx[axis + 1 :]])


def clamped(start: Extent, length: Extent) -> Extent:
    """The first element of a slice."""
    if is_number(start) and start < 0:
        start = whole(start + length)
    return min(max(start, 0), length) if is_number(start) and is_number(length) else start


@lowers("aten.slice", "aten.slice_copy", group="views", overloads=("Tensor",), is_view=True)
def _slice(low: Lowering, node: Node, a: Arguments) -> Value:
    v = low.value(a["self"])
    d = a["dim"] % len(v.shape)
    start = 0 if a["start"] is None else clamped(low.extent(a["start"]), v.shape[d])
    return shifted(v, d, start, low.shape(node)[d], low.extent(a["step"]))


@lowers("aten.select", "aten.select_copy", group="views", overloads=("int",), is_view=True)
def _select(low: Lowering, node: Node, a: Arguments) -> Value:
    v = low.value(a["self"])
    d = a["dim"] % len(v.shape)
    return _row(v, d, clamped(low.extent(a["index"]), v.shape[d]))


def _row(v: Value, d: int, k: Extent) -> Value:
    shape = [*v.shape[:d], *v.shape[d + 1 :]]
    return v.view(shape, lambda idx: [*idx[:d], Index(constant=k), *idx[d:]])


@lowers("aten.split", "aten.split_copy", group="views", overloads=("Tensor",), is_view=True)
def _split(low: Lowering, node: Node, a: Arguments) -> list[Value]:
    size = low.extent(a["split_size"])
    return _parts(low, node, a, [whole(size * k) for k in range(len(low.shapes(node)))])


@lowers(
    "aten.split_with_sizes", "aten.split_with_sizes_copy", group="views", overloads=("default",), is_view=True
)
def _split_with_sizes(low: Lowering, node: Node, a: Arguments) -> list[Value]:
    starts: list[Extent] = [0]
    for n in a["split_sizes"]:
        starts.append(whole(starts[-1] + low.extent(n)))
    return _parts(low, node, a, starts[:-1])


def _parts(low: Lowering, node: Node, a: Arguments, starts: list[Extent]) -> list[Value]:
    v = low.value(a["self"])
    d = a["dim"] % len(v.shape)
    return [shifted(v, d, at, shape[d]) for at, shape in zip(starts, low.shapes(node), strict=True)]


@lowers("aten.unbind", "aten.unbind_copy", group="views", overloads=("int",), is_view=True)
def _unbind(low: Lowering, node: Node, a: Arguments) -> list[Value]:
    v = low.value(a["self"])
    d = a["dim"] % len(v.shape)
    return [_row(v, d, k) for k in range(len(low.shapes(node)))]


@lowers("aten.diagonal", "aten.diagonal_copy", group="views", overloads=("default",), is_view=True)
def _diagonal(low: Lowering, node: Node, a: Arguments) -> Value:
    v, shape = low.value(a["self"]), low.shape(node)
    one, other = a["dim1"] % len(v.shape), a["dim2"] % len(v.shape)
    down, right = max(-a["offset"], 0), max(a["offset"], 0)

    def indices(idx: Indices) -> Indices:
        rest = iter(idx[:-1])
        places = {one: idx[-1] + down, other: idx[-1] + right}
        return [places[d] if d in places else next(rest) for d in range(len(v.shape))]

    return v.view(shape, indices)


@lowers("aten.unfold", "aten.unfold_copy", group="views", is_view=True)
def _unfold(low: Lowering, node: Node, a: Arguments) -> Value:
    v, step = low.value(a["self"]), a["step"]
    d = a["dimension"] % max(1, len(v.shape))
    return v.view(low.shape(node), lambda idx: [*idx[:d], idx[d] * step + idx[-1], *idx[d + 1 : -1]])


# --- of memory --------------------------------------------------------------------------------------------


def _of_memory(node: Node, a: Arguments) -> str:
    """Is the base as it lies in memory, from its first element on, and without gaps?"""
    base, found = a["self"], tensor_of(a["self"])
    plain = base.op == "placeholder" or (base.op == "call_function" and not _makes_view(base))
    start = found.storage_offset() if a["storage_offset"] is None else a["storage_offset"]
    shape, strides = (tuple(map(extent_of, x)) for x in (found.shape, found.stride()))
    fresh = plain and isinstance(found.storage_offset(), int) and found.storage_offset() == 0
    dense = dense_order(shape, strides) is not None and isinstance(start, int)
    return "" if fresh and dense else "strides of memory that is not the tensor's own"


def _makes_view(base: Any) -> bool:
    return bool(getattr(base.target, "is_view", False)) or getattr(base.target, "__name__", "") == "getitem"


@lowers(
    "aten.as_strided",
    "aten.as_strided_copy",
    group="views",
    overloads=("default",),
    is_view=True,
    refuse=_of_memory,
)
def _as_strided(low: Lowering, node: Node, a: Arguments) -> Value:
    base = a["self"]
    v, shape = low.value(base), low.shape(node)
    order = dense_order(v.shape, tuple(low.extent(s) for s in tensor_of(base).stride()))
    assert order is not None
    strides = [low.extent(s) for s in a["stride"]]
    start = 0 if a["storage_offset"] is None else low.extent(a["storage_offset"])

    def indices(idx: Indices) -> Indices:
        place = Index(constant=start)
        for i, s in zip(idx, strides, strict=True):
            place = place + i * s
        found = dict(zip(order, unravel(place, [v.shape[d] for d in order]), strict=True))
        return [found[d] for d in range(len(v.shape))]

    return v.view(shape, indices)
