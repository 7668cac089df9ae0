"""Arguments whose axes lie in another order in memory than in the text.

An array that was transposed is dense memory with its axes in another order: `x[t, h]` of such an `x` is
`x[h, t]` of a dense one.  Told so, every pass sees how memory lies, and nothing needs a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from polyfuse.decisions import Decision
from polyfuse.ir.tensor_graph import Expr, Read, Statement, TensorGraph, map_expr, map_index

T = TypeVar("T")


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The axes of an array from the longest stride to the shortest; None where that is their order.

    Arrays without elements, or whose elements are repeated, have none.
    """
    moving = [k for k, n in enumerate(shape) if n > 1]
    if 0 in shape or any(not strides[k] for k in moving):
        return None
    falling = sorted(moving, key=lambda k: -abs(strides[k]))
    return None if falling == moving else (*(k for k, n in enumerate(shape) if n == 1), *falling)


def in_memory_order(
    graph: TensorGraph, orders: Mapping[str, tuple[int, ...]], decisions: list[Decision]
) -> TensorGraph:
    """The graph with the axes of inputs, by name, in another order; only what is read alone has one."""
    if not orders:
        return graph

    def turned(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor in orders:
            return replace(e, indices=_turned(e.indices, orders[e.tensor]))
        return e

    def statement(s: Statement) -> Statement:
        write = tuple(map_index(i, lambda e: map_expr(e, turned), None) for i in s.write)
        return replace(s, expr=map_expr(s.expr, turned), write=write)

    for name, order in orders.items():
        why = f"its axes lie in the order {', '.join(map(str, order))} in memory, and are read so"
        decisions.append(Decision("layout", name, True, why))
    assert not any(s.target in orders for s in graph.statements)
    tensors = [
        replace(t, shape=_turned(t.shape, orders[t.name])) if t.name in orders else t for t in graph.tensors
    ]
    return replace(graph, tensors=tuple(tensors), statements=tuple(map(statement, graph.statements)))


def _turned(values: tuple[T, ...], order: tuple[int, ...]) -> tuple[T, ...]:
    return tuple(values[k] for k in order)
