"""Loop alignment: pieces of a row whose statements run over other elements share one loop that starts at 0.

    y[d] = x[d] * c[d] - x[d+D] * s[d]          for d in 0..D
    y[d] = x[d] * c[d-D] + x[d-D] * s[d-D]      for d in D..2D
becomes
    y[d] = x[d] * c[d] - x[d+D] * s[d]          for d in 0..D
    y[d+D] = x[d+D] * c[d] + x[d] * s[d]        for d in 0..D

Statements keep the order of their own instances; those that pass elements on inside of the loop are shifted
by the same.  Source: Allen and Kennedy, Optimizing Compilers for Modern Architectures, section 6.2.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations

from polyfuse.decisions import Decision, counted
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.linear import Range, interval
from polyfuse.ir.schedule_tree import Band, Member, Sequence, Tree, members_of, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    Index,
    IterDim,
    Statement,
    TensorGraph,
    map_expr,
    map_index,
    statement_reads,
)
from polyfuse.layers.mapping.nests import dim_of, vector_width


def align_loops(graph: TensorGraph, tree: Tree, decisions: list[Decision]) -> TensorGraph:
    """The graph with the dims of statements shifted where their shared loop gains by it.

    It does if fewer elements are read in an iteration, or none more and they come in longer vectors.
    """
    for m, below in _loops(tree, members_of(tree)):
        shifts = _shifts(graph, m, below)
        if not any(shifts.values()):
            continue
        dims = {n: e.name for n, e in m.exprs if isinstance(e, IVar)}
        moved = {n: _shifted(graph.statement(n), dims[n], by) for n, by in shifts.items() if by}
        made = replace(graph, statements=tuple(moved.get(s.name, s) for s in graph.statements))
        before, after = (_reads(g, tree, shifts) for g in (graph, made))
        widths = [vector_width(g, m, tuple(shifts)) for g in (graph, made)]
        if after < before or (after == before and widths[0] < widths[1]):
            graph = made
            what = ", ".join(f"{n} by {by}" for n, by in shifts.items() if by)
            reads = f"an iteration of {m.name} reads {counted(after, 'element')} in place of {before}"
            vectors = f"vectors of {widths[1]} along {m.name} in place of {widths[0]}"
            why = reads if after < before else vectors
            decisions.append(Decision("align loops", what, True, why))
    return graph


def _loops(tree: Tree, every: list[Member]) -> list[tuple[Member, Tree]]:
    """Loops whose statements may be shifted, with what is in them."""
    match tree:
        case Band(members, child):
            apart = [m for m in members if m.coincident and _stands_alone(m, every)]
            return [*((m, tree) for m in apart), *_loops(child, every)]
        case Sequence(children):
            return [found for c in children for found in _loops(c, every)]
        case _:
            return []


def _stands_alone(m: Member, every: list[Member]) -> bool:
    """Is a loop a dim of each statement, which no other loop asks for?"""
    dims = {n: e.name for n, e in m.exprs if isinstance(e, IVar)}
    asked = (n in dims and dims[n] in variables(e) for o in every if o is not m for n, e in o.exprs)
    return len(dims) == len(m.exprs) and not any(asked)


def _shifts(graph: TensorGraph, m: Member, tree: Tree) -> dict[str, int]:
    """Where each statement starts in a loop, those that pass elements on as one; nothing where it varies."""
    starts: dict[str, int] = {}
    for n in statements(tree):
        e = m.of(n)
        dim = dim_of(graph.statement(n), e.name) if isinstance(e, IVar) else None
        if dim is None or not isinstance(dim.lower, IConst) or not isinstance(dim.upper, IConst):
            return {}
        if dim.lower.value and graph.statement(n).reduction is not None and not dim.reduce:
            return {}  # totals stand at plain dims
        starts[n] = dim.lower.value
    for _ in starts:  # to the end of each chain
        for a, b in combinations(starts, 2):
            if starts[a] != starts[b] and _tied(graph, graph.statement(a), graph.statement(b), m):
                starts[a] = starts[b] = min(starts[a], starts[b])
    return starts


# --- what statements pass on ------------------------------------------------------------------------------


def _tied(graph: TensorGraph, a: Statement, b: Statement, m: Member) -> bool:
    """Does one of them need, replace or add to an element of the other?"""
    return any(
        _flows(s, r) or _replaces(graph, s, r, m) or (s.target == r.target and (s.accumulate or r.accumulate))
        for s, r in ((a, b), (b, a))
    )


def _flows(s: Statement, r: Statement) -> bool:
    """May one of them read what the other writes?"""
    return any(x.tensor == s.target and _meet(s, s.write, r, x.indices) for x in statement_reads(r))


def _replaces(graph: TensorGraph, s: Statement, r: Statement, m: Member) -> bool:
    """Does one of them read, in the iteration that replaces it, the value at entry of an element?"""
    alias = graph.tensor(s.target).alias
    if alias is None:
        return False
    env = {e.name: IVar(m.name) for e in (m.of(s.name), m.of(r.name)) if isinstance(e, IVar)}
    written = _renamed(s.write, env)
    return any(
        x.tensor == alias and _renamed(x.indices, env) == written and _meet(s, s.write, r, x.indices)
        for x in statement_reads(r)
    )


def _renamed(indices: Iterable[Index], env: Mapping[str, IndexExpr]) -> tuple[Index, ...]:
    return tuple(i if isinstance(i, EXPR_TYPES) else substitute(i, env) for i in indices)


def _meet(s: Statement, written: tuple[Index, ...], r: Statement, read: tuple[Index, ...]) -> bool:
    """May two accesses to a tensor touch one element? Not if at a place all indices are apart."""
    one, other = _ranges(s), _ranges(r)
    for w, x in zip(written, read, strict=True):
        if isinstance(w, EXPR_TYPES) or isinstance(x, EXPR_TYPES):
            continue
        a, b = interval(w, one), interval(x, other)
        if a is not None and b is not None and (a[1] < b[0] or b[1] < a[0]):
            return False
    return True


def _ranges(s: Statement) -> dict[str, Range]:
    """What the dims with known bounds of a statement can be."""
    found: dict[str, Range] = {}
    for d in s.dims:
        low, high = interval(d.lower, found), interval(d.upper, found)
        if low is not None and high is not None:
            found[d.name] = low[0], high[1] - 1
    return found


# --- shifts and what they save ----------------------------------------------------------------------------


def _shifted(s: Statement, dim: str, by: int) -> Statement:
    """The statement with a dim that starts `by` earlier; it does what it did."""
    env = {dim: binary("+", IVar(dim), by)}

    def index(i: IndexExpr) -> IndexExpr:
        return substitute(i, env)

    def expr(e: Expr) -> Expr:
        return e

    def bounds(d: IterDim) -> IterDim:
        back = by if d.name == dim else 0
        lower, upper = (binary("-", index(b), back) for b in (d.lower, d.upper))
        return replace(d, lower=lower, upper=upper)

    write = tuple(map_index(i, lambda e: map_expr(e, expr, index), index) for i in s.write)
    dims = tuple(map(bounds, s.dims))
    return replace(s, dims=dims, write=write, expr=map_expr(s.expr, expr, index))


def _reads(graph: TensorGraph, tree: Tree, names: Iterable[str]) -> int:
    """Elements that are read in an iteration of the loops that statements share."""
    loops = members_of(tree)
    found = set()
    for n in names:
        s = graph.statement(n)
        dims = {}
        for k, m in enumerate(loops):
            e = dict(m.exprs).get(n)
            if isinstance(e, IVar):
                dims[e.name] = IVar(f"%{k}")
        for r in statement_reads(s):
            found.add((r.tensor, _renamed(r.indices, dims)))
    return len(found)
