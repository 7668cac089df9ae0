"""Quotients by what a loop does not change are products: corrected ones where lanes divide more, plain ones
where they become 16 bits.

    for i @vec:                                     s = 1;  d = c * s;  r = 1 / d
      p[i] = a[i] / (sqrt(v[i]) / c + e)     ->     for i @vec:
                                                      p[i] = a[i] / (quotient(sqrt(v[i]), d, r, s) + e)

A core divides and takes roots in one unit, a vector of 16 in 6 to 10 cycles, while its multipliers wait.  One
division in a loop hides behind loads and stores; AdamW's two and its root do not.

With q = x r the remainder x - q d is exact (one fused multiply-add), and q plus the remainder times r is the
quotient, correctly rounded where r is (Markstein, "Computation of elementary functions on the IBM RISC
System/6000 processor", 1990), but for results that are subnormal or nearly so.  What is infinite, NaN or a
zero has no such remainder, and is q itself.  The power of two s keeps r in the middle of the range.

    for i @vec:  y[i] = f16(e[i] / d)      ->     for i @vec:  y[i] = f16(e[i] * s * r)

What is rounded to 16 bits loses nothing by q: it is within 2**-23 of the quotient, where the last place of an
f16 is 2**-11.  That pays for one division, too: it takes as long as an `exp` of 16 bits, and in softmax of a
few rows at a time nothing else is left to do meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import frexp

from polyfuse.codegen.hoist import Moved, aliases, runs_of, written
from polyfuse.codegen.short_functions import RELATIVE
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.dtypes import BOOL, F32, F64, HALVES, DType
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, Node, map_nodes, values_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Cast, Const, Expr, Read, Select, walk

QUOTIENT = "quotient"
# Beyond these powers of two, and below one over them, divisors are scaled, by as much.
SCALES = {F32: 2.0**64, F64: 2.0**512}
# Operations of a lane that the dividing unit computes.
_DIVIDERS = {"div": 1, "sqrt": 1, "rsqrt": 2}


def quotients(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """The block with such quotients. `numbers` numbers the scalars."""
    alias = aliases(kernel)

    def change(node: Node) -> Node | Block:
        if not isinstance(node, For) or node.coordinate is not Coordinate.VECTOR:
            return node
        made = _Quotients(
            written((node,), alias), alias, numbers, exact=_divisions(node) >= FITTED.quotients_fewest
        )
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
    """Scalars that come to stand before a loop, in which quotients are made of them: `exact` ones, too."""

    exact: bool = field(kw_only=True)

    def _expr(self, e: Expr, runs: tuple[Expr, ...]) -> Expr:
        match e:
            case Cast(arg, dtype) if dtype in HALVES and arg.dtype == F32:
                return replace(e, arg=self._short(arg, runs))
            case Apply("div", (x, (Read() | Const()) as d), dtype) if self.exact and self._divides(x, d):
                scale, divisor, reciprocal = self._inverse(d, runs)
                return Apply(QUOTIENT, (self._expr(x, runs), divisor, reciprocal, scale), dtype, e.span)
            case _:
                return Moved._expr(self, e, runs)

    def _short(self, e: Expr, runs: tuple[Expr, ...]) -> Expr:
        """An expression that becomes 16 bits."""
        match e:
            case Apply("div", (x, d), dtype) if self._divides(x, d):
                number = d if isinstance(d, (Read, Const)) else self.kept(d, runs)
                scale, _, reciprocal = self._inverse(number, runs)
                scaled = Apply("mul", (self._short(x, runs), scale), dtype)
                return Apply("mul", (scaled, reciprocal), dtype, e.span)
            case Apply(op, args) if op in RELATIVE:
                return replace(e, args=tuple(self._short(a, runs) for a in args))
            case _:
                return self._expr(e, runs)

    def _inverse(self, d: Expr, runs: tuple[Expr, ...]) -> tuple[Expr, Expr, Expr]:
        """The scale of a divisor, the divisor times that, and the reciprocal of this."""
        scale = self.kept(_scale(d, d.dtype), runs)
        divisor = self.kept(Apply("mul", (d, scale), d.dtype), runs)
        return scale, divisor, self.kept(Apply("div", (Const(1.0, d.dtype), divisor), d.dtype), runs)

    def _divides(self, x: Expr, d: Expr) -> bool:
        if isinstance(d, Const) and abs(frexp(float(d.value))[0]) in (0.0, 0.5):
            return False  # zero, or a power of two: a product for compilers
        return d.dtype in SCALES and self._invariant(d) and not self._invariant(x)

    def costly(self, e: Expr) -> bool:
        return False  # `codegen.hoist` has moved what is


def _scale(d: Expr, dtype: DType) -> Expr:
    """A power of two times which a divisor has a reciprocal in the middle of the range."""
    large = SCALES[dtype]
    size = Apply("abs", (d,), dtype)

    def number(x: float) -> Const:
        return Const(x, dtype)

    small = Select(Apply("le", (size, number(1 / large)), BOOL), number(large), number(1.0), dtype)
    return Select(Apply("ge", (size, number(large)), BOOL), number(1 / large), small, dtype)
