"""Prefetch of the next row, by loops over its cache lines: in the last phase of a row, or in its last pass.

`prefetch_rows`, `prefetch_next_row` and `prefetch_rows_of_data` are passes; which tensors the first two are
for, `layers.mapping.memory_hints` says.  Lines shortly before their use are prefetched where loops are
printed (`codegen.cpu.memory_ops`).

Rows of `Buffer.ahead` have loops over their lines in the last phase.

Memory is idle while the last phase computes.  Short rows are prefetched as one:

    for t:                            for t:
      phases                            phases
      for h: y[t, h] = x[t, h] ...      if t + 1 < T:  for l in 0..H by 16:  fetch x[t + 1, l]
                                        for h: y[t, h] = x[t, h] ...

A core has only so many requests under way: long rows are prefetched in pieces, as the phase goes on:

                                      for t:
                                        phases
                                        for p in 0..H by 512:
                                          if t + 1 < T:  for l in p..p+512 by 16:  fetch x[t + 1, l]
                                          for h in p..min(p+512, H): y[t, h] = x[t, h] ...

`taken_out` undoes that, for rows that ask elsewhere (`codegen.transforms.software_pipelining`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import TypeAlias

from polyfuse.codegen.analysis.accesses import START, steps_across
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.function import Function
from polyfuse.codegen.passes import missed
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import (
    IConst,
    IndexExpr,
    IndexLike,
    IVar,
    binary,
    evaluate,
    product,
    sizes,
    substitute,
    variables,
)
from polyfuse.ir.kernel import Buffer, Kernel
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    If,
    LocalRole,
    Node,
    Prefetch,
    Store,
    Update,
    map_nodes,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Expr,
    Index,
    IndexValue,
    Read,
    depends_on,
    map_expr,
    reads,
)

# --- rows while the last phase runs -----------------------------------------------------------------------

LINE_BYTES = Core().line


WHOLE = 128  # a strip has whole vectors for every accumulator

_Row: TypeAlias = tuple[Buffer, tuple[IndexExpr, ...]]  # a tensor, and where its rows are


def prefetch_rows(kernel: Kernel, block: Block, core: Core) -> Block:
    """See the module docstring."""
    chosen = [b for b in kernel.buffers if b.ahead]

    def change(node: Node) -> Node:
        return _with_prefetches(node, chosen, core) if isinstance(node, For) else node

    return map_nodes(block, change) if chosen else block


def _with_prefetches(rows: For, chosen: list[Buffer], core: Core) -> For:
    """The loop over rows with the next one's lines fetched in its last loop; other loops stay."""
    phases = [k for k, n in enumerate(rows.body) if isinstance(n, For)]
    found = [(b, lead) for b in chosen if (lead := _leading(rows, b.tensor)) is not None]
    if len(phases) < 2 or not found:
        if found:
            missed((rows,), "rows have one phase only, which loads them")
        return rows
    last = rows.body[phases[-1]]
    assert isinstance(last, For)
    if any(isinstance(n, Store) and steps_across(n.indices, rows.var, last.var) for n in last.body):
        return rows  # tiles that are transposed (`codegen.transforms.transpose_stores`) are of whole rows
    if any(sizes(b.shape[-1]) for b, _ in found):
        pieces = _in_open_pieces(rows, last, found, core)
        if pieces is None:
            missed((last,), "the last phase does not go along whole rows")
            return rows
        fetched: Block = (pieces,)
    elif sum(_row_bytes(b) for b, _ in found) <= FITTED.prefetch_as_one_bytes:
        fetched = (_ahead(rows, chosen, [_lines(rows, b, lead) for b, lead in found]), last)
    elif last.step == 1 and last.lower == IConst(0) and isinstance(last.upper, IConst):
        fetched = (_in_pieces(rows, last, last.upper.value, found),)
    else:
        missed((last,), "the last phase does not go along whole rows")
        return rows
    return replace(rows, body=(*rows.body[: phases[-1]], *fetched, *rows.body[phases[-1] + 1 :]))


def _in_pieces(rows: For, last: For, extent: int, found: list[_Row]) -> For:
    """The last loop in strips, each after a piece of every row that is its share of the loop."""
    row = sum(_row_bytes(b) for b, _ in found)
    pieces = -(-row // min(FITTED.prefetch_piece_bytes, max(FITTED.prefetch_as_one_bytes, row // 4)))
    strip, p = -(-extent // (pieces * WHOLE)) * WHOLE, IVar(f"{last.var}_p")
    strips = -(-extent // strip)
    lines = []
    for b, lead in found:
        line = LINE_BYTES // b.dtype.bytes
        share = -(-_width(b) // (strips * line)) * line
        lines.append(_lines(rows, b, lead, p * share, binary("min", p * share + share, b.shape[-1])))
    within = replace(last, lower=p * strip, upper=binary("min", p * strip + strip, last.upper))
    return For(p.name, IConst(0), IConst(strips), 1, (_ahead(rows, [b for b, _ in found], lines), within))


def _in_open_pieces(rows: For, last: For, found: list[_Row], core: Core) -> For | None:
    """The same where the length of rows is open: rows have so many times the elements that the loop has
    iterations, and L2 keeps them."""
    times = [_times(b.shape[-1], last.upper) for b, _ in found]
    if last.step != 1 or last.lower != IConst(0) or 0 in times:
        return None
    step = sum(n * b.dtype.bytes for n, (b, _) in zip(times, found, strict=True))
    strip = max(1, FITTED.prefetch_piece_bytes // (step * WHOLE)) * WHOLE
    p = IVar(f"{last.var}_p")
    lines = []
    for n, (b, lead) in zip(times, found, strict=True):
        share = n * strip
        lines.append(_lines(rows, b, lead, p * share, binary("min", p * share + share, b.shape[-1])))
    within = replace(last, lower=p * strip, upper=binary("min", p * strip + strip, last.upper))
    room = int(core.l2 * FITTED.prefetch_share_of_l2) // step
    fits = Apply("le", (IndexValue(last.upper, I64), IndexValue(IConst(room), I64)), BOOL)
    asked = _ahead(rows, [b for b, _ in found], lines, fits)
    return For(p.name, IConst(0), binary("//", last.upper + (strip - 1), strip), 1, (asked, within))


def _times(width: IndexExpr, extent: IndexExpr) -> int:
    """By which number an extent has to be multiplied to be a width; 0 if by none."""
    factors = {n for _, n in linear(width).terms}
    n = min(factors) if len(factors) == 1 else 0
    return n if n > 0 and linear(width) == linear(binary("*", extent, n)) else 0


def _ahead(rows: For, chosen: list[Buffer], lines: list[For], also: Expr | None = None) -> If:
    """Lines of the row ahead, if there is one."""
    following = (IndexValue(IVar(rows.var) + chosen[0].ahead, I64), IndexValue(rows.upper, I64))
    found = Apply("lt", following, BOOL)
    return If(found if also is None else Apply("and", (found, also), BOOL), tuple(lines))


def _lines(
    rows: For,
    b: Buffer,
    lead: tuple[IndexExpr, ...],
    begin: IndexExpr = START,
    end: IndexExpr | None = None,
) -> For:
    """A loop over lines of a row ahead of this one."""
    name = f"{rows.var}_l"
    line = Prefetch(b.tensor, (*lead, IVar(rows.var) + b.ahead, IVar(name)))
    return For(name, begin, end or b.shape[-1], LINE_BYTES // b.dtype.bytes, (line,))


def _width(b: Buffer) -> int:
    last = b.shape[-1]
    assert isinstance(last, IConst)  # rows of unknown length are not chosen
    return last.value


def _row_bytes(b: Buffer) -> int:
    return _width(b) * b.dtype.bytes


def _leading(rows: For, tensor: str) -> tuple[IndexExpr, ...] | None:
    found: list[tuple[Index, ...]] = []

    def look(node: Node) -> Node:
        if isinstance(node, (Declare, Store, Update)) and node.value is not None:
            found.extend(r.indices for r in reads(node.value) if r.tensor == tensor)
        return node

    map_nodes(rows.body, look)
    mine = [i for i in found if i[-2] == IVar(rows.var)]
    return tuple(mine[0][:-2]) if mine else None  # type: ignore[arg-type]


# --- the next row -----------------------------------------------------------------------------------------

# The last pass over a row prefetches the lines of the next one (`Buffer.soon`).
#
#     for c:                                  for c:
#       for n, i: s = s + x[n, c, i]            for n, i: s = s + x[n, c, i]
#       for n, i: y[n, c, i] = x[n, c, i] / s   for n, i: fetch x[n, c + 1, i]
#                                                         y[n, c, i] = x[n, c, i] / s
#
# The first pass waits for memory, the others read the row from L2.  `layers.mapping.memory_hints` does so for
# rows that L1 keeps, and that lie in one piece; here a row is all that an iteration reads of a tensor.
# Memory is busy with results in the last pass, and still it pays there, and not in a pass before it, where
# there is less to do for each line (docs/lab/targets.md).


_Path: TypeAlias = tuple[For, ...]  # loops around a read, outermost first
_Second: TypeAlias = tuple[int, _Path, Read]
AHEAD = "%ahead"  # how many rows lines are asked for ahead


def prefetch_next_row(kernel: Kernel, functions: tuple[Function, ...], core: Core) -> tuple[Function, ...]:
    """See the head of this section."""
    soon = [b for b in kernel.arguments if b.soon and not b.ahead]
    return tuple(_prefetching(t, soon, core) for t in functions) if soon else functions


def _prefetching(f: Function, soon: list[Buffer], core: Core) -> Function:
    alone = f.one_by_one and f.time is None
    if not alone or not f.loops or not _has_many(f.loops[-1]):
        return f
    found = [(b, p) for b in soon if (p := _second_pass(f, b)) is not None]
    if any(trip_of(x) is None for _, (_, path, _) in found for x in path):
        return _prefetching_open(f, found, core)
    row = sum(b.dtype.bytes * prod(trip_of(x) or 0 for x in path) for b, (_, path, _) in found)
    if (
        not core.l1 * FITTED.prefetch_next_row_least_of_l1
        < row
        <= core.l2 * FITTED.prefetch_next_row_most_of_l2
    ):
        if found:
            short = row <= core.l1 * FITTED.prefetch_next_row_least_of_l1
            missed(f.body, "rows stay in L1" if short else "L2 does not hold a row")
        return f
    body = list(f.body)
    for b, (number, path, read) in found:
        request = _request(f.loops[-1], path[-1], read, core.line // b.dtype.bytes)
        body[number] = _within(body[number], path, request)
    return f.with_body(tuple(body))


def _has_many(rows: For) -> bool:
    """Are there rows enough, as far as that is known?"""
    if (trip := trip_of(rows)) is not None:
        return trip >= FITTED.prefetch_next_row_least_rows
    return bool(sizes(rows.upper)) and not variables(rows.lower) + variables(rows.upper)


def _prefetching_open(f: Function, found: list[tuple[Buffer, _Second]], core: Core) -> Function:
    """The same where the length of rows is open: the next row is this one where it is too short or too long,

        n = min(1, row - least, most - row) or more      for n, i: fetch x[n, c + max(0, n), i]

    so that its lines are near already."""
    row: IndexExpr = IConst(0)
    for b, (_, path, _) in found:
        row = binary("+", row, binary("*", product(tuple(x.upper for x in path)), b.dtype.bytes))
    least = int(core.l1 * FITTED.prefetch_next_row_least_of_l1)
    most = int(core.l2 * FITTED.prefetch_next_row_most_of_l2)
    fits = binary("min", binary("-", row, least), binary("-", most + 1, row))
    ahead = Declare(
        AHEAD, I64, IndexValue(binary("max", 0, binary("min", 1, fits)), I64), role=LocalRole.INDEX
    )
    body = list(f.body)
    for b, (number, path, read) in found:
        request = _request(f.loops[-1], path[-1], read, core.line // b.dtype.bytes, IVar(AHEAD))
        body[number] = _within(body[number], path, request)
    return f.with_body((ahead, *body))


def _second_pass(f: Function, b: Buffer) -> _Second | None:
    """The last loop nest of the body that reads a whole row, if there is one before it: its number, the loops
    around the read, and the read."""
    found = [
        (k, path, r)
        for k, node in enumerate(f.body)
        for path, r in _reads(node, b.tensor)
        if _takes_row(path, r, b, f)
    ]
    return found[-1] if len({k for k, *_ in found}) > 1 else None


def _takes_row(path: _Path, r: Read, b: Buffer, f: Function) -> bool:
    """Do these loops go over all elements of a tensor that one iteration reads, its lanes along memory?"""
    names = [i.name for i in r.indices if isinstance(i, IVar)]
    if len(names) < len(b.shape) or not path or path[-1].coordinate is not Coordinate.VECTOR:
        return False
    loops, outer = {x.var: x for x in path}, {x.var for x in f.loops}
    inner = {n: e for n, e in zip(names, b.shape, strict=True) if n not in outer}
    return (
        names[-1] == path[-1].var
        and f.loops[-1].var in names
        and inner.keys() == loops.keys()
        and all(x.lower == IConst(0) and x.step == 1 and x.upper == inner[n] for n, x in loops.items())
        and not any(variables(e) for e in inner.values())
    )


def _request(rows: For, lanes: For, r: Read, line: int, ahead: IndexLike = 1) -> For:
    """A loop over the lines of the next row, where the lanes are; after the last row those of this one."""
    following = binary("min", IVar(rows.var) + ahead, rows.upper - 1)
    name = f"{lanes.var}_n"
    places = {rows.var: following, lanes.var: IVar(name)}
    indices = tuple(places.get(i.name, i) if isinstance(i, IVar) else i for i in r.indices)
    return For(name, lanes.lower, lanes.upper, line, (Prefetch(r.tensor, indices),))


def _within(node: Node, path: _Path, request: For) -> Node:
    """The request at the head of the innermost of these loops, the outermost of which the node is."""
    if node != path[0]:
        return node
    assert isinstance(node, For)
    rest = path[1:]
    body: Block = tuple(_within(n, rest, request) for n in node.body) if rest else (request, *node.body)
    return replace(node, body=body)


def _reads(node: Node, tensor: str, around: _Path = ()) -> Iterator[tuple[_Path, Read]]:
    match node:
        case For(body=body):
            for n in body:
                yield from _reads(n, tensor, (*around, node))
        case Store() | Update() | Declare() if node.value is not None:
            yield from ((around, r) for r in reads(node.value) if r.tensor == tensor)


# --- rows that data names ---------------------------------------------------------------------------------

# A loop whose bounds are data asks for the rows of a table that later iterations name.
#
#     for e in p..q:                                   for e in p..q:
#       for c: y[n, c] += table[k[e], c]       ->        for c by 16: fetch table[k[min(e + 16, E - 1)], c]
#                                                        fetch table[k[min(e + 16, E - 1)], C - 1]
#                                                        for c: y[n, c] += table[k[e], c]
#
# The hardware follows no rows in any order, and short loops end before a core has seen far ahead.  What
# comes after the last iteration is what the next row of totals begins with.  Memory of callers rarely begins
# at a line, so that a row ends one line later than it would: a bag of 64 columns takes a tenth less so.


def prefetch_rows_of_data(kernel: Kernel, f: Function, core: Core) -> Function:
    """See the head of this section."""

    def change(n: Node) -> Node:
        if not isinstance(n, For) or not n.of_data or n.coordinate is not Coordinate.SEQ:
            return n
        lanes = n.body[-1] if n.body else None
        asked = _requests(kernel, n, lanes, core) if isinstance(lanes, For) else []
        return replace(n, body=(*asked, *n.body)) if asked else n

    return f.with_body(map_nodes(f.body, change))


def _requests(kernel: Kernel, loop: For, lanes: For, core: Core) -> list[Node]:
    """What asks for the lines of rows that are read some iterations later."""
    row, found = trip_of(lanes), list[Node]()
    if lanes.coordinate is not Coordinate.VECTOR or row is None:
        return []
    values = [n.value for n in lanes.body if isinstance(n, Update)]
    for r in dict.fromkeys(r for v in values for r in reads(v)):
        table, far = _whole(kernel, r), _later(kernel, r, loop.var)
        if table is None or far is None or isinstance(far[-1], EXPR_TYPES) or sizes(table.elements):
            continue
        near = evaluate(table.elements, {}) * r.dtype.bytes <= core.l2
        long = row * r.dtype.bytes > FITTED.prefetch_rows_of_data_longest
        if near or long or linear(far[-1]).factor(IVar(lanes.var)) != 1:
            continue
        name = f"{lanes.var}_n{len(found)}"
        at, last = (
            Prefetch(r.tensor, (*far[:-1], substitute(far[-1], {lanes.var: e})))
            for e in (IVar(name), lanes.upper - 1)
        )
        found += For(name, lanes.lower, lanes.upper, core.line // r.dtype.bytes, (at,)), last
    return found


def _whole(kernel: Kernel, r: Read) -> Buffer | None:
    """What an element is of, if memory has all of it."""
    found = kernel.find(r.tensor)
    return found if found in kernel.arguments and found.extents == found.shape else None


def _later(kernel: Kernel, r: Read, var: str) -> tuple[Index, ...] | None:
    """The indices of a read some iterations later, if elements of tensors that these run along say where."""
    if not any(isinstance(i, EXPR_TYPES) and var in depends_on(i) for i in r.indices):
        return None
    plain = True

    def later(e: Expr) -> Expr:
        nonlocal plain
        named = _whole(kernel, e) if isinstance(e, Read) else None
        if not isinstance(e, Read) or var not in depends_on(e):
            plain = plain and not (isinstance(e, IndexValue) and var in depends_on(e))
            return e
        if named is None or any(isinstance(i, EXPR_TYPES) for i in e.indices):
            plain = False
            return e
        places = zip(e.indices, named.shape, strict=True)
        return replace(e, indices=tuple(_ahead_of(i, var, n) for i, n in places))

    found = tuple(map_expr(i, later) if isinstance(i, EXPR_TYPES) else i for i in r.indices)
    rest = [i for i in r.indices if not isinstance(i, EXPR_TYPES)]
    return found if plain and not any(var in depends_on(i) for i in rest) else None


def _ahead_of(i: Index, var: str, extent: IndexExpr) -> Index:
    """An index of an element some iterations later, the last one at most."""
    if isinstance(i, EXPR_TYPES) or var not in variables(i):
        return i
    return binary("min", binary("+", i, IConst(FITTED.prefetch_rows_of_data_ahead)), extent - 1)
