"""Which expressions are cheap to compute again."""

from __future__ import annotations

from polyfuse.ir.ops import Cost, of_cost
from polyfuse.ir.powers import is_product
from polyfuse.ir.tensor_graph import Apply, Expr, IndexValue, Read, walk

# What compilers move out of loops themselves, or what costs no more than reading it back.
CHEAP = of_cost(Cost.CHEAP) | {"quotient"}


def computes_little(e: Apply, *besides: str) -> bool:
    """Is an operation cheap, or one of those?"""
    return e.op in CHEAP or e.op in besides or is_product(e)


def costly(e: Expr) -> bool:
    """Is there a function in it, of something that is not a constant?"""
    return any(
        isinstance(x, Apply) and x.op not in CHEAP and any(isinstance(y, (Read, IndexValue)) for y in walk(x))
        for x in walk(e)
    )
