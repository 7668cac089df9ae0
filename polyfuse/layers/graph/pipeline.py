"""A graph as it is cut into clusters: without what it need not compute, numbers where they are read, and with
contractions as tiles take them."""

from __future__ import annotations

from polyfuse.cost.cpu_device import table_cpu
from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.target import CpuTarget, Target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import recompute_numbers
from polyfuse.layers.graph.cleanup.run import cleaned
from polyfuse.layers.graph.domains import with_window_forms
from polyfuse.layers.graph.fission import functions_apart, suggest_factoring
from polyfuse.layers.graph.grouped_reductions import grouped_columns
from polyfuse.layers.graph.guarded_products import guarded_products
from polyfuse.layers.graph.inline import compute_chosen
from polyfuse.layers.graph.quantized import with_one_sign
from polyfuse.layers.graph.reindex.div_mod_dims import split_digit_dims
from polyfuse.layers.graph.reindex.factor_rows import join_row_dims
from polyfuse.layers.graph.unroll_dims import split_short_dims, split_short_rows, write_out


def prepared(
    graph: TensorGraph,
    decisions: list[Decision],
    target: Target,
    core: Core | None = None,
    *,
    checked: bool,
    strided: frozenset[str] = frozenset(),
    online: bool = True,
) -> TensorGraph:
    """What clusters are made of; `checked`: nothing that a checked build reports goes away; `strided` names
    tensors whose memory is not dense; `online`: may reductions of a row be made in one pass?"""
    # What follows was measured on CPUs alone; most of it makes loops that vectors run along, or tiles.
    threads = target.threads if isinstance(target, CpuTarget) else None
    if threads is not None:
        graph = with_window_forms(graph if checked else compute_chosen(graph, decisions), decisions)
        on = core or Core()
        graph = guarded_products(graph, decisions, on)
        graph = write_out(functions_apart(graph, decisions, on), decisions, on)
        graph = grouped_columns(graph, decisions, strided, table_cpu(threads) if online else None)
        graph = split_short_dims(split_short_rows(graph, decisions), decisions)
    clean = cleaned(graph, decisions, checked=checked)
    suggest_factoring(clean, decisions)
    if threads is not None:
        clean = with_one_sign(clean, decisions, core or Core())
        # On a GPU, where that is not measured, the copy into their places would be a launch of its own.
        clean = split_digit_dims(clean, decisions)
        clean = join_row_dims(clean, decisions, threads, core)
    # On a GPU, waiting for a number is a barrier of the grid; on a CPU it is a step of nanoseconds.
    return recompute_numbers(clean, decisions, arguments=not target.cheap_waits)
