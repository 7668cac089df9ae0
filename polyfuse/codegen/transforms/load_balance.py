"""Workers have rows of equal amounts, where data says what a row has: `with_shares`, `with_cut_rows`.

    for n in 0..N @blk:                           share k begins with the first row n that has
      for e in ptr[n]..ptr[n + 1]: ...    ->        n + ptr[n] - ptr[0] >= k * (N + ptr[N] - ptr[0]) / 1024
                                                  for n in (first row of begin)..(first row of end): ...

Chunks of equally many rows are as long as the longest rows make them: of 20,000 rows of a power law, sorted,
the first sixteenth has two thirds of all elements.  Rows and elements together are what a worker has to do,
as in merge-path products of sparse matrices (Merrill and Garland, "Merge-based parallel sparse matrix-vector
multiplication", SC 2016).  Where a row ends where the next one begins, nothing needs to be added up: a chunk
finds its rows by two binary searches in the pointers.

A search in pointers that fall finds something else, and still a share ends where the next one begins, the
first one begins with the first row, and the last one ends with the last row: each row is computed once,
whatever the data.  Rows do not depend on one another, so results do not depend on shares.

A row that fills whole shares is cut where shares begin, if all that is done with its elements is one total.
Each of its parts is computed as a row of its own and kept, and a last step joins them in their order:

    share k:   head of the last row that begins here, if it fills share k + 1   ->  part 2 k + 1
               what share k has of a row that began before and fills a share    ->  part 2 k
    then:      y[n] = part + part + ...

Shares are made of data alone, so that threads change no bit here either.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TypeAlias

from polyfuse.codegen.analysis.trip_count import most_trips, trip_of
from polyfuse.codegen.function import Function, Shares
from polyfuse.codegen.passes import missed
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.dtypes import BOOL, F32, F64
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, evaluate, product, substitute, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import Block, Declare, For, LocalRole, Store, Update, nodes_of
from polyfuse.ir.ops import COMBINES
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Const, Expr, Select, depends_on, map_expr, reads

SHARES, OF_CUT_ROWS = 1024, 64
"""Into so many shares a function's work is cut, which chunks have several of: fewer where rows are cut, as it
is asked of each share whether they are."""


def with_shares(kernel: Kernel, f: Function) -> Function:
    """The function, its iterations handed out by what their rows have; see the module docstring."""
    found = _ends(f)
    if not f.loops or f.time is not None or not found:
        return f
    outside = {x.var: k for k, x in enumerate(f.loops)}
    for loop, (low_name, low), (high_name, high) in found:
        rows = [v for v in outside if v in depends_on(low)]
        if len(rows) != 1 or not (_known_before(kernel, low) and _known_before(kernel, high)):
            continue
        at = outside[rows[0]]
        if not _follows(high, low, rows[0]):
            missed(f.body, "a row does not end where the next one begins")
        elif f.batches or f.pipelined:
            missed(f.body, "rows are computed several at a time")
        elif (few := _instances(f.loops, loop)) is not None and few < FITTED.load_balance_fewest:
            missed(f.body, "to search for a worker's rows takes long beside what there is to do")
        else:
            outer, inner = (_extent(part) for part in (f.loops[:at], f.loops[at + 1 :]))
            names = (low_name, high_name)
            return replace(f, shares=Shares(outer, f.loops[at], inner, low, high, names, SHARES))
    return f


def with_cut_rows(kernel: Kernel, f: Function) -> Function:
    """The function, rows that fill whole shares cut; see the module docstring."""
    if f.shares is None:
        return f
    if kernel.graph.sizes:
        missed(f.body, "parts of rows have room where sizes are known")
        return f
    found = _total(kernel, f)
    loop = next(x for x, *ends in _ends(f) if tuple(name for name, _ in ends) == f.shares.ends)
    if found is None:
        missed(f.body, "more is done in a row than to add up one total")
    elif len(f.loops) > 1:
        missed(f.body, "workers share out what is around rows or in them")
    elif (_instances(f.loops, loop) or 0) < FITTED.load_balance_fewest_of_cut_rows:
        missed(f.body, "to ask for rows to cut takes long beside what there is to do")
    else:
        return replace(f, shares=replace(f.shares, many=OF_CUT_ROWS, cut=found))
    return f


def _total(kernel: Kernel, f: Function) -> tuple[str, int] | None:
    """The reduction and the number of the buffer, if all that a function does with a row is one total in
    memory, whose places begin with the row."""
    assert f.shares is not None
    names = {s.target for s in kernel.graph.statements}
    sums = [s for s in kernel.graph.statements if s.reduction is not None]
    if len(names) != 1 or len(sums) != 1 or sums[0].reduction not in COMBINES:
        return None
    (name,), op, dtype = names, sums[0].reduction, sums[0].expr.dtype
    out, first = kernel.find(name), [s.expr for s in kernel.graph.statements if s is not sums[0]]
    exact = dtype.is_integer or dtype in (BOOL, F32, F64)
    if out not in kernel.arguments or out.extents != out.shape or out.dtype != dtype or not exact:
        return None
    if kernel.graph.tensor(name).alias is not None or any(not _is_identity(e, op) for e in first):
        return None
    if evaluate(product(out.shape[1:]), {}) * dtype.bytes > FITTED.load_balance_longest_part:
        return None
    places = [n.indices for n in nodes_of(f.body) if isinstance(n, Store | Update) and n.buffer == name]
    rows = IVar(f.shares.rows.var)
    alone = all(i[0] == rows and rows.name not in depends_on(*i[1:]) for i in places)
    return (op, kernel.buffers.index(out)) if first and alone else None


def _is_identity(e: Expr, op: str) -> bool:
    return isinstance(e, Const) and repr(e.value) == repr(identity(op, e.dtype))


def left_to_blocks(block: Block) -> Block:
    """The same loops of a GPU, whose blocks have few rows each: a multiprocessor takes the next one when it
    is done with one."""
    for n in nodes_of(block):
        if isinstance(n, For) and n.of_data:
            missed((n,), "multiprocessors take blocks of few rows each, as they are done with others")
    return block


_End: TypeAlias = tuple[str, Expr]  # what it is called, and what it is


def _ends(f: Function) -> list[tuple[For, _End, _End]]:
    """Loops that data bounds on both sides, and the ends."""
    named = {
        n.name: n.value
        for n in f.body
        if isinstance(n, Declare) and n.role is LocalRole.INDEX and n.value is not None
    }
    found = list[tuple[For, _End, _End]]()
    for n in nodes_of(f.body):
        if isinstance(n, For) and n.of_data:
            low, high = ([(v, named[v]) for v in variables(e) if v in named] for e in (n.lower, n.upper))
            if len(low) == len(high) == 1:
                found.append((n, low[0], high[0]))
    return found


def _known_before(kernel: Kernel, end: Expr) -> bool:
    """Is an end made of what memory has before the kernel runs?"""
    whole = {b.tensor for b in kernel.unchanged if b.extents == b.shape}
    return {r.tensor for r in reads(end)} <= whole


def _follows(high: Expr, low: Expr, row: str) -> bool:
    """Does a row end where the next one begins, but for the last one?"""

    def plain(e: Expr, by: int) -> Expr:
        def at(i: IndexExpr) -> IndexExpr:
            return linear(substitute(i, {row: binary("+", IVar(row), IConst(by))})).expr()

        return map_expr(e, lambda x: x.then if isinstance(x, Select) else x, at)

    return plain(high, 0) == plain(low, 1)


def _extent(loops: tuple[For, ...]) -> IndexExpr:
    return product(tuple(binary("-", x.upper, x.lower) for x in loops))


def _instances(around: tuple[For, ...], loop: For) -> int | None:
    """Rows and elements, times what is done for each; None where sizes are open."""
    lanes = [trip_of(n) for n in loop.body if isinstance(n, For) and n.coordinate is Coordinate.VECTOR]
    rows, elements = [trip_of(x) for x in around], most_trips(loop)
    if elements is None or None in rows:
        return None
    return (prod(x or 0 for x in rows) + elements) * prod(x or 1 for x in lanes)
