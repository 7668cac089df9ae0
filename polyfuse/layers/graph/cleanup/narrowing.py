"""Narrower integers: clamps of floats, and integers of 64 bits whose values fit 32.

What is clamped to numbers of 32 bits is converted to an integer of 32 bits (`narrow_clamps`).

    min(max(i64(x), 0), 99)     becomes     i64(min(max(i32(x), 0), 99))

Conversions of floats go to the nearest end of the type, and NaN to 0 in each: what i32 cannot hold lies
beyond both bounds, where its end does as well.  Processors convert many floats to 32 bits at once, to 64
bits many of them only one.  Where a scatter writes to is left alone: its elements come one by one, and gcc 12
moves minima of 32 bits into vector registers and back for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyfuse.decisions import Decision
from polyfuse.ir.dtypes import I32, I64, DType
from polyfuse.ir.index_expr import variables
from polyfuse.ir.intervals import Interval, fits, joined, of_dims, of_dtype, of_expr
from polyfuse.ir.linear import Range, interval, size_ranges
from polyfuse.ir.ops import INDEX, NEGATED
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
    map_expr,
    reads,
)
from polyfuse.layers.graph.cleanup.folding import constant_value

# --- clamps -----------------------------------------------------------------------------------------------


def narrow_clamps(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """The graph with such clamps in 32 bits."""
    statements = []
    for s in graph.statements:
        expr = map_expr(s.expr, _clamped_in_32_bits)
        statements.append(s if expr is s.expr else replace(s, expr=expr))
        if expr is not s.expr:
            why = "what is clamped to numbers of 32 bits is converted to i32, not to i64"
            decisions.append(Decision("narrow", s.name, True, why))
    if all(a is b for a, b in zip(statements, graph.statements, strict=True)):
        return graph
    return replace(graph, statements=tuple(statements))


def _clamped_in_32_bits(e: Expr) -> Expr:
    """The clamp of a converted float in 32 bits; other expressions as they are."""
    outer = _bounded(e)
    inner = _bounded(outer[1]) if outer is not None else None
    if outer is None or inner is None or outer[0] == inner[0]:
        return e
    value = inner[1]
    if not (isinstance(value, Cast) and value.arg.dtype.is_float):
        return e
    narrow: Expr = Cast(value.arg, I32, value.span)
    for op, _, bound in (inner, outer):
        narrow = Apply(op, (narrow, Const(bound, I32)), I32, e.span)
    return Cast(narrow, I64, e.span)


def _bounded(e: Expr) -> tuple[str, Expr, int] | None:
    """Operation, operand and bound of a minimum or maximum of i64 with a number that fits 32 bits."""
    if not (isinstance(e, Apply) and e.op in ("min", "max") and e.dtype == I64):
        return None
    for value, bound in (e.args, e.args[::-1]):
        number = constant_value(bound)
        if number is not None and -(2**31) <= number < 2**31:
            return e.op, value, int(number)
    return None


# --- integers ---------------------------------------------------------------------------------------------

# Integers of 64 bits whose values fit 32 bits are computed in 32 bits.
#
#     k[i] = i64(floor(min(max(u[i], 0.0), 255.0))) + 1        k: i64
# becomes
#     k[i] = i32(floor(min(max(u[i], 0.0), 255.0))) + 1        k: i32
#
# What fits is told by intervals (`ir.intervals`), from statement to statement.  Vectors hold twice as many
# integers of 32 bits, and AVX2 neither multiplies, compares nor converts those of 64 bits well.  Results and
# arguments keep their dtypes, also what indices of scatters read: their elements come one by one.


_ARITHMETIC = (*INDEX, "neg", "abs")


def narrow_integers(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """The graph with such integers in 32 bits; what open sizes are at most is among its constraints."""
    known = _Known(graph)
    visited = [known.visited(s) for s in graph.statements]
    statements = tuple(known.stored(s) for s in visited)
    if all(a is b for a, b in zip(statements, graph.statements, strict=True)):
        return graph
    for s, new in zip(graph.statements, statements, strict=True):
        if new is not s:
            decisions.append(Decision("narrow", s.name, True, "values that fit 32 bits are computed in i32"))
    tensors = tuple(replace(t, dtype=I32) if t.name in known.narrow else t for t in graph.tensors)
    return replace(graph, statements=statements, tensors=tensors)


@dataclass(slots=True)
class _Known:
    """What is known of tensors while statements are visited in order.

    `values` are those of tensors all of whose writers have been visited, `made` those of some of them;
    `narrow` are those that become i32, `wide` those that must not.
    """

    graph: TensorGraph
    values: dict[str, Interval] = field(default_factory=dict)
    made: dict[str, list[Interval]] = field(default_factory=dict)
    narrow: set[str] = field(default_factory=set)
    wide: set[str] = field(init=False)
    sizes: dict[str, Range] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = size_ranges(self.graph)
        written_by = [i for s in self.graph.statements for i in s.write if isinstance(i, EXPR_TYPES)]
        self.wide = {r.tensor for i in written_by for r in reads(i)}

    def visited(self, s: Statement) -> Statement:
        """A statement with narrow integers; what it writes has its dtype still."""
        dims = of_dims(s.dims, self.sizes)
        target = self.graph.tensor(s.target)
        expr, values = self.expr(s.expr, dims)
        values = _written(s, values, dims, target.dtype)
        if s.reduction is not None and target.dtype is I64 and not fits(values, I32):
            expr = map_expr(s.expr, self._retyped)  # tiles find products by their form
        made = self.made.setdefault(s.target, [])
        made.append(values)
        if len(made) == len(self.graph.writers(s.target)):
            self._finish(s.target)
        return s if expr is s.expr else replace(s, expr=expr)

    def _finish(self, name: str) -> None:
        """All writers of a tensor have been visited."""
        t = self.graph.tensor(name)
        if t.role is not Role.TEMP:
            return
        values = self.made[name][0]
        for more in self.made[name][1:]:
            values = joined(values, more)
        self.values[name] = values
        if t.dtype is I64 and name not in self.wide and fits(values, I32):
            self.narrow.add(name)

    def stored(self, s: Statement) -> Statement:
        """A statement that writes its tensor's new dtype."""
        if s.target not in self.narrow:
            return s
        return replace(
            s, expr=_narrowed(s.expr, of_dims(s.dims, self.sizes)) or Cast(s.expr, I32, s.expr.span)
        )

    def expr(self, e: Expr, dims: Mapping[str, Range]) -> tuple[Expr, Interval]:
        """An expression of the same dtype, and its values."""
        match e:
            case Read():
                return self._read(e, dims)
            case Apply(_, args):
                parts = [self.expr(a, dims) for a in args]
                new = tuple(p[0] for p in parts)
                e = e if all(a is b for a, b in zip(new, args, strict=True)) else replace(e, args=new)
            case Select(cond, then, other):
                chosen = self.expr(cond, dims)[0]
                parts = [self.expr(then, dims), self.expr(other, dims)]
                new = (chosen, parts[0][0], parts[1][0])
                if not (chosen is cond and new[1] is then and new[2] is other):
                    e = replace(e, cond=chosen, then=new[1], other=new[2])
            case Cast(arg):
                parts = [self.expr(arg, dims)]
                e = e if parts[0][0] is arg else replace(e, arg=parts[0][0])
            case _:
                parts = []
        values = of_expr(e, [p[1] for p in parts], dims, {})
        return _in_32_bits(e, values, dims), values

    def _read(self, e: Read, dims: Mapping[str, Range]) -> tuple[Expr, Interval]:
        indices = tuple(self._index(i, dims) for i in e.indices)
        if not all(a is b for a, b in zip(indices, e.indices, strict=True)):
            e = replace(e, indices=indices)
        if e.tensor not in self.values:
            self.wide.add(e.tensor)
        return self._retyped(e), self.values.get(e.tensor, of_dtype(e.dtype))

    def _retyped(self, e: Expr) -> Expr:
        """A read of a tensor that became i32."""
        if not (isinstance(e, Read) and e.tensor in self.narrow):
            return e
        return Cast(replace(e, dtype=I32), I64, e.span)

    def _index(self, i: Index, dims: Mapping[str, Range]) -> Index:
        if not isinstance(i, EXPR_TYPES):
            return i
        found = self.expr(i, dims)[0]
        return _narrowed(found, dims) or found


def _written(s: Statement, values: Interval, dims: Mapping[str, Range], dtype: DType) -> Interval:
    """What a statement may write; all of the dtype where that is not looked into."""
    counts = [dims[d][1] - dims[d][0] + 1 if d in dims else math.inf for d in s.reduction_dims]
    if s.reduction is None and not s.accumulate:
        return values
    if s.reduction == "sum" and not s.accumulate and dtype is I64 and math.inf not in counts:
        low, high = (v * math.prod(counts) for v in values)
        total = min(low, 0), max(high, 0)
        return total if fits(total, I64) else of_dtype(I64)
    return of_dtype(dtype)


def _in_32_bits(e: Expr, values: Interval, dims: Mapping[str, Range]) -> Expr:
    """An expression whose parts are done, computed in 32 bits where that gives the same."""
    match e:
        case IndexValue(index, dtype) if dtype.is_float and variables(index):
            varies = fits(values, I32) and values[0] < values[1]
            return Cast(replace(e, dtype=I32), dtype, e.span) if varies else e
        case Cast(arg, dtype) if dtype is I64 and arg.dtype.is_float and fits(values, I32):
            return Cast(replace(e, dtype=I32), I64, e.span)
        case Cast(arg, dtype) if dtype is not I64 and not isinstance(arg, IndexValue):
            narrow = _narrowed(arg, dims)
            return e if narrow is None else narrow if dtype is I32 else replace(e, arg=narrow)
        case Select(cond, then, other) if e.dtype is I64:
            sides = _all_narrowed((then, other), dims)
            return Cast(Select(cond, sides[0], sides[1], I32, e.span), I64, e.span) if sides else e
        case Apply(op, args) if op in NEGATED and not all(isinstance(a, (IndexValue, Const)) for a in args):
            return replace(e, args=_all_narrowed(args, dims) or args)
        case Apply(op, args) if op in _ARITHMETIC and e.dtype is I64 and fits(values, I32):
            new = _all_narrowed(args, dims)
            return e if not new else Cast(replace(e, args=new, dtype=I32), I64, e.span)
        case _:
            return e


def _all_narrowed(args: tuple[Expr, ...], dims: Mapping[str, Range]) -> tuple[Expr, ...]:
    """All of them as i32; none if one may not fit."""
    new = tuple(n for a in args if (n := _narrowed(a, dims)) is not None)
    return new if len(new) == len(args) else ()


def _narrowed(e: Expr, dims: Mapping[str, Range]) -> Expr | None:
    """A number of i64 as one of i32, if it is known to fit."""
    match e:
        case Cast(arg, dtype) if dtype is I64 and arg.dtype is I32:
            return arg
        case Cast(arg, dtype) if dtype is I64 and not arg.dtype.is_float and fits(of_dtype(arg.dtype), I32):
            return replace(e, dtype=I32)
        case Const(value, dtype) if dtype is I64 and fits((value, value), I32):
            return replace(e, dtype=I32)
        case IndexValue(index, dtype) if dtype is I64:
            values = interval(index, dims)
            return replace(e, dtype=I32) if values is not None and fits(values, I32) else None
        case _:
            return None
