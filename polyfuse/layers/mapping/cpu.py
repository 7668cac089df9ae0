"""Coordinates for a CPU: which loops are spread over workers, which one runs in vector lanes.

    blk   the leading loops whose iterations are independent: chunks of the worker pool
    tim   a leading loop over steps in order, where workers share each step
    vec   the innermost loop, where it is parallel or a reduction: SIMD lanes
    seq   the rest

Three rewrites make such loops where the fused nest has none: a reduction over the outermost loop is
factored over chunks (rfactor); a parallel loop along contiguous memory is moved innermost (sink); a
single long loop is cut into blocks (strip-mine).

Pairs of rows, steps of recurrences and what is computed from totals have loops of their own
(`of_pairs`, `parts_of_step`, `distribute_totals`); `map_phase` puts all together.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, takewhile
from math import prod

from polyfuse.cost.cpu_device import table_cpu
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.cost.cpu_time import Gain, part_seconds
from polyfuse.cost.extents import elements_at, tensor_bytes
from polyfuse.cost.stitching_gain import microseconds
from polyfuse.decisions import Decision, counted
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, sizes
from polyfuse.ir.schedule_tree import (
    Band,
    Coordinate,
    Leaf,
    Member,
    Sequence,
    Tree,
    band,
    sequence,
    statements,
)
from polyfuse.ir.tensor_graph import TensorGraph, depends_on, reads
from polyfuse.layers.mapping import loop_order
from polyfuse.layers.mapping.loop_order import (
    FEWEST_LANES,
    along_writes,
    best_of,
    better,
    finds_bounds,
    goes_inside,
    held,
    sink,
    strips,
    sums_along_memory,
    sunk_strip,
)
from polyfuse.layers.mapping.nests import (
    dim_of,
    has_band,
    is_free,
    longest_of,
    open_trips_of,
    racing,
    side_by_side,
    span_of,
    trip_of,
    volume,
    without_units,
    work,
)
from polyfuse.layers.mapping.reductions import rfactor, rows_first
from polyfuse.layers.mapping.scatter_copies import turns_of, worth_copying
from polyfuse.layers.mapping.transposed_accesses import rows_of_results, transposed_tiles

# --- pairs of rows ----------------------------------------------------------------------------------------

# Pairs of rows: workers share the rows of one side, and each has a loop over all rows of the other side.
#
#     B(i @blk, j @blk)[B(k)(d)]     becomes     B(i @blk)B(j)[B(k)(d)]
#
# where d[i, j] = sum[k](abs(x[i, k] - z[j, k])).  A worker keeps a row of x for all rows of z, need not take
# the number of a pair apart, and has a loop that vectors may run along.


def of_pairs(graph: TensorGraph, phase: Band, free: int, threads: int) -> bool:
    """Do two free loops make pairs, of one row that all of the other loop reads with each of rows that all of
    the one reads? Then workers share the one if it is long enough, and go through the other."""
    if free < 2 or (free == len(phase.members) and not has_band(phase.child)):
        return False
    one, other = phase.members[free - 2 : free]
    trips = [trip_of(graph, m) or 0 for m in (one, other)]
    if trips[0] < FITTED.row_pairs_rows_of_a_worker * threads or trips[1] < FITTED.row_pairs_fewest_others:
        return False
    found: set[tuple[bool, bool]] = set()
    for n in statements(phase):
        s = graph.statement(n)
        ours, theirs = _variable(one, n), _variable(other, n)
        used = map(depends_on, reads(s.expr)) if s.reduction else ()
        found |= {(ours in names, theirs in names) for names in used}
    return found >= {(True, False), (False, True)}


def _variable(m: Member, statement: str) -> str | None:
    (found,) = [e for n, e in m.exprs if n == statement]
    return found.name if isinstance(found, IVar) else None


# --- steps of a recurrence --------------------------------------------------------------------------------

# Steps of a recurrence that workers share, on a CPU.
#
#     B(t)[B(i, k)(u); B(k)(edge); m]      becomes      B(t @tim)[B(i @blk, k)(u); B(k)(edge); m]
#
# Loop t runs in order.  A step of it is cut into *parts*, those that are spread over workers and what lies
# between them, and a part begins when all workers are done with the one before.  So a part is to the others
# what a kernel is to other kernels: whatever goes from one to another, or to a later step, lives in memory
# that all workers see.  `cost.cpu_time` says whether it pays.


def time_loop(tree: Tree) -> Member | None:
    """The loop whose steps are shared by workers, if the tree has one."""
    first = tree.members[0] if isinstance(tree, Band) else None
    return first if first is not None and first.coordinate is Coordinate.TIME else None


def parts_of_step(body: Tree) -> list[Tree]:
    """A step in parts: each nest that is spread over workers, and what lies between them."""
    children = body.children if isinstance(body, Sequence) else (body,)
    parts: list[list[Tree]] = []
    for c in children:
        if parts and not (is_spread(c) or is_spread(parts[-1][-1])):
            parts[-1].append(c)
        else:
            parts.append([c])
    return [sequence(p) for p in parts]


def apart_from_steps(tree: Tree) -> list[Tree]:
    """A nest with steps that are shared, apart from what is beside them (where sums over all steps begin)."""
    beside = isinstance(tree, Sequence) and any(time_loop(c) for c in tree.children)
    return list(tree.children) if isinstance(tree, Sequence) and beside else [tree]


def is_spread(tree: Tree) -> bool:
    """Are iterations of the nest shared out?"""
    return isinstance(tree, Band) and tree.members[0].coordinate is Coordinate.BLK


def steps_of(graph: TensorGraph, time: Member) -> range | None:
    """The values of a loop that steps through a dim with constant bounds, up or down; else None."""
    found = [_values(graph, n, e) for n, e in time.exprs]
    known = [r for r in found if r]
    if None in found or not known:
        return None
    return range(min(r.start for r in known), max(r.stop for r in known))


def _values(graph: TensorGraph, statement: str, e: IndexExpr) -> range | None:
    match e:
        case IVar(name):
            d = dim_of(graph.statement(statement), name)
            if d is not None and isinstance(d.lower, IConst) and isinstance(d.upper, IConst):
                return range(d.lower.value, d.upper.value)
        case IBin("-", IConst(0), right):
            up = _values(graph, statement, right)
            return None if up is None else range(1 - up.stop, 1 - up.start)
    return None


# --- what follows totals ----------------------------------------------------------------------------------

# What is computed from totals is computed in lanes, after all of them.
#
#     B(j)[B(k)(s); y]     becomes     B(j)B(k)(s), B(j)(y)         for  y[j] = tanh(sum[k](w[j, k] * x[k]))
#
# In one loop each total is followed by one number at a time.  A loop of its own takes vectors of these, and a
# loop of totals alone computes several of them at a time (`codegen.transforms.unroll_and_jam.shared_sums`).
# Between the loops there are as many numbers as iterations, which lie in L1.


def distribute_totals(graph: TensorGraph, tree: Band, decisions: list[Decision]) -> Tree:
    """The tree, or loops one after the other: over its nests with totals, and over what is behind them."""
    *outer, loop = tree.members
    inside = loop.coincident and loop.coordinate is Coordinate.SEQ
    if not inside or not isinstance(tree.child, Sequence):
        return tree
    parts = tree.child.children
    nests = max(k for k, part in enumerate(parts) if has_band(part)) + 1
    if nests == len(parts) or not _has_total(graph, parts[nests - 1]):
        return tree
    alone = [sequence([*parts[:nests]]), sequence([*parts[nests:]])]
    loops = [loop.restricted(frozenset(statements(part))) for part in alone]
    trips = [longest_of(graph, m) or 0 for m in loops]
    most = FITTED.open_rows_longest if graph.sizes else FITTED.fission_totals_most_totals
    if not all(FEWEST_LANES <= t <= most for t in trips):
        return tree
    names = ", ".join(statements(alone[1]))
    decisions.append(Decision("fission", names, True, "in lanes, after all of the totals that they need"))
    made = Sequence(tuple(Band((m,), part, tree.permutable) for m, part in zip(loops, alone, strict=True)))
    return Band(tuple(outer), made, tree.permutable) if outer else made


def _has_total(graph: TensorGraph, nest: Tree) -> bool:
    return any(graph.statement(n).reduction for n in statements(nest))


# --- coordinates ------------------------------------------------------------------------------------------


def parts_of(threads: int) -> int:
    """Into how many parts a long reduction is cut."""
    return max(FITTED.mapping_fewest_parts, threads * FITTED.mapping_chunks_per_thread)


def worth_factoring(instances: int, trip: int) -> bool:
    """Is a reduction with so many instances, over so many iterations of its outermost loop, worth partial
    results? A batch of few samples is, where each sample is long."""
    long = trip >= FITTED.mapping_fewest_factored or (
        trip > 1 and instances >= trip * FITTED.mapping_smallest_parallel
    )
    return long and instances >= FITTED.mapping_smallest_parallel


def map_phase(
    graph: TensorGraph, phase: Tree, threads: int, decisions: list[Decision], knobs: CpuKnobs | None = None
) -> tuple[TensorGraph, list[Tree]]:
    """The phase with coordinates; a factored reduction gives further nests to run after it."""
    phase = sums_along_memory(graph, _as_one_band(graph, without_units(graph, phase)))
    if not isinstance(phase, Band):
        return _map_row(graph, phase, threads, decisions, knobs)
    knobs = knobs or CpuKnobs()
    phase = _free_first(graph, phase)
    shared = _map_steps(graph, phase, threads, decisions, knobs)
    if shared is not None:
        return graph, [shared]
    split = racing(graph, phase.members[0], statements(phase))
    if split:
        return _map_reduction(graph, phase, split, threads, decisions, knobs)
    return graph, [_map_parallel(graph, phase, threads, decisions, knobs)]


def _map_row(
    graph: TensorGraph, phase: Tree, threads: int, decisions: list[Decision], knobs: CpuKnobs | None
) -> tuple[TensorGraph, list[Tree]]:
    """What a batch of one row does: with no loop over rows left, long loops of it are spread over workers.

    B(t)[B(h)(s); m; B(h)(y)]  with one t     becomes     B(h)(s), m, B(h)(y), or all of it in lanes
    """
    parts = phase.children if isinstance(phase, Sequence) else (phase,)
    knobs = knobs or CpuKnobs()
    if not any(_spreads(graph, p, threads, knobs) for p in parts):
        return graph, [vectorise(graph, phase, threads, decisions, knobs)]
    trees: list[Tree] = []
    for part in parts:
        graph, mapped = map_phase(graph, part, threads, decisions, knobs)
        trees += mapped
    return graph, trees


def _spreads(graph: TensorGraph, part: Tree, threads: int, knobs: CpuKnobs) -> bool:
    """Is a part of a row a loop that pays on several cores, or has it steps that do?"""
    if not isinstance(part, Band):
        return False
    if part.members[0].coincident:
        return volume(graph, statements(part)) >= FITTED.mapping_smallest_parallel
    return _map_steps(graph, part, threads, [], knobs) is not None


def _map_steps(
    graph: TensorGraph, phase: Band, threads: int, decisions: list[Decision], knobs: CpuKnobs
) -> Tree | None:
    """A nest whose outermost loop carries a recurrence, where it pays to share its steps among workers.

    B(t)[B(i, k)(u); B(k)(edge)]     becomes     B(t @tim)[B(i @blk, k)(u); B(k)(edge)]
    """
    time, machine = phase.members[0], table_cpu(threads, knobs.on)
    steps = None if time.coincident or threads < 2 or graph.sizes else steps_of(graph, time)
    if steps is None or len(steps) < 2:
        return None
    parts, noted = list[Tree](), list[Decision]()
    gains: list[Gain] = []
    for piece in _pieces(graph, band(list(phase.members[1:]), phase.child, phase.permutable)):
        mapped = _map_parallel(graph, piece, threads, noted, knobs, 0) if isinstance(piece, Band) else piece
        gain = Gain(part_seconds(map(graph.statement, statements(piece)), len(steps), machine), machine)
        spread = is_spread(mapped) and gain.pays
        gains += [gain] if is_spread(mapped) else []
        parts.append(mapped if spread else vectorise(graph, piece, threads, noted, knobs))
    what, each = ", ".join(statements(phase)), f"of {len(steps)} steps of {time.name}"
    shared = [g for g in gains if g.pays]
    if gains and not shared:
        alone = microseconds(max(g.alone for g in gains))
        why = f"a barrier of the workers in each {each} costs too much beside {alone} of work"
        decisions.append(Decision("share steps", what, False, why))
    if not shared:
        return None
    saved = microseconds(sum(g.seconds for g in shared))
    part = counted(len(shared), "part")
    why = f"{part} of each {each}, on all workers with a barrier after it, saves {saved}"
    decisions += [*noted, Decision("share steps", what, True, why)]
    return Band((replace(time, coordinate=Coordinate.TIME),), sequence(parts), phase.permutable)


def _pieces(graph: TensorGraph, step: Tree) -> list[Tree]:
    """A step in nests that may be spread one by one; what reduces over a loop is apart from what is not.

    B(i)[B(k)(w); n]     becomes     B(i)B(k)(w), B(i)(n)     where n sums over i
    """
    found: list[Tree] = []
    for nest in side_by_side(step):
        if not isinstance(nest, Band) or not all(m.coincident for m in nest.members):
            found.append(nest)
            continue
        children = nest.child.children if isinstance(nest.child, Sequence) else (nest.child,)
        reducing = racing(graph, nest.members[0], statements(nest))
        apart = [not set(statements(c)).isdisjoint(reducing) for c in children]
        for _, alike in groupby(range(len(children)), apart.__getitem__):
            part = sequence([children[k] for k in alike])
            inside = frozenset(statements(part))
            found.append(band([m.restricted(inside) for m in nest.members], part, nest.permutable))
    return found


def _map_parallel(
    graph: TensorGraph,
    phase: Band,
    threads: int,
    decisions: list[Decision],
    knobs: CpuKnobs,
    smallest: int | None = None,
) -> Tree:
    """Block and vector coordinates for a nest whose outermost loop is parallel (or recurrent), if its work is
    not too small: `FITTED.mapping_smallest_parallel`, or as much as `smallest` says."""
    smallest = FITTED.mapping_smallest_parallel if smallest is None else smallest
    rows = tiled = rows_of_results(graph, phase, threads, decisions)
    if tiled is None:
        sunk = sink(graph, phase, threads, decisions, knobs)
        if not isinstance(sunk, Band):
            return vectorise(graph, sunk, threads, decisions, knobs)
        phase = _strip_mine(graph, sunk, knobs.strip or FITTED.mapping_strip, smallest)
        tiled = transposed_tiles(graph, phase, threads, decisions)
    phase = tiled.nest if tiled else along_writes(graph, phase)
    free = tiled.blocks if tiled else _free_members(graph, phase)
    least = min(smallest, FITTED.mapping_smallest_rows) if has_band(phase.child) else smallest
    dims = [d for n in statements(phase) for d in graph.statement(n).dims]
    if work(graph, statements(phase)) < least and not any(sizes(d.upper) for d in dims):
        free = 0  # calls at open sizes see how much work there is
    elif of_pairs(graph, phase, free, threads):
        free -= 1
    blocks = (replace(m, coordinate=Coordinate.BLK) for m in phase.members[:free])
    phase = replace(phase, members=(*blocks, *phase.members[free:]))
    if rows:  # as they are
        return replace(phase, child=vectorise(graph, phase.child, threads, decisions, knobs))
    return vectorise(graph, phase, threads, decisions, knobs)


def _map_reduction(
    graph: TensorGraph,
    phase: Band,
    split: tuple[str, ...],
    threads: int,
    decisions: list[Decision],
    knobs: CpuKnobs,
) -> tuple[TensorGraph, list[Tree]]:
    """A nest whose outermost loop reduces: factor it over parts if there is work enough."""
    outer = phase.members[0]
    span = span_of(graph, outer)
    trips = open_trips_of(graph, outer) if span is None else None
    if trips is not None and _factors_open(graph, phase, split):
        return _factored_open(graph, phase, split, trips, threads, decisions, knobs)
    reason = _cannot_factor(graph, phase, split, span, threads, knobs.on)
    if reason is not None:
        decisions.append(Decision("rfactor", ", ".join(split), False, reason))
        return graph, [
            vectorise(graph, sink(graph, phase, threads, decisions, knobs), threads, decisions, knobs)
        ]
    assert span is not None  # else there is a reason
    return factored(graph, phase, split, span, threads, decisions, knobs)


def factored(
    graph: TensorGraph,
    phase: Band,
    split: tuple[str, ...],
    span: range,
    threads: int,
    decisions: list[Decision],
    knobs: CpuKnobs,
) -> tuple[TensorGraph, list[Tree]]:
    """The nest over parts of its first loop, whose iterations are `span`, then nests that combine them."""
    if knobs.partials:
        chunk = -(-len(span) // (threads * knobs.partials))
    elif goes_inside(graph, phase):  # along memory, in pieces of rows
        chunk = min(knobs.sunk_strip or sunk_strip(len(span), threads), len(span))
    else:
        parts = min(parts_of(threads), -(-len(span) // _fewest_rows(graph, split, len(span))))
        chunk = -(-len(span) // (-(-parts // threads) * threads))  # as many parts for each thread
    chunks = -(-len(span) // chunk)
    outer = phase.members[0].name
    graph, (nest, *ends) = rfactor(graph, phase, split, chunk, chunks, span.start)
    why = f"partial results over {chunks} chunks of {chunk} iterations of {outer} run in parallel"
    decisions.append(Decision("rfactor", ", ".join(split), True, why))
    return graph, _map_parts(graph, nest, ends, threads, decisions, knobs)


def _map_parts(
    graph: TensorGraph,
    nest: Tree,
    ends: list[Tree],
    threads: int,
    decisions: list[Decision],
    knobs: CpuKnobs,
) -> list[Tree]:
    """The nest of partial results, and those that combine them."""
    return [
        vectorise(graph, nest, threads, decisions, knobs),
        *(_map_end(graph, t, threads, decisions, knobs) for t in ends),
    ]


def _factors_open(graph: TensorGraph, phase: Band, split: tuple[str, ...]) -> bool:
    """May the first loop, whose length is open, be factored?"""
    outer = phase.members[0]
    plain = all(isinstance(outer.of(n), IVar) and not graph.statement(n).accumulate for n in split)
    return outer.coincident and plain and not goes_inside(graph, phase)


def _factored_open(
    graph: TensorGraph,
    phase: Band,
    split: tuple[str, ...],
    trips: IndexExpr,
    threads: int,
    decisions: list[Decision],
    knobs: CpuKnobs,
) -> tuple[TensorGraph, list[Tree]]:
    """The nest over parts of its first loop, whose length is open: parts of a known length, as many as there
    are, so that results do not depend on workers."""
    outer = phase.members[0].name
    each = max(1, volume(graph, statements(phase)) // elements_at(trips))
    chunk = max(FITTED.open_parts_rows, -(-FITTED.open_parts_elements // each))
    chunks = binary("//", binary("+", trips, chunk - 1), chunk)
    graph, (nest, *ends) = rfactor(graph, phase, split, chunk, chunks)
    why = f"partial results over chunks of {chunk} iterations of {outer} run in parallel"
    decisions.append(Decision("rfactor", ", ".join(split), True, why))
    return graph, _map_parts(graph, nest, ends, threads, decisions, knobs)


def _map_end(graph: TensorGraph, end: Tree, threads: int, decisions: list[Decision], knobs: CpuKnobs) -> Tree:
    """A nest that combines partial results: those of scatters may be many for each of a few parts."""
    end = (
        rows_first(graph, end) if volume(graph, statements(end)) >= FITTED.mapping_smallest_parallel else end
    )
    if isinstance(end, Band) and is_free(graph, end.members[0], statements(end)):
        return _map_parallel(graph, end, threads, decisions, knobs)
    return vectorise(graph, end, threads, decisions, knobs)


def _fewest_rows(graph: TensorGraph, split: tuple[str, ...], trip: int) -> int:
    """Iterations of the outermost loop that a part has at least: the more of them, the more partial results
    an iteration has for the terms it adds."""
    targets = [(graph.tensor(s.target), turns_of(graph, s)) for s in map(graph.statement, split)]
    kept = max(copies * tensor_bytes(graph, t.name) // t.dtype.bytes for t, copies in targets)
    return max(1, -(-FITTED.mapping_fewest_rows * kept * trip // max(1, volume(graph, split))))


def _cannot_factor(
    graph: TensorGraph, phase: Band, split: tuple[str, ...], span: range | None, threads: int, core: Core
) -> str | None:
    """Why the first loop, with these iterations, is not to be factored; None if it may be."""
    outer = phase.members[0]
    if not outer.coincident:
        return f"loop {outer.name} carries a recurrence"
    if span is None:
        return f"the extent of {outer.name} is not known"
    if not worth_factoring(volume(graph, statements(phase)), len(span)):
        return "too little work to spread over workers"
    if not worth_copying(graph, [n for n in split if graph.statement(n).accumulate], threads, core):
        return "copies of what it adds to by data are too large, for caches or beside the updates"
    if not all(isinstance(outer.of(n), IVar) for n in split):
        return f"loop {outer.name} is not a plain dim of it"
    return None


# --- which loops are free ------------------------------------------------------------------------------


def _free_members(graph: TensorGraph, phase: Band) -> int:
    """Number of leading free loops; of a perfect nest the innermost loop stays for the vector lanes, and so
    do those around it that are short: small matrices are computed whole."""
    names = statements(phase)
    count = sum(1 for _ in takewhile(lambda m: is_free(graph, m, names), phase.members))
    if has_band(phase.child):
        return count
    trips = [trip_of(graph, m) or FITTED.mapping_small_matrix for m in phase.members]
    return next(
        (k for k in range(1, count) if prod(trips[k:]) <= FITTED.mapping_small_matrix),
        min(count, len(trips) - 1),
    )


def _as_one_band(graph: TensorGraph, phase: Tree) -> Tree:
    """Free loops right inside of others as one band with them, whose loops may go in any order: others that
    were between them are in another phase."""
    match phase:
        case Band(members, Band(inner, child)):
            if all(is_free(graph, m, statements(phase)) for m in (*members, *inner)):
                return _as_one_band(graph, Band((*members, *inner), child, True))
    return phase


def _free_first(graph: TensorGraph, phase: Band) -> Band:
    """Free loops before reducing ones where the reducing ones are too short to be split."""
    names = statements(phase)
    first = phase.members[0]
    if not phase.permutable or is_free(graph, first, names) or len(phase.members) < 2:
        return phase
    trip = trip_of(graph, first)
    if trip is None or trip >= 64:
        return phase
    ordered = sorted(phase.members, key=lambda m: not is_free(graph, m, names))
    return replace(phase, members=tuple(ordered))


# --- making loops -------------------------------------------------------------------------------------


def _strip_mine(graph: TensorGraph, phase: Band, size: int, smallest: int) -> Band:
    """A single long parallel loop becomes blocks of `size` iterations.

    B(i)(y)     becomes     B(i // 2048, i)(y)
    """
    names = statements(phase)
    outer = [m for m in phase.members[:-1] if trip_of(graph, m) != 1]
    last = phase.members[-1]
    if outer or has_band(phase.child) or not is_free(graph, last, names):
        return phase
    trip = trip_of(graph, last)
    if trip is not None and (trip < 2 * size or work(graph, names) < smallest):
        return phase
    return replace(phase, members=(*phase.members[:-1], strips(last, size), last))


def vectorise(
    graph: TensorGraph, tree: Tree, threads: int, decisions: list[Decision], knobs: CpuKnobs
) -> Tree:
    """Mark the innermost loops that are parallel, or reductions that may be split over lanes; nests inside of
    a row are turned as rows are."""
    match tree:
        case Leaf():
            return tree
        case Sequence(children):
            return Sequence(tuple(vectorise(graph, c, threads, decisions, knobs) for c in children))
        case Band(members, child, permutable) if has_band(child):
            turned = sink(graph, tree, threads, decisions, knobs)
            turned = distribute_totals(graph, tree, decisions) if turned == tree else turned
            if turned != tree:
                return vectorise(graph, turned, threads, decisions, knobs)
            return Band(members, vectorise(graph, child, threads, decisions, knobs), permutable)
        case Band(members, child, permutable):
            if permutable:
                members = _along_memory(graph, members, statements(child), threads)
            last = members[-1]
            if last.coincident and last.coordinate is Coordinate.SEQ:
                members = (*members[:-1], replace(last, coordinate=Coordinate.VECTOR))
            return Band(members, child, permutable)


def _along_memory(
    graph: TensorGraph, members: tuple[Member, ...], names: tuple[str, ...], threads: int
) -> tuple[Member, ...]:
    """A free loop along contiguous memory innermost, where one across it would be.

    B(h, t)(y)     becomes     B(t, h)(y)     or, where h is long and t reduces,     B(h // 256, t, h)(y)
    """
    last = members[-1]
    inner = [m for m in members if m.coordinate is Coordinate.SEQ]
    free = [m for m in inner[:-1] if is_free(graph, m, names) and not finds_bounds(graph, m, names)]
    passed = held(graph, names)
    best = best_of(graph, free, names, passed)
    if best is None or last not in inner:
        return members
    trip, most = trip_of(graph, best), longest_of(graph, best)
    if most is None or not better(graph, best, (last,), names, passed):
        return members
    longest = FITTED.open_rows_longest if trip is None else FITTED.mapping_longest_sunk
    kept = most > longest and not is_free(graph, last, names)
    strip = (strips(best, loop_order.sunk_strip(trip, threads)),) if kept else ()
    return (*(x for m in members for x in (strip if m == best else (m,))), best)
