"""Which buffers of a CPU have prefetches and non-temporal stores; `codegen` puts them into loops.

`prefetched_rows`        the next row of a stitched kernel, while the last phase computes
`prefetched_lines`       lines shortly before loops read them
`non_temporal_stores`    results that are not read again soon
`hints_where_far`        all of that for open sizes, under a condition

The next row's inputs are prefetched while the last phase of a stitched row computes:

    B(t)@blk[ phase; phase; (fetch x[t + 1, :]); phase ]

The first phase of a row waits for memory, the others compute from the cache, and memory is idle meanwhile.
What a row reads of a large tensor is prefetched a row ahead.  A row goes over the last dim of its tensor, and
the loop over rows over the dim before it.  Where the last phase reads what others kept instead, a row's worth
of requests holds it up for longer than they save; prefetches shortly before do not.  Rows that are pipelined
prefetch in a loop of which memory knows nothing, so there it pays for what is about as large as L3. It is not
done where a row does not stay in L1 and the last phase computes little, for rows in order in L3, nor where
phases compute pieces of a row, none of which waits for another.  Where one pass makes the mean and the
variance of a row (`layers.graph.one_pass.moments`) memory is never idle for long, unless the last phase
computes.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from math import inf

from polyfuse.cost.cpu_device import table_cpu
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.cost.extents import extents, instances, tensor_bytes
from polyfuse.decisions import Decision, format_bytes
from polyfuse.ir.cpu_core import Core, CpuKnobs, overlap_room
from polyfuse.ir.functions import is_function
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, evaluate, product, variables
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Scope
from polyfuse.ir.linear import interval, linear, size_ranges
from polyfuse.ir.schedule_tree import HEAD, Band, Coordinate, Member, Sequence, Tree, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Constraint,
    Read,
    Role,
    Statement,
    TensorGraph,
    depends_on,
    statement_reads,
    walk,
)
from polyfuse.layers.mapping.nests import has_band

# --- prefetched rows --------------------------------------------------------------------------------------

REASON = "the next row is prefetched"


def prefetched_rows(
    graph: TensorGraph,
    nest: Tree,
    buffers: tuple[Buffer, ...],
    threads: int,
    decisions: list[Decision],
    knobs: CpuKnobs,
) -> tuple[Buffer, ...]:
    """The buffers of one kernel, with `Buffer.ahead` set where it pays.

    `knobs.ahead`: so many rows ahead wherever it can be (None: one row, where it pays).
    """
    wanted = knobs.ahead
    nest = _after_first_values(nest) if graph.sizes else nest
    rows = _rows(graph, nest)
    if not rows or wanted == 0:
        return buffers
    outside = {b.tensor for b in buffers if b.scope in (Scope.ARGUMENT, Scope.GLOBAL)}
    written = {s.target for s in graph.statements}
    found = [t for t in sorted(outside - written) if _row_by_row(graph, t, rows)]
    if not found:
        return buffers
    row = sum(_row_bytes(graph, t) or 0 for t in found)
    why = _refusal(graph, nest, rows, found, threads, knobs.on) if wanted is None else None
    if why is not None:
        decisions.append(Decision("prefetch rows", ", ".join(found), False, why))
        return buffers
    ahead = wanted or 1
    which = "the next row" if ahead == 1 else f"the row {ahead} ahead"
    size = "" if graph.sizes else f", {format_bytes(row)},"
    why = f"{which}{size} comes to the caches while the last phase computes"
    decisions.append(Decision("prefetch rows", ", ".join(found), True, why))
    return tuple(replace(b, ahead=ahead, reason=REASON) if b.tensor in found else b for b in buffers)


def _refusal(
    graph: TensorGraph, nest: Tree, rows: Many[Member], found: list[str], threads: int, core: Core
) -> str | None:
    """Why it does not pay to ask for rows of these tensors, if it does not."""
    if not _reads(graph, nest) & {s.target for s in graph.statements}:
        return "no phase of a row waits for another"
    if graph.sizes:
        return _refusal_where_far(graph, nest, rows, found, threads)
    l1, l2, l3, *_ = table_cpu(threads).levels
    row = sum(_row_bytes(graph, t) or 0 for t in found)
    whole = sum(tensor_bytes(graph, t) for t in found)
    last = _last(graph, nest)
    overlap = row <= overlap_room(core) and _overlap(graph, nest, rows)
    kept = [t for t in found if t not in _reads(graph, last)]
    if row > l2.capacity * FITTED.prefetch_share_of_l2:
        return f"two rows of {format_bytes(row)} do not fit in L2 with what else is there"
    near, far = (l3.capacity * share for share in FITTED.prefetch_shares_of_l3)
    if kept and not (overlap and near < whole <= far):
        return f"the last phase reads {', '.join(kept)} no more"
    if row < FITTED.prefetch_least_row_bytes:
        return f"rows of {format_bytes(row)} are too short"
    if whole <= l2.capacity:
        return f"{format_bytes(whole)} in all stay in L2 from call to call"
    if _computes(graph, last, rows):
        return None
    if _heads(graph, _phases(graph, nest)):
        return "one pass makes all sums of a row, and waits for memory itself"
    if row > l1.capacity * FITTED.prefetch_share_of_l1:
        return f"rows of {format_bytes(row)} do not stay in L1, and the last phase waits for memory itself"
    if whole <= l3.capacity * FITTED.prefetch_share_in_l3 and not _are_parallel(rows):
        return f"{format_bytes(whole)} in all stay in L3, and rows in order follow one another fast enough"
    return None


def _refusal_where_far(
    graph: TensorGraph, nest: Tree, rows: Many[Member], found: list[str], threads: int
) -> str | None:
    """The same for open sizes, of which those are meant at which memory is far (`hints_where_far`)."""
    l1, (last, read) = table_cpu(threads).levels[0], (_last(graph, nest), _reads(graph, _last(graph, nest)))
    kept = [t for t in found if t not in read]
    lengths = [_row_bytes(graph, t) for t in found]
    if kept:
        return f"the last phase reads {', '.join(kept)} no more"
    if _computes(graph, last, rows):
        return None
    if None in lengths or sum(filter(None, lengths)) > l1.capacity * FITTED.prefetch_share_of_l1:
        return "rows may not stay in L1, and the last phase waits for memory itself"
    return None


def _rows(graph: TensorGraph, nest: Tree) -> tuple[Member, ...]:
    """The loops over rows, outermost first, if several phases go over each row."""
    members: tuple[Member, ...] = ()
    tree: Tree | None = nest
    while isinstance(tree, Band):
        members += tree.members
        if isinstance(tree.child, Band):
            return ()
        children = tree.child.children if isinstance(tree.child, Sequence) else ()
        phases = [c for c in children if has_band(c) and _reads(graph, c)]
        if len(phases) > 1:
            several = len(phases) - _heads(graph, phases) > 1
            return members if several and (phases[-1] is children[-1] or not has_band(children[-1])) else ()
        tree = phases[0] if phases else None
    return ()


def _after_first_values(nest: Tree) -> Tree:
    """The loops of a nest, without first values of totals that stand before them: where sizes are open the
    rows of a sum are not shared out (`layers.mapping.reductions`)."""
    children = nest.children if isinstance(nest, Sequence) else (nest,)
    loops = [c for c in children if has_band(c)]
    return loops[0] if len(loops) == 1 else nest


def _heads(graph: TensorGraph, phases: Many[Tree]) -> int:
    """How many phases only sum up some first elements of a row (`layers.graph.one_pass.moments`), of which
    another one reads all?"""
    of = [[graph.statement(n) for n in statements(p)] for p in phases]
    if not all(
        isinstance(b, IConst) for found in of for s in found for d in s.dims for b in (d.lower, d.upper)
    ):
        return 0
    trips = [max(instances(extents(s)) for s in found) for found in of]
    longest = max(trips)
    whole = {
        r.tensor
        for trip, found in zip(trips, of, strict=True)
        if trip == longest
        for s in found
        for r in statement_reads(s)
    }
    return sum(
        trip * HEAD < longest
        and all(s.reduction and {r.tensor for r in statement_reads(s)} <= whole for s in found)
        for trip, found in zip(trips, of, strict=True)
    )


def _reads(graph: TensorGraph, phase: Tree) -> set[str]:
    """Tensors that a phase reads; none, if it only sets initial values."""
    return {r.tensor for n in statements(phase) for r in statement_reads(graph.statement(n))}


def _last(graph: TensorGraph, nest: Tree) -> Tree:
    """The last phase of a row."""
    phases = _phases(graph, nest)
    return _last(graph, phases[-1]) if phases else nest


def _phases(graph: TensorGraph, nest: Tree) -> list[Tree]:
    """The loops over a row, one after the other."""
    children = nest.child.children if isinstance(nest, Band) and isinstance(nest.child, Sequence) else ()
    return [c for c in children if has_band(c) and _reads(graph, c)]


def _are_parallel(rows: Many[Member]) -> bool:
    return rows[-1].coordinate is Coordinate.BLK


def _overlap(graph: TensorGraph, nest: Tree, rows: Many[Member]) -> bool:
    """Will rows be pipelined, if they are short (`codegen.transforms.software_pipelining`), with a loop in
    between that prefetches lines?"""
    return len(_phases(graph, nest)) > 2 and _are_parallel(rows) and not _computes(graph, nest, rows)


def _computes(graph: TensorGraph, phase: Tree, rows: Many[Member]) -> bool:
    """Does a phase take longer for its elements than memory does?"""
    return any(
        is_function(e) and depends_on(e) - set(variables(rows[-1].of(n)))
        for n in statements(phase)
        for e in walk(graph.statement(n).expr)
    )


def _row_by_row(graph: TensorGraph, tensor: str, rows: Many[Member]) -> bool:
    """Does every read of a tensor take one row, that of the innermost loop over rows?

    What is read at places that the program computes is not asked: it is read besides.  A statement beside the
    loops over rows, such as the first step of a recurrence, takes none.
    """
    reads = [
        (s, r)
        for s in graph.statements
        for r in statement_reads(s)
        if r.tensor == tensor and not any(isinstance(i, EXPR_TYPES) for i in r.indices)
    ]
    inside = {n for n, _ in rows[-1].exprs}
    return bool(reads) and all(s.name in inside and _takes_row(s, r, rows) for s, r in reads)


def _takes_row(s: Statement, r: Read, rows: Many[Member]) -> bool:
    outer = {e for m in rows[:-1] for e in [m.of(s.name)] if isinstance(e, IVar)}
    if len(r.indices) < 2:
        return False
    *leading, row, place = r.indices
    known = {x.name for x in (*outer, row) if isinstance(x, IVar)}
    return (
        isinstance(row, IVar)
        and row == rows[-1].of(s.name)
        and known.isdisjoint(variables(place))  # type: ignore[arg-type]
        and all(set(variables(i)) <= known - {row.name} for i in leading)  # type: ignore[arg-type]
    )


def _row_bytes(graph: TensorGraph, tensor: str) -> int | None:
    """Of a row, the longest one where its length is open; None if that is not known."""
    t = graph.tensor(tensor)
    found = interval(t.shape[-1], size_ranges(graph))
    return None if found is None else found[1] * t.dtype.bytes


# --- non-temporal stores ----------------------------------------------------------------------------------

# Which results of an operator have non-temporal stores.
#
# A plain store first reads the line that it writes, so a result takes twice its bytes of the memory's time;
# a non-temporal one takes them once, and leaves the caches to what is read.  It loses where the result would
# have stayed in a cache until somebody reads it.  So it is done where what the operator touches does not fit
# the last cache: then the result is gone anyway when the operator has ended.


def non_temporal_stores(
    kernels: KernelGraph, threads: int, decisions: list[Decision], wanted: bool | None = None
) -> KernelGraph:
    """The kernels with `Buffer.past` set: where it pays (None), wherever it can be done, or nowhere."""
    if kernels.graph.sizes or wanted is False:
        return kernels
    least = FITTED.non_temporal_results_least_bytes
    found = [n for n in _results(kernels) if wanted or _most_bytes(kernels.graph, n) >= least]
    if not found:
        return kernels
    total, capacity = evaluate(touched(kernels), {}), table_cpu(threads).levels[-2].capacity
    pays = total > FITTED.non_temporal_results_beyond * capacity
    names = ", ".join(found)
    if not (wanted or pays):
        if total > capacity / 4:
            why = f"most of {format_bytes(total)} in all stays in L3"
            decisions.append(Decision("stream", names, False, why))
        return kernels
    why = f"{format_bytes(total)} in all do not fit L3" if pays else "asked for"
    decisions.append(Decision("stream", names, True, f"non-temporal stores: {why}"))
    return replace(kernels, kernels=tuple(_with_streams(k, frozenset(found)) for k in kernels.kernels))


def streaming_stores(kernels: KernelGraph, decisions: list[Decision]) -> KernelGraph:
    """The kernels of a GPU with the hint that results which nothing reads again leave caches first."""
    found = _results(kernels)
    if found:
        why = "nothing reads them again: they leave L2 first, as the plan says"
        decisions.append(Decision("stream", ", ".join(found), True, why))
    return replace(kernels, kernels=tuple(_with_streams(k, frozenset(found)) for k in kernels.kernels))


def _with_streams(k: Kernel, names: frozenset[str]) -> Kernel:
    buffers = tuple(replace(b, past=True) if b.tensor in names else b for b in k.buffers)
    return replace(k, buffers=buffers)


def _results(kernels: KernelGraph) -> list[str]:
    """Results that are written once and that no kernel reads, nor memory of an inout parameter."""
    statements = [s for k in kernels.kernels for s in k.graph.statements]
    read = {r.tensor for s in statements for r in statement_reads(s)}
    added = {s.target for s in statements if s.accumulate}
    library = {s.target for k in kernels.kernels if k.library is not None for s in k.graph.statements}
    return [
        t.name
        for t in kernels.graph.tensors
        if t.role is Role.OUTPUT and t.alias is None and t.name not in read | added | library
    ]


def _most_bytes(graph: TensorGraph, name: str) -> float:
    """Of a tensor, as many as there may be where its extents are open."""
    found = interval(_bytes(graph, name), size_ranges(graph))
    return inf if found is None else found[1]


def _bytes(graph: TensorGraph, name: str) -> IndexExpr:
    t = graph.tensor(name)
    return binary("*", product(t.shape), t.dtype.bytes)


def touched(kernels: KernelGraph) -> IndexExpr:
    """Bytes of all memory that the kernels touch, what is written in place counted once; of a table whose
    rows data choose no more than is read."""
    outside = (Scope.ARGUMENT, Scope.GLOBAL)
    names = {b.tensor for k in kernels.kernels for b in k.buffers if b.scope in outside}
    chosen = _chosen(kernels)
    total: IndexExpr = IConst(0)
    for t in kernels.graph.tensors:
        if t.name in names and t.alias is None:
            whole = _bytes(kernels.graph, t.name)
            total = binary("+", total, binary("min", whole, chosen.get(t.name, whole)))
    return total


def _chosen(kernels: KernelGraph) -> dict[str, IndexExpr]:
    """Bytes of all reads of a tensor together, of those that are only read, and only where data say."""
    found: dict[str, IndexExpr] = {}
    whole: set[str] = set()
    for s in (s for k in kernels.kernels for s in k.graph.statements):
        of = {d.name: None if variables(e := binary("-", d.upper, d.lower)) else e for d in s.dims}
        whole.add(s.target)
        for r in statement_reads(s):
            elements = [of[d] for d in sorted(depends_on(*r.indices))]
            if None in elements or not any(isinstance(i, EXPR_TYPES) for i in r.indices):
                whole.add(r.tensor)
                continue
            size = binary("*", product(tuple(e for e in elements if e is not None)), r.dtype.bytes)
            found[r.tensor] = binary("+", found.get(r.tensor, IConst(0)), size)
    return {n: size for n, size in found.items() if n not in whole}


# --- prefetched lines -------------------------------------------------------------------------------------

# Which tensors' lines a kernel's loops prefetch shortly before they read them.
#
#     B(t, h)     becomes     B(t, h // 64)[ (fetch x[t, the next 64]); B(h) ]
#
# The hardware follows streams by itself, from the misses it sees.  That is enough where lines come from L3.
# From memory they come too late in a loop that computes, at the beginning of each row, and where vectors
# cross lines.  A request costs one instruction for each line, so it is done where what the operator touches
# is far from all in L3, and for tensors that do not stay in L2.


def prefetched_lines(
    kernels: KernelGraph, threads: int, decisions: list[Decision], wanted: bool | None = None
) -> KernelGraph:
    """The kernels with `Buffer.soon` set: where it pays (None), wherever it can be done, or nowhere."""
    if wanted is False or (kernels.graph.sizes and not wanted):
        return kernels
    levels, total = table_cpu(threads).levels, 0 if wanted else evaluate(touched(kernels), {})
    if not wanted and total <= levels[-2].capacity * FITTED.prefetch_lines_share_of_l3:
        return kernels
    least = -1.0 if wanted else levels[1].capacity
    found = {k.name: _inputs(k, least) for k in kernels.kernels if k.library is None}
    names = sorted(set().union(*found.values()))
    if not names:
        return kernels
    why = "asked for" if wanted else f"{format_bytes(total)} in all do not stay in L3"
    decisions.append(
        Decision("prefetch lines", ", ".join(names), True, f"lines are prefetched shortly before use: {why}")
    )
    return replace(
        kernels, kernels=tuple(_with_prefetches(k, found.get(k.name, frozenset())) for k in kernels.kernels)
    )


def _inputs(k: Kernel, least: float) -> frozenset[str]:
    """Memory of more bytes than this that a kernel reads and leaves as it is."""
    return frozenset(b.tensor for b in k.unchanged if b.shape and _most_bytes(k.graph, b.tensor) > least)


def _with_prefetches(k: Kernel, names: frozenset[str]) -> Kernel:
    buffers = tuple(replace(b, soon=True) if b.tensor in names else b for b in k.buffers)
    return replace(k, buffers=buffers)


# --- open sizes -------------------------------------------------------------------------------------------

# Where sizes are open, what the operator touches is an expression of them, and kernels have all these hints
# for sizes at which it does not fit L3 (`Kernel.far`): a version of their code, that calls choose
# (`codegen.cpu.row_versions`).


def hints_where_far(kernels: KernelGraph, threads: int, decisions: list[Decision]) -> KernelGraph:
    """Kernels whose sizes are open with the hints that pay where memory is far."""
    levels, total = table_cpu(threads).levels, linear(touched(kernels)).expr()
    limit = int(FITTED.non_temporal_results_beyond * levels[-2].capacity)
    least = FITTED.non_temporal_results_least_bytes
    past = frozenset(n for n in _results(kernels) if _most_bytes(kernels.graph, n) >= least)
    soon = {k.name: _inputs(k, levels[1].capacity) for k in kernels.kernels if k.library is None}
    why = f"where {total} bytes in all do not fit L3"
    if past:
        decisions.append(Decision("stream", ", ".join(sorted(past)), True, f"non-temporal stores {why}"))
    if names := sorted(set().union(*soon.values())):
        told = f"lines are prefetched shortly before use {why}"
        decisions.append(Decision("prefetch lines", ", ".join(names), True, told))
    far = Constraint(">=", total, IConst(limit + 1))

    def hinted(k: Kernel) -> Kernel:
        k = _with_prefetches(_with_streams(k, past), soon.get(k.name, frozenset()))
        return replace(k, far=far) if any(b.past or b.soon or b.ahead for b in k.buffers) else k

    return replace(kernels, kernels=tuple(map(hinted, kernels.kernels)))
