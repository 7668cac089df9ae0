"""The syntax tree of the tensor language: what the parser builds, the formatter prints, the checker reads.

    Program  = imports, ops
    OpDef    = name, generics, params, results, where, body
    Stmt     = Define | Let | CallStmt
    Expr     = Number | BoolLit | Name | Subscript | Padded | Splat | Reduce | Call | Unary | Binary
             | Compare | Conditional

Every node is frozen and carries its span. Nothing is resolved here: a `Name` may turn out to be a
size, an index variable, a scalar or a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias, Union

from polyfuse.source import NO_SPAN, SourceText, Span

# --- expressions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """A literal. `value` is int or float; `text` is how it was written (the formatter keeps it)."""

    value: int | float
    text: str
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class BoolLit:
    value: bool
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Name:
    id: str
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Splat:
    """`b...`: as many index variables (or extents, `B...`) as the rank variable stands for."""

    id: str
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Subscript:
    """`tensor[i, j]`; `name_span` covers the tensor's name only."""

    name: str
    indices: tuple[Expr, ...]
    name_span: Span = field(default=NO_SPAN, compare=False)
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Padded:
    """`tensor[i - 1, j else value]`: the element, or the value where an index leaves its axis."""

    read: Subscript
    outside: Expr
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class VarRange:
    """`i in lower..upper` (reductions) and `for i in lower..upper`; bounds None where inferred.

    `splat` is true for `sum[b...](e)`.
    """

    var: str
    lower: Expr | None
    upper: Expr | None
    splat: bool = False
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Reduce:
    """`sum[h, w in 0..2](body)`; op one of sum max min prod any all mean argmax argmin.

    Of arglargest and argsmallest, `arglargest[h](body, place)`, it has the place.
    """

    op: str
    vars: tuple[VarRange, ...]
    body: Expr
    span: Span = field(default=NO_SPAN, compare=False)
    place: Expr | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """`f(a, b)`: a scalar function, a cast (`f32(x)`) or an operator; which, is the checker's business.

    `keywords` are `name = value` arguments (operator calls only).
    """

    callee: str
    args: tuple[Expr, ...]
    keywords: tuple[tuple[str, Expr], ...]
    callee_span: Span = field(default=NO_SPAN, compare=False)
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Unary:
    """op is '-' or 'not'."""

    op: str
    arg: Expr
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Binary:
    """op in + - * / // % ** and or."""

    op: str
    left: Expr
    right: Expr
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Compare:
    """A chain: operands[0] ops[0] operands[1] ops[1] ...; ops in < <= > >= == !=."""

    operands: tuple[Expr, ...]
    ops: tuple[str, ...]
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Conditional:
    """`then if cond else other`."""

    cond: Expr
    then: Expr
    other: Expr
    span: Span = field(default=NO_SPAN, compare=False)


Expr: TypeAlias = Union[  # noqa: UP007
    Number, BoolLit, Name, Splat, Subscript, Padded, Reduce, Call, Unary, Binary, Compare, Conditional
]

# --- types and signatures ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorType:
    """`f32[T, 3*H]`; `dtype` is a dtype name or a generic; extents are size expressions or Splats."""

    dtype: str
    extents: tuple[Expr, ...]
    dtype_span: Span = field(default=NO_SPAN, compare=False)
    span: Span = field(default=NO_SPAN, compare=False)


SIZE = "size"
"""The kind of generics that are numbers."""


@dataclass(frozen=True, slots=True)
class Generic:
    """`F: float` in `op f[F: float](...)`, or the size parameter `K: size = 2`; the default is of sizes."""

    name: str
    kind: str
    default: Expr | None = None
    name_span: Span = field(default=NO_SPAN, compare=False)
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter or a result. `default` is a (possibly negated) literal of a scalar parameter; an
    `optional` tensor may be absent."""

    name: str
    type: TensorType
    inout: bool
    default: Expr | None
    name_span: Span = field(default=NO_SPAN, compare=False)
    span: Span = field(default=NO_SPAN, compare=False)
    optional: bool = False


# --- statements ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Define:
    """`t[i, j] = e for i in 1..N`, `s = e` (rank 0, or an operator call), `t[dst[e]] += e`.

    op in = += max= min=. `indices` is None for a bare name.
    """

    target: str
    indices: tuple[Expr, ...] | None
    op: str
    value: Expr
    ranges: tuple[VarRange, ...]
    target_span: Span = field(default=NO_SPAN, compare=False)
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Let:
    """`let agg: f32[N, F] = 0` (value before scatters) or `let h: f16[N]` (dtype and shape only)."""

    name: str
    type: TensorType
    value: Expr | None
    name_span: Span = field(default=NO_SPAN, compare=False)
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class CallStmt:
    """`(y, m) = f(x, w)`, or `f(p, w)` without targets: a call for what it does to inout parameters."""

    targets: tuple[str, ...]
    call: Call
    target_spans: tuple[Span, ...] = field(default=(), compare=False)
    span: Span = field(default=NO_SPAN, compare=False)


Stmt: TypeAlias = Union[Define, Let, CallStmt]  # noqa: UP007


@dataclass(frozen=True, slots=True)
class OpDef:
    name: str
    generics: tuple[Generic, ...]
    params: tuple[Param, ...]
    results: tuple[Param, ...]
    where: tuple[Expr, ...]
    body: tuple[Stmt, ...]
    name_span: Span = field(default=NO_SPAN, compare=False)
    span: Span = field(default=NO_SPAN, compare=False)

    @property
    def dtype_generics(self) -> tuple[Generic, ...]:
        """Generics that stand for a dtype."""
        return tuple(g for g in self.generics if g.kind != SIZE)

    @property
    def size_parameters(self) -> tuple[Generic, ...]:
        """Generics that stand for a number."""
        return tuple(g for g in self.generics if g.kind == SIZE)


@dataclass(frozen=True, slots=True)
class FnDef:
    """`fn clamp(x, lo, hi) = min(max(x, lo), hi)`: a scalar expression with a name."""

    name: str
    params: tuple[str, ...]
    body: Expr
    param_spans: tuple[Span, ...] = field(default=(), compare=False)
    name_span: Span = field(default=NO_SPAN, compare=False)
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Import:
    path: str
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Comment:
    """`# text`; `own_line` is false for a comment after code."""

    text: str
    own_line: bool
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Program:
    """One file. `comments` are in order of place, for the formatter.

    Equal programs have equal imports, operators and functions, whatever their layout.
    """

    source: SourceText = field(compare=False)
    imports: tuple[Import, ...]
    ops: tuple[OpDef, ...]
    comments: tuple[Comment, ...] = field(compare=False, default=())
    functions: tuple[FnDef, ...] = ()
