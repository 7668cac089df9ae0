"""What a contraction is, how its factors lie in memory, and its numbers, which the choice of tiles needs.

    c[o, m, n] = sum[k](left[o, m, k] * right[o, k, n])

`measures` gives the numbers (`layers.contractions.tile_shapes`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from polyfuse.ir.contraction import is_difference
from polyfuse.ir.dtypes import F16, I32
from polyfuse.ir.index_expr import IConst, IndexExpr, ISize, substitute
from polyfuse.ir.intervals import is_half
from polyfuse.ir.linear import interval, linear, of_size, size_ranges
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Expr,
    IterDim,
    Read,
    Statement,
    TensorGraph,
    depends_on,
    map_expr,
    reads,
)
from polyfuse.layers.contractions.tile_shapes import CROWDED, Extents
from polyfuse.layers.mapping.nests import address, stride
from polyfuse.poly.model.domains import specialize


@dataclass(frozen=True, slots=True)
class EpilogueStep:
    """A statement over the elements of a contraction; `dims` are (of the contraction, of the statement)."""

    statement: str
    dims: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Contraction:
    """A contraction: dims of its statement by what they are, its factors, and what follows each element."""

    statement: str
    row: str
    column: str
    outer: tuple[str, ...]
    over: tuple[str, ...]
    left: Expr
    right: Expr
    followers: tuple[EpilogueStep, ...] = ()


def widens(x: Contraction) -> bool:
    """Are factors integers that become larger?"""
    return any((isinstance(e, Cast) and e.dtype == I32) or is_half(e) for e in (x.left, x.right))


def along(graph: TensorGraph, x: Contraction) -> str | None:
    """A dim that is summed along which both factors lie: elements of memory, converted to floats, or shifted
    and scaled by what does not change along it."""
    if widens(x):
        return None
    return next((d for d in x.over if all(_runs(graph, e, d) for e in (x.left, x.right))), None)


def _runs(graph: TensorGraph, e: Expr, dim: str) -> bool:
    """Is an expression an element that lies along a dim, in arithmetic with what the dim does not change?"""
    match e:
        case Cast(arg):
            return _runs(graph, arg, dim)
        case Apply("mul" | "sub" | "add", (a, b)) if dim not in depends_on(b):
            return _runs(graph, a, dim)
        case Apply("mul" | "sub" | "add", (a, b)) if dim not in depends_on(a):
            return _runs(graph, b, dim)
        case _:
            return contiguous(graph, e, dim)


def contiguous(graph: TensorGraph, e: Expr, dim: str) -> bool:
    """Is an expression one element of memory, with its neighbour for the next value of a dim?"""
    return plain(e) and isinstance(e, Read) and stride(address(graph, e.tensor, e.indices), dim) == 1


def lies_along(graph: TensorGraph, e: Expr, dim: str) -> bool:
    """Is something read whose neighbours in memory are those along a dim?"""
    return any(contiguous(graph, r, dim) for r in reads(e))


def plain(e: Expr) -> bool:
    """Is an expression an element that is found without data?"""
    return isinstance(e, Read) and not any(isinstance(i, EXPR_TYPES) for i in e.indices)


USUAL_SIZE, USUAL_WINDOW, USUAL_IMAGES, LEAST_IMAGE = 200, 8, 2, 16
"""What tiles are chosen for where a size is open, where that of a window is, and where a length is so many
times a size, at least: rows of few images are shared out as well."""
LONGEST = 2**40
"""What is taken for a length without a bound."""

# --- a contraction in numbers -----------------------------------------------------------------------------


def extents_of(s: Statement) -> dict[str, int]:
    """How long its dims are; 0 where that is not one number."""
    return {d.name: _extent(d) for d in s.dims}


def _extent(d: IterDim) -> int:
    """How long a dim is; 0 where that is not one number."""
    known = isinstance(d.lower, IConst) and isinstance(d.upper, IConst)
    return max(0, d.upper.value - d.lower.value) if known else 0  # type: ignore[union-attr]


def usual_extents(graph: TensorGraph, s: Statement) -> dict[str, int]:
    """As `extents_of`, where sizes that are not known have usual values."""
    if not graph.sizes:
        return extents_of(s)
    return extents_of(at_usual_sizes(graph, s)[1])


def usual_sizes(graph: TensorGraph) -> dict[str, int]:
    """What tiles are chosen for where sizes are open: values that bounds allow, and no round ones, at which
    rows of a matrix would share sets of a cache; windows, which extents are shorter by, are short, and of
    whole images that make the rows of a matrix there are few."""
    ranges = size_ranges(graph)
    lengths = [linear(e) for t in graph.tensors for e in t.shape]
    found = {}
    for n in graph.sizes:
        factors = [x.factor(ISize(n)) for x in lengths]
        many = max(factors, default=1) >= LEAST_IMAGE
        usual = USUAL_WINDOW if min(factors, default=0) < 0 else USUAL_IMAGES if many else USUAL_SIZE
        low, high = ranges.get(of_size(n), (0, usual))
        found[n] = max(low, min(usual, high))
    return found


def at_usual_sizes(graph: TensorGraph, s: Statement) -> tuple[TensorGraph, Statement]:
    """The statement alone, in a graph at usual sizes."""
    alone = specialize(replace(graph, statements=(s,)), usual_sizes(graph))
    return alone, alone.statements[0]


def most_of(graph: TensorGraph, length: IndexExpr) -> int:
    """How long something of a known or an open length is at most."""
    found = interval(length, size_ranges(graph))
    return LONGEST if found is None else found[1]


def exceeds(graph: TensorGraph, s: Statement, dim: str, length: int) -> bool:
    """May a dim, which begins at 0, be longer than that?"""
    return most_of(graph, next(d.upper for d in s.dims if d.name == dim)) > length


def measures(graph: TensorGraph, s: Statement, p: Contraction) -> Extents:
    """A contraction in numbers."""
    if graph.sizes:
        known: dict[str, IndexExpr] = {n: IConst(v) for n, v in usual_sizes(graph).items()}
        left, right = (map_expr(e, _same, lambda i: substitute(i, sizes=known)) for e in (p.left, p.right))
        found = measures(*at_usual_sizes(graph, s), replace(p, left=left, right=right))
        known_lengths = extents_of(s)
        # Each of few outer points must be shared out as well.
        outer = prod(known_lengths[d] or 1 for d in p.outer)
        return replace(found, outer=outer, open=(not known_lengths[p.row], not known_lengths[p.column]))
    of = extents_of(s)
    steps, outer = prod(of[d] for d in p.over), prod(of[d] for d in p.outer)
    copied = not contiguous(graph, p.right, p.column)
    crowded = not copied and _crowded(graph, s, p.right)
    transposed = not any(contiguous(graph, r, p.column) for r in reads(p.right))
    dim = None if is_difference(s.expr) else along(graph, p)  # sums along memory are those of products
    length = 0 if dim is None else of[dim]
    halves = any(r.dtype == F16 for e in (p.left, p.right) for r in reads(e))
    shared = prod(of[d] for d in set(p.outer) - depends_on(p.right))
    size = s.expr.dtype.bytes
    apart = _apart(graph, s, p) * size
    beside = contiguous(graph, p.left, p.row)
    rows, columns = of[p.row], of[p.column]
    return Extents(
        rows, columns, steps, outer, size, copied, transposed, crowded, length, halves, shared, apart, beside
    )


def _same(e: Expr) -> Expr:
    return e


def _apart(graph: TensorGraph, s: Statement, p: Contraction) -> int:
    """Elements from one row of the left factor to the next, where tiles follow rows along what is summed."""
    if not any(contiguous(graph, p.left, d) for d in s.reduction_dims):
        return 0
    assert isinstance(p.left, Read)
    return abs(stride(address(graph, p.left.tensor, p.left.indices), p.row) or 0)


def _crowded(graph: TensorGraph, s: Statement, e: Expr) -> bool:
    """Is what is read for one step after the other in so few sets of L2 that it does not stay there?"""
    assert isinstance(e, Read)
    where, size = address(graph, e.tensor, e.indices), e.dtype.bytes
    steps = [stride(where, d) for d in s.reduction_dims]
    return any(x is not None and x > 0 and x * size % CROWDED == 0 for x in steps)
