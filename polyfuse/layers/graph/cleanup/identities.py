"""Algebraic identities that are exact: a table of rules, each with the reason why.

    Rule("x * 1", left=("mul", "x", 1), right="x", ...)

A pattern is a variable ("x", any expression; twice the same one is twice the same expression), a constant
(a number, or NEGATIVE_ZERO), or (operation, patterns...).  Operations that commute match both ways around.

Exact means: the same bits for all values, except which NaN a NaN is, under the arithmetic of the language:
IEEE with infinities, NaN and signs of zeros, integers that wrap.  So these are no rules:

    x * 0, x - x, x / x      NaN or an infinity gives NaN
    x + 0.0                  -0.0 + 0.0 is 0.0
    -(x - y) to y - x        the zero of equal ones would change its sign
    not (x < y) to x >= y    both are false for NaN

A variable that a rule drops must hold no index from data: checked builds would no longer check it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, Union

import numpy as np

from polyfuse.ir.dtypes import DType, Kind
from polyfuse.ir.ops import INFIX, OPS, Trait, with_trait
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Const, Expr, IndexValue, Read, Select, walk
from polyfuse.layers.graph.cleanup.folding import constant_value
from polyfuse.layers.graph.cleanup.keys import identical

NEGATIVE_ZERO = "-0.0"
Pattern: TypeAlias = Union[str, int, float, bool, tuple["Pattern", ...]]  # noqa: UP007

_COMMUTE = with_trait(Trait.COMMUTES)
_WHOLE_OPS = with_trait(Trait.WHOLE)
_INTEGERS, _FLOATS, _BOOLS = "integers", "floats", "bools"
_NUMBERS, _SIGNED = "numbers", "signed"
_ANY = "any"


@dataclass(frozen=True, slots=True)
class Rule:
    """`left` may be replaced by `right` where the operands are of a kind, and why that is exact.

    `unevaluated` are variables that are not computed on the left either.
    """

    left: Pattern
    right: Pattern
    kind: str
    why: str
    unevaluated: str = ""

    def __str__(self) -> str:
        return f"{format_pattern(self.left)} is {format_pattern(self.right)}"


_ONE = (
    "IEEE: the exact result is x, and no rounding changes what fits; signs of zeros, infinities and NaN stay"
)
_SIGN = "only a sign changes, which rounds nothing"
_RING = "integers wrap: the arithmetic of a ring"
_LOGIC = "the table of the operation"
_WHOLE = "a value that is an integer, an infinity or NaN stays as it is, -0.0 included"

RULES: tuple[Rule, ...] = (
    Rule(("mul", "x", 1), "x", _NUMBERS, _ONE),
    Rule(("div", "x", 1), "x", _FLOATS, _ONE),
    Rule(("pow", "x", 1), "x", _NUMBERS, "the power is x; the function of the kernels may only come near"),
    Rule(("sub", "x", 0), "x", _NUMBERS, "x - 0.0 is x, for -0.0 as well: -0.0 - 0.0 is -0.0"),
    Rule(("add", "x", NEGATIVE_ZERO), "x", _FLOATS, "neutral: -0.0 + -0.0 is -0.0, 0.0 + -0.0 is 0.0"),
    Rule(("mul", "x", -1), ("neg", "x"), _NUMBERS, _SIGN),
    Rule(("div", "x", -1), ("neg", "x"), _FLOATS, _SIGN),
    Rule(("neg", ("neg", "x")), "x", _NUMBERS, _SIGN),
    Rule(("add", "x", ("neg", "y")), ("sub", "x", "y"), _NUMBERS, "IEEE defines x - y as x + (-y)"),
    Rule(("sub", "x", ("neg", "y")), ("add", "x", "y"), _NUMBERS, "IEEE defines x - y as x + (-y)"),
    Rule(("mul", ("neg", "x"), ("neg", "y")), ("mul", "x", "y"), _NUMBERS, _SIGN),
    Rule(("div", ("neg", "x"), ("neg", "y")), ("div", "x", "y"), _FLOATS, _SIGN),
    Rule(("abs", ("neg", "x")), ("abs", "x"), _SIGNED, "the sign is dropped in any case"),
    Rule(("abs", ("abs", "x")), ("abs", "x"), _NUMBERS, "the sign is gone"),
    Rule(("min", "x", "x"), "x", _NUMBERS, "both are x, NaN too"),
    Rule(("max", "x", "x"), "x", _NUMBERS, "both are x, NaN too"),
    Rule(("min", "x", math.inf), "x", _FLOATS, "nothing is greater, and NaN wins"),
    Rule(("max", "x", -math.inf), "x", _FLOATS, "nothing is less, and NaN wins"),
    *(Rule((f, (g, "x")), (g, "x"), _FLOATS, _WHOLE) for f in _WHOLE_OPS for g in _WHOLE_OPS),
    # integers
    Rule(("add", "x", 0), "x", _INTEGERS, _RING),
    Rule(("sub", 0, "x"), ("neg", "x"), _INTEGERS, _RING),
    Rule(("sub", "x", "x"), 0, _INTEGERS, _RING),
    Rule(("mul", "x", 0), 0, _INTEGERS, _RING),
    Rule(("floordiv", "x", 1), "x", _INTEGERS, "1 divides all"),
    Rule(("mod", "x", 1), 0, _INTEGERS, "1 divides all"),
    *(Rule((op, "x", "x"), True, _INTEGERS, "an integer is itself") for op in ("eq", "le", "ge")),
    *(Rule((op, "x", "x"), False, _INTEGERS, "an integer is itself") for op in ("ne", "lt", "gt")),
    # comparisons of floats
    *(Rule((op, "x", "x"), False, _FLOATS, "false for NaN too") for op in ("lt", "gt")),
    Rule(("ne", "x", "x"), ("isnan", "x"), _FLOATS, "only NaN differs from itself"),
    Rule(("eq", "x", "x"), ("not", ("isnan", "x")), _FLOATS, "only NaN differs from itself"),
    Rule(("not", ("eq", "x", "y")), ("ne", "x", "y"), _ANY, "IEEE: != is the opposite of ==, for NaN too"),
    Rule(("not", ("ne", "x", "y")), ("eq", "x", "y"), _ANY, "IEEE: == is the opposite of !=, for NaN too"),
    # booleans
    Rule(("not", ("not", "x")), "x", _BOOLS, _LOGIC),
    Rule(("and", "x", True), "x", _BOOLS, _LOGIC),
    Rule(("and", "x", False), False, _BOOLS, _LOGIC),
    Rule(("and", "x", "x"), "x", _BOOLS, _LOGIC),
    Rule(("or", "x", False), "x", _BOOLS, _LOGIC),
    Rule(("or", "x", True), True, _BOOLS, _LOGIC),
    Rule(("or", "x", "x"), "x", _BOOLS, _LOGIC),
    # select: (condition, then, else)
    Rule(("select", True, "x", "y"), "x", _ANY, "the other side is never computed", unevaluated="y"),
    Rule(("select", False, "x", "y"), "y", _ANY, "the other side is never computed", unevaluated="x"),
    Rule(("select", "c", "x", "x"), "x", _ANY, "both sides are x"),
    Rule(("select", "c", True, False), "c", _BOOLS, _LOGIC),
    Rule(("select", "c", False, True), ("not", "c"), _BOOLS, _LOGIC),
)  # fmt: skip


def apply_identity(e: Apply | Select, note: Callable[[Rule], None]) -> Expr:
    """The expression by the first rule that fits, or itself. `note` is told of the rule."""
    for rule, left in _candidates(e):
        found: dict[str, Expr] = {}
        if not _of_kind(rule.kind, _operand(e)) or not _fits(left, e, found):
            continue
        kept = variables_of(rule.right)
        if any(name not in kept and name not in rule.unevaluated and _checks(x) for name, x in found.items()):
            continue
        note(rule)
        return _build(rule.right, found, e)
    return e


# --- which rules may fit ---------------------------------------------------------------------------------

_KNOWN: dict[tuple[str, ...], tuple[tuple[Rule, Pattern], ...]] = {}


def _candidates(e: Apply | Select) -> tuple[tuple[Rule, Pattern], ...]:
    """The rules whose outermost operation and whose operands' heads are those of the expression, with their
    left sides. They are found once for each combination: nearly all nodes of a graph fit none."""
    heads = _head(e), *map(_head, _operands(e))
    known = _KNOWN.get(heads)
    if known is None:
        fitting = [(r, side) for r in RULES for side in _ways_around(r.left) if _may_fit(side, heads)]
        known = _KNOWN[heads] = tuple(fitting)
    return known


def _head(e: Expr) -> str:
    match e:
        case Apply("neg", (arg,)) if constant_value(arg) is not None:
            return "-constant"
        case Apply(op):
            return op
        case Const() | IndexValue():
            return "constant" if constant_value(e) is not None else "other"
        case Select():
            return "select"
        case Read():
            return "read"
        case _:
            return "other"


def _ways_around(left: Pattern) -> tuple[Pattern, ...]:
    if isinstance(left, tuple) and left[0] in _COMMUTE:
        op, a, b = left
        return (left,) if a == b else (left, (op, b, a))
    return (left,)


def _may_fit(left: Pattern, heads: tuple[str, ...]) -> bool:
    assert isinstance(left, tuple)
    if left[0] != heads[0] or len(left) != len(heads):
        return False
    met: dict[str, str] = {}
    for pattern, head in zip(left[1:], heads[1:], strict=True):
        if isinstance(pattern, tuple):
            if pattern[0] != head and not (pattern[0] == "neg" and head == "-constant"):
                return False
        elif pattern == NEGATIVE_ZERO:
            if head not in ("constant", "-constant"):
                return False
        elif isinstance(pattern, str):
            if met.setdefault(pattern, head) != head:
                return False
        elif head != "constant":
            return False
    return True


# --- matching and building --------------------------------------------------------------------------------


def _operands(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Apply(_, args):
            return args
        case Select(cond, then, other):
            return (cond, then, other)
        case _:
            return ()


def _operand(e: Apply | Select) -> DType:
    return e.args[0].dtype if isinstance(e, Apply) else e.dtype


def _of_kind(kind: str, dtype: DType) -> bool:
    match kind:
        case "floats":
            return dtype.is_float
        case "integers":
            return dtype.is_integer
        case "bools":
            return dtype.is_bool
        case "numbers":
            return not dtype.is_bool
        case "signed":
            return dtype.is_float or dtype.kind is Kind.SIGNED
        case _:
            return True


def _fits(pattern: Pattern, e: Expr, found: dict[str, Expr]) -> bool:
    if isinstance(pattern, tuple):
        op, *inner = pattern
        own = "select" if isinstance(e, Select) else e.op if isinstance(e, Apply) else None
        return op == own and all(_fits(p, x, found) for p, x in zip(inner, _operands(e), strict=True))
    if pattern == NEGATIVE_ZERO:
        return _is_negative_zero(e)
    if isinstance(pattern, str):
        return identical(found.setdefault(pattern, e), e)
    value = constant_value(e)
    return (
        value is not None and bool(value == pattern) and not (value == 0 and bool(np.signbit(float(value))))
    )


def _is_negative_zero(e: Expr) -> bool:
    """-0.0, as a constant or as the negative of one."""
    if isinstance(e, Apply) and e.op == "neg":
        value = constant_value(e.args[0])
        return value is not None and bool(value == 0) and not np.signbit(value)
    value = constant_value(e)
    return value is not None and bool(value == 0) and bool(np.signbit(value))


def _checks(e: Expr) -> bool:
    """Does a checked build check something here: an index from data?"""
    return any(isinstance(x, Read) and any(isinstance(i, EXPR_TYPES) for i in x.indices) for x in walk(e))


def variables_of(pattern: Pattern) -> frozenset[str]:
    """The names of a pattern's variables."""
    if isinstance(pattern, tuple):
        return frozenset().union(*map(variables_of, pattern[1:]))
    return frozenset([pattern]) if isinstance(pattern, str) and pattern != NEGATIVE_ZERO else frozenset()


def _build(pattern: Pattern, found: Mapping[str, Expr], e: Expr) -> Expr:
    """The right side; it has the place in the text of what it stands for."""
    if isinstance(pattern, tuple):
        op, *inner = pattern
        assert isinstance(op, str)
        args = tuple(_build(p, found, e) for p in inner)
        return Apply(op, args, OPS[op].result(args[0].dtype), e.span)
    if isinstance(pattern, str):
        return found[pattern]
    return Const(pattern, e.dtype, e.span)


# --- printing ---------------------------------------------------------------------------------------------


def format_pattern(p: Pattern, inner: bool = False) -> str:
    """A pattern as the language writes it."""
    if isinstance(p, bool):
        return str(p).lower()
    if not isinstance(p, tuple):
        return str(p)
    op, *args = p
    assert isinstance(op, str)
    if op in INFIX:
        text = f"{format_pattern(args[0], True)} {INFIX[op]} {format_pattern(args[1], True)}"
        return f"({text})" if inner else text
    if op in ("neg", "not"):
        return f"{'-' if op == 'neg' else 'not '}{format_pattern(args[0], True)}"
    return f"{op}({', '.join(map(format_pattern, args))})"
