"""Integer index expressions over loop variables and sizes.

    IndexExpr = IConst(value)
              | ISize(name)                 a size of the operator, such as T
              | IVar(name)                  a loop (iteration) variable
              | IBin(op, left, right)       op in + - * // % min max   (// and % floor)

Build them with Python operators and `as_index`; constructors fold constants, so that
``as_index(2) * 3`` is ``IConst(6)``.  Values are unbounded Python integers: overflow is a
question for targets, answered by isl.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, Union


class _Operators:
    """Arithmetic on index expressions by Python operators."""

    __slots__ = ()

    def __add__(self, other: IndexLike) -> IndexExpr:
        return binary("+", self, other)

    def __radd__(self, other: IndexLike) -> IndexExpr:
        return binary("+", other, self)

    def __sub__(self, other: IndexLike) -> IndexExpr:
        return binary("-", self, other)

    def __rsub__(self, other: IndexLike) -> IndexExpr:
        return binary("-", other, self)

    def __mul__(self, other: IndexLike) -> IndexExpr:
        return binary("*", self, other)

    def __rmul__(self, other: IndexLike) -> IndexExpr:
        return binary("*", other, self)

    def __floordiv__(self, other: IndexLike) -> IndexExpr:
        return binary("//", self, other)

    def __mod__(self, other: IndexLike) -> IndexExpr:
        return binary("%", self, other)

    def __neg__(self) -> IndexExpr:
        return binary("-", 0, self)


@dataclass(frozen=True, slots=True)
class IConst(_Operators):
    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class ISize(_Operators):
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class IVar(_Operators):
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class IBin(_Operators):
    op: str
    left: IndexExpr
    right: IndexExpr

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.left}, {self.right})"
        mine = _PRECEDENCE[self.op]
        left, right = str(self.left), str(self.right)
        if _precedence(self.left) < mine:
            left = f"({left})"
        if _precedence(self.right) <= mine:
            right = f"({right})"
        return f"{left}{self.op}{right}" if mine == 2 else f"{left} {self.op} {right}"


IndexExpr: TypeAlias = Union[IConst, ISize, IVar, IBin]  # noqa: UP007 (a runtime alias for isinstance)
IndexLike: TypeAlias = Union[IConst, ISize, IVar, IBin, int, _Operators]  # noqa: UP007

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}


def _precedence(e: IndexExpr) -> int:
    return _PRECEDENCE.get(e.op, 3) if isinstance(e, IBin) else 3


_EVALUATE: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def as_index(value: IndexLike) -> IndexExpr:
    if isinstance(value, int):
        return IConst(int(value))
    assert isinstance(value, (IConst, ISize, IVar, IBin))
    return value


def binary(op: str, left: IndexLike, right: IndexLike) -> IndexExpr:
    """`left op right`, with constants folded and neutral elements dropped.

    Division of constants by 0 is kept as it stands; the check of ranges reports it.
    """
    a, b = as_index(left), as_index(right)
    if isinstance(a, IConst) and isinstance(b, IConst) and not (op in ("//", "%") and b.value == 0):
        return IConst(_EVALUATE[op](a.value, b.value))
    match op, a, b:
        case ("+", IConst(0), _) | ("*", IConst(1), _):
            return b
        case ("+" | "-", _, IConst(0)) | ("*" | "//", _, IConst(1)):
            return a
        case ("*", IConst(0), _) | ("*", _, IConst(0)) | ("%", _, IConst(1)):
            return IConst(0)
        case ("+", IBin("+", rest, IConst(c)), IConst(d)):
            return binary("+", rest, c + d)
        case ("+", IBin("-", rest, IConst(c)), IConst(d)):
            return binary("-", rest, c - d) if c >= d else binary("+", rest, d - c)
        case ("-", IBin("+", rest, IConst(c)), IConst(d)):
            return binary("+", rest, c - d) if c >= d else binary("-", rest, d - c)
        case ("-" | "min" | "max", _, _) if a == b:
            return IConst(0) if op == "-" else a
        case _:
            return IBin(op, a, b)


def leaves(e: IndexExpr) -> Iterator[IConst | ISize | IVar]:
    """The leaves, left to right."""
    left = [e]
    while left:
        x = left.pop()
        if isinstance(x, IBin):
            left += (x.right, x.left)
        else:
            yield x


def variables(e: IndexExpr) -> tuple[str, ...]:
    """Names of the loop variables, in order of first occurrence."""
    return tuple(dict.fromkeys(x.name for x in leaves(e) if isinstance(x, IVar)))


def sizes(e: IndexExpr) -> tuple[str, ...]:
    """Names of the sizes, in order of first occurrence."""
    return tuple(dict.fromkeys(x.name for x in leaves(e) if isinstance(x, ISize)))


def substitute(
    e: IndexExpr,
    variables: Mapping[str, IndexExpr] | None = None,
    sizes: Mapping[str, IndexExpr] | None = None,
) -> IndexExpr:
    """Replace loop variables and sizes by expressions; others stay."""
    match e:
        case IVar(name):
            return variables.get(name, e) if variables else e
        case ISize(name):
            return sizes.get(name, e) if sizes else e
        case IBin(op, left, right):
            a, b = substitute(left, variables, sizes), substitute(right, variables, sizes)
            return e if a is left and b is right else binary(op, a, b)
        case IConst():
            return e


def evaluate(e: IndexExpr, env: Mapping[str, int]) -> int:
    """The value under `env`, which maps size and variable names alike.

    Raises KeyError for an unbound name and ZeroDivisionError for a division by 0.
    """
    match e:
        case IConst(value):
            return value
        case ISize(name) | IVar(name):
            return env[name]
        case IBin(op, left, right):
            return _EVALUATE[op](evaluate(left, env), evaluate(right, env))


def wrapped(value: int) -> int:
    """The value as machines keep it, in 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


def product(factors: tuple[IndexExpr, ...]) -> IndexExpr:
    """The product of extents; 1 for none."""
    return functools.reduce(lambda a, b: binary("*", a, b), factors, as_index(1))
