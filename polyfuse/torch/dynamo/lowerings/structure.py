"""Tensors of numbers, and tensors made of parts of others: concatenation, padding, triangles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import BOOL, I64, DType
from polyfuse.torch.dynamo.index_maps import Index, Quotient, inside
from polyfuse.torch.dynamo.lowerings.table import Arguments, Node, lowers
from polyfuse.torch.dynamo.lowerings.views import clamped
from polyfuse.torch.dynamo.sizes import Extent, Unsupported, equal, is_number, to_ir, whole
from polyfuse.torch.dynamo.terms import Term, constant, converted, of_index, stored
from polyfuse.torch.dynamo.values import Indices, Value

if TYPE_CHECKING:
    from polyfuse.torch.dynamo.lowering import Lowering


def select(test: g.Expr | None, then: g.Expr, other: g.Expr) -> g.Expr:
    """`then if test else other`; a condition that always holds is None."""
    return then if test is None else g.Select(test, then, other, then.dtype)


# --- numbers ----------------------------------------------------------------------------------------------

_NUMBERS = {
    "zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1,
    "empty": 0, "empty_like": 0, "new_empty": 0, "zero": 0,
}  # fmt: skip


@lowers(
    *(f"aten.{n}" for n in _NUMBERS), "aten.full", "aten.full_like", "aten.new_full", "aten.scalar_tensor",
    group="numbers", free=True,
)  # fmt: skip
def _full(low: Lowering, node: Node, a: Arguments) -> Value:
    name = str(node.target).split(".")[1]
    x = _NUMBERS.get(name, a.get("fill_value", a.get("s")))
    return filled(low, node, x)


def filled(low: Lowering, node: Node, x: Any) -> Value:
    """A tensor whose elements are all the same number, or the same size."""
    dtype = low.dtype(node).compute
    if hasattr(x, "meta"):
        size = low.extent(x)
        if not is_number(size):
            return Value(low.shape(node), dtype, lambda idx: of_index(to_ir(size), dtype))
        x = size
    number = constant(x, dtype)
    return Value(low.shape(node), dtype, lambda idx: number, number=number.value)


@lowers("aten.arange", "prims.iota", group="numbers", free=True)
def _arange(low: Lowering, node: Node, a: Arguments) -> Value:
    start, step, dtype = a.get("start", 0), a.get("step", 1), low.dtype(node)
    steps = [0 if start is None else start, step]
    if any(isinstance(x, float) for x in steps):
        first, each = (Term(constant(x, dtype.compute)) for x in steps)
        return Value(
            low.shape(node), dtype.compute, lambda i: (first + each * Term(_place(i[0], dtype.compute))).expr
        )
    first_size, each_size = map(low.extent, steps)
    return Value(low.shape(node), dtype.compute, lambda i: _place(i[0] * each_size + first_size, dtype))


def _place(index: Index, dtype: DType) -> g.Expr:
    """An index as a number of a dtype."""
    return converted(index.number(), dtype) if index.has_data else of_index(index.affine(), dtype.compute)


@lowers("aten.eye", group="numbers", free=True)
def _eye(low: Lowering, node: Node, a: Arguments) -> Value:
    dtype = low.dtype(node).compute
    one, zero = constant(1, dtype), constant(0, dtype)
    return Value(low.shape(node), dtype, lambda i: select((_number(i[0]) == _number(i[1])).expr, one, zero))


def _number(index: Index) -> Term:
    return Term(index.number())


@lowers("aten.tril", "aten.triu", group="structure")
def _triangle(low: Lowering, node: Node, a: Arguments) -> Value:
    v, k = low.value(a["self"]), low.extent(a["diagonal"])
    lower = "tril" in str(node.target)

    def element(idx: Indices) -> g.Expr:
        right, edge = _number(idx[-1]), _number(idx[-2] + k)
        test = right <= edge if lower else right >= edge
        return select(test.expr, v.at(idx), constant(0, v.dtype.compute))

    return v.computed(element)


# --- parts ------------------------------------------------------------------------------------------------


@lowers("aten.cat", group="structure", overloads=("default",), whole="dim")
def _cat(low: Lowering, node: Node, a: Arguments) -> Value:
    shape, dtype = low.shape(node), low.dtype(node)
    d = a["dim"] % max(1, len(shape))
    parts = [v for v in map(low.value, a["tensors"]) if len(v.shape) == len(shape)]
    made = low.target(shape, dtype, True)
    start: Extent = 0
    for v in parts:
        end = whole(start + v.shape[d])
        if not equal(start, end):
            _part(low, made, v, d, start, end)
        start = end
    return made.value


def _part(low: Lowering, made: Any, v: Value, d: int, start: Extent, end: Extent) -> None:
    """One of the pieces that a concatenation is made of."""
    indices, dims = low.loops(made.shape)
    name = f"i{d}"
    if equal(whole(end - start), 1):
        dims = tuple(x for x in dims if x.name != name)
        indices[d] = Index(constant=start)
        source = [*indices[:d], Index(), *indices[d + 1 :]]
    else:
        own = g.IterDim(name, to_ir(start), to_ir(end))
        dims = tuple(own if x.name == name else x for x in dims)
        source = [*indices[:d], indices[d] + whole(-start), *indices[d + 1 :]]
    low.statement(made, dims, indices, stored(v.at(source), made.dtype))


@lowers("aten.stack", group="structure")
def _stack(low: Lowering, node: Node, a: Arguments) -> Value:
    shape, dtype = low.shape(node), low.dtype(node)
    d = a["dim"] % len(shape)
    made = low.target(shape, dtype, True)
    for k, t in enumerate(a["tensors"]):
        v = low.value(t)
        one = v.view([*v.shape[:d], 1, *v.shape[d:]], lambda idx: [*idx[:d], *idx[d + 1 :]])
        _part(low, made, one, d, k, k + 1)
    return made.value


@lowers("aten.constant_pad_nd", group="structure", whole="")
def _pad(low: Lowering, node: Node, a: Arguments) -> Value:
    v, shape, dtype = low.value(a["self"]), low.shape(node), low.dtype(node).compute
    before: list[Extent] = [0] * len(shape)
    for k in range(len(a["pad"]) // 2):
        before[len(shape) - 1 - k] = low.extent(a["pad"][2 * k])
    outside = constant(a["value"], dtype)

    def element(idx: Indices) -> g.Expr:
        places = [i + whole(-n) for i, n in zip(idx, before, strict=True)]
        return guarded(v, places, outside)

    return Value(shape, dtype, element)


def guarded(v: Value, places: Sequence[Index], outside: g.Expr) -> g.Expr:
    """The element at indices that may leave the tensor; `outside` where one does."""
    tests = [inside(i, n) for i, n in zip(places, v.shape, strict=True)]
    return select(conjunction(tests), v.at(places), outside)


def conjunction(tests: Sequence[g.Expr | None]) -> g.Expr | None:
    """All conditions; None where all always hold."""
    left = [t for t in tests if t is not None]
    return reduce(lambda x, y: g.Apply("and", (x, y), BOOL), left) if left else None


@lowers("aten.slice_scatter", group="structure")
def _slice_scatter(low: Lowering, node: Node, a: Arguments) -> Value:
    v, part, shape = low.value(a["self"]), low.value(a["src"]), low.shape(node)
    d, step = a["dim"] % len(shape), low.extent(a["step"])
    start = 0 if a["start"] is None else clamped(low.extent(a["start"]), shape[d])
    if equal(part.shape[d], shape[d]):
        return part

    def element(idx: Indices) -> g.Expr:
        i = idx[d] + whole(-start)
        if is_number(step) and step == 1:
            place, tests = i, [inside(i, part.shape[d])]
        else:
            place = Index(((1, Quotient(i, step)),))
            on = (Term((i % step).number()) == 0).expr
            tests = [inside(i, whole(part.shape[d] * step)), on]
        test = conjunction(tests)
        return select(test, part.at([*idx[:d], place, *idx[d + 1 :]]), v.at(idx))

    return v.computed(element)


@lowers("aten.select_scatter", group="structure")
def _select_scatter(low: Lowering, node: Node, a: Arguments) -> Value:
    v, part, shape = low.value(a["self"]), low.value(a["src"]), low.shape(node)
    d = a["dim"] % len(shape)
    k = clamped(low.extent(a["index"]), shape[d])

    def element(idx: Indices) -> g.Expr:
        test = _number(idx[d]) == Term(of_index(to_ir(k), I64))
        return select(test.expr, part.at([*idx[:d], *idx[d + 1 :]]), v.at(idx))

    return v.computed(element)


@lowers("aten.flip", "prims.rev", group="structure", whole="dims")
def _flip(low: Lowering, node: Node, a: Arguments) -> Value:
    v = low.value(a["self"] if "self" in a else a["a"])
    axes = low.axes(a["dims"], len(v.shape)) if a["dims"] else ()

    def indices(idx: Indices) -> Indices:
        return [i * -1 + whole(v.shape[d] - 1) if d in axes else i for d, i in enumerate(idx)]

    return v.view(v.shape, indices)


@lowers("aten.repeat", group="structure")
def _repeat(low: Lowering, node: Node, a: Arguments) -> Value:
    v, shape = low.value(a["self"]), low.shape(node)
    new = len(shape) - len(v.shape)
    return v.view(shape, lambda idx: [idx[new + d] % n for d, n in enumerate(v.shape)])


@lowers("aten.roll", group="structure", whole="dims")
def _roll(low: Lowering, node: Node, a: Arguments) -> Value:
    v = low.value(a["self"])
    if not a["dims"]:
        if len(v.shape) != 1:
            raise Unsupported("a roll over all axes")
        a = {**a, "dims": [0]}
    shifts = dict(zip((d % len(v.shape) for d in a["dims"]), map(low.extent, a["shifts"]), strict=True))

    def indices(idx: Indices) -> Indices:
        return [(i + whole(-shifts[d])) % v.shape[d] if d in shifts else i for d, i in enumerate(idx)]

    return v.view(v.shape, indices)
