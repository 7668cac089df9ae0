"""Register tiling: sums of products stay in vector registers, and what follows reads them there.

`register_tiles` and `fuse_tile_epilogues` are passes.  Tiles are chosen before (`layers.contractions`).

A tile of rows and columns is summed in registers.

    for k:                                          t[6, 16] = 0
      for m in 6*c0..min(M, 6*c0 + 6):              for k:  for i in 0..6:  for j in 0..16:
        for n in 16*c1..min(N, 16*c1 + 16) @vec:       t[i, j] += a[c0, k, i] * b[c1, k, j]
          c[m, n] += a[c0, k, m - 6*c0]      ->     for m in 6*c0..min(M, 6*c0 + 6):
                     * b[c1, k, n - 16*c1]            for n in 16*c1..min(N, 16*c1 + 16) @vec:
                                                        c[m, n] += t[m - 6*c0, n - 16*c1]

A tile is always computed whole, with loops that compilers unroll.  Where the last one has fewer rows or
columns than others, what is computed beyond them is not used; it is read from memory that exists:
from a dim of the operand that is as long as the tile, or from a tile that begins earlier, so that it ends
with the tensor. Where sizes are open, a tensor may be shorter than a tile, which then says where it ends
(`RegisterTile.ends`): fewer rows and columns are computed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

from polyfuse.codegen.analysis.index_ranges import strip_of
from polyfuse.codegen.passes import missed
from polyfuse.ir.contraction import Term, factors_of, term_of
from polyfuse.ir.dtypes import BOOL, F32, F64, I32, I64
from polyfuse.ir.functions import has_function
from polyfuse.ir.index_expr import (
    IConst,
    IndexExpr,
    IVar,
    as_index,
    binary,
    evaluate,
    sizes,
    substitute,
    variables,
)
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.linear import flat, linear
from polyfuse.ir.loop_ir import (
    Block,
    For,
    If,
    Node,
    RegisterTile,
    Store,
    Update,
    map_nodes,
    map_values,
    substituted,
    values_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    Statement,
    map_index,
    plain_variables,
)

# --- tiles ------------------------------------------------------------------------------------------------

# Bytes of the accumulators of a tile at most: all registers of a machine with 32 of 64 bytes. A tile that
# reads its lanes in place has vectors of the longest kind.
MOST_BYTES = 2048
VECTOR_BYTES, LEAST_BYTES = 64, 16


def register_tiles(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """The block with such loops as tiles. `numbers` numbers their arrays."""
    result: list[Node] = []
    for node in block:
        match node:
            case For():
                nest = sum_nest(node)
                made = _tile(kernel, nest, numbers) if nest is not None else None
                if made and nest is not None and result and _begins(result[-1], nest):
                    result.pop()
                    made[-1] = _stored(made[-1])
                result += made or [replace(node, body=register_tiles(kernel, node.body, numbers))]
            case If():
                then, other = (register_tiles(kernel, b, numbers) for b in (node.then, node.other))
                result.append(replace(node, then=then, other=other))
            case _:
                result.append(node)
    return tuple(result)


@dataclass(frozen=True, slots=True)
class SumNest:
    """Loops over what is summed, over rows and over lanes, and the update in them.

    Factors are elements of memory, or their conversions.
    """

    over: tuple[For, ...]
    row: For
    lane: For
    update: Update
    left: Expr
    right: Expr


def sum_nest(loop: For) -> SumNest | None:
    """The perfect nest from a loop on, if it sums products of rows and lanes."""
    loops = [loop]
    while len(loops[-1].body) == 1 and isinstance(loops[-1].body[0], For):
        loops.append(loops[-1].body[0])
    body = loops[-1].body
    if len(loops) < 3 or len(body) != 1 or not isinstance(body[0], Update):
        return None
    *over, row, lane = loops
    plain = all(x.coordinate is Coordinate.SEQ and x.step == 1 for x in (*over, row))
    if not plain or lane.coordinate is not Coordinate.VECTOR or lane.step != 1:
        return None
    factors = _factors(body[0], row.var, lane.var)
    inside = {x.var for x in over}
    bounds = {v for x in (row, lane) for e in (x.lower, x.upper) for v in variables(e)}
    if factors is None or (bounds | plain_variables(body[0].indices)) & inside or row.var in _bounds(lane):
        return None
    return SumNest(tuple(replace(x, body=()) for x in over), row, lane, body[0], *factors)


def reads_windows(tile: RegisterTile) -> bool:
    """Do rows read, in later steps, what their neighbours have read?"""
    steps = {x.var for x in tile.loops}
    found = (plain_variables((i,)) for i in tile.left.indices)
    return any(tile.row in names and names & steps for names in found)


def _begins(node: Node, nest: SumNest) -> bool:
    """Does a node set what a tile sums to zero, and nothing else?"""
    match node:
        case For(row, _, _, 1, (For(lane, _, _, 1, (Store(buffer, _, Const(0.0)),)),)):
            (inner,) = substituted(node.body, {row: IVar(nest.row.var), lane: IVar(nest.lane.var)})
            (store,) = inner.body if isinstance(inner, For) else ()
            same = isinstance(store, Store) and store.indices == nest.update.indices
            return (
                same
                and buffer == nest.update.buffer
                and (node.lower, node.upper) == (nest.row.lower, nest.row.upper)
                and isinstance(inner, For)
                and (inner.lower, inner.upper) == (nest.lane.lower, nest.lane.upper)
            )
        case _:
            return False


def _stored(node: Node) -> Node:
    """The loops that add a tile to what was zero, storing it."""
    match node:
        case For(body=(inner,)):
            return replace(node, body=(_stored(inner),))
        case Update(buffer, indices, _, value):
            return Store(buffer, indices, value)
        case _:
            return node


def _bounds(loop: For) -> set[str]:
    return set(variables(loop.lower)) | set(variables(loop.upper))


def _factors(update: Update, row: str, lane: str) -> tuple[Expr, Expr] | None:
    """What each row and each lane brings to a product."""
    value = update.value
    factors = factors_of(value)
    if update.op != "sum" or update.atomic or factors is None:
        return None
    if value.dtype not in (F32, F64, I32) or any(isinstance(i, EXPR_TYPES) for i in update.indices):
        return None
    for left, right in (factors, factors[::-1]):
        a, b = element(left), element(right)
        if a is None or b is None or update.buffer in (a.tensor, b.tensor):
            return None
        if lane not in plain_variables(a.indices) and row not in plain_variables(b.indices):
            return (left, right) if lane in plain_variables(b.indices) else None
    return None


def element(e: Expr) -> Read | None:
    """The element of memory, found without data, that an expression is or converts."""
    e = e.arg if isinstance(e, Cast) else e
    return e if isinstance(e, Read) and not any(isinstance(i, EXPR_TYPES) for i in e.indices) else None


def _tile(kernel: Kernel, nest: SumNest, numbers: itertools.count[int]) -> list[Node] | None:
    dtype = nest.update.value.dtype
    shape, left, right = (strip_of(nest.row), strip_of(nest.lane)), nest.left, nest.right
    if not (isinstance(left, Read) and isinstance(right, Read)):
        return None
    if shape[0] is None or shape[1] is None:
        missed((nest.update,), "rows and columns are not cut into tiles")
        return None
    if not {left.tensor, right.tensor} <= {b.tensor for b in kernel.buffers}:
        return None  # what loops around compute
    rows, lanes = shape[0].length, _lanes(kernel, nest, right, shape[1].length)
    if rows * lanes * dtype.bytes > MOST_BYTES:
        missed((nest.update,), "registers do not hold a tile")
        return None
    starts = (
        _start(kernel, nest, nest.row, rows, left),
        _start(kernel, nest, nest.lane, lanes, right),
    )
    if starts[0] is None or starts[1] is None:
        missed((nest.update,), "a whole tile would read beyond the end of a tensor")
        return None
    if not _contiguous(kernel, right, nest.lane.var):
        missed((nest.update,), "columns do not lie side by side")
        return None
    name = f"%tile{next(numbers)}"
    row, lane = f"{name[1:]}_row", f"{name[1:]}_lane"
    tile = RegisterTile(
        name,
        dtype,
        nest.row.var,
        rows,
        nest.lane.var,
        lanes,
        ((row, starts[0].start), (lane, starts[1].start)),
        nest.over,
        left,
        right,
        _parts(nest),
        _term(nest),
        (starts[0].end, starts[1].end),
        (starts[0].held, starts[1].held),
    )
    place = binary("*", binary("-", IVar(nest.row.var), IVar(row)), lanes)
    place = binary("+", place, binary("-", IVar(nest.lane.var), IVar(lane)))
    total = replace(nest.update, value=Read(name, (place,), dtype))
    return [tile, replace(nest.row, body=(replace(nest.lane, body=(total,)),))]


def _term(nest: SumNest) -> Term:
    """Of bytes without signs the factor of rows has some, where it is the second one."""
    term, factors = term_of(nest.update.value), factors_of(nest.update.value)
    return "row bytes" if term == "bytes" and factors and factors[1] == nest.left else term


def _parts(nest: SumNest) -> int:
    """Leading loops over strips of another: rounding errors grow with the terms that one sum takes."""
    count = len(nest.over)
    return next((k for k in range(count, 0, -1) if nest.over[k - 1].var in _strips(nest.over[k:])), 0)


def _strips(loops: tuple[For, ...]) -> set[str]:
    """What loops begin at."""
    return {v for x in loops for v in variables(x.lower)}


def _lanes(kernel: Kernel, nest: SumNest, right: Read, length: int) -> int:
    """How many lanes are computed for `length` of them: as many as lie side by side for a tile, or as there
    are, where these fill a vector (the last of several may overlap the one before), else vectors that are
    full."""
    size = nest.update.value.dtype.bytes
    held = _held(kernel, nest.lane, right) or 0
    if held >= length and (held * size % LEAST_BYTES == 0 or held * size >= VECTOR_BYTES):
        return held
    if binary("-", nest.lane.upper, nest.lane.lower) == IConst(length) and length * size >= VECTOR_BYTES:
        return length
    unit = LEAST_BYTES if length * size % LEAST_BYTES == 0 else VECTOR_BYTES
    return -(-length * size // unit) * unit // size


def _held(kernel: Kernel, loop: For, read: Read) -> int | None:
    """How long the dim of an operand is that a loop runs over from 0 on, and nothing else."""
    shape = kernel.buffer(read.tensor).extents
    places = [(i, e) for i, e in zip(_affine(read), shape, strict=True) if loop.var in variables(i)]
    if len(places) != 1 or sizes(places[0][1]):
        return None
    inside = linear(binary("-", places[0][0], binary("-", IVar(loop.var), loop.lower)))
    return evaluate(places[0][1], {}) if inside == linear(IConst(0)) else None


def _contiguous(kernel: Kernel, read: Read, lane: str) -> bool:
    where = flat(_affine(read), kernel.buffer(read.tensor).extents)
    return where.factor(IVar(lane)) == 1 and not any(
        lane in variables(atom) for atom, _ in where.terms if atom != IVar(lane)
    )


def _affine(read: Read) -> tuple[IndexExpr, ...]:
    return tuple(i for i in read.indices if not isinstance(i, EXPR_TYPES))


@dataclass(frozen=True, slots=True)
class _Side:
    """Where the rows or lanes of a tile begin; where they end, if these may be fewer; `held`: is there memory
    for more?"""

    start: IndexExpr
    end: IndexExpr | None = None
    held: bool = True


def _start(kernel: Kernel, nest: SumNest, loop: For, length: int, read: Read) -> _Side | None:
    """Where a tile of `length` begins, so that all it reads exists; None if nothing is known to do."""
    full = binary("-", loop.upper, loop.lower) == IConst(length) or loop.upper == loop.lower + length
    if (_held(kernel, loop, read) or 0) >= length:
        return _Side(loop.lower, loop.upper if sizes(loop.upper) and not full else None)
    if full:
        return _Side(loop.lower)
    span = span_of(kernel, nest.update, loop.var)
    if span is None or (isinstance(span, IConst) and span.value < length):
        return None
    if not isinstance(span, IConst):
        return _Side(loop.lower, loop.upper, held=False)
    return _Side(binary("max", IConst(0), binary("min", loop.lower, binary("-", loop.upper, length))))


def span_of(kernel: Kernel, update: Update, var: str) -> IndexExpr | None:
    """How long a dim of the result in what is summed is, if it begins at 0 and each value goes with all
    values of other dims."""
    places = [k for k, i in enumerate(update.indices) if var in plain_variables((i,))]
    summed = [s for s in kernel.graph.statements if s.target == update.buffer and s.accumulate]
    if len(places) != 1 or len(summed) != 1 or any(variables(e) for e in _ends(summed[0])):
        return None
    index = summed[0].write[places[0]]
    d = next((d for d in summed[0].dims if index == IVar(d.name)), None)
    return d.upper if d is not None and d.lower == IConst(0) else None


def _ends(s: Statement) -> Iterator[IndexExpr]:
    """Where its dims begin and end."""
    for d in s.dims:
        yield from (d.lower, d.upper)


# --- epilogues --------------------------------------------------------------------------------------------

# An epilogue reads the sums of its tile where the tile has left them, not from an array of copies.
#
#     t[6, 16] = ...                                           t[6, 16] = ...
#     for m in 6*c0..min(M, 6*c0 + 6):                         for m in 6*c0..min(M, 6*c0 + 6):
#       for n in 16*c1..16*c1 + 16 @vec:                         for n in 16*c1..16*c1 + 16 @vec:
#         c[m - 6*c0, n - 16*c1] = t[m - 6*c0, n - 16*c1]   ->     y[m, n] = t[m - 6*c0, n - 16*c1] + b[m]
#     for m in 6*c0..min(M, 6*c0 + 6):
#       for n in 16*c1..16*c1 + 16 @vec:
#         y[m, n] = c[m - 6*c0, n - 16*c1] + b[m]
#
# `c` is an array of one worker that nothing else reads.  Where few steps are summed, as in a convolution of
# three channels, such copies took as long as all else that follows.


def fuse_tile_epilogues(kernel: Kernel, block: Block) -> Block:
    """The block without such copies; what follows a tile of open sizes then knows when that is whole."""
    local = {b.tensor for b in kernel.buffers if b.scope is Scope.LOCAL}
    uses = _uses(block)

    def spared(block: Block) -> Block:
        result: list[Node] = []
        while block:
            node, *rest = block
            copy = _copy(result[-1], node) if result else None
            block = tuple(rest)
            if copy is not None and copy.to in local:
                later = tuple(map(copy.spared, rest))
                if uses[copy.to] == 1 + _uses(block)[copy.to] and not _uses(later)[copy.to]:
                    block = later
                    continue
            if isinstance(node, For):
                node = replace(node, body=spared(node.body))
            elif isinstance(node, If):
                node = replace(node, then=spared(node.then), other=spared(node.other))
            result.append(node)
        return tuple(result)

    return _with_whole_tiles(spared(block)) if kernel.graph.sizes else spared(block)


def _with_whole_tiles(block: Block) -> Block:
    """The block in which loops over a tile that may end earlier have a version for one that does not, whose
    length is known, unless they compute functions.

        for m in 6*c0..min(M, 6*c0 + 6):         if min(M, 6*c0 + 6) - 6*c0 >= 6:
          y[m] = t[m - 6*c0]               ->      for m in 6*c0..6*c0 + 6:  y[m] = t[m - 6*c0]
                                                 else: ...
    """
    result: list[Node] = []
    tile: RegisterTile | None = None
    for node in block:
        match node:
            case RegisterTile():
                tile = node
            case For(body=(For(body=body) as lane,)) if tile is not None and _runs_over(tile, node, lane):
                if not any(map(has_function, values_of(body))):
                    node = _if_whole(tile, node, lane)
            case For():
                node = replace(node, body=_with_whole_tiles(node.body))
            case If():
                then, other = (_with_whole_tiles(b) for b in (node.then, node.other))
                node = replace(node, then=then, other=other)
            case _:
                pass
        result.append(node)
    return tuple(result)


def _runs_over(tile: RegisterTile, row: For, lane: For) -> bool:
    """Are loops those over rows and lanes of a tile that may end earlier?"""
    begins = (row.lower, lane.lower) == (tile.start[0][1], tile.start[1][1])
    ends = [e is None or e == x.upper for e, x in zip(tile.ends, (row, lane), strict=True)]
    return begins and all(ends) and tile.ends != (None, None) and row.step == lane.step == 1


def _if_whole(tile: RegisterTile, row: For, lane: For) -> If:
    """Such loops with a version for a whole tile."""
    conditions: list[Expr] = []
    known = []
    for loop, count, end in zip((row, lane), (tile.rows, tile.lanes), tile.ends, strict=True):
        if end is not None:
            values = (IndexValue(as_index(count), I64), IndexValue(binary("-", loop.upper, loop.lower), I64))
            conditions.append(Apply("le", values, BOOL))
        known.append(loop if end is None else replace(loop, upper=binary("+", loop.lower, count)))
    whole = replace(known[0], body=(replace(known[1], body=lane.body),))
    return If(reduce(lambda a, b: Apply("and", (a, b), BOOL), conditions), (whole,), (row,))


@dataclass(frozen=True, slots=True)
class _Copy:
    """Loops that store `sums` of a tile to elements of `to`."""

    row: For
    lane: For
    to: str
    indices: tuple[Index, ...]
    sums: Read

    def spared(self, node: Node) -> Node:
        """A later node, which reads the tile if it has the same rows and lanes."""
        match node:
            case For(body=(For() as lane,)) if _as_long(node, self.row) and _as_long(lane, self.lane):
                names: dict[str, IndexExpr] = {self.row.var: IVar(node.var), self.lane.var: IVar(lane.var)}
                at, sums = _renamed(self.indices, names), _renamed(self.sums.indices, names)

                def read(e: Expr) -> Expr:
                    mine = isinstance(e, Read) and e.tensor == self.to and e.indices == at
                    return replace(self.sums, indices=sums) if mine else e

                (made,) = map_values((node,), read, lambda i: i)
                return made
            case _:
                return node


def _copy(tile: Node, node: Node) -> _Copy | None:
    """What copies all of a tile, right after it."""
    match tile, node:
        case RegisterTile(), For(body=(For(body=(Store(to, indices, Read() as sums),)) as lane,)):
            return _Copy(node, lane, to, indices, sums) if sums.tensor == tile.name else None
        case _:
            return None


def _as_long(a: For, b: For) -> bool:
    return (a.lower, a.upper, a.step) == (b.lower, b.upper, b.step)


def _renamed(indices: tuple[Index, ...], names: dict[str, IndexExpr]) -> tuple[Index, ...]:
    return tuple(map_index(i, lambda e: e, lambda i: substitute(i, names)) for i in indices)


def _uses(block: Block) -> Counter[str]:
    """How often each buffer is named."""
    found: Counter[str] = Counter()

    def expr(e: Expr) -> Expr:
        found.update([e.tensor] if isinstance(e, Read) else [])
        return e

    def node(n: Node) -> Node:
        match n:
            case Store() | Update():
                found.update([n.buffer])
            case RegisterTile():
                found.update([n.left.tensor, n.right.tensor])
            case _:
                pass
        return n

    map_nodes(map_values(block, expr, lambda i: i), node)
    return found
