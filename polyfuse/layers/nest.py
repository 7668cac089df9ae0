"""A nest of loops laid out for a target: what mapping gives, and questions about loops that it asks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from polyfuse.cost.extents import extents
from polyfuse.ir.index_expr import IConst, IVar, as_index, evaluate, sizes, variables
from polyfuse.ir.kernel import Owners
from polyfuse.ir.schedule_tree import Band, Leaf, Member, Sequence, Tree, band, sequence, statements
from polyfuse.ir.tensor_graph import IterDim, Statement, TensorGraph
from polyfuse.ir.work import work as work_of


@dataclass(frozen=True, slots=True)
class Nest:
    """`threads` (x, y), `vector` and `owners` are those of `ir.kernel.Kernel`; statements in `atomic` update
    memory that other threads update as well; `shared` are rows that are to stay in shared memory."""

    tree: Tree
    threads: tuple[int, int] = (1, 1)
    vector: int = 1
    atomic: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    owners: Owners | None = None


def racing(graph: TensorGraph, m: Member, names: tuple[str, ...]) -> tuple[str, ...]:
    """Reductions whose updates of one element are spread over iterations of a loop."""
    found = []
    for n in names:
        s = graph.statement(n)
        if s.reduction is None or n not in dict(m.exprs):
            continue
        written = {i.name for i in s.write if isinstance(i, IVar)}
        used = set(variables(m.of(n)))
        if not used or not used <= written:
            found.append(n)
    return tuple(found)


def is_free(graph: TensorGraph, m: Member, names: tuple[str, ...]) -> bool:
    """May the iterations run at the same time, every element being updated by one of them only?"""
    return m.coincident and not racing(graph, m, names)


def has_band(tree: Tree) -> bool:
    match tree:
        case Band():
            return True
        case Sequence(children):
            return any(has_band(c) for c in children)
        case Leaf():
            return False


def side_by_side(tree: Tree) -> list[Tree]:
    """The nests of a tree that follow one another: neighbouring leaves are one, every other child stands for
    itself."""
    groups: list[list[Tree]] = []
    for c in tree.children if isinstance(tree, Sequence) else (tree,):
        if groups and isinstance(c, Leaf) and isinstance(groups[-1][-1], Leaf):
            groups[-1].append(c)
        else:
            groups.append([c])
    return [sequence(g) for g in groups]


def innermost(tree: Tree) -> list[Band]:
    """The bands with no band below."""
    match tree:
        case Leaf():
            return []
        case Sequence(children):
            return [b for c in children for b in innermost(c)]
        case Band(_, child):
            return innermost(child) or [tree]


def span_of(graph: TensorGraph, m: Member) -> range | None:
    """The iterations of a loop that is a plain dim with constant bounds, else None."""
    dims = [dim_of(graph.statement(n), e.name) if isinstance(e, IVar) else None for n, e in m.exprs]
    bounds = [
        (d.lower.value, d.upper.value)
        for d in dims
        if d is not None and isinstance(d.lower, IConst) and isinstance(d.upper, IConst)
    ]
    if len(bounds) < len(dims):
        return None
    return range(min(low for low, _ in bounds), max(high for _, high in bounds))


def trip_of(graph: TensorGraph, m: Member) -> int | None:
    """Iterations of a loop that is a plain dim with constant bounds, else None."""
    span = span_of(graph, m)
    return None if span is None else len(span)


def most_trips(graph: TensorGraph, m: Member) -> int | None:
    """Iterations of a loop that is a plain dim, at most: at a border those of a window are fewer."""
    lengths: list[int] = []
    for n, e in m.exprs:
        s = graph.statement(n)
        if not isinstance(e, IVar) or any(sizes(b) for d in s.dims for b in (d.lower, d.upper)):
            return None
        found = extents(s).get(e.name)
        if found is None:
            return None
        lengths.append(found.high - found.low + 1)
    return max(lengths, default=None)


def without_units(graph: TensorGraph, tree: Tree) -> Tree:
    """The tree without loops of one iteration, which would pass for parallel ones or for vectors."""
    match tree:
        case Leaf():
            return tree
        case Sequence(children):
            return Sequence(tuple(without_units(graph, c) for c in children))
        case Band(members, child, permutable):
            kept = [m for m in members if trip_of(graph, m) != 1]
            return band(kept, without_units(graph, child), permutable)


def iterations(graph: TensorGraph, members: tuple[Member, ...]) -> int:
    """Iterations of several loops; one that is not known counts as many."""
    return prod(t if (t := trip_of(graph, m)) is not None else 1024 for m in members)


def dim_of(s: Statement, name: str) -> IterDim | None:
    return next((d for d in s.dims if d.name == name), None)


def volume(graph: TensorGraph, names: tuple[str, ...]) -> int:
    """Instances of the largest statement; a size that is not known counts as large."""
    largest = 0
    for n in names:
        count = 1
        for d in graph.statement(n).dims:
            known = isinstance(d.lower, IConst) and isinstance(d.upper, IConst)
            count *= max(0, d.upper.value - d.lower.value) if known else 1024  # type: ignore[union-attr]
        largest = max(largest, count)
    return largest


def work(graph: TensorGraph, names: tuple[str, ...]) -> int:
    """What there is to compute, in instances of a plain statement (`ir.work`)."""
    counts = ((graph.statement(n), as_index(volume(graph, (n,)))) for n in names)
    return evaluate(work_of(counts), {})


def heavy(graph: TensorGraph, names: tuple[str, ...]) -> tuple[str, ...]:
    """The statements that matter for time: those with an eighth or more of the largest one's instances."""
    counts = {n: volume(graph, (n,)) for n in names}
    most = max(counts.values(), default=0)
    return tuple(n for n, count in counts.items() if count * 8 >= most)


def push(m: Member, tree: Tree) -> Tree:
    """Put a loop inside everything below."""
    match tree:
        case Band(members, child, permutable) if has_band(child):
            return Band(members, push(m, child), permutable)
        case Band(members, child, permutable):
            return Band((*members, _restricted(m, child)), child, permutable)
        case Sequence(children) if has_band(tree):
            return Sequence(tuple(push(m, c) for c in children))
        case _:
            return Band((_restricted(m, tree),), tree, True)


def _restricted(m: Member, tree: Tree) -> Member:
    return m.restricted(frozenset(statements(tree)))
