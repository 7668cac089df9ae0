"""A tensor graph as an operator of the language: the syntax tree, which the formatter prints.

The graph of the text is the graph again, but for the names of statements.  Ranges are written where they do
not follow from the declared left side; a tensor is declared where its dtype does not follow from its value.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from polyfuse.diagnostics import ArgumentError
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.ir.dtypes import BOOL, F32, HALVES, I64, DType
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar
from polyfuse.ir.ops import INFIX, OPS
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
    reads,
    statement_reads,
    walk,
)
from polyfuse.source import SourceText


def operator_text(graph: TensorGraph, comments: Iterable[str] = ()) -> str:
    """The operator as text. Raises ArgumentError PF794 for what the language has no words for."""
    program = ast.Program(SourceText("<graph>", ""), (), (_Writer(graph).op(),))
    return "".join(f"# {c}\n" for c in comments) + format_program(program)


_RELATIONS = ("==", "!=", "<", "<=", ">", ">=")
_ACCUMULATED = {"sum": "+=", "max": "max=", "min": "min="}


class _Writer:
    def __init__(self, graph: TensorGraph) -> None:
        self.graph = graph
        self.aliases = {t.name: t.alias for t in graph.tensors if t.alias is not None}
        self.changed = set(self.aliases.values())

    def op(self) -> ast.OpDef:
        g = self.graph
        given = tuple(
            ast.Generic(p.name, ast.SIZE, None if p.default is None else _index(p.default))
            for p in g.size_parameters
        )
        params = tuple(self._param(g.tensor(n)) for n in g.inputs)
        results = tuple(self._param(g.tensor(n)) for n in g.outputs)
        where = tuple(ast.Compare((_index(c.left), _index(c.right)), (c.op,)) for c in g.constraints)
        body: list[ast.Stmt] = []
        declared: set[str] = set()
        for s in g.statements:
            t = g.tensor(s.target)
            if t.role is Role.TEMP and t.name not in declared and self._must_declare(t):
                body.append(ast.Let(t.name, _type(t), self._start(t)))
            declared.add(t.name)
            if not self._is_start(s):
                body.append(self._statement(s))
        return ast.OpDef(g.name, given, params, results, where, tuple(body))

    def _param(self, t: Tensor) -> ast.Param:
        default = None if t.default is None else self._number(t.default, t.dtype)
        return ast.Param(t.name, _type(t), t.role is Role.INOUT, default)

    # --- declarations --------------------------------------------------------------------------------

    def _must_declare(self, t: Tensor) -> bool:
        """Where neither the dtype nor the shape follows from the definitions."""
        writers = self.graph.writers(t.name)
        if any(s.accumulate for s in writers):
            return True
        return any(_own_dtype(s) is not t.dtype for s in writers) or len(writers) > 1

    def _is_start(self, s: Statement) -> bool:
        """Is it the value from which scatters start, which `let` says?"""
        temp = self.graph.tensor(s.target).role is Role.TEMP
        scattered = any(w.accumulate for w in self.graph.writers(s.target))
        return temp and scattered and not s.accumulate and isinstance(s.expr, Const)

    def _start(self, t: Tensor) -> ast.Expr | None:
        starts = [s for s in self.graph.writers(t.name) if self._is_start(s)]
        if starts:
            assert isinstance(starts[0].expr, Const)
            return self._number(starts[0].expr.value, t.dtype)
        return None

    # --- statements ----------------------------------------------------------------------------------

    def _statement(self, s: Statement) -> ast.Define:
        target = self.graph.tensor(s.target)
        expr = s.expr
        # What is written to a tensor of 16 bits is rounded without being told so.
        if isinstance(expr, Cast) and expr.dtype is target.dtype in HALVES and expr.arg.dtype is F32:
            expr = expr.arg
        value = self._expr(expr)
        loops = [d for d in s.dims if s.accumulate or not d.reduce]
        op = "="
        if s.accumulate:
            op = _ACCUMULATED[s.reduction or "sum"]
        elif s.reduction:
            over, value = self._reduced(s, expr)
            place = None if s.place is None else _index(s.place)
            value = ast.Reduce(s.reduction, over, value, place=place)
        name = self.aliases.get(s.target) or s.target
        indices = tuple(map(self._place, s.write)) if s.write else None
        ranges = tuple(_range(d) for d in loops if self._is_written(s, target, d))
        return ast.Define(name, indices, op, value, ranges)

    def _reduced(self, s: Statement, expr: Expr) -> tuple[tuple[ast.VarRange, ...], ast.Expr]:
        """The ranges and the body of a reduction; what data bound is a range again."""
        dims = [d for d in s.dims if d.reduce]
        ends: dict[str, tuple[ast.Expr, ast.Expr]] = {}
        names = {d.name for d in dims}
        while (found := data_range(expr)) is not None and found[0] in names:
            name, low, high, expr = found
            d = next(d for d in dims if d.name == name)
            ends[name] = bottom, top = self._expr(low), self._expr(high)
            if d.lower != IConst(0) or self._extents(reads(expr), name) != {d.upper}:
                limits = _index(d.lower), _index(d.upper)
                ends[name] = ast.Call("max", (bottom, limits[0]), ()), ast.Call("min", (top, limits[1]), ())
        ranges = tuple(ast.VarRange(d.name, *ends[d.name]) if d.name in ends else _range(d) for d in dims)
        return ranges, self._expr(expr)

    def _is_written(self, s: Statement, target: Tensor, d: IterDim) -> bool:
        """Is the range of a variable to be written, as it does not follow from a declared left side?"""
        if s.accumulate or target.role is Role.TEMP:
            return True
        extents = self._extents((Read(s.target, s.write, target.dtype), *statement_reads(s)), d.name)
        return IVar(d.name) not in s.write or d.lower != IConst(0) or extents != {d.upper}

    def _extents(self, found: Iterable[Read], name: str) -> set[IndexExpr]:
        """The extents of all axes that a variable alone is the index of."""
        places = ((self.graph.tensor(r.tensor).shape, r.indices) for r in found)
        return {n for shape, at in places for i, n in zip(at, shape, strict=True) if i == IVar(name)}

    # --- expressions ---------------------------------------------------------------------------------

    def _place(self, i: Index) -> ast.Expr:
        return self._expr(i) if isinstance(i, EXPR_TYPES) else _index(i)

    def _expr(self, e: Expr) -> ast.Expr:
        match e:
            case Const(value, dtype):
                return self._number(value, dtype)
            case IndexValue(index, dtype):
                return _index(index) if dtype.is_integer else ast.Call(dtype.name, (_index(index),), ())
            case Read(tensor, indices):
                read = ast.Subscript(tensor, tuple(map(self._place, indices)))
                plain: ast.Expr = read if indices else ast.Name(tensor)
                return ast.Call("old", (plain,), ()) if tensor in self.changed else plain
            case Select(cond, then, other):
                return ast.Conditional(self._expr(cond), self._expr(then), self._expr(other))
            case Cast(arg, dtype):
                inner = self._expr(arg)
                return inner if arg.dtype.compute is dtype else ast.Call(dtype.name, (inner,), ())
            case Apply(op, args):
                return self._applied(op, [self._expr(a) for a in args], e)

    def _applied(self, op: str, args: list[ast.Expr], e: Apply) -> ast.Expr:
        row = OPS[op]
        if op in INFIX:
            if row.sign in _RELATIONS:
                return ast.Compare(tuple(args), (row.sign,))
            return ast.Binary(row.sign, args[0], args[1])
        if op in ("neg", "not", "bitnot"):
            return ast.Unary(row.sign, args[0])
        if op in ("bits", "from_bits"):
            kind = (ast.Name(e.dtype.name),) if op == "from_bits" else ()
            return ast.Call(op, (*kind, *args), ())
        if op == "within":
            return args[0]
        if not row.called:
            message = f"the language has no words for the operation '{op}'"
            raise ArgumentError(message, code="PF794")
        return ast.Call(op, tuple(args), ())

    def _number(self, value: float | int | bool, dtype: DType) -> ast.Expr:
        if isinstance(value, bool):
            return ast.BoolLit(value)
        if isinstance(value, float) and math.isnan(value):
            return ast.Name("nan")
        sign = math.copysign(1.0, value) < 0
        plain: ast.Expr
        if isinstance(value, float) and math.isinf(value):
            plain = ast.Name("inf")
        elif dtype.is_float:
            plain = ast.Number(abs(float(value)), repr(abs(float(value))))
        else:
            plain = ast.Number(abs(value), str(abs(value)))
        return ast.Unary("-", plain) if sign else plain


def _type(t: Tensor) -> ast.TensorType:
    return ast.TensorType(t.dtype.name, tuple(map(_index, t.shape)))


def _range(d: IterDim) -> ast.VarRange:
    return ast.VarRange(d.name, _index(d.lower), _index(d.upper))


def _index(e: IndexExpr) -> ast.Expr:
    match e:
        case IConst(value):
            number = ast.Number(abs(value), str(abs(value)))
            return number if value >= 0 else ast.Unary("-", number)
        case ISize(name) | IVar(name):
            return ast.Name(name)
        case IBin("-", IConst(0), right):
            return ast.Unary("-", _index(right))
        case IBin("min" | "max" as op, left, right):
            return ast.Call(op, (_index(left), _index(right)), ())
        case IBin(op, left, right):
            return ast.Binary(op, _index(left), _index(right))


def _own_dtype(s: Statement) -> DType | None:
    """The dtype that the language infers for the value of a statement; None where it is not certain."""
    if s.reduction in ("argmax", "argmin", "arglargest", "argsmallest"):
        return I64
    found = _inferred(s.expr)
    if found is None:
        return F32 if s.expr.dtype.is_float else I64 if s.expr.dtype.is_integer else None
    return found


def _inferred(e: Expr) -> DType | None:
    """The dtype of an expression; None for weak operands alone."""
    match e:
        case Const(_, dtype):
            return BOOL if dtype.is_bool else None
        case IndexValue(_, dtype):
            return dtype if dtype.is_float else None
        case Read() | Cast():
            return e.dtype
        case Select(_, then, other):
            return _inferred(then) or _inferred(other)
        case Apply(op, args):
            if OPS[op].gives_bool:
                return BOOL
            found = [_inferred(a) for a in args]
            known: Collection[DType] = [t for t in found if t is not None]
            return e.dtype if known else None


def data_range(e: Expr) -> tuple[str, Expr, Expr, Expr] | None:
    """The variable, the ends and the body of what is reduced over a range that data bound."""
    match e:
        case Select(
            Apply(
                "and",
                (Apply("le", (low, IndexValue(IVar(name)))), Apply("lt", (IndexValue(IVar(same)), high))),
            ),
            body,
        ) if name == same and isinstance(low, Apply) and low.op == "within":
            assert isinstance(high, Apply)
            return name, low.args[0], high.args[0], body
        case _:
            return None


def reads_data(e: Expr) -> bool:
    """Does it read an element?"""
    return any(isinstance(x, Read) for x in walk(e))
