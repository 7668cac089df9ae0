"""Loop-invariant code motion: what a loop does not change is computed before it.

`hoist`                  the same for all lanes: a scalar
`hoist_columns`          a value for each lane: an array; of a function's rows `hoist_function_columns`
`hoist_conversions`      rows of 16 bits that all iterations read: an array of f32

Of scalars, functions and divisions are moved:

    for c1 in 0..C:                             h0 = log(s)
      y[c0, c1] = x[c0, c1] - log(s)     ->     for c1 in 0..C:
                                                  y[c0, c1] = x[c0, c1] - h0

C++ compilers move cheap expressions out of loops, but no function with branches.  Only what every
iteration computes is moved: nothing under a condition, nothing of a loop inside that may be empty.
Where the loop itself may be empty, the value is computed under the condition that it is not:

    f32 h0
    if lower < upper: h0 = log(s[c0])

No value changes: the expressions stay as they are, a division by an invariant remains a division
(`codegen.transforms.strength_reduction` is another pass).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.accesses import converted, strides_of
from polyfuse.codegen.analysis.invariants import Moved, aliases, runs_of, written
from polyfuse.codegen.analysis.op_cost import costly
from polyfuse.codegen.analysis.trip_count import most_trips, trip_of
from polyfuse.codegen.function import Function, inside
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, kept_room, wide_room
from polyfuse.ir.dtypes import BOOL, F32, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import Range, size_ranges
from polyfuse.ir.loop_ir import Block, Declare, For, If, LocalRole, Node, Store, Update, map_values
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Cast, Const, Expr, Index, IndexValue, Read, depends_on

# --- scalars ----------------------------------------------------------------------------------------------

# Iterations of these loops are shared out; what they have in common is computed by each.
_SHARED = (Coordinate.BLK, Coordinate.ROW, Coordinate.THREAD)


def hoist(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """See the module docstring. `numbers` numbers the scalars."""
    return _block(block, aliases(kernel), size_ranges(kernel.graph), numbers)


def _block(
    block: Block, alias: Mapping[str, str], ranges: Mapping[str, Range], numbers: itertools.count[int]
) -> Block:
    result: list[Node] = []
    for node in block:
        match node:
            case For() if node.coordinate in _SHARED or node.upper == node.lower + 1:
                result.append(replace(node, body=_block(node.body, alias, ranges, numbers)))
            case For():
                moved = Moved(written((node,), alias), alias, numbers, ranges)
                body = moved.block(node.body, runs_of(node, ranges))
                result += [*moved.before, replace(node, body=_block(body, alias, ranges, numbers))]
            case If():
                then, other = (_block(b, alias, ranges, numbers) for b in (node.then, node.other))
                result.append(replace(node, then=then, other=other))
            case _:
                result.append(node)
    return tuple(result)


# --- columns ----------------------------------------------------------------------------------------------

# Functions and divisions of what stands in a column are computed once, before the rows; what lies apart in
# memory is gathered once.
#
#     for t in 0..T:                                      for v in 0..V @vec:  k[v] = rsqrt(s[v])
#       for v in 0..V @vec:                        ->     for t in 0..T:
#         y[t, v] = x[t, v] * rsqrt(s[v])                   for v in 0..V @vec:  y[t, v] = x[t, v] * k[v]
#
#     for t in 0..T:                                      for v in 0..V @vec:  k[v] = p[v, 1]
#       for v in 0..V @vec:                        ->     for t in 0..T:
#         y[t, v] = x[t] * p[v, 1]                          for v in 0..V @vec:  y[t, v] = x[t] * k[v]
#
# What is the same for all lanes, `hoist` moves; here each lane has a value of its own, kept in an array that
# stays in L1.  Where rows are shared out, each chunk of them begins with its own array.  No value changes,
# and only what every row computes is moved.


def hoist_columns(kernel: Kernel, block: Block, numbers: itertools.count[int], core: Core) -> Block:
    """See the head of this section. `numbers` numbers the arrays, which are made for a core."""
    result: list[Node] = []
    for node in block:
        match node:
            case For() if (
                node.coordinate is Coordinate.SEQ and (trip_of(node) or 0) >= FITTED.hoist_columns_fewest
            ):
                rows = _Rows(kernel, written((node,), aliases(kernel)), numbers, kept_room(core))
                body = rows.block(node.body)
                result += [*rows.before, replace(node, body=hoist_columns(kernel, body, numbers, core))]
            case For():
                result.append(replace(node, body=hoist_columns(kernel, node.body, numbers, core)))
            case If():
                then, other = (hoist_columns(kernel, b, numbers, core) for b in (node.then, node.other))
                result.append(replace(node, then=then, other=other))
            case _:
                result.append(node)
    return tuple(result)


def hoist_function_columns(
    kernel: Kernel, f: Function, numbers: itertools.count[int], core: Core
) -> Function:
    """The same for rows that are handed out."""
    shared = math.prod(trip_of(x) or 0 for x in f.loops)
    if f.batches or not f.loops or shared < FITTED.hoist_columns_fewest_shared:
        return f
    changed = {x.var for x in f.loops} | written(f.body, aliases(kernel))
    rows = _Rows(kernel, changed, numbers, kept_room(core))
    return f.with_body(rows.block(f.body)).with_before(rows.before)


@dataclass(slots=True)
class _Rows:
    """Loops over rows, which set `changed`; `before` comes to stand before them, with arrays of
    `room` bytes at most."""

    kernel: Kernel
    changed: set[str]
    numbers: itertools.count[int]
    room: int
    before: list[Node] = field(default_factory=list)

    def block(self, block: Block) -> Block:
        """A block that all rows run."""
        return tuple(self._node(n) if isinstance(n, For) else n for n in block)

    def _node(self, loop: For) -> For:
        bounds = {*variables(loop.lower), *variables(loop.upper)}
        if bounds & self.changed or loop.step != 1:
            return loop
        if loop.coordinate is not Coordinate.VECTOR:
            return replace(loop, body=self.block(loop.body)) if trip_of(loop) else loop
        count = most_trips(loop)
        if not count or not all(isinstance(n, (Declare, Store, Update)) for n in loop.body):
            return loop
        changed, alias = self.changed - {loop.var}, aliases(self.kernel)
        columns = _Columns(
            changed, alias, self.numbers, kernel=self.kernel, lane=loop, count=count, room=self.room
        )
        body = columns.block(loop.body, ())
        self.before += columns.filled()
        self.room = columns.room
        return replace(loop, body=body)


@dataclass(slots=True, kw_only=True)
class _Columns(Moved):
    """What rows of at most `count` lanes do not change, in arrays of all lanes."""

    kernel: Kernel
    lane: For
    count: int
    room: int

    def costly(self, e: Expr) -> bool:
        value = e.arg if isinstance(e, Cast) else e
        return costly(e) or (isinstance(value, Read) and self._lies_apart(value))

    def _lies_apart(self, r: Read) -> bool:
        """Do neighbouring lanes read elements that are no neighbours?"""
        (apart,) = strides_of(self.kernel, r, self.lane.var)
        return apart > 1

    def kept(self, e: Expr, runs: tuple[Expr, ...]) -> Expr:
        key, size = self.key(e, runs), self.count * e.dtype.bytes
        if key in self.known:
            return self.known[key]
        if self.lane.var not in depends_on(e) or size > self.room:
            return e
        self.room -= size
        place = binary("-", IVar(self.lane.var), self.lane.lower)
        self.known[key] = Read(f"%column{next(self.numbers)}", (place,), e.dtype, e.span)
        return self.known[key]

    def filled(self) -> Block:
        """The arrays, and the loop that fills them."""
        arrays = tuple(
            Declare(r.tensor, r.dtype, None, self.count, LocalRole.SHARED) for r in self.known.values()
        )
        stores = tuple(Store(r.tensor, r.indices, e) for (e, *_), r in self.known.items())
        return (*arrays, replace(self.lane, body=stores, lanes=())) if stores else ()


# --- conversions ------------------------------------------------------------------------------------------

# Rows of 16 bits that all iterations of a function read become f32 once, in an array of the worker.
#
#     for t in 0..T @blk:                        for l in 0..64:  w[l] = f32(g[l])
#       for l in 0..64:                    ->    for t in 0..T @blk:
#         y[t, l] = f(x[t, l]) * f32(g[l])         for l in 0..64:  y[t, l] = f(x[t, l]) * w[l]
#
# A LayerNorm of rows in f16 reads its scale and shift as often as a row, and to convert them would take as
# long.  A row that iterations read which follow one another (the mask of a batch, `mask[n, l]` for all rows
# of `x[n, a, l]`) is converted by the first of them:
#
#     for n in 0..N @blk, a in 0..A @blk:
#       if n != w_at:  for l in 0..64:  w[l] = f32(mask[n, l]);   w_at = n


_Row = tuple[str, tuple[Index, ...]]  # a tensor, and its leading indices


def hoist_conversions(kernel: Kernel, f: Function, core: Core) -> Function:
    """The function, with such rows as f32."""
    shared = () if f.batches else _shared(f.loops)
    search = _Search({b.tensor: b.extents for b in kernel.unchanged if b.extents == b.shape}, shared)
    search.block(f.body, _times(f.loops))
    names: dict[_Row, str] = {}
    before: list[Node] = []
    first: list[Node] = []
    room = wide_room(core)
    for row, (read, count) in search.found.items():
        if count * F32.bytes <= room:
            room -= count * F32.bytes
            name = names[row] = f"%wide{len(names)}"
            before.append(Declare(name, F32, None, count, LocalRole.SHARED))
            filled = _filled(name, read, count)
            if outer := [x.var for x in shared if depends_on(*row[1]) & {x.var}]:
                at, made = _once(name, outer, filled)
                before += at
                first.append(made)
            else:
                before.append(filled)
    if not names:
        return f
    f = f.with_batches([_reading(inside(x), names) for x in f.batches])
    return f.with_body((*first, *_reading(f.body, names))).with_before(before)


def _shared(loops: tuple[For, ...]) -> tuple[For, ...]:
    """The outer loops of a parallel nest: as long as they stay where they are many iterations follow."""
    inner = next(
        (k for k in range(1, len(loops)) if _times(loops[-k:]) >= FITTED.hoist_conversions_fewest_rows),
        len(loops),
    )
    return loops[: len(loops) - inner]


def _once(name: str, variables: list[str], filled: Node) -> tuple[list[Node], Node]:
    """Where loops were when an array was filled, nowhere at first, and: fill it if they are elsewhere."""
    places = [(f"{name}_at{k}", IndexValue(IVar(v), I64)) for k, v in enumerate(variables)]
    conditions: list[Expr] = [Apply("ne", (Read(at, (), I64), here), BOOL) for at, here in places]
    moved = functools.reduce(lambda a, b: Apply("or", (a, b), BOOL), conditions)
    stores = [Store(at, (), here) for at, here in places]
    return [Declare(at, I64, Const(-1, I64)) for at, _ in places], If(moved, (filled, *stores))


def _times(loops: Iterable[For]) -> float:
    """How often the body of loops runs, without end where that is not known."""
    return math.prod(math.inf if (trip := trip_of(x)) is None else trip for x in loops)


@dataclass(slots=True)
class _Search:
    """Finds rows of tensors with these extents that vector loops inside of others go along; the same ones for
    all iterations of those, or while the loops `shared` are where they are."""

    extents: dict[str, tuple[IndexExpr, ...]]
    shared: tuple[For, ...] = ()
    found: dict[_Row, tuple[Read, int]] = field(default_factory=dict)

    def block(self, block: Block, times: float) -> None:
        """Looks at a block that runs so many times."""
        for n in block:
            match n:
                case For() if n.coordinate is Coordinate.VECTOR:
                    if times >= FITTED.hoist_conversions_fewest_rows:
                        self._loop(n)
                case For():
                    self.block(n.body, times * _times([n]))
                case If():
                    self.block((*n.then, *n.other), times)
                case _:
                    pass

    def _loop(self, loop: For) -> None:
        for r in converted(loop.body):
            row = _row_of(r, loop.var)
            row = row if row and depends_on(*row[1]) <= {x.var for x in self.shared} else None
            count = self._elements(row) if row else 0
            if row and count:
                self.found.setdefault(row, (r, count))

    def _elements(self, row: _Row) -> int:
        """Of a row; 0 where it is not known to be there: a condition may keep the loop from reading it."""
        tensor, leading = row
        *outer, last = self.extents.get(tensor, (IConst(0),))
        inside = all(self._is_inside(i, e) for i, e in zip(leading, outer, strict=False))
        return last.value if inside and isinstance(last, IConst) else 0

    def _is_inside(self, index: Index, extent: IndexExpr) -> bool:
        match index:
            case IConst(value):
                return isinstance(extent, IConst) and 0 <= value < extent.value
            case IVar(name):
                loop = next((x for x in self.shared if x.var == name), None)
                ends = (loop.lower, loop.upper, extent) if loop else ()
                values = [e.value for e in ends if isinstance(e, IConst)]
                return len(values) == 3 and values[0] >= 0 and values[1] <= values[2]
            case _:
                return False


def _row_of(r: Read, var: str) -> _Row | None:
    """The row that a read of a loop goes along, if plain variables and numbers tell it."""
    if not r.indices:
        return None
    *leading, last = r.indices
    if isinstance(last, EXPR_TYPES) or not all(isinstance(i, (IConst, IVar)) for i in leading):
        return None
    along = var in variables(last) and var not in depends_on(*leading)
    return (r.tensor, tuple(leading)) if along else None


def _filled(name: str, read: Read, count: int) -> Node:
    """An array becomes all of a read's row."""
    var = IVar(f"{name[1:]}_i")
    value = Cast(replace(read, indices=(*read.indices[:-1], var)), F32)
    return For(var.name, IConst(0), IConst(count), 1, (Store(name, (var,), value),), Coordinate.VECTOR)


def _reading(block: Block, names: dict[_Row, str]) -> Block:
    """The block, with reads of the arrays in place of the tensors."""

    def loop(n: Node) -> Node:
        match n:
            case For(var) if n.coordinate is Coordinate.VECTOR:

                def expr(e: Expr) -> Expr:
                    if not isinstance(e, Cast) or e.dtype != F32 or not isinstance(e.arg, Read):
                        return e
                    name = names.get(_row_of(e.arg, var) or ("", ()))
                    return Read(name, e.arg.indices[-1:], F32) if name else e

                return replace(n, body=map_values(n.body, expr, lambda i: i))
            case For():
                return replace(n, body=tuple(map(loop, n.body)))
            case If():
                return replace(n, then=tuple(map(loop, n.then)), other=tuple(map(loop, n.other)))
            case _:
                return n

    return tuple(map(loop, block))
