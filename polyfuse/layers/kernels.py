"""From a scheduled graph to kernels: one kernel for each phase, storage for what lives between them.

phases            the tree is cut where a parallel band has several nests under it
map               coordinates (blk, vec) for the target; may split reductions over blocks (rfactor)
reductions        made explicit: an initialising statement before the first reduction loop
buffers           temporaries of one kernel are contracted, the others are global
legality          of everything together, and of every parallel loop
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from polyfuse.decisions import Decision, format_bytes
from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.cpu_knobs import CpuKnobs
from polyfuse.ir.index_expr import IConst, IndexExpr, evaluate, product, sizes
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Phase, Scope, Stage
from polyfuse.ir.schedule_tree import (
    Band,
    Coordinate,
    Leaf,
    Member,
    Sequence,
    Tree,
    members_of,
    path,
    sequence,
    sequential,
    statements,
)
from polyfuse.ir.scheduled import ScheduledGraph
from polyfuse.ir.tensor_graph import Role, TensorGraph, statement_reads
from polyfuse.layers import cpu_mapping, cpu_tiles, gpu_mapping, gpu_tiles
from polyfuse.layers.factors import Product
from polyfuse.layers.gpu_rows import GpuTarget
from polyfuse.layers.gpu_storage import GpuStorage
from polyfuse.layers.grid_barriers import join_kernels
from polyfuse.layers.nest import Nest, side_by_side
from polyfuse.layers.one_wave import one_wave
from polyfuse.layers.prefetch import fetched_ahead
from polyfuse.layers.products import around_products
from polyfuse.layers.reductions import explicit_reductions
from polyfuse.layers.regions import join_regions
from polyfuse.layers.row_cache import cache_rows
from polyfuse.layers.scatters import Scatter, around_scatters, map_scatter
from polyfuse.layers.stitching import Stitching
from polyfuse.layers.time_steps import apart_from_steps, parts_of, time_loop
from polyfuse.poly.dependences import ordering
from polyfuse.poly.domains import PolyModel, build_model, fixed_sizes_needed
from polyfuse.poly.folding import folded
from polyfuse.poly.footprint import Window, private_to_blocks, window
from polyfuse.poly.isl_bridge import isl_lock
from polyfuse.poly.legality import Illegal, check_schedule, check_turns, parallel, races

Extents: TypeAlias = tuple[IndexExpr, ...]

# A contracted array of one worker larger than this would not stay in its L2: it is global then.
LARGEST_LOCAL_BYTES = 256 * 1024
# Coordinates whose every value updates elements of its own.
_EXCLUSIVE = (Coordinate.BLK, Coordinate.ROW, Coordinate.THREAD)


def form_kernels(
    scheduled: ScheduledGraph, target: int | GpuTarget, stitching: Stitching | None = None
) -> tuple[KernelGraph, tuple[Decision, ...]]:
    """Kernels, mapped for a number of CPU workers or for a GPU: one per phase, or stitched (layer II).

    Raises ScheduleError PF513 for sizes that must be known, PF501-PF503 if the result is not legal.
    """
    made, decisions = separate_kernels(scheduled, target, stitching)
    more: list[Decision] = []
    return joined_kernels(made, target, stitching, more), (*decisions, *more)


def separate_kernels(
    scheduled: ScheduledGraph,
    target: int | GpuTarget,
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
    knobs = knobs or CpuKnobs()
    with isl_lock:
        graph, nests = scheduled.graph, list[Nest]()
        phases = cut_phases(scheduled.tree)
        if stitching is not None:
            graph, phases = stitching.run(graph, phases, target, decisions)
        if tiles and not isinstance(target, GpuTarget):
            graph, phases = cpu_tiles.with_prologues(graph, phases, decisions, knobs.on)
        for part in _parts(graph, phases, target, knobs) if tiles else phases:
            graph, mapped = _mapped(graph, part, target, decisions, knobs)
            nests += mapped
        graph, trees = explicit_reductions(graph, [n.tree for n in nests])
        made = zip(nests, trees, strict=True)
        nests = [replace(n, tree=part) for n, t in made for part in apart_from_steps(t)]
        model = build_model(graph)
        _verify(model, nests)
        crossing = {} if isinstance(target, GpuTarget) else _crossing(model, nests, decisions)
        kernels = [_kernel(model, n, k, target, crossing, decisions, knobs) for k, n in enumerate(nests)]
    return KernelGraph(graph, tuple(kernels)), tuple(decisions)


def joined_kernels(
    kernels: KernelGraph, target: int | GpuTarget, stitching: Stitching | None, decisions: list[Decision]
) -> KernelGraph:
    """Kernels joined by barriers as layer II has it; on a GPU those of small groups of rows in one wave."""
    wanted = stitching is not None and stitching.barriers is not False
    if not isinstance(target, GpuTarget):
        return join_regions(kernels, decisions) if wanted else kernels
    if stitching is not None and wanted:
        kernels = join_kernels(kernels, target, stitching.barriers is True, decisions)
    return one_wave(kernels, target, decisions)


def _parts(
    graph: TensorGraph, phases: list[Tree], target: int | GpuTarget, knobs: CpuKnobs
) -> list[Tree | Product | Scatter]:
    """The phases, cut around contractions that are computed in tiles and scatters that have owners."""
    if isinstance(target, GpuTarget):
        return list(around_products(graph, phases, partial(gpu_tiles.fits, gpu=target)))
    found: list[Tree | Product | Scatter] = []
    fits = partial(cpu_tiles.fits, core=knobs.on)
    for part in around_scatters(graph, phases, target, knobs.on):
        found += [part] if isinstance(part, Scatter) else around_products(graph, part, fits, knobs.on)
    return found


def _mapped(
    graph: TensorGraph,
    part: Tree | Product | Scatter,
    target: int | GpuTarget,
    decisions: list[Decision],
    knobs: CpuKnobs,
) -> tuple[TensorGraph, list[Nest]]:
    if isinstance(target, GpuTarget):
        assert not isinstance(part, Scatter)
        if isinstance(part, Product):
            return gpu_tiles.map_product(graph, part, target, decisions)
        graph, nests = gpu_mapping.map_phase(graph, part, target, decisions)
        for k, nest in enumerate(nests):
            graph, nests[k] = cache_rows(graph, nest, target, decisions)
        return graph, nests
    if isinstance(part, Scatter):
        return map_scatter(graph, part, target, decisions, knobs)
    if isinstance(part, Product):
        graph, trees = cpu_tiles.map_product(graph, part, knobs.on, target, decisions)
    else:
        graph, trees = cpu_mapping.map_phase(graph, part, target, decisions, knobs)
    return graph, [Nest(t) for t in trees]


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
    target: int | GpuTarget,
    crossing: Mapping[str, Extents],
    decisions: list[Decision],
    knobs: CpuKnobs,
) -> Kernel:
    inside = frozenset(statements(nest.tree))
    graph = _subgraph(model.graph, inside)
    part = _submodel(model, graph, inside)
    t = sequential(nest.tree)
    own: Callable[[str], Buffer] = lambda name: _local_buffer(part, t, name, decisions, knobs.local_bytes)  # noqa: E731
    if isinstance(target, GpuTarget):
        storage = GpuStorage(graph, part, t, nest, target.shared_bytes, decisions)
        own = storage.buffer
    buffers = tuple(_buffer(model.graph, tensor.name, inside, own, crossing) for tensor in graph.tensors)
    if isinstance(target, GpuTarget):
        buffers = storage.planned(buffers)
    else:
        buffers = fetched_ahead(graph, nest.tree, buffers, target, decisions, knobs)
    atomic = nest.atomic & inside
    stages = (_stage(nest.tree),)
    return Kernel(f"k{number}", graph, stages, buffers, nest.threads, nest.vector, atomic, owners=nest.owners)


def _stage(t: Tree) -> Stage:
    """The leading loops over blocks and their rows are the stage's band, or the loop over steps that workers
    share, whose parts are the phases."""
    time = time_loop(t)
    if isinstance(t, Band) and time is not None:
        return Stage((time,), tuple(map(Phase, parts_of(t.child))))
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


def _crossing(model: PolyModel, nests: list[Nest], decisions: list[Decision]) -> dict[str, Extents]:
    """Extents of temporaries that several kernels touch, where few steps of a recurrence live at a time.

    Kernels of which one writes what another touches run in order, whatever elements these are.
    """
    order = Sequence(tuple(sequential(n.tree) for n in nests))
    inside = [set(statements(n.tree)) for n in nests]
    found: dict[str, Extents] = {}
    for t in model.graph.tensors:
        users = {s.name for s in (*model.graph.writers(t.name), *model.graph.readers(t.name))}
        if t.role is not Role.TEMP or not users or any(users <= names for names in inside):
            continue
        extents = _in_turns(model, order, t.name, Window((), t.shape), decisions).extents
        if extents != t.shape:
            found[t.name] = extents
    return found


def _in_turns(model: PolyModel, tree: Tree, name: str, found: Window, decisions: list[Decision]) -> Window:
    """The window of a tensor whose steps take turns in it, where few of them live at a time."""
    extents = folded(model, tree, name, found.loops, found.extents)
    fewer = [e if e != full else None for e, full in zip(extents, found.extents, strict=True)]
    if not any(fewer):
        return found
    shape = model.graph.tensor(name).shape
    verdict = check_turns(model, tree, name, tuple(e or full for e, full in zip(fewer, shape, strict=True)))
    if isinstance(verdict, Illegal):
        raise ScheduleError([verdict.diagnostic])
    steps = " x ".join(str(e) for e in fewer if e)
    reason = f"{steps} steps of it live at a time, and take turns in their memory"
    decisions.append(Decision("fold", name, True, reason))
    return replace(found, extents=extents)


def _buffer(
    whole: TensorGraph,
    name: str,
    inside: frozenset[str],
    own: Callable[[str], Buffer],
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
    return own(name)


def _local_buffer(part: PolyModel, t: Tree, name: str, decisions: list[Decision], most: int | None) -> Buffer:
    """Storage of a temporary of one CPU kernel; a worker's arrays have `most` bytes."""
    tensor = part.graph.tensor(name)
    found = window(part, t, name)
    users = sorted(s.name for s in (*part.graph.writers(name), *part.graph.readers(name)))
    if time_loop(t) is not None and not (_in_one_part(t, users) and private_to_blocks(found, t, users[0])):
        extents = _in_turns(part, t, name, Window((), tensor.shape), decisions).extents
        reason = "goes from one part or step of a recurrence to another, which other workers may run"
        return Buffer(name, tensor.dtype, Scope.GLOBAL, extents, tensor.shape, reason)
    if (found.loops and private_to_blocks(found, t, users[0])) or not _has_blocks(t, users[0]):
        found = _in_turns(part, t, name, found, decisions)
        return _contracted(part.graph, name, found, decisions, LARGEST_LOCAL_BYTES if most is None else most)
    reason = "shared by the iterations of a parallel loop"
    return Buffer(name, tensor.dtype, Scope.GLOBAL, tensor.shape, tensor.shape, reason)


def _in_one_part(t: Tree, users: Many[str]) -> bool:
    """Are these statements in one part of the steps that workers share?"""
    return isinstance(t, Band) and any(set(users) <= set(statements(p)) for p in parts_of(t.child))


def _has_blocks(t: Tree, statement: str) -> bool:
    return any(isinstance(m, Member) and m.coordinate is Coordinate.BLK for m in path(t, statement))


def _contracted(graph: TensorGraph, name: str, found: Window, decisions: list[Decision], most: int) -> Buffer:
    tensor = graph.tensor(name)
    loops = ", ".join(m.name for m in found.loops)
    if found.scalar:
        reason = f"one element lives in an iteration of {loops}" if loops else "a scalar of one kernel"
        decisions.append(Decision("contract", name, True, f"to a register: {reason}"))
        return Buffer(name, tensor.dtype, Scope.REGISTER, found.extents, tensor.shape, reason)
    elements = product(found.extents)
    if not sizes(elements):
        count = evaluate(elements, {}) * tensor.dtype.bytes
        if count <= most:
            reason = f"{format_bytes(count)} live in an iteration of {loops}" if loops else "small"
            decisions.append(Decision("contract", name, True, f"to a worker's array: {reason}"))
            return Buffer(name, tensor.dtype, Scope.LOCAL, found.extents, tensor.shape, reason)
    reason = "too large for a worker's array"
    if found.extents != tensor.shape and all(isinstance(e, IConst) for e in found.extents):
        decisions.append(Decision("contract", name, False, reason))
    return Buffer(name, tensor.dtype, Scope.GLOBAL, tensor.shape, tensor.shape, reason)
