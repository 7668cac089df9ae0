"""What conditions on indices say: comparisons of index expressions, and conjunctions of them."""

from __future__ import annotations

from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IConst, IndexExpr, binary
from polyfuse.ir.tensor_graph import Apply, Const, Expr, IndexValue


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
