"""Scalar expressions of graphs, written with Python's operators.

    x * sigmoid(x)       Apply("mul", (x, Apply("sigmoid", (x,))))

A `Term` has a compute dtype; a Python number beside it takes that dtype.  Rounding to 16 bits is a cast there
and back (`rounded`).
"""

from __future__ import annotations

import math
from typing import TypeAlias

from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import BOOL, F32, F64, HALVES, I64, DType
from polyfuse.ir.index_expr import IConst, IndexExpr
from polyfuse.ir.ops import OPS
from polyfuse.torch.dynamo.sizes import Unsupported

Operand: TypeAlias = "Term | int | float | bool"

_LARGEST = {F32: 3.4028235677973366e38, F64: math.inf}
"""From here on a number rounds to infinity."""


def constant(value: float | int | bool, dtype: DType) -> g.Const:
    """A number of Python in a compute dtype. Raises Unsupported where it is none of its values."""
    if dtype.is_bool:
        return g.Const(bool(value), BOOL)
    if dtype.is_float:
        number = float(value)
        if abs(number) >= _LARGEST[dtype] and not math.isnan(number):
            number = math.copysign(math.inf, number)
        return g.Const(number, dtype)
    low, high = dtype.limits
    if value != value or math.isinf(value) or int(value) != value or not low <= value <= high:
        raise Unsupported(f"the number {value} is no value of {dtype}")
    return g.Const(int(value), dtype)


class Term:
    """An expression of a compute dtype; operators make larger ones."""

    __slots__ = ("expr",)
    __hash__ = None  # type: ignore[assignment]  # == makes a comparison

    def __init__(self, expr: g.Expr) -> None:
        self.expr = expr

    @property
    def dtype(self) -> DType:
        """The dtype of the value."""
        return self.expr.dtype

    @property
    def number(self) -> float | int | bool | None:
        """The value, where it is known."""
        return self.expr.value if isinstance(self.expr, g.Const) else None

    def like(self, value: Operand) -> Term:
        """An operand beside this one."""
        return value if isinstance(value, Term) else Term(constant(value, self.dtype))

    def to(self, dtype: DType) -> Term:
        """Converted to a compute dtype."""
        return Term(converted(self.expr, dtype))

    def __add__(self, other: Operand) -> Term:
        if self.dtype.is_bool:
            return apply("or", self, other)
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> Term:
        return self.like(other) + self

    def __sub__(self, other: Operand) -> Term:
        return apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Term:
        return apply("sub", self.like(other), self)

    def __mul__(self, other: Operand) -> Term:
        if self.dtype.is_bool:
            return apply("and", self, other)
        right = self.like(other)
        if right.number == 1:
            return self
        return right if self.number == 1 else apply("mul", self, right)

    def __rmul__(self, other: Operand) -> Term:
        return self.like(other) * self

    def __truediv__(self, other: Operand) -> Term:
        return apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Term:
        return apply("div", self.like(other), self)

    def __floordiv__(self, other: Operand) -> Term:
        return apply("floordiv", self, other)

    def __mod__(self, other: Operand) -> Term:
        return apply("mod", self, other)

    def __pow__(self, other: Operand) -> Term:
        return apply("pow", self, other)

    def __neg__(self) -> Term:
        return apply("neg", self)

    def __lt__(self, other: Operand) -> Term:
        return apply("lt", self, other)

    def __le__(self, other: Operand) -> Term:
        return apply("le", self, other)

    def __gt__(self, other: Operand) -> Term:
        return apply("gt", self, other)

    def __ge__(self, other: Operand) -> Term:
        return apply("ge", self, other)

    def __eq__(self, other: Operand) -> Term:  # type: ignore[override]
        return apply("eq", self, other)

    def __ne__(self, other: Operand) -> Term:  # type: ignore[override]
        return apply("ne", self, other)

    def __and__(self, other: Operand) -> Term:
        return apply("and" if self.dtype.is_bool else "bitand", self, other)

    def __or__(self, other: Operand) -> Term:
        return apply("or" if self.dtype.is_bool else "bitor", self, other)

    def __xor__(self, other: Operand) -> Term:
        return apply("ne" if self.dtype.is_bool else "bitxor", self, other)

    def __invert__(self) -> Term:
        return apply("not" if self.dtype.is_bool else "bitnot", self)


_OF_BOOLS = {"max": "or", "min": "and"}


def apply(op: str, first: Term, *more: Operand) -> Term:
    """An operation of the table; numbers among the operands take the dtype of the first."""
    args = (first, *(first.like(x) for x in more))
    if first.dtype.is_bool and op in ("lt", "le", "gt", "ge"):
        args = tuple(a.to(I64) for a in args)
    if first.dtype.is_bool:
        op = _OF_BOOLS.get(op, op)
    row = OPS[op]
    dtype = args[0].dtype
    if not row.takes.has(dtype):
        raise Unsupported(f"'{op}' of {dtype}")
    return Term(g.Apply(op, tuple(a.expr for a in args), row.result(dtype)))


def where(test: Term, then: Operand, other: Operand) -> Term:
    """`then if test else other`; one of the two is a term."""
    model = then if isinstance(then, Term) else other
    assert isinstance(model, Term)
    yes, no = model.like(then), model.like(other)
    return Term(g.Select(test.expr, yes.expr, no.expr, yes.dtype))


def converted(e: g.Expr, dtype: DType) -> g.Expr:
    """A value in the compute dtype of `dtype`, as torch converts numbers."""
    to = dtype.compute
    if e.dtype is to:
        return e
    if isinstance(e, g.Const) and not (to.is_integer and e.dtype.is_float):
        return constant(e.value, to)
    if to.is_bool:
        return g.Apply("ne", (e, constant(0, e.dtype)), BOOL)
    return g.Cast(e, to)


def rounded(e: g.Expr, dtype: DType) -> g.Expr:
    """A value of f32 that is one of `dtype`: a cast there and back where that is one of 16 bits."""
    return e if dtype not in HALVES or _is_of(e, dtype) else g.Cast(g.Cast(e, dtype), F32)


def stored(e: g.Expr, dtype: DType) -> g.Expr:
    """A value as the right side of a definition of a tensor of `dtype`."""
    e = converted(e, dtype)
    if dtype.compute is dtype:
        return e
    return e.arg if isinstance(e, g.Cast) and e.arg.dtype is dtype else g.Cast(e, dtype)


def _is_of(e: g.Expr, dtype: DType) -> bool:
    """Is it read from where such values are, or rounded already?"""
    return isinstance(e, g.Cast) and e.arg.dtype is dtype


def of_index(index: IndexExpr, dtype: DType) -> g.Expr:
    """An index as a number."""
    if isinstance(index, IConst):
        return constant(index.value, dtype)
    if dtype.is_integer:
        wide = g.IndexValue(index, I64)
        return wide if dtype is I64 else g.Cast(wide, dtype)
    return g.IndexValue(index, dtype)


def weight(e: g.Expr) -> int:
    """How many nodes an expression has."""
    return sum(1 for _ in g.walk(e))
