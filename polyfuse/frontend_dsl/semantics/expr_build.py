"""Typed expressions of the tensor graph from checked syntax.

`build(e, want)` gives an expression of dtype `want`, a compute dtype that the type of `e` allows: reads
of f16 and bf16 are cast to f32, literals and index values become constants of `want`.  Reductions
inside expressions are handed to `reductions`, which makes statements of their own of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from polyfuse.frontend_dsl.semantics.bounds import highest
from polyfuse.frontend_dsl.semantics.functions import MAX_NODES
from polyfuse.frontend_dsl.semantics.index_build import NotIndex, is_data, is_index_only, to_index
from polyfuse.frontend_dsl.semantics.rows import pointers_of
from polyfuse.frontend_dsl.semantics.scope import Context, Scope
from polyfuse.frontend_dsl.semantics.size_algebra import simplify
from polyfuse.frontend_dsl.semantics.typer import Typer
from polyfuse.frontend_dsl.semantics.weak_types import ERROR, Ty, join
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.names import (
    BITS,
    BITS_OF_BOOLS,
    BITWISE,
    CONSTANTS,
    FROM_BITS,
    FUNCTIONS,
    OLD,
    POSITION,
    ROW,
)
from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import (
    BF16,
    BOOL,
    BY_NAME,
    F16,
    F32,
    F64,
    I64,
    QUARTERS,
    STORED,
    U16,
    U32,
    U64,
    DType,
    Kind,
)
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, sizes, variables
from polyfuse.ir.ops import BY_SIGN, OPS, Takes
from polyfuse.source import Span

# --- literals and identities ------------------------------------------------------------------------------


# The greatest finite values; a literal beyond rounds to infinity and is refused.
_LARGEST = {F16: 65504.0, BF16: 3.3895313892515355e38, F32: 3.4028234663852886e38, F64: math.inf}


def limits(dtype: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer dtype."""
    return dtype.limits


def fit(value: float | int | bool, dtype: DType) -> float | int | bool | None:
    """The literal as a value of `dtype`, or None if it is none."""
    if dtype.is_bool or isinstance(value, bool):
        return value if dtype.is_bool and isinstance(value, bool) else None
    if dtype.is_float:
        as_float = float(value)
        return as_float if math.isfinite(as_float) and abs(as_float) <= _LARGEST[dtype] else None
    low, high = limits(dtype)
    return value if isinstance(value, int) and low <= value <= high else None


def identity(reduction: str, dtype: DType, span: Span) -> g.Const:
    """What a reduction over nothing gives (for max and min: what never wins)."""
    if reduction in ("any", "all"):
        return g.Const(reduction == "all", dtype, span)
    if reduction in ("sum", "prod"):
        one = int(reduction == "prod")
        return g.Const(float(one) if dtype.is_float else one, dtype, span)
    sign = -1 if reduction in ("max", "argmax", "arglargest") else 1
    if dtype.is_float:
        return g.Const(sign * math.inf, dtype, span)
    return g.Const(limits(dtype)[0 if sign < 0 else 1], dtype, span)


class BuildError(Exception):
    """The statement cannot be built; what is wrong has been reported."""


@dataclass
class ExprBuilder:
    """Builds the expressions of one statement.

    `env` maps index variables in scope to those of the graph, `dims` are their ranges, `guards` the
    conditions under which the expression at hand is evaluated, `extract` (of `reductions`) turns a
    reduction into a statement and `made` remembers those.
    """

    ctx: Context
    scope: Scope
    typer: Typer
    base: str
    extract: Callable[[ExprBuilder, ast.Reduce, DType], g.Expr]
    env: dict[str, IVar] = field(default_factory=dict)
    dims: dict[str, g.IterDim] = field(default_factory=dict)
    guards: tuple[g.Expr, ...] = ()
    made: dict[object, g.Read] = field(default_factory=dict)

    def lookup(self, name: str) -> IndexExpr | None:
        return self.env[name] if name in self.env else self.scope.sizes.get(name)

    def type_of(self, e: ast.Expr) -> Ty:
        return self.typer.types.get(id(e), ERROR)

    def error(self, code: str, message: str, span: Span, hint: str | None = None) -> BuildError:
        self.ctx.diags.error(code, message, span, hint)
        return BuildError()

    def inner(self, extra: Mapping[str, g.IterDim]) -> ExprBuilder:
        """A builder for the body of a reduction over `extra` (names in the text -> dims)."""
        env = {**self.env, **{name: IVar(d.name) for name, d in extra.items()}}
        dims = {**self.dims, **{d.name: d for d in extra.values()}}
        return replace(self, env=env, dims=dims)

    def guarded(self, guard: g.Expr) -> ExprBuilder:
        return replace(self, guards=(*self.guards, guard))

    # --- values ------------------------------------------------------------------------------------

    def build(self, e: ast.Expr, want: DType) -> g.Expr:
        if not isinstance(e, ast.Number | ast.Subscript) and is_index_only(e, self.lookup):
            index_value = self._index_value(e, want)
            if index_value is not None:
                return index_value
        match e:
            case ast.Number(value):
                return self._literal(value, e.text, want, e.span)
            case ast.Unary("-", ast.Number(value, text)) if value:
                return self._literal(-value, f"-{text}", want, e.span)
            case ast.BoolLit(value):
                return g.Const(value, BOOL, e.span)
            case ast.Name(name) if self.scope.names_constant(name):
                return g.Const(CONSTANTS[name], want, e.span)
            case ast.Name():
                return self._read(e.id, (), e.span)
            case ast.Subscript(name, indices):
                return self._read(name, tuple(map(self.index, indices)), e.span)
            case ast.Padded():
                return self._padded(e, want)
            case ast.Reduce():
                return self.extract(self, e, want)
            case ast.Call():
                return self._call(e, want)
            case ast.Unary(op, arg):
                operand = self.build(arg, I64 if op == "~" and want.is_float else want)
                name = "not" if operand.dtype.is_bool else {"-": "neg", "~": "bitnot"}[op]
                result = g.Apply(name, (operand,), operand.dtype, e.span)
                return result if operand.dtype is want else g.Cast(result, want, e.span)
            case ast.Binary():
                return self._binary(e, want)
            case ast.Compare():
                return self._compare(e)
            case ast.Conditional(cond, then, other):
                return self._select(cond, then, other, want, e.span)
            case ast.Splat():
                raise BuildError

    def _literal(self, value: float | int, text: str, want: DType, span: Span) -> g.Expr:
        if text.removeprefix("-") in CONSTANTS and want.is_float:  # of a function's body
            return g.Const(value, want, span)
        fitted = fit(value, want)
        if fitted is None:
            hint = "it takes the type of the other operand; cast that, or write the literal in its range"
            if isinstance(value, int) and want.is_integer:
                hint = f"it takes the type of the other operand; {self._wider(value, want)}"
            raise self.error("PF217", f"the literal {text} is no value of dtype {want}", span, hint)
        return g.Const(fitted, want, span)

    @staticmethod
    def _wider(value: int, want: DType) -> str:
        """How to write it beside operands of a type."""
        if want.kind is Kind.UNSIGNED and -(2 ** (want.bits - 1)) <= value < 0:
            return f"write {value % 2**want.bits}, which has the same bits"
        wide = next((t for t in (I64, U64) if t.limits[0] <= value <= t.limits[1]), F32)
        return f"cast that, as in {wide}(...)"

    def _index_value(self, e: ast.Expr, want: DType) -> g.Expr | None:
        """None for a division by a variable, which may be 0: that is ordinary integer arithmetic."""
        try:
            index = to_index(e, self.lookup, affine=False)
        except NotIndex as problem:
            if problem.code == "" or (problem.code == "PF105" and want is U64):
                return None
            problem.report(self.ctx.diags)
            raise BuildError from None
        index = self._simpler(index)
        if isinstance(index, IConst):
            return self._literal(index.value, e.span.text, want, e.span)
        return g.IndexValue(index, want, e.span)

    def _simpler(self, index: IndexExpr) -> IndexExpr:
        """After sizes were put in for those of a called operator: 2*(2*K) is 4*K."""
        return simplify(index) if self.scope.inlined and sizes(index) else index

    def _read(self, name: str, indices: tuple[g.Index, ...], span: Span) -> g.Expr:
        info = self.scope.reads[name]
        if info.failed:
            raise BuildError
        if info.constant is not None:
            return replace(info.constant, span=span)
        read = g.Read(info.name, indices, info.dtype, span)
        return read if info.dtype.compute is info.dtype else g.Cast(read, info.dtype.compute, span)

    def _padded(self, e: ast.Padded, want: DType) -> g.Expr:
        """`x[i-1 else v]` as `x[i-1] if 0 <= i - 1 < N else v`, without what the ranges say anyway."""
        info = self.scope.reads[e.read.name]
        if info.failed or info.shape is None:
            raise BuildError
        indices = tuple(self.index(i, padded=True) for i in e.read.indices)
        test: g.Expr | None = None
        for written, index, extent in zip(e.read.indices, indices, info.shape, strict=True):
            for part in self._inside(index, extent, written.span):
                test = part if test is None else g.Apply("and", (test, part), BOOL, e.span)
        read = self._read(e.read.name, indices, e.read.span)
        if test is None:
            return read
        other = self.guarded(g.Apply("not", (test,), BOOL, e.span)).build(e.outside, want)
        result = g.Select(test, read, other, want, e.span)
        if (
            next(islice(g.walk(result), MAX_NODES, None), None) is not None
        ):  # each index that is data is in it thrice
            message = f"with its conditions written out, this read has more than {MAX_NODES:,} nodes"
            raise self.error("PF246", message, e.span, "give an index a name in a statement of its own")
        return result

    def _inside(self, index: g.Index, extent: IndexExpr, span: Span) -> Iterator[g.Expr]:
        """The conditions under which an index lies in its axis: those that the ranges leave open."""
        least, most = g.Const(0, I64, span), index_value(extent, span)
        if isinstance(index, g.EXPR_TYPES):
            at = index if index.dtype is I64 else g.Cast(index, I64, span)
            yield g.Apply("le", (least, at), BOOL, span)
            yield g.Apply("lt", (at, most), BOOL, span)
            return
        low, top = highest(binary("-", 0, index), self.dims), highest(binary("+", index, 1), self.dims)
        place = index_value(index, span)
        if low is None or not self.ctx.facts.at_least(IConst(0), low):
            yield g.Apply("le", (least, place), BOOL, span)
        if top is None or not self.ctx.facts.at_least(extent, top):
            yield g.Apply("lt", (place, most), BOOL, span)

    def index(self, e: ast.Expr, padded: bool = False) -> g.Index:
        """A subscript: affine, or an integer value (a gather); `padded` ones may be negative."""
        if is_data(e, self.lookup):
            value = self._index_of(self.build(e, self.type_of(e).compute))
            # A scalar argument that is a size or a literal: no data after all.
            number = value.arg if isinstance(value, g.Cast) and is_index_number(value) else value
            wide = isinstance(number, g.IndexValue) and value.dtype.bits >= 32
            return number.index if isinstance(number, g.IndexValue) and wide else value
        try:
            index = to_index(e, self.lookup)
        except NotIndex:
            raise BuildError from None
        index = self._simpler(index)
        if isinstance(index, IConst) and index.value < 0 and not padded:
            hint = "indices do not wrap; the last element is at extent - 1, as in x[N-1]"
            raise self.error("PF308", f"the index {index.value} is negative", e.span, hint)
        return index

    def _index_of(self, value: g.Expr) -> g.Expr:
        """Indices are i64: what only u64 holds is beyond the end as well."""
        if value.dtype is not U64:
            return value
        last = g.Const(I64.limits[1], U64, value.span)
        return g.Cast(g.Apply("min", (value, last), U64, value.span), I64, value.span)

    # --- operations ----------------------------------------------------------------------------------

    def _binary(self, e: ast.Binary, want: DType) -> g.Expr:
        # Division of weak integers rounds down to integers, and bits are those of integers, whatever type the
        # result then takes.
        weak = self.type_of(e).kind == "weak int"
        at = I64 if weak and e.op in ("//", "%", *BITWISE) and want.is_float else want
        args = (self.build(e.left, at), self.build(e.right, at))
        op = BITS_OF_BOOLS[e.op] if at.is_bool and e.op in BITWISE else BY_SIGN[e.op]
        result = g.Apply(op, args, at, e.span)
        return result if at is want else g.Cast(result, want, e.span)

    def _compare(self, e: ast.Compare) -> g.Expr:
        result: g.Expr | None = None
        for op, a, b in zip(e.ops, e.operands, e.operands[1:], strict=False):
            met = join(self.type_of(a), self.type_of(b))
            if met is None or met.is_unknown:
                raise BuildError
            pair = (self.build(a, met.compute), self.build(b, met.compute))
            test = g.Apply(BY_SIGN[op], pair, BOOL, e.span)
            result = test if result is None else g.Apply("and", (result, test), BOOL, e.span)
        assert result is not None
        return result

    def _select(self, cond: ast.Expr, then: ast.Expr, other: ast.Expr, want: DType, span: Span) -> g.Expr:
        test = self.build(cond, BOOL)
        yes = self.guarded(test).build(then, want)
        no = self.guarded(g.Apply("not", (test,), BOOL, cond.span)).build(other, want)
        return g.Select(test, yes, no, want, span)

    def _call(self, e: ast.Call, want: DType) -> g.Expr:
        if e.callee == OLD:
            return self.build(e.args[0], want)
        if e.callee == ROW and pointers_of(e) is not None:
            return self.build(e.args[0], want)
        if e.callee in BY_NAME:
            return self.cast(e.args[0], BY_NAME[e.callee], e.span)
        if e.callee == BITS:
            return self._bits(e.args[0], e.span)
        if e.callee == FROM_BITS:
            return self._from_bits(e)
        if e.callee == POSITION:
            return self._position(e)
        if e.callee not in FUNCTIONS:
            raise BuildError
        if e.callee == "select":
            cond, then, other = e.args
            return self._select(cond, then, other, want, e.span)
        if OPS[e.callee].takes is Takes.U64:
            words = tuple(self.cast(a, U64, a.span) for a in e.args)
            return g.Apply(e.callee, words, OPS[e.callee].result(U64), e.span)
        if OPS[e.callee].gives_bool:
            return g.Apply(e.callee, (self.build(e.args[0], self._float(e.args[0])),), BOOL, e.span)
        args = [self.build(a, want) for a in e.args]
        result: g.Expr = args[0]
        if len(args) == 1:
            return g.Apply(e.callee, (result,), want, e.span)
        for a in args[1:]:
            result = g.Apply(e.callee, (result, a), want, e.span)
        return result

    def _bits(self, arg: ast.Expr, span: Span) -> g.Expr:
        """Of a bf16 the upper ones of f32, of other short floats the lowest of a word."""
        t = self.type_of(arg)
        if t.is_unknown:
            raise BuildError
        value, dtype = self.build(arg, t.compute), t.dtype or F32
        if dtype in STORED and dtype is not BF16:
            op = f"bits_{dtype}"
            return g.Cast(g.Apply(op, (value,), U32, span), dtype.word, span)
        bits = g.Apply("bits", (value,), t.compute.word, span)
        if dtype is BF16:
            upper = g.Apply("shr", (bits, g.Const(16, U32, span)), U32, span)
            return g.Cast(upper, U16, span)
        return bits

    def _from_bits(self, e: ast.Call) -> g.Expr:
        (name, arg), span = e.args, e.span
        assert isinstance(name, ast.Name)
        dtype = BY_NAME[name.id]
        value = self.build(arg, dtype.word)
        if dtype.compute is dtype:
            return g.Apply("from_bits", (value,), dtype, span)
        word: g.Expr = g.Cast(value, U32, span)
        if dtype is not BF16:
            op = f"from_bits_{dtype}"
            return g.Apply(op, (word,), F32, span)
        word = g.Apply("shl", (word, g.Const(16, U32, span)), U32, span)
        return g.Apply("from_bits", (word,), F32, span)

    def _position(self, e: ast.Call) -> g.Expr:
        place: IndexExpr = IConst(0)
        for a in e.args:
            assert isinstance(a, ast.Name)
            d = self.dims[self.env[a.id].name]
            if d.lower != IConst(0) or variables(d.upper):
                message = f"the range of '{a.id}' is {d.lower}..{d.upper}, no axis"
                hint = "ranges begin at 0 and depend on no other variable here; else write the place yourself"
                raise self.error("PF266", message, a.span, hint)
            place = binary("+", binary("*", place, d.upper), self.env[a.id])
        return index_value(self._simpler(place), e.span)

    def _float(self, e: ast.Expr) -> DType:
        compute = self.type_of(e).compute
        return compute if compute.is_float else BY_NAME["f32"]

    def cast(self, arg: ast.Expr, to: DType, span: Span) -> g.Expr:
        """`to(arg)`, in the compute dtype of `to`; f16 and bf16 round here."""
        t = self.type_of(arg)
        if t.is_unknown:
            raise BuildError
        at = t.compute
        if t.is_weak and to.is_float:
            at = to.compute
        elif t.kind == "weak int" and to.is_integer and is_index_only(arg, self.lookup):
            at = to
        value = self.build(arg, at)
        if isinstance(value, g.IndexValue) and at is to and to.is_integer:
            value, at = replace(value, dtype=I64), I64  # converted as it says, whether it fits or not
        if to.is_bool and not at.is_bool:
            zero = g.Const(0.0 if at.is_float else 0, at, span)
            return g.Apply("ne", (value, zero), BOOL, span)
        if to is not at:
            value = g.Cast(value, to, span)
        return value if to.compute is to else g.Cast(value, to.compute, span)

    def stored(self, e: ast.Expr, target: DType) -> g.Expr:
        """The right side of a definition of a `target` tensor."""
        value = self.build(e, target.compute)
        if target in QUARTERS and isinstance(value, g.Cast) and value.arg.dtype is target:
            return value.arg  # as it is, infinities included, which a cast would bring in
        if value.dtype is not target.compute:
            value = g.Cast(value, target.compute, e.span)
        return value if target.compute is target else g.Cast(value, target, e.span)


def index_value(index: IndexExpr, span: Span) -> g.Expr:
    """An index as a number of 64 bits."""
    return g.Const(index.value, I64, span) if isinstance(index, IConst) else g.IndexValue(index, I64, span)


def is_index_number(e: g.Expr) -> bool:
    """A literal, a size or an index as a number, also one that is converted."""
    converted = isinstance(e, g.Cast) and e.dtype.is_integer and isinstance(e.arg, g.IndexValue)
    return converted or isinstance(e, g.Const | g.IndexValue)


def index_variables(e: g.Expr) -> set[str]:
    """Loop variables that an expression mentions, in subscripts too."""
    found: set[str] = set()
    for x in g.walk(e):
        match x:
            case g.IndexValue(index):
                found |= set(variables(index))
            case g.Read(_, indices):
                for i in indices:
                    if not isinstance(i, g.EXPR_TYPES):
                        found |= set(variables(i))
            case _:
                pass
    return found
