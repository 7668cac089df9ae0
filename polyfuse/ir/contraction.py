"""A contraction as libraries take it: a matrix product, or many of them side by side.

    c[b, m, n] = sum[k](a[b, m, k] * b[b, k, n])

Each of the groups batch, rows, columns and over stands for any number of dims.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from polyfuse.ir.dtypes import BF16, F16, F32, F64
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.tensor_graph import Apply, Cast, Const, Expr, Index, IterDim, Read, Statement, TensorGraph

# What a contraction sums: products of its factors, squares of their difference, or of two words what
# `dot_words`, `dot_bytes` or `dot_pairs` makes of them; of `row bytes` those of rows have no signs, else
# those of columns.
Term: TypeAlias = Literal["product", "difference", "words", "bytes", "row bytes", "pairs"]
_TERMS: dict[str, Term] = {
    "mul": "product",
    "pow": "difference",
    "dot_words": "words",
    "dot_bytes": "bytes",
    "dot_pairs": "pairs",
}


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor, and which of its axes are of each group, in the order of the product."""

    tensor: str
    batch: tuple[int, ...]
    outer: tuple[int, ...]
    inner: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """out[batch, rows, columns] = left[batch, rows, over] @ right[batch, over, columns]

    `outer`, `inner` of left are rows and over, of right over and columns, of out rows and columns.  Axes of
    a group lie side by side in each tensor, so that the group is one axis without moving memory.
    `products` counts multiplications.
    """

    left: Operand
    right: Operand
    out: Operand
    products: int

    def __str__(self) -> str:
        return f"{self.out.tensor} = {self.left.tensor} @ {self.right.tensor}"


def matrix_product(graph: TensorGraph, s: Statement, halves: bool = False) -> MatrixProduct | None:
    """A statement as a matrix product, or None where it is something else. Sizes are known.

    With `halves`, factors may be f16 or bf16 that are summed in f32.
    """
    e = s.expr
    if s.reduction != "sum" or s.accumulate or not (isinstance(e, Apply) and e.op == "mul"):
        return None
    a, b = (_narrow(x) for x in e.args) if halves else e.args
    if not (isinstance(a, Read) and isinstance(b, Read)) or a.tensor == s.target or b.tensor == s.target:
        return None
    found = [_axes(graph, s, name, indices) for name, indices in _accesses(s, a, b)]
    if any(x is None for x in found) or not _one_kind(graph, (a.tensor, b.tensor), s.target):
        return None
    left, right, out = ({} if x is None else x for x in found)
    over = [d.name for d in s.dims if d.reduce]
    free = [d.name for d in s.dims if not d.reduce]
    if not all(k in left and k in right for k in over) or not all(d in out for d in free):
        return None
    batch = tuple(d for d in free if d in left and d in right)
    rows = tuple(d for d in free if d in left and d not in right)
    columns = tuple(d for d in free if d in right and d not in left)
    if not (rows and columns and over) or len(batch) + len(rows) + len(columns) != len(free):
        return None
    groups = _orders(batch, rows, columns, tuple(over), (left, right, out))
    if groups is None:
        return None
    batch, rows, columns, inner = groups
    products = 1
    for d in s.dims:
        assert isinstance(d.upper, IConst)
        products *= d.upper.value
    return MatrixProduct(
        _operand(a.tensor, left, batch, rows, inner),
        _operand(b.tensor, right, batch, inner, columns),
        _operand(s.target, out, batch, rows, columns),
        products,
    )


def factors_of(e: Expr) -> tuple[Expr, Expr] | None:
    """What brings a term to its sum by two: factors of a product, words of several,
    or sides of the square of a difference."""
    match e:
        case Apply("mul" | "dot_words" | "dot_bytes" | "dot_pairs", (left, right)):
            return left, right
        case Apply("pow", (Apply("sub", (left, right)) as difference, Const(2.0))):
            return (left, right) if difference.dtype == e.dtype else None
        case _:
            return None


def term_of(e: Expr) -> Term:
    """Which kind a term with two factors is."""
    assert isinstance(e, Apply)
    return _TERMS[e.op]


def is_difference(e: Expr) -> bool:
    """Is a term with two factors the square of their difference?"""
    return term_of(e) == "difference"


def joined(e: Expr, left: Expr, right: Expr) -> Expr:
    """The term with others in place of its factors."""
    assert isinstance(e, Apply)
    if not is_difference(e):
        return replace(e, args=(left, right))
    difference, two = e.args
    assert isinstance(difference, Apply)
    return replace(e, args=(replace(difference, args=(left, right)), two))


def _accesses(s: Statement, a: Read, b: Read) -> tuple[tuple[str, tuple[Index, ...]], ...]:
    return (a.tensor, a.indices), (b.tensor, b.indices), (s.target, s.write)


def _narrow(e: Expr) -> Expr:
    """An element of half precision in place of its conversion to f32."""
    narrow = isinstance(e, Cast) and e.dtype == F32 and e.arg.dtype in (F16, BF16)
    return e.arg if narrow and isinstance(e, Cast) else e


def _one_kind(graph: TensorGraph, factors: tuple[str, str], target: str) -> bool:
    """Both factors of one dtype; the sum is of that, or f32 of half precision."""
    kinds = {graph.tensor(n).dtype for n in factors}
    into = graph.tensor(target).dtype
    return (kinds in ({F32}, {F64}) and {into} == kinds) or (kinds in ({F16}, {BF16}) and into == F32)


def _axes(graph: TensorGraph, s: Statement, tensor: str, indices: tuple[Index, ...]) -> dict[str, int] | None:
    """Dim -> axis, where each axis is a dim of its own and runs over all of it."""
    dims: dict[str, IterDim] = {d.name: d for d in s.dims}
    shape = graph.tensor(tensor).shape
    found: dict[str, int] = {}
    for k, i in enumerate(indices):
        if not isinstance(i, IVar) or i.name in found:
            return None
        d = dims[i.name]
        if (
            d.lower != IConst(0)
            or d.upper != shape[k]
            or not isinstance(d.upper, IConst)
            or d.upper.value < 1
        ):
            return None
        found[i.name] = k
    return found


def _orders(
    batch: tuple[str, ...],
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    over: tuple[str, ...],
    places: tuple[dict[str, int], dict[str, int], dict[str, int]],
) -> tuple[tuple[str, ...], ...] | None:
    """The groups in an order in which each lies side by side in both tensors that have it."""
    left, right, out = places
    wanted = ((rows, left, out), (columns, right, out), (over, left, right))
    ordered = [tuple(sorted(group, key=lambda d: where[d])) for group, where, _ in wanted]
    for group, (_, one, other) in zip(ordered, wanted, strict=True):
        for where in (one, other):
            axes = [where[d] for d in group]
            if axes != list(range(axes[0], axes[0] + len(axes))):
                return None
    return (tuple(sorted(batch, key=lambda d: out[d])), *ordered)


def _operand(
    tensor: str,
    places: dict[str, int],
    batch: tuple[str, ...],
    outer: tuple[str, ...],
    inner: tuple[str, ...],
) -> Operand:
    return Operand(
        tensor,
        tuple(places[d] for d in batch),
        tuple(places[d] for d in outer),
        tuple(places[d] for d in inner),
    )
