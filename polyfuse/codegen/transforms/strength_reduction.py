"""Strength reduction: costly operations become cheaper ones.

`divide_by_reciprocals`   quotients by what a loop does not change are products
`clamp_call`              minima and maxima with a number take one comparison
`scaled_function`         constant factors go into the coefficients of a function
`simplify_windows`        remainders and quotients of indices are differences in loops over one window

Products in place of quotients are corrected where lanes divide more, and plain where they become 16 bits.

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
import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import frexp

import numpy as np

from polyfuse.codegen.analysis.index_ranges import Strip, strip_around
from polyfuse.codegen.analysis.invariants import Moved, aliases, runs_of, written
from polyfuse.codegen.c_printer import literal
from polyfuse.codegen.math.conversions import BOUNDING, FLOAT_FORMATS, RELATIVE, SCALED
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.dtypes import BOOL, F32, F64, HALVES, DType
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary
from polyfuse.ir.intervals import fits, of_tree
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import size_ranges
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, Update, map_nodes, values_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Cast, Const, Expr, Read, Select, map_expr, map_index, walk

# --- quotients --------------------------------------------------------------------------------------------

QUOTIENT = "quotient"
# Beyond these powers of two, and below one over them, divisors are scaled, by as much.
SCALES = {F32: 2.0**64, F64: 2.0**512}
# Operations of a lane that the dividing unit computes.
_DIVIDERS = {"div": 1, "sqrt": 1, "rsqrt": 2}


def divide_by_reciprocals(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """The block with such quotients. `numbers` numbers the scalars."""
    alias, ranges = aliases(kernel), size_ranges(kernel.graph)

    def change(node: Node) -> Node | Block:
        if not isinstance(node, For) or node.coordinate is not Coordinate.VECTOR:
            return node
        exact = _divisions(node) >= FITTED.quotients_fewest
        made = _Quotients(written((node,), alias), alias, numbers, ranges, exact=exact)
        body = made.block(node.body, runs_of(node, ranges))
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
        return False  # `codegen.transforms.invariant_motion` has moved what is


def _scale(d: Expr, dtype: DType) -> Expr:
    """A power of two times which a divisor has a reciprocal in the middle of the range."""
    large = SCALES[dtype]
    size = Apply("abs", (d,), dtype)

    def number(x: float) -> Const:
        return Const(x, dtype)

    small = Select(Apply("le", (size, number(1 / large)), BOOL), number(large), number(1.0), dtype)
    return Select(Apply("ge", (size, number(large)), BOOL), number(1 / large), small, dtype)


# --- minima, maxima, and conversions of what they bound ---------------------------------------------------

# Minima and maxima with a number, and conversions of what they bound, on a CPU.
#
#     max(x, 0.0)                           pf_at_least_f32(x, pf_bound_f32_00000000)
#     u8(min(max(x, 0.0), 255.0))     ->    pf_u8_within_f32(pf_at_most_f32(pf_at_least_f32(x, ...), ...))
#
# The number is no NaN, so one comparison is enough, on the side that lets a NaN through.  It is a variable of
# the source (a PF_LIMIT), as gcc 12 makes one instruction of that only where it does not know the number, in
# place of two comparisons and two blends.  What lies within an integer type is converted without a look at
# the type's ends.


_BY_NAME = {t.name: t for t in FLOAT_FORMATS}
_BOUND = re.compile(r"\bpf_bound_(f32|f64)_([0-9a-f]+)\b")


def clamp_call(e: Apply) -> tuple[str, Expr, str] | None:
    """(function, value, name of the bound) of a minimum or maximum of floats with a number."""
    if e.op not in BOUNDING or e.dtype not in FLOAT_FORMATS:
        return None
    for value, bound in (e.args, e.args[::-1]):
        if isinstance(bound, Const) and not isinstance(value, Const) and not math.isnan(bound.value):
            digits = struct.pack(FLOAT_FORMATS[e.dtype], _number(bound)).hex()
            return f"pf_{BOUNDING[e.op]}_{e.dtype.name}", value, f"pf_bound_{e.dtype.name}_{digits}"
    return None


def clamped_cast(e: Cast) -> bool:
    """Is a float converted to an integer type that its bounds lie in?"""
    if e.arg.dtype not in FLOAT_FORMATS or not e.dtype.is_integer:
        return False
    return fits(of_tree(e.arg), e.dtype)


def bounds_text(functions: Iterable[str]) -> str:
    """The variables of all bounds that functions name."""
    found = {m[0]: m for text in functions for m in _BOUND.finditer(text)}
    return "".join(_variable(m[0], _BY_NAME[m[1]], m[2]) for _, m in sorted(found.items()))


def _variable(name: str, dtype: DType, digits: str) -> str:
    (value,) = struct.unpack(FLOAT_FORMATS[dtype], bytes.fromhex(digits))
    return f"PF_LIMIT {dtype.c_name} {name} = {literal(value, dtype)};\n"


def _number(c: Const) -> float:
    """The number as its type has it."""
    with np.errstate(over="ignore"):
        return float(c.dtype.numpy.type(c.value))


# --- constants in functions -------------------------------------------------------------------------------

# Products with constants that disappear into the coefficients of a function.
#
#     (0.5 * s) * (1 + erf(s * 0.707))     ->     s * (0.5 + pf_scaled_erf_f32(s, 0.707, 0.5))
#
# `erf` and `tanh` in single precision are x P(x^2) / Q(x^2): with other coefficients that is c erf(k x), at
# the same cost.  k may be any constant of a common size.  c is a power of two of at most one, so that it may
# move through sums without a change of any bit: a sum with a constant in it is never so small that it would
# matter.


# Beyond these constants coefficients would leave the range of floats.
SMALLEST, LARGEST = 1 / 16, 16.0
_ONE = Const(1.0, F32)


def scaled_function(e: Apply) -> tuple[str, Expr, Const, Const] | None:
    """(f, x, k, c) if an expression is c f(k x), and not f(x)."""
    match e:
        case Apply("mul", ((Const() as c), (Apply(op, (arg,), dtype)))) if op in SCALED and _is_share(c):
            pass
        case Apply(op, (arg,), dtype) if op in SCALED:
            c = _ONE
        case _:
            return None
    if dtype != F32:
        return None
    match arg:
        case Apply("mul", (x, (Const() as k)) | ((Const() as k), x)) if _is_common(k):
            return op, x, k, c
        case Apply("div", (x, (Const() as d))) if _is_common(d):
            return op, x, Const(1 / float(np.float32(d.value)), F64), c
        case _:
            return None if c is _ONE else (op, arg, _ONE, c)


def scale_moved_inward(e: Apply) -> Expr:
    """A product without its factor that is a power of two, if the other factor can take it."""
    if e.op != "mul" or e.dtype != F32:
        return e
    for mine, other in (e.args, e.args[::-1]):
        match mine:
            case Const() as c:
                rest: Expr | None = None
            case Apply("mul", ((Const() as c), rest) | (rest, (Const() as c))):
                pass
            case _:
                continue
        if _is_share(c) and _takes(other, alone=rest is None):
            product = _times(other, c)
            return product if rest is None else Apply("mul", (rest, product), F32)
    return e


def _is_common(k: Const) -> bool:
    return SMALLEST <= abs(k.value) <= LARGEST


def _is_share(c: Const) -> bool:
    """Is a constant a power of two of at most one, of either sign?"""
    mantissa, exponent = math.frexp(abs(float(c.value)))
    return mantissa == 0.5 and -8 < exponent <= 1


def _takes(e: Expr, alone: bool) -> bool:
    """Is it a sum of such functions and constants? Beside other factors only with a constant: without, a
    result that is subnormal would be multiplied."""
    terms = list(_terms(e))
    functions = [t for t in terms if isinstance(t, Apply) and t.op in SCALED]
    constants = [t for t in terms if isinstance(t, Const) and t.value]
    found = len(functions) + len(constants) == len(terms) > 1 and bool(functions)
    return found and (alone or bool(constants))


def _terms(e: Expr) -> Iterator[Expr]:
    match e:
        case Apply("add" | "sub", (a, b)):
            yield from _terms(a)
            yield from _terms(b)
        case _:
            yield e


def _times(e: Expr, c: Const) -> Expr:
    match e:
        case Const(value):
            return Const(float(value) * float(c.value), F32)
        case Apply("add" | "sub" as op, (a, b)):
            return Apply(op, (_times(a, c), _times(b, c)), F32)
        case _:
            return Apply("mul", (c, e), F32)


# --- indices of windows -----------------------------------------------------------------------------------


def simplify_windows(block: Block, starts: dict[str, Strip]) -> Block:
    """`c % E` -> `c - start`, `c // E` -> `start // E` for a loop over one window, start a multiple of E."""

    def index(i: IndexExpr) -> IndexExpr:
        match i:
            case IBin("%", IVar(name), IConst(extent)) if name in starts and starts[name].fits(extent):
                return binary("-", IVar(name), starts[name].start)
            case IBin("%", IVar(name), IConst(extent)) if name in starts and starts[name].inside(extent):
                start = starts[name].start
                return binary("+", binary("%", start, extent), binary("-", IVar(name), start))
            case IBin("//", IVar(name), IConst(extent)) if name in starts and starts[name].one(extent):
                return starts[name].quotient(extent)
            case IBin(op, left, right):
                return binary(op, index(left), index(right))
            case _:
                return i

    def expr(e: Expr) -> Expr:
        return map_expr(e, lambda x: x, index)

    result: list[Node] = []
    for node in block:
        match node:
            case For():
                strip = strip_around(node)
                inner = {**starts, node.var: strip} if strip else starts
                result.append(replace(node, body=simplify_windows(node.body, inner)))
            case If():
                then, other = (simplify_windows(b, starts) for b in (node.then, node.other))
                result.append(replace(node, then=then, other=other))
            case Store() | Update():
                places = tuple(map_index(i, expr, index) for i in node.indices)
                result.append(replace(node, value=expr(node.value), indices=places))
            case Declare(_, _, value) if value is not None:
                result.append(replace(node, value=expr(value)))
            case _:
                result.append(node)
    return tuple(result)
