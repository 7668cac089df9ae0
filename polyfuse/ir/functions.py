"""Which operations are functions: what takes as long as ten additions and more."""

from __future__ import annotations

from polyfuse.ir.ops import Cost, of_cost
from polyfuse.ir.powers import exponent
from polyfuse.ir.tensor_graph import Apply, Expr, walk

_FUNCTIONS = of_cost(Cost.FUNCTION)


def is_function(e: Expr) -> bool:
    """Does an expression end in a function, or a short one (`codegen.transforms.precision`)?"""
    return isinstance(e, Apply) and e.op.removeprefix("short_") in _FUNCTIONS and exponent(e) is None


def has_function(e: Expr) -> bool:
    """Is there a function in an expression?"""
    return any(map(is_function, walk(e)))
