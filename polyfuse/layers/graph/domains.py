"""Domains of statements: guards that become domains, windows in one form, sums over windows.

`split_index_sets` and `dense_windows` rewrite graphs; `sums_windows` is a question of mapping.

A statement that chooses by its indices is split into one piece per choice.

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

Sums over windows, `y[q, c] = sum[s](x[q + s, c] * w[s, c])`, have an index that adds a summed dim to others,
so that neighbours read the same elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, binary, substitute, variables
from polyfuse.ir.linear import arms, conjuncts, linear
from polyfuse.ir.tensor_graph import (
    ARG_REDUCTIONS,
    EXPR_TYPES,
    Const,
    Expr,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
    map_expr,
    statement_reads,
    walk,
)
from polyfuse.layers.graph.names import fresh_name

# --- guards -----------------------------------------------------------------------------------------------

MOST_PIECES = 8


def split_index_sets(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """Split every statement whose guards allow it; records what was done."""
    statements: list[Statement] = []
    names = {s.name for s in graph.statements}
    for s in graph.statements:
        pieces = pieces_of(graph, s)
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


def pieces_of(graph: TensorGraph, s: Statement) -> list[Statement]:
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
        outside = restricted(inside, binary("-", -1, part))
        inside = restricted(inside, part)
        if outside is None or inside is None:
            return None
        pieces.append(_choose(outside, e, e.other))
    assert inside is not None
    every = [_choose(inside, e, e.then), *pieces]
    return [p for p in every if not any(d.is_empty for d in p.dims)] or every[:1]


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
        inside = restricted(inside, part, reduction_only=True) if inside else None
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


def restricted(s: Statement, nonnegative: IndexExpr, reduction_only: bool = False) -> Statement | None:
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


# --- windows ----------------------------------------------------------------------------------------------

# Windows in one form: loops over so many terms, of one reduction.
#
#     y[p] = max[h in max(2*p - 1, 0)..min(2*p + 2, H)](x[h])
# becomes
#     y[p] = max[h in max(0, 1 - 2*p)..min(3, H + 1 - 2*p)](x[2*p - 1 + h])
#
# and, where a reduction is of one of the same kind,
#
#     t[p, q, r] = max[s](x[p + r, q + s]);   y[p, q] = max[r](t[p, q, r])
# becomes
#     y[p, q] = max[r, s](x[p + r, q + s])
#
# Lanes then run along the results, of which neighbours have as many terms, and not along a few terms.  A
# condition around the inner reduction that has its neutral element for the other side goes along.


# Terms at most: longer sums fill vectors by themselves.
MOST_TERMS = 32
_JOINED = ("sum", "max", "min", "prod")


def dense_windows(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """See the head of this section."""
    for name in [s.name for s in graph.statements]:
        if any(s.name == name for s in graph.statements):
            graph = _joined(graph, name, decisions)
    shifted = {s.name: _shifted(s) for s in graph.statements}
    for s in graph.statements:
        if shifted[s.name] is not s:
            decisions.append(Decision("window", s.name, True, "its terms are counted from the first one on"))
    return replace(graph, statements=tuple(shifted[s.name] for s in graph.statements))


# --- terms from the first one on --------------------------------------------------------------------------


def _shifted(s: Statement) -> Statement:
    if s.reduction is None or s.accumulate or s.reduction in ARG_REDUCTIONS:
        return s
    for d in s.dims:
        first = _first(d) if d.reduce else None
        if first is not None:
            return _shifted(_from(s, d, first))
    return s


def _first(d: IterDim) -> IndexExpr | None:
    """Where a window of few terms begins that moves with other dims, if it has fewer than stay in place."""
    best, first = MOST_TERMS + 1, None
    for low in arms("max", d.lower):
        for high in arms("min", d.upper):
            length = linear(binary("-", high, low))
            moves = bool(variables(low))
            if not length.terms and (0 < length.constant < best or (length.constant == best and not moves)):
                best, first = length.constant, low if moves else None
    return first


def _from(s: Statement, d: IterDim, first: IndexExpr) -> Statement:
    """The statement with a dim that counts from there."""
    env = {d.name: binary("+", first, IVar(d.name))}

    def moved(i: IndexExpr) -> IndexExpr:
        return linear(substitute(i, env)).expr() if d.name in variables(i) else i

    lower, upper = (_less(op, e, first) for op, e in (("max", d.lower), ("min", d.upper)))
    at = s.dims.index(d)
    later = (replace(x, lower=moved(x.lower), upper=moved(x.upper)) for x in s.dims[at + 1 :])
    dims = (*s.dims[:at], replace(d, lower=lower, upper=upper), *later)
    return replace(s, dims=dims, expr=map_expr(s.expr, lambda e: e, moved))


def _less(op: str, bound: IndexExpr, first: IndexExpr) -> IndexExpr:
    found, *more = (linear(binary("-", a, first)).expr() for a in arms(op, bound))
    for e in more:
        found = binary(op, found, e)
    return found


# --- one reduction ------------------------------------------------------------------------------------------


def _joined(graph: TensorGraph, name: str, decisions: list[Decision]) -> TensorGraph:
    """The graph with the terms of inner reductions in this one, while it reduces nothing else."""
    outer = graph.statement(name)
    read = _reduced_element(graph, outer)
    inner = _inner(graph, outer, read) if read is not None else None
    if read is None or inner is None:
        return graph
    where = {w.name: i for w, i in zip(inner.write, read.indices, strict=True) if isinstance(w, IVar)}
    over = [d for d in inner.dims if d.reduce]
    names: dict[str, IndexExpr] = {d.name: IVar(fresh_name(graph, f"{d.name}__in")) for d in over}
    env: dict[str, IndexExpr] = {**where, **names}  # type: ignore[dict-item]

    def moved(i: IndexExpr) -> IndexExpr:
        return substitute(i, env)

    dims = [replace(d, name=str(names[d.name]), lower=moved(d.lower), upper=moved(d.upper)) for d in over]
    terms = map_expr(inner.expr, lambda e: e, moved)
    expr = map_expr(outer.expr, lambda e: terms if e == read else e)
    made = replace(outer, dims=(*outer.dims, *dims), expr=expr)
    decisions.append(Decision("window", name, True, f"one reduction with {inner.name}, of the same kind"))
    statements = tuple(made if s is outer else s for s in graph.statements if s is not inner)
    tensors = tuple(t for t in graph.tensors if t.name != inner.target)
    return _joined(replace(graph, tensors=tensors, statements=statements), name, decisions)


def _reduced_element(graph: TensorGraph, s: Statement) -> Read | None:
    """What a statement reduces, if that is an element of a tensor, or else the neutral element."""
    if s.reduction not in _JOINED or s.accumulate:
        return None
    match s.expr:
        case Read():
            return s.expr
        case Select(cond, Read() as then, Const(value)):
            neutral = value == identity(s.reduction, graph.tensor(s.target).dtype)
            return then if neutral and not any(isinstance(e, Read) for e in walk(cond)) else None
        case _:
            return None


def _inner(graph: TensorGraph, outer: Statement, read: Read) -> Statement | None:
    """The reduction that makes what an outer one reduces, if it is of the same kind and serves no other."""
    t = graph.tensor(read.tensor)
    writers = graph.writers(t.name)
    if t.role is not Role.TEMP or len(writers) != 1 or graph.readers(t.name) != (outer,):
        return None
    (inner,) = writers
    alike = inner.reduction == outer.reduction and t.dtype == graph.tensor(outer.target).dtype
    plain = all(isinstance(w, IVar) for w in inner.write)
    own = all(not isinstance(i, EXPR_TYPES) for i in read.indices)
    if not (alike and plain and own) or inner.accumulate or len(_all_reads(outer, t.name)) != 1:
        return None
    if any(isinstance(i, EXPR_TYPES) for r in statement_reads(inner) for i in r.indices):
        return None
    lengths = [_length(d) for s in (outer, inner) for d in s.dims if d.reduce]
    few = all(n is not None for n in lengths) and prod(n or 0 for n in lengths) <= MOST_TERMS
    return inner if few and _uses_all(outer, read) else None


def _all_reads(s: Statement, tensor: str) -> list[Read]:
    return [r for r in statement_reads(s) if r.tensor == tensor]


def _uses_all(s: Statement, read: Read) -> bool:
    """Does each iteration read an element of its own?"""
    names = [i.name for i in read.indices if isinstance(i, IVar)]
    return sorted(names) == sorted(d.name for d in s.dims) and len(names) == len(read.indices)


def _length(d: IterDim) -> int | None:
    """The terms of a dim, at most."""
    found = [linear(binary("-", b, a)) for a in arms("max", d.lower) for b in arms("min", d.upper)]
    return min((x.constant for x in found if not x.terms), default=None)


# --- sums over windows ------------------------------------------------------------------------------------


# Elements of a row over windows that is not cut into strips.
LONGEST_ROW = 2048


def sums_windows(s: Statement) -> bool:
    """Does an index add a dim that is summed to others, so that neighbours read the same elements?"""
    summed = {
        d.name: d.upper.value - d.lower.value - 1
        for d in s.dims
        if d.reduce and isinstance(d.lower, IConst) and isinstance(d.upper, IConst)
    }
    for form in map(linear, indices_of(s.expr)):
        factors = [(a.name if isinstance(a, IVar) else "", abs(c)) for a, c in form.terms]
        length = max((c * summed[a] for a, c in factors if a in summed), default=0)
        if any(c <= length for a, c in factors if a not in summed):
            return True
    return False


def window_rows(graph: TensorGraph, names: Iterable[str], trip: int | None) -> bool:
    """Are all reductions of these statements over windows, wherever they begin, with a total for each element
    of rows of that length? Registers hold these (`codegen.transforms.unroll_and_jam.overlapping_windows`)."""
    sums = [s for s in map(graph.statement, names) if s.reduction is not None]
    if trip is None or trip > LONGEST_ROW or not sums:
        return False
    return all(any(_is_added(s, i) for i in indices_of(s.expr)) for s in sums)


def _is_added(s: Statement, index: IndexExpr) -> bool:
    """Does an index add a dim that is summed to another one?"""
    found = set(variables(index))
    return bool(found & set(s.reduction_dims)) and not found <= set(s.reduction_dims)


def indices_of(e: Expr) -> list[IndexExpr]:
    """All indices in an expression that are found without data."""
    found: list[IndexExpr] = []

    def look(i: IndexExpr) -> IndexExpr:
        found.append(i)
        return i

    map_expr(e, lambda x: x, look)
    return found
