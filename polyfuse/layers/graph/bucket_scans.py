"""A reduction over what counts at most an index is a scan over buckets: O(n + t), not O(n * t).

    r[e] = max[n](n if ptr[n] <= e else -1)                            for e in 0..E
becomes
    r__bucket[j] = -1                                                  for j in 0..E + 1
    r__bucket[min(max(ptr[n], 0), E)] max= n
    r[e] = max[j in 0..e + 1](r__bucket[j])                            for e in 0..E

Equal ones are one: `row(ptr, e)` in several statements is one scan.  What is more than every index goes to a
bucket that nothing reads.  The numbers need no order.  Of reductions that may be reassociated without
changing a bit: maxima, minima, sums and products of integers, any and all.  The last statement is one over a
growing range, which `layers.graph.scans` makes a recurrence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.decisions import Decision
from polyfuse.ir.data_ranges import conjuncts, test_of
from polyfuse.ir.dtypes import I64
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IVar, binary
from polyfuse.ir.intervals import of_tree
from polyfuse.ir.tensor_graph import (
    Apply,
    Const,
    Expr,
    Index,
    IterDim,
    Read,
    Select,
    Statement,
    TensorGraph,
    depends_on,
)
from polyfuse.layers.graph.cleanup.merge import merge_equal
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.graph.scans.statements import Made, value_of

# Values of the index and elements, at least: fewer comparisons cost less than buckets.
FEWEST = 16


@dataclass(frozen=True, slots=True)
class _Counted:
    """A statement, the dim of the index, that of the elements, the number of an element, and its term."""

    statement: Statement
    along: IterDim
    over: IterDim
    number: Expr
    term: Expr
    none: Const


def bucket_scans(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """The graph at known sizes, with scans over buckets in place of what compares each pair."""
    if graph.sizes or not any(map(_counted, graph.statements)):
        return graph
    graph = merge_equal(graph, decisions)  # places of a scatter are not compared
    for s in graph.statements:
        found = _counted(s)
        if found is None:
            continue
        graph = _written(Made(graph, s), found)
        why = f"each {found.over.name} counts from one {found.along.name} on: a scan over buckets"
        decisions.append(Decision("bucket-scan", s.name, True, why))
    return graph


def _counted(s: Statement) -> _Counted | None:
    over = [d for d in s.dims if d.reduce]
    match s.expr:
        case Select(cond, term, Const() as none) if len(over) == 1 and not s.accumulate:
            pass
        case _:
            return None
    if not all(isinstance(x, IConst) for d in s.dims for x in (d.lower, d.upper)) or not _free(s):
        return None
    if any(d.is_empty for d in s.dims):  # nothing to count
        return None
    for along in s.dims:
        tests = [(c, test_of(c, along.name)) for c in conjuncts(cond)]
        mine = [(c, t) for c, t in tests if t is not None and t.lower]
        if along.reduce or len(mine) != 1 or min(_trip(along), _trip(over[0])) < FEWEST:
            continue
        ((own, test),) = mine
        assert test is not None
        rest = [c for c, _ in tests if c is not own]
        if along.name in depends_on(term, *rest) or not _kept(s, term, none, rest):
            continue
        for c in rest:
            term = Select(c, term, none, term.dtype, s.span)
        return _Counted(s, along, over[0], test.data, term, none)
    return None


def _free(s: Statement) -> bool:
    """May terms be taken in any order without changing a bit?"""
    exact = ("max", "min", "any", "all")
    return s.reduction in exact or (s.reduction in ("sum", "prod") and s.expr.dtype.is_integer)


def _kept(s: Statement, term: Expr, none: Const, rest: list[Expr]) -> bool:
    """Is a total with one more `none` the same?"""
    if repr(none.value) == repr(identity(s.reduction or "", none.dtype)):
        return True
    if s.reduction not in ("max", "min") or rest or not none.dtype.is_integer:
        return False
    low, high = of_tree(term, {d.name: (value_of(d.lower), value_of(d.upper) - 1) for d in s.dims})
    return low >= none.value if s.reduction == "max" else high <= none.value


def _trip(d: IterDim) -> int:
    return value_of(d.upper) - value_of(d.lower)


def _written(made: Made, c: _Counted) -> TensorGraph:
    s, low, count = c.statement, value_of(c.along.lower), _trip(c.along)
    j = fresh_name(made.graph, "j")
    buckets = IterDim(j, IConst(0), IConst(count + 1))
    outer = tuple(d for d in s.dims if not d.reduce)

    def dims(*along: IterDim) -> tuple[IterDim, ...]:
        return tuple(x for d in outer for x in (along if d == c.along else (d,)))

    def place(along: Index) -> tuple[Index, ...]:
        return tuple(along if d == c.along else IVar(d.name) for d in outer)

    shape = tuple(IConst(count + 1) if d == c.along else d.upper for d in outer)
    dtype = s.expr.dtype
    bucket = made.tensor(f"{s.name}__bucket", dtype, shape)
    made.add(bucket, dims(buckets), place(IVar(j)), c.none)
    ends = Const(0, I64, s.span), Const(count, I64, s.span)
    at = c.number if not low else Apply("sub", (c.number, Const(low, I64, s.span)), I64, s.span)
    at = Apply("min", (Apply("max", (at, ends[0]), I64, s.span), ends[1]), I64, s.span)
    element = dims(replace(c.over, reduce=False))
    made.add(bucket, element, place(at), c.term, s.reduction, name=f"{bucket}__in")
    made.statements[-1] = replace(made.statements[-1], accumulate=True)
    grown = replace(buckets, upper=binary("-", IVar(c.along.name), IConst(low - 1)), reduce=True)
    read = Read(bucket, place(IVar(j)), dtype, s.span)  #
    made.add(s.target, (*outer, grown), s.write, read, s.reduction, name=s.name)
    return made.result()
