"""The passes over a graph before it is cut into clusters: `GRAPH_PASSES`, in order.

It comes out without what it need not compute, with numbers where they are read, and with contractions as
tiles take them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyfuse.cost.cpu_device import table_cpu
from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import Core, is_off
from polyfuse.ir.target import CpuTarget, Target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import recompute_numbers
from polyfuse.layers.graph.bucket_scans import bucket_scans
from polyfuse.layers.graph.cleanup.run import cleaned
from polyfuse.layers.graph.domains import dense_windows
from polyfuse.layers.graph.fission import distribute_functions, suggest_factoring
from polyfuse.layers.graph.grouped_reductions import grouped_columns
from polyfuse.layers.graph.guarded_products import guarded_products
from polyfuse.layers.graph.inline import inline_chosen
from polyfuse.layers.graph.quantized import with_one_sign
from polyfuse.layers.graph.reindex.div_mod_dims import split_div_mod_dims
from polyfuse.layers.graph.reindex.factor_rows import collapse_factor_rows
from polyfuse.layers.graph.scans.rewrite import parallel_recurrences, scans
from polyfuse.layers.graph.unroll_dims import unroll_reductions, unroll_short_dims, unroll_short_rows


@dataclass(frozen=True, slots=True)
class GraphContext:
    """What passes over a graph may ask, and where they put their decisions.

    checked: nothing that a checked build reports goes away.  strided: tensors whose memory is not dense.
    online: may reductions of a row be made in one pass?  disabled: names of passes that are switched off.
    parallel_scans: may linear recurrences lose their order?
    """

    decisions: list[Decision]
    target: Target
    core: Core
    checked: bool
    strided: frozenset[str] = frozenset()
    online: bool = True
    disabled: tuple[str, ...] = ()
    parallel_scans: bool = False

    @property
    def threads(self) -> int:
        """Of a CPU: what asks is not for other targets."""
        # Only a CPU has threads that share the loops of a kernel.
        assert isinstance(self.target, CpuTarget)
        return self.target.threads


@dataclass(frozen=True, slots=True)
class GraphPass:
    """A named rewrite of a graph, which records its own decisions; named as passes over loops are
    (`codegen.passes`). `on_gpu`: for a GPU, too."""

    name: str
    does: str
    run: Callable[[TensorGraph, GraphContext], TensorGraph]
    on_gpu: bool = False
    optional: bool = True

    @property
    def idea(self) -> str:
        """What it is a rule of: its name up to the colon."""
        return self.name.partition(":")[0]


def _inlined_choices(graph: TensorGraph, cx: GraphContext) -> TensorGraph:
    return graph if cx.checked else inline_chosen(graph, cx.decisions)


def _factoring_told(graph: TensorGraph, cx: GraphContext) -> TensorGraph:
    suggest_factoring(graph, cx.decisions)
    return graph


def _parallel_recurrences(graph: TensorGraph, cx: GraphContext) -> TensorGraph:
    return parallel_recurrences(graph, cx.decisions, cx.target) if cx.parallel_scans else graph


def _grouped(graph: TensorGraph, cx: GraphContext) -> TensorGraph:
    device = table_cpu(cx.threads) if cx.online else None
    return grouped_columns(graph, cx.decisions, cx.strided, device)


# What is for CPUs alone was measured there alone; most of it makes loops that vectors run along, or tiles. On
# a GPU the copy of contractions into their places would be a launch of its own.
GRAPH_PASSES = (
    GraphPass(
        "inline:choices", "elements that data choose are computed where they are chosen", _inlined_choices
    ),
    GraphPass(
        "scans:buckets",
        "reductions over what counts at most an index are scans over buckets: O(n + t) in place of O(n * t)",
        lambda g, cx: bucket_scans(g, cx.decisions),
        True,
    ),
    GraphPass(
        "scans:ranges",
        "reductions over ranges that grow with an index are scans: O(n) in place of O(n^2)",
        lambda g, cx: scans(g, cx.decisions, cx.target),
        True,
    ),
    GraphPass(
        "scans:recurrences",
        "linear recurrences of few rows are chunks that run at once, where `scan` allows it",
        _parallel_recurrences,
        True,
    ),
    GraphPass(
        "window-forms",
        "windows are loops over so many terms, of one reduction",
        lambda g, cx: dense_windows(g, cx.decisions),
    ),
    GraphPass(
        "guarded-products",
        "the condition of a product goes to the factor that it is about",
        lambda g, cx: guarded_products(g, cx.decisions, cx.core),
    ),
    GraphPass(
        "fission:functions",
        "functions that loops would repeat have statements of their own",
        lambda g, cx: distribute_functions(g, cx.decisions, cx.core),
    ),
    GraphPass(
        "unroll-dims:sums",
        "reductions over a few terms are written out",
        lambda g, cx: unroll_reductions(g, cx.decisions, cx.core),
    ),
    GraphPass("grouped-reductions", "sums of groups of columns go along whole rows", _grouped),
    GraphPass(
        "unroll-dims:rows",
        "results of few channels have a statement for each",
        lambda g, cx: unroll_short_rows(g, cx.decisions),
    ),
    GraphPass(
        "unroll-dims:temporaries",
        "temporaries with short last dims are a tensor for each element",
        lambda g, cx: unroll_short_dims(g, cx.decisions),
    ),
    GraphPass(
        "clean-up",
        "what need not be computed goes away; no bit of a result changes",
        lambda g, cx: cleaned(g, cx.decisions, checked=cx.checked),
        True,
    ),
    GraphPass("factoring", "sums that take fewer products as two sums are told", _factoring_told, True),
    GraphPass(
        "quantized:signs",
        "products of bytes have one factor with signs",
        lambda g, cx: with_one_sign(g, cx.decisions, cx.core),
    ),
    GraphPass(
        "reindex:div-mod-dims",
        "dims that a contraction reads by digits are two dims",
        lambda g, cx: split_div_mod_dims(g, cx.decisions),
    ),
    GraphPass(
        "reindex:factor-rows",
        "dims of one factor of a contraction become rows of its tiles",
        lambda g, cx: collapse_factor_rows(g, cx.decisions, cx.threads, cx.core),
    ),
    # On a GPU, waiting for a number is a barrier of the grid; on a CPU it is a step of nanoseconds.
    GraphPass(
        "recompute-numbers",
        "single numbers are computed where they are read",
        lambda g, cx: recompute_numbers(g, cx.decisions, arguments=not cx.target.cheap_waits),
        True,
    ),
)


def prepared(graph: TensorGraph, cx: GraphContext) -> TensorGraph:
    """What clusters are made of."""
    for p in GRAPH_PASSES:
        off = p.optional and is_off(p.name, cx.disabled)
        if not off and (p.on_gpu or cx.target.vector_loops):
            graph = p.run(graph, cx)
    return graph
