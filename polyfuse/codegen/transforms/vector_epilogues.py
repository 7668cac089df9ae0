"""Vector epilogues: the rest of a row that goes in whole vectors.

`overlapping_tails` makes one more vector of it, which begins earlier; `narrow_vectors` shorter ones.

The rest of a row of windows or functions computes some elements again.

    for c in 0..62 @vec: y[c] = x[c] + x[c + 1]     ->     for c in 0..48 @vec:   y[c] = x[c] + x[c + 1]
                                                           for c in 46..62 @vec:  y[c] = x[c] + x[c + 1]

A rest goes in halves of vectors, and then one by one, each with as many loads as the window has terms, or
with as many instructions as a function takes for a whole vector.

    for c in 0..20 @vec:                            for c in 0..16 @vec:  y[c] = f(x[c]);  kept[c] = y[c]
      y[c] = f(x[c]);  s[c] += y[c]         ->      for c in 4..20 @vec:  y[c] = f(x[c]);  kept[c] = y[c]
                                                    for c in 0..20 @vec:  s[c] += kept[c]
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from polyfuse.codegen.analysis.accesses import memory_of
from polyfuse.codegen.analysis.dependence import has_window, is_row
from polyfuse.codegen.analysis.op_cost import computes_little
from polyfuse.codegen.analysis.reduction_nests import EXTREMES
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.function import Function
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, Update, map_nodes, values_of
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Read, reads, walk

# --- overlapping tails ------------------------------------------------------------------------------------

# Numbers of 16 bits have rests of their own (`codegen.cpu.vectorize.predicated_epilogues`).
LEAST_BYTES = 4


def overlapping_tails(kernel: Kernel, block: Block, core: Core, numbers: itertools.count[int]) -> Block:
    """See the module docstring. `numbers` numbers arrays of what is summed up."""
    totals = any(isinstance(n, For) and n.lanes for n in block)
    made: list[Node] = []
    for n in block:
        match n:
            case For() if _is_worth(kernel, n, core, totals):
                declared, row, sums = _sums_apart(kernel, n, numbers)
                made += [*declared, *_with_end(row, core), *sums] if repeats(kernel, row) else [n]
            case For():
                made.append(replace(n, body=overlapping_tails(kernel, n.body, core, numbers)))
            case If():
                then, other = (overlapping_tails(kernel, b, core, numbers) for b in (n.then, n.other))
                made.append(replace(n, then=then, other=other))
            case _:
                made.append(n)
    return tuple(made)


def _is_worth(kernel: Kernel, row: For, core: Core, totals: bool) -> bool:
    """Is it a row of windows or functions, whose rest takes longer than a vector?  Where rows have `totals`,
    several go together, with masks (`codegen.transforms.unroll_and_jam.batched_rows`)."""
    trip, values = trip_of(row), tuple(values_of(row.body))
    if not trip or not isinstance(row.upper, IConst) or not is_row(row):
        return False
    (size, *others) = {v.dtype.bytes for v in values}
    lanes = core.vector_bytes // size
    if others or size < LEAST_BYTES or trip < lanes:
        return False
    if not has_window(row) and (totals or not takes_long(row)):
        return False
    if trip > FITTED.overlapping_tails_longest_past and _is_streamed(kernel, row):
        return False
    return _is_long(row, trip % lanes, lanes)


def _with_end(row: For, core: Core) -> Block:
    """Whole vectors, and one that ends where the row does."""
    lanes = core.vector_bytes // next(values_of(row.body)).dtype.bytes
    rest = (trip_of(row) or 0) % lanes
    return replace(row, upper=row.upper - rest), replace(row, lower=row.upper - lanes)


def _sums_apart(kernel: Kernel, row: For, numbers: itertools.count[int]) -> tuple[Block, For, Block]:
    """Arrays, a row of functions that keeps in them what it adds to sums in memory, and a loop that adds it:
    elements that are computed again are added once."""
    sums = [n for n in row.body if isinstance(n, Update)]
    changed = {memory_of(kernel, n.buffer) for n in sums}
    touched = {memory_of(kernel, r.tensor) for v in values_of(row.body) for r in reads(v)}
    touched |= {memory_of(kernel, n.buffer) for n in row.body if isinstance(n, Store)}
    apart = len(changed) == len(sums) > 0 and not changed & touched and takes_long(row)
    kept_bytes = (trip_of(row) or 0) * sum(n.value.dtype.bytes for n in sums)
    if not apart or row.lower != IConst(0) or kept_bytes > FITTED.overlapping_tails_most_kept:
        return (), row, ()
    place, names = (IVar(row.var),), {n.buffer: f"%kept{next(numbers)}" for n in sums}
    kept = (Store(names[n.buffer], place, n.value) if isinstance(n, Update) else n for n in row.body)
    added = (replace(n, value=Read(names[n.buffer], place, n.value.dtype)) for n in sums)
    declared = (Declare(names[n.buffer], n.value.dtype, None, trip_of(row) or 0) for n in sums)
    return tuple(declared), replace(row, body=tuple(kept)), (replace(row, body=tuple(added)),)


def _is_long(row: For, rest: int, lanes: int) -> bool:
    """Does a rest take longer than a vector?  gcc uses halves and quarters of vectors."""
    half, quarter = max(1, lanes // 2), max(1, lanes // 4)
    if any(isinstance(n, Update) and n.op in EXTREMES for n in row.body):
        return rest % half > 0
    if takes_long(row):
        return rest % half > 0 and rest > 1
    return rest // half + rest % half // quarter + rest % quarter >= FITTED.overlapping_tails_fewest_steps


def _is_streamed(kernel: Kernel, row: For) -> bool:
    """Is something streamed?"""
    past = {b.tensor for b in kernel.buffers if b.past}
    return any(isinstance(n, Store) and n.buffer in past for n in row.body)


def takes_long(row: For) -> bool:
    """Is there a function, a quotient or a root?"""
    every = (e for v in values_of(row.body) for e in walk(v))
    return any(isinstance(e, Apply) and not computes_little(e) for e in every)


def repeats(kernel: Kernel, row: For) -> bool:
    """Does an iteration make the same once more, as it sets all that it changes?"""
    written = {memory_of(kernel, n.buffer) for n in row.body if isinstance(n, (Store, Update))}
    known: set[str] = set()
    for n in row.body:
        if any(memory_of(kernel, r.tensor) in written - known for v in values_of([n]) for r in reads(v)):
            return False
        if isinstance(n, Update) and memory_of(kernel, n.buffer) not in known:
            return False
        known |= {memory_of(kernel, n.buffer)} if isinstance(n, Store) else set()
    return True


# --- short rows -------------------------------------------------------------------------------------------

# Short rows as loops over vectors of the lengths that a machine has.
#
#     for f in 0..13 @vec:  y[d[e], f] += x[e, f]     ->     f in 0..8 @vec, f in 8..12 @vec, f in 12..13
#     for c in 0..13 @vec:  y[t, c] = x[t, c] - m[t]  ->     c in 0..8 @vec, c in 5..13 @vec
#
# Of a length that fills no vector compilers make as many scalars.  Iterations of a vector loop have elements
# of their own.  What is only stored, and not read, is computed again where that takes fewer steps.  Functions
# are left: as scalars they take longer than vectors of which a part is in vain (`codegen.c_printer`).  So are
# totals of columns, which stay in registers.


# Bytes of vectors, the longest first.
WIDTHS = (64, 32, 16)


def narrow_vectors(kernel: Kernel, f: Function) -> Function:
    """The function, with short loops of what its iterations do cut."""

    def cut(node: Node) -> Node | Block:
        return _cut(kernel, node) if isinstance(node, For) else node

    return f if f.run else f.with_body(map_nodes(f.body, cut))


def _cut(kernel: Kernel, row: For) -> Block:
    sizes = {v.dtype.bytes for v in values_of(row.body)}
    size = sizes.pop() if len(sizes) == 1 else 0
    trip = trip_of(row) or 0
    counted = any(isinstance(n, Declare) and n.count for n in row.body)
    if size < LEAST_BYTES or not is_row(row) or row.window or counted or takes_long(row):
        return (row,)
    if not isinstance(row.lower, IConst) or not 0 < trip * size <= WIDTHS[0] or _adds_up(row):
        return (row,)
    first, *rest = pieces(row, size)
    if not rest:
        return (first,) if _joins_little(row) else (row,)
    steps = 1 + sum(1 if p.vector else trip_of(p) or 0 for p in rest)
    if steps < FITTED.overlapping_tails_fewest_steps or not first.vector or not repeats(kernel, row):
        return (first, *rest)
    last = row.lower.value + trip
    return first, replace(first, lower=IConst(last - (trip_of(first) or 0)), upper=IConst(last))


def _adds_up(row: For) -> bool:
    """Does it update what is the same row each time?"""
    updates = [n for n in row.body if isinstance(n, Update)]
    return any(not any(isinstance(i, EXPR_TYPES) for i in n.indices) for n in updates)


def _joins_little(row: For) -> bool:
    """Do compilers find no vector in a row that they have taken apart?  Where data name it, or it has several
    results."""
    stores = [n for n in row.body if isinstance(n, (Store, Update))]
    read = [r for v in values_of(row.body) for r in reads(v)]
    named = any(isinstance(i, EXPR_TYPES) for x in (*stores, *read) for i in x.indices)
    return named or sum(isinstance(n, Store) for n in stores) > 1


def pieces(loop: For, size: int) -> tuple[For, ...]:
    """A loop over elements of so many bytes as loops over vectors, several of the longest, and over the rest;
    as it is where its length is not known."""
    trip = trip_of(loop)
    if not isinstance(loop.lower, IConst) or trip is None or loop.step != 1:
        return (loop,)
    low, high = loop.lower.value, loop.lower.value + trip
    cuts = [low]
    for width in WIDTHS:
        if width // size <= high - cuts[-1]:
            cuts.append(high - (high - cuts[-1]) % (width // size))
    ends = zip(cuts, [*cuts[1:], high], strict=True)
    return tuple(
        replace(loop, lower=IConst(a), upper=IConst(b), vector=(b - a) * size in WIDTHS)
        for a, b in ends
        if a < b
    )
