"""Powers that are products or roots: x ** 3 is x * x * x, x ** -2 of a float (1 / x) ** 2, x ** 0.5 a root,
x ** 2.5 both.

Products have at most seven roundings where the function `pow` has one and a half, and take a tenth of its
time.  The reciprocal comes first: where the power of a small x is subnormal, its reciprocal may be normal.
"""

from __future__ import annotations

from polyfuse.ir.tensor_graph import Apply, Const, Expr

LEAST, MOST = -4, 8
ROOTS = (0.5, -0.5)
# Powers with a half, at most: those of x and of its root are products of the same.
MOST_HALVES = 3.5


def exponent(e: Expr) -> float | None:
    """The constant exponent of a power that is computed by products or as a root, else None."""
    match e:
        case Apply("pow", (base, Const(value))) if base.dtype.is_float and has_root(value):
            return float(value)
        case Apply("pow", (base, Const(value))) if LEAST <= value <= MOST and value == int(value):
            return int(value) if value >= 2 or (value < 0 and base.dtype.is_float) else None
        case _:
            return None


def has_root(n: float) -> bool:
    """Is it an exponent with a half, which takes a root?"""
    return abs(n) <= MOST_HALVES and abs(n) % 1 == 0.5


def is_product(e: Expr) -> bool:
    """Is it a power that takes multiplications alone?"""
    n = exponent(e)
    return n is not None and n >= 2 and not has_root(n)


def multiplications(n: float) -> int:
    """How many products a power takes: squares of squares, and their product."""
    whole = int(abs(n))
    return whole.bit_length() + whole.bit_count() - 2 + has_root(n) if whole else 0
