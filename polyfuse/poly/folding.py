"""Storage folding: steps of a recurrence take turns in the memory of those that are no longer needed.

    u[0, i] = x[i];  u[t, i] = f(u[t-1, i-1], u[t-1, i+1]);  y[i] = u[T, i]
needs two rows of u at a time: ``u[t mod 2, i]``.

An element lives from the first loop iteration that touches it to the last.  Two of them may share memory
unless both live at once (Lefebvre and Feautrier 1998, section 4), which isl is asked for all pairs that
differ along time alone.  Only loops that run in order are clocks: iterations of all others count as one
moment, so that what they become (blocks, lanes, rows that overlap) changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import islpy as isl

from polyfuse.ir.index_expr import IConst, IndexExpr, variables
from polyfuse.ir.schedule_tree import Member, Tree, path
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, statement_reads
from polyfuse.poly.domains import PolyModel
from polyfuse.poly.footprint import touched

Steps = dict[str, list[Member | int]]


def folded(
    model: PolyModel, tree: Tree, tensor: str, loops: Sequence[Member], extents: tuple[IndexExpr, ...]
) -> tuple[IndexExpr, ...]:
    """Extents of storage for a tensor of which every iteration of `loops` has its own, of these extents: the
    same, but for dims along which steps take turns."""
    accesses = [a for a in (*model.writes.values(), *model.reads) if a.tensor == tensor]
    steps: Steps = {n: _steps(tree, n, loops) for n in dict.fromkeys(a.statement for a in accesses)}
    along = _dims_of_time(model, tensor, steps)
    if not along:
        return extents
    both = _alive_at_once(touched(model, accesses, _clock(steps)))
    both = both.intersect_params(model.assumptions)
    for k in range(len(extents)):
        if k not in along:
            both = both.equate(isl.dim_type.in_, k, isl.dim_type.out, k)
    found = list(extents)
    for k in along:
        largest = isl.Val.zero(model.context) if both.is_empty() else both.deltas().dim_max_val(k)
        if largest.is_int():
            found[k] = _smaller(found[k], int(largest.to_python()) + 1)
        both = both.equate(isl.dim_type.in_, k, isl.dim_type.out, k)
    return tuple(found)


def _steps(tree: Tree, statement: str, loops: Sequence[Member]) -> list[Member | int]:
    """What orders a statement within the loops, up to the first loop whose iterations run in any order."""
    found: list[Member | int] = []
    for step in path(tree, statement):
        if isinstance(step, Member) and step in loops:
            continue
        if isinstance(step, Member) and step.coincident:
            break
        found.append(step)
    return found


def _dims_of_time(model: PolyModel, tensor: str, steps: Steps) -> list[int]:
    """The dims of a tensor whose indices are those of loops that run in order, in all that touches it."""
    clocks = {
        name: {v for m in order if isinstance(m, Member) for v in variables(m.of(name))}
        for name, order in steps.items()
    }
    uses = [(name, i) for name in steps for i in _indices(model, tensor, name)]
    return [
        k
        for k in range(len(model.graph.tensor(tensor).shape))
        if all(_is_of(indices[k], clocks[name]) for name, indices in uses)
        and any(not isinstance(indices[k], IConst) for _, indices in uses)
    ]


def _indices(model: PolyModel, tensor: str, statement: str) -> Iterator[tuple[Index, ...]]:
    s = model.graph.statement(statement)
    if s.target == tensor:
        yield s.write
    yield from (r.indices for r in statement_reads(s) if r.tensor == tensor)


def _is_of(index: Index, clock: set[str]) -> bool:
    return not isinstance(index, EXPR_TYPES) and set(variables(index)) <= clock


def _clock(steps: Steps) -> list[Member]:
    """The orders of all statements as loops that they have in common; where one has fewer, 0."""
    length = max(map(len, steps.values()))
    members = []
    for p in range(length):
        at = {name: order[p] if p < len(order) else 0 for name, order in steps.items()}
        exprs = tuple((name, x.of(name) if isinstance(x, Member) else IConst(x)) for name, x in at.items())
        members.append(Member(f"step{p}", exprs, False))
    return members


def _alive_at_once(moments: isl.Map) -> isl.Map:
    """Pairs of elements that live at the same time, of the moments at which elements are touched."""
    of = moments.reverse()
    before = isl.Map.lex_le(of.get_space().range())
    begun = of.lexmin().apply_range(before).apply_range(of.lexmax().reverse())
    return begun.intersect(begun.reverse())


def _smaller(extent: IndexExpr, steps: int) -> IndexExpr:
    """Two steps at least: what a step writes is nowhere what it has read."""
    fewest = max(steps, 2)
    return extent if isinstance(extent, IConst) and extent.value <= fewest else IConst(fewest)
