"""Sums over several loops are kept in double, where a loop of lanes adds to them once for each row.

    acc = 0                                            double acc = 0
    for n: for h @vec: acc += x[n, h]        ->        for n: acc += total of the lanes of x[n, :]

In single precision the total of many rows loses more than the lanes of a row do: the variance of a channel of
[32, 64, 56, 56] was off by 2.7e-7 of its value, and is by 0.7e-7 (`tests/unit/test_long_sums.py`).  To add in
double costs 2 % of BatchNorm, more where rows are short and few, which do without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyfuse.codegen.trips import trip_of
from polyfuse.ir.dtypes import F32, F64
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Update

# Rows of a sum, at least.
FEWEST_ROWS = 16


def long_sums(block: Block) -> Block:
    """The block with such sums declared as f64; what reads them rounds them."""
    found = _long(block)
    return tuple(_inside(n, found) for n in block)


def _inside(node: Node, found: set[str]) -> Node:
    match node:
        case For(body=body):
            return replace(node, body=long_sums(body))
        case If(_, then, other):
            return replace(node, then=long_sums(then), other=long_sums(other))
        case Declare(name) if name in found:
            return replace(node, dtype=F64)
        case _:
            return node


def _long(block: Block) -> set[str]:
    """Sums of f32 that are declared in a block, and that loops of lanes in its loops add to."""
    declared = {n.name for n in block if isinstance(n, Declare) and n.dtype == F32 and not n.count}
    return {name for n in block if isinstance(n, For) for name in _of_rows(n, 1)} & declared


def _of_rows(loop: For, rows: int) -> Iterator[str]:
    """Sums that loops of lanes in a loop add to, which is done so many times or more."""
    if rows >= FEWEST_ROWS:
        sums = (u.buffer for u in loop.body if isinstance(u, Update) and u.op == "sum")
        yield from (name for name in sums if name in loop.lanes)
    trip = trip_of(loop)
    for n in loop.body:
        if isinstance(n, For):
            yield from _of_rows(n, rows * (FEWEST_ROWS if trip is None else trip))
