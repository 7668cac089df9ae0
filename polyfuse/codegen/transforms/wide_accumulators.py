"""Wide accumulators: totals of single precision over long loops are kept in double, or piece by piece.

`wide_row_totals` is for sums along memory, `wide_column_totals` for those with lanes of their own, and
`with_wide_totals` does the same in a function.

Sums over several loops are in double where a loop of lanes adds to them once for each row.

    acc = 0                                            double acc = 0
    for n: for h @vec: acc += x[n, h]        ->        for n: acc += total of the lanes of x[n, :]

In single precision the total of many rows loses more than the lanes of a row do: the variance of a channel of
[32, 64, 56, 56] was off by 2.7e-7 of its value, and is by 0.7e-7. To add in double costs 2 % of BatchNorm,
more where rows are short and few, which do without.

The lanes of one long row join a total in double as well, every CHAIN additions (`For.long`,
`codegen.cpu.vectorize.reductions`):

    for h @vec: acc += x[h]                  ->        for pieces: acc += total of the lanes of the piece

Each addition in single precision rounds: 30 million tenths were off by 1.4e-4 of their sum.  A lane adds as
much in a piece on every core, so that errors do not depend on the width of vectors.  Loops may be in
branches (`codegen.transforms.unswitch`), and an iteration may add several terms
(`codegen.transforms.index_set_splitting.clamped_indices`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.accesses import along
from polyfuse.codegen.analysis.trip_count import most_of, most_trips, trip_of
from polyfuse.codegen.function import Function
from polyfuse.ir.dtypes import BOOL, F32, F64, I64
from polyfuse.ir.index_expr import IndexExpr, IVar, binary, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import Range, interval, size_ranges
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    For,
    If,
    Node,
    Prefetch,
    Store,
    Update,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Cast, Const, Expr, Index, IndexValue, Read, reads

# --- rows -------------------------------------------------------------------------------------------------

# Rows of a sum, at least.
FEWEST_ROWS = 16
# Terms of a sum in single precision, at most: longer ones go in pieces.
LONG = 4096
# Terms that a lane adds up before it joins the total.
CHAIN = 64


def wide_row_totals(kernel: Kernel, block: Block) -> Block:
    """The block with such sums declared as f64, which what reads them rounds, and with long loops marked."""
    ranges = size_ranges(kernel.graph)
    names = {name for nodes in _blocks(block) for name in _long(nodes, ranges)}
    return _marked(block, names, ranges) if names else block


def within(loop: For, ranges: Mapping[str, Range]) -> Mapping[str, Range]:
    """The values of variables in a loop, as far as they are known."""
    low, high = (interval(e, ranges) for e in (loop.lower, loop.upper))
    return {**ranges, loop.var: (low[0], max(low[0], high[1] - 1))} if low and high else ranges


def _marked(block: Block, names: set[str], ranges: Mapping[str, Range]) -> Block:
    return tuple(_mark(n, names, ranges) for n in block)


def _mark(node: Node, names: set[str], ranges: Mapping[str, Range]) -> Node:
    match node:
        case For(body=body, lanes=lanes):
            long = bool(names & {*lanes}) and _is_long(node, ranges)
            return replace(node, body=_marked(body, names, within(node, ranges)), long=long)
        case If(_, then, other):
            return replace(node, then=_marked(then, names, ranges), other=_marked(other, names, ranges))
        case Declare(name) if name in names:
            return replace(node, dtype=F64)
        case _:
            return node


def _is_long(loop: For, ranges: Mapping[str, Range]) -> bool:
    most = most_of(loop, ranges)
    return most is None or most * terms_of(loop) > LONG


def terms_of(loop: For) -> int:
    """Terms that an iteration adds to a sum of the loop's lanes, at most."""
    added = Counter(u.buffer for u in _updates(loop.body))
    return max((added[name] for name in loop.lanes), default=0) or 1


def _updates(block: Block) -> Iterator[Update]:
    """Sums of an iteration, those in branches too."""
    for n in block:
        match n:
            case Update(op="sum"):
                yield n
            case If(_, then, other):
                yield from _updates((*then, *other))


def _loops(block: Block) -> Iterator[For]:
    """Loops of a block, those in branches too."""
    for n in block:
        match n:
            case For():
                yield n
            case If(_, then, other):
                yield from _loops((*then, *other))


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for n in block:
        match n:
            case For(body=body):
                yield from _blocks(body)
            case If(_, then, other):
                yield from _blocks(then)
                yield from _blocks(other)


def _long(block: Block, ranges: Mapping[str, Range]) -> set[str]:
    """Sums of f32 that are declared in a block, and that loops of lanes in its loops add to."""
    declared = {n.name for n in block if isinstance(n, Declare) and n.dtype == F32 and not n.count}
    return {name for loop in _loops(block) for name in _of_rows(loop, 1, ranges)} & declared


def _of_rows(loop: For, rows: int, ranges: Mapping[str, Range]) -> Iterator[str]:
    """Sums that loops of lanes in a loop add to, which is done so many times or more."""
    if rows >= FEWEST_ROWS or _is_long(loop, ranges):
        yield from (u.buffer for u in _updates(loop.body) if u.buffer in loop.lanes)
    trip, inside = trip_of(loop), within(loop, ranges)
    for n in _loops(loop.body):
        yield from _of_rows(n, rows * (FEWEST_ROWS if trip is None else trip), inside)


# --- columns ----------------------------------------------------------------------------------------------

# Totals that a long loop adds to, one term after the other, are made of pieces that double adds up.
#
#     for t: for h @vec: w[h] += x[t, h]     ->     for h @vec: total[h] = w[h], in double; w[h] = 0
#                                                   for p:  for t in piece p: for h @vec: w[h] += x[t, h]
#                                                           for h @vec: total[h] += w[h]; w[h] = 0
#                                                   for h @vec: w[h] = total[h]
#
# In single precision each addition rounds: 300,000 terms of 0.1 in a column were off by 7e-4 of their sum.  A
# piece is short, so that its error is of some units in the last place, and many terms share one addition in
# double.  A loop that does not run leaves what was there.  Where data bounds a loop, one test says whether it
# is one piece.  Sums along memory have lanes, and go in pieces as well.


# Additions to a total, one after the other, that make it long.
LONG_REDUCTION = 8 * CHAIN
# Elements of a row of totals at most: they are on the stack.
MOST_ELEMENTS = 4096


def with_wide_totals(kernel: Kernel, f: Function, numbers: itertools.count[int]) -> Function:
    """A function with long totals in pieces."""
    return f.with_body(wide_column_totals(kernel, f.body, numbers))


def wide_column_totals(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """The block with such loops in pieces. `numbers` numbers the totals."""
    return _in_blocks(kernel, block, numbers, size_ranges(kernel.graph))


def _in_blocks(
    kernel: Kernel, block: Block, numbers: itertools.count[int], ranges: Mapping[str, Range]
) -> Block:
    made: list[Node] = []
    for n in block:
        match n:
            case For():
                inner = replace(n, body=_in_blocks(kernel, n.body, numbers, within(n, ranges)))
                made += _in_pieces(kernel, inner, numbers, ranges)
            case If(_, then, other):
                then, other = (_in_blocks(kernel, b, numbers, ranges) for b in (then, other))
                made.append(replace(n, then=then, other=other))
            case _:
                made.append(n)
    return tuple(made)


@dataclass(frozen=True, slots=True)
class _Sum:
    """What a loop adds to: a scalar, or with `along` a row of totals; `each`: additions in one iteration."""

    buffer: str
    indices: tuple[Index, ...]
    along: For | None
    each: int

    @property
    def place(self) -> tuple[IndexExpr, ...]:
        """Where an element is in an array of the totals."""
        return (binary("-", IVar(self.along.var), self.along.lower),) if self.along else ()


@dataclass(slots=True)
class _Body:
    """The updates in a loop, with the loops around each, and what else the loop touches."""

    updates: dict[str, list[tuple[Update, tuple[For, ...]]]] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    plain: bool = True

    def look(self, nodes: Block, path: tuple[For, ...]) -> None:
        for n in nodes:
            match n:
                case For(body=body):
                    self.look(body, (*path, n))
                case If(cond, then, other):
                    self.others.update(r.tensor for r in reads(cond))
                    self.look(then, path)
                    self.look(other, path)
                case Declare(name, _, value):
                    self.others.add(name)
                    self.others.update(r.tensor for r in reads(value)) if value is not None else None
                case Store(buffer, _, value):
                    self.others.update((buffer, *(r.tensor for r in reads(value))))
                case Update(buffer, _, _, value):
                    self.others.update(r.tensor for r in reads(value))
                    self.updates.setdefault(buffer, []).append((n, path))
                case Prefetch() | Comment():
                    pass
                case _:
                    self.plain = False


def _in_pieces(
    kernel: Kernel, rows: For, numbers: itertools.count[int], ranges: Mapping[str, Range]
) -> Block:
    most = most_of(rows, ranges)
    trips = 0 if most is None else -(-most // rows.step)
    if rows.coordinate is not Coordinate.SEQ or rows.joint or trips < 2:
        return (rows,)
    long = [s for s in _sums(kernel, rows, within(rows, ranges)) if trips * s.each > LONG_REDUCTION]
    if not long:
        return (rows,)
    size = max(1, CHAIN // max(s.each for s in long)) * rows.step
    piece = IVar(f"{rows.var}_c")
    inner = replace(rows, lower=piece, upper=binary("min", piece + size, rows.upper))
    before: list[Node] = []
    body: list[Node] = [inner]
    after: list[Node] = []
    for s in long:
        name = f"%total{next(numbers)}"
        total, kept = Read(name, s.place, F64), Cast(Read(s.buffer, s.indices, F32), F64)
        cleared = Store(s.buffer, s.indices, Const(0.0, F32))
        before += _declared(s, name, kept, cleared)
        body += _each(s, Update(name, s.place, "sum", kept), cleared)
        after += _each(s, Store(s.buffer, s.indices, Cast(total, F32)))
    pieces = (*before, For(piece.name, rows.lower, rows.upper, size, tuple(body)), *after)
    if not rows.of_data:
        return pieces
    ends = IndexValue(rows.lower + size, I64), IndexValue(rows.upper, I64)
    return (If(Apply("lt", ends, BOOL), pieces, (rows,)),)


def _declared(s: _Sum, name: str, value: Expr, then: Node) -> list[Node]:
    """A scalar, or an array and a loop that sets its elements; `then` follows each."""
    if s.along is None:
        return [Declare(name, F64, value), then]
    count = most_trips(s.along)
    assert count is not None  # `_row` asked
    return [Declare(name, F64, count=count), *_each(s, Store(name, s.place, value), then)]


def _each(s: _Sum, *nodes: Node) -> list[Node]:
    """Nodes for each of the totals."""
    return [*nodes] if s.along is None else [replace(s.along, body=nodes, lanes=(), long=False)]


def _sums(kernel: Kernel, rows: For, ranges: Mapping[str, Range]) -> Iterator[_Sum]:
    """What the loop adds terms of f32 to, and neither reads nor stores."""
    body = _Body()
    body.look(rows.body, ())
    if not body.plain:
        return
    for buffer, found in body.updates.items():
        first = found[0][0]
        plain = all(u.op == "sum" and u.value.dtype == F32 and not u.atomic for u, _ in found)
        same = all(u.indices == first.indices for u, _ in found)
        in_lanes = any(buffer in x.lanes for _, path in found for x in path)
        if buffer in body.others or in_lanes or not (plain and same):
            continue
        b = kernel.find(buffer)
        held = rows.of_data and b is None and bool(first.indices)  # a strip in registers, F32 as its terms
        along = _row(rows, found) if held or (b is not None and b.dtype == F32) else None
        if along is None and (first.indices or b is not None):
            continue
        yield _Sum(buffer, first.indices, along, sum(_times(p, along, ranges) for _, p in found))


def _row(rows: For, found: list[tuple[Update, tuple[For, ...]]]) -> For | None:
    """The loop over a row of totals, the same around all updates, and whose place no other loop changes."""
    loops = [path[-1] if path else None for _, path in found]
    first = loops[0]
    if first is None or first.coordinate is not Coordinate.VECTOR or first.step != 1 or first.joint:
        return None
    bounds = {(x.var, x.lower, x.upper) for x in loops if x is not None}
    inside = {rows.var, *(x.var for _, path in found for x in path[:-1])}
    update = found[0][0]
    if any(isinstance(i, EXPR_TYPES) for i in update.indices) or not along(update, first.var):
        return None
    changing = {v for i in update.indices for v in variables(i)} | {  # type: ignore[arg-type]
        v for e in (first.lower, first.upper) for v in variables(e)
    }
    count = most_trips(first)
    fits = count is not None and 0 < count <= MOST_ELEMENTS
    return first if None not in loops and len(bounds) == 1 and fits and not changing & inside else None


def _times(path: tuple[For, ...], row: For | None, ranges: Mapping[str, Range]) -> int:
    """How often an iteration adds to a total, as far as that is known."""
    times = 1
    for x in path if row is None else path[:-1]:
        most = most_of(x, ranges)
        times *= -(-most // x.step) if most else 1
        ranges = within(x, ranges)
    return times
