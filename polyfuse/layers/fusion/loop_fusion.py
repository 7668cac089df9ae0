"""Layer I: loop fusion.

Finds the common parallel band of an operator and the phases under it, fuses the statements of a phase
into one nest, and rewrites the graph where that pays (rematerialisation, collapsed dims).  Two
schedulers give trees: the axis planner (the default for what it covers) and isl's; legality is
proved for either by `poly.legality.schedules`, on every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from polyfuse.decisions import Decision
from polyfuse.diagnostics import ArgumentError, ScheduleError
from polyfuse.ir.schedule_tree import ScheduledGraph, Tree, sequence, statements
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.micro_graphs import micro_graphs
from polyfuse.layers.fusion.rematerialise import rematerialise
from polyfuse.layers.graph.domains import split_index_sets
from polyfuse.layers.graph.inline import cache_read, decompose_argmax, inline_views
from polyfuse.layers.graph.reindex.collapse import collapse
from polyfuse.poly.legality.kept_storage import Kept, require_storage, storage_order
from polyfuse.poly.legality.schedules import Legal, Verdict, check_schedule, mark_bands
from polyfuse.poly.model.domains import build_model, fixed_sizes_needed
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.scheduling.axes import find_axes
from polyfuse.poly.scheduling.axis_planner import plan, strongly_connected
from polyfuse.poly.scheduling.isl_scheduler import ScheduleTimeout
from polyfuse.poly.scheduling.isl_scheduler import schedule as isl_schedule
from polyfuse.poly.scheduling.own_order import own_order

Scheduler = Literal["auto", "axes", "isl"]
Partition = Literal["whole", "rules"]


@dataclass(frozen=True, slots=True)
class LoopFusion:
    """Layer I as a pass: statements share loops, in kernels of one phase each.

    Parameters
    ----------
    scheduler
        "axes": the axis planner; "isl": isl's scheduler; "auto": the planner, and isl's where the planner
        gives up (a recurrence along no single axis).
    partition
        What shares loops: "whole", all that can; "rules", Apollo's micro-graphs, which end at a reduction
        (`layers.fusion.micro_graphs`).
    rematerialise
        Recompute cheap elementwise producers in later phases where that moves fewer bytes.
    collapse
        Merge adjacent dims that are always used together (needs known sizes and dense inputs).
    cache_reads
        Inputs to read once into a temporary that their readers share.
    strided
        Inputs whose memory is not dense; they take part in no collapse.
    late
        Where isl does not answer within its limit: leave the graph unfused, or raise ScheduleTimeout, so that
        it can be cut (`polyfuse.driver.feedback`).

    Notes
    -----
    Apollo (MLSys 2022), section 4.1.

    Examples
    --------
    >>> stage = pf.stdlib.softmax.specialize(B_0=64, H=128).schedule()
    >>> stage.apply(pf.LoopFusion(rematerialise=False)).shape
    'B1([B1(m); B1(e+s); B1(y)])'
    """

    scheduler: Scheduler = "auto"
    partition: Partition = "whole"
    rematerialise: bool = True
    collapse: bool = True
    cache_reads: tuple[str, ...] = ()
    strided: tuple[str, ...] = ()
    late: Literal["unfused", "raise"] = "unfused"

    def run(self, before: ScheduledGraph) -> ScheduledGraph:
        """A fused schedule in place of `before`. Raises ScheduleError if none can be proved legal."""
        return self.schedule(before.graph, before.decisions)

    def schedule(self, graph: TensorGraph, earlier: tuple[Decision, ...] = ()) -> ScheduledGraph:
        """A fused schedule of a `graph`, after `earlier` decisions. Raises ScheduleError if none can be
        proved legal."""
        graph = decompose_argmax(graph)
        decisions: list[Decision] = list(earlier)
        for tensor in self.cache_reads:
            if tensor not in graph.inputs:
                names = ", ".join(graph.inputs)
                raise ArgumentError(f"there is no input '{tensor}'", code="PF416", hint=f"there are {names}")
            graph = cache_read(graph, tensor)
            decisions.append(Decision("cache_read", tensor, True, "asked for"))
        if self.collapse:
            graph = collapse(graph, decisions, frozenset(self.strided))
        graph = inline_views(graph, decisions)
        planner = self._planner(decisions)
        tree = planner(graph)
        if self.rematerialise:
            graph, tree = rematerialise(graph, tree, planner, decisions)
        unsplit = graph
        graph = split_index_sets(graph, decisions)
        if graph is not unsplit:
            tree = planner(graph)
        require_legal(graph, tree)
        how = f"{self.scheduler} scheduling" + " of micro-graphs" * (self.partition == "rules")
        decisions.append(Decision("schedule", graph.name, True, f"legal, by {how}"))
        return ScheduledGraph(graph, tree, tuple(decisions))

    def _planner(self, decisions: list[Decision]) -> Callable[[TensorGraph], Tree]:
        def choose(graph: TensorGraph) -> Tree:
            if self.partition == "rules":
                return sequence([_planned(graph, part, schedule_by_isl) for part in micro_graphs(graph)])
            if self.scheduler == "isl":
                return schedule_by_isl(graph)
            try:
                return plan(graph)
            except ScheduleError as refused:
                if self.scheduler == "axes" or refused.code != "PF510":
                    raise
                decisions.append(Decision("axis planner", graph.name, False, refused.diagnostics[0].message))
            try:
                return schedule_by_isl(graph)
            except ScheduleTimeout as late:
                if self.late == "raise":
                    raise
                # Fusion is an offer.
                decisions.append(Decision("isl scheduler", graph.name, False, late.diagnostics[0].message))
                return identity_schedule(graph).tree

        return choose


def schedule_by_isl(graph: TensorGraph) -> Tree:
    """isl's schedule. Raises ScheduleError for sizes that must be known first, limits, infeasibility."""
    _require_sizes(graph)
    with isl_lock:
        tree = isl_schedule(build_model(graph))
    # isl knows nothing of statements without instances.  They go first: all that can come of one is the
    # neutral element that an empty reduction leaves.
    missing = [s.name for s in graph.statements if s.name not in statements(tree)]
    return sequence([*(plan(graph, (name,)) for name in missing), tree])


def in_own_order(graph: TensorGraph) -> Tree:
    """Recurrences in their own order, found without isl's scheduler. Raises ScheduleError for sizes that must
    be known first, and where no such order is found."""
    _require_sizes(graph)
    return own_order(graph)


def _require_sizes(graph: TensorGraph) -> None:
    needed = fixed_sizes_needed(graph)
    if needed:
        raise ScheduleError(
            f"the schedule needs the value of {', '.join(needed)}, which make an index non-affine",
            code="PF513",
            span=graph.span,
            hint="give them to specialize()",
        )


def identity_schedule(graph: TensorGraph) -> ScheduledGraph:
    """No fusion: each statement in loops of its own, in dependence order.

    Statements of one recurrence share the loops they must share.  isl's scheduler is never asked.
    """
    graph = decompose_argmax(graph)
    parts = [_planned(graph, part, in_own_order) for part in recurrences(graph)]
    return ScheduledGraph(graph, sequence(parts))


def _planned(graph: TensorGraph, part: tuple[str, ...], otherwise: Callable[[TensorGraph], Tree]) -> Tree:
    """The axis planner's tree of some statements; where it gives up, another scheduler's."""
    try:
        return plan(graph, part)
    except ScheduleError as refused:
        if refused.code != "PF510":
            raise
        return otherwise(replace(graph, statements=tuple(s for s in graph.statements if s.name in part)))


def recurrences(graph: TensorGraph) -> list[tuple[str, ...]]:
    """Statements grouped by recurrence (one of none is a group of its own), in dependence order."""
    successors: dict[str, list[str]] = {s.name: [] for s in graph.statements}
    for e in find_axes(graph).edges:
        successors[e.source].append(e.sink)
    return [tuple(p) for p in strongly_connected(tuple(successors), successors)]


def require_legal(graph: TensorGraph, tree: Tree) -> Verdict:
    """Prove the tree legal, or raise ScheduleError with the witness. Sizes isl cannot carry are left open."""
    if sorted(statements(tree)) != sorted(s.name for s in graph.statements):
        raise ScheduleError("a schedule tree must hold each statement of the graph once", span=graph.span)
    if fixed_sizes_needed(graph):
        return Legal()  # proved when the sizes are known, before any kernel is made
    with isl_lock:
        verdict = check_schedule(build_model(graph), tree)
    if isinstance(verdict, Legal):
        return verdict
    raise ScheduleError([verdict.diagnostic])


def proved(graph: TensorGraph, tree: Tree, kept: Sequence[Kept] = ()) -> Tree:
    """A tree that was made by hand, with the loops that may run in parallel and the bands that are permutable
    marked: both follow from dependences, those of the storage that is `kept` among them. Raises ScheduleError
    with the witness if the tree is illegal, PF542 where the storage does not suffice.

    Where isl needs the values of sizes first, the marks stay as they are.
    """
    require_legal(graph, tree)
    if fixed_sizes_needed(graph):
        return tree
    with isl_lock:
        model = build_model(graph)
        require_storage(model, tree, kept)
        return mark_bands(model, tree, storage_order(model, kept))
