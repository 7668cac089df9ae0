"""Names and texts on the way to isl, and affine expressions on the way back.

User names never reach isl as they are: statements become ``S_<name>``, tensors ``A_<name>``, loop
variables ``i_<name>``, sizes ``N_<name>``, so that no name can be an isl keyword.  (The language
allows ``[A-Za-z_][A-Za-z0-9_]*`` only.)
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import islpy as isl

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, as_index, binary, variables
from polyfuse.ir.linear import Linear, index_operand, linear
from polyfuse.ir.ops import INFIX, NEGATED
from polyfuse.ir.tensor_graph import Apply, Const, Expr
from polyfuse.support.processes import ForkLock

# isl's signs of comparisons: the language's but for equality.
COMPARE = {name: INFIX[name] for name in NEGATED} | {"eq": "="}

# isl counts operations, not time; a model that needs more than this is given up, never waited for.
MAX_OPERATIONS = 50_000_000


class _IslLock(ForkLock):
    """An error of isl leaves a `with` as a ScheduleError: whoever asked can do without an answer, or ask for
    smaller parts."""

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        error = raised[1]
        if isinstance(error, isl.Error):
            # Out of operations, isl may complain of anything, such as the syntax of what it was given.
            what = f"isl gives no answer within {MAX_OPERATIONS} operations ({error})"
            raise ScheduleError(what, code="PF511", hint="split the operator, or give more sizes") from None


isl_lock = _IslLock()
"""Held while isl computes. A call of isl is one step of the interpreter: no fork comes in between."""


class NotAffine(Exception):
    """An index expression is not (quasi-)affine with the sizes that are known."""


def new_context() -> isl.Context:
    """A context for one compilation: an operation limit, and errors as Python exceptions only."""
    context = isl.Context()
    renew(context)
    return context


def renew(context: isl.Context) -> None:
    """Let isl do as much in a context as in a new one."""
    context.set_max_operations(MAX_OPERATIONS)
    context.reset_operations()


def statement_id(name: str) -> str:
    return f"S_{name}"


def tensor_id(name: str) -> str:
    return f"A_{name}"


def dim_id(name: str) -> str:
    return f"i_{name}"


def size_id(name: str) -> str:
    return f"N_{name}"


def index_text(e: IndexExpr) -> str:
    """isl text of an affine expression. Raises NotAffine for products and divisions by non-constants."""
    match e:
        case IConst(value):
            return str(value) if value >= 0 else f"({value})"
        case ISize(name):
            return size_id(name)
        case IVar(name):
            return dim_id(name)
        case IBin("+" | "-" as op, left, right):
            return f"({index_text(left)} {op} {index_text(right)})"
        case IBin("*", IConst(c), other) | IBin("*", other, IConst(c)):
            return f"({c} * {index_text(other)})"
        case IBin("//", left, IConst(c)) if c > 0:
            return f"floor({index_text(left)} / {c})"
        case IBin("%", left, IConst(c)) if c > 0:
            return f"({index_text(left)} mod {c})"
        case IBin("min" | "max" as op, left, right):
            return f"{op}({index_text(left)}, {index_text(right)})"
        case _:
            raise NotAffine(str(e))


def condition_text(cond: Expr, positive: bool = True, data: AbstractSet[str] = frozenset()) -> str | None:
    """isl text of a guard (or of its negation), or None where it is not affine in indices. `data` are
    variables whose values are data, of which isl knows nothing.

    A conjunction keeps the conjuncts that are affine: dropping one only widens the set, which is safe
    for dependences and for range proofs alike.
    """
    match cond:
        case Const(bool() as value):
            return "true" if value == positive else "false"
        case Apply("not", (arg,)):
            return condition_text(arg, not positive, data)
        case Apply("and" | "or" as op, (left, right)):
            first, second = (condition_text(x, positive, data) for x in (left, right))
            if (op == "and") == positive:
                return " and ".join(f"({t})" for t in (first, second) if t is not None) or None
            return None if first is None or second is None else f"(({first}) or ({second}))"
        case Apply(op, (left, right)) if op in COMPARE:
            a, b = index_operand(left), index_operand(right)
            if a is None or b is None or data & {*variables(a), *variables(b)}:
                return None
            try:
                return f"{index_text(a)} {COMPARE[op if positive else NEGATED[op]]} {index_text(b)}"
            except NotAffine:
                return None
        case _:
            return None


def from_aff(aff: isl.Aff, dims: tuple[str, ...]) -> IndexExpr:
    """The index expression of an affine function of a statement's dims (user names) and sizes."""
    total: IndexExpr = IConst(0)
    denominator = int(aff.get_denominator_val().to_python())

    def scaled(value: isl.Val) -> int:
        return int((value * isl.Val.int_from_si(value.get_ctx(), denominator)).to_python())

    for k, name in enumerate(dims):
        c = scaled(aff.get_coefficient_val(isl.dim_type.in_, k))
        total = _plus(total, c, IVar(name))
    for k in range(aff.dim(isl.dim_type.param)):
        c = scaled(aff.get_coefficient_val(isl.dim_type.param, k))
        size = aff.get_dim_name(isl.dim_type.param, k) or ""
        if c:
            total = _plus(total, c, ISize(size.removeprefix("N_")))
    for k in range(aff.dim(isl.dim_type.div)):
        c = scaled(aff.get_coefficient_val(isl.dim_type.div, k))
        if c:
            total = _plus(total, c, from_aff(aff.get_div(k), dims))
    total = total + scaled(aff.get_constant_val())
    return binary("//", total, denominator)


def _plus(total: IndexExpr, c: int, term: IndexExpr) -> IndexExpr:
    if c == 0:
        return total
    if c < 0:
        return binary("-", total, binary("*", -c, term))
    return binary("+", total, binary("*", c, term))


def params_prefix(names: tuple[str, ...]) -> str:
    return f"[{', '.join(map(size_id, names))}] -> " if names else ""


_AST_OPS: Mapping[object, str] = {
    isl.ast_expr_op_type.add: "+",
    isl.ast_expr_op_type.sub: "-",
    isl.ast_expr_op_type.mul: "*",
    isl.ast_expr_op_type.div: "//",
    isl.ast_expr_op_type.fdiv_q: "//",
    isl.ast_expr_op_type.pdiv_q: "//",
    isl.ast_expr_op_type.pdiv_r: "%",
    isl.ast_expr_op_type.zdiv_r: "%",
    isl.ast_expr_op_type.max: "max",
    isl.ast_expr_op_type.min: "min",
}


_BEYOND: Mapping[object, tuple[int, int]] = {
    isl.ast_expr_op_type.le: (-1, 1),
    isl.ast_expr_op_type.lt: (-1, 0),
    isl.ast_expr_op_type.ge: (1, 1),
    isl.ast_expr_op_type.gt: (1, 0),
}


def _chosen(cond: isl.AstExpr, then: isl.AstExpr, other: isl.AstExpr) -> IndexExpr:
    """`a <= b ? t : o` as o + (t - o) max(0, min(1, b - a + 1)); t - o is known, if only where a = b.

    isl chooses where one of two values is all that an equality leaves: which of two chunks has an element.
    """
    kind: object = cond.get_type()
    op: object = cond.get_op_type() if kind == isl.ast_expr_type.op else None
    low, high = from_ast_expr(other), from_ast_expr(then)
    apart = linear(binary("-", high, low))
    if op not in _BEYOND and op != isl.ast_expr_op_type.eq:
        raise NotAffine(cond.to_C_str())
    a, b = (from_ast_expr(cond.get_op_arg(k)) for k in (0, 1))
    if op in _BEYOND:
        sign, more = _BEYOND[op]
        by = binary("-", b, a) if sign < 0 else binary("-", a, b)
        holds = binary("max", 0, binary("min", 1, by + more))
    else:
        gap = linear(binary("-", a, b))
        apart = _where_zero(apart, gap)
        holds = binary("max", 0, binary("-", 1, binary("max", gap.expr(), binary("-", 0, gap.expr()))))
    if apart.terms:
        raise NotAffine(cond.to_C_str())
    return _plus(low, apart.constant, holds)


def _where_zero(value: Linear, gap: Linear) -> Linear:
    """`value` where `gap` is 0: 1 - 2*c where c is 0 is 1."""
    for atom, c in gap.terms:
        times, left = divmod(value.factor(atom), c)
        if times and not left:
            value = linear(binary("-", value.expr(), binary("*", times, gap.expr())))
    return value


def from_ast_expr(e: isl.AstExpr) -> IndexExpr:
    """The index expression of an isl AST expression (integers only). Sizes lose their prefix."""
    kind: object = e.get_type()  # the stubs say int; it is an enum
    if kind == isl.ast_expr_type.int:
        return as_index(int(e.get_val().to_python()))
    if kind == isl.ast_expr_type.id:
        name = e.get_id().get_name()
        return ISize(name.removeprefix("N_")) if name.startswith("N_") else IVar(name)
    op: object = e.get_op_type()
    if op in (isl.ast_expr_op_type.cond, isl.ast_expr_op_type.select):
        return _chosen(*(e.get_op_arg(k) for k in range(3)))
    args = [from_ast_expr(e.get_op_arg(k)) for k in range(e.get_op_n_arg())]
    if op == isl.ast_expr_op_type.minus:
        return binary("-", 0, args[0])
    if op not in _AST_OPS:
        raise NotAffine(e.to_C_str())
    result = args[0]
    for a in args[1:]:
        result = binary(_AST_OPS[op], result, a)
    return result
