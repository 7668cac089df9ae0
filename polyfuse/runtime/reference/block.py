"""Evaluation of one expression over a rectangular block of a statement's iteration domain.

Every loop variable is an axis of the block, in the order of the statement's dims; a value has extent
1 along the axes it does not depend on. `active` marks the elements that count: the others (the side
of a Select that is not taken, the outside of a triangle) may hold anything and read nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, cast

import numpy as np

from polyfuse.diagnostics import ArgumentError, DslError
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, wrapped
from polyfuse.ir.index_expr import variables as index_variables
from polyfuse.ir.ops import INDEX, OPS
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    Select,
    Statement,
    depends_on,
    format_expr,
    format_index,
    within_text,
)
from polyfuse.runtime.reference.ops import apply_op, cast_to, choose
from polyfuse.runtime.reference.values import (
    Array,
    Bound,
    Val,
    growth,
    held_as,
    is_exact,
    join,
    rounded,
    undecided,
)
from polyfuse.runtime.reference.values import wrapped as reduced
from polyfuse.source import Span

BLOCK_ELEMENTS = 1 << 16

Active = Array | None


@dataclass(slots=True)
class Store:
    """The elements of a tensor that are known so far. `defined` is None once all are."""

    dtype: DType
    v: Array
    e: Bound = 0.0
    defined: Array | None = None
    nonneg: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.v.shape


@dataclass(frozen=True)
class Block:
    """Ranges `lower <= var < upper` of the dims of a statement, none empty."""

    ranges: Mapping[str, tuple[int, int]]
    axis: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "axis", {name: k for k, name in enumerate(self.ranges)})

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(hi - lo for lo, hi in self.ranges.values())

    def coordinates(self, name: str) -> Array:
        """The values of a variable, along its axis."""
        lo, hi = self.ranges[name]
        shape = [1] * len(self.ranges)
        shape[self.axis[name]] = hi - lo
        return np.arange(lo, hi, dtype=np.int64).reshape(shape)

    def split(self, names: tuple[str, ...], elements: int = BLOCK_ELEMENTS) -> Iterator[Block]:
        """Cut along `names`, the first of them first, into blocks of about `elements`."""
        size = int(np.prod(self.shape, dtype=np.int64))
        name = next((n for n in names if self.ranges[n][1] - self.ranges[n][0] > 1), None)
        if size <= elements or name is None:
            yield self
            return
        lo, hi = self.ranges[name]
        step = max(1, (hi - lo) * elements // size)
        for start in range(lo, hi, step):
            part = Block({**self.ranges, name: (start, min(start + step, hi))})
            yield from part.split(names, elements) if step == 1 else (part,)


def affine(e: IndexExpr, sizes: Mapping[str, int]) -> tuple[dict[str, int], int] | None:
    """Coefficients of the variables and the constant, or None if the index is not affine."""
    match e:
        case IConst(value):
            return {}, value
        case ISize(name):
            return {}, sizes[name]
        case IVar(name):
            return {name: 1}, 0
        case IBin(op, left, right):
            a, b = affine(left, sizes), affine(right, sizes)
            if a is None or b is None:
                return None
            return _combine(op, a, b)


def _combine(
    op: str, a: tuple[dict[str, int], int], b: tuple[dict[str, int], int]
) -> tuple[dict[str, int], int] | None:
    if op in ("+", "-"):
        sign = 1 if op == "+" else -1
        total = dict(a[0])
        for name, c in b[0].items():
            total[name] = total.get(name, 0) + sign * c
        return {n: c for n, c in total.items() if c}, a[1] + sign * b[1]
    if op == "*" and (not a[0] or not b[0]):
        (terms, constant), factor = (b, a[1]) if not a[0] else (a, b[1])
        return {n: c * factor for n, c in terms.items() if c * factor}, constant * factor
    if a[0] or b[0] or (op in ("//", "%") and b[1] == 0):
        return None
    folded: dict[str, Any] = {"//": lambda: a[1] // b[1], "%": lambda: a[1] % b[1]}
    folded |= {"min": lambda: min(a[1], b[1]), "max": lambda: max(a[1], b[1])}
    return {}, folded[op]()


def both(a: Active, b: Active) -> Active:
    if a is None or b is None:
        return b if a is None else a
    return a & b


class BlockEvaluator:
    """Evaluates expressions of one statement on one block.

    With `pending` set, a read of an undefined element is not an error but marks the place in
    `pending`: what depends on it has to wait.
    """

    def __init__(
        self,
        statement: Statement,
        block: Block,
        stores: Mapping[str, Store],
        sizes: Mapping[str, int],
        checked: bool,
        pending: Array | None = None,
    ) -> None:
        self.statement, self.block, self.stores, self.sizes = statement, block, stores, sizes
        self.checked, self.pending = checked, pending
        self._known: dict[tuple[int, int], tuple[Expr, Active, Val]] = {}

    # --- expressions ---

    def expr(self, e: Expr, active: Active = None) -> Val:
        """The value of `e`; equal objects are evaluated once."""
        key = (id(e), id(active))
        if key not in self._known:
            self._known[key] = (e, active, self._expr(e, active))
        return self._known[key][2]

    def _expr(self, e: Expr, active: Active) -> Val:
        match e:
            case Const(value, dtype):
                shape = (1,) * len(self.block.ranges)
                if dtype.is_float:
                    number = np.full(shape, float(np.asarray(value, dtype.numpy)))
                    return Val(number, 0.0, bool(number.flat[0] >= 0))
                return Val(np.full(shape, value, held_as(dtype)))
            case IndexValue(index, dtype):
                return self._index_value(self.index(index, active, number=not self.checked), dtype)
            case Read():
                return self._read(e, active)
            case Apply(op, args, dtype):
                return self._apply(e, op, args, dtype, active)
            case Select():
                return self._select(e, active)
            case Cast(arg, dtype):
                return cast_to(self.expr(arg, active), arg.dtype, dtype)

    def _apply(self, e: Apply, op: str, args: tuple[Expr, ...], dtype: DType, active: Active) -> Val:
        first = self.expr(args[0], active)
        vals = (first, *(first if a == args[0] else self.expr(a, active) for a in args[1:]))
        if args[0].dtype.is_integer and op in ("floordiv", "mod", "pow"):
            bad = vals[1].v < 0 if op == "pow" else vals[1].v == 0
            if self.checked and self._any(self._waiting_excused(bad), active):
                what = "negative exponent of an integer" if op == "pow" else "integer division by zero"
                self.fail("PF453" if op == "pow" else "PF452", what, e.span, bad, active)
        if op == "within" and self.checked:
            value, least, most = (v.v for v in vals)
            bad = (value < least) | (value > most)
            if self._any(self._waiting_excused(bad), active):
                what = f"{format_expr(args[0])}: not in {within_text(e)}"
                self.fail("PF450", what, e.span, bad, active, value)
        return apply_op(op, vals, args[0].dtype, dtype, _is_number(args[-1]))

    def _select(self, e: Select, active: Active) -> Val:
        cond = self.expr(e.cond, active)
        maybe = cond.v if is_exact(cond.e) else cond.v | undecided(cond.e)
        maybe_not = ~cond.v if is_exact(cond.e) else ~cond.v | undecided(cond.e)
        if not maybe_not.any():
            return self.expr(e.then, active)
        if not maybe.any():
            return self.expr(e.other, active)
        then = self.expr(e.then, both(active, maybe))
        other = self.expr(e.other, both(active, maybe_not))
        return choose(cond, then, other, e.dtype.is_float)

    def _index_value(self, v: Array, dtype: DType) -> Val:
        if dtype.is_float:
            return rounded(v.astype(np.float64), 0.0, dtype, exact_if_held=True, nonneg=bool(v.min() >= 0))
        return Val(reduced(v, dtype))

    def index(self, e: IndexExpr, active: Active = None, number: bool = False) -> Array:
        """The values of an index expression, int64. Of a number, a division by 0 gives 0."""
        match e:
            case IConst() | ISize():
                value = e.value if isinstance(e, IConst) else self.sizes[e.name]
                return np.full((1,) * len(self.block.ranges), wrapped(value), np.int64)
            case IVar(name):
                return self.block.coordinates(name)
            case IBin(op, left, right):
                a, b = self.index(left, active, number), self.index(right, active, number)
                if op in ("//", "%"):
                    if number:
                        return np.where(b == 0, 0, _INDEX_OPS[op](a, np.where(b == 0, 1, b)))
                    if self._any(b == 0, active):
                        self.fail("PF356", f"division by zero in the index {e}", None, b == 0, active)
                    b = np.where(b == 0, 1, b)
                return cast(Array, _INDEX_OPS[op](a, b))

    # --- reads ---

    def _read(self, e: Read, active: Active) -> Val:
        store = self.stores[e.tensor]
        fast = self._as_slices(e.indices, store.shape)
        if fast is not None:
            slices, names = fast
            if store.defined is not None:
                self._check_defined(e, self._aligned(store.defined[slices], names), active)
            bound = store.e if is_exact(store.e) else self._aligned(cast(Array, store.e)[slices], names)
            return Val(self._aligned(store.v[slices], names), bound, store.nonneg)
        where, unsure = self.locate(e.indices, store.shape, e.tensor, e.span, active)
        if any(extent == 0 for extent in store.shape):
            return Val(np.zeros((1,) * len(self.block.ranges), store.v.dtype))
        if store.defined is not None:
            self._check_defined(e, store.defined[where], active)
        bound = store.e if is_exact(store.e) else cast(Array, store.e)[where]
        if unsure is not None:
            bound = np.where(unsure, np.inf, bound)
        return Val(store.v[where], bound, store.nonneg)

    def _as_slices(
        self, indices: tuple[Index, ...], shape: tuple[int, ...]
    ) -> tuple[tuple[slice | int, ...], tuple[str, ...]] | None:
        """Basic slices that read the block, and the variable of each axis that remains."""
        slices: list[slice | int] = []
        names: list[str] = []
        for index, extent in zip(indices, shape, strict=True):
            form = None if isinstance(index, EXPR_TYPES) else affine(index, self.sizes)
            if form is None or len(form[0]) > 1:
                return None
            terms, start = form
            step, count = 0, 1
            for name, step in terms.items():
                lo, hi = self.block.ranges[name]
                start, count = start + step * lo, hi - lo
                names.append(name)
            stop = start + step * (count - 1)
            if not (0 <= start < extent and 0 <= stop < extent):
                return None
            end = stop + (1 if step > 0 else -1)
            slices.append(slice(start, None if end < 0 else end, step) if terms else start)
        return (tuple(slices), tuple(names)) if len(set(names)) == len(names) else None

    def _aligned(self, a: Array, names: tuple[str, ...]) -> Array:
        """Axes named `names` moved to their places in the block."""
        order = sorted(range(len(names)), key=lambda k: self.block.axis[names[k]])
        shape = [1] * len(self.block.ranges)
        for k in order:
            shape[self.block.axis[names[k]]] = a.shape[k]
        return a.transpose(order).reshape(shape)

    def locate(
        self, indices: tuple[Index, ...], shape: tuple[int, ...], tensor: str, span: Span, active: Active
    ) -> tuple[tuple[Array, ...], Array | None]:
        """Index arrays within the tensor, and where an index is undecided.

        Out of range where active is an error, for a data index only if checked (else it is clamped).
        """
        found: list[Array] = []
        unsure: Array | None = None
        for k, (index, extent) in enumerate(zip(indices, shape, strict=True)):
            data = isinstance(index, EXPR_TYPES)
            if isinstance(index, EXPR_TYPES):
                val = self.expr(index, active)
                at = val.v
                if not is_exact(val.e):
                    unsure = undecided(val.e) if unsure is None else unsure | undecided(val.e)
            else:
                at = self.index(index, active)
            bad = (at < 0) | (at >= extent)
            strict = not data or self.checked or extent == 0
            if strict and bad.any() and self._any(self._waiting_excused(bad), active):
                text = f"{tensor}[{', '.join(map(format_index, indices))}]"
                what = f"{text}: index {k + 1} out of range 0..{extent}"
                self.fail("PF450" if data else "PF350", what, span, bad, active, at)
            found.append(np.clip(at, 0, max(extent - 1, 0)))
        return tuple(found), unsure

    def _waiting_excused(self, bad: Array) -> Array:
        return bad if self.pending is None else bad & ~self.pending

    def _check_defined(self, e: Read, defined: Array, active: Active) -> None:
        missing = ~defined
        if not self._any(missing, active):
            return
        if self.pending is None:
            text = f"{e.tensor}[{', '.join(map(format_index, e.indices))}]"
            self.fail(
                "PF354", f"{text} reads an element that is not defined before it", e.span, missing, active
            )
        self.pending |= missing if active is None else missing & active

    # --- errors ---

    def _any(self, bad: Array, active: Active) -> bool:
        return bool(bad.any() if active is None else (bad & active).any())

    def fail(
        self, code: str, what: str, span: Span | None, bad: Array, active: Active, value: Array | None = None
    ) -> NoReturn:
        """Raise with the first place where `bad` holds."""
        wrong = bad if active is None else bad & active
        wrong = np.broadcast_to(wrong, np.broadcast_shapes(wrong.shape, (1,) * len(self.block.ranges)))
        place = tuple(int(p) for p in np.argwhere(wrong)[0]) if wrong.ndim else ()
        starts = [lo for lo, _ in self.block.ranges.values()]
        point = ", ".join(
            f"{name} = {start + p}"
            for name, start, p, n in zip(self.block.ranges, starts, place, wrong.shape, strict=True)
            if n == self.block.shape[self.block.axis[name]]
        )
        got = "" if value is None else f", index is {np.broadcast_to(value, wrong.shape)[place]}"
        kind = DslError if code.startswith("PF3") else ArgumentError
        raise kind(what + (f" (for {point}{got})" if point else got), code=code, span=span)


def _is_number(e: Expr) -> bool:
    """Is it a number of the program?"""
    match e:
        case Const() | IndexValue(IConst()):
            return True
        case Cast(arg):
            return _is_number(arg)
        case _:
            return False


_INDEX_OPS: dict[str, Any] = {sign: getattr(np, OPS[name].numpy) for name, sign in INDEX.items()}


def restrict(block: Block, names: tuple[str, ...]) -> Block:
    """The same axes, with every variable outside `names` at its first value only."""
    return replace(
        block, ranges={n: (lo, hi if n in names else lo + 1) for n, (lo, hi) in block.ranges.items()}
    )


# --- sums of products as matrix products ------------------------------------------------------------------


WORTH_IT = 1 << 15


@dataclass(frozen=True)
class Contraction:
    """``sum[k](left * right)``: every axis belongs to left or right, the reduced ones to both."""

    left: Expr
    right: Expr
    names: tuple[frozenset[str], frozenset[str]]
    reduced: tuple[str, ...]

    def product(self, block: Block, x: Array, y: Array) -> Array:
        """The sums over the reduced axes, which stay with extent 1."""
        left, right = self.names
        groups = (
            tuple(n for n in block.ranges if n in left & right and n not in self.reduced),
            tuple(n for n in block.ranges if n in left - right),
            self.reduced,
            tuple(n for n in block.ranges if n in right - left),
        )
        batch, m, k, n = groups
        out = np.matmul(_matrix(block, x, (batch, m, k)), _matrix(block, y, (batch, k, n)))
        order = (*batch, *m, *n, *k)
        extents = [1 if name in k else block.shape[block.axis[name]] for name in order]
        return cast(Array, out.reshape(extents).transpose([order.index(name) for name in block.ranges]))

    def evaluate(self, block: Block, x: Val, y: Val, n: int) -> Val | None:
        """The reduction of n terms, or None if a factor holds an infinity, NaN or undecided element."""
        if any(undecided(v.e).any() or not np.isfinite(v.v).all() for v in (x, y)):
            return None
        size = self.product(block, np.abs(x.v), np.abs(y.v))
        error: Bound = 0.0
        if not is_exact(y.e):
            error = self.product(block, np.abs(x.v), cast(Array, y.e))
        if not is_exact(x.e):
            far = np.abs(y.v) if is_exact(y.e) else np.abs(y.v) + y.e
            error = join(error, self.product(block, cast(Array, x.e), far))
        value = self.product(block, x.v, y.v)
        dtype, nonneg = self.left.dtype, x.nonneg and y.nonneg
        roundings = growth(n) + 1.0
        return rounded(value, error, dtype, (error,), roundings=roundings, magnitude=size, nonneg=nonneg)


def _matrix(block: Block, a: Array, groups: tuple[tuple[str, ...], ...]) -> Array:
    """`a` with the axes of three groups flattened to three."""
    names = tuple(n for g in groups for n in g)
    full = tuple(block.shape[block.axis[n]] if n in names else 1 for n in block.ranges)
    rest = tuple(n for n in block.ranges if n not in names)
    order = [block.axis[n] for n in (*names, *rest)]
    extents = [int(np.prod([block.shape[block.axis[n]] for n in g], dtype=np.int64)) for g in groups]
    return cast(Array, np.broadcast_to(a, full).transpose(order).reshape(extents))


def contraction(s: Statement, block: Block) -> Contraction | None:
    """The statement as a contraction of a large rectangular domain."""
    e = s.expr
    if s.reduction != "sum" or s.accumulate or not isinstance(e, Apply) or e.op != "mul":
        return None
    if not e.dtype.is_float or np.prod(block.shape, dtype=np.float64) < WORTH_IT:
        return None
    if any(index_variables(d.lower) or index_variables(d.upper) for d in s.dims):
        return None
    left, right = depends_on(e.args[0]), depends_on(e.args[1])
    if left | right != set(block.ranges) or not set(s.reduction_dims) <= left & right:
        return None
    if left == set(block.ranges) or right == set(block.ranges):
        return None
    return Contraction(e.args[0], e.args[1], (frozenset(left), frozenset(right)), s.reduction_dims)
