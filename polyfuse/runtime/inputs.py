"""Sizes and seeded inputs for an operator that nobody gave data to.

Values are what the operator would see in use, as far as its graph tells: integers that are indices
stay within the extent that they index, offsets into a list are sorted, masks keep most of what they
cover, everything else is normally distributed.  The same seed gives the same arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from polyfuse.ir.dtypes import BY_NAME, from_numpy
from polyfuse.ir.index_expr import (
    IBin,
    IConst,
    IndexExpr,
    ISize,
    IVar,
    evaluate,
    product,
    substitute,
    variables,
)
from polyfuse.ir.index_expr import sizes as size_names
from polyfuse.ir.linear import interval
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Constraint,
    Expr,
    IndexValue,
    Read,
    Statement,
    Tensor,
    TensorGraph,
    statement_reads,
    walk,
)
from polyfuse.runtime.arguments import Array

CANDIDATES = (4096, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 3, 2, 1)
SMALL = 3
MOST_INSTANCES = 1 << 24
KEPT = 0.85
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_HOLDS = {
    "==": int.__eq__, "!=": int.__ne__, "<": int.__lt__,
    "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__,
}  # fmt: skip


# --- sizes ----------------------------------------------------------------------------------------------


def default_sizes(graph: TensorGraph, given: Mapping[str, int], most: int = MOST_INSTANCES) -> dict[str, int]:
    """All sizes of a graph: the given ones, and for the others one round number that suits them.

    It is the largest that keeps the work below `most` statement instances, each tensor of these sizes below
    twice as many elements (few of a large one may be read), and meets the constraints; a size that is taken
    off others (``H-R+1``) is small, like a filter.
    """
    defaults = {p.name: p.default for p in graph.size_parameters if p.default is not None}
    missing = [n for n in graph.sizes if n not in given and n not in defaults]
    mine = {p.name for p in graph.size_parameters}
    bounded = {n for n in missing if n in mine or _is_filter(graph, n)}
    free = [t for t in graph.tensors if any(n in missing for e in t.shape for n in size_names(e))]
    sizes = dict(given)
    for value in CANDIDATES:
        sizes = {n: min(value, SMALL) if n in bounded else value for n in missing}
        sizes = {n: given.get(n, sizes.get(n, 0)) for n in graph.sizes}
        _take_defaults(sizes, {n: e for n, e in defaults.items() if n not in given})
        sizes = _solved(graph, sizes, missing)
        _take_defaults(sizes, {n: e for n, e in defaults.items() if n not in given})
        if fits(graph, sizes, most) and all(evaluate(product(t.shape), sizes) <= 2 * most for t in free):
            break
    return sizes


def _take_defaults(sizes: dict[str, int], defaults: Mapping[str, IndexExpr]) -> None:
    """Size parameters from the left, each of those before."""
    for n, e in defaults.items():
        try:
            sizes[n] = max(0, evaluate(e, sizes))
        except ZeroDivisionError:
            sizes[n] = 0


def _solved(graph: TensorGraph, sizes: dict[str, int], free: Sequence[str]) -> dict[str, int]:
    """The sizes, with free ones changed so that equality constraints hold, where a small number does that."""
    for c in graph.constraints:
        if c.op != "==" or _equal(c, sizes):
            continue
        for n in (n for n in (*size_names(c.left), *size_names(c.right)) if n in free):
            value = next((v for v in range(1, CANDIDATES[0] + 1) if _equal(c, {**sizes, n: v})), None)
            if value is not None:
                sizes = {**sizes, n: value}
                break
    return sizes


def _equal(c: Constraint, sizes: Mapping[str, int]) -> bool:
    try:
        return evaluate(c.left, sizes) == evaluate(c.right, sizes)
    except ZeroDivisionError:
        return False


def _is_filter(graph: TensorGraph, name: str) -> bool:
    return any(_takes_off(e, name) for t in graph.tensors for e in t.shape)


def _takes_off(e: IndexExpr, name: str) -> bool:
    if not isinstance(e, IBin):
        return False
    here = e.op == "-" and name in size_names(e.right)
    return here or _takes_off(e.left, name) or _takes_off(e.right, name)


def fits(graph: TensorGraph, sizes: Mapping[str, int], most: int = MOST_INSTANCES) -> bool:
    """Do sizes meet the constraints, with at most so many statement instances?"""
    try:
        if not all(
            _HOLDS[c.op](evaluate(c.left, sizes), evaluate(c.right, sizes)) for c in graph.constraints
        ):
            return False
        shapes = [evaluate(e, sizes) for t in graph.tensors for e in t.shape]
        return min(shapes, default=0) >= 0 and instances(graph, sizes) <= most
    except ZeroDivisionError:
        return False


def instances(graph: TensorGraph, sizes: Mapping[str, int]) -> int:
    """Statement instances of one run; a dim whose bounds depend on others counts with its largest range."""
    return sum(_box(s, sizes) for s in graph.statements)


def _box(s: Statement, sizes: Mapping[str, int]) -> int:
    return math.prod(max(0, high - low) for low, high in dim_ranges(s, sizes).values())


def dim_ranges(s: Statement, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """A box around a statement's domain, dim by dim: the smallest for bounds monotone in each dim."""
    corners: list[dict[str, int]] = [dict(sizes)]
    ranges: dict[str, tuple[int, int]] = {}
    for d in s.dims:
        low = min(evaluate(d.lower, at) for at in corners)
        high = max(evaluate(d.upper, at) for at in corners)
        known = {n: (first, max(first, end - 1)) for n, (first, end) in ranges.items()}
        numbers = {n: IConst(v) for n, v in sizes.items()}
        lower, upper = (
            None if _is_monotone(e) else interval(substitute(e, None, numbers), known)
            for e in (d.lower, d.upper)
        )
        low, high = lower[0] if lower else low, upper[1] if upper else high
        ranges[d.name] = (low, max(low, high))
        if any(d.name in variables(e) for x in s.dims for e in (x.lower, x.upper)):
            corners = [{**at, d.name: v} for at in corners for v in {low, max(low, high - 1)}]
    return ranges


def _is_monotone(e: IndexExpr) -> bool:
    """Does it rise or fall with each of its variables, as far as its form shows?"""
    moves = _moves(e)
    return not any((name, -sign) in moves for name, sign in moves)


def _moves(e: IndexExpr) -> set[tuple[str, int]]:
    """Variables, and whether something in an expression rises (1) or falls (-1) with them."""
    match e:
        case IVar(name):
            return {(name, 1)}
        case IBin("-", left, right):
            return _moves(left) | {(name, -sign) for name, sign in _moves(right)}
        case IBin("+" | "min" | "max", left, right):
            return _moves(left) | _moves(right)
        case IBin("//", left, IConst(c)) if c > 0:
            return _moves(left)
        case IBin("*", IConst(c), other) | IBin("*", other, IConst(c)):
            return _moves(other) if c >= 0 else {(name, -sign) for name, sign in _moves(other)}
        case _:
            return {(name, sign) for name in variables(e) for sign in (1, -1)}


# --- values ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limit:
    """What an integer tensor is used for: values below `below`, `offsets` into a list if sorted."""

    below: int
    offsets: bool = False


class Drawn(Protocol):
    """A distribution of values."""

    @property
    def draw(self) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
        """An array of a shape."""


def make_inputs(
    graph: TensorGraph, sizes: Mapping[str, int], seed: int = 0, chosen: Mapping[str, Drawn] | None = None
) -> dict[str, Array]:
    """An array for every input; scalars with a default have it. `chosen` are distributions of some inputs."""
    limits = index_limits(graph, sizes)
    found: dict[str, Array] = {}
    for k, name in enumerate(graph.inputs):
        t = graph.tensor(name)
        shape = tuple(evaluate(e, sizes) for e in t.shape)
        random = np.random.default_rng([seed, k])
        if chosen and name in chosen:
            found[name] = np.asarray(chosen[name].draw(random, shape)).astype(t.dtype.numpy)
        elif t.default is not None:
            found[name] = np.asarray(t.default).astype(t.dtype.numpy)
        else:
            found[name] = _values(t, shape, limits.get(name), random)
    return found


def _values(t: Tensor, shape: tuple[int, ...], limit: Limit | None, random: np.random.Generator) -> Array:
    if t.dtype.is_bool:
        return np.asarray(random.random(shape) < KEPT)
    if t.dtype.is_float:
        if "mask" in t.name.lower() and shape:
            return np.where(random.random(shape) < KEPT, 0.0, -1e4).astype(t.dtype.numpy)
        values = random.standard_normal(shape) if shape else random.uniform(0.1, 1.0)
        return np.asarray(values, np.float64).astype(t.dtype.numpy)
    if limit is None and not shape:
        return random.integers(1, 9, shape).astype(t.dtype.numpy)  # a count, such as a step
    if limit is None:
        low = max(-8, t.dtype.limits[0])
        return random.integers(low, low + 16, shape).astype(t.dtype.numpy)
    most = int(np.iinfo(t.dtype.numpy).max)
    if limit.offsets:
        values = np.sort(random.integers(0, min(limit.below, most) + 1, shape), axis=-1)
        values[..., :1] = 0
        values[..., -1:] = min(limit.below, most)
        return np.asarray(values.astype(t.dtype.numpy))
    return random.integers(0, max(1, min(limit.below, most)), shape).astype(t.dtype.numpy)


def index_limits(graph: TensorGraph, sizes: Mapping[str, int]) -> dict[str, Limit]:
    """Integer tensors that index another tensor or are compared with a loop variable."""
    found: dict[str, Limit] = {}
    for s in graph.statements:
        for name, limit in (*_as_indices(graph, s, sizes), *_as_compared(s, sizes)):
            old = found.get(name)
            found[name] = limit if old is None or limit.below < old.below else old
    changed = True
    while changed:  # an index that goes through a temporary on its way
        changed = False
        for s in graph.statements:
            source = _plain_read(s.expr)
            if s.target in found and source and source not in found:
                found[source] = found[s.target]
                changed = True
    return found


def _as_indices(graph: TensorGraph, s: Statement, sizes: Mapping[str, int]) -> Iterator[tuple[str, Limit]]:
    """`x[i[k]]`: an index; a scatter to ``ends[start[n+1]]``: an offset."""
    places = [(r.tensor, r.indices, False) for r in statement_reads(s)] + [(s.target, s.write, True)]
    for tensor, indices, written in places:
        for index, extent in zip(indices, graph.tensor(tensor).shape, strict=True):
            if isinstance(index, EXPR_TYPES):
                for e in walk(index):
                    if isinstance(e, Read) and e.dtype.is_integer:
                        offsets = written and any(map(_is_shifted, e.indices))
                        yield e.tensor, Limit(evaluate(extent, sizes) - offsets, offsets)


def _as_compared(s: Statement, sizes: Mapping[str, int]) -> Iterator[tuple[str, Limit]]:
    """``v == t[b]``: a class; ``start[n] <= e`` with two neighbours or a shift: an offset."""
    ranges = dim_ranges(s, sizes)
    shifted = {r.tensor for r in statement_reads(s) if any(_is_shifted(i) for i in r.indices)}
    for e in walk(s.expr):
        if not (isinstance(e, Apply) and e.op in _COMPARISONS):
            continue
        for value, other in (e.args, e.args[::-1]):
            name, loop = _plain_read(value), _loop_variable(other)
            if name is None or loop not in ranges:
                continue
            offsets = e.op not in ("eq", "ne") and name in shifted
            yield name, Limit(ranges[loop][1], offsets)


def _is_shifted(index: object) -> bool:
    return not isinstance(index, (IVar, IConst, ISize, *EXPR_TYPES))


def _plain_read(e: Expr) -> str | None:
    while isinstance(e, Cast) or (isinstance(e, Apply) and e.op == "within"):
        e = e.arg if isinstance(e, Cast) else e.args[0]
    return e.tensor if isinstance(e, Read) and e.dtype.is_integer else None


def _loop_variable(e: Expr) -> str | None:
    while isinstance(e, Cast):
        e = e.arg
    return e.index.name if isinstance(e, IndexValue) and isinstance(e.index, IVar) else None


# --- generics -------------------------------------------------------------------------------------------


def dtype_names() -> tuple[str, ...]:
    """Names of the dtypes of the language."""
    return tuple(BY_NAME)


def dtype_name(array: Array) -> str | None:
    """The language's name of an array's dtype, in whichever byte order."""
    found = from_numpy(array.dtype.newbyteorder("="))
    return found.name if found is not None else None


def extents(shape: Sequence[IndexExpr], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The extents of a shape at known sizes."""
    return tuple(evaluate(e, sizes) for e in shape)
