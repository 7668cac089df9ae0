"""The order of the elements of rows, and what statements that find it are made of.

`RowOrder`            of a statement with arglargest or argsmallest: its rows, their elements, who comes first
`sizes_of_orders`     sizes that must be known for that
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from polyfuse.ir.dtypes import BOOL, I32, I64, DType
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, sizes, substitute, variables
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Const,
    Expr,
    Index,
    IndexValue,
    IterDim,
    Read,
    Select,
    Statement,
    TensorGraph,
    depends_on,
    map_expr,
)
from polyfuse.layers.graph.inline import Stored, as_read, fits, intervals, never_again


@dataclass(slots=True)
class RowOrder:
    """The order of the elements that the rows of a statement's operand have.

    `places` is how many of the first ones are asked for; positions are of dtype `number`.
    """

    s: Statement
    stored: Stored
    rows: tuple[IterDim, ...]
    over: IterDim
    length: int
    places: int
    value: Read
    number: DType

    @staticmethod
    def of(graph: TensorGraph, s: Statement) -> RowOrder | None:
        """Of a statement whose `sizes_of_orders` are known; None where it defines no element."""
        ranges = intervals(s.dims)
        if any(high < low for low, high in map(_known, filter(_is_known, ranges.values()))):
            return None
        assert s.place is not None
        (over,) = (d for d in s.dims if d.reduce)
        used = {*depends_on(s.expr), *variables(over.lower), *variables(over.upper)}
        for d in reversed(s.dims):
            used |= {*variables(d.lower), *variables(d.upper)} if d.name in used else set()
        rows = tuple(d for d in s.dims if d.name in used and not d.reduce)
        stored = Stored(graph, replace(s, dims=(*rows, over)))
        value = _stored_value(stored, rows, over)
        asked = IterDim("", s.place, binary("+", s.place, 1))
        places = _known(intervals((*s.dims, asked))[""])[1] + 1
        low, high = _known(ranges[over.name])
        narrow = s.expr.dtype.bytes <= I32.bytes and fits((IConst(4 * low), IConst(4 * high)))
        return RowOrder(s, stored, rows, over, high - low + 1, places, value, I32 if narrow else I64)

    @property
    def falling(self) -> bool:
        return self.s.reduction == "arglargest"

    @property
    def row(self) -> tuple[IndexExpr, ...]:
        """The index of a row in what is stored of each."""
        spans = intervals(self.rows)
        return tuple(binary("-", IVar(d.name), _start(spans[d.name])) for d in self.rows)

    @property
    def first_position(self) -> int:
        """The lowest position, where rows have the same."""
        return _known(intervals((*self.rows, self.over))[self.over.name])[0]

    @property
    def is_even(self) -> bool:
        """Have all rows elements in the same range?"""
        return isinstance(self.over.lower, IConst) and isinstance(self.over.upper, IConst)

    @property
    def takes_data(self) -> bool:
        """May positions be data? Where an element is read by its position itself."""
        over = IVar(self.over.name)
        plain = (i for i in self.value.indices if not isinstance(i, EXPR_TYPES))
        return all(i == over or over.name not in variables(i) for i in plain)

    def free(self, wish: str) -> str:
        """A name for a loop."""
        taken = {d.name for d in self.s.dims}
        names = (f"{self.over.name}_{wish}{'_' * k}" for k in range(len(taken) + 1))
        return next(n for n in names if n not in taken)

    # --- statements ------------------------------------------------------------------------------------

    def new(self, part: str, dtype: DType, *size: int) -> str:
        """A tensor with so many elements for each row."""
        spans = intervals(self.rows).values()
        rows = (binary("+", span[1], 1 - _start(span)) for span in spans)
        return self.stored.tensor(part, dtype, (*rows, *map(IConst, size)))

    def read(self, tensor: str, *at: Index) -> Read:
        """An element of this row."""
        dtype = next(t.dtype for t in self.stored.tensors if t.name == tensor)
        return Read(tensor, (*self.row, *at), dtype, self.s.span)

    def define(
        self,
        tensor: str,
        dims: tuple[IterDim, ...],
        at: tuple[Index, ...],
        e: Expr,
        reduction: str | None = None,
        *,
        scatter: bool = False,
    ) -> None:
        """Define elements of each row by loops inside it."""
        name, place, loops = self.stored.statement(tensor), (*self.row, *at), (*self.rows, *dims)
        s = Statement(name, tensor, loops, place, e, reduction, scatter, self.s.span)
        self.stored.statements.append(s)

    def put(self, tensor: str, dims: tuple[IterDim, ...], at: Expr, e: Expr, size: int) -> None:
        """Put numbers in places that data give, each in one of its own; the others are 0."""
        r = self.free("r")
        every = IterDim(r, IConst(0), IConst(size))
        self.define(tensor, (every,), (IVar(r),), Const(0, e.dtype, self.s.span))
        self.define(tensor, dims, (at,), e, "sum", scatter=True)

    # --- expressions -----------------------------------------------------------------------------------

    def at(self, position: Index) -> Read:
        """The element at a position, which may be data."""
        if isinstance(position, EXPR_TYPES):
            indices = tuple(position if i == IVar(self.over.name) else i for i in self.value.indices)
            return replace(self.value, indices=indices)
        found = map_expr(self.value, lambda x: x, lambda i: substitute(i, {self.over.name: position}))
        assert isinstance(found, Read)
        return found

    def chosen(self, cond: Expr, then: Expr, other: Expr) -> Expr:
        """A value by a condition."""
        return Select(cond, then, other, then.dtype, self.s.span)

    def counted(self, index: IndexExpr) -> Expr:
        """An index as a number of the dtype of positions."""
        return IndexValue(index, self.number, self.s.span)

    @property
    def by_keys(self) -> bool:
        """Do extremes compare keys? For the smallest of floats, as a minimum is NaN where any element is."""
        return not self.falling and self.value.dtype.is_float

    def element(self, position: Index) -> tuple[Expr, Expr]:
        """An element and its position, as extremes compare them.

        A key is the negative of the element; that of a NaN is the lowest, at a position behind all others.
        """
        value = self.at(position)
        at = position if isinstance(position, EXPR_TYPES) else self.counted(position)
        if not self.by_keys:
            return value, at
        nan = self.apply("isnan", value)
        lowest = Const(-math.inf, value.dtype, self.s.span)
        key = self.chosen(nan, lowest, self.apply("neg", value))
        return key, self.chosen(nan, self.apply("add", at, self.constant(self._behind)), at)

    def where(self, at: Expr) -> Expr:
        """The position that `element` gave."""
        if not self.by_keys:
            return at
        usual = self.apply("lt", at, self.constant(self._behind // 2))
        return self.chosen(usual, at, self.apply("sub", at, self.constant(self._behind)))

    @property
    def _behind(self) -> int:
        return 1 << (30 if self.number is I32 else 62)

    def constant(self, value: int) -> Const:
        """A number of the dtype of positions."""
        return Const(value, self.number, self.s.span)

    def apply(self, op: str, *args: Expr) -> Expr:
        compares = op in ("lt", "le", "gt", "eq", "and", "or", "not", "isnan")
        return Apply(op, args, BOOL if compares else args[0].dtype, self.s.span)

    def first(self, a: Expr, b: Expr, tie: Expr) -> Expr:
        """Does `a` come before `b`, if of equal ones `tie` says so? A NaN is larger than all numbers."""
        large, small = (a, b) if self.falling else (b, a)
        equal = self.apply("and", self.apply("eq", a, b), tie)
        found = self.apply("or", self.apply("gt", large, small), equal)
        if not a.dtype.is_float:
            return found
        sure = self.apply("or", tie, self.apply("not", self.apply("isnan", small)))
        return self.apply("or", found, self.apply("and", self.apply("isnan", large), sure))


def _stored_value(stored: Stored, rows: tuple[IterDim, ...], over: IterDim) -> Read:
    """The operand, which is the same wherever it is read."""
    e = stored.s.expr
    source = never_again(stored.graph, e)
    if source is not None and isinstance(e, Read):
        stored.tensors.append(source)
        return e
    dims = (*rows, replace(over, reduce=False))
    return stored.new("value", dims, e, None, as_read(dims, e))


def _is_known(span: tuple[IndexExpr, IndexExpr]) -> bool:
    return all(isinstance(e, IConst) for e in span)


def _known(span: tuple[IndexExpr, IndexExpr]) -> tuple[int, int]:
    low, high = span
    assert isinstance(low, IConst) and isinstance(high, IConst)  # sizes have values
    return low.value, high.value


def _start(span: tuple[IndexExpr, IndexExpr]) -> int:
    """Where storage for a range starts."""
    assert isinstance(span[0], IConst)
    return min(0, span[0].value)


def sizes_of_orders(graph: TensorGraph) -> tuple[str, ...]:
    """Sizes that must be known: they say how many elements are in order, which places are asked for, or where
    rows begin."""
    needed: set[str] = set()
    for s in graph.statements:
        if s.place is None:
            continue
        needed |= {*sizes(s.place), *(n for low, _ in intervals(s.dims).values() for n in sizes(low))}
        used = {*s.reduction_dims, *variables(s.place)}
        for d in reversed(s.dims):
            if d.name in used:
                used |= {*variables(d.lower), *variables(d.upper)}
                needed |= {*sizes(d.lower), *sizes(d.upper)}
    return tuple(n for n in graph.sizes if n in needed)
