"""Functions of f32 as exact as the reference asks for, by approximate instructions of a GPU.

    d = sqrt(v / n)                                d = fast_sqrt(v * (1 / n))
    y = e / d                               ->     y = alike_div(e, d)
    z = 0.5 * x * (1 + erf(x * c))                 z = 0.5 * x * (1 + scaled_near_erf(x, c))

The reference allows each operation of f32 an error of `ROOM` of its result (`runtime.reference.values`).  So

* a form whose relative error is no larger is right anywhere: quotients, roots;
* `c + f` with a constant c may be off by ROOM * (|f| + |c + f|), which is ROOM * |c| at least, however small
  f is: there an absolute error will do.  A factor of f that is a constant scales it;
* a logarithm of a number that is off by ROOM of itself may be off by ROOM.

Where exp(-x^2) is computed as well, as for the gradient of a GELU, erf(x) takes it.

What a comparison, a rounding to integers or an index is made of stays precise: a little error may change
it.  One function of one operand has one form in a statement, the most exact one that it needs: compilers
compute it once.  What is rounded to 16 bits has forms that are shorter still
(`codegen.transforms.precision`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.signs import factors, is_inexact, is_never_positive
from polyfuse.ir.dtypes import F32
from polyfuse.ir.functions import ALIKE_DIV, FORMS, RECIPROCAL, SCALED_NEAR
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.ops import OPS, ROOM, Form, Trait
from polyfuse.ir.tensor_graph import (
    Apply,
    Cast,
    Const,
    Expr,
    IndexValue,
    Select,
    Statement,
    TensorGraph,
    depends_on,
    walk,
)

# Of what c + f may be off by, the share of f: the addition rounds as well.
SHARE = 7 / 8
# Reciprocals of these are normal numbers.
_LEAST, _MOST = 2.0**-126, 2.0**126
# Constant factors whose powers coefficients may be multiplied by.
_SCALE = 16.0

# How far an expression may be off beside its relative error; None: not at all.
_Slack = float | None


def approximate_functions(kernel: Kernel) -> Kernel:
    """The kernel with approximate forms where they are exact enough."""
    graph = kernel.graph
    new = tuple(_approximated(s, kernel) for s in graph.statements)
    if all(a is b for a, b in zip(new, graph.statements, strict=True)):
        return kernel
    return replace(kernel, graph=replace(graph, statements=new))


def forms_of(kernel: Kernel) -> dict[str, tuple[str, ...]]:
    """The forms that values of a kernel have, each with the tensors of these."""
    found: dict[str, dict[str, None]] = {}
    for s in kernel.graph.statements:
        for e in walk(s.expr):
            if isinstance(e, Apply) and e.op in FORMS:
                found.setdefault(e.op, {})[s.target] = None
    return {op: tuple(names) for op, names in found.items()}


def _approximated(s: Statement, kernel: Kernel) -> Statement:
    needs = _Needs(kernel.graph)
    needs.visit(s.expr, 0.0)
    expr = _Forms(needs.least, s, kernel.graph, _nearby(s, kernel)).of(s.expr)
    return s if expr == s.expr else replace(s, expr=expr)


def _nearby(s: Statement, kernel: Kernel) -> tuple[Expr, ...]:
    """What a thread computes in the same iteration: a statement's value, and others in its registers."""
    own = {b.tensor for b in kernel.buffers if b.scope is Scope.REGISTER}
    others = [w for w in kernel.graph.statements if w.dims == s.dims and w.target in own]
    return tuple(e for w in ([s, *others] if s.target in own else [s]) for e in walk(w.expr))


@dataclass(slots=True)
class _Needs:
    """How far functions may be off in the place where they must be most exact."""

    graph: TensorGraph
    least: dict[Expr, _Slack] = field(default_factory=dict)

    def visit(self, e: Expr, slack: _Slack) -> None:
        match e:
            case Apply(op, args):
                if op in OPS and OPS[op].forms and e.dtype == F32:
                    own = slack if slack is None else slack + self._carried(op, args)
                    self.least[e] = _less(self.least.get(e, math.inf), own)
                for a, more in zip(args, self._of_operands(e, slack), strict=True):
                    self.visit(a, more)
            case Select(cond, then, other):
                self.visit(cond, None)
                self.visit(then, slack)
                self.visit(other, slack)
            case Cast(arg, dtype):
                rounds = dtype.is_float and slack is not None
                self.visit(arg, slack if dtype == arg.dtype else 0.0 if rounds else None)
            case _:
                pass  # what an index is made of stays as it is

    def _carried(self, op: str, args: tuple[Expr, ...]) -> float:
        """What the error of an operand that is rounded makes of the result's."""
        share = SHARE * ROOM * OPS[op].carries
        return share if share and is_inexact(args[0], self.graph) else 0.0

    def _of_operands(self, e: Apply, slack: _Slack) -> tuple[_Slack, ...]:
        """How far the operands of an operation may be off."""
        every = len(e.args)
        if slack is None or (e.op in OPS and (OPS[e.op].gives_bool or OPS[e.op].has(Trait.WHOLE))):
            return (None,) * every
        match e:
            case Apply("add" | "sub", (a, b), dtype) if dtype == F32:
                return _beside(b, slack), _beside(a, slack)
            case Apply("neg"):
                return (slack,)
            case Apply("mul", (Const(k), _)) if k:
                return 0.0, slack / abs(k)
            case Apply("mul", (_, Const(k))) if k:
                return slack / abs(k), 0.0
            case Apply("floordiv" | "mod"):
                return (None,) * every
            case _:
                return (0.0,) * every


def _less(a: _Slack, b: _Slack) -> _Slack:
    return None if a is None or b is None else min(a, b)


def _beside(other: Expr, slack: float) -> float:
    """How far a term may be off beside another one; where both may, each has half of it."""
    match other:
        case Const(c) if math.isfinite(c):
            return slack + SHARE * ROOM * abs(c)
        case _:
            return slack / 2


@dataclass(frozen=True, slots=True)
class _Forms:
    """Expressions of a statement with forms."""

    least: Mapping[Expr, _Slack]
    statement: Statement
    graph: TensorGraph
    nearby: tuple[Expr, ...]

    def of(self, e: Expr) -> Expr:
        match e:
            case Apply(_, args):
                new = replace(e, args=tuple(map(self.of, args)))
                slack = self.least.get(e)
                return new if slack is None else self._form(e, new, slack)
            case Select(cond, then, other):
                return replace(e, cond=self.of(cond), then=self.of(then), other=self.of(other))
            case Cast(arg):
                return replace(e, arg=self.of(arg))
            case _:
                return e

    def _form(self, e: Apply, new: Apply, slack: float) -> Expr:
        """The first form that is exact enough of an operation, whose operands have theirs in `new`."""
        for f in OPS[e.op].forms:
            fits = f.prefix != "short" and f.relative <= ROOM and f.absolute <= slack
            made = self._named(new, f) if fits and self._suits(e.args[0], f) else None
            if made is not None:
                return made
        return new

    def _named(self, e: Apply, form: Form) -> Expr | None:
        """An operation in a form, if there is what the form takes besides; a constant factor of an operand
        goes into coefficients."""
        if e.op == "div":
            return self._quotient(e)
        name, (x, by) = f"{form.prefix}_{e.op}", _scaled(e.args[0])
        if form.beside:
            known = self._at_square(e.args[0], form.beside)
            return known and replace(e, op=name, args=(x, by, known))
        if form.prefix == "near" and by.value != 1 and e.op in SCALED_NEAR:
            return replace(e, op=SCALED_NEAR[e.op], args=(x, by))
        return replace(e, op=name)

    def _at_square(self, x: Expr, op: str) -> Expr | None:
        """A function of -x^2 that is computed nearby."""
        k, own = factors(x)
        for e in self.nearby:
            if not isinstance(e, Apply) or FORMS.get(e.op, (e.op,))[0] != op:
                continue
            c, others = factors(e.args[0])
            alike = c < 0 and math.isclose(math.sqrt(-c), abs(k), rel_tol=2.0**-20)
            if alike and Counter(others) == Counter(own + own):
                return e if e.op in FORMS else replace(e, op=f"fast_{op}")
        return None

    def _suits(self, operand: Expr, form: Form) -> bool:
        return math.isinf(form.most) or is_never_positive(operand, self.statement, self.graph)

    def _quotient(self, e: Apply) -> Expr:
        """a / b: a product with 1 / b where b is a constant or a is at most 1, so that denormals do not
        matter."""
        a, b = e.args
        value = _constant(b)
        if value is not None:
            if not _LEAST <= abs(value) <= _MOST:
                return e
            return replace(e, op="mul", args=(a, Const(1.0 / value, F32)))
        if isinstance(a, Const) and abs(a.value) <= 1:
            one: Expr = Apply(RECIPROCAL, (b,), F32)
            return one if a.value == 1 else replace(e, op="mul", args=(a, one))
        if any(d.name in depends_on(b) for d in self.statement.dims[-1:]):
            return replace(e, op="fast_div")
        return replace(e, op=ALIKE_DIV)


def _scaled(e: Expr) -> tuple[Expr, Const]:
    """A value as a product with a constant, which coefficients may be multiplied by."""
    match e:
        case (Apply("mul", (x, Const(k) as by))) | (Apply("mul", (Const(k) as by, x))):
            if 1 / _SCALE <= abs(k) <= _SCALE:
                return x, by
        case _:
            pass
    return e, Const(1.0, F32)


def _constant(e: Expr) -> float | None:
    """The number that an expression of f32 is, if it is known."""
    match e:
        case Const(value):
            return float(value)
        case IndexValue(IConst(value)) if abs(value) <= 2**24:
            return float(value)
        case _:
            return None
