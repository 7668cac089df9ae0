"""Vector loops are split where they read by `v // K` and `v % K`, the digits of their variable, K a constant.

A digit of a vector's lanes is a division for each of them, and what is read by it a gather.

    for c in 0..U @vec:  y[c] = x[c // 2]       ->   for c in 0..U//2 @vec:  y[2*c] = x[c];  y[2*c + 1] = x[c]
                                                     and what is left as it was, at most one iteration

    for c in 0..U @vec:  y[c] = q[c] * s[c // 32]    ->   for d in 0..U//32:
                                                            for c in 32*d..32*d + 32 @vec:  y[c] = q[c] * s[d]
                                                          for c in U//32*32..U @vec:  y[c] = q[c] * s[U//32]

    for c in 0..N @vec:  y[c] = x[(c + 3) % N]  ->   for c in 0..N - 3 @vec:  y[c] = x[c + 3]
                                                     for c in N - 3..N @vec:  y[c] = x[c + 3 - N]

    for c in 0..U @vec:  y[c, 0] = x[c // 2];    ->   for c in 0..U @vec:  w[c] = x[c // 2]     split as above
                         y[c, 1] = z[c]               for c in 0..U @vec:  y[c, 0] = w[c];  y[c, 1] = z[c]

The last where a copy for each iteration of a window would store to more neighbours than compilers join.

Windows of several lengths are split one after the other, from the longest.  The iterations of a vector loop
do not meet, so they may run in any order, and copies of its body one by one.  Those of a loop of updates in
turns (`layers.mapping.scatter_copies`) may meet; copies keep their order.

Sums keep their lanes over all windows: `lane_bytes` has so many lanes that a window is whole steps of them,
and the digits are the same for all lanes of a step (`by_steps`).  A window that is no multiple of a vector
is a loop of its own, if it is long.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyfuse.codegen.analysis.guards import simplify_guards
from polyfuse.codegen.analysis.periodicity import (
    by_steps,
    divisions_in,
    divisions_of_loop,
    period_of,
    periods,
)
from polyfuse.codegen.analysis.renaming import renamed
from polyfuse.codegen.analysis.trip_count import most_trips
from polyfuse.codegen.c_printer import guarded_load
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, kept_room
from polyfuse.ir.dtypes import BF16, F16, F32
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.linear import linear, simplify
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    For,
    If,
    Node,
    Store,
    Update,
    map_nodes,
    map_values,
    nodes_of,
    values_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Cast, Expr, Read, depends_on, reads, walk

# So many 16-bit floats are converted at once: in shorter windows, one by one.
LEAST_HALVES = 16
# Compilers unroll loops that run so often: then digits are constants.
UNROLLED = 16
_SIMPLE = (Declare, Store, Update, Comment)
_PLAIN = (If, *_SIMPLE)
_LANE = IVar("%lane")  # the place in a window, while an index is simplified


def split_div_mod(block: Block, numbers: itertools.count[int], core: Core) -> Block:
    """See the module docstring. `numbers` numbers the scalars of copies, and arrays for a core."""

    def change(node: Node) -> Node | Block:
        if not isinstance(node, For):
            return node
        # Outermost loops become functions of their own, which share no arrays.
        room = 0 if node in block else kept_room(core)
        return _spread(node, numbers, room) or _changed(node, numbers)

    return map_nodes(block, change)


def _changed(loop: For, numbers: itertools.count[int]) -> Node | Block:
    if loop.step != 1 or not (loop.coordinate is Coordinate.VECTOR or _in_turns(loop)):
        return loop
    if (most_trips(loop) or UNROLLED + 1) <= UNROLLED:
        return loop
    if not all(isinstance(n, _PLAIN) for n in nodes_of(loop.body)):
        return loop
    found = periods(loop)
    if not found:
        return loop
    totals = [n for n in nodes_of(loop.body) if isinstance(n, Update) and not n.indices]
    if totals and _along(loop, max(found)):
        fewer = _in_steps(loop, totals)
        if fewer is not None or max(found) < FITTED.div_mod_least_sum:
            return fewer or loop
    if not {u.buffer for u in totals} <= set(loop.lanes):
        return loop
    made = _split(loop, numbers)
    return loop if made is None else simplify_guards(tuple(made))


def _in_turns(loop: For) -> bool:
    """Does a loop update elements by a short digit of its variable?  Copies of its body keep their order."""
    updated = [i for n in nodes_of(loop.body) if isinstance(n, Update) for i in n.indices]
    digits = any(any(divisions_in(i, loop.var)) for i in updated if not isinstance(i, EXPR_TYPES))
    return digits and not _along(loop, max(periods(loop) or {FITTED.div_mod_least_window + 1}))


def _split(loop: For, numbers: itertools.count[int]) -> list[Node] | None:
    """The loops that have no digits left; None if there are no such."""
    found = periods(loop)
    if not found:
        return None if found is None else [loop]
    length = max(found)
    if any(length % p for p in found):
        return None
    if not _along(loop, length):
        return _copies(loop, length, numbers)
    every = (_windows(loop, length, base, numbers) for base in _bases(loop, length))
    return next((made for made in every if made is not None), None)


def _along(loop: For, length: int) -> bool:
    """Are there vectors along a window?  Of elements shorter than f32 there are more in one."""
    short = any(e.dtype.bytes < F32.bytes for v in _values(loop) for e in (v, *reads(v)))
    return length > FITTED.div_mod_least_window or (length == FITTED.div_mod_least_window and not short)


def _converts(loop: For) -> bool:
    """Are there conversions of 16-bit floats that differ between iterations?"""
    casts = [e for v in _values(loop) for e in walk(v) if isinstance(e, Cast) and loop.var in depends_on(e)]
    return any(x.dtype in (F16, BF16) for e in casts for x in (e, e.arg))


def _values(loop: For) -> list[Expr]:
    return [*values_of(nodes_of(loop.body))]


@dataclass(frozen=True, slots=True)
class _Window:
    """The iterations `start .. start + length` of a variable, or some of them."""

    var: str
    start: IndexExpr
    length: int

    def body(self, block: Block) -> Block:
        """The loop's body where all that is run lies in the window."""
        away = {_LANE.name: binary("-", IVar(self.var), self.start)}

        def index(e: IndexExpr) -> IndexExpr:
            if not any(divisions_in(e, self.var)):
                return e
            inside = substitute(e, {self.var: binary("+", self.start, _LANE)})
            return linear(substitute(simplify(inside, {_LANE.name: (0, self.length - 1)}), away)).expr()

        return map_values(block, lambda e: e, index)


# --- loops over windows -------------------------------------------------------------------------------


def _bases(loop: For, length: int) -> list[IndexExpr]:
    """Where windows may begin: with the loop, or where a digit changes."""
    found: list[IndexExpr] = [loop.lower]
    for digit in divisions_of_loop(loop):
        top = linear(digit.left)
        if top.factor(IVar(loop.var)) == 1 and period_of(digit, loop.var) == (length, digit.op == "//"):
            found.append(IConst(-(top.constant % length)))
    return list(dict.fromkeys(found))


def _windows(loop: For, length: int, base: IndexExpr, numbers: itertools.count[int]) -> list[Node] | None:
    """The whole windows from `base` on, each a loop, and what lies before and after them."""
    first = IConst(0) if base == loop.lower else _up(_from(loop.lower, base), length)
    last = binary("//", _from(loop.upper, base), length)
    first, last = simplify(first, {}), simplify(last, {})
    which = IVar(f"{loop.var}_d{length}")
    inner = _part(loop, _start(which, length, base), length)
    inner = replace(inner, upper=linear(inner.lower + length).expr(), window=True)
    if length in (periods(inner) or ()) or (
        FITTED.div_mod_least_window < length < LEAST_HALVES and _converts(inner)
    ):
        return None
    made = _split(inner, numbers)
    if made is None:
        return None
    begin, end = _start(first, length, base), _start(last, length, base)
    before = _part(loop, _start(first - 1, length, base), length)
    until = loop.lower if base == loop.lower else _extreme("min", begin, loop.upper)
    before = replace(before, lower=loop.lower, upper=until)
    after = replace(_part(loop, end, length), lower=_extreme("max", begin, end), upper=loop.upper)
    whole = For(which.name, first, last, 1, tuple(made))
    return [x for part in (before, whole, after) if _runs(x := part)]


def _part(loop: For, start: IndexExpr, length: int) -> For:
    return replace(loop, lower=start, body=_Window(loop.var, start, length).body(loop.body))


def _start(which: IndexExpr, length: int, base: IndexExpr) -> IndexExpr:
    return linear(binary("+", binary("*", which, length), base)).expr()


def _from(e: IndexExpr, base: IndexExpr) -> IndexExpr:
    return linear(binary("-", e, base)).expr()


def _up(e: IndexExpr, length: int) -> IndexExpr:
    return binary("//", binary("+", e, length - 1), length)


def _extreme(op: str, a: IndexExpr, b: IndexExpr) -> IndexExpr:
    return simplify(binary(op, a, b), {})


def _runs(loop: For) -> bool:
    """May a loop have iterations?"""
    count = linear(simplify(binary("-", loop.upper, loop.lower), {}))
    return bool(count.terms) or count.constant > 0


# --- copies of the body -------------------------------------------------------------------------------


def _copies(loop: For, length: int, numbers: itertools.count[int]) -> list[Node] | None:
    """A loop over windows with a copy of the body for each iteration of one, and what is left as it was."""
    if length * sum(1 for _ in nodes_of(loop.body)) > FITTED.div_mod_most_statements:
        return None
    count = simplify(binary("//", _from(loop.upper, loop.lower), length), {})
    window = linear(binary("+", loop.lower, binary("*", IVar(loop.var), length)))
    body = tuple(
        x
        for k in range(length)
        for x in _copy(loop, {loop.var: binary("+", window.expr(), k)}, numbers if k else None)
    )
    whole = replace(loop, lower=IConst(0), upper=count, body=body, window=False)
    if periods(whole) != set():
        return None
    end = _extreme("max", loop.lower, _start(count, length, loop.lower))
    rest = replace(loop, lower=end, coordinate=Coordinate.SEQ, lanes=(), window=False)
    return [x for x in (whole, rest) if _runs(x)]


def _copy(loop: For, env: Mapping[str, IndexExpr], numbers: itertools.count[int] | None) -> Block:
    def index(e: IndexExpr) -> IndexExpr:
        return simplify(linear(substitute(e, env)).expr(), {}) if loop.var in variables(e) else e

    body = map_values(loop.body, lambda e: e, index)
    if numbers is None:
        return body
    own = [n.name for n in nodes_of(body) if isinstance(n, Declare)]
    return renamed(body, {name: f"%copy{next(numbers)}" for name in own})


# --- rows of what windows share -----------------------------------------------------------------------


def _spread(loop: For, numbers: itertools.count[int], room: int) -> Block | None:
    """Arrays of what the loop reads by digits, of at most so many bytes, the loops that fill them, and the
    one that reads them; None where copies do as well, or digits are elsewhere."""
    length = max(periods(loop) or {0})
    stores = [n for n in loop.body if isinstance(n, (Store, Update))]
    apart = Counter(n.buffer for n in stores if _apart(n, loop.var))
    if loop.coordinate is not Coordinate.VECTOR or loop.step != 1 or guarded_load(loop.body):
        return None
    if not all(isinstance(n, _SIMPLE) for n in loop.body) or not _joins(length) or _along(loop, length):
        return None
    if all(count == 1 or _joins(count * length) for count in apart.values()):
        return None
    count, place = most_trips(loop) or 0, (_from(IVar(loop.var), loop.lower),)
    found = dict.fromkeys(r for v in _values(loop) for r in reads(v) if _by_div_mod(r, loop.var))
    names: dict[Expr, Read] = {r: Read(f"%spread{next(numbers)}", place, r.dtype) for r in found}
    changed = {n.buffer for n in stores}
    if any(r.tensor in changed for r in found) or not 0 < count * sum(r.dtype.bytes for r in found) <= room:
        return None
    reading = replace(loop, body=map_values(loop.body, lambda e: names.get(e, e), lambda i: i))
    filling = replace(loop, body=tuple(Store(w.tensor, place, r) for r, w in names.items()), lanes=())
    filled = _changed(filling, numbers)
    if periods(reading) != set() or filled is filling:
        return None
    arrays = (Declare(w.tensor, w.dtype, None, count) for w in names.values())
    return (*arrays, *(filled if isinstance(filled, tuple) else (filled,)), reading)


def _apart(n: Store | Update, var: str) -> bool:
    """Are elements of neighbouring iterations no neighbours?"""
    return any(not isinstance(i, EXPR_TYPES) and linear(i).factor(IVar(var)) != 1 for i in n.indices[-1:])


def _joins(count: int) -> bool:
    """Do compilers make vectors of so many neighbours that are stored one by one?"""
    return count == 3 or (count > 1 and count & (count - 1) == 0)


def _by_div_mod(r: Read, var: str) -> bool:
    """Is an element found by digits of a variable, and that without data?"""
    plain = [i for i in r.indices if not isinstance(i, EXPR_TYPES)]
    return len(plain) == len(r.indices) and any(any(divisions_in(i, var)) for i in plain)


# --- sums ---------------------------------------------------------------------------------------------


def _in_steps(loop: For, totals: list[Update]) -> For | None:
    """The loop with so few lanes that digits are the same for all of a step; None if there are no such."""
    widest = max(u.value.dtype.bytes for u in totals)
    lanes = FITTED.div_mod_least_window
    if not loop.lanes or by_steps(loop, lanes, IVar(loop.var)) is loop:
        return None
    while lanes < 1 << 10 and by_steps(loop, 2 * lanes, IVar(loop.var)) is not loop:
        lanes *= 2
    bytes_ = lanes * widest
    return replace(loop, lane_bytes=min(bytes_, loop.lane_bytes or bytes_))
