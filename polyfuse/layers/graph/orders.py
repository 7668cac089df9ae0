"""What stands at a place of an order (arglargest, argsmallest), as plain reductions.

`with_orders`     at known sizes, before all other passes
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.ir.dtypes import BOOL, I32, I64, DType
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    IndexValue,
    IterDim,
    Read,
    Select,
    Statement,
    Tensor,
    TensorGraph,
    depends_on,
    map_expr,
)
from polyfuse.layers.graph.inline import LARGEST, LARGEST_SHORT, Stored, as_read, fits, intervals, never_again

ROUNDS = 64
"""As many places are found one after the other, each in a pass over the row."""
SHARE = 4
"""Of rows that have so many elements for each place; else all elements are counted that come before one."""


def with_orders(graph: TensorGraph) -> TensorGraph:
    """arglargest and argsmallest as plain reductions; sizes are known.

        a[t, k] = arglargest[h](e, k)
    becomes, for few places of a long row, a pass over the row for each, which looks at what comes after the
    one before:

        v[t, h] = e                                  (kept in storage: all uses must see the same bits)
        m[t, 0] = max[h](v[t, h])
        i[t, 0] = min[h](i32(h) if v[t, h] == m[t, 0] else 2**31 - 1)
        m[t, r] = max[h](v[t, h] if (v[t, h], h) comes after (m[t, r - 1], i[t, r - 1]) else -inf)
        i[t, r] = min[h](i32(h) if ... and v[t, h] == m[t, r] else 2**31 - 1)
        a[t, k] = i64(i[t, k])

    else each element's place is the number of those before it:

        p[t, h] = sum[j](i32((v[t, j], j) comes before (v[t, h], h)))
        i[t, p[t, h]] += i32(h)

    A NaN is larger than all numbers; the smallest of floats are counted, since min gives NaN for one.
    """
    statements: list[Statement] = []
    tensors = {t.name: t for t in graph.tensors}
    for s in graph.statements:
        if s.place is None:
            statements.append(s)
            continue
        new_statements, new_tensors = _parts(graph, s)
        statements += new_statements
        tensors |= {t.name: t for t in new_tensors}
    return replace(graph, statements=tuple(statements), tensors=tuple(tensors.values()))


def _parts(graph: TensorGraph, s: Statement) -> tuple[list[Statement], list[Tensor]]:
    """The parts, and the tensors that are new or to be stored."""
    kept = tuple(d for d in s.dims if not d.reduce)
    last = replace(s, dims=kept, reduction=None, place=None)
    order = _Order.of(graph, s)
    if order is None:
        return [replace(last, expr=Const(0, I64, s.span))], []
    by_rounds = order.places <= min(ROUNDS, max(1, order.length // SHARE))
    smallest_float = s.reduction == "argsmallest" and s.expr.dtype.is_float
    at = order.found_in_rounds() if by_rounds and not smallest_float else order.counted()
    assert s.place is not None
    here = Read(at, (*order.row, s.place), order.number, s.span)
    value: Expr = here if order.number is I64 else Cast(here, I64, s.span)
    return [*order.stored.statements, replace(last, expr=value)], order.stored.tensors


@dataclass(slots=True)
class _Order:
    """The order of the elements of rows: what a statement's operand and the range of its elements use."""

    s: Statement
    stored: Stored
    rows: tuple[IterDim, ...]
    over: IterDim
    length: int
    places: int  # those that are asked for are below
    value: Read
    number: DType  # of positions

    @staticmethod
    def of(graph: TensorGraph, s: Statement) -> _Order | None:
        """None where no element is defined."""
        ranges = {n: _known(span) for n, span in intervals(s.dims).items()}
        if any(high < low for low, high in ranges.values()):
            return None
        assert s.place is not None
        (over,) = (d for d in s.dims if d.reduce)
        used = {*depends_on(s.expr), *variables(over.lower), *variables(over.upper)}
        for d in reversed(s.dims):
            used |= {*variables(d.lower), *variables(d.upper)} if d.name in used else set()
        rows = tuple(d for d in s.dims if d.name in used and not d.reduce)
        stored = Stored(graph, replace(s, dims=(*rows, over)))
        value = _stored_value(stored, rows, over)
        places = _known(intervals((*s.dims, IterDim("", s.place, binary("+", s.place, 1))))[""])[1] + 1
        low, high = ranges[over.name]
        number = I32 if s.expr.dtype.bytes <= I32.bytes and fits((IConst(low), IConst(high))) else I64
        return _Order(s, stored, rows, over, high - low + 1, places, value, number)

    @property
    def row(self) -> tuple[IndexExpr, ...]:
        """The index of a row in what is stored of each."""
        lows = intervals(self.rows)
        return tuple(binary("-", IVar(d.name), min(0, _known(lows[d.name])[0])) for d in self.rows)

    def new(self, part: str, dtype: DType, size: int) -> str:
        """A tensor with so many elements for a row."""
        spans = [_known(span) for span in intervals(self.rows).values()]
        shape = (*(IConst(high + 1 - min(0, low)) for low, high in spans), IConst(size))
        return self.stored.tensor(part, dtype, shape)

    def read(self, tensor: str, at: IndexExpr, dtype: DType) -> Read:
        return Read(tensor, (*self.row, at), dtype, self.s.span)

    def add(
        self, tensor: str, dims: tuple[IterDim, ...], at: IndexExpr | Expr, e: Expr, reduction: str | None
    ) -> None:
        """A definition of an element for each of some rows."""
        s = Statement(
            self.stored.statement(tensor), tensor, dims, (*self.row, at), e, reduction,
            accumulate=isinstance(at, EXPR_TYPES), span=self.s.span,
        )  # fmt: skip
        self.stored.statements.append(s)

    # --- in rounds -------------------------------------------------------------------------------------

    def found_in_rounds(self) -> str:
        """The tensor with the positions of the first ones, each found in a pass over the row."""
        dtype, h = self.value.dtype, IVar(self.over.name)
        best, at = self.new("best", dtype, self.places), self.new("at", self.number, self.places)
        extreme = "max" if self.s.reduction == "arglargest" else "min"
        nothing = Const(identity(extreme, dtype), dtype, self.s.span)
        none = Const(LARGEST_SHORT if self.number is I32 else LARGEST, self.number, self.s.span)
        position = IndexValue(h, self.number, self.s.span)
        self.add(best, (*self.rows, self.over), IConst(0), self.value, extreme)
        found = self._same(self.value, self.read(best, IConst(0), dtype))
        first = Select(found, position, none, self.number, self.s.span)
        self.add(at, (*self.rows, self.over), IConst(0), first, "min")
        if self.places == 1:
            return at
        r = IterDim(self._free("r"), IConst(1), IConst(self.places))
        before, now = IVar(r.name) - 1, IVar(r.name)
        held, place = self.read(best, before, dtype), self.read(at, before, self.number)
        after = self._first(held, self.value, Apply("lt", (place, position), BOOL, self.s.span))
        dims = (*self.rows, r, self.over)
        self.add(best, dims, now, Select(after, self.value, nothing, dtype, self.s.span), extreme)
        found = _all(after, self._same(self.value, self.read(best, now, dtype)))
        self.add(at, dims, now, Select(found, position, none, self.number, self.s.span), "min")
        return at

    # --- by counting -----------------------------------------------------------------------------------

    def counted(self) -> str:
        """The tensor with the positions of the first ones; the place of each element is counted."""
        j = replace(self.over, name=self._free("j"))
        position = IVar(self.over.name)
        other = _renamed(self.value, {self.over.name: IVar(j.name)})
        order = (IVar(j.name), position)
        earlier = Apply("lt", tuple(IndexValue(i, self.number) for i in order), BOOL, self.s.span)
        before = Cast(self._first(other, self.value, earlier), I32, self.s.span)
        dims = tuple(replace(d, reduce=False) for d in (*self.rows, self.over))
        count = self.stored.new("count", (*dims, replace(j, reduce=True)), before, "sum", dims)
        at = self.new("at", self.number, self.places)
        place: Expr = count
        number: Expr = IndexValue(position, self.number, self.s.span)
        if self.places < self.length:
            last = Const(self.places - 1, I32, self.s.span)
            none = Const(0, self.number, self.s.span)
            asked = Apply("le", (count, last), BOOL, self.s.span)
            number = Select(asked, number, none, self.number, self.s.span)
            place = Apply("min", (count, last), I32, self.s.span)
        r = IterDim(self._free("r"), IConst(0), IConst(self.places))
        self.add(at, (*self.rows, r), IVar(r.name), Const(0, self.number, self.s.span), None)
        self.add(at, dims, place, number, "sum")
        return at

    # --- comparisons -----------------------------------------------------------------------------------

    def _first(self, a: Expr, b: Expr, tie: Expr) -> Expr:
        """Does `a` come before `b`, if of equal ones `tie` says so?"""
        span, (large, small) = self.s.span, (a, b) if self.s.reduction == "arglargest" else (b, a)
        found = _any(
            Apply("gt", (large, small), BOOL, span), _all(Apply("eq", (a, b), BOOL, span), tie)
        )
        if not a.dtype.is_float:
            return found
        other = Apply("not", (Apply("isnan", (small,), BOOL, span),), BOOL, span)
        return _any(found, _all(Apply("isnan", (large,), BOOL, span), _any(tie, other)))

    def _same(self, a: Expr, best: Expr) -> Expr:
        """Is an element equal to the first that is left? If there is a NaN, `best` is one."""
        found: Expr = Apply("eq", (a, best), BOOL, self.s.span)
        return _any(found, Apply("isnan", (a,), BOOL, self.s.span)) if a.dtype.is_float else found

    def _free(self, wish: str) -> str:
        taken = {d.name for d in self.s.dims}
        return next(n for n in (f"{self.s.name}__{wish}{'_' * k}" for k in range(len(taken) + 1)) if n not in taken)


def _stored_value(stored: Stored, rows: tuple[IterDim, ...], over: IterDim) -> Read:
    """The operand, which is the same wherever it is read."""
    e = stored.s.expr
    source = never_again(stored.graph, e)
    if source is not None and isinstance(e, Read):
        stored.tensors.append(source)
        return e
    dims = (*rows, replace(over, reduce=False))
    return stored.new("value", dims, e, None, as_read(dims, e))


def _renamed(e: Read, new: dict[str, IndexExpr]) -> Read:
    found = map_expr(e, lambda x: x, lambda i: substitute(i, new))
    assert isinstance(found, Read)
    return found


def _known(span: tuple[IndexExpr, IndexExpr]) -> tuple[int, int]:
    low, high = span
    assert isinstance(low, IConst) and isinstance(high, IConst)  # sizes have values
    return low.value, high.value


def _all(a: Expr, b: Expr) -> Expr:
    return Apply("and", (a, b), BOOL, a.span)


def _any(a: Expr, b: Expr) -> Expr:
    return Apply("or", (a, b), BOOL, a.span)
