"""The tensor graph: an operator as single-assignment statements over iteration domains.

    TensorGraph = sizes, constraints, tensors, statements, inputs, outputs
    Statement   = target[write...] = expr             for dims            (reduction is None)
                | target[write...] = reduce over the reduction dims of expr
                | target[write...] op= expr           scatter: accumulate=True, write may hold Exprs
    Expr        = Const | IndexValue | Read | Apply | Select | Cast       (typed, with spans)

The frontend writes it, the reference evaluator defines its meaning, layer I schedules it.
Facts that hold in every graph (checked by `ir.verify_graph`):

* A tensor is either an input or written by at least one statement; pieces of one tensor are
  disjoint (proved by isl, `poly.legality.ranges`), so each element is defined once, except that
  `accumulate` statements add to what the others define (or to the identity).
* A reduction is the whole right side of its statement: the frontend splits ``sum[h](e) / H`` into
  a statement for the sum (its tensor is a generated TEMP) and one for the division.
  Its dims are the outer variables it uses, then the reduction dims (``IterDim.reduce``).
* Arithmetic happens in compute types only (f64, f32, integers, bool): reads of f16/bf16 tensors are
  wrapped in a Cast to f32, writes to f16/bf16 tensors end in a Cast to the tensor's dtype.
* An inout parameter p is two tensors: the entry value (role INOUT, only read) and
  ``Tensor(name="p__out", role=OUTPUT, alias="p")``, which is written. Elements not written keep
  the entry value. Storage decides whether both can share memory.
* An element whose index leaves the tensor under a guard that is false is not read: `Select` is lazy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias, Union

from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IConst, IndexExpr, as_index, binary, variables
from polyfuse.ir.ops import ARG_REDUCTIONS as ARG_REDUCTIONS
from polyfuse.ir.ops import COMBINES, INFIX, OPS
from polyfuse.source import NO_SPAN, Span


class Role(Enum):
    INPUT = "input"
    OUTPUT = "output"
    INOUT = "inout"
    TEMP = "temp"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor. Scalars have shape (). `default` is a scalar argument's default value.

    `exact` marks a temp that must be stored, never recomputed: two uses must see the same bits.
    """

    name: str
    dtype: DType
    shape: tuple[IndexExpr, ...]
    role: Role
    span: Span = field(default=NO_SPAN, compare=False)
    default: float | int | bool | None = None
    alias: str | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class IterDim:
    """A loop variable and its half-open range; bounds may use sizes and earlier dims of the statement."""

    name: str
    lower: IndexExpr
    upper: IndexExpr
    reduce: bool = False

    @property
    def is_empty(self) -> bool:
        """Do its bounds say, as constants, that it has no values?"""
        low, high = self.lower, self.upper
        return isinstance(low, IConst) and isinstance(high, IConst) and low.value >= high.value

    def __str__(self) -> str:
        return f"{self.name} in {self.lower}..{self.upper}"


# --- expressions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Const:
    value: float | int | bool
    dtype: DType
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An index expression used as a number; computed in i64, then converted to `dtype`."""

    index: IndexExpr
    dtype: DType
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Read:
    """One element of a tensor. An index is affine (IndexExpr) or data (an integer Expr: a gather)."""

    tensor: str
    indices: tuple[Index, ...]
    dtype: DType
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar operation of `ir.ops.OPS`; operands already have the type the operation works in."""

    op: str
    args: tuple[Expr, ...]
    dtype: DType
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Select:
    """`then if cond else other`; only the chosen side is evaluated, so guards make reads legal."""

    cond: Expr
    then: Expr
    other: Expr
    dtype: DType
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Cast:
    arg: Expr
    dtype: DType
    span: Span = field(default=NO_SPAN, compare=False)


Expr: TypeAlias = Union[Const, IndexValue, Read, Apply, Select, Cast]  # noqa: UP007
Index: TypeAlias = Union[IndexExpr, Expr]  # noqa: UP007
EXPR_TYPES = (Const, IndexValue, Read, Apply, Select, Cast)

REDUCTIONS = (*COMBINES, *ARG_REDUCTIONS)


class Purpose(Enum):
    """What a statement is for."""

    VALUE = "value"
    INIT = "init"  # the first value of a total
    COPY = "copy"  # keeps a row near
    PART = "part"  # of results side by side, which it is computed once for
    SCAN = "scan"  # adds a term to a total of those before, in an order that is free


@dataclass(frozen=True, slots=True)
class Statement:
    """One definition. See the module docstring.

    For argmax and argmin there is exactly one reduction dim, and the result (i64) is its value at
    the first of the equal extremes; a NaN counts as the extreme, as in NumPy.

    For arglargest and argsmallest it is the value of the dim at `place` when the elements are in order, the
    largest or the smallest first. Equal ones keep their order, and a NaN is larger than all numbers.
    """

    name: str
    target: str
    dims: tuple[IterDim, ...]
    write: tuple[Index, ...]
    expr: Expr
    reduction: str | None = None
    accumulate: bool = False
    span: Span = field(default=NO_SPAN, compare=False)
    purpose: Purpose = Purpose.VALUE
    place: IndexExpr | None = None
    # What `statement_reads` found: passes ask for it again and again.
    _reads: tuple[Read, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def reduction_dims(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.dims if d.reduce)

    def __str__(self) -> str:
        where = ", ".join(map(str, (d for d in self.dims if not d.reduce)))
        over = ", ".join(map(str, (d for d in self.dims if d.reduce)))
        right = format_expr(self.expr) + (f", {self.place}" if self.place is not None else "")
        if self.accumulate:
            sign, where = f"{self.reduction}=", ", ".join(map(str, self.dims))
        else:
            sign, right = "=", f"{self.reduction}[{over}]({right})" if self.reduction else right
        left = f"{self.target}[{', '.join(map(format_index, self.write))}]"
        return f"{self.name}: {left} {sign} {right}" + (f"  for {where}" if where else "")


@dataclass(frozen=True, slots=True)
class Constraint:
    """`left op right` on sizes, op in == != < <= > >=; proofs assume it, calls check it."""

    op: str
    left: IndexExpr
    right: IndexExpr
    span: Span = field(default=NO_SPAN, compare=False)

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"


@dataclass(frozen=True, slots=True)
class SizeParameter:
    """A size that callers give by its name; the default is made of other sizes, None if there is none."""

    name: str
    default: IndexExpr | None


@dataclass(frozen=True, slots=True)
class TensorGraph:
    """An operator at one choice of generics. `inputs` and `outputs` are in signature order.

    `size_parameters` are those of its sizes that callers may give.

    `outputs` names the declared results only; what an inout parameter becomes is found through
    `Tensor.alias`.
    """

    name: str
    sizes: tuple[str, ...]
    constraints: tuple[Constraint, ...]
    tensors: tuple[Tensor, ...]
    statements: tuple[Statement, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    span: Span = field(default=NO_SPAN, compare=False)
    size_parameters: tuple[SizeParameter, ...] = field(default=(), repr=False, compare=False)
    _places: dict[str, _Places] = field(default_factory=dict, init=False, repr=False, compare=False)

    def tensor(self, name: str) -> Tensor:
        return self._look_up().tensors[name]

    def statement(self, name: str) -> Statement:
        return self._look_up().statements[name]

    def writers(self, tensor: str) -> tuple[Statement, ...]:
        return tuple(self._look_up().writers.get(tensor, ()))

    def readers(self, tensor: str) -> tuple[Statement, ...]:
        return tuple(self._look_up().readers.get(tensor, ()))

    def _look_up(self) -> _Places:
        """Made at the first question: graphs have thousands of names, and most of them are asked for."""
        if not self._places:
            self._places[""] = _Places.of(self)
        return self._places[""]

    def __str__(self) -> str:
        defaults = {p.name: f" = {p.default}" for p in self.size_parameters if p.default is not None}
        lines = [f"graph {self.name}({', '.join(n + defaults.get(n, '') for n in self.sizes)})"]
        lines += [f"  where {c}" for c in self.constraints]
        for t in self.tensors:
            shape = ", ".join(map(str, t.shape))
            extra = f" = {t.default}" if t.default is not None else ""
            extra += f" aliases {t.alias}" if t.alias else ""
            lines.append(f"  {t.role.value:6s} {t.name}: {t.dtype}[{shape}]{extra}")
        lines += [f"  {s}" for s in self.statements]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where names are in a graph; the first of several with one name."""

    tensors: dict[str, Tensor]
    statements: dict[str, Statement]
    writers: dict[str, list[Statement]]
    readers: dict[str, list[Statement]]

    @staticmethod
    def of(graph: TensorGraph) -> _Places:
        writers: dict[str, list[Statement]] = {}
        readers: dict[str, list[Statement]] = {}
        for s in graph.statements:
            writers.setdefault(s.target, []).append(s)
            for name in dict.fromkeys(r.tensor for r in statement_reads(s)):
                readers.setdefault(name, []).append(s)
        tensors = {t.name: t for t in reversed(graph.tensors)}
        return _Places(tensors, {s.name: s for s in reversed(graph.statements)}, writers, readers)


# --- walking and rebuilding ----------------------------------------------------------------------


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct operands, data indices of reads included."""
    match e:
        case Apply(_, args):
            return args
        case Select(cond, then, other):
            return (cond, then, other)
        case Cast(arg):
            return (arg,)
        case Read(_, indices):
            return tuple(i for i in indices if isinstance(i, EXPR_TYPES))
        case Const() | IndexValue():
            return ()


def walk(e: Expr) -> Iterator[Expr]:
    """The expression and everything below it, parents first, left to right."""
    left = [e]
    while left:
        x = left.pop()
        yield x
        left += reversed(children(x))


def reads(e: Expr) -> tuple[Read, ...]:
    return tuple(x for x in walk(e) if isinstance(x, Read))


def plain_variables(indices: Iterable[Index]) -> set[str]:
    """The loop variables of those indices that are found without data."""
    return {v for i in indices if not isinstance(i, EXPR_TYPES) for v in variables(i)}


def depends_on(*parts: Index) -> set[str]:
    """The loop variables that indices and expressions depend on, by way of data as well."""
    found = plain_variables(parts)
    for x in (x for e in parts if isinstance(e, EXPR_TYPES) for x in walk(e)):
        match x:
            case Read(_, indices):
                found |= plain_variables(indices)
            case IndexValue(index):
                found.update(variables(index))
            case _:
                pass
    return found


def statement_reads(s: Statement) -> tuple[Read, ...]:
    """Every read of a statement, those in data indices of its write included."""
    if s._reads is None:
        found = reads(s.expr)
        for index in s.write:
            if isinstance(index, EXPR_TYPES):
                found += reads(index)
        object.__setattr__(s, "_reads", found)
        return found
    return s._reads


def map_expr(
    e: Expr, on_expr: Callable[[Expr], Expr], on_index: Callable[[IndexExpr], IndexExpr] | None = None
) -> Expr:
    """Rebuild bottom-up: `on_index` on affine indices, `on_expr` on every rebuilt node.

    Nodes whose parts did not change are kept, so that `is` tells whether anything did.  What replaces a node
    and comes from nowhere in the text has the node's span.
    """

    def go(x: Expr) -> Expr:
        match x:
            case Apply(_, args):
                new = tuple(map(go, args))
                x = x if all(a is b for a, b in zip(new, args, strict=True)) else replace(x, args=new)
            case Select(cond, then, other):
                c, t, o = go(cond), go(then), go(other)
                if not (c is cond and t is then and o is other):
                    x = replace(x, cond=c, then=t, other=o)
            case Cast(arg):
                a = go(arg)
                x = x if a is arg else replace(x, arg=a)
            case Read(_, indices):
                idx = tuple(map_index(i, go, on_index) for i in indices)
                x = x if all(a is b for a, b in zip(idx, indices, strict=True)) else replace(x, indices=idx)
            case IndexValue(index):
                i = on_index(index) if on_index else index
                x = x if i is index else replace(x, index=i)
            case Const():
                pass
        made = on_expr(x)
        return made if made is x or made.span != NO_SPAN else replace(made, span=x.span)

    return go(e)


def map_index(
    i: Index, on_expr: Callable[[Expr], Expr], on_index: Callable[[IndexExpr], IndexExpr] | None
) -> Index:
    if isinstance(i, EXPR_TYPES):
        return on_expr(i)
    return on_index(i) if on_index else i


# --- printing ------------------------------------------------------------------------------------


def format_index(i: Index) -> str:
    return format_expr(i) if isinstance(i, EXPR_TYPES) else str(i)


def data_bounds_it(e: Expr) -> bool:
    """Is it reduced over a range that data bounds, and that may be empty?"""
    return any(isinstance(x, Apply) and x.op == "within" for x in walk(e))


def within_text(e: Apply) -> str:
    """The range of integers that a `within` lies in."""
    _, least, most = e.args
    low = least.index if isinstance(least, IndexValue) else least
    high = most.index if isinstance(most, IndexValue) else as_index(int(most.value))  # type: ignore[union-attr]
    return f"{format_index(low)}..{binary('+', high, 1)}"


def format_expr(e: Expr) -> str:
    """Readable, fully parenthesised text of an expression; stable, for dumps and goldens."""
    match e:
        case Const(value):
            return repr(value) if not isinstance(value, bool) else str(value).lower()
        case IndexValue(index, dtype):
            return f"{dtype}({index})"
        case Read(tensor, indices):
            return f"{tensor}[{', '.join(map(format_index, indices))}]"
        case Apply(op, args) if op in INFIX:
            return f"({format_expr(args[0])} {INFIX[op]} {format_expr(args[1])})"
        case Apply("neg" | "bitnot" as op, (arg,)):
            return f"({OPS[op].sign}{format_expr(arg)})"
        case Apply(op, args):
            return f"{op}({', '.join(map(format_expr, args))})"
        case Select(cond, then, other):
            return f"({format_expr(then)} if {format_expr(cond)} else {format_expr(other)})"
        case Cast(arg, dtype):
            return f"{dtype}({format_expr(arg)})"
