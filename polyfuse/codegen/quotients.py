"""Quotients by what a loop does not change, where its lanes divide more: products that are corrected.

    for i @vec:                                     s = 1;  d = c * s;  r = 1 / d
      p[i] = a[i] / (sqrt(v[i]) / c + e)     ->     for i @vec:
                                                      p[i] = a[i] / (quotient(sqrt(v[i]), d, r, s) + e)

A core divides and takes roots in one unit, a vector of 16 in 6 to 10 cycles, while its multipliers wait.  One
division in a loop hides behind loads and stores; AdamW's two and its root do not.

With q = x r the remainder x - q d is exact (one fused multiply-add), and q plus the remainder times r is the
quotient, correctly rounded where r is (Markstein, "Computation of elementary functions on the IBM RISC
System/6000 processor", 1990), but for results that are subnormal or nearly so.  What is infinite, NaN or a
zero has no such remainder, and is q itself.  The power of two s keeps r in the middle of the range.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import frexp

from polyfuse.codegen.hoist import Moved, aliases, runs_of, written
from polyfuse.ir.dtypes import BOOL, F32, F64, DType
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, Node, map_nodes, values_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Const, Expr, Read, Select, walk

QUOTIENT = "quotient"
# Beyond these powers of two, and below one over them, divisors are scaled, by as much.
SCALES = {F32: 2.0**64, F64: 2.0**512}
# Operations of a lane that the dividing unit computes, and how many a loop needs to wait for it.
_DIVIDERS = {"div": 1, "sqrt": 1, "rsqrt": 2}
FEWEST = 2


def quotients(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """The block with such quotients. `numbers` numbers the scalars."""
    alias = aliases(kernel)

    def change(node: Node) -> Node | Block:
        if not isinstance(node, For) or node.coordinate is not Coordinate.VECTOR or _divisions(node) < FEWEST:
            return node
        made = _Quotients(written((node,), alias), alias, numbers)
        body = made.block(node.body, runs_of(node))
        return (*made.before, replace(node, body=body))

    return map_nodes(block, change)


def _divisions(loop: For) -> int:
    """What the dividing unit computes for a lane."""
    return sum(_DIVIDERS.get(e.op, 0) for e in _operations(loop))


def _operations(loop: For) -> Iterator[Apply]:
    for value in values_of(loop.body):
        yield from (e for e in walk(value) if isinstance(e, Apply))


@dataclass(slots=True)
class _Quotients(Moved):
    """Scalars that come to stand before a loop, in which quotients are made of them."""

    def _expr(self, e: Expr, runs: tuple[Expr, ...]) -> Expr:
        match e:
            case Apply("div", (x, (Read() | Const()) as d), dtype) if dtype in SCALES and self._divides(x, d):
                scale = self.kept(_scale(d, dtype), runs)
                divisor = self.kept(Apply("mul", (d, scale), dtype), runs)
                reciprocal = self.kept(Apply("div", (Const(1.0, dtype), divisor), dtype), runs)
                return Apply(QUOTIENT, (self._expr(x, runs), divisor, reciprocal, scale), dtype, e.span)
            case _:
                return Moved._expr(self, e, runs)

    def _divides(self, x: Expr, d: Read | Const) -> bool:
        exact = isinstance(d, Const) and abs(frexp(float(d.value))[0]) in (
            0.0,
            0.5,
        )  # a product for compilers
        return not exact and self._invariant(d) and not self._invariant(x)

    def costly(self, e: Expr) -> bool:
        return False  # `codegen.hoist` has moved what is


def _scale(d: Read | Const, dtype: DType) -> Expr:
    """A power of two times which a divisor has a reciprocal in the middle of the range."""
    large = SCALES[dtype]
    size = Apply("abs", (d,), dtype)

    def number(x: float) -> Const:
        return Const(x, dtype)

    small = Select(Apply("le", (size, number(1 / large)), BOOL), number(large), number(1.0), dtype)
    return Select(Apply("ge", (size, number(large)), BOOL), number(1 / large), small, dtype)
