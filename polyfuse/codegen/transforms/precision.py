"""Mixed precision: what values of 16 bits need, and no more.

`short_functions`      functions whose results are kept in 16 bits only are as exact as that takes
`rounded_once`         values of 16 bits that a loop reads again stay f32, rounded
`plain_copies`         copies convert nothing
`normal_names`         which values cannot be denormal

Functions, as exact as it takes:

    e[k] = exp(x[k] - m)                     e[k] = short_exp(x[k] - m)
    d = sum[k](e[k])                  ->     d = sum[k](e[k])
    y[k] = f16(e[k] / d)                     y[k] = f16(e[k] / d)

An f16 has 11 bits of a mantissa, a bf16 8; f32 functions have 24, and a polynomial of twice the length that
needs.  A short function is within `UNIT` of the value.  It is taken where no more than `MOST` such errors
meet in a value before that is rounded to 16 bits, and where nothing on the way makes a relative error
larger: products, quotients, roots, extremes, sums of what is not negative.  A difference (`1 + erf(x)` far to
the left) or another function would.  The result is then the next f16 or bf16 but for at most 0.57 units in
its last place.

Values that others may see in full, results in f32 and what another kernel reads, stay exact.

With `sums` so do the terms of a sum of `MANY` and more, one short error in each: its additions may be off by
more than that (`runtime.reference.values.growth`).  There the result is as good as without.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass, field, replace
from math import prod

from polyfuse.codegen.math.conversions import RELATIVE
from polyfuse.ir.dtypes import BF16, F16, F32, HALVES
from polyfuse.ir.functions import SHORT
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import Block, Declare, For, Node, Store, map_nodes, map_values
from polyfuse.ir.ops import Trait, with_trait
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    Apply,
    Cast,
    Const,
    Expr,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
    reads,
    statement_reads,
    walk,
)

# --- short functions --------------------------------------------------------------------------------------

# A short function's largest relative error.
UNIT = 2.0**-16
# How many of them may meet in a value: 2**-15 of it, a sixteenth of an f16's last place.
MOST = 2
# A sum of so many terms may be off by ten times what an operation of f32 may be, 2**-16.7: by more than a
# short form of a GPU is.
MANY = 256


_NOT_NEGATIVE = with_trait(Trait.POSITIVE)


def short_functions(
    kernel: Kernel, scopes: Collection[Scope] = (Scope.REGISTER, Scope.LOCAL), sums: bool = False
) -> Kernel:
    """The kernel with short functions where they do; nothing outside of it sees what is in `scopes`."""
    graph = kernel.graph
    sums = sums and any(map(_is_long, graph.statements))
    if not (sums or any(_begins(e) for s in graph.statements for e in walk(s.expr))):
        return kernel
    positive = _positive(graph)
    own = {b.tensor for b in kernel.buffers if b.scope in scopes}
    short = {t.name for t in graph.tensors if t.name in own and t.role is Role.TEMP and t.dtype == F32}
    short -= _read_early(graph)
    while True:
        made = [_Shortened(s, short, positive, sums and _is_long(s)) for s in graph.statements]
        exact = set[str]().union(*(m.exact for m in made))
        if not short & exact:
            break
        short -= exact
    if _errors(graph, made) > MOST:
        return kernel
    new = tuple(replace(s, expr=m.expr) for s, m in zip(graph.statements, made, strict=True))
    return kernel if new == graph.statements else replace(kernel, graph=replace(graph, statements=new))


def _begins(e: Expr) -> bool:
    """Is it a value that is rounded to 16 bits?"""
    return isinstance(e, Cast) and e.dtype in HALVES and e.arg.dtype == F32


def _read_early(graph: TensorGraph) -> set[str]:
    """Tensors that some statement reads before the last one that writes them: errors would add up with the
    steps of a recurrence."""
    last = {s.target: k for k, s in enumerate(graph.statements)}
    return {
        r.tensor
        for k, s in enumerate(graph.statements)
        for r in statement_reads(s)
        if last.get(r.tensor, -1) >= k
    }


def _positive(graph: TensorGraph) -> frozenset[str]:
    """Tensors without negative elements (NaN apart), as far as their statements tell."""
    found: set[str] = set()
    for s in graph.statements:
        every = graph.writers(s.target)
        sums = all(w.reduction in (None, "sum", "max") for w in every)
        if s is every[-1] and sums and all(_is_positive(w.expr, found) for w in every):
            found.add(s.target)
    return frozenset(found)


def _is_positive(e: Expr, tensors: Set[str]) -> bool:
    match e:
        case Const(value):
            return value >= 0
        case Read(tensor):
            return tensor in tensors
        case Cast(arg):
            return arg.dtype.is_float and e.dtype.is_float and _is_positive(arg, tensors)
        case Select(_, then, other):
            return _is_positive(then, tensors) and _is_positive(other, tensors)
        case Apply("mul", (a, b)) if a == b:
            return True
        case Apply("add" | "mul" | "div" | "max" | "min", args):
            return all(_is_positive(a, tensors) for a in args)
        case Apply(op):
            return op in _NOT_NEGATIVE
        case _:
            return False


@dataclass(slots=True)
class _Shortened:
    """A statement's value with short functions; `exact` are tensors that are read where that would show."""

    statement: Statement
    short: Set[str]
    positive: Set[str]
    long: bool
    exact: set[str] = field(default_factory=set)
    expr: Expr = field(init=False)

    def __post_init__(self) -> None:
        s = self.statement
        kept = s.target in self.short and self._keeps(s)
        if s.target in self.short and not kept:
            self.exact.add(s.target)
        self.long = self.long and not kept
        self.expr = self._of(s.expr, kept or self.long)
        self.exact |= {r.tensor for i in s.write for r in _data(i)}

    def _keeps(self, s: Statement) -> bool:
        """Is the error of what a statement makes no larger than that of its terms?"""
        if s.reduction is None:
            return True
        return s.reduction in ("max", "min") or (s.reduction == "sum" and _is_positive(s.expr, self.positive))

    def _of(self, e: Expr, rough: bool) -> Expr:
        """An expression of which a little error does not matter, if `rough`."""
        match e:
            case Cast(arg):
                return replace(e, arg=self._of(arg, _begins(e) or (rough and e.dtype == arg.dtype)))
            case Select(cond, then, other):
                return replace(
                    e, cond=self._of(cond, False), then=self._of(then, rough), other=self._of(other, rough)
                )
            case Apply(op, args) if e.dtype == F32:
                passes = rough and (op in RELATIVE or (op == "add" and self._adds(args)))
                name = SHORT.get(op, op) if rough else op
                return replace(e, op=name, args=tuple(self._of(a, passes) for a in args))
            case Apply(_, args):
                return replace(e, args=tuple(self._of(a, False) for a in args))
            case Read(tensor, indices):
                self.exact |= {r.tensor for i in indices for r in _data(i)}
                if not rough:
                    self.exact.add(tensor)
                return e
            case _:
                return e

    def _adds(self, args: tuple[Expr, ...]) -> bool:
        return all(_is_positive(a, self.positive) for a in args)


def _data(index: object) -> tuple[Read, ...]:
    """What is read for an index."""
    return reads(index) if isinstance(index, (Apply, Cast, Read, Select)) else ()


def _is_long(s: Statement) -> bool:
    """Is a statement a sum of many terms, whose number is known?"""
    extents = [d.upper - d.lower for d in s.dims if d.reduce]
    known = prod(n.value for n in extents if isinstance(n, IConst))
    return s.reduction == "sum" and s.expr.dtype == F32 and known >= MANY


def _errors(graph: TensorGraph, made: list[_Shortened]) -> int:
    """How many errors of short functions meet in a value, at most; of one in a long sum nothing is left, more
    are too many."""
    of: dict[str, int] = {}
    most = 0

    def count(e: Expr) -> int:
        nonlocal most
        match e:
            case Read(tensor):
                return of.get(tensor, 0)
            case Select(_, then, other):
                return max(count(then), count(other))
            case Cast(arg) if _begins(e):
                most = max(most, count(arg))
                return 0
            case Cast(arg):
                return count(arg)
            case Apply("add" | "max" | "min", args):
                return max(map(count, args))
            case Apply(op, args):
                own = op in SHORT.values()
                return own + sum(map(count, args))
            case _:
                return 0

    for m in made:
        errors = count(m.expr)
        if m.long:
            errors = 0 if errors <= 1 else MOST + 1
        of[m.statement.target] = max(of.get(m.statement.target, 0), errors)
    return max(most, *of.values(), 0)


# --- values that are read again ---------------------------------------------------------------------------

# Values of 16 bits that a loop computes and reads again stay f32, rounded.
#
#     for l: h = f16(f(x[l]))                    for l: q = f(x[l]);  h = f32(f16(q))
#            y[l] = h                     ->            y[l] = f16(q)
#            s[l] += f32(h)                             s[l] += h
#
# The numbers are the same.  Then what is stored is converted by vector instructions
# (`codegen.cpu.vectorize.half_precision`), and the rounding is a function of all lanes
# (`codegen.cpu.vectorize.math_calls`).


def rounded_once(block: Block) -> Block:
    """The block, with such values of its vector loops as f32."""

    def loop(node: Node) -> Node:
        if not isinstance(node, For) or node.coordinate is not Coordinate.VECTOR:
            return node
        names = {n.name for n in node.body if isinstance(n, Declare) and _rounded(n.value)}
        return replace(node, body=_widened(node.body, names)) if names else node

    return map_nodes(block, loop)


def _rounded(value: Expr | None) -> bool:
    return isinstance(value, Cast) and value.dtype in (F16, BF16) and value.arg.dtype == F32


def _exact(name: str) -> str:
    """What a value is called before it is rounded."""
    return f"{name}_q"


def _widened(body: Block, names: set[str]) -> Block:
    held = {_exact(n): n for n in names}

    def expr(e: Expr) -> Expr:
        match e:
            case Read(tensor, dtype=dtype) if tensor in names:
                return Cast(Read(_exact(tensor), (), F32), dtype)
            case Cast(Cast(Read(tensor)), dtype) if dtype == F32 and (name := held.get(tensor)):
                return Read(name, (), F32)
            case _:
                return e

    def declared(node: Node) -> Node | Block:
        match node:
            case Declare(name, dtype, Cast(value)) if name in names:
                exact = Read(_exact(name), (), F32)
                return Declare(exact.tensor, F32, value), replace(
                    node, dtype=F32, value=Cast(Cast(exact, dtype), F32)
                )
            case _:
                return node

    return map_nodes(map_values(body, expr, lambda i: i), declared)


# --- copies -----------------------------------------------------------------------------------------------

# Values of 16 bits that a vector loop only copies stay as they are.
#
#     for l: y[l] = f16(f32(x[i, l]))     ->     for l: y[l] = x[i, l]
#
# The language computes in f32, so a copy is written as two conversions.  They change nothing but which NaN a
# NaN is.  A loop that does something else as well keeps them: halves and floats do not fill the same vectors.


def plain_copies(block: Block) -> Block:
    """The block, with such loops as copies."""
    return map_nodes(block, _loop)


def _loop(node: Node) -> Node:
    if not isinstance(node, For) or node.coordinate is not Coordinate.VECTOR:
        return node
    body = [_copy(n) for n in node.body]
    return replace(node, body=tuple(n for n in body if n)) if all(body) else node


def _copy(node: Node) -> Store | None:
    """A store of what was read, if a node is that."""
    match node:
        case Store(_, _, Cast(Cast(Read() as value, wide), dtype)) if wide == F32:
            return replace(node, value=value) if value.dtype == dtype and dtype in (F16, BF16) else None
        case _:
            return None


# --- normal numbers ---------------------------------------------------------------------------------------

# Which values are normal numbers or 0, where a core makes 0 of the denormal results of its arithmetic.
#
# What is only read, chosen or negated (`max(x, b)`, `-x`) may be denormal as the memory it comes from.
# An instruction that takes denormals for 0 is right for the others (`pf_narrow_normal_bf16`).


_ARITHMETIC = frozenset([*with_trait(Trait.NORMAL), *SHORT.values()])


def normal_names(body: Block) -> frozenset[str]:
    """Scalars of a loop's body that arithmetic makes."""
    none = frozenset[str]()
    return frozenset(n.name for n in body if isinstance(n, Declare) and n.value and is_normal(n.value, none))


def is_normal(e: Expr, names: frozenset[str] | None) -> bool:
    """Does arithmetic make a value, or is it one of these scalars?  Never where there are no such (None)."""
    match e:
        case Apply(op):
            return names is not None and op in _ARITHMETIC
        case Read(name, ()):
            return names is not None and name in names
        case _:
            return False
