"""Recompute rather than store what goes from one group of nests to another, where that is faster.

    e[t, h] = exp(x[t, h] - m[t]);  d[t] = sum[h](e[t, h])    in one kernel
    y[t, h] = e[t, h] / d[t]                                  in the next

moves e twice; with exp(x[t, h] - m[t]) in its place y reads x and m instead.  Layer I does the same by bytes
alone and before it is known what shares a kernel; here the cost model has groups to judge, and weighs
operations as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from polyfuse.cost.stitching_gain import MARGIN, StitchingCost
from polyfuse.ir.functions import has_function
from polyfuse.ir.schedule_tree import Tree, restrict, statements
from polyfuse.ir.target import Target
from polyfuse.ir.tensor_graph import Role, TensorGraph, depends_on, plain_variables, statement_reads
from polyfuse.layers.functions_apart import FEWEST_AGAIN
from polyfuse.layers.group_figures import Figures
from polyfuse.layers.groups import Group
from polyfuse.layers.nest import volume
from polyfuse.layers.rewrites import inlinable, inline

# Functions of fewer elements take no longer than a kernel of their own.
FEWEST_REPEATED = 8192


def crossing(graph: TensorGraph, groups: Sequence[Group]) -> Iterator[str]:
    """Temporaries that go from one group to another and could be recomputed, in order of the graph."""
    place = {n: k for k, g in enumerate(groups) for n in g.names}
    for t in graph.tensors:
        if t.role is not Role.TEMP or not t.shape:
            continue
        made = {place[s.name] for s in graph.writers(t.name)}
        if {place[s.name] for s in graph.readers(t.name)} - made and inlinable(graph, t.name) is not None:
            yield t.name


def without(graph: TensorGraph, trees: Iterable[Tree]) -> list[Tree]:
    """Trees without the statements that a graph has no more."""
    keep = frozenset(s.name for s in graph.statements)
    return [r for t in trees if (r := restrict(t, keep)) is not None]


def saved_seconds(
    graph: TensorGraph, groups: Sequence[Group], tensor: str, target: Target, cost: StitchingCost
) -> float:
    """What the groups as they are gain if a temporary is recomputed (negative: lose); 0.0 if that is within
    what the model is wrong by, or if vector loops would repeat a function: the model counts its values."""
    if target.vector_loops and _repeats(graph, tensor):
        return 0.0
    now = Figures(graph, target)
    before = cost.seconds([now(g) for g in groups])
    fewer = inline(graph, tensor)
    then = Figures(fewer, target)
    left = [g for h in groups if (g := _restricted(fewer, h)) is not None]
    after = cost.seconds([then(g) for g in left])
    return before - after if max(before, after) > min(before, after) * MARGIN else 0.0


def _repeats(graph: TensorGraph, tensor: str) -> bool:
    """Would loops compute the functions of a temporary again and again, innermost, if its readers did it?"""
    producer = inlinable(graph, tensor)
    if producer is None or not has_function(producer.expr):
        return False
    size = volume(graph, (producer.name,))
    return any(
        depends_on(*r.indices) & (plain_variables(s.write[-1:]) | set(s.reduction_dims))
        for s in graph.readers(tensor)
        for r in statement_reads(s)
        if r.tensor == tensor and volume(graph, (s.name,)) >= max(FEWEST_AGAIN * size, FEWEST_REPEATED)
    )


def _restricted(graph: TensorGraph, group: Group) -> Group | None:
    phases = tuple(without(graph, group.phases))
    inside = frozenset(n for p in phases for n in statements(p))
    return Group(tuple(m.restricted(inside) for m in group.rows), phases) if phases else None
