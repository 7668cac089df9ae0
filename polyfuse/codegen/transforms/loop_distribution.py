"""What steps of a recurrence take in, and need not wait for, is computed in lanes before them.

    for t in 1..T:                                    for u in 0..T // 64:
      p = p + (x[t] if m[t] else 0)                     for l in 0..64 @vec:
      y[t] = p                                 ->         term[l] = x[64*u + l + 1] if m[64*u + l + 1] else 0
                                                        for l in 0..64:
                                                          p = p + term[l];  y[64*u + l + 1] = p
                                                      and what is left as it was

Steps wait for one another, so the loop is no vector loop, and everything in it would be computed one by one:
choices, which become branches that processors guess wrongly, functions, conversions.  What is an instruction
or two waits for nothing, and stays.

Whatever is read here the loop does not change.  Not where indices are checked: what is reported is the index
that data had.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.op_cost import computes_little
from polyfuse.codegen.analysis.reduction_nests import are_steps
from polyfuse.codegen.analysis.trip_count import most_trips, trip_of
from polyfuse.codegen.c_printer import guarded_load, guards_index
from polyfuse.codegen.function import Function, inside
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.dtypes import F32, F64, I32, I64, DType
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary
from polyfuse.ir.intervals import of_dtype
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    LocalRole,
    Node,
    Store,
    Update,
    map_nodes,
    nodes_of,
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
    IndexValue,
    Read,
    Select,
    depends_on,
    map_expr,
    reads,
    walk,
)

# Cheap operations that are choices, as selections are.
_EXTREMES = ("min", "max")
# What is chosen by masks.
CHOSEN = (F32, F64, I32, I64)


def distribute_recurrences(kernel: Kernel, f: Function, numbers: itertools.count[int]) -> Function:
    """See the module docstring. `numbers` numbers the arrays."""
    memory = {t.name: t.alias or t.name for t in kernel.graph.tensors}

    def of(block: Block) -> Block:
        return map_nodes(block, lambda n: _split(n, memory, numbers) if isinstance(n, For) else n)

    return f.with_batches([of(inside(x)) for x in f.batches]).with_body(of(f.body))


def _split(loop: For, memory: Mapping[str, str], numbers: itertools.count[int]) -> Block:
    if not _fits(loop):
        return (loop,)
    moved = _Moved(loop, memory, numbers)
    steps = moved.steps()
    return moved.in_strips(steps) if moved.arrays else (loop,)


def _fits(loop: For) -> bool:
    """Steps that compute numbers, enough of them, one by one?"""
    if loop.coordinate is not Coordinate.SEQ or loop.step != 1 or loop.joint or loop.lanes:
        return False
    if not all(isinstance(n, (Declare, Store, Update)) for n in loop.body) or guarded_load(loop.body):
        return False
    if any(isinstance(n, Declare) and n.count for n in loop.body):
        return False
    most = most_trips(loop)
    return (most is None or most >= FITTED.distribute_recurrences_fewest) and are_steps(loop, frozenset())


@dataclass(slots=True)
class _Moved:
    """A loop on the way; `scalars` are those that need not wait, as what they stand for, and `arrays` what is
    computed before the steps."""

    loop: For
    memory: Mapping[str, str]
    numbers: itertools.count[int]
    scalars: dict[str, Expr] = field(default_factory=dict)
    arrays: dict[tuple[Expr, tuple[str, ...]], Read] = field(default_factory=dict)
    changed: frozenset[str] = field(init=False)
    own: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        stored = {n.buffer for n in self.loop.body if isinstance(n, (Store, Update))}
        self.changed = frozenset(self.memory.get(b, b) for b in stored)
        self.own = frozenset(n.name for n in self.loop.body if isinstance(n, Declare))

    @property
    def lane(self) -> str:
        return f"{self.loop.var}_l"

    def steps(self) -> Block:
        """The body of the loop without what is computed before."""
        made: list[Node] = []
        for n in self.loop.body:
            match n:
                case Declare(name, _, value) if value is not None:
                    value = self._value(value)
                    if name not in self.changed and self._waits_for_none(value):
                        self.scalars[name] = value
                    else:
                        made.append(replace(n, value=value))
                case Store() | Update():
                    made.append(replace(n, value=self._value(n.value)))
                case _:
                    made.append(n)
        return tuple(made)

    def in_strips(self, steps: Block) -> Block:
        """Whole strips, and one of what is left if that is worth it."""
        loop, strip = self.loop, f"{self.loop.var}_t"
        trip, length = trip_of(loop), binary("-", loop.upper, loop.lower)
        count = binary("//", length, FITTED.distribute_scatters_strip)
        first = binary("+", loop.lower, binary("*", IVar(strip), IConst(FITTED.distribute_scatters_strip)))
        strips = For(
            strip, IConst(0), count, 1, self._strip(steps, first, IConst(FITTED.distribute_scatters_strip))
        )
        made: Block = (strips,) if trip is None or trip >= FITTED.distribute_scatters_strip else ()
        whole = _left_from(loop, count)
        if (
            trip is not None
            and trip % FITTED.distribute_scatters_strip < FITTED.distribute_recurrences_fewest
        ):
            return (*made, replace(loop, lower=whole)) if trip % FITTED.distribute_scatters_strip else made
        return (*made, *self._strip(steps, whole, binary("-", loop.upper, whole)))

    def _strip(self, steps: Block, first: IndexExpr, length: IndexExpr) -> Block:
        """So many steps, and before them what they take in."""
        fill = tuple(Store(r.tensor, r.indices, e) for (e, _), r in self.arrays.items())
        lanes = For(self.lane, IConst(0), length, 1, fill, Coordinate.VECTOR)
        each = For(self.lane, IConst(0), length, 1, steps)
        there = {self.loop.var: binary("+", first, IVar(self.lane))}
        declared = (
            Declare(r.tensor, r.dtype, None, FITTED.distribute_scatters_strip) for r in self.arrays.values()
        )
        return (*declared, *substituted((lanes, each), there))

    def _value(self, e: Expr) -> Expr:
        """A value with what need not wait in arrays."""
        known = map_expr(
            e, lambda x: self.scalars.get(x.tensor, x) if isinstance(x, Read) else x, lambda i: i
        )
        return self._moved(known)

    def _moved(self, e: Expr) -> Expr:
        if self._waits_for_none(e):
            return self._in_array(e) if _is_worth(e) else e
        match e:
            case Apply(op, args):
                op = f"waiting_{op}" if op in _EXTREMES and e.dtype in (F32, F64) else op
                return replace(e, op=op, args=tuple(map(self._moved, args)))
            case Cast(arg):
                return replace(e, arg=self._moved(arg))
            case Select(cond, then, other) if not guards_index(cond):
                return self._choice(e, self._moved(then), self._moved(other))
            case _:
                return e

    def _choice(self, e: Select, then: Expr, other: Expr) -> Expr:
        """A choice between what waits; where the condition does not, by a mask: compilers make branches."""
        if e.dtype not in CHOSEN or not self._waits_for_none(e.cond):
            return replace(e, cond=self._moved(e.cond), then=then, other=other)
        mask = Select(e.cond, Const(-1, e.dtype), Const(0, e.dtype), e.dtype)
        return Apply("choose", (self._in_array(mask), then, other), e.dtype, e.span)

    def _in_array(self, e: Expr) -> Read:
        key = (
            e,
            tuple(repr(x.value) for x in walk(e) if isinstance(x, Const)),
        )  # zeros of both signs are equal
        if key not in self.arrays:
            self.arrays[key] = Read(f"%term{next(self.numbers)}", (IVar(self.lane),), e.dtype, e.span)
        return self.arrays[key]

    def _waits_for_none(self, e: Expr) -> bool:
        """Does an expression read nothing that the loop sets?"""
        names = {r.tensor for r in reads(e)}
        return not names & self.own and not {self.memory.get(n, n) for n in names} & self.changed


def _left_from(loop: For, count: IndexExpr) -> IndexExpr:
    """Where whole strips end.  A loop that has no iteration may end before it begins, in the strip before."""
    strips = count if trip_of(loop) is not None else binary("max", count, IConst(0))
    return binary("+", loop.lower, binary("*", strips, IConst(FITTED.distribute_scatters_strip)))


def _is_worth(e: Expr) -> bool:
    """Is there a choice in it, or what takes several instructions for one element?"""
    return any(_takes_long(x) for x in walk(e))


def _takes_long(e: Expr) -> bool:
    match e:
        case Select(_, Const(), Const()) if not e.dtype.is_float:
            return False  # what a comparison sets
        case Select():
            return True
        case Cast(arg, dtype) if arg.dtype.is_float:
            return not dtype.is_float or min(arg.dtype.bits, dtype.bits) < 32
        case Cast(arg, dtype):
            return dtype.is_float and min(arg.dtype.bits, dtype.bits) < 32
        case Apply(op):
            return op in _EXTREMES or not computes_little(e)
        case _:
            return False


# Where updates go, and what they add, is computed in lanes; then they are made one after the other.
#
#     for e in 0..N:                               for t in 0..N // 64:
#       h[clamp(i64(x[e] * 12.5))] += exp(x[e])      for l in 0..64 @vec:
#                                            ->        place[l] = clamp(i64(x[64*t + l] * 12.5))
#                                                      term[l] = exp(x[64*t + l])
#                                                    for l in 0..64:  h[place[l]] += term[l]
#                                                  and what is left as it was
#
# Iterations of a scatter may meet in an element (`codegen.analysis.dependence`), so the loop is no vector
# loop, and
# everything in it would be computed one by one: conversions, bounds of indices, functions.  Updates keep
# their order.  A million floats into 100 bins took four times as long.
#
# Not where indices are checked: what is reported is the index that data had.


def distribute_scatters(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """See the module docstring. `numbers` numbers the arrays."""
    memory = {t.name: t.alias or t.name for t in kernel.graph.tensors}

    def change(node: Node) -> Node | Block:
        fits = isinstance(node, For) and _scatters(node, memory)
        return _in_strips(kernel, node, numbers) if isinstance(node, For) and fits else node

    return map_nodes(block, change)


def _scatters(loop: For, memory: dict[str, str]) -> bool:
    """A loop of updates, of which data says where, in no order but theirs; and is anything computed?"""
    if loop.coordinate is not Coordinate.SEQ or loop.step != 1 or loop.joint or guarded_load(loop.body):
        return False
    updates = [n for n in loop.body if isinstance(n, Update)]
    if not updates or not all(isinstance(n, (Update, Declare)) and not _is_array(n) for n in loop.body):
        return False
    if (
        most_trips(loop) or 2 * FITTED.distribute_scatters_strip
    ) < 2 * FITTED.distribute_scatters_strip or any(n.atomic for n in updates):
        return False
    if not all(_varies(n, loop.var) for n in updates):
        return False
    changed = {memory.get(n.buffer, n.buffer) for n in updates}
    where = (i for n in updates for i in n.indices if isinstance(i, EXPR_TYPES))
    every = [*values_of(nodes_of(loop.body)), *where]
    return not changed & {memory.get(r.tensor, r.tensor) for e in every for r in reads(e)}


def _is_array(n: Node) -> bool:
    return isinstance(n, Declare) and n.count > 0


def _varies(n: Update, var: str) -> bool:
    """Does data say for each iteration what is updated?"""
    return any(isinstance(i, EXPR_TYPES) and var in depends_on(i) for i in n.indices)


def _in_strips(kernel: Kernel, loop: For, numbers: itertools.count[int]) -> Block:
    """Whole strips, then what is left one by one."""
    count = binary("//", binary("-", loop.upper, loop.lower), FITTED.distribute_scatters_strip)
    strip, lane = f"{loop.var}_t", f"{loop.var}_l"
    first = binary("+", loop.lower, binary("*", IVar(strip), IConst(FITTED.distribute_scatters_strip)))
    there = {loop.var: binary("+", first, IVar(lane))}
    arrays: dict[tuple[LocalRole, Expr], Read] = {}

    def in_array(role: LocalRole, e: Expr, dtype: DType) -> Read:
        name = "%place" if role is LocalRole.PLACES else "%term"
        known = arrays.get((role, e))
        return known or arrays.setdefault((role, e), Read(f"{name}{next(numbers)}", (IVar(lane),), dtype))

    def moved(n: Update) -> Node:
        extents = kernel.buffer(n.buffer).extents
        indices = tuple(
            in_array(LocalRole.PLACES, _within(i, e), _narrow(e)) if isinstance(i, EXPR_TYPES) else i
            for i, e in zip(n.indices, extents, strict=True)
        )
        value = n.value if _plain(kernel, n.value) else in_array(LocalRole.PLAIN, n.value, n.value.dtype)
        return replace(n, indices=indices, value=value)

    updates = tuple(moved(n) for n in loop.body if isinstance(n, Update))
    declared = tuple(n for n in loop.body if isinstance(n, Declare))
    fill = tuple(Store(r.tensor, r.indices, _as(e, r.dtype)) for (_, e), r in arrays.items())
    if all(_plain(kernel, n.value) for n in fill):
        return (loop,)  # nothing is computed
    lanes = For(
        lane, IConst(0), IConst(FITTED.distribute_scatters_strip), 1, (*declared, *fill), Coordinate.VECTOR
    )
    body = (
        *(
            Declare(r.tensor, r.dtype, None, FITTED.distribute_scatters_strip, role)
            for (role, _), r in arrays.items()
        ),
        *substituted((lanes,), there),
        *substituted((For(lane, IConst(0), IConst(FITTED.distribute_scatters_strip), 1, updates),), there),
    )
    whole = _left_from(loop, count)
    return For(strip, IConst(0), count, 1, body), replace(loop, lower=whole)


def _within(e: Expr, extent: IndexExpr) -> Expr:
    """An index between 0 and the last element of a dim."""
    low, high = of_dtype(e.dtype)
    known = isinstance(extent, IConst) and extent.value <= 2**31
    dtype = I32 if known and I32.holds(e.dtype) else I64
    inside = _as(e, dtype)
    if low < 0:
        inside = Apply("max", (inside, Const(0, dtype)), dtype)
    if not (isinstance(extent, IConst) and high < extent.value):
        inside = Apply("min", (inside, IndexValue(binary("-", extent, 1), dtype)), dtype)
    return inside


def _narrow(extent: IndexExpr) -> DType:
    """The type of places in a dim."""
    return I32 if isinstance(extent, IConst) and extent.value <= 2**31 else I64


def _as(e: Expr, dtype: DType) -> Expr:
    return e if e.dtype == dtype else Cast(e, dtype)


def _plain(kernel: Kernel, e: Expr) -> bool:
    """Is a value there already, or made of what is by conversions alone?"""
    inner = e
    while isinstance(inner, Cast):
        inner = inner.arg
    return isinstance(inner, Const | IndexValue) or (
        isinstance(inner, Read)
        and kernel.find(inner.tensor) is not None
        and not any(isinstance(i, EXPR_TYPES) for i in inner.indices)
    )
