"""Random nested index expressions over two variables and a size, and what they are in exact integers.

    case = random_index(7)
    str(case)        max((i + 3)%8//8 - 1, 4*N)        i in -2..3, j in 0..4, N = 5

Operators are + - * // % min max; constants go to 2**63, most are small; divisors are positive constants or
the size.  About half of the expressions come from `binary`, which folds, the others are trees as they stand.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, binary, evaluate, sizes, variables
from polyfuse.ir.linear import Range

Point = dict[str, int]


@dataclass(frozen=True)
class RandomIndex:
    expr: IndexExpr
    ranges: dict[str, Range]  # of the variables, both ends included
    size: int

    @property
    def points(self) -> list[Point]:
        """Every value of the variables, and the size."""
        spans = (range(low, high + 1) for low, high in self.ranges.values())
        return [
            {**dict(zip(self.ranges, values, strict=True)), "N": self.size}
            for values in itertools.product(*spans)
        ]

    @property
    def values(self) -> list[int]:
        """The value at every point, by Python's integers."""
        return [evaluate(self.expr, p) for p in self.points]

    def __str__(self) -> str:
        ranges = ", ".join(f"{n} in {low}..{high + 1}" for n, (low, high) in self.ranges.items())
        return f"{self.expr}    {ranges}, N = {self.size}"


def random_index(seed: int, largest: int = 2**63) -> RandomIndex:
    """The expression of a seed; constants stay below `largest`."""
    rng = random.Random(seed)
    ranges = {}
    for name, most in (("i", 5), ("j", 3)):
        low = rng.choice((0, 0, -2, 1, rng.randint(-20, 20)))
        ranges[name] = low, low + rng.randint(1, most) - 1
    make = binary if rng.random() < 0.6 else IBin
    while True:
        e = _Drawn(rng, largest, make, often=rng.randint(2, 9)).expr(rng.randint(2, 5))
        if isinstance(e, IBin) and _constants_fit(e):
            return RandomIndex(e, ranges, rng.randint(1, 9))


def _constants_fit(e: IndexExpr) -> bool:
    """Do 64 bits hold what is computed of constants alone?  A program with others is refused (PF105)."""
    if not isinstance(e, IBin):
        return True
    parts = _constants_fit(e.left) and _constants_fit(e.right)
    return parts and (bool(variables(e) or sizes(e)) or -(2**63) <= evaluate(e, {}) < 2**63)


@dataclass
class _Drawn:
    rng: random.Random
    largest: int
    make: Callable[[str, IndexExpr, IndexExpr], IndexExpr]
    often: int
    made: list[IndexExpr] = field(default_factory=list)

    def expr(self, height: int) -> IndexExpr:
        if height == 0 or self.rng.random() < 0.1:
            return self._leaf()
        op = self.rng.choice(["+", "+", "-", "*", "//", "//", "%", "%", "min", "max"])
        left = self.expr(height - 1)
        if op in ("//", "%"):
            right: IndexExpr = ISize("N") if self.rng.random() < 0.15 else IConst(max(1, self._number()))
        elif op == "*" and self.rng.random() < 0.95:
            right = self._constant()
        else:
            right = self.expr(self.rng.randint(0, height - 1))
        if op not in ("//", "%") and self.rng.random() < 0.4:
            left, right = right, left
        self.made.append(self.make(op, left, right))
        return self.made[-1]

    def _leaf(self) -> IndexExpr:
        kind = self.rng.random()
        if kind < 0.3 and self.made:  # the same again, so that like terms meet
            return self.rng.choice(self.made)
        if kind < 0.8:
            return IVar(self.rng.choice("iij"))
        return ISize("N") if kind < 0.88 else self._constant()

    def _constant(self) -> IndexExpr:
        value = self._number()
        return IConst(-value if self.rng.random() < 0.3 else value)

    def _number(self) -> int:
        kind = self.rng.random()
        if kind < 0.5:  # quotients and remainders by one number and its multiples meet
            return self.often * self.rng.choice((1, 1, 1, 2, 3))
        if kind < 0.92:
            return self.rng.choice((0, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 12, 16, 31))
        near = 2 ** self.rng.randint(5, 63) + self.rng.randint(-2, 2)
        return min(near, self.largest - 1)


def wrapping_value(e: IndexExpr, at: Point) -> int:
    """The value where every operation wraps at 64 bits; divisions by 0 give 0."""
    match e:
        case IConst(value):
            return _wrapped(value)
        case IVar(name) | ISize(name):
            return at[name]
        case IBin(op, left, right):
            a, b = wrapping_value(left, at), wrapping_value(right, at)
            return 0 if op in ("//", "%") and b == 0 else _wrapped(_OPERATIONS[op](a, b))


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "min": min, "max": max,
}  # fmt: skip
