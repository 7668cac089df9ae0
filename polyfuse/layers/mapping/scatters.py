"""Owner computes: scatters of rows on a CPU; every worker makes all updates of elements that are its own.

    y[dst[e], f] += x[src[e], f]      becomes, for parts of the rows n of y, in parallel,
                                      y[n, f] = 0               for rows n of the part
                                      y[dst[e], f] += ...       for those e whose row is of the part

Nothing is shared, so there is nothing to make atomic and no partial result to add up: each element is updated
by one worker, in the order of e, whatever the number of parts.  What a worker looks through in vain are
indices, a word for each row of features.  Where the destinations are sorted, stretches of them are passed by
at a glance, and those of a row that follow each other are added up in registers
(`codegen.cpu.scatter_printer`).

Where the result is small beside the updates, parts of these have a copy of the result each instead
(`layers.mapping.scatter_copies`), which is all theirs: nothing is looked through in vain, nor is any worker
idle where most updates are of a few rows.  Short rows have owners only where copies are too large, single
elements none.

A scatter is given to owners if one of its indices is data and the loops over the others make it worth
while.  What is scattered is computed before, what needs the result comes after.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from math import prod

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.cost.extents import OPEN_SIZE
from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.index_expr import IConst, IVar, variables
from polyfuse.ir.kernel import Owners
from polyfuse.ir.schedule_tree import Band, Leaf, Member, Tree, restrict, sequence, statements
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
from polyfuse.layers.graph.names import depending
from polyfuse.layers.mapping.cpu import factored, map_phase, vectorise
from polyfuse.layers.mapping.nests import Nest, span_of, volume
from polyfuse.layers.mapping.scatter_copies import worth_copying


@dataclass(frozen=True, slots=True)
class Scatter:
    """A scatter with the statements that define its tensor before, and who owns what, or each a copy."""

    statement: str
    first: tuple[str, ...]
    owners: Owners | None
    loops: tuple[str, ...]
    copies: bool


def around_scatters(
    graph: TensorGraph, phases: Sequence[Tree], threads: int, core: Core
) -> list[list[Tree] | Scatter]:
    """Phases as parts that run one after the other, cut around the scatters that have owners."""
    names = {n for phase in phases for n in statements(phase)}
    inside = [s for s in graph.statements if s.name in names]
    for s in inside:
        found = scatter_of(graph, inside, s, threads, core)
        if found is None:
            continue
        later = depending(graph, s, names)
        own = {found.statement, *found.first}
        if later & own:
            continue  # a recurrence
        return [
            *around_scatters(graph, _restricted(phases, names - later - own), threads, core),
            found,
            *around_scatters(graph, _restricted(phases, later), threads, core),
        ]
    return [list(phases)] if phases else []


def map_scatter(
    graph: TensorGraph, found: Scatter, threads: int, decisions: list[Decision], knobs: CpuKnobs
) -> tuple[TensorGraph, list[Nest]]:
    """The nests of a scatter: what defines its tensor, then the updates, row by row."""
    s = graph.statement(found.statement)
    first = [_loops(graph.statement(n), _written(graph.statement(n).write)) for n in found.first]
    updates = _loops(s, found.loops)
    if found.copies:
        return _copied(graph, first, updates, found.owners, threads, decisions, knobs)
    assert found.owners is not None  # one of both
    parts = found.owners.parts
    why = f"{parts} workers' shares of {s.target}: each is updated by its owner alone, row by row"
    if parts == 1:
        why = "too few updates for several workers: row by row, in registers where rows follow each other"
    decisions.append(Decision("owner computes", s.target, parts > 1, why))
    nest = vectorise(graph, sequence([*first, updates]), threads, decisions, knobs)
    return graph, [Nest(nest, owners=found.owners)]


def _copied(
    graph: TensorGraph,
    first: Sequence[Band],
    updates: Band,
    owners: Owners | None,
    threads: int,
    decisions: list[Decision],
    knobs: CpuKnobs,
) -> tuple[TensorGraph, list[Nest]]:
    """The updates over parts, each the owner of a copy."""
    nests: list[Tree] = []
    for nest in first:
        graph, mapped = map_phase(graph, nest, threads, decisions, knobs)
        nests += mapped
    (name,) = statements(updates)
    span = span_of(graph, updates.members[0])
    assert span is not None  # bounds are fixed
    graph, (own, *ends) = factored(graph, updates, (name,), span, threads, decisions, knobs)
    copies = next(s.target for s in map(graph.statement, statements(own)) if s.accumulate)
    inside = Nest(own, owners=owners and Owners(copies, owners.place + 1, 1))
    return graph, [*map(Nest, nests), inside, *map(Nest, ends)]


def _loops(s: Statement, order: Iterable[str]) -> Band:
    """A statement in loops of its own."""
    return Band(
        tuple(Member(d, ((s.name, IVar(d)),), d in _written(s.write)) for d in order), Leaf(s.name), True
    )


def scatter_of(
    graph: TensorGraph, inside: Sequence[Statement], s: Statement, threads: int, core: Core
) -> Scatter | None:
    """A scatter that owners are to run, among the statements `inside`; else None."""
    free = _written(s.write)
    keys = [i for i in s.write if isinstance(i, EXPR_TYPES)]
    found = depends_on(*keys)
    rest = [d.name for d in s.dims if d.name not in free]
    if not s.accumulate or not _are_extents(s.dims) or not free or not found & set(rest):
        return None
    parallel = threads > 1 and volume(graph, (s.name,)) >= FITTED.mapping_smallest_parallel
    loops = (*(d for d in rest if d in found), *(d for d in rest if d not in found), *free)
    wide = next(_trip(d) for d in s.dims if d.name == loops[0]) >= threads
    copies = parallel and wide and not graph.sizes and worth_copying(graph, (s.name,), threads, core)
    owners = _owners(graph, s, free, threads if parallel else 1)
    short = prod(_trip(d) for d in s.dims if d.name in free) < FITTED.scatters_fewest_together
    if short and (copies or not parallel):
        owners = None
    if owners is None and not (copies and short):
        return None
    first = _first(graph, inside, s)
    if first is None or not _final(graph, s, first):
        return None
    return Scatter(s.name, first, owners, loops, copies)


def _owners(graph: TensorGraph, s: Statement, free: tuple[str, ...], threads: int) -> Owners | None:
    """Who owns which rows of a scatter's result; None where it has none."""
    places = [k for k, i in enumerate(s.write) if isinstance(i, EXPR_TYPES)]
    extent = graph.tensor(s.target).shape[places[0]]
    together = prod(_trip(d) for d in s.dims if d.name in free)
    rows = len(places) == 1 and places[0] < len(s.write) - 1 and len(free) == len(s.write) - 1
    if not rows or variables(extent) or together < FITTED.scatters_fewest_owned or free[-1] != _last(s):
        return None
    (key,) = (s.write[k] for k in places)
    if depends_on(key) & set(free):
        return None
    long = together * s.expr.dtype.bytes >= FITTED.scatters_long_row
    parts = (
        max(threads, min(FITTED.scatters_parts_per_thread * threads, FITTED.scatters_most_parts))
        if long and threads > 1
        else threads
    )
    most = extent.value if isinstance(extent, IConst) else parts
    return Owners(s.target, places[0], max(1, min(most, parts)))


def _first(graph: TensorGraph, inside: Sequence[Statement], s: Statement) -> tuple[str, ...] | None:
    """The statements that define the scatter's tensor before; None if owners cannot share them out."""
    found = []
    for w in graph.writers(s.target):
        if w.name == s.name:
            continue
        free = _written(w.write)
        plain = len(free) == len(w.write) == len(w.dims)
        if (
            w.accumulate
            or w.reduction is not None
            or not plain
            or w not in inside
            or not _are_extents(w.dims)
        ):
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


def _are_extents(dims: tuple[IterDim, ...]) -> bool:
    """Are the bounds of dims numbers and sizes?"""
    return bool(dims) and not any(variables(b) for d in dims for b in (d.lower, d.upper))


def _trip(d: IterDim) -> int:
    """How long a dim is, a usual number where that is open."""
    if isinstance(d.lower, IConst) and isinstance(d.upper, IConst):
        return max(0, d.upper.value - d.lower.value)
    return OPEN_SIZE


def _restricted(phases: Sequence[Tree], keep: Set[str]) -> list[Tree]:
    parts = [restrict(phase, frozenset(keep)) for phase in phases]
    return [p for p in parts if p is not None]
