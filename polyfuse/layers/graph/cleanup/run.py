"""All of the clean-up, in order.

    TensorGraph --fold_indices--> --fold_constants, simplify, narrow_clamps--> --narrow_integers-->
                --merge_equal--> --remove_unused--> --write_directly--> TensorGraph

Every pass takes a graph and a list that it adds its decisions to, and gives the same graph (the same object)
where it has nothing to do.
"""

from __future__ import annotations

from polyfuse.decisions import Decision
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.graph.cleanup.merge import merge_equal
from polyfuse.layers.graph.cleanup.narrowing import narrow_clamps, narrow_integers
from polyfuse.layers.graph.cleanup.simplify import PASSES, fold_constants, fold_indices, simplify, unchecked
from polyfuse.layers.graph.cleanup.unused import remove_unused, write_directly


def cleaned(graph: TensorGraph, decisions: list[Decision], *, checked: bool) -> TensorGraph:
    """The graph without what it need not compute; results keep their bits. `checked`: see `remove_unused`."""
    graph = fold_indices(graph if checked else unchecked(graph), decisions)
    for _ in range(PASSES):
        before = graph
        graph = narrow_clamps(simplify(fold_constants(graph, decisions), decisions), decisions)
        if graph is before:
            break
    graph = narrow_integers(graph, decisions)
    graph = remove_unused(merge_equal(graph, decisions), decisions, checked=checked)
    return write_directly(graph, decisions)
