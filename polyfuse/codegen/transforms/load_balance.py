"""Workers have rows of equal amounts, where data says what a row has.

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
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyfuse.codegen.analysis.trip_count import most_trips, trip_of
from polyfuse.codegen.function import Function, Shares
from polyfuse.codegen.passes import missed
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, product, substitute, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import Block, Declare, For, LocalRole, nodes_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Expr, Select, depends_on, map_expr, reads

SHARES = 1024
"""Into so many shares a function's work is cut, which chunks have several of."""

FIRST_OF_SHARE = f"""\
// The first iteration of a share of {SHARES}. Rows have what is from low(row) to high(row); all of them are
// done for each of `outer` iterations outside, and have `inner` iterations each. It never falls with shares,
// whatever the data.
template <class Low, class High>
static inline pf_i64 pf_first_of_share(
    pf_i64 share, pf_i64 outer, pf_i64 rows, pf_i64 inner, Low low, High high) {{
  if (share <= 0 || outer <= 0 || rows <= 0 || inner <= 0) return 0;
  if (share >= {SHARES}) return outer * rows * inner;
  const pf_i64 start = low(0), end = high(rows - 1);
  const pf_i64 amount = rows + (end > start ? end - start : 0), all = outer * amount;
  const pf_i64 place = all / {SHARES} * share + all % {SHARES} * share / {SHARES}, wanted = place % amount;
  pf_i64 row = 0;
  for (pf_i64 left = rows; left > 0;) {{
    const pf_i64 half = left / 2, middle = row + half, before = low(middle) - start;
    const bool behind = middle + (before > 0 ? before : 0) < wanted;
    row = behind ? middle + 1 : row;
    left = behind ? left - half - 1 : half;
  }}
  return (place / amount * rows + row) * inner;
}}

"""


def with_shares(kernel: Kernel, f: Function) -> Function:
    """The function, its iterations handed out by what their rows have; see the module docstring."""
    found = _ends(f)
    if not f.loops or f.time is not None or not found:
        return f
    outside = {x.var: k for k, x in enumerate(f.loops)}
    for loop, low, high in found:
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
            return replace(f, shares=Shares(outer, f.loops[at], inner, low, high))
    return f


def left_to_blocks(block: Block) -> Block:
    """The same loops of a GPU, whose blocks have few rows each: a multiprocessor takes the next one when it
    is done with one."""
    for n in nodes_of(block):
        if isinstance(n, For) and n.of_data:
            missed((n,), "multiprocessors take blocks of few rows each, as they are done with others")
    return block


def _ends(f: Function) -> list[tuple[For, Expr, Expr]]:
    """Loops that data bounds on both sides, and the ends."""
    named = {n.name: n.value for n in f.body if isinstance(n, Declare) and n.role is LocalRole.INDEX}
    found = list[tuple[For, Expr, Expr]]()
    for n in nodes_of(f.body):
        if isinstance(n, For) and n.of_data:
            low, high = ([named[v] for v in variables(e) if named.get(v)] for e in (n.lower, n.upper))
            if len(low) == len(high) == 1 and low[0] is not None and high[0] is not None:
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
