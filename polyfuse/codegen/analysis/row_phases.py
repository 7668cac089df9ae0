"""Phases of a row: what they touch, whether one waits for another, and whether they take long."""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.codegen.analysis.accesses import touched_in
from polyfuse.codegen.analysis.op_cost import computes_little
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import of_size, size_ranges
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    If,
    Node,
    Store,
    Update,
    nodes_of,
    values_of,
)
from polyfuse.ir.ops import Cost, of_cost
from polyfuse.ir.tensor_graph import Apply, walk

LONG = 1 << 40
_ROOTS = of_cost(Cost.DIVIDER)


def takes_long(nodes: Sequence[Node]) -> bool:
    """Is there a function that takes longer than a root?"""
    every = (e for v in values_of(nodes) for e in walk(v) if isinstance(e, Apply))
    return not all(computes_little(e, *_ROOTS) for e in every)


def touched_bytes(kernel: Kernel) -> int:
    """Bytes of the memory outside that a kernel touches, at least: where it is far code matters less, so that
    open sizes are taken as small."""
    usual = {n: size_ranges(kernel.graph).get(of_size(n), (1, 1))[0] for n in kernel.graph.sizes}
    return sum(evaluate(b.elements, usual) * b.dtype.bytes for b in kernel.arguments)


def waits(body: Block) -> int:
    """2 where a loop that reduces needs what another one found, 1 where any loop does, else 0."""
    found = 0
    totals: set[str] = set()  # what depends on the total of a loop
    for n in body:
        depends = bool(totals & touched_in((n,)))
        match n:
            case For(lanes=lanes):
                found = max(found, depends + (depends and bool(lanes)))
                totals |= set(lanes)
            case Declare(name) if depends:
                totals.add(name)
            case Store(buffer) | Update(buffer) if depends:
                totals.add(buffer)
            case If() if depends:
                totals |= {x.buffer for x in nodes_of((n,)) if isinstance(x, (Store, Update))}
            case _:
                pass
    return found
