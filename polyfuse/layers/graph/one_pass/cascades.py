"""Cascades: a reduction whose terms need the total of another one over the same elements.

    A[r] = reduce[k](a(r, k));    B[r] = sum[k](g(r, k, centre))    where centre follows from A[r]

Such a sum cannot begin before the first reduction has ended, unless the centre can be changed afterwards.
Two forms of the terms allow it, whatever u is:

    shifted    exp(u - A), A = max u         exp(u - A) = exp(u - a) * exp(a - A)        for any a
               (exp(A - u), A = min u alike)
    centred    (u - M)^2, M = sum(u) / n     sum (u - M)^2 = sum (u - a)^2 + n (a - M)^2  for the mean a
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, product, substitute, variables
from polyfuse.ir.tensor_graph import (
    ARG_REDUCTIONS,
    EXPR_TYPES,
    Apply,
    Const,
    Expr,
    Index,
    IndexValue,
    IterDim,
    Read,
    Statement,
    TensorGraph,
    map_expr,
    reads,
    walk,
)

# Nodes of an expression that definitions were put into, at most.
LARGEST = 256


@dataclass(frozen=True, slots=True)
class Cascade:
    """`second` needs what `first` makes of the same elements.

    terms: those of the second, with the definitions put in that stand between them and the centre.
    centre: what is subtracted, or is subtracted from, in terms of the second's dims; it follows from the
    first's total at `indices`.
    law: "shifted" or "centred"; sign: 1 for u - centre in an exponential, -1 for centre - u.
    """

    first: Statement
    second: Statement
    terms: Expr
    centre: Expr
    indices: tuple[Index, ...]
    law: str
    sign: int = 1


@dataclass(frozen=True, slots=True)
class Unknown:
    """A cascade of another form, with the reason why it stays as it is."""

    first: Statement
    second: Statement
    reason: str


def cascades(graph: TensorGraph) -> list[Cascade | Unknown]:
    """All cascades of a graph, in its order; of each second reduction the last first one."""
    found: list[Cascade | Unknown] = []
    plain = [s for s in graph.statements if _is_plain(s)]
    after = {s.name: derived_from(graph, s.target) for s in plain}
    for second in plain:
        mine = [a for a in plain if {r.tensor for r in reads(second.expr)} & after[a.name]]
        mine = [a for a in mine if _extents(a) == _extents(second)]
        if mine and second.reduction == "sum":
            found.append(_judged(graph, second, mine, after))
    return found


def _is_plain(s: Statement) -> bool:
    """A reduction over a box that writes each element at plain indices."""
    if s.reduction is None or s.accumulate or s.reduction in ARG_REDUCTIONS:
        return False
    boxed = not any(variables(d.lower) or variables(d.upper) for d in s.dims)
    kept = [IVar(d.name) for d in s.dims if not d.reduce]
    return boxed and sorted(map(str, s.write)) == sorted(map(str, kept))


def _extents(s: Statement) -> list[tuple[IndexExpr, IndexExpr]]:
    return [(d.lower, d.upper) for d in s.dims if d.reduce]


def derived_from(graph: TensorGraph, tensor: str) -> frozenset[str]:
    """The tensor and all that is computed from it; each reader is looked at once."""
    found, left = {tensor}, [tensor]
    while left:
        more = {s.target for s in graph.readers(left.pop())} - found
        found |= more
        left += more
    return frozenset(found)


def _judged(
    graph: TensorGraph, second: Statement, firsts: list[Statement], after: dict[str, frozenset[str]]
) -> Cascade | Unknown:
    for first in reversed(firsts):
        terms = _exposed(graph, second, after[first.name])
        found = _shifted(graph, first, second, terms) or _centred(graph, first, second, terms)
        if found is not None:
            left = {r.tensor for r in reads(_without(terms, found.centre))} & after[first.name]
            if not left:
                return found
    first = firsts[-1]
    why = f"its terms follow from {first.target} neither as exp(u - max u) nor as (u - mean u)^2"
    return Unknown(first, second, why)


def _without(e: Expr, part: Expr) -> Expr:
    return map_expr(e, lambda x: Const(0.0, part.dtype) if x == part else x)


# --- definitions put in ---------------------------------------------------------------------------------


def _exposed(graph: TensorGraph, s: Statement, tensors: frozenset[str]) -> Expr:
    """The terms of a reduction, with the definitions of those tensors that vary along it."""
    along = set(s.reduction_dims)

    def wanted(r: Read) -> bool:
        return r.tensor in tensors and any(
            not isinstance(i, EXPR_TYPES) and along & set(variables(i)) for i in r.indices
        )

    return _expanded(graph, s.expr, wanted)


def _definition(graph: TensorGraph, tensor: str) -> Statement | None:
    """The one statement that gives every element of a tensor by itself."""
    t, writers = graph.tensor(tensor), graph.writers(tensor)
    if t.exact or t.alias is not None or len(writers) != 1:
        return None
    (s,) = writers
    plain = s.write == tuple(IVar(d.name) for d in s.dims)
    return s if plain and not s.reduction and tensor not in {r.tensor for r in reads(s.expr)} else None


def in_full(graph: TensorGraph, e: Expr) -> Expr:
    """The expression with all definitions put in that give each element by itself."""
    return _expanded(graph, e, lambda r: True)


def _expanded(graph: TensorGraph, e: Expr, wanted: Callable[[Read], bool]) -> Expr:
    """The expression with definitions put in for the reads that are wanted, again and again."""
    changed = True
    while changed and sum(1 for _ in walk(e)) <= LARGEST:
        changed = False

        def put(x: Expr) -> Expr:
            nonlocal changed
            if not (isinstance(x, Read) and wanted(x)):
                return x
            source = _definition(graph, x.tensor)
            plain = [i for i in x.indices if not isinstance(i, EXPR_TYPES)]
            if source is None or len(plain) < len(x.indices):
                return x
            changed = True
            return renamed(source.expr, dict(zip((d.name for d in source.dims), plain, strict=True)))

        e = map_expr(e, put)
    return e


def renamed(e: Expr, env: Mapping[str, IndexExpr]) -> Expr:
    """The expression with other index expressions for its loop variables."""
    return map_expr(e, lambda x: x, lambda i: substitute(i, env))


# --- the two forms ------------------------------------------------------------------------------------


def _shifted(graph: TensorGraph, first: Statement, second: Statement, terms: Expr) -> Cascade | None:
    """exp(u - A) with A = max u, or exp(A - u) with A = min u."""
    match terms:
        case Apply("exp", (Apply("sub", (left, right)),)):
            pass
        case _:
            return None
    for centre, u, sign in ((right, left, 1), (left, right, -1)):
        if first.reduction == ("max" if sign == 1 else "min"):
            read = _total(centre, first)
            if read is not None and _is_of(graph, first, second, read, u):
                return Cascade(first, second, terms, centre, read.indices, "shifted", sign)
    return None


def _centred(graph: TensorGraph, first: Statement, second: Statement, terms: Expr) -> Cascade | None:
    """(u - M)^2 with M = sum(u) / n, n the number of terms."""
    match terms:
        case Apply("pow", (Apply("sub", (left, right)), Const(value))) if value == 2:
            pass
        case Apply("mul", (Apply("sub", (left, right)), Apply("sub", again))) if (left, right) == again:
            pass
        case _:
            return None
    if first.reduction != "sum":
        return None
    for centre, u in ((right, left), (left, right)):
        read = _mean(graph, centre, first)
        if read is not None and _is_of(graph, first, second, read, u):
            return Cascade(first, second, terms, centre, read.indices, "centred")
    return None


def _is_of(graph: TensorGraph, first: Statement, second: Statement, read: Read, u: Expr) -> bool:
    """Is u what the first reduces, of the same elements, to the total that the second reads so?"""
    over = _as_in(first, second, read)
    return over is not None and in_full(graph, over) == in_full(graph, u)


def _total(e: Expr, first: Statement) -> Read | None:
    """The read of a total that an expression is."""
    return e if isinstance(e, Read) and e.tensor == first.target else None


def _mean(graph: TensorGraph, e: Expr, first: Statement) -> Read | None:
    """The total that is divided by the number of its terms, if an expression is such a mean."""
    count = terms_of(first.dims)
    match in_full(graph, e):
        case Apply("div", (Read() as total, IndexValue(n))) if _factors(n) == _factors(count):
            return _total(total, first)
        case Apply("div", (Read() as total, Const(value))) if (
            isinstance(count, IConst) and value == count.value
        ):
            return _total(total, first)
    return None


def terms_of(dims: Sequence[IterDim]) -> IndexExpr:
    """How many terms a reduction over such dims has."""
    return product(tuple(binary("-", d.upper, d.lower) for d in dims if d.reduce))


def _factors(e: IndexExpr) -> tuple[int, list[str]]:
    """What a product is of, a number and the rest, however it is written."""
    match e:
        case IConst(value):
            return value, []
        case IBin("*", left, right):
            (a, some), (b, more) = _factors(left), _factors(right)
            return a * b, sorted([*some, *more])
        case _:
            return 1, [str(e)]


def span(d: IterDim) -> tuple[int, int]:
    """The range of a dim whose bounds are known."""
    assert isinstance(d.lower, IConst) and isinstance(d.upper, IConst)
    return d.lower.value, d.upper.value


def _as_in(first: Statement, second: Statement, read: Read) -> Expr | None:
    """What the first reduces, in terms of the dims of the second, which reads its total so; None where the
    two do not run over the same elements."""
    kept = {d.name: d for d in second.dims if not d.reduce}
    env: dict[str, IndexExpr] = {}
    for w, i in zip(first.write, read.indices, strict=True):
        if not (isinstance(w, IVar) and isinstance(i, IVar) and i.name in kept):
            return None
        mine = next(d for d in first.dims if d.name == w.name)
        theirs = kept[i.name]
        if (mine.lower, mine.upper) != (theirs.lower, theirs.upper) or i in env.values():
            return None
        env[w.name] = i
    if len(env) != len(kept):
        return None
    over = [d for d in second.dims if d.reduce]
    env |= {a.name: IVar(b.name) for a, b in zip((d for d in first.dims if d.reduce), over, strict=True)}
    return renamed(first.expr, env)
