"""Totals of a row stay in registers while the terms of a small window are added, strip by strip.

    for c in 0..128 @vec:  y[c] = 0                   for h in 0..2:
    for r in 0..3:                                      for c in 0..64 @vec:  a[c] = 0
      for s in 0..3:                            ->      for r in 0..3:
        for c in 0..128 @vec:                             for s in 0..3:
          y[c] sum= x[p + r, q + s, c] * w[r, s, c]         for c in 0..64 @vec:  a[c] sum= ...
                                                        for c in 0..64 @vec:  y[64 * h + c] = a[c]

Each term would load and store all totals of the row.  All terms at once
(`codegen.transforms.unroll_and_jam.stencils`) would be as many streams as there are rows, which share sets of
L1 where channels are a power of two: with 2048 of them filters of 3 x 3 took three times as long so.  Windows
along the row, whose terms are added at once, gain
nothing: blurs of 6 x 6 took a fifth longer in strips.

A loop that data bounds may be short, so that its totals are loaded and stored as often as they are added to.
They stay in registers where these hold the whole row.

A window's rows overlap with those of its neighbours, so that caches have them; of others memory would bring a
piece at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, prod

from polyfuse.codegen.analysis.reduction_nests import adds, held_row, nest
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.function import Function
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Declare, For, If, LocalRole, Node, Store, Update, substituted
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Const, Index, Read, plain_variables, reads


def with_held_totals(kernel: Kernel, f: Function, core: Core) -> Function:
    """The function, with sums over small windows in strips of registers."""
    dtypes = {b.tensor: b.dtype for b in kernel.buffers}
    return f if f.run else f.with_body(held(f.body, dtypes, core))


def held(block: Block, dtypes: dict[str, DType], core: Core) -> Block:
    made: list[Node] = []
    for n in block:
        match n:
            case For():
                made += _loop(n, made, dtypes, core)
            case If():
                then, other = (held(b, dtypes, core) for b in (n.then, n.other))
                made.append(replace(n, then=then, other=other))
            case _:
                made.append(n)
    return tuple(made)


def _loop(loop: For, before: list[Node], dtypes: dict[str, DType], core: Core) -> Block:
    """What a loop becomes; of what is before it, a loop that sets the totals is taken away."""
    *around, inner = nest(loop)
    data = bool(around) and held_row(around[-1], inner, dtypes, core)
    if not (data or is_row(inner, dtypes)):
        return (replace(loop, body=held(loop.body, dtypes, core)),)
    window = around[-1:] if data else window_of(around, inner)
    if not window:
        return (loop,)
    at = _before(before, inner) if window == around else None
    first = None if at is None else first_of(before[at], inner)
    if first is not None:
        assert at is not None
        del before[at]
    made = _strips(window, inner, first, core)
    for x in reversed(around[: len(around) - len(window)]):
        made = (replace(x, body=made),)
    return made


def _before(block: list[Node], inner: For) -> int | None:
    """The last node, but for numbers that data bounds a loop with."""
    changed = {n.buffer for n in inner.body if isinstance(n, Update)}
    for k in reversed(range(len(block))):
        n = block[k]
        if not (isinstance(n, Declare) and n.role is LocalRole.INDEX and n.value is not None):
            return k
        if changed & {r.tensor for r in reads(n.value)}:
            return None
    return None


def first_of(node: Node, inner: For) -> Const | None:
    """What a loop sets the totals of a row to, all that it does."""
    match node, inner.body:
        case For(var, lower, upper, 1, (Store(buffer, indices, Const() as first),)), (Update() as n,):
            (same,) = substituted((Store(buffer, indices, first),), {var: IVar(inner.var)})
            there = isinstance(same, Store) and (same.buffer, same.indices) == (n.buffer, n.indices)
            return first if there and (lower, upper) == (inner.lower, inner.upper) else None
        case _:
            return None


def window_of(around: list[For], inner: For) -> list[For]:
    """The innermost of the loops around a row that add few terms to its totals; none where terms are more:
    those of a large window come from L2, whatever their order."""
    updates = [n for n in inner.body if isinstance(n, Update)]
    indices = [i for n in updates for r in reads(n.value) for i in r.indices]
    bounds = {v for x in (*around, inner) for e in (x.lower, x.upper) for v in variables(e)}
    found: list[For] = []
    for x in reversed(around):
        adding = x.var not in bounds and all(adds(n, x.var, inner) for n in updates)
        if not (adding and trip_of(x) and any(overlap(i, x.var) for i in indices)):
            break
        found.insert(0, x)
    return found if 1 < prod(trip_of(x) or 0 for x in found) <= FITTED.jam_stencils_most_terms else []


def is_row(loop: For, dtypes: dict[str, DType]) -> bool:
    """A loop of lanes that adds a term to totals, which memory has as they are computed, and does nothing
    else?"""
    if loop.coordinate is not Coordinate.VECTOR or loop.lanes or loop.joint or loop.step != 1:
        return False
    return bool(trip_of(loop) and loop.body) and all(
        isinstance(n, Update) and dtypes.get(n.buffer) == n.value.dtype and _one_term(n) for n in loop.body
    )


def _one_term(n: Update) -> bool:
    """Does an update read no tensor at two places? Several terms at once load totals seldom enough."""
    found = set(reads(n.value))
    return len(found) == len({r.tensor for r in found})


def overlap(i: Index, var: str) -> bool:
    """Does an index add a loop's variable to another one?"""
    found = plain_variables((i,))
    return var in found and len(found) > 1


def _strips(window: list[For], inner: For, first: Const | None, core: Core) -> Block:
    vectors = max(1, FITTED.strip_accumulators_registers // len(inner.body))
    return in_strips(inner, vectors, core, lambda start, length: _strip(window, inner, first, start, length))


def in_strips(
    inner: For, vectors: int, core: Core, strip: Callable[[IndexExpr, int], Block]
) -> tuple[For, ...]:
    """The row of a loop in strips of one length, at most so many vectors, and one of what is left; `strip`
    makes one from where it starts and its length."""
    trip = trip_of(inner)
    assert trip is not None
    itemsize = max(n.value.dtype.bytes for n in inner.body if isinstance(n, Update))
    lanes = max(1, core.vector_bytes // itemsize)
    length = min(trip, ceil(ceil(trip / ceil(trip / (vectors * lanes))) / lanes) * lanes)
    whole, var = trip // length, f"{inner.var}_h"
    start = binary("+", inner.lower, binary("*", IVar(var), IConst(length)))
    made = [For(var, IConst(0), IConst(whole), 1, strip(start, length))]
    if left := trip - whole * length:
        made.append(For(var, IConst(whole), IConst(whole + 1), 1, strip(start, left)))
    return tuple(made)


def _strip(window: list[For], inner: For, first: Const | None, start: IndexExpr, length: int) -> Block:
    """So many totals from `start` on are loaded, or are what they are set to first, added to, and stored."""
    lane = IVar(inner.var)
    row = replace(inner, lower=IConst(0), upper=IConst(length))
    (there,) = substituted((row,), {inner.var: binary("+", start, lane)})
    assert isinstance(there, For)
    arrays: list[Node] = []
    loads, terms, stores = list[Node](), list[Node](), list[Node]()
    for k, n in enumerate(there.body):
        assert isinstance(n, Update)
        name, dtype = f"%held{k}", n.value.dtype
        arrays.append(Declare(name, dtype, None, length, LocalRole.HELD))
        loads.append(Store(name, (lane,), first or Read(n.buffer, n.indices, dtype)))
        terms.append(replace(n, buffer=name, indices=(lane,)))
        stores.append(Store(n.buffer, n.indices, Read(name, (lane,), dtype)))
    adding: Node = replace(row, body=tuple(terms))
    for x in reversed(window):
        adding = replace(x, body=(adding,))
    return (*arrays, replace(row, body=tuple(loads)), adding, replace(row, body=tuple(stores)))
