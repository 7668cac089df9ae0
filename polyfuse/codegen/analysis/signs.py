"""Which values are never positive, and which never negative, NaN apart; and which are rounded.

    -abs(x)    -0.5 * x * x    min(x, 0)    x[t, h] - m[t]  where m[t] = max[k](x[t, k])

Rounding keeps signs, so they are those of the text.  A value is inexact if no kernel need have it: the
reference allows it an error.
"""

from __future__ import annotations

from polyfuse.ir.functions import FORMS
from polyfuse.ir.index_expr import IndexExpr, IVar, substitute
from polyfuse.ir.ops import OPS, Trait
from polyfuse.ir.tensor_graph import Apply, Cast, Const, Expr, Read, Select, Statement, TensorGraph, map_expr


def is_never_positive(e: Expr, s: Statement, graph: TensorGraph) -> bool:
    """Is a value of a statement 0, less or NaN?"""
    match e:
        case Const(value):
            return value <= 0
        case Apply("neg", (a,)):
            return is_never_negative(a)
        case Apply("min", args):
            return any(is_never_positive(a, s, graph) for a in args)
        case Apply("max" | "add", args):
            return all(is_never_positive(a, s, graph) for a in args)
        case Apply("sub", (a, Read() as most)):
            return _is_largest(most, a, s, graph)
        case Apply("mul"):
            return _sign(e) == -1
        case Select(_, then, other):
            return is_never_positive(then, s, graph) and is_never_positive(other, s, graph)
        case Cast(arg) if e.dtype.is_float and arg.dtype.is_float:
            return is_never_positive(arg, s, graph)
        case _:
            return False


def is_never_negative(e: Expr) -> bool:
    """Is a value 0, more or NaN?"""
    match e:
        case Const(value):
            return value >= 0
        case Apply("mul"):
            return _sign(e) == 1
        case Apply("add" | "div" | "min", args):
            return all(map(is_never_negative, args))
        case Apply("max", args):
            return any(map(is_never_negative, args))
        case Apply(op):
            return op in OPS and OPS[op].has(Trait.POSITIVE)
        case Cast(arg) if e.dtype.is_float and arg.dtype.is_float:
            return is_never_negative(arg)
        case _:
            return False


def factors(e: Expr) -> tuple[float, list[Expr]]:
    """A product as a constant and the other factors."""
    match e:
        case Const(value):
            return float(value), []
        case Apply("neg", (a,)):
            constant, others = factors(a)
            return -constant, others
        case Apply("mul", (a, b)):
            (one, first), (two, second) = factors(a), factors(b)
            return one * two, [*first, *second]
        case _:
            return 1.0, [e]


def _sign(e: Expr) -> int:
    """1 or -1 of a product that has that sign or is 0; else 0. Of two equal factors the sign is known."""
    constant, others = factors(e)
    odd = [x for x in dict.fromkeys(others) if others.count(x) % 2]
    if constant == 0 or not all(map(is_never_negative, odd)):
        return 0
    return 1 if constant > 0 else -1


def _is_largest(most: Read, e: Expr, s: Statement, graph: TensorGraph) -> bool:
    """Is a tensor's element the maximum of values of which `e` is one?"""
    writers = graph.writers(most.tensor)
    reductions = [w for w in writers if w.reduction == "max"]
    first = [w for w in writers if w.reduction is None and isinstance(w.expr, Const)]
    if len(reductions) != 1 or len(first) + 1 != len(writers) or s in writers:
        return False
    (w,) = reductions
    inner = [d for d in w.dims if d.reduce]
    if len(inner) != 1 or not all(isinstance(i, IVar) for i in w.write):
        return False
    (r,) = inner
    names: dict[str, IndexExpr] = {}
    for own, given in zip(w.write, most.indices, strict=True):
        if not (isinstance(own, IVar) and isinstance(given, IVar)):
            return False
        names[own.name] = given
    over = [d for d in s.dims if (d.lower, d.upper) == (r.lower, r.upper)]
    return any(_renamed(w.expr, {**names, r.name: IVar(d.name)}) == e for d in over)


def _renamed(e: Expr, names: dict[str, IndexExpr]) -> Expr:
    return map_expr(e, lambda x: x, lambda i: substitute(i, names))


def is_inexact(e: Expr, graph: TensorGraph, inside: frozenset[str] = frozenset()) -> bool:
    """May a value surely be off by as much of it as the reference allows an operation? `inside` are tensors
    whose values this is asked for."""
    match e:
        case Apply("add" | "sub" | "mul" | "neg" | "abs", args):
            return e.dtype.is_float and any(is_inexact(a, graph, inside) for a in args)
        case Apply(name, args):
            op = FORMS[name][0] if name in FORMS else name
            return op in OPS and len(args) == 1 and OPS[op].exactness == "approximate"
        case Read(tensor) if tensor not in inside:
            writers = graph.writers(tensor)
            terms = [w for w in writers if w.reduction]  # others say where they begin
            if any(w.reduction != "sum" for w in terms):
                return False
            own = inside | {tensor}
            return bool(writers) and all(is_inexact(w.expr, graph, own) for w in terms or writers)
        case _:
            return False
