"""Scatters on a CPU: every worker owns elements of the result and makes all updates of them.

    y[dst[e], f] += x[src[e], f]      becomes, for parts of the rows n of y, in parallel,
                                      y[n, f] = 0               for rows n of the part
                                      y[dst[e], f] += ...       for those e whose row is of the part

Nothing is shared, so there is nothing to make atomic and no partial result to add up: each element is updated
by one worker, in the order of e, whatever the number of parts.  What a worker looks through in vain are
indices, a word for each row of features.  Where the destinations are sorted, stretches of them are passed by
at a glance, and those of a row that follow each other are added up in registers (`codegen.runs`).

A scatter is given to owners if one of its indices is data and the loops over the others make it worth
while.  What is scattered is computed before, what needs the result comes after.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.kernel import Owners
from polyfuse.ir.schedule_tree import Band, Coordinate, Leaf, Member, Tree, restrict, sequence, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Index,
    IterDim,
    Read,
    Role,
    Statement,
    TensorGraph,
    depends_on,
    statement_reads,
)
from polyfuse.layers.nest import volume

# Elements that are updated together, at least: fewer do not pay for the indices that owners look through.
FEWEST_TOGETHER = 16
# Below this many updates one worker is as fast as several.
SMALLEST_PARALLEL = 32 * 1024
# Parts for each worker, so that the slowest does not have twice the work; many workers have one each,
# because every part looks through all indices.
PARTS_PER_THREAD = 2
MOST_PARTS = 16


@dataclass(frozen=True, slots=True)
class Scatter:
    """A scatter with the statements that define its tensor before, and who owns what."""

    statement: str
    first: tuple[str, ...]
    owners: Owners
    loops: tuple[str, ...]


def around_scatters(graph: TensorGraph, phases: Sequence[Tree], threads: int) -> list[list[Tree] | Scatter]:
    """Phases as parts that run one after the other, cut around the scatters that have owners."""
    names = {n for phase in phases for n in statements(phase)}
    inside = [s for s in graph.statements if s.name in names]
    for s in inside:
        found = scatter_of(graph, inside, s, threads)
        if found is None:
            continue
        later = _depending(inside, s)
        own = {found.statement, *found.first}
        if later & own:
            continue  # a recurrence
        return [
            *around_scatters(graph, _restricted(phases, names - later - own), threads),
            found,
            *around_scatters(graph, _restricted(phases, later), threads),
        ]
    return [list(phases)] if phases else []


def map_scatter(graph: TensorGraph, found: Scatter, decisions: list[Decision]) -> Tree:
    """The nest of a scatter: what defines its tensor, then the updates, row by row."""
    s = graph.statement(found.statement)
    parts = found.owners.parts
    why = f"{parts} workers' shares of {s.target}: each is updated by its owner alone, row by row"
    if parts == 1:
        why = "too few updates for several workers: row by row, in registers where rows follow each other"
    decisions.append(Decision("owners", s.target, parts > 1, why))
    first = [_loops(graph.statement(n), _written(graph.statement(n).write)) for n in found.first]
    return sequence([*first, _loops(s, found.loops)])


def _loops(s: Statement, order: Iterable[str]) -> Tree:
    """A statement in loops of its own; the last one is for vectors."""
    members = [Member(d, ((s.name, IVar(d)),), False) for d in order]
    last = Member(members[-1].name, members[-1].exprs, True, Coordinate.VECTOR)
    return Band((*members[:-1], last), Leaf(s.name), True)


def scatter_of(graph: TensorGraph, inside: Sequence[Statement], s: Statement, threads: int) -> Scatter | None:
    """A scatter that owners are to run, among the statements `inside`; else None."""
    places = [k for k, i in enumerate(s.write) if isinstance(i, EXPR_TYPES)]
    if not s.accumulate or len(places) != 1 or not _fixed(s.dims):
        return None
    (place,) = places
    key = s.write[place]
    tensor = graph.tensor(s.target)
    extent = tensor.shape[place]
    free = _written(s.write)
    if not isinstance(extent, IConst) or place == len(s.write) - 1 or len(free) < len(s.write) - 1:
        return None
    assert isinstance(key, EXPR_TYPES)
    found = depends_on(key)
    together = prod(_trip(d) for d in s.dims if d.name in free)
    if found & set(free) or not found or together < FEWEST_TOGETHER or free[-1] != _last(s):
        return None
    first = _first(graph, inside, s, place)
    if first is None or not _final(graph, s, first):
        return None
    rest = [d.name for d in s.dims if d.name not in free]
    loops = (*(d for d in rest if d in found), *(d for d in rest if d not in found), *free)
    parts = _parts(graph, s, extent.value, threads)
    return Scatter(s.name, first, Owners(s.target, place, parts), loops)


def _parts(graph: TensorGraph, s: Statement, extent: int, threads: int) -> int:
    """How many owners share `extent` indices."""
    if threads == 1 or volume(graph, (s.name,)) < SMALLEST_PARALLEL:
        return 1
    return max(1, min(extent, max(threads, min(PARTS_PER_THREAD * threads, MOST_PARTS))))


def _first(
    graph: TensorGraph, inside: Sequence[Statement], s: Statement, place: int
) -> tuple[str, ...] | None:
    """The statements that define the scatter's tensor before; None if owners cannot share them out."""
    found = []
    for w in graph.writers(s.target):
        if w.name == s.name:
            continue
        free = _written(w.write)
        plain = isinstance(w.write[place], IVar) and len(free) == len(w.write) == len(w.dims)
        if w.accumulate or w.reduction is not None or not plain or w not in inside or not _fixed(w.dims):
            return None
        if any(_entry(graph, s.target, r) and r.indices != w.write for r in statement_reads(w)):
            return None
        found.append(w.name)
    return tuple(found)


def _final(graph: TensorGraph, s: Statement, first: tuple[str, ...]) -> bool:
    """Do others find the tensor finished, and does nothing here read what is written here?"""
    readers = {r.name for r in graph.readers(s.target)}
    wanted = bool(readers) or graph.tensor(s.target).role is not Role.TEMP
    return (
        wanted
        and not readers & {s.name, *first}
        and not any(_entry(graph, s.target, r) for r in statement_reads(s))
    )


def _entry(graph: TensorGraph, target: str, r: Read) -> bool:
    """Is it the value that the memory of the target held before?"""
    return r.tensor == graph.tensor(target).alias


def _written(write: tuple[Index, ...]) -> tuple[str, ...]:
    """The dims that are indices of their own, each once."""
    return tuple(dict.fromkeys(i.name for i in write if isinstance(i, IVar)))


def _last(s: Statement) -> str | None:
    last = s.write[-1]
    return last.name if isinstance(last, IVar) else None


def _fixed(dims: tuple[IterDim, ...]) -> bool:
    return bool(dims) and all(isinstance(b, IConst) for d in dims for b in (d.lower, d.upper))


def _trip(d: IterDim) -> int:
    assert isinstance(d.lower, IConst) and isinstance(d.upper, IConst)  # `_fixed` asked
    return max(0, d.upper.value - d.lower.value)


def _depending(inside: Sequence[Statement], start: Statement) -> frozenset[str]:
    """Statements that need, by any way, what one computes, and further scatters to its tensor."""
    reached: set[str] = set()
    targets = {start.target}
    while more := [s for s in inside if s.name not in reached and _needs(s, start, targets)]:
        reached |= {s.name for s in more}
        targets |= {s.target for s in more}
    return frozenset(reached)


def _needs(s: Statement, start: Statement, targets: set[str]) -> bool:
    if s.accumulate and s.target in targets and s.name != start.name:
        return True
    return bool(targets & {r.tensor for r in statement_reads(s)})


def _restricted(phases: Sequence[Tree], keep: Set[str]) -> list[Tree]:
    parts = [restrict(phase, frozenset(keep)) for phase in phases]
    return [p for p in parts if p is not None]
