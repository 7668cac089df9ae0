"""Reductions, norms, softmax and scans."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import BOOL, HALVES, I64, DType
from polyfuse.torch.dynamo.index_maps import Index, unravel
from polyfuse.torch.dynamo.lowerings.table import Arguments, Node, lowers, tensor_of
from polyfuse.torch.dynamo.lowerings.views import without_axes
from polyfuse.torch.dynamo.sizes import Extent, equal, is_number, product, to_ir
from polyfuse.torch.dynamo.terms import Term, apply, constant, converted, of_index, where
from polyfuse.torch.dynamo.values import Indices, Value

if TYPE_CHECKING:
    from polyfuse.torch.dynamo.lowering import Lowering


def _input(a: Arguments) -> Node:
    return a["self"]


def count(extents: list[Extent], dtype: DType) -> Term:
    """How many elements there are, as a number."""
    n = product(extents)
    return Term(constant(n, dtype) if is_number(n) else of_index(to_ir(n), dtype))


def _reduced(
    low: Lowering,
    node: Node,
    a: Arguments,
    kind: str,
    body: Callable[[Term], Term] = lambda x: x,
    after: Callable[[Term, Value], Term] | None = None,
) -> Value:
    """`kind` over the axes `dim` of what `body` makes of elements, in the dtype of the result."""
    v, dtype = low.value(_input(a)), low.dtype(node)
    axes = low.axes(a.get("dim"), len(v.shape))

    def element(idx: Indices) -> g.Expr:
        return body(Term(converted(v.at(idx), dtype))).expr

    keep = bool(a.get("keepdim", False))
    made = low.reduce(kind, v.shape, axes, element, dtype, keepdim=keep, final=after is None)
    if after is None:
        return made
    parts = Value(tuple(v.shape[d] for d in axes), dtype, v.at)
    return made.computed(lambda idx: after(Term(made.at(idx)), parts).expr)


# --- of numbers -------------------------------------------------------------------------------------------


@lowers("aten.sum", "aten.nansum", group="reductions")
def _sum(low: Lowering, node: Node, a: Arguments) -> Value:
    if "nansum" in str(node.target):
        return _reduced(
            low, node, a, "sum", lambda x: where(apply("isnan", x), 0.0, x) if x.dtype.is_float else x
        )
    return _reduced(low, node, a, "sum")


@lowers("aten.mean", group="reductions")
def _mean(low: Lowering, node: Node, a: Arguments) -> Value:
    return _reduced(low, node, a, "sum", after=lambda s, v: s / count([*v.shape], s.dtype))


@lowers("aten.prod", group="reductions")
def _prod(low: Lowering, node: Node, a: Arguments) -> Value:
    return _reduced(low, node, a, "prod")


def _no_bool(node: Node, a: Arguments) -> str:
    return "an extreme of truth values" if "bool" in str(tensor_of(_input(a)).dtype) else ""


@lowers("aten.amax", "aten.amin", group="reductions", refuse=_no_bool, slow=True)
def _amax(low: Lowering, node: Node, a: Arguments) -> Value:
    return _reduced(low, node, a, "max" if "amax" in str(node.target) else "min")


def _is_bool(node: Node, a: Arguments) -> str:
    return "" if "bool" in str(tensor_of(node).dtype) else "a result of another dtype"


@lowers("aten.any", "aten.all", group="reductions", refuse=_is_bool)
def _any(low: Lowering, node: Node, a: Arguments) -> Value:
    return _reduced(low, node, a, "any" if "any" in str(node.target) else "all")


@lowers("aten.count_nonzero", group="reductions")
def _count_nonzero(low: Lowering, node: Node, a: Arguments) -> Value:
    v = low.value(_input(a))
    axes = low.axes(a.get("dim"), len(v.shape))

    def element(idx: Indices) -> g.Expr:
        return converted(converted(v.at(idx), BOOL), I64)

    return low.reduce("sum", v.shape, axes, element, I64, final=True)


@lowers("aten.max", "aten.min", group="reductions", overloads=("default", "dim"), refuse=_no_bool, slow=True)
def _max(low: Lowering, node: Node, a: Arguments) -> Value | list[Value]:
    kind = "max" if ".max" in str(node.target) else "min"
    if "dim" not in a:
        return _reduced(low, node, a, kind)
    v = low.stored_value(_input(a))
    axes, keep = low.axes(a["dim"], len(v.shape)), a["keepdim"]
    most = low.reduce(kind, v.shape, axes, v.at, v.dtype, keepdim=keep)
    place = low.reduce(f"arg{kind}", v.shape, axes, v.at, I64, keepdim=keep)
    return [most, place]


@lowers("aten.aminmax", group="reductions", refuse=_no_bool, slow=True)
def _aminmax(low: Lowering, node: Node, a: Arguments) -> list[Value]:
    v = low.stored_value(_input(a))
    axes = low.axes(a["dim"], len(v.shape))
    return [low.reduce(k, v.shape, axes, v.at, v.dtype, keepdim=a["keepdim"]) for k in ("min", "max")]


@lowers("aten.argmax", "aten.argmin", group="reductions", whole="dim", refuse=_no_bool, slow=True)
def _argmax(low: Lowering, node: Node, a: Arguments) -> Value:
    kind, v = "argmax" if "argmax" in str(node.target) else "argmin", low.value(_input(a))
    if a["dim"] is not None:
        axes = low.axes(a["dim"], len(v.shape))
        return low.reduce(kind, v.shape, axes, v.at, I64, keepdim=a["keepdim"], final=True)
    flat = low.realised(v)
    n = product(v.shape)
    found = low.reduce(kind, (n,), (0,), lambda idx: flat.at(unravel(idx[0], v.shape)), I64)
    return found.view(low.shape(node), lambda idx: [])


# --- norms and moments ------------------------------------------------------------------------------------


def _moments(low: Lowering, node: Node, a: Arguments) -> tuple[Value, Value, tuple[int, ...]]:
    """The variance and the mean over `dim`, axes kept, and these axes."""
    v = low.stored_value(_input(a))
    dtype = v.dtype.compute
    axes = low.axes(a.get("dim"), len(v.shape))
    n = [v.shape[d] for d in axes]
    correction = a.get("correction", int(a.get("unbiased", True)))
    less = 1 if correction is None else correction
    total = low.reduce("sum", v.shape, axes, v.at, dtype, keepdim=True)
    mean = low.realised(total.computed(lambda idx: (Term(total.at(idx)) / count(n, dtype)).expr))

    def square(idx: Indices) -> g.Expr:
        away = Term(v.at(idx)) - Term(mean.at(_at_zero(idx, axes)))
        return (away * away).expr

    squares = low.reduce("sum", v.shape, axes, square, dtype, keepdim=True)
    free = apply("max", count(n, dtype) - less, 0)
    left = product(n)
    if is_number(left):
        free = Term(constant(max(left - less, 0), dtype))
    variance = squares.computed(lambda idx: (Term(squares.at(idx)) / free).expr)
    return variance, mean, axes


def _at_zero(idx: Indices, axes: tuple[int, ...]) -> list[Index]:
    return [Index() if d in axes else i for d, i in enumerate(idx)]


def _kept(v: Value, axes: tuple[int, ...], a: Arguments) -> Value:
    return v if a.get("keepdim", False) else without_axes(v, list(axes))


@lowers("aten.var", "aten.std", group="reductions", slow=True)
def _var(low: Lowering, node: Node, a: Arguments) -> Value:
    variance, _, axes = _moments(low, node, a)
    if "std" in str(node.target):
        at = variance.at
        variance = variance.computed(lambda idx: apply("sqrt", Term(at(idx))).expr)
    return _kept(variance, axes, a)


@lowers("aten.var_mean", "aten.std_mean", group="reductions", slow=True)
def _var_mean(low: Lowering, node: Node, a: Arguments) -> list[Value]:
    variance, mean, axes = _moments(low, node, a)
    if "std" in str(node.target):
        at = variance.at
        variance = variance.computed(lambda idx: apply("sqrt", Term(at(idx))).expr)
    return [_kept(low.realised(variance), axes, a), _kept(mean, axes, a)]


_NORMS = (0, 1, 2, math.inf, -math.inf)


def _known_norm(node: Node, a: Arguments) -> str:
    return "" if a["ord"] in _NORMS else "a norm of that order"


@lowers("aten.linalg_vector_norm", group="reductions", refuse=_known_norm)
def _norm(low: Lowering, node: Node, a: Arguments) -> Value:
    match a["ord"]:
        case 2:
            return _reduced(low, node, a, "sum", lambda x: x * x, lambda s, v: apply("sqrt", s))
        case 1:
            return _reduced(low, node, a, "sum", lambda x: apply("abs", x))
        case 0:
            return _reduced(low, node, a, "sum", lambda x: (x != 0).to(x.dtype))
        case order:
            return _reduced(low, node, a, "max" if order > 0 else "min", lambda x: apply("abs", x))


@lowers("aten.logsumexp", group="reductions", alone=True)
def _logsumexp(low: Lowering, node: Node, a: Arguments) -> Value:
    v, dtype = low.stored_value(_input(a)), low.dtype(node).compute
    axes = low.axes(a["dim"], len(v.shape))
    most = low.reduce("max", v.shape, axes, lambda i: converted(v.at(i), dtype), dtype, keepdim=True)
    finite = low.realised(most.computed(lambda i: _if_finite(Term(most.at(i))).expr))

    def power(idx: Indices) -> g.Expr:
        return apply("exp", Term(converted(v.at(idx), dtype)) - Term(finite.at(_at_zero(idx, axes)))).expr

    total = low.reduce("sum", v.shape, axes, power, dtype, keepdim=True)
    found = total.computed(lambda i: (apply("log", Term(total.at(i))) + Term(finite.at(i))).expr)
    return _kept(found, axes, a)


def _if_finite(x: Term) -> Term:
    return where(apply("isinf", x), x.like(0), x)


# --- softmax ----------------------------------------------------------------------------------------------


def _exponents(low: Lowering, node: Node, a: Arguments) -> tuple[Value, Value, Value, tuple[int, ...]]:
    """The elements, their maximum along `dim`, the sum of their powers, and the axis."""
    v, dtype = low.stored_value(_input(a)), low.dtype(node).compute
    axes = low.axes(a["dim"], len(v.shape))
    most = low.reduce("max", v.shape, axes, lambda i: converted(v.at(i), dtype), dtype, keepdim=True)

    def power(idx: Indices) -> g.Expr:
        return apply("exp", Term(converted(v.at(idx), dtype)) - Term(most.at(_at_zero(idx, axes)))).expr

    powers = Value(v.shape, dtype, power)
    return powers, most, low.reduce("sum", v.shape, axes, power, dtype, keepdim=True), axes


@lowers("aten._softmax", "aten._safe_softmax", group="softmax", overloads=("default",), alone=True)
def _softmax(low: Lowering, node: Node, a: Arguments) -> Value:
    powers, most, total, axes = _exponents(low, node, a)
    safe = "_safe" in str(node.target)

    def element(idx: Indices) -> g.Expr:
        at = _at_zero(idx, axes)
        found = Term(powers.at(idx)) / Term(total.at(at))
        return (where(Term(most.at(at)) == -math.inf, found.like(0), found) if safe else found).expr

    return powers.computed(element)


@lowers("aten._log_softmax", group="softmax", overloads=("default",), alone=True)
def _log_softmax(low: Lowering, node: Node, a: Arguments) -> Value:
    _, most, total, axes = _exponents(low, node, a)
    v, dtype = low.value(_input(a)), low.dtype(node).compute

    def element(idx: Indices) -> g.Expr:
        at = _at_zero(idx, axes)
        away = Term(converted(v.at(idx), dtype)) - Term(most.at(at))
        return (away - apply("log", Term(total.at(at)))).expr

    return Value(v.shape, dtype, element)


@lowers(
    "aten._softmax_backward_data",
    "aten._log_softmax_backward_data",
    group="softmax",
    overloads=("default",),
    alone=True,
)
def _softmax_backward(low: Lowering, node: Node, a: Arguments) -> Value:
    dy, y = low.stored_value(a["grad_output"]), low.stored_value(a["output"])
    dtype = dy.dtype.compute
    axes = low.axes(a["dim"], len(y.shape))
    log = "_log" in str(node.target)

    def both(idx: Indices) -> tuple[Term, Term]:
        return Term(converted(dy.at(idx), dtype)), Term(converted(y.at(idx), dtype))

    def product_of(idx: Indices) -> g.Expr:
        up, out = both(idx)
        return (up if log else up * out).expr

    total = low.reduce("sum", y.shape, axes, product_of, dtype, keepdim=True)

    def element(idx: Indices) -> g.Expr:
        (up, out), s = both(idx), Term(total.at(_at_zero(idx, axes)))
        return (up - apply("exp", out) * s if log else (up - s) * out).expr

    return Value(y.shape, dtype, element)


# --- scans ------------------------------------------------------------------------------------------------


@lowers("aten.cumsum", "aten.cumprod", group="scans", whole="dim", alone=True)
def _scan(low: Lowering, node: Node, a: Arguments) -> Value:
    v, shape, dtype = low.value(_input(a)), low.shape(node), low.dtype(node).compute
    if not shape or equal(shape[d := a["dim"] % len(shape)], 1):
        return v
    op = "add" if "cumsum" in str(node.target) else "mul"
    made = low.temporary(shape, dtype) if low.dtype(node) in HALVES else low.target(shape, dtype, True)
    indices, dims = low.loops(shape)
    own = next(k for k, x in enumerate(dims) if x.name == f"i{d}")
    first = [*indices[:d], Index(), *indices[d + 1 :]]
    others = (*dims[:own], *dims[own + 1 :])
    low.statement(made, others, first, converted(v.at(first), dtype))
    before = made.read([*indices[:d], indices[d] + -1, *indices[d + 1 :]])
    later = (*dims[:own], g.IterDim(f"i{d}", to_ir(1), dims[own].upper), *dims[own + 1 :])
    step = apply(op, Term(before), Term(converted(v.at(indices), dtype)))
    low.statement(made, later, indices, step.expr)
    return made.value
