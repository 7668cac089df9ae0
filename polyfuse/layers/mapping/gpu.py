"""Coordinates of a nest on a GPU: which loops become blocks, rows of threads, threads, rounds, vectors.

points     the loop along contiguous memory is free: its iterations go to neighbouring threads, the other
           free loops to rows of the block and to blocks; what is left runs in order inside each thread
               B(t, h)(y)      ->  B(t // TY, h // (TX V): blk, t % TY: row, h // V % TX: thr, h % V: vec)(y)
rows       the loop along contiguous memory reduces: the threads of a row share its iterations (rounds
           of TX threads with V elements each) and combine what they have
               B(t)B(h)(sum)   ->  B(t // TY: blk, t % TY: row)B(h: rnd, thr, vec)(sum)
columns    sums along other memory, too few to fill the device: the rows of a block share each of them
               B(k)B(h)(sum)   ->  B(h // TX: blk, h % TX: thr)B(k: stp)(sum)
factored   too few free iterations to fill the device: the reduction is split over blocks (rfactor)
serial     nothing is free: one thread

Sources: AStitch (ASPLOS'22) section 4.3, task packing and splitting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.linear import Range, interval, linear
from polyfuse.ir.schedule_tree import Band, Coordinate, Leaf, Member, Sequence, Tree, band, statements
from polyfuse.ir.target import GpuTarget
from polyfuse.ir.tensor_graph import Read, Role, Statement, TensorGraph, statement_reads
from polyfuse.layers.mapping.gpu_in_flight import Loop, Stream
from polyfuse.layers.mapping.gpu_row_alignment import Starts, row_starts
from polyfuse.layers.mapping.gpu_row_shape import ROUNDS_OF_A_WARP, WARP, ceil, row_shape
from polyfuse.layers.mapping.nests import (
    Nest,
    contiguity,
    has_band,
    heavy,
    innermost,
    is_free,
    large_tensors,
    most_trips,
    push,
    racing,
    span_of,
    trip_of,
    vector_width,
    volume,
)
from polyfuse.layers.mapping.reductions import rfactor, written_back

# --- rows of threads --------------------------------------------------------------------------------------

# Rows of threads: how many threads share a row, how many rows a block, and the loops that follow.
#
#     B(t)B(h)      ->      B(t // TY: blk, t % TY: row)B(h // (TX V): rnd, h // V % TX: thr, h % V: vec)
#
# Sources: AStitch (ASPLOS'22) section 4.3, adaptive thread mapping.


# One of so many threads may have nothing to do.
FEW = 64


def extent(graph: TensorGraph, m: Member) -> int:
    """Iterations of a shared loop at most, counted from where its statements start."""
    found = 1
    for n, e in m.exprs:
        if isinstance(e, IBin) and isinstance(e.right, IConst):  # inside a tile
            found = max(found, e.right.value)
            continue
        assert isinstance(e, IVar)
        dim = next(d for d in graph.statement(n).dims if d.name == e.name)
        ranges = _ranges(graph.statement(n))
        bound = interval(linear(_within(dim.upper, dim.lower)).expr(), ranges)
        found = max(found, bound[1] if bound is not None else 1024)
    return found


def _within(upper: IndexExpr, lower: IndexExpr) -> IndexExpr:
    """upper - lower; a minimum is taken apart, so that what both have in common goes away."""
    match upper:
        case IBin("min", left, right):
            return binary("min", _within(left, lower), _within(right, lower))
        case _:
            return linear(binary("-", upper, lower)).expr()


def _ranges(s: Statement) -> dict[str, Range]:
    """What the dims of a statement can be."""
    ranges: dict[str, Range] = {}
    for d in s.dims:
        low, high = interval(d.lower, ranges), interval(d.upper, ranges)
        if low is not None and high is not None:
            ranges[d.name] = low[0], max(low[0], high[1] - 1)
    return ranges


def trips(graph: TensorGraph, members: tuple[Member, ...]) -> list[int]:
    return [max(1, t) if (t := trip_of(graph, m)) is not None else 1024 for m in members]


def packed(rows: tuple[Member, ...], ty: int) -> tuple[list[Member], list[Member]]:
    """Block loops, and the loop over the rows of a block."""
    if not rows:
        return [], []
    last = rows[-1]
    if ty == 1:
        return [with_coordinate(m, Coordinate.BLK) for m in rows], []
    outer = derived(last, f"{last.name}_blk", lambda e: binary("//", e, ty), Coordinate.BLK)
    row = derived(last, last.name, lambda e: binary("%", e, ty), Coordinate.ROW)
    return [*(with_coordinate(m, Coordinate.BLK) for m in rows[:-1]), outer], [row]


def with_coordinate(m: Member, coordinate: Coordinate) -> Member:
    return replace(m, coordinate=coordinate)


def derived(m: Member, name: str, change: Callable[[IndexExpr], IndexExpr], coordinate: Coordinate) -> Member:
    return replace(m, name=name, exprs=tuple((n, change(e)) for n, e in m.exprs), coordinate=coordinate)


def spread_innermost(graph: TensorGraph, tree: Tree, tx: int, width: int) -> Tree:
    """The last loop of every innermost band in rounds, threads and vectors."""
    match tree:
        case Band(members, child, permutable) if spreads(graph, tree):
            return Band((*members[:-1], *spread(graph, members[-1], tx, width)), child, permutable)
        case Band(members, child, permutable) if has_band(child):
            return Band(members, spread_innermost(graph, child, tx, width), permutable)
        case Sequence(children):
            return Sequence(tuple(spread_innermost(graph, c, tx, width) for c in children))
        case _:
            return tree


def spreads(graph: TensorGraph, tree: Band) -> bool:
    """Do threads share the last loop of an innermost band? Else the first of them runs it alone."""
    return not has_band(tree.child) and shareable(graph, replace(tree, permutable=False)) is not None


def several_rows(wanted: int, rows: int | None, phases: bool) -> int:
    """Rows of a block. With several phases threads may wait for each other: it must be known who has none."""
    if rows is None:
        return 1 if phases else wanted
    return max(1, min(wanted, rows))


def spread(graph: TensorGraph, m: Member, tx: int, width: int) -> tuple[Member, ...]:
    """A loop as rounds of `tx` threads with vectors of `width` elements.

        h     ->     h // (tx width): rnd,  h // width % tx: thr,  h % width: vec

    Divisions are kept as they stand, so that `ir.schedule_tree.sequential` finds the loop again.
    """
    starts = {n: _start(graph, n, e, tx * width) for n, e in m.exprs}
    if IConst(0) in starts.values():  # all of them must take an iteration in the same round
        starts = dict.fromkeys(starts, IConst(0))

    def part(suffix: str, coordinate: Coordinate, divisor: int, modulus: int | None) -> Member:
        rows = []
        for n, e in m.exprs:
            value: IndexExpr = IBin("//", binary("-", e, starts[n]), IConst(divisor))
            rows.append((n, value if modulus is None else IBin("%", value, IConst(modulus))))
        return replace(m, name=m.name + suffix, exprs=tuple(rows), coordinate=coordinate)

    return (
        part("_rnd", Coordinate.ROUND, tx * width, None),
        part("", Coordinate.THREAD, width, tx),
        part("_vec", Coordinate.VECTOR, 1, width),
    )


def _start(graph: TensorGraph, name: str, e: IndexExpr, step: int) -> IndexExpr:
    """Where a loop starts, if that is a multiple of `step`: a chunk of a factored reduction."""
    if not isinstance(e, IVar):
        return IConst(0)
    dim = next((d for d in graph.statement(name).dims if d.name == e.name), None)
    if dim is None or not variables(dim.lower):
        return IConst(0)
    form = linear(dim.lower)
    plain = all(isinstance(a, IVar) for a, _ in form.terms)
    return dim.lower if plain and form.divisible(step) else IConst(0)


def shareable(graph: TensorGraph, inner: Band) -> Member | None:
    """The loop of an innermost band that threads may share: one along contiguous memory if there is one."""
    names = statements(inner)
    movable = inner.members if inner.permutable else inner.members[-1:]
    able = [m for m in movable if m.coincident and _plain(graph, m, names)]
    return max(able, key=lambda m: contiguity(graph, m, names), default=None)


def _plain(graph: TensorGraph, m: Member, names: tuple[str, ...]) -> bool:
    """Is a loop a dim of its own, or what is inside a tile of one, of every statement, none of them adding to
    what data finds?"""
    return all(_in_tile(m.of(n)) and not graph.statement(n).accumulate for n in names)


def _in_tile(e: IndexExpr) -> bool:
    match e:
        case IVar() | IBin("%", IVar(), IConst()):
            return True
        case _:
            return False


# --- coordinates ------------------------------------------------------------------------------------------

# A reduction over fewer iterations stays inside one thread.
SHORTEST_SHARED = 16
# Iterations of a sum that a thread takes before it is better split over blocks.
MOST_STEPS = 128
# Chunks of a reduction for each multiprocessor, and where only numbers are added up.
BLOCKS, BLOCKS_OF_NUMBERS = 2, 32
# Elements of sums of columns that a lane keeps in registers while its warp goes from row to row.
MOST_SUMS = 64


def map_phase(
    graph: TensorGraph, phase: Tree, gpu: GpuTarget, decisions: list[Decision]
) -> tuple[TensorGraph, list[Nest]]:
    """The phase with coordinates; a factored reduction gives further nests to run after it."""
    if not isinstance(phase, Band):
        return graph, [Nest(phase)]
    phase, atomic = _free_first(graph, phase)
    free = _free_count(graph, phase, atomic)
    shared = _shared_loop(graph, phase, free)
    columns = shared is None and free > 0 and _columns_pay(graph, phase, free, gpu)
    if columns and _steps(graph, phase, free, gpu) <= MOST_STEPS:
        return graph, [_columns(graph, phase, free, gpu, decisions)]
    split = _split(graph, phase, free, shared, gpu)
    if split is not None:
        return _factored(graph, phase, split, gpu, decisions)
    if shared is not None:
        return graph, [_rows(graph, shared, free, gpu, atomic, decisions)]
    if columns:
        return graph, [_columns(graph, phase, free, gpu, decisions)]
    if free:
        return graph, [_points(graph, phase, free, gpu, atomic, decisions)]
    decisions.append(Decision("map", _what(phase), True, "no loop is free: one thread runs it in order"))
    return graph, [Nest(phase)]


def threads_of_rows(graph: TensorGraph, rows: tuple[Member, ...], nest: Tree, gpu: GpuTarget) -> int:
    """Threads that a nest under the given rows keeps busy: one for each row, or a block where threads share
    the loops inside.  Rows that reduce count as well: they can be split."""
    count = prod(trips(graph, rows))
    alone = not isinstance(nest, Band) or _shared_loop(graph, nest, len(rows)) is None
    return count if alone else count * gpu.threads


def _what(tree: Tree) -> str:
    return ", ".join(statements(tree))


# --- free loops ----------------------------------------------------------------------------------------


def _free_first(graph: TensorGraph, phase: Band) -> tuple[Band, frozenset[str]]:
    """Free loops outermost where their order is open; statements whose updates must be atomic for that.

    An update of elements that are found by data may meet another in any loop: it is atomic then.
    """
    names = statements(phase)
    atomic = frozenset(
        n
        for n in names
        if graph.statement(n).accumulate and any(racing(graph, m, (n,)) for m in phase.members)
    )
    if phase.permutable:
        ordered = sorted(phase.members, key=lambda m: not _free(graph, m, names, atomic))
        phase = replace(phase, members=tuple(ordered))
    return phase, atomic


def _free(graph: TensorGraph, m: Member, names: tuple[str, ...], atomic: frozenset[str]) -> bool:
    return is_free(graph, m, tuple(n for n in names if n not in atomic))


def _free_count(graph: TensorGraph, phase: Band, atomic: frozenset[str]) -> int:
    """Number of leading free loops."""
    names = statements(phase)
    count = 0
    for m in phase.members:
        if not _free(graph, m, names, atomic):
            break
        count += 1
    return count


# --- rows: threads share a reduction ----------------------------------------------------------------------


def _shared_loop(graph: TensorGraph, phase: Band, free: int) -> Band | None:
    """The nest with the loops that threads share innermost, or None if each thread had better run its own.

    Threads share the innermost loops under the free ones where one of them walks contiguous memory.
    """
    rows = phase.members[:free]
    below = band(list(phase.members[free:]), phase.child, phase.permutable)
    worth = False
    for inner in innermost(below):
        best = shareable(graph, inner)
        if best is None:
            continue
        names = statements(inner)
        rivals = [contiguity(graph, m, names) for m in rows]
        trip = trip_of(graph, best)
        long = trip is None or trip >= SHORTEST_SHARED
        worth |= long and contiguity(graph, best, names) > max(rivals, default=-1)
        rest = tuple(m for m in inner.members if m is not best)
        below = _replaced(below, inner, replace(inner, members=(*rest, best)))
    if not worth:
        return None
    if isinstance(below, Band) and free < len(phase.members):
        return replace(phase, members=(*rows, *below.members), child=below.child)
    return replace(phase, members=rows, child=below) if rows else _as_band(below)


def _as_band(tree: Tree) -> Band:
    return tree if isinstance(tree, Band) else Band((), tree, True)


def _replaced(tree: Tree, old: Band, new: Band) -> Tree:
    if tree is old:
        return new
    match tree:
        case Band(members, child, permutable):
            return Band(members, _replaced(child, old, new), permutable)
        case Sequence(children):
            return Sequence(tuple(_replaced(c, old, new) for c in children))
        case Leaf():
            return tree


def _rows(
    graph: TensorGraph,
    phase: Band,
    free: int,
    gpu: GpuTarget,
    atomic: frozenset[str],
    decisions: list[Decision],
) -> Nest:
    """Rows of threads, each with its own iteration of the free loops."""
    rows = phase.members[:free]
    below = band(list(phase.members[free:]), phase.child, phase.permutable)
    width, longest = _vectors(graph, below, gpu)
    stepped = _stepped(graph, below, ceil(longest, width), width, gpu)
    if stepped is not None:
        blocks, _ = packed(rows, 1)
        tree = band(blocks, spread_innermost(graph, stepped, WARP, width), True)
        how = f"a warp owns a row, the {gpu.threads // WARP} of a block share the rows, vectors of {width}"
        decisions.append(Decision("map", _what(phase), True, how))
        return Nest(tree, (WARP, gpu.threads // WARP), width, atomic)
    starts: Starts = {}
    if gpu.vector is None:
        width, starts = row_starts(graph, phase, _spread_loops(graph, below), width)
        longest += width - 1 if starts else 0
    several = not (isinstance(below, Band) and not has_band(below.child))
    tx, ty = row_shape(ceil(longest, width), width, prod(trips(graph, rows)), gpu, several)
    ty = several_rows(ty, trip_of(graph, rows[-1]), several) if rows else 1
    how = f"{tx} threads share a row, {ty} rows a block, vectors of {width}"
    how += ", from the aligned place before the row on" if starts else ""
    decisions.append(Decision("map", _what(phase), True, how))
    blocks, rows_of_block = packed(rows, ty)
    spread = spread_innermost(graph, below, tx, width)
    return Nest(band([*blocks, *rows_of_block], spread, True), (tx, ty), width, atomic, starts=starts)


def _vectors(graph: TensorGraph, below: Tree, gpu: GpuTarget) -> tuple[int, int]:
    """(elements of a vector, those of the longest row) of the loops that threads share."""
    loops = _spread_loops(graph, below)
    width = gpu.vector or max(1, min(vector_width(graph, m, names) for m, names in loops))
    return width, max(extent(graph, m) for m, _ in loops)


def _spread_loops(graph: TensorGraph, below: Tree) -> list[tuple[Member, tuple[str, ...]]]:
    return [(b.members[-1], statements(b)) for b in innermost(below) if spreads(graph, b)]


def _stepped(graph: TensorGraph, below: Tree, lanes: int, width: int, gpu: GpuTarget) -> Tree | None:
    """A loop over rows that adds up columns, its rows shared by the warps of a block; None if it is none.

        B(t)[B(h)(c); B(h)(y, g__acc)]; B(h)(g__part)     ->     B(t: stp)[...]; B(h)(g__part)

    A warp owns a row, so that its totals need no barrier, and each warp keeps sums of columns in registers
    over all of its rows: they are put together once, after the loop.
    """
    children = below.children if isinstance(below, Sequence) else (below,)
    loops = [c for c in children if isinstance(c, Band) and has_band(c.child)]
    if len(loops) != 1 or len(loops[0].members) != 1 or gpu.row_threads not in (None, WARP):
        return None
    if gpu.columns == "blocks":
        return None
    (rows,) = loops
    step, names = rows.members[0], statements(rows)
    sums = racing(graph, step, names)
    kept = _sums_of_columns(graph, rows, step, lanes, width)
    fits = lanes <= WARP * ROUNDS_OF_A_WARP and kept <= MOST_SUMS and lanes > WARP // 2
    own = all(isinstance(step.of(n), IVar) and not graph.statement(n).accumulate for n in names)
    spread = all(spreads(graph, b) for b in innermost(rows))
    many = (trip_of(graph, step) or most_trips(graph, step) or 0) >= 2 * gpu.threads // WARP
    inside = own and _kept_inside(graph, names) and all(_is_whole(graph, n, rows) for n in sums)
    if not (sums and step.coincident and fits and spread and many and inside):
        return None
    steps = replace(rows, members=(with_coordinate(step, Coordinate.STEP),))
    return _replaced(below, rows, steps)


def _is_whole(graph: TensorGraph, statement: str, rows: Band) -> bool:
    """Does each row add to the same columns? Else conditions of both stand around the sums, and no scalar is
    kept through these."""
    over = set(variables(rows.members[0].of(statement)))
    inner = [b for b in innermost(rows) if statement in statements(b)]
    within = {v for b in inner for m in b.members for v in variables(m.of(statement))}
    for d in graph.statement(statement).dims:
        used = set(variables(d.lower)) | set(variables(d.upper))
        if (d.name in over and used & within) or (d.name in within and used & over):
            return False
    return True


def _kept_inside(graph: TensorGraph, names: tuple[str, ...]) -> bool:
    """Is what the statements hand to each other theirs alone? The lanes of a warp meet in registers only."""
    inside = set(names)
    for t in {graph.statement(n).target for n in names}:
        readers = {s.name for s in graph.readers(t)}
        users = readers | {s.name for s in graph.writers(t)}
        if readers & inside and (not users <= inside or graph.tensor(t).role is not Role.TEMP):
            return False
    return True


def _sums_of_columns(graph: TensorGraph, below: Tree, step: Member, lanes: int, width: int) -> int:
    """Elements of sums over the rows of a loop that each lane of a warp keeps."""
    kept = 0
    for b in innermost(below):
        for n in racing(graph, step, statements(b)):
            along = set(variables(b.members[-1].of(n)))
            whole = along <= {i.name for i in graph.statement(n).write if isinstance(i, IVar)}
            kept += ceil(lanes, WARP) * width if whole else 1
    return kept


# --- points: each thread has its own iterations -------------------------------------------------------------


def _points(
    graph: TensorGraph,
    phase: Band,
    free: int,
    gpu: GpuTarget,
    atomic: frozenset[str],
    decisions: list[Decision],
) -> Nest:
    names = statements(phase)
    members = phase.members[:free]
    below = band(list(phase.members[free:]), phase.child, phase.permutable)
    axis = _axis(graph, members, names)
    others = tuple(m for m in members if m is not axis)
    width = _width(graph, axis, names, gpu)
    while has_band(below) and width > 1 and prod(trips(graph, members)) // width < gpu.sms * gpu.threads:
        width //= 2  # long work in each thread: more of them rather than wider ones
    span = span_of(graph, axis)
    base = span.start // width * width if span is not None else 0
    lanes = max(1, ceil(span.stop - base, width)) if span is not None else gpu.threads + 1
    tx = _threads_along(lanes, gpu, few=not has_band(below))
    # Small blocks are sooner done all at once, and the next ones begin.
    most = gpu.threads if has_band(below) or gpu.threads % (2 * WARP) else gpu.threads // 2
    ty = min(max(1, most // tx), trips(graph, others)[-1]) if others and tx >= lanes else 1
    blocks, rows_of_block = packed(others, ty)
    vectors = derived(axis, axis.name, lambda e: binary("//", binary("-", e, base), width), Coordinate.THREAD)
    threads = [vectors]
    if lanes > tx:
        blocks.append(derived(vectors, f"{axis.name}_blk", lambda e: binary("//", e, tx), Coordinate.BLK))
        threads = [derived(vectors, axis.name, lambda e: binary("%", e, tx), Coordinate.THREAD)]
    count = 1
    if not has_band(below) and not atomic:
        pieces = Loop(len(others), vectors, axis, tx, lanes if lanes > tx else 1)
        rows = [Loop(len(others) - 1, m, m, ty, trip_of(graph, m) or 1) for m in others[-1:]]
        stream = Stream(graph, names, axis, width, prod(trips(graph, members)) // width, gpu)
        count, near = stream.neighbours(blocks, [*rows, pieces])
        threads += near
    if width > 1:
        vec = derived(
            axis, f"{axis.name}_vec", lambda e: binary("%", binary("-", e, base), width), Coordinate.VECTOR
        )
        below = push(vec, below, together=True)
    how = f"{tx} x {ty} threads along {axis.name}, vectors of {width}"
    how += f", {count} of them on the way" if count > 1 else ""
    decisions.append(Decision("map", _what(phase), True, how))
    return Nest(band([*blocks, *rows_of_block, *threads], below, True), (tx, ty), width, atomic)


def _threads_along(lanes: int, gpu: GpuTarget, few: bool) -> int:
    """Threads that blocks have along `lanes` iterations, so that as few as possible have none.

    `few`: small blocks rather than large ones, whose places are free again only all at once.
    """
    most = gpu.row_threads or gpu.threads
    if lanes <= most or gpu.row_threads or most % (2 * WARP):
        return min(most, lanes)
    sizes = range(most // 2, most + 1, WARP)
    idle = {tx: (ceil(lanes, tx) * tx - lanes) // ceil(lanes, FEW) for tx in sizes}
    return min(sizes, key=lambda tx: (idle[tx], tx if few else -tx))


def _axis(graph: TensorGraph, members: tuple[Member, ...], names: tuple[str, ...]) -> Member:
    """The free loop whose iterations go to neighbouring threads."""
    worth = heavy(graph, names)
    large = large_tensors(graph, worth)
    return max(
        reversed(members),
        key=lambda m: (contiguity(graph, m, worth, large), contiguity(graph, m, worth)),
    )


def _width(graph: TensorGraph, axis: Member, names: tuple[str, ...], gpu: GpuTarget) -> int:
    return gpu.vector or vector_width(graph, axis, names)


# --- columns: the rows of a block share a reduction -------------------------------------------------------


def _columns_pay(graph: TensorGraph, phase: Band, free: int, gpu: GpuTarget) -> bool:
    """Is a nest one of long sums, too few to fill the device with a thread for each?"""
    if free == len(phase.members) or has_band(phase.child) or not phase.permutable:
        return False
    names = statements(phase)
    step = phase.members[free]
    shared = step.coincident and set(racing(graph, step, names)) == set(names)
    few = prod(trips(graph, phase.members[:free])) < gpu.sms * gpu.threads
    trip = trip_of(graph, step)
    plain = not any(graph.statement(n).accumulate for n in names)
    return shared and few and plain and trip is not None and trip >= 2 * SHORTEST_SHARED


def _steps(graph: TensorGraph, phase: Band, free: int, gpu: GpuTarget) -> int:
    """Iterations that one of the rows of a block would take."""
    return ceil(trip_of(graph, phase.members[free]) or 0, gpu.threads // WARP)


def _columns(graph: TensorGraph, phase: Band, free: int, gpu: GpuTarget, decisions: list[Decision]) -> Nest:
    """A warp for 32 neighbouring sums; the warps of a block share the iterations.

    B(k)B(h)(sum)     ->     B(h // 32: blk, h % 32: thr)B(k: stp)(sum)
    """
    names = statements(phase)
    members = phase.members[:free]
    large = large_tensors(graph, names)
    axis = max(reversed(members), key=lambda m: contiguity(graph, m, names, large))
    others = [with_coordinate(m, Coordinate.BLK) for m in members if m is not axis]
    tx = min(gpu.row_threads or WARP, trips(graph, (axis,))[0])
    ty = max(1, gpu.threads // tx)
    blocks = derived(axis, f"{axis.name}_blk", lambda e: binary("//", e, tx), Coordinate.BLK)
    threads = derived(axis, axis.name, lambda e: binary("%", e, tx), Coordinate.THREAD)
    steps = with_coordinate(phase.members[free], Coordinate.STEP)
    below = Band((steps, *phase.members[free + 1 :]), phase.child, True)
    how = f"{tx} threads along {axis.name}, {ty} rows of them share {steps.name}"
    decisions.append(Decision("map", _what(phase), True, how))
    return Nest(band([*others, blocks, threads], below, True), (tx, ty), 1)


# --- factored: a reduction over blocks ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Split:
    loop: Member
    reductions: tuple[str, ...]
    chunk: int
    chunks: int
    start: int


def _split(graph: TensorGraph, phase: Band, free: int, shared: Band | None, gpu: GpuTarget) -> _Split | None:
    """How to split a reduction over blocks where the free loops alone do not fill the device."""
    names = statements(phase)
    if volume(graph, names) < gpu.parallel or not phase.permutable or free == len(phase.members):
        return None
    rows = prod(trips(graph, phase.members[:free]))
    if shared is None:
        loop = phase.members[free]
        if (trip_of(graph, loop) or 0) <= MOST_STEPS:
            return None
        width = _width(graph, _axis(graph, phase.members[:free], names), names, gpu) if free else 1
        found = _chunks(graph, loop, names, 1, rows // gpu.threads, gpu)
        # Each thread has a vector of sums: more chunks keep them all busy.
        rows //= gpu.threads * width
        return found and _chunks(graph, loop, names, 1, rows, gpu, SHORTEST_SHARED)
    # Loops around the one that threads share are split first: what they share stays whole.
    outer = shared.members[free:] if has_band(shared.child) else shared.members[free:-1]
    below = band(list(shared.members[free:]), shared.child, shared.permutable)
    for loop in outer:
        found = _chunks(graph, loop, names, 1, rows, gpu, blocks=_blocks(graph, below, gpu))
        if found is not None:
            return found
    if has_band(shared.child) or not shared.members[free:]:
        return None
    loop = shared.members[-1]
    return _chunks(graph, loop, names, gpu.threads * vector_width(graph, loop, names), rows, gpu)


def _blocks(graph: TensorGraph, below: Tree, gpu: GpuTarget) -> int:
    """Chunks of rows for each multiprocessor.

    Many where only numbers are added up over rows: then no multiprocessor waits long for the last one.  One
    where the sums of columns of its warps fill the registers.
    """
    if not isinstance(below, Band) or len(below.members) != 1:
        return BLOCKS
    width, longest = _vectors(graph, below, gpu)
    step, lanes = below.members[0], ceil(longest, width)
    kept = _sums_of_columns(graph, below, step, lanes, width)
    if kept <= len(racing(graph, step, statements(below))):
        return BLOCKS_OF_NUMBERS
    full = lanes <= WARP * ROUNDS_OF_A_WARP and MOST_SUMS // 2 < kept <= MOST_SUMS
    return 1 if full else BLOCKS


def _chunks(
    graph: TensorGraph,
    loop: Member,
    names: tuple[str, ...],
    unit: int,
    rows: int,
    gpu: GpuTarget,
    shortest: int = 1,
    blocks: int = BLOCKS,
) -> _Split | None:
    """The chunks of a loop, multiples of `unit`, next to `rows` other iterations that run in parallel.

    `blocks`: chunks that are wanted for each multiprocessor.
    """
    span = span_of(graph, loop)
    reductions = racing(graph, loop, names)
    if span is None or rows >= gpu.sms or not loop.coincident or not reductions:
        return None
    if any(graph.statement(n).accumulate or not isinstance(loop.of(n), IVar) for n in reductions):
        return None
    each = max(1, volume(graph, names) // max(1, len(span)))
    least = ceil(gpu.least, each)  # a block must have some work
    wanted = ceil((gpu.chunks or blocks) * gpu.sms, max(1, rows))
    chunk = ceil(max(least, shortest, ceil(len(span), wanted)), unit) * unit
    chunks = ceil(len(span), chunk)
    return _Split(loop, reductions, chunk, chunks, span.start) if chunks > 1 else None


def _factored(
    graph: TensorGraph, phase: Band, split: _Split, gpu: GpuTarget, decisions: list[Decision]
) -> tuple[TensorGraph, list[Nest]]:
    rest = tuple(m for m in phase.members if m is not split.loop)
    nest = replace(phase, members=(split.loop, *rest))
    graph, trees = rfactor(graph, nest, split.reductions, split.chunk, split.chunks, split.start)
    what = f"{split.chunks} chunks of {split.chunk} iterations of {split.loop.name}"
    why = f"partial results over {what} fill the device"
    decisions.append(Decision("rfactor", ", ".join(split.reductions), True, why))
    first = trees[0]
    assert isinstance(first, Band)
    if not (isinstance(first.child, Band) and not has_band(first.child.child)):
        # In a perfect nest each thread keeps its sums anyway.
        parts = frozenset(r.tensor for t in trees[1:] for n in statements(t) for r in _reads(graph, n))
        graph, trees[0] = written_back(graph, first, parts)
    nests: list[Nest] = []
    for t in trees:
        graph, mapped = map_phase(graph, _unmapped(t), gpu, decisions)
        nests += mapped
    return graph, nests


def _reads(graph: TensorGraph, statement: str) -> tuple[Read, ...]:
    return statement_reads(graph.statement(statement))


def _unmapped(tree: Tree) -> Tree:
    """The nest with its leading loops in one band, without coordinates."""
    if isinstance(tree, Band) and isinstance(tree.child, Band):
        inner = tree.child
        tree = Band((*tree.members, *inner.members), inner.child, tree.permutable and inner.permutable)
    assert isinstance(tree, Band)
    return replace(tree, members=tuple(with_coordinate(m, Coordinate.SEQ) for m in tree.members))
