"""Interchange: the order of loops, by how they walk memory.

`best_of`          which loop is to run innermost
`along_writes`     the order of the outer loops of a copy
`sink`             a parallel loop along memory goes innermost, into every phase of a nest

The innermost loop is the one that walks most memory element by element:

    y[q] = sum[c, s](x[c, q + s] * w[c, s])      along q, as s has three iterations
    s[k] = max[j](t[j] + w[j, k])                along k: both walk a state, and k the weights as well
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import replace
from itertools import pairwise
from math import prod

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.cost.extents import tensor_bytes
from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.data_ranges import bounding
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.schedule_tree import Band, Coordinate, Member, Sequence, Tree, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Index,
    Role,
    Statement,
    TensorGraph,
    depends_on,
    statement_reads,
)
from polyfuse.layers.graph.domains import window_rows
from polyfuse.layers.mapping.nests import (
    NEAR,
    address,
    has_band,
    heavy,
    innermost,
    is_free,
    most_trips,
    push,
    racing,
    stride,
    trip_of,
)

# --- the innermost loop -----------------------------------------------------------------------------------

# Shorter loops fill no vectors.
FEWEST_LANES = 16


def better(
    graph: TensorGraph, best: Member, inner: Collection[Member], names: tuple[str, ...], held: Set[str]
) -> bool:
    """Is a free loop to run innermost in place of others: does it walk more memory element by element?  Of
    what stays in cache, or where the others fill no vectors, only a loop that fills some.  Where the others
    fill no vector, one that is no shorter, walks along something and strides nowhere: results of windows, of
    which neighbours read what lies side by side."""
    mine = contiguity(graph, best, names, held)
    theirs = max((contiguity(graph, m, names, held) for m in inner), default=(0, 0))
    trips = [most_trips(graph, m) for m in (best, *inner)]
    own, *others = (FEWEST_LANES if t is None else t for t in trips)
    longest = max(others, default=FEWEST_LANES)
    if longest < FEWEST_LANES and longest <= own and _only_walks(graph, best, names, held):
        return True
    if mine[0] != theirs[0] or own < FEWEST_LANES:
        return mine[0] > theirs[0]
    return mine > theirs or (mine > (0, 0) and max(others, default=0) < FEWEST_LANES)


def best_of(
    graph: TensorGraph, free: Iterable[Member], names: tuple[str, ...], held: Set[str]
) -> Member | None:
    """The free loop that walks most memory element by element; of those that walk none of large tensors, one
    that walks along something at least."""
    return max(
        free,
        key=lambda m: (contiguity(graph, m, names, held), _only_walks(graph, m, names, held)),
        default=None,
    )


def contiguity(graph: TensorGraph, m: Member, names: tuple[str, ...], held: Set[str]) -> tuple[int, int]:
    """Accesses of some statements that walk contiguous memory along a loop, less those that stride: of large
    tensors, then of all.  Small ones next to large ones stay in cache, and decide between equals only, where
    these walk along memory: a transpose is as fast along one side as along the other.  Where data says what
    is read, each iteration reads elsewhere, lane by lane even from what stays in cache."""
    large = every = 0
    chosen = [(graph.statement(n), e.name) for n, e in m.exprs if n in names and isinstance(e, IVar)]
    # Of all: totals are small beside what comes to their statement in registers.
    most = max((tensor_bytes(graph, t) for s, _ in chosen for t, _ in _accesses(s, held)), default=0)
    for s, dim in chosen:
        mine = walked(graph, s, dim, held, most)
        large, every = large + mine[0], every + mine[1]
    return large, every if large > 0 else 0


def _accesses(s: Statement, held: Set[str]) -> list[tuple[str, tuple[Index, ...]]]:
    """An element that an expression reads twice is loaded once."""
    accesses = [(s.target, s.write), *((r.tensor, r.indices) for r in statement_reads(s))]
    return [(t, indices) for t, indices in dict.fromkeys(accesses) if t not in held]


def walked(
    graph: TensorGraph, s: Statement, dim: str, held: Set[str] = frozenset(), most: int | None = None
) -> tuple[int, int]:
    """`contiguity` of one statement and one of its dims; the largest tensor has `most` bytes (None: of those
    that it has)."""
    large = every = 0
    accesses = _accesses(s, held)
    if most is None:
        most = max((tensor_bytes(graph, t) for t, _ in accesses), default=0)
    for tensor, indices in accesses:
        score = _score_of(graph, tensor, indices, dim)
        every += score
        gathered = any(isinstance(i, EXPR_TYPES) for i in indices)
        large += score if gathered or tensor_bytes(graph, tensor) * 8 >= most else 0
    return large, every


def _only_walks(graph: TensorGraph, m: Member, names: tuple[str, ...], held: Set[str]) -> bool:
    """Does some access walk contiguous memory along a loop, and none stride?"""
    chosen = [(graph.statement(n), e.name) for n, e in m.exprs if n in names and isinstance(e, IVar)]
    scores = [_score_of(graph, *a, dim) for s, dim in chosen for a in _accesses(s, held)]
    return max(scores, default=0) > 0 and min(scores) >= 0


def _score_of(graph: TensorGraph, tensor: str, indices: tuple[Index, ...], dim: str) -> int:
    """1 for an access that walks along memory with a dim, less than 0 for one that strides."""
    steps = [k for k, i in enumerate(indices) if not isinstance(i, EXPR_TYPES) and _steps(i, dim)]
    jumps = any(dim in depends_on(i) for i in indices if isinstance(i, EXPR_TYPES))
    return -1 if jumps else sum(_score(graph.tensor(tensor).shape[k + 1 :]) for k in steps)


def _score(inner: tuple[IndexExpr, ...]) -> int:
    """What a step in the dim before these dims counts."""
    if not inner:
        return 1
    apart = [e.value for e in inner if isinstance(e, IConst)]
    return 0 if len(apart) == len(inner) and prod(apart) <= NEAR else -1


def sums_along_memory(graph: TensorGraph, tree: Tree) -> Tree:
    """Sums over all loops of a nest, which may go in any order, with the loop along memory innermost.

    B(j)B(i)(s)  with s = sum[i, j](x[i, j])     becomes     B(i, j)(s)
    """
    match tree:
        case Band(members, child, permutable):
            turned = _turned_sum(graph, tree)
            return turned or Band(members, sums_along_memory(graph, child), permutable)
        case Sequence(children):
            return Sequence(tuple(sums_along_memory(graph, c) for c in children))
        case _:
            return tree


def _turned_sum(graph: TensorGraph, nest: Band) -> Band | None:
    names, members, inner = statements(nest), nest.members, nest.child
    while isinstance(inner, Band):
        members, inner = (*members, *inner.members), inner.child
    summed = all(m.coincident and racing(graph, m, names) for m in members)
    best = max(reversed(members), key=lambda m: contiguity(graph, m, names, frozenset()))
    if (
        len(names) != 1
        or not summed
        or finds_bounds(graph, best, names)
        or not better(graph, best, members[-1:], names, frozenset())
    ):
        return None
    return Band((*(m for m in members if m != best), best), inner, True)


def held(graph: TensorGraph, names: tuple[str, ...]) -> set[str]:
    """The temporaries that statements of one loop body pass to each other, an element in each iteration: they
    will be registers."""
    return {
        t
        for t in (graph.statement(n).target for n in names)
        if graph.tensor(t).role is Role.TEMP and all(w.name in names for w in graph.writers(t))
        if all(u.name in names and _reads_own(u, t) for u in graph.readers(t))
    }


def _reads_own(s: Statement, tensor: str) -> bool:
    """Does each instance of a statement read another element of a tensor?"""
    own = {IVar(d.name) for d in s.dims}
    return all(set(r.indices) == own for r in statement_reads(s) if r.tensor == tensor)


def _steps(i: IndexExpr, dim: str) -> bool:
    """Is the next iteration of a dim at the next index?"""
    match i:
        case IVar(name):
            return name == dim
        case IBin("+", left, right):
            return _steps(left, dim) != _steps(right, dim)
        case IBin("-", left, right):
            return _steps(left, dim) and dim not in variables(right)
        case _:
            return False


# --- outer loops of copies --------------------------------------------------------------------------------

# The order of the outer loops of a copy: that in which most of what it touches lies in memory.
#
#     q[n, h, s, d] = x[n, s, h, d]        B(n, s, h)(q)     becomes     B(n, h, s)(q)
#
# A row along d is a piece of memory in any case; the loops around it say whether the next piece is beside it.
# Each tensor has an order of its own, that of its strides.  Where writes and reads are as many, writes
# decide: a line of the result that is written in part is fetched before, and again if it left the cache
# since.  Three results of one tensor took 2.4 times as long in the order of the tensor (docs/lab/targets.md).
# Long pieces gain nothing, and kernels that run one after the other keep their order: what a worker has is in
# its caches.


def along_writes(graph: TensorGraph, phase: Band) -> Band:
    """The nest with its outer loops in such an order; itself where that is theirs, or nothing is known."""
    names = statements(phase)
    *outer, last = phase.members
    plain = all(m.coordinate is Coordinate.SEQ and is_free(graph, m, names) for m in phase.members)
    if len(outer) < 2 or not (phase.permutable and plain) or has_band(phase.child):
        return phase
    size = max(graph.tensor(graph.statement(n).target).dtype.bytes for n in names)
    if (trip_of(graph, last) or FITTED.outer_order_longest) * size > FITTED.outer_order_longest:
        return phase
    found = [*_strides(graph, outer, names)]
    if any(graph.statement(n).reduction for n in names) or any(s is None for _, s in found):
        return phase
    every = [(written, s) for written, s in found if s is not None]
    orders = [tuple(range(len(outer)))]
    orders += [tuple(sorted(orders[0], key=lambda k: -s[k])) for written, s in every if written and all(s)]
    best = max(orders, key=lambda order: _agreeing(order, every))
    return replace(phase, members=(*(outer[k] for k in best), last))


def _agreeing(order: tuple[int, ...], every: list[tuple[bool, tuple[int, ...]]]) -> tuple[int, int]:
    """How many accesses have longer steps in outer loops, and how many of these are writes."""
    fits = [written for written, s in every if _falls([s[k] for k in order if s[k]])]
    return len(fits), sum(fits)


def _falls(steps: list[int]) -> bool:
    return all(a >= b for a, b in pairwise(steps))


def _strides(
    graph: TensorGraph, outer: list[Member], names: tuple[str, ...]
) -> Iterator[tuple[bool, tuple[int, ...] | None]]:
    """Of each access: is it a write, and how far apart the elements of neighbouring iterations are."""
    for n in names:
        s = graph.statement(n)
        variables = [m.of(n) for m in outer]
        touched = [(True, s.target, s.write), *((False, r.tensor, r.indices) for r in statement_reads(s))]
        for written, tensor, indices in touched:
            where = address(graph, tensor, indices)
            steps = [stride(where, v.name) if isinstance(v, IVar) else None for v in variables]
            known = [abs(x) for x in steps if x is not None]
            yield written, tuple(known) if len(known) == len(steps) else None


# --- loops along memory go inside -------------------------------------------------------------------------

# A parallel loop along contiguous memory goes innermost, into every phase of a nest (CPU).
#
#     B(j)[c0; B(t)(c1)]     becomes     B(j // 256)[B(j)(c0); B(t)B(j)(c1)]
#     B(b, k, f)(y)          becomes     B(b, f, k)(y)
#
# Totals over the loop itself may be beside: they get a loop of their own.


# Strips that are shared out evenly have a few lines of the narrowest type, and whole ones, or lines of wider
# types where threads would have more than so much to do beyond their share.
SHORTEST_STRIP, WHOLE, UNEVEN = 128, (64, 32, 16), 1.1


def sink(graph: TensorGraph, phase: Band, threads: int, decisions: list[Decision], knobs: CpuKnobs) -> Tree:
    """The nest with such a loop innermost, cut into strips if it is long."""
    names = statements(phase)
    worth = heavy(graph, names)
    perfect = not has_band(phase.child)
    free = [m for m in phase.members if m.coordinate is Coordinate.SEQ and _may_sink(graph, m, phase)]
    inner = [m for b in innermost(phase) for m in b.members[-1:]]
    passed = {t for b in innermost(phase) for t in held(graph, statements(b))}
    best = best_of(graph, free, worth, passed)
    if best is None or best in inner or (perfect and not phase.permutable):
        return phase
    trip = trip_of(graph, best)
    if not better(graph, best, inner, worth, passed):
        return phase
    strip = None
    kept = not (perfect and all(is_free(graph, m, names) for m in phase.members))
    alone = len(phase.members) == 1  # nothing else would be left to spread over workers
    if kept and (alone or not window_rows(graph, names, trip)):  # else it stays in registers
        size = knobs.sunk_strip or sunk_strip(trip, threads)
        strip = strips(best, size) if trip is None or trip > size else None
    members = tuple(
        x for m in phase.members for x in ((strip,) if m == best and strip else () if m == best else (m,))
    )
    why = "the loop along contiguous memory runs innermost"
    decisions.append(Decision("interchange", best.name, True, why))
    if perfect:
        return replace(phase, members=(*members, best))
    child = push(best, phase.child)
    return Band(members, child, True) if members else child


def goes_inside(graph: TensorGraph, phase: Band) -> bool:
    """Will the first loop of a nest be moved innermost?"""
    names, outer = statements(phase), phase.members[0]
    inner = [m for b in innermost(phase) for m in b.members[-1:]]
    passed = {t for b in innermost(phase) for t in held(graph, statements(b))}
    if not has_band(phase.child) or outer in inner or not _may_sink(graph, outer, phase):
        return False
    return better(graph, outer, inner, heavy(graph, names), passed)


def _may_sink(graph: TensorGraph, m: Member, phase: Band) -> bool:
    """Is a loop free, but for totals over it that are in no loop inside, and get one of their own?  Where it
    finds the bounds of others in data, it stays around these."""
    inside = {n for b in innermost(phase) for n in statements(b)}
    alone = not inside & {*racing(graph, m, statements(phase))}
    return m.coincident and alone and not finds_bounds(graph, m, statements(phase))


def finds_bounds(graph: TensorGraph, m: Member, names: Iterable[str]) -> bool:
    """Do bounds from data of other loops depend on one? Inside of these it runs for all of them."""
    own = ((graph.statement(n), m.of(n)) for n in names)
    return any({*variables(at)} & deps for s, at in own for deps in bounding(s).values())


def sunk_strip(trip: int | None, threads: int) -> int:
    """The length of strips that all threads have equally many of, where each has one at least."""
    if trip is None or trip < threads * SHORTEST_STRIP:
        return FITTED.sinking_sunk_strip
    strips = -(-trip // FITTED.sinking_sunk_strip)
    each = -(-trip // (-(-strips // threads) * threads))
    lengths = [-(-each // whole) * whole for whole in WHOLE]
    return min(FITTED.sinking_sunk_strip, next((n for n in lengths if n <= UNEVEN * each), lengths[-1]))


def strips(m: Member, size: int) -> Member:
    return replace(m, name=f"{m.name}_blk", exprs=tuple((n, binary("//", e, size)) for n, e in m.exprs))
