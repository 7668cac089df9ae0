"""Rematerialisation: recompute a cheap producer in a later phase instead of storing it.

A temporary that crosses phases is written once and read once per later phase.  Recomputing it there
reads its operands instead, those that the phase does not read anyway.  The rewrite is taken where it
moves no more bytes and repeats no expensive function.

What a sum reads in windows is kept:

    p[c, h] = x[c, h - 1] if 1 <= h < H + 1 else 0;   y[k, q] = sum[c, r](p[c, q + r] * w[k, c, r])

Tiles read the elements of p in place.  An expression in their place would have to be copied for them, and
computed once for each r.  Without tiles, the condition would be asked for each r, and there are no vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from polyfuse.cost.extents import elements_at, elements_of, tensor_bytes
from polyfuse.decisions import Decision
from polyfuse.ir.functions import is_function
from polyfuse.ir.index_expr import binary, variables
from polyfuse.ir.schedule_tree import Band, Leaf, Sequence, Tree, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Const,
    IndexValue,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
    depends_on,
    reads,
    walk,
)
from polyfuse.layers.contractions.contraction import contraction_of
from polyfuse.layers.contractions.factors import plain
from polyfuse.layers.graph.inline import inlinable, inline

MOST_OPERATIONS = 16
# An element that a contraction reads so often is worth its memory.
FEWEST_AGAIN = 1.5


def rematerialise(
    graph: TensorGraph, tree: Tree, planner: Callable[[TensorGraph], Tree], decisions: list[Decision]
) -> tuple[TensorGraph, Tree]:
    """Inline what pays until nothing does; the tree is planned again after each step."""
    while True:
        crossing = _crossing(graph, tree)
        taken = next((d for t in crossing if (d := _judge(graph, tree, t)).taken), None)
        if taken is None:
            decisions.extend(_judge(graph, tree, t) for t in crossing)
            return graph, tree
        decisions.append(taken)
        graph = inline(graph, taken.subject)
        tree = planner(graph)


def _crossing(graph: TensorGraph, tree: Tree) -> list[str]:
    """Temporaries that are read in another phase than they are written in, in order of the graph."""
    phase = phases(tree)
    found = []
    for t in graph.tensors:
        if t.role is Role.TEMP and t.shape:
            mine = {phase[s.name] for s in graph.writers(t.name)}
            if {phase[s.name] for s in graph.readers(t.name)} - mine:
                found.append(t.name)
    return found


def phases(tree: Tree) -> dict[str, int]:
    """statement -> number of its phase (innermost fused nest), in order of execution."""
    numbers: dict[str, int] = {}
    count = 0

    def go(t: Tree) -> None:
        nonlocal count
        match t:
            case Leaf() | Band():
                below = t.child if isinstance(t, Band) else t
                if isinstance(below, Sequence) and not all(isinstance(c, Leaf) for c in below.children):
                    go(below)
                    return
                for name in statements(t):
                    numbers[name] = count
                count += 1
            case Sequence(children):
                for c in children:
                    go(c)

    go(tree)
    return numbers


def _judge(graph: TensorGraph, tree: Tree, tensor: str) -> Decision:
    producer = inlinable(graph, tensor)
    if producer is None:
        return Decision("rematerialise", tensor, False, "its definition cannot replace a read of it")
    costly = sorted({e.op for e in walk(producer.expr) if isinstance(e, Apply) and is_function(e)})
    if costly:
        return Decision("rematerialise", tensor, False, f"it would compute {', '.join(costly)} again")
    if (large := too_large(producer)) is not None:
        return Decision("rematerialise", tensor, False, large)
    if (reader := _windows(graph, producer)) is not None:
        return Decision("rematerialise", tensor, False, f"{reader} reads each element several times")
    stored, recomputed = _traffic(graph, tree, producer)
    if recomputed <= stored:
        reason = "recomputing it in the phases that read it moves fewer bytes than storing it"
        return Decision("rematerialise", tensor, True, reason, saved_bytes=stored - recomputed)
    return Decision(
        "rematerialise", tensor, False, "recomputing it would read more bytes than storing it moves"
    )


def too_large(producer: Statement) -> str | None:
    """Why a statement is no part of its readers: it has too many operations.

    What reads it several times has them as often, and its own readers that many times again: without a limit
    a chain of n stencils of three points has 3^n of them.
    """
    repeated = sum(isinstance(e, (Apply, Select)) for e in walk(producer.expr))
    return f"it would repeat {repeated} operations" if repeated > MOST_OPERATIONS else None


def _windows(graph: TensorGraph, producer: Statement) -> str | None:
    """What reads each element of what is computed several times: the terms of a contraction with tiles, or of
    any sum, if a condition stood in each; and elements side by side (``m[h // 2, w // 2]``), if it computes
    much."""
    if isinstance(producer.expr, Read | Const | IndexValue):
        return None  # another element of memory serves as well, or a number
    guarded = any(isinstance(e, Select) for e in walk(producer.expr))
    operations = sum(not isinstance(e, Const | IndexValue) for e in walk(producer.expr))
    count = elements_of(graph, producer.target)
    for s in graph.readers(producer.target):
        trips = {d.name: _trip(d) for d in s.dims}
        fewest = FEWEST_AGAIN if s.reduction else max(FEWEST_AGAIN, MOST_OPERATIONS / operations)
        terms = list(reads(s.expr)) if guarded or not s.reduction else [*_factors(graph, s)]
        if not s.reduction:  # what does not depend on all loops is computed outside of some
            terms = [r for r in terms if depends_on(r) == trips.keys()]
        for r in terms:
            if r.tensor == producer.target and prod(trips[d] for d in depends_on(r)) >= fewest * count:
                return s.name
    return None


def _trip(d: IterDim) -> int:
    """How long a dim is; 1 where that depends on others."""
    extent = binary("-", d.upper, d.lower)
    return 1 if variables(extent) else elements_at(extent)


def _factors(graph: TensorGraph, s: Statement) -> Iterator[Read]:
    """The factors of a contraction with tiles that are read in place."""
    found = contraction_of(graph, s)
    if found is not None:
        yield from (f for f in (found.left, found.right) if isinstance(f, Read) and plain(f))


def _traffic(graph: TensorGraph, tree: Tree, producer: Statement) -> tuple[int, int]:
    """(bytes moved by storing the tensor, bytes moved by recomputing it)."""
    phase = phases(tree)
    tensor = producer.target
    readers: dict[int, list[Statement]] = {}
    for s in graph.readers(tensor):
        readers.setdefault(phase[s.name], []).append(s)
    here = phase[producer.name]
    later = [p for p in readers if p != here]
    stored = tensor_bytes(graph, tensor) * (1 + len(later))
    operands: dict[str, int] = {}
    for r in reads(producer.expr):
        operands[r.tensor] = max(operands.get(r.tensor, 0), _read_bytes(graph, producer, r))
    recomputed = 0
    for p in later:
        present = {r.tensor for s in graph.statements if phase[s.name] == p for r in reads(s.expr)}
        recomputed += sum(nbytes for o, nbytes in operands.items() if o not in present)
    return stored, recomputed


def _read_bytes(graph: TensorGraph, s: Statement, r: Read) -> int:
    """Bytes that a statement reads of a tensor: all of it, or what data name of a table whose extents are
    open, if that is more."""
    whole = tensor_bytes(graph, r.tensor)
    if not graph.sizes or not any(isinstance(i, EXPR_TYPES) for i in r.indices):
        return whole
    trips = {d.name: _trip(d) for d in s.dims}
    return max(whole, r.dtype.bytes * prod(trips[d] for d in depends_on(*r.indices)))
