"""Names for what a rewrite adds: of statements, tensors and loops that nothing else is called by.

User names may look like generated ones (``s__init``), so a free name is sought, never assumed.
"""

from __future__ import annotations

from polyfuse.ir.tensor_graph import TensorGraph


def fresh_name(graph: TensorGraph, wish: str) -> str:
    """`wish`, with underscores after it until no statement, tensor, dim or size of the graph has the name."""
    taken = {s.name for s in graph.statements} | {t.name for t in graph.tensors} | set(graph.sizes)
    taken |= {d.name for s in graph.statements for d in s.dims}
    while wish in taken:
        wish += "_"
    return wish
