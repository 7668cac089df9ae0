"""Which loop is to run innermost: the one that walks most memory element by element.

y[q] = sum[c, s](x[c, q + s] * w[c, s])      along q, as s has three iterations
s[k] = max[j](t[j] + w[j, k])                along k: both walk a state, and k the weights as well
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from math import prod

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, variables
from polyfuse.ir.schedule_tree import Band, Member, Sequence, Tree, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Index,
    Role,
    Statement,
    TensorGraph,
    depends_on,
    statement_reads,
)
from polyfuse.layers.nest import most_trips, racing
from polyfuse.layers.rematerialise import tensor_bytes

# Shorter loops fill no vectors.
FEWEST_LANES = 16
# Elements that lie so many apart share lines, as those of a channel of a picture do: such steps neither walk
# along memory nor stride.
NEAR = 4


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
    if len(names) != 1 or not summed or not better(graph, best, members[-1:], names, frozenset()):
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
