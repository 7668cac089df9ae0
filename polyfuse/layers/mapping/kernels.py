"""From a scheduled graph to kernels: one kernel for each phase, storage for what lives between them.

phases            the tree is cut where a parallel band has several nests under it
map               coordinates (blk, vec) for the target; may split reductions over blocks (rfactor)
reductions        made explicit: an initialising statement before the first reduction loop
buffers           temporaries of one kernel are contracted, the others are global
legality          of everything together, and of every parallel loop

`entry_copies` says whether an inout parameter may be written in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Phase, Scope, Stage, tree
from polyfuse.ir.schedule_tree import (
    Band,
    Coordinate,
    Leaf,
    Member,
    ScheduledGraph,
    Sequence,
    Tree,
    members_of,
    sequence,
    sequential,
    statements,
)
from polyfuse.ir.target import Target, as_target
from polyfuse.ir.tensor_graph import Role, TensorGraph, statement_reads
from polyfuse.layers.mapping.cpu import apart_from_steps, parts_of_step, time_loop
from polyfuse.layers.mapping.cpu_storage import Extents
from polyfuse.layers.mapping.nests import Nest, side_by_side
from polyfuse.layers.mapping.reductions import explicit_reductions
from polyfuse.layers.mapping.targets import Storage, TargetMapping, mapping_of
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.poly.legality.schedules import (
    Illegal,
    Legal,
    Verdict,
    check_schedule,
    earlier_than,
    parallel,
    races,
)
from polyfuse.poly.model.dependences import anti, ordering
from polyfuse.poly.model.domains import PolyModel, build_model, fixed_sizes_needed
from polyfuse.poly.model.isl_bridge import isl_lock

# Coordinates whose every value updates elements of its own.
_EXCLUSIVE = (Coordinate.BLK, Coordinate.ROW, Coordinate.THREAD)


def form_kernels(
    scheduled: ScheduledGraph, target: Target | int, stitching: Stitching | None = None
) -> tuple[KernelGraph, tuple[Decision, ...]]:
    """Kernels for a target (a number is that of a CPU's threads): one per phase, or stitched (layer II).

    Raises ScheduleError PF513 for sizes that must be known, PF501-PF503 if the result is not legal.
    """
    made_for, more = as_target(target), list[Decision]()
    made, decisions = separate_kernels(scheduled, made_for, stitching)
    return joined_kernels(made, made_for, stitching, more), (*decisions, *more)


def separate_kernels(
    scheduled: ScheduledGraph,
    target: Target,
    stitching: Stitching | None = None,
    knobs: CpuKnobs | None = None,
    tiles: bool = True,
) -> tuple[KernelGraph, tuple[Decision, ...]]:
    """As `form_kernels`, without barriers between kernels; `knobs` are those of a CPU, and `tiles`, whether
    contractions are computed in tiles."""
    needed = fixed_sizes_needed(scheduled.graph)
    if needed:
        raise ScheduleError(f"sizes {', '.join(needed)} must be given before kernels are made", code="PF513")
    decisions: list[Decision] = []
    mapping = mapping_of(target, knobs or CpuKnobs())
    with isl_lock:
        graph, nests = scheduled.graph, list[Nest]()
        phases = cut_phases(scheduled.tree)
        if stitching is not None:
            graph, phases = stitching.run(graph, phases, target, decisions)
        graph, parts = mapping.parts(graph, phases, decisions) if tiles else (graph, [*phases])
        for part in parts:
            graph, mapped = mapping.mapped(graph, part, decisions)
            nests += mapped
        graph, trees = explicit_reductions(graph, [n.tree for n in nests])
        made = zip(nests, trees, strict=True)
        nests = [replace(n, tree=part) for n, t in made for part in apart_from_steps(t)]
        model = build_model(graph)
        _verify(model, nests)
        crossing = mapping.crossing(model, nests, decisions)
        kernels = [_kernel(model, n, k, mapping, crossing, decisions) for k, n in enumerate(nests)]
    return KernelGraph(graph, tuple(kernels)), tuple(decisions)


def joined_kernels(
    kernels: KernelGraph, target: Target, stitching: Stitching | None, decisions: list[Decision]
) -> KernelGraph:
    """Kernels joined by barriers as layer II has it."""
    barriers = False if stitching is None else stitching.barriers
    return mapping_of(target, CpuKnobs()).joined(kernels, barriers, decisions)


def cut_phases(whole: Tree) -> list[Tree]:
    """The nests that become kernels, in order.

        [A; B(t)[B(h)(s); m; B(h)(y)]]     becomes     A, B(t)B(h)(s), B(t)(m), B(t)B(h)(y)

    Only parallel bands are distributed over their phases; a loop that carries a recurrence stays whole.
    """
    match whole:
        case Leaf():
            return [whole]
        case Sequence():
            return [p for group in side_by_side(whole) for p in cut_phases_of(group)]
        case Band(members, child) if all(m.coincident for m in members):
            parts = [p for group in side_by_side(child) for p in cut_phases_of(group)]
            return [_wrap(members, part) for part in parts]
        case Band():
            return [whole]


def cut_phases_of(group: Tree) -> list[Tree]:
    return [group] if isinstance(group, Sequence) else cut_phases(group)


def _wrap(members: tuple[Member, ...], part: Tree) -> Tree:
    inside = frozenset(statements(part))
    outer = tuple(m.restricted(inside) for m in members)
    if isinstance(part, Band) and part.permutable and all(m.coincident for m in part.members):
        return replace(part, members=outer + part.members)
    return Band(outer, part, permutable=True)


# --- proof -----------------------------------------------------------------------------------------


def _verify(model: PolyModel, nests: Many[Nest]) -> None:
    """The final order is legal, and so is every loop that runs in parallel."""
    trees = [sequential(n.tree) for n in nests]
    verdict = check_schedule(model, sequence(trees))
    if isinstance(verdict, Illegal):
        raise ScheduleError([verdict.diagnostic])
    order = ordering(model)
    for t, nest in zip(trees, nests, strict=True):
        for m in members_of(t):
            if m.coordinate in (Coordinate.SEQ, Coordinate.TIME):
                continue
            verdict = parallel(model, t, m, order)
            if verdict and m.coordinate in _EXCLUSIVE:
                # Threads that share a ROUND combine what they have; the lanes of a vector are one thread.
                verdict = races(model, t, m, nest.atomic)
            if isinstance(verdict, Illegal):
                raise ScheduleError([verdict.diagnostic])


# --- storage -----------------------------------------------------------------------------------------


def _kernel(
    model: PolyModel,
    nest: Nest,
    number: int,
    mapping: TargetMapping,
    crossing: Mapping[str, Extents],
    decisions: list[Decision],
) -> Kernel:
    inside = frozenset(statements(nest.tree))
    graph = _subgraph(model.graph, inside)
    part = _submodel(model, graph, inside)
    storage = mapping.storage(graph, part, sequential(nest.tree), nest, decisions)
    buffers = [_buffer(model.graph, tensor.name, inside, storage, crossing) for tensor in graph.tensors]
    atomic = nest.atomic & inside
    return Kernel(
        f"k{number}",
        graph,
        (_stage(nest.tree),),
        storage.planned(tuple(buffers)),
        nest.threads,
        nest.vector,
        atomic,
        owners=nest.owners,
    )


def _stage(t: Tree) -> Stage:
    """The leading loops over blocks and their rows are the stage's band, or the loop over steps that workers
    share, whose parts are the phases."""
    time = time_loop(t)
    if isinstance(t, Band) and time is not None:
        return Stage((time,), tuple(map(Phase, parts_of_step(t.child))))
    if not isinstance(t, Band):
        return Stage((), (Phase(t),))
    outer = (Coordinate.BLK, Coordinate.ROW)
    blocks = [m for m in t.members if m.coordinate in outer]
    rest = [m for m in t.members if m.coordinate not in outer]
    inner = replace(t, members=tuple(rest)) if rest else t.child
    return Stage(tuple(blocks), (Phase(inner),))


def _subgraph(graph: TensorGraph, inside: frozenset[str]) -> TensorGraph:
    chosen = tuple(s for s in graph.statements if s.name in inside)
    touched = {s.target for s in chosen} | {r.tensor for s in chosen for r in statement_reads(s)}
    return replace(graph, statements=chosen, tensors=tuple(t for t in graph.tensors if t.name in touched))


def _submodel(model: PolyModel, graph: TensorGraph, inside: frozenset[str]) -> PolyModel:
    return replace(
        model,
        graph=graph,
        domains={n: d for n, d in model.domains.items() if n in inside},
        writes={n: a for n, a in model.writes.items() if n in inside},
        reads=tuple(a for a in model.reads if a.statement in inside),
        _memo={},
    )


def _buffer(
    whole: TensorGraph,
    name: str,
    inside: frozenset[str],
    own: Storage,
    crossing: Mapping[str, Extents],
) -> Buffer:
    """Storage of a tensor in the kernel of the statements `inside`; `own` chooses for what is its own."""
    tensor = whole.tensor(name)
    if tensor.role is not Role.TEMP:
        return Buffer(name, tensor.dtype, Scope.ARGUMENT, tensor.shape, tensor.shape)
    users = {s.name for s in (*whole.writers(name), *whole.readers(name))}
    if not users <= inside:
        reason = "written in one kernel and read in another"
        extents = crossing.get(name, tensor.shape)
        return Buffer(name, tensor.dtype, Scope.GLOBAL, extents, tensor.shape, reason)
    return own.buffer(name)


# --- inout parameters -------------------------------------------------------------------------------------

# On every right side an inout name means its value at entry.  In place, a write destroys the entry value
# of its element, so every read of that element must come before it (or be part of the same instance), in
# every order that parallel and vector loops allow.  Where that does not hold, the entry values are
# copied first, and the copy is recorded.


# Loops whose iterations are not ordered when they run.
_CONCURRENT = tuple(c for c in Coordinate if c not in (Coordinate.SEQ, Coordinate.TIME))


def entry_copies(kernels: KernelGraph) -> tuple[frozenset[str], tuple[Decision, ...]]:
    """Inout parameters whose entry values must be copied before the kernels run, and why."""
    copied: list[str] = []
    decisions: list[Decision] = []
    with isl_lock:
        aliases = [t.alias for t in kernels.graph.tensors if t.alias is not None]
        if not aliases:
            return frozenset(), ()
        model = build_model(kernels.graph)
        for name in aliases:
            verdict = _in_place(model, kernels, name)
            if isinstance(verdict, Legal):
                decisions.append(
                    Decision("in place", name, True, "each element is read before it is written")
                )
                continue
            copied.append(name)
            reason = "an element is read after it would be overwritten; its entry values are copied"
            decisions.append(Decision("in place", name, False, reason, str(verdict.witness)))
    return frozenset(copied), tuple(decisions)


def _in_place(model: PolyModel, kernels: KernelGraph, name: str) -> Verdict:
    """Legal if every read of an entry value comes before the write that replaces it."""
    pairs = anti(model, name)
    pairs = pairs.subtract(model.domain().identity())
    trees = [tree(k) for k in kernels.kernels]
    verdict = earlier_than(model, sequence(trees), pairs)
    if not verdict:
        return verdict
    for t in trees:
        inside = model.domain(sorted(statements(t)))
        mine = pairs.intersect_domain(inside).intersect_range(inside)
        for m in members_of(t, *_CONCURRENT):
            verdict = parallel(model, t, m, mine)
            if isinstance(verdict, Illegal):
                return verdict
    return Legal()
