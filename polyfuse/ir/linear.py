"""Linear forms of index expressions, intervals, and what follows from both.

    4*h + 768*t + 3     is     {h: 4, t: 768} + 3

What is not linear (a division, a minimum, data) is an atom of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, binary, variables
from polyfuse.ir.tensor_graph import Apply, Const, Expr, IndexValue, TensorGraph

Range = tuple[int, int]  # both ends included


@dataclass(frozen=True, slots=True)
class Linear:
    """A sum of atoms with factors (none is 0), in order of first occurrence, and a constant."""

    terms: tuple[tuple[IndexExpr, int], ...]
    constant: int

    def factor(self, atom: IndexExpr) -> int:
        return dict(self.terms).get(atom, 0)

    @property
    def hidden(self) -> set[str]:
        """The variables in which it is not linear."""
        return {v for atom, _ in self.terms if not isinstance(atom, IVar) for v in variables(atom)}

    def without(self, atom: IndexExpr) -> Linear:
        return Linear(tuple((a, c) for a, c in self.terms if a != atom), self.constant)

    def divisible(self, by: int) -> bool:
        plain = self._modulo(by)
        return plain.constant % by == 0 and all(c % by == 0 for _, c in plain.terms)

    def _modulo(self, by: int) -> Linear:
        """The same modulo `by`: of  c * (a % m)  only  c * a  is left where `by` divides  c * m."""
        total: IndexExpr = IConst(self.constant)
        for atom, c in self.terms:
            match atom:
                case IBin("%", top, IConst(m)) if c * m % by == 0:
                    atom = top
                case _:
                    pass
            total = binary("+", total, binary("*", atom, c))
        return linear(total)

    def expr(self) -> IndexExpr:
        total: IndexExpr = IConst(0)
        for atom, c in self.terms:
            part = binary("*", atom, abs(c))
            total = binary("+" if c > 0 else "-", total, part)
        return binary("+", total, self.constant) if self.constant >= 0 else total - -self.constant


def linear(e: IndexExpr) -> Linear:
    """The linear form of an expression."""
    found: dict[IndexExpr, int] = {}
    constant = _collect(e, 1, found)
    return Linear(tuple((a, c) for a, c in found.items() if c), constant)


def _collect(e: IndexExpr, factor: int, found: dict[IndexExpr, int]) -> int:
    match e:
        case IConst(value):
            return factor * value
        case IBin("+", left, right):
            return _collect(left, factor, found) + _collect(right, factor, found)
        case IBin("-", left, right):
            return _collect(left, factor, found) + _collect(right, -factor, found)
        case IBin("*", left, IConst(c)) | IBin("*", IConst(c), left):
            return _collect(left, factor * c, found)
        case _:
            found[e] = found.get(e, 0) + factor
            return 0


@lru_cache(maxsize=4096)
def flat(indices: tuple[IndexExpr, ...], extents: tuple[IndexExpr, ...]) -> Linear:
    """The element number of an access to dense row-major storage."""
    total: IndexExpr = IConst(0)
    for i, e in zip(indices, extents, strict=True):
        total = binary("+", linear(binary("*", total, e)).expr(), i)
    return linear(total)


def of_size(name: str) -> str:
    """Under which name `interval` finds the values of a size: no variable has it."""
    return f"size {name}"


def size_ranges(graph: TensorGraph) -> dict[str, Range]:
    """For `interval`: the values of sizes that the graph's constraints bound from below and above."""
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    for c in graph.constraints:
        match c.left, c.op, c.right:
            case ISize(name), ">=", IConst(value):
                low[name] = max(value, low.get(name, value))
            case ISize(name), "<=", IConst(value):
                high[name] = min(value, high.get(name, value))
    return {of_size(n): (max(0, low.get(n, 0)), value) for n, value in high.items()}


def interval(e: IndexExpr, ranges: Mapping[str, Range]) -> Range | None:
    """The values an expression may take; None if unknown."""
    match e:
        case IConst(value):
            return value, value
        case IVar(name):
            return ranges.get(name)
        case ISize(name):
            return ranges.get(of_size(name))
        case IBin(op, left, right):
            a, b = interval(left, ranges), interval(right, ranges)
            return combined(op, a, b) if a is not None and b is not None else _half_known(op, a, b)


def combined(op: str, a: Range, b: Range) -> Range | None:
    match op:
        case "+":
            return a[0] + b[0], a[1] + b[1]
        case "-":
            return a[0] - b[1], a[1] - b[0]
        case "*":
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case "//" if b[0] == b[1] > 0:
            return a[0] // b[0], a[1] // b[0]
        case "%" if b[0] == b[1] > 0:
            same = a[0] // b[0] == a[1] // b[0]
            return (a[0] % b[0], a[1] % b[0]) if same else (0, b[0] - 1)
        case _:
            return None


def _half_known(op: str, a: Range | None, b: Range | None) -> Range | None:
    if op == "%" and b is not None and b[0] == b[1] > 0:
        return 0, b[0] - 1
    return None


def simplify(e: IndexExpr, ranges: Mapping[str, Range]) -> IndexExpr:
    """An equal expression with like terms collected and divisions, minima resolved where ranges allow.

    With c2 in 0..255 and c3 in 0..3,    (1024*c1 + 4*c2 + c3) // 1024    becomes    c1
    """
    match e:
        case IBin("//" | "%" as op, left, IConst(c)) if c > 0:
            return _divided(op, linear(simplify(left, ranges)), c, ranges)
        case IBin("min" | "max" as op, left, right):
            return _extreme(op, simplify(left, ranges), simplify(right, ranges), ranges)
        case IBin("+" | "-" | "*" as op, left, right):
            return linear(binary(op, simplify(left, ranges), simplify(right, ranges))).expr()
        case _:
            return e


def _divided(op: str, top: Linear, c: int, ranges: Mapping[str, Range]) -> IndexExpr:
    """`top // c` or `top % c`: what is divisible by c goes apart; the rest is divided, unless it is known to
    lie between two neighbouring multiples of c."""
    whole = Linear(tuple((a, k) for a, k in top.terms if k % c == 0), top.constant // c * c)
    rest = Linear(tuple((a, k) for a, k in top.terms if k % c), top.constant % c)
    left = rest.expr()
    quotient = Linear(tuple((a, k // c) for a, k in whole.terms), whole.constant // c).expr()
    bounds = interval(left, ranges)
    if bounds is not None and bounds[0] // c == bounds[1] // c:
        more = bounds[0] // c
        return binary("-", left, more * c) if op == "%" else binary("+", quotient, more)
    return binary("%", left, c) if op == "%" else binary("+", quotient, binary("//", left, c))


def _extreme(op: str, a: IndexExpr, b: IndexExpr, ranges: Mapping[str, Range]) -> IndexExpr:
    difference = interval(linear(a - b).expr(), ranges)
    if difference is not None:
        low, high = difference
        if high <= 0:
            return a if op == "min" else b
        if low >= 0:
            return b if op == "min" else a
    return binary(op, a, b)


def arms(op: str, e: IndexExpr) -> list[IndexExpr]:
    """Expressions that a maximum is not below, or a minimum not above."""
    match e:
        case IBin(own, left, right) if own == op:
            return [*arms(op, left), *arms(op, right)]
        case IBin("+" | "-" as own, left, IConst() as c):
            return [binary(own, x, c) for x in arms(op, left)]
        case _:
            return [e]


# --- conditions -------------------------------------------------------------------------------------------


def index_operand(e: Expr) -> IndexExpr | None:
    """The index expression that an operand of a comparison stands for, if it is one: others wrap."""
    match e:
        case IndexValue(index, dtype) if dtype is I64:
            return index
        case Const(int() as value) if not isinstance(value, bool):
            return IConst(value)
        case _:
            return None


def conjuncts(cond: Expr) -> list[IndexExpr] | None:
    """Affine expressions that are all >= 0 exactly where the condition holds; None if it is no such."""
    match cond:
        case Apply("and", (left, right)):
            first, second = conjuncts(left), conjuncts(right)
            return None if first is None or second is None else first + second
        case Apply(op, (left, right)):
            a, b = index_operand(left), index_operand(right)
            if a is None or b is None:
                return None
            match op:
                case "ge":
                    return [binary("-", a, b)]
                case "gt":
                    return [binary("-", binary("-", a, b), 1)]
                case "le":
                    return [binary("-", b, a)]
                case "lt":
                    return [binary("-", binary("-", b, a), 1)]
                case "eq":
                    return [binary("-", a, b), binary("-", b, a)]
                case _:
                    return None
        case _:
            return None
