"""Scalar replacement of recurrences: what a loop reads of the steps before stays in scalars.

    for t in 2..T:                                       p2 = s[0];  p1 = s[1]
      s[t] = a * s[t - 1] + b * s[t - 2] + x[t]    ->    for t in 2..T:
      y[t] = 2 * s[t]                                      q = a * p1 + b * p2 + x[t]
                                                           s[t] = q;  y[t] = 2 * q
                                                           p2 = p1;  p1 = q

A value that goes through memory takes three times as long to the next step as the addition.  gcc keeps such
values in registers only where one row alone is computed; rows that go together
(`codegen.transforms.unroll_and_jam.recurrences`) read and write memory of which it does not know that they
lie apart.  An array of the worker that nobody reads any more is not written.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyfuse.codegen.analysis.accesses import read_in
from polyfuse.codegen.analysis.scan_loops import scan_of
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.c_printer import certain_reads
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IndexExpr, IVar, substitute
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.linear import Linear, linear
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    If,
    LocalRole,
    Node,
    Store,
    Update,
    map_nodes,
    map_values,
    nodes_of,
    values_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Index, Purpose, Read


def loop_carried_scalars(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """The block with such values in scalars; `numbers` numbers them."""
    memory = {t.name: t.alias or t.name for t in kernel.graph.tensors}
    free = {s.target for s in kernel.graph.statements if s.purpose is Purpose.SCAN}
    found: list[str] = []

    def change(loop: Node) -> Node | Block:
        before: Block = ()
        for name in _written_once(loop, memory) if isinstance(loop, For) else ():
            assert isinstance(loop, For)
            (store,) = (n for n in loop.body if isinstance(n, Store) and n.buffer == name)
            far = _farthest(loop, store)
            if far:
                found.append(name)
                first, loop = _in_scalars(loop, store, far, f"%step{next(numbers)}")
                before += first
                loop = replace(loop, scan=first[0].name if far == 1 and name in free else "")
        if isinstance(loop, For) and loop.scan and scan_of(loop) is None:
            loop = replace(loop, scan="")  # steps do more, or wait for other scalars as well
        return (*before, loop)

    block = _from_stores(map_nodes(block, change))
    own = {b.tensor for b in kernel.buffers if b.scope is Scope.LOCAL}
    unread = own.intersection(found) - read_in(block)
    return map_nodes(block, lambda n: () if isinstance(n, Store) and n.buffer in unread else n)


def _written_once(loop: For, memory: Mapping[str, str]) -> list[str]:
    """Buffers that each step of a loop stores to once, under no condition, and nothing else in it writes."""
    if loop.coordinate is not Coordinate.SEQ or loop.step != 1:
        return []
    written = [memory.get(n.buffer, n.buffer) for n in nodes_of(loop.body) if isinstance(n, (Store, Update))]
    stores = [n for n in loop.body if isinstance(n, Store) and n.indices and _plain(n.indices)]
    return [n.buffer for n in stores if written.count(memory.get(n.buffer, n.buffer)) == 1]


def _farthest(loop: For, store: Store) -> int:
    """How many steps back what is stored is read at most; 0 where nothing is, or not in each step.

    The first steps read what was there before the loop, which is loaded there: it has to run often enough.
    """
    certain = (r for e in values_of(loop.body) for r in certain_reads(e))
    far = max((_distance(loop, store, r) for r in certain), default=0)
    trip = trip_of(loop)
    return far if trip is not None and trip >= far else 0


def _distance(loop: For, store: Store, r: Read) -> int:
    """How many steps ago the element that is read was stored; 0 for another one."""
    if r.tensor != store.buffer or not _plain(r.indices):
        return 0
    return next(
        (d for d in range(1, FITTED.loop_carried_farthest + 1) if _same(r.indices, _at(store, loop.var, d))),
        0,
    )


def _at(store: Store, var: str, ago: int) -> tuple[IndexExpr, ...]:
    """The place of a store so many steps ago."""
    env = {var: IVar(var) - ago}
    return tuple(substitute(i, env) for i in store.indices if not isinstance(i, EXPR_TYPES))


def _same(left: Sequence[Index], right: Sequence[Index]) -> bool:
    """Are indices without data equal?"""
    pairs = zip(left, right, strict=True)
    plain = ((a, b) for a, b in pairs if not isinstance(a, EXPR_TYPES) and not isinstance(b, EXPR_TYPES))
    return _plain(left) and all(linear(a - b) == Linear((), 0) for a, b in plain)


def _plain(indices: Sequence[Index]) -> bool:
    return not any(isinstance(i, EXPR_TYPES) for i in indices)


def _in_scalars(loop: For, store: Store, far: int, name: str) -> tuple[tuple[Declare, ...], For]:
    """What is declared before the loop, and the loop."""
    dtype = store.value.dtype
    names = [f"{name}_{d}" for d in range(far + 1)]
    start = {loop.var: loop.lower}

    def load(ago: int) -> Expr:
        return Read(store.buffer, tuple(substitute(i, start) for i in _at(store, loop.var, ago)), dtype)

    def expr(e: Expr) -> Expr:
        d = _distance(loop, store, e) if isinstance(e, Read) else 0
        return Read(names[d], (), dtype) if 0 < d <= far else e

    body: list[Node] = []
    for n in loop.body:
        (made,) = map_values((n,), expr, lambda i: i)
        if n is store:
            assert isinstance(made, Store)
            body += [_carried(names[0], dtype, made.value), replace(made, value=Read(names[0], (), dtype))]
        else:
            body.append(made)
    body += [Store(names[d], (), Read(names[d - 1], (), dtype)) for d in range(far, 0, -1)]
    first = tuple(_carried(names[d], dtype, load(d)) for d in range(1, far + 1))
    return first, replace(loop, body=tuple(body))


def _carried(name: str, dtype: DType, value: Expr) -> Declare:
    return Declare(name, dtype, value, role=LocalRole.CARRIED)


def _from_stores(block: Block) -> Block:
    """What was stored just before a loop is not loaded for its first steps."""
    made: list[Node] = []
    for n in block:
        match n:
            case For(body=body):
                n = replace(n, body=_from_stores(body))
            case If(_, then, other):
                n = replace(n, then=_from_stores(then), other=_from_stores(other))
            case Declare(name, _, Read(tensor, indices), role=LocalRole.CARRIED):
                k = next((k for k in reversed(range(len(made))) if tensor in _stored(made[k])), -1)
                if (
                    k >= 0
                    and isinstance(at := made[k], Store)
                    and _plain(indices)
                    and _same(at.indices, indices)
                ):
                    scalar = Read(name, (), at.value.dtype)
                    made[k : k + 1] = [replace(n, value=at.value), replace(at, value=scalar)]
                    continue
            case _:
                pass
        made.append(n)
    return tuple(made)


def _stored(n: Node) -> set[str]:
    return {x.buffer for x in nodes_of((n,)) if isinstance(x, (Store, Update))}
