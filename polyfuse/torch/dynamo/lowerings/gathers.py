"""Elements that data choose: gathers, and scatters that add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import I64
from polyfuse.torch.dynamo.index_maps import Index, data_index
from polyfuse.torch.dynamo.lowerings.structure import select
from polyfuse.torch.dynamo.lowerings.table import Arguments, Node, lowers, tensor_of
from polyfuse.torch.dynamo.sizes import Extent, equal, extent_of, is_number, to_ir
from polyfuse.torch.dynamo.terms import Term, constant, converted, of_index
from polyfuse.torch.dynamo.values import Indices, Storage, Value

if TYPE_CHECKING:
    from polyfuse.torch.dynamo.lowering import Lowering

ADDED = "sum"
_COMBINE = {"sum": "sum", "amax": "max", "amin": "min"}


def _from_end(e: g.Expr, extent: Extent) -> g.Expr:
    """An index that may count from the end."""
    wide = Term(converted(e, I64))
    return select((wide < 0).expr, (wide + Term(of_index(to_ir(extent), I64))).expr, wide.expr)


def _at(v: Value, idx: Indices, extent: Extent, wrap: bool = False) -> Index:
    """The index that an integer tensor gives."""
    e = v.broadcast(idx)
    return data_index(_from_end(e, extent) if wrap else e, extent)


# --- gathers ----------------------------------------------------------------------------------------------


@lowers("aten.embedding", group="gathers", overloads=("default",))
def _embedding(low: Lowering, node: Node, a: Arguments) -> Value:
    v, k = low.value(a["weight"]), low.stored_value(a["indices"])
    rank = len(k.shape)
    return Value(low.shape(node), v.dtype, lambda idx: v.at([_at(k, idx[:rank], v.shape[0]), *idx[rank:]]))


@lowers("aten.index_select", group="gathers", overloads=("default",))
def _index_select(low: Lowering, node: Node, a: Arguments) -> Value:
    v, k = low.value(a["self"]), low.stored_value(a["index"])
    if not v.shape:
        return v
    d = a["dim"] % len(v.shape)

    def element(idx: Indices) -> g.Expr:
        return v.at([*idx[:d], _at(k, idx[d : d + 1], v.shape[d]), *idx[d + 1 :]])

    return Value(low.shape(node), v.dtype, element)


@lowers("aten.gather", group="gathers", overloads=("default",))
def _gather(low: Lowering, node: Node, a: Arguments) -> Value:
    v, k = low.value(a["self"]), low.stored_value(a["index"])
    if not v.shape:
        return Value(low.shape(node), v.dtype, lambda idx: v.at([]))
    d = a["dim"] % len(v.shape)

    def element(idx: Indices) -> g.Expr:
        return v.at([_at(k, idx, v.shape[d]) if e == d else i for e, i in enumerate(idx)])

    return Value(low.shape(node), v.dtype, element)


@dataclass(frozen=True)
class _Places:
    """Index tensors of some axes: `at` is where their common shape stands in the result's."""

    axes: tuple[int, ...]
    indices: tuple[Value, ...]
    shape: tuple[Extent, ...]
    at: int
    rank: int
    wrap: bool

    @staticmethod
    def of(low: Lowering, given: Sequence[Any], rank: int, wrap: bool) -> _Places:
        axes = tuple(d for d, k in enumerate(given) if k is not None)
        found = tuple(low.stored_value(given[d]) for d in axes)
        most = max(len(v.shape) for v in found)
        shape: list[Extent] = [1] * most
        for v in found:
            for e, n in enumerate(v.shape):
                if not equal(n, 1):
                    shape[most - len(v.shape) + e] = n
        together = axes == tuple(range(axes[0], axes[-1] + 1))
        return _Places(axes, found, tuple(shape), axes[0] if together else 0, rank, wrap)

    def whole_shape(self, shape: Sequence[Extent]) -> tuple[Extent, ...]:
        """The shape of what stands at the places of a tensor."""
        rest = [n for d, n in enumerate(shape) if d not in self.axes]
        return (*rest[: self.at], *self.shape, *rest[self.at :])

    def subscripts(self, idx: Indices, shape: Sequence[Extent]) -> list[Index]:
        """The indices into the tensor."""
        end = self.at + len(self.shape)
        chosen, rest = idx[self.at : end], iter([*idx[: self.at], *idx[end:]])
        values = dict(zip(self.axes, self.indices, strict=True))
        return [
            _at(values[d], chosen, shape[d], self.wrap) if d in values else next(rest)
            for d in range(self.rank)
        ]


def _no_mask(node: Node, a: Arguments) -> str:
    masks = [
        k for k in a["indices"] if k is not None and str(tensor_of(k).dtype) in ("torch.bool", "torch.uint8")
    ]
    return "places that truth values choose" if masks or not any(a["indices"]) else ""


@lowers("aten.index", "aten._unsafe_index", group="gathers", overloads=("Tensor",), refuse=_no_mask)
def _index(low: Lowering, node: Node, a: Arguments) -> Value:
    v = low.value(a["self"])
    places = _Places.of(low, a["indices"], len(v.shape), "_unsafe" not in str(node.target))
    return Value(low.shape(node), v.dtype, lambda idx: v.at(places.subscripts(idx, v.shape)))


@lowers("aten._unsafe_masked_index", group="gathers", refuse=_no_mask)
def _masked_index(low: Lowering, node: Node, a: Arguments) -> Value:
    v, mask = low.value(a["self"]), low.stored_value(a["mask"])
    places = _Places.of(low, a["indices"], len(v.shape), True)
    outside = constant(a["fill"], v.dtype.compute)

    def element(idx: Indices) -> g.Expr:
        return select(mask.broadcast(idx), v.at(places.subscripts(idx, v.shape)), outside)

    return Value(low.shape(node), v.dtype, element)


# --- scatters ---------------------------------------------------------------------------------------------


def _start(low: Lowering, node: Node, base: Value) -> Storage:
    """What a scatter adds to: a tensor with the elements of the base."""
    made = low.target(low.shape(node), low.dtype(node).compute, True)
    low.define(made, base.broadcast)
    return made


def _adds(node: Node, a: Arguments) -> str:
    return _no_mask(node, a) or ("" if a.get("accumulate", True) else "a scatter that assigns")


@lowers("aten.index_put", "aten._unsafe_index_put", group="scatters", refuse=_adds, alone=True)
def _index_put(low: Lowering, node: Node, a: Arguments) -> Value:
    return _put(low, node, a, None)


@lowers("aten._unsafe_masked_index_put_accumulate", group="scatters", refuse=_no_mask, alone=True)
def _masked_put(low: Lowering, node: Node, a: Arguments) -> Value:
    return _put(low, node, a, low.stored_value(a["mask"]))


def _put(low: Lowering, node: Node, a: Arguments, mask: Value | None) -> Value:
    base, w = low.value(a["self"]), low.value(a["values"])
    places = _Places.of(low, a["indices"], len(base.shape), "_unsafe_index_put" not in str(node.target))
    made = _start(low, node, base)
    indices, dims = low.loops(places.whole_shape(made.shape), "e")
    e = converted(w.broadcast(indices), made.dtype)
    if mask is not None:
        e = select(mask.broadcast(indices), e, constant(0, made.dtype))
    low.statement(made, dims, places.subscripts(indices, made.shape), e, ADDED, True)
    return made.value


def _known_kind(node: Node, a: Arguments) -> str:
    known = a.get("reduce", "sum") in _COMBINE and a.get("include_self", True)
    return "" if known else f"a scatter by {a.get('reduce')}"


@lowers("aten.scatter_add", group="scatters", overloads=("default",), alone=True)
@lowers("aten.scatter_reduce", group="scatters", overloads=("two",), refuse=_known_kind, alone=True)
def _scatter_add(low: Lowering, node: Node, a: Arguments) -> Value:
    base, k, w = low.value(a["self"]), low.stored_value(a["index"]), low.value(a["src"])
    made = _start(low, node, base)
    d = a["dim"] % max(1, len(made.shape))
    indices, dims = low.loops(k.shape, "e")
    where = [_at(k, indices, made.shape[d]) if e == d else i for e, i in enumerate(indices)]
    e = converted(w.at(indices), made.dtype)
    low.statement(made, dims, where, e, _COMBINE[a.get("reduce", "sum")], True)
    return made.value


@lowers("aten.index_add", group="scatters", overloads=("default",), alone=True)
def _index_add(low: Lowering, node: Node, a: Arguments) -> Value:
    base, k, w = low.value(a["self"]), low.stored_value(a["index"]), low.value(a["source"])
    made = _start(low, node, base)
    d = a["dim"] % max(1, len(made.shape))
    indices, dims = low.loops(w.shape, "e")
    where = [_at(k, indices[d : d + 1], made.shape[d]) if e == d else i for e, i in enumerate(indices)]
    e = Term(converted(w.at(indices), made.dtype)) * Term(constant(a["alpha"], made.dtype))
    low.statement(made, dims, where, e.expr, ADDED, True)
    return made.value


def _not_scaled(node: Node, a: Arguments) -> str:
    return "gradients divided by how often they occur" if a["scale_grad_by_freq"] else ""


@lowers("aten.embedding_dense_backward", group="scatters", refuse=_not_scaled, alone=True)
def _embedding_backward(low: Lowering, node: Node, a: Arguments) -> Value:
    k, w = low.stored_value(a["indices"]), low.value(a["grad_output"])
    made = low.target(low.shape(node), low.dtype(node).compute, True)
    zero = constant(0, made.dtype)
    low.define(made, lambda idx: zero)
    indices, dims = low.loops(w.shape, "e")
    e = converted(w.at(indices), made.dtype)
    padding = a["padding_idx"]
    if is_number(padding) and padding >= 0:
        skipped = Term(converted(k.at(indices[:-1]), I64)) == padding
        e = select((~skipped).expr, e, zero)
    low.statement(made, dims, [_at(k, indices[:-1], made.shape[0]), indices[-1]], e, ADDED, True)
    return made.value


def _is_one_hot(node: Node, a: Arguments) -> str:
    """One element along the axis for each of the others: no two writes meet."""
    shape, k = tensor_of(node).shape, tensor_of(a["index"]).shape
    d = a["dim"] % max(1, len(shape))
    same = all(e == d or equal(extent_of(n), extent_of(shape[e])) for e, n in enumerate(k))
    return "" if len(shape) and equal(extent_of(k[d]), 1) and same else "a scatter that assigns"


@lowers("aten.scatter", group="scatters", overloads=("value", "src"), refuse=_is_one_hot)
def _scatter(low: Lowering, node: Node, a: Arguments) -> Value:
    v, k = low.value(a["self"]), low.stored_value(a["index"])
    d, dtype = a["dim"] % len(v.shape), v.dtype.compute
    source = low.value(a["src"]) if "src" in a else None

    def element(idx: Indices) -> g.Expr:
        at = [Index() if e == d else i for e, i in enumerate(idx)]
        test = Term(converted(k.at(at), I64)) == Term(idx[d].number())
        new = constant(a["value"], dtype) if source is None else converted(source.at(at), dtype)
        return select(test.expr, new, v.at(idx))

    return v.computed(element)
