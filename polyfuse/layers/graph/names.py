"""Names for what a rewrite adds: of statements, tensors and loops that nothing else is called by.

User names may look like generated ones (``s__init``), so a free name is sought, never assumed.

`depending` says which statements of a graph need what one computes.
"""

from __future__ import annotations

from collections.abc import Set

from polyfuse.ir.tensor_graph import Statement, TensorGraph


def fresh_name(graph: TensorGraph, wish: str) -> str:
    """`wish`, with underscores after it until no statement, tensor, dim or size of the graph has the name."""
    taken = {s.name for s in graph.statements} | {t.name for t in graph.tensors} | set(graph.sizes)
    taken |= {d.name for s in graph.statements for d in s.dims}
    while wish in taken:
        wish += "_"
    return wish


# --- who needs whom ---------------------------------------------------------------------------------------


def depending(graph: TensorGraph, start: Statement, inside: Set[str] | None = None) -> frozenset[str]:
    """Statements, of all or of these inside, that need by any way through them what one computes, or add to
    its tensor; the statement itself where it is a recurrence."""
    reached: set[str] = set()
    targets, waiting = {start.target}, [start.target]
    while waiting:
        target = waiting.pop()
        adding = (t for t in graph.writers(target) if t.accumulate and t.name != start.name)
        for t in (*graph.readers(target), *adding):
            if inside is not None and t.name not in inside:
                continue
            reached.add(t.name)
            if t.target not in targets:
                targets.add(t.target)
                waiting.append(t.target)
    return frozenset(reached)
