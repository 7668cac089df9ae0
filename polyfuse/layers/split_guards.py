"""Guards become domains: a statement that chooses by its indices is split into one piece per choice.

    y[i] = x[i - 1] if i >= 1 else 0.0        for i in 0..N
becomes
    y[i] = x[i - 1]     for i in 1..N
    y[i] = 0.0          for i in 0..min(N, 1)

and, where the other side is the neutral element, a reduction runs over fewer iterations:

    y[i] = sum[k in 0..3](x[i + k - 1] if i + k >= 1 else 0.0)
becomes
    y[i] = sum[k in max(0, 1 - i)..3](x[i + k - 1])

The loops then hold no condition, so that the innermost ones can be vectorised.  Conditions must be
conjunctions of affine comparisons in which the last loop variable has the factor 1 or -1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.decisions import Decision
from polyfuse.ir.conditions import conjuncts
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, binary
from polyfuse.ir.tensor_graph import (
    Const,
    Expr,
    IterDim,
    Select,
    Statement,
    TensorGraph,
    map_expr,
    walk,
)

MOST_PIECES = 8


def split_guards(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """Split every statement whose guards allow it; records what was done."""
    statements: list[Statement] = []
    names = {s.name for s in graph.statements}
    for s in graph.statements:
        pieces = _pieces(graph, s)
        if len(pieces) == 1 and pieces[0] is s:
            statements.append(s)
            continue
        reason = f"{len(pieces)} piece{'s' * (len(pieces) != 1)} without conditions on indices"
        decisions.append(Decision("index-set splitting", s.name, True, reason))
        for k, piece in enumerate(pieces):
            name = s.name if k == 0 else _fresh(f"{s.name}__at{k}", names)
            statements.append(replace(piece, name=name))
    changed = len(statements) != len(graph.statements) or any(
        a is not b for a, b in zip(statements, graph.statements, strict=True)
    )
    return replace(graph, statements=tuple(statements)) if changed else graph


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _pieces(graph: TensorGraph, s: Statement) -> list[Statement]:
    """The statement in pieces; itself where no guard can be resolved, or too many pieces would result."""
    done: list[Statement] = []
    work = [s]
    while work:
        piece = work.pop(0)
        split = _split_once(graph, piece)
        if split is None:
            done.append(piece)
        else:
            work = split + work
        if len(done) + len(work) > MOST_PIECES:
            return [s]
    return done


def _split_once(graph: TensorGraph, s: Statement) -> list[Statement] | None:
    """Resolve one guard of a statement; None if there is none that can be."""
    if s.accumulate:
        return None
    for e in walk(s.expr):
        if isinstance(e, Select):
            parts = conjuncts(e.cond)
            if parts is None:
                continue
            found = _reduced(graph, s, e, parts) if s.reduction else _mapped(s, e, parts)
            if found is not None:
                return found
    return None


def _mapped(s: Statement, e: Select, parts: list[IndexExpr]) -> list[Statement] | None:
    """One piece where all parts hold, and one for each part that is the first not to hold."""
    pieces: list[Statement] = []
    inside: Statement | None = s
    for part in parts:
        if inside is None:
            return None
        outside = _restrict(inside, binary("-", -1, part))
        inside = _restrict(inside, part)
        if outside is None or inside is None:
            return None
        pieces.append(_choose(outside, e, e.other))
    assert inside is not None
    every = [_choose(inside, e, e.then), *pieces]
    return [p for p in every if not _is_empty(p)] or every[:1]


def _is_empty(s: Statement) -> bool:
    """Has a domain no points, as constant bounds say?"""
    return any(
        isinstance(d.lower, IConst) and isinstance(d.upper, IConst) and d.lower.value >= d.upper.value
        for d in s.dims
    )


def _reduced(graph: TensorGraph, s: Statement, e: Select, parts: list[IndexExpr]) -> list[Statement] | None:
    """Fewer iterations of a reduction whose guard leaves the neutral element."""
    dtype = graph.tensor(s.target).dtype
    assert s.reduction is not None
    if s.reduction in ("argmax", "argmin") or e is not s.expr:
        return None
    if not (isinstance(e.other, Const) and e.other.value == identity(s.reduction, dtype)):
        return None
    inside: Statement | None = s
    for part in parts:
        inside = _restrict(inside, part, reduction_only=True) if inside else None
    return None if inside is None else [replace(inside, expr=e.then)]


def _choose(s: Statement, e: Select, side: Expr) -> Statement:
    return replace(s, expr=map_expr(s.expr, lambda x: side if x == e else x))


# --- conditions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Linear:
    """factors of loop variables, and the rest (sizes and a constant)."""

    factors: dict[str, int]
    rest: IndexExpr


def _linear(e: IndexExpr) -> _Linear | None:
    match e:
        case IVar(name):
            return _Linear({name: 1}, IConst(0))
        case IConst() | ISize():
            return _Linear({}, e)
        case IBin("+" | "-" as op, left, right):
            a, b = _linear(left), _linear(right)
            if a is None or b is None:
                return None
            sign = 1 if op == "+" else -1
            names = dict.fromkeys([*a.factors, *b.factors])
            factors = {n: a.factors.get(n, 0) + sign * b.factors.get(n, 0) for n in names}
            return _Linear({n: c for n, c in factors.items() if c}, binary(op, a.rest, b.rest))
        case IBin("*", IConst(c), other) | IBin("*", other, IConst(c)):
            inner = _linear(other)
            if inner is None:
                return None
            scaled = {n: c * k for n, k in inner.factors.items() if c * k}
            return _Linear(scaled, binary("*", c, inner.rest))
        case _:
            return None


def _restrict(s: Statement, nonnegative: IndexExpr, reduction_only: bool = False) -> Statement | None:
    """The statement on the part of its domain where an expression is >= 0."""
    line = _linear(nonnegative)
    if line is None:
        return None
    used = [d for d in s.dims if d.name in line.factors]
    if not used:
        return None
    last = used[-1]
    factor = line.factors[last.name]
    if abs(factor) != 1:
        return None
    if reduction_only and not last.reduce:
        return _restrict_outer(s, nonnegative)
    others = {n: c for n, c in line.factors.items() if n != last.name}
    if factor == 1:
        bound = replace(last, lower=binary("max", last.lower, _affine(others, line.rest, -1)))
    else:
        end = _affine(others, binary("+", line.rest, 1), 1)
        bound = replace(last, upper=binary("min", last.upper, end))
    return replace(s, dims=tuple(bound if d is last else d for d in s.dims))


def _affine(factors: dict[str, int], rest: IndexExpr, sign: int) -> IndexExpr:
    """`sign * (sum of factors * variables + rest)`, its positive terms first."""
    terms = [(sign * c, IVar(n)) for n, c in factors.items()]
    total: IndexExpr = binary("*", sign, rest) if isinstance(rest, IConst) or sign == 1 else IConst(0)
    for c, v in terms:
        if c > 0:
            total = binary("+", binary("*", c, v), total) if isinstance(total, IConst) else total + c * v
    for c, v in terms:
        if c < 0:
            total = binary("-", total, binary("*", -c, v))
    return total if isinstance(rest, IConst) or sign == 1 else binary("-", total, rest)


def _restrict_outer(s: Statement, nonnegative: IndexExpr) -> Statement | None:
    """No iteration of a reduction dim where a condition on outer dims fails: its extent times (e + 1)."""
    over = next((d for d in s.dims if d.reduce), None)
    if over is None or not (isinstance(over.lower, IConst) and isinstance(over.upper, IConst)):
        return None
    extent = max(0, over.upper.value - over.lower.value)
    end = binary("+", over.lower, binary("*", extent, binary("+", nonnegative, 1)))
    bound: IterDim = replace(over, upper=binary("min", over.upper, end))
    return replace(s, dims=tuple(bound if d is over else d for d in s.dims))
