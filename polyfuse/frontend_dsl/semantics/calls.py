"""Calls of operators, inlined: `y = softmax(x)` becomes softmax's statements about `x` and `y`.

Each call is an instance of its own: generics and rank variables from the arguments, sizes solved from
their extents, local tensors renamed (`softmax_1__m`).  Literals and sizes as arguments are put in
place; other scalar expressions become rank-0 temps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from polyfuse.frontend_dsl.semantics.declare import declare_inout, default_value, dtype_of, shape_of
from polyfuse.frontend_dsl.semantics.elaborate import elaborate, fail
from polyfuse.frontend_dsl.semantics.expr_build import BuildError, ExprBuilder, is_index_number
from polyfuse.frontend_dsl.semantics.functions import expanded
from polyfuse.frontend_dsl.semantics.groups import Group
from polyfuse.frontend_dsl.semantics.index_build import constraints_of, size_expr
from polyfuse.frontend_dsl.semantics.inout_reads import read_at_entry
from polyfuse.frontend_dsl.semantics.monomorphise import monomorphise, rank_variables
from polyfuse.frontend_dsl.semantics.optionals import chosen, optionals
from polyfuse.frontend_dsl.semantics.reductions import extract
from polyfuse.frontend_dsl.semantics.rows import with_rows
from polyfuse.frontend_dsl.semantics.scatter import emit_copy
from polyfuse.frontend_dsl.semantics.scope import Context, Scope, TensorInfo
from polyfuse.frontend_dsl.semantics.signature import size_names
from polyfuse.frontend_dsl.semantics.size_algebra import Facts, constant, divide, simplify, solve
from polyfuse.frontend_dsl.semantics.size_algebra import to_index as poly_index
from polyfuse.frontend_dsl.semantics.typer import Typer
from polyfuse.frontend_dsl.semantics.weak_types import BOTTOM, SOFT, Ty, agree, assignable, hard
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.names import (
    GENERIC_KINDS,
    MAX_CALL_DEPTH,
    MAX_STATEMENTS,
    NONE,
    REDUCTIONS,
    axes,
    did_you_mean,
    function_meant,
    is_builtin,
    reduction_form,
    representative,
)
from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import BF16, BY_NAME, F16, F32, DType
from polyfuse.ir.index_expr import IndexExpr, ISize, as_index, binary, sizes, substitute
from polyfuse.source import Span

# --- sizes of a called operator ---------------------------------------------------------------------------


Bound = tuple[ast.Param, TensorInfo, Span]


GivenSizes = Mapping[str, tuple[IndexExpr, Span]]
"""Size parameters that a call gives, with the place of each."""


def bind_call_sizes(
    ctx: Context, inner: Scope, tensors: Sequence[Bound], call: ast.Call, given: GivenSizes
) -> bool:
    """Fill `inner.sizes`; False after a report (PF206, PF219, PF243)."""
    names, before = size_names(inner.op), ctx.diags.errors_seen
    inner.sizes.update({n: value for n, (value, _) in given.items()})
    own = {n: ISize(n) for n in names}
    pairs: list[tuple[IndexExpr, IndexExpr, str, Span]] = []
    for p, info, span in tensors:
        assert info.shape is not None
        for k, (written, actual) in enumerate(zip(p.type.extents, info.shape, strict=True)):
            extent = size_expr(written, own, ctx.diags, "an extent", inner.owner)
            if extent is None:
                return False
            pairs.append((extent, actual, f"axis {k} of '{p.name}' ({extent})", span))
    because = {n: (f"{n}={value}", span) for n, (value, span) in given.items()}
    while _solve_one(ctx, inner, pairs, because) or _take_default(ctx, inner, call):
        pass
    if ctx.diags.errors_seen > before:
        return False
    checked = [_check_pair(ctx, inner, pair, because) for pair in pairs]
    ok = all(checked)
    missing = [n for n in names if n not in inner.sizes]
    if ok and missing:
        _report_missing(ctx, inner, pairs, missing[0], call)
    return ok and not missing


def _report_missing(
    ctx: Context,
    inner: Scope,
    pairs: Sequence[tuple[IndexExpr, IndexExpr, str, Span]],
    name: str,
    call: ast.Call,
) -> None:
    for extent, actual, what, span in pairs:
        if name in sizes(extent):
            message = f"no value of '{name}' fits the call of '{inner.op.name}': {what} is {actual} here"
            ctx.diags.error("PF206", message, span)
            return
    message = f"the size '{name}' of '{inner.op.name}' does not follow from the arguments"
    is_given = any(x.name == name for x in inner.op.size_parameters)
    hint = f"give it: {inner.op.name}(..., {name}=...)" if is_given else None
    ctx.diags.error("PF219", message, call.span, hint)


def _solve_one(
    ctx: Context,
    inner: Scope,
    pairs: Sequence[tuple[IndexExpr, IndexExpr, str, Span]],
    because: dict[str, tuple[str, Span]],
) -> bool:
    """Bind one more size: plain names first, then what is linear in one unknown."""
    for plain in (True, False):
        for extent, actual, what, span in pairs:
            unknown = [n for n in sizes(extent) if n not in inner.sizes]
            if len(unknown) != 1 or (plain and extent != ISize(unknown[0])):
                continue
            value = _solved(ctx, inner, extent, unknown[0], actual)
            if value is not None:
                inner.sizes[unknown[0]] = value
                because[unknown[0]] = (what, span)
                return True
    return _solve_constraint(ctx, inner)


def _solve_constraint(ctx: Context, inner: Scope) -> bool:
    """Bind one more size by an equality with one unknown."""
    own = {n: ISize(n) for n in size_names(inner.op)}
    for e in inner.op.where:
        for c in constraints_of(e, own, ctx.diags, inner.owner):
            unknown = [n for n in {*sizes(c.left), *sizes(c.right)} if n not in inner.sizes]
            if c.op != "==" or len(unknown) != 1:
                continue
            value = _solved(ctx, inner, binary("-", c.left, c.right), unknown[0], as_index(0))
            if value is not None:
                inner.sizes[unknown[0]] = value
                return True
    return False


def _take_default(ctx: Context, inner: Scope, call: ast.Call) -> bool:
    """Bind the leftmost size parameter that is open and has a default of known sizes."""
    own = {n: ISize(n) for n in size_names(inner.op)}
    for x in inner.op.size_parameters:
        if x.name in inner.sizes or x.default is None:
            continue
        default = size_expr(x.default, own, ctx.diags, f"the default of '{x.name}'", inner.owner)
        if default is None or any(n not in inner.sizes for n in sizes(default)):
            continue
        value = inner.sizes[x.name] = simplify(substitute(default, sizes=inner.sizes))
        return require_size(ctx, x.name, inner.op.name, value, call.span)
    return False


def require_size(ctx: Context, name: str, op: str, value: IndexExpr, span: Span) -> bool:
    """The value of a size: PF243 where it is certainly negative; where it may be, calls check it."""
    if not ctx.assume(g.Constraint(">=", value, as_index(0), span)):
        message = f"the size '{name}' of '{op}' cannot be {value}"
        ctx.diags.error("PF243", message, span, "a size is 0 or more")
        return False
    return True


def _solved(
    ctx: Context, inner: Scope, extent: IndexExpr, unknown: str, actual: IndexExpr
) -> IndexExpr | None:
    if extent == ISize(unknown):
        return actual
    # The callee's own name of the size may be one of the caller's: keep them apart.
    apart = ISize(unknown + "'")
    extent = substitute(extent, sizes={**inner.sizes, unknown: apart})
    parts = solve(extent, apart.name, actual, Facts())
    with_facts = solve(extent, apart.name, actual, ctx.facts)
    if parts is None or with_facts is None:
        return None
    for fraction in (parts, with_facts):
        quotient = divide(*fraction)
        if quotient is not None:
            return poly_index(quotient)
    numerator, denominator = parts
    by = constant(denominator)
    if by is not None and by < 0:
        return None
    top, bottom = poly_index(numerator), poly_index(denominator)
    if not ctx.assume(g.Constraint("==", binary("%", top, bottom), as_index(0))):
        return None
    return binary("//", top, bottom)


def _check_pair(
    ctx: Context,
    inner: Scope,
    pair: tuple[IndexExpr, IndexExpr, str, Span],
    because: dict[str, tuple[str, Span]],
) -> bool:
    extent, actual, what, span = pair
    if any(n not in inner.sizes for n in sizes(extent)):
        return True
    expected = substitute(extent, sizes=inner.sizes)
    if ctx.facts.equal(expected, actual):
        return True
    sources = [because[n] for n in sizes(extent) if n in because]
    related = tuple((place, f"{text} fixes it here") for text, place in sources)
    where = f"; {sources[0][0]} says so" if sources else ""
    a, b = simplify(expected), simplify(actual)
    hint = None
    if ctx.facts.difference(expected, actual) is None:
        hint = f"add `where {a} == {b}` to the calling operator if they are equal"
    message = f"size mismatch in the call of '{inner.op.name}': {what} must be {a}{where}, got {b}"
    ctx.diags.error("PF206", message, span, hint, related)
    return False


def check_result(
    ctx: Context, inner: Scope, r: ast.Param, info: TensorInfo, target: tuple[str, bool], span: Span
) -> bool:
    """Give an undeclared target the type of a result, or check a declared one against it.

    `target` is its name and whether the result's dtype came from soft f32 arguments only.
    """
    dtype, shape = dtype_of(r.type, ctx), shape_of(r.type, inner, ctx)
    if dtype is None or shape is None or info.failed:
        return False
    shape = tuple(map(simplify, shape))
    name, soft = target
    if not info.declared:
        info.declare(dtype, shape, len(shape))
        if soft and dtype is F32:
            info.ty = SOFT
        return True
    problem = None
    if info.dtype is not dtype:
        problem = ("PF205", f"'{name}' is {info.dtype}, '{inner.op.name}' gives {dtype}")
    elif info.rank != len(shape):
        problem = ("PF204", f"'{name}' has {axes(info.rank or 0)}, '{inner.op.name}' gives {len(shape)}")
    elif info.shape is not None:
        for k, (mine, theirs) in enumerate(zip(info.shape, shape, strict=True)):
            if not ctx.facts.equal(mine, theirs):
                text = f"axis {k} of '{name}' has extent {mine}, '{inner.op.name}' gives {theirs}"
                problem = ("PF206", text)
    if problem:
        ctx.diags.error(*problem, span, "give the result another name and convert it in a statement")
    return problem is None


# --- inlined calls ----------------------------------------------------------------------------------------


class CallError(Exception):
    """The call cannot be inlined; what is wrong has been reported."""


@dataclass(eq=False)
class _Argument:
    """An argument: a tensor, or a scalar expression of type `ty` (None: the parameter's default)."""

    param: ast.Param
    expr: ast.Expr | None
    info: TensorInfo | None = None
    ty: Ty | None = None

    @property
    def span(self) -> Span:
        return self.expr.span if self.expr is not None else self.param.span


def inline(ctx: Context, scope: Scope, group: Group) -> None:
    """Append the statements of the call of `group`."""
    before = ctx.diags.errors_seen
    with suppress(CallError):
        _Call(ctx, scope, group).run()
    if ctx.diags.errors_seen > before:
        fail(scope, [group])
    for t in group.targets:
        if scope.writes[t].rank is None:
            scope.writes[t].failed = True


@dataclass(eq=False)
class _Call:
    ctx: Context
    scope: Scope
    group: Group
    call: ast.Call = field(init=False)
    soft: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        assert self.group.call is not None
        self.call = self.group.call.call

    def _error(self, code: str, message: str, span: Span, hint: str | None = None) -> CallError:
        self.ctx.diags.error(code, message, span, hint)
        return CallError()

    def run(self) -> None:
        called, home = self._find()
        op, bound = self._chosen(called, self._bind(called))
        arguments = [self._classify(p, e) for p, e in bound]
        if any(a.info is not None and a.info.failed for a in arguments):
            raise CallError
        dtypes = self._generics(op, arguments)
        mono = self._instance(op, home, dtypes, self._ranks(op, arguments))
        prefix = self._prefix(op.name)
        inner = Scope(mono, home, {}, chain=(*self.scope.chain, called), prefix=prefix)
        self._check_dtypes(op, mono, arguments)
        pairs = list(zip(mono.params, arguments, strict=True))
        tensors = [(p, a.info, a.span) for p, a in pairs if a.info is not None]
        if not bind_call_sizes(self.ctx, inner, tensors, self.call, self._given_sizes(op)):
            raise CallError
        for p, a in pairs:
            inner.reads[p.name] = a.info if a.info is not None else self._scalar(p, a, prefix)
        self._inouts(mono, arguments, inner)
        rounded = self._results(op, mono, inner)
        self._constraints(mono, inner)
        too_large = self.ctx.library.too_large
        if len(self.ctx.statements) > MAX_STATEMENTS or id(called) in too_large:
            too_large |= {id(caller) for caller in self.scope.chain}
            message = f"more than {MAX_STATEMENTS} statements after inlining"
            raise self._error("PF212", message, self.call.span)
        elaborate(self.ctx, inner, inline)
        for source, target in rounded:
            emit_copy(self.ctx, source, target, self.group.span)

    def _chosen(
        self, op: ast.OpDef, bound: list[tuple[ast.Param, ast.Expr | None]]
    ) -> tuple[ast.OpDef, list[tuple[ast.Param, ast.Expr | None]]]:
        """The operator without the optional tensors that are absent here, its parameters and arguments."""
        if not optionals(op):
            return op, bound
        absent = tuple(p.name for p, e in bound if p.optional and (e is None or self._is_none(e)))
        key = (id(op), absent)
        if key not in self.ctx.instances:
            self.ctx.instances[key] = chosen(op, absent, self.ctx.diags)
        made = self.ctx.instances[key]
        given = {p.name: e for p, e in bound}
        return made, [(p, given[p.name]) for p in made.params]

    def _is_none(self, e: ast.Expr) -> bool:
        """Whether an argument says that an optional tensor is absent."""
        return isinstance(e, ast.Name) and e.id == NONE and NONE not in (self.scope.reads | self.scope.sizes)

    def _instance(
        self, op: ast.OpDef, home: ast.Program, dtypes: dict[str, DType], ranks: dict[str, int]
    ) -> ast.OpDef:
        """The operator without generics; the same for every call with the same ones."""
        key = (id(op), *dtypes.items(), *ranks.items())
        if key not in self.ctx.instances:
            mono = monomorphise(op, dtypes, ranks, self.ctx.diags)
            mono = expanded(mono, home, self.ctx.library, self.ctx.diags)
            self.ctx.instances[key] = with_rows(mono, home, self.ctx.library, self.ctx.diags)
        return self.ctx.instances[key]

    def _prefix(self, name: str) -> str:
        self.ctx.calls[name] += 1
        return f"{name}_{self.ctx.calls[name]}__"

    # --- the operator and its arguments --------------------------------------------------------------

    def _find(self) -> tuple[ast.OpDef, ast.Program]:
        name, library = self.call.callee, self.ctx.library
        found = library.find(name, self.scope.home)
        if found is None and is_builtin(name):
            message = f"'{name}' is a function of numbers: a call of it is no statement"
            raise self._error("PF202", message, self.call.callee_span, f"give it a name: y = {name}(...)")
        if found is None:
            if not self.ctx.diags.is_first(f"{name}()", self.scope.owner):
                raise CallError
            hint = self.ctx.diags.looked_up(sum(len(p.ops) for p in library.programs), self._meant)
            if name in REDUCTIONS:
                hint = f"a reduction names its variables: {reduction_form(name)}"
            raise self._error("PF202", f"unknown function or operator '{name}'", self.call.callee_span, hint)
        if any(op is found[0] for op in self.scope.chain):
            before = [op.name for op in self.scope.chain]
            chain = " -> ".join((*before[before.index(name) :], name))
            raise self._error("PF212", f"recursive call: {chain}", self.call.callee_span)
        if len(self.scope.chain) > MAX_CALL_DEPTH:
            message = f"calls nested more than {MAX_CALL_DEPTH} deep"
            raise self._error("PF212", message, self.call.callee_span)
        self._check_count(found[0])
        return found

    def _check_count(self, op: ast.OpDef) -> None:
        """The left side takes every result; a call without one is made for what it changes in place."""
        targets, results, name = len(self.group.targets), len(op.results), op.name
        if targets == 0 == results and not any(p.inout for p in op.params):
            message = f"'{name}' has neither results nor inout parameters: calling it does nothing"
            raise self._error("PF230", message, self.group.span, f"give '{name}' a result")
        if targets == results:
            return
        names = ", ".join(r.name for r in op.results)
        count = f"{results} result{'s' * (results != 1)}"
        takes = f"the left side takes {targets}" if targets else "a call without a left side takes none"
        message = f"'{name}' has {count} ({names}), {takes}"
        hint = f"({names}) = {name}(...)" if results > 1 else f"{names} = {name}(...)"
        if not results:
            message = f"'{name}' has no results that the left side could take"
            hint = f"it changes its inout parameters: {name}(...) is the whole statement"
        raise self._error("PF230", message, self.group.span, hint)

    def _meant(self) -> str | None:
        """A hint for a name that there is not."""
        count = len(self.call.args) + len(self.call.keywords)
        operators = [op.name for p in self.ctx.library.programs for op in p.ops if _takes(op, count)]
        others = (*operators, *self.ctx.library.functions_of(count))
        return function_meant(self.call.callee, [e.span.text for e in self.call.args], others)

    def _bind(self, op: ast.OpDef) -> list[tuple[ast.Param, ast.Expr | None]]:
        """Every parameter with its argument; None for its default."""
        given: dict[str, ast.Expr] = {}
        names = [p.name for p in op.params]
        numbers = [x.name for x in op.size_parameters]
        if len(self.call.args) > len(names):
            takes = f"{len(names)} argument{'s' * (len(names) != 1)}"
            message = f"'{op.name}' takes {takes}, got {len(self.call.args)}"
            form = f"{op.name}({', '.join((*names, *(f'{n}=...' for n in numbers)))})"
            raise self._error("PF203", message, self.call.span, form)
        given.update(zip(names, self.call.args, strict=False))
        for name, e in self.call.keywords:
            if name in numbers:
                continue
            if name not in names:
                known = (*names, *numbers)
                hint = self.ctx.diags.looked_up(len(known), partial(did_you_mean, name, known))
                if hint is None and name in size_names(op):
                    hint = f"to be given, it is declared so: op {op.name}[{name}: size](...)"
                hint = hint or f"it takes {', '.join(known)}"
                raise self._error("PF203", f"'{op.name}' has no parameter '{name}'", e.span, hint)
            if name in given:
                raise self._error("PF203", f"'{name}' is given twice", e.span)
            given[name] = e
        missing = [p.name for p in op.params if p.name not in given and p.default is None and not p.optional]
        if missing:
            names_text = ", ".join(f"'{n}'" for n in missing)
            hint = f"{op.name}({', '.join(names)})"
            raise self._error("PF203", f"'{op.name}' also needs {names_text}", self.call.span, hint)
        return [(p, given.get(p.name)) for p in op.params]

    def _given_sizes(self, op: ast.OpDef) -> GivenSizes:
        """The size parameters among the keywords: expressions of the caller's sizes."""
        mine = {x.name for x in op.size_parameters}
        found: dict[str, tuple[IndexExpr, Span]] = {}
        for name, e in self.call.keywords:
            if name not in mine:
                continue
            if name in found:
                raise self._error("PF203", f"'{name}' is given twice", e.span)
            value = size_expr(e, self.scope.sizes, self.ctx.diags, f"the size '{name}'", self.scope.owner)
            if value is None:
                raise CallError
            if not require_size(self.ctx, name, op.name, value, e.span):
                raise CallError
            found[name] = simplify(value), e.span
        return found

    def _classify(self, p: ast.Param, e: ast.Expr | None) -> _Argument:
        if e is None:
            return _Argument(p, None)
        if self._is_none(e):
            message = f"'{p.name}' of '{self.call.callee}' is not optional, and its argument may be absent"
            raise self._error("PF249", message, e.span, f"declare it {p.name}: {p.type.span.text}?")
        old = read_at_entry(e)
        if isinstance(old, ast.Name) and not p.inout and old.id in self.scope.inouts:
            e = old
        if isinstance(e, ast.Name) and e.id not in self.scope.sizes and not self.scope.names_constant(e.id):
            info = self.scope.reads.get(e.id)
            if info is None:
                if not self.ctx.diags.is_first(e.id, self.scope.owner):
                    raise CallError
                rank = None if _splats(p) else len(p.type.extents)
                hint = self.scope.unknown_hint(e.id, self.ctx.diags, rank)
                raise self._error("PF201", f"unknown name '{e.id}'", e.span, hint)
            if p.type.extents or (info.rank == 0 and info.constant is None and self._same(p, info)):
                return _Argument(p, e, info, info.ty)
        if p.type.extents:
            raise self._error(
                "PF204",
                f"'{p.name}' of '{self.call.callee}' is a tensor; its argument must be a tensor's name",
                e.span,
                f"write {e.name}, the whole tensor"
                if isinstance(e, ast.Subscript) and all(isinstance(i, ast.Name) for i in e.indices)
                else "give the expression a name in a statement of its own",
            )
        typer = Typer(self.scope, self.ctx.library, self.ctx.diags)
        before = self.ctx.diags.errors_seen
        ty = typer.infer(e)
        if self.ctx.diags.errors_seen > before or ty.is_unknown:
            raise CallError
        return _Argument(p, e, None, ty)

    def _same(self, p: ast.Param, info: TensorInfo) -> bool:
        return p.type.dtype not in BY_NAME or BY_NAME[p.type.dtype] is info.dtype

    # --- monomorphisation ------------------------------------------------------------------------------

    def _generics(self, op: ast.OpDef, arguments: list[_Argument]) -> dict[str, DType]:
        """What the arguments' types meet in; f16 beside computed f32 is f32, as in expressions."""
        kinds = {x.name: x.kind for x in op.dtype_generics}
        found: dict[str, Ty] = {}
        because: dict[str, _Argument] = {}
        for a in arguments:
            name = a.param.type.dtype
            if name not in kinds or a.ty is None or a.ty.is_weak:
                continue
            dtype = a.ty.dtype or F32
            if dtype not in GENERIC_KINDS.get(kinds[name], ()):
                allowed = ", ".join(map(str, GENERIC_KINDS.get(kinds[name], ())))
                message = f"'{a.param.name}' of '{op.name}' is {dtype}, but {name} is one of {allowed}"
                raise self._error("PF205", message, a.span)
            met = agree(found.get(name, BOTTOM), a.ty)
            if met is None:
                other = because[name]
                raise self._error(
                    "PF231",
                    f"'{op.name}' needs '{other.param.name}' and '{a.param.name}' of one dtype ({name}),"
                    f" got {found[name]} and {dtype}",
                    a.span,
                    f"declare the argument, as in let s: {dtype}[...], or cast it before",
                )
            found[name] = met
            because.setdefault(name, a)
        self.soft = {n for n, t in found.items() if t is SOFT}
        chosen = {n: t.dtype or F32 for n, t in found.items()}
        return {n: chosen.get(n, BY_NAME[representative(k)]) for n, k in kinds.items()}

    def _ranks(self, op: ast.OpDef, arguments: list[_Argument]) -> dict[str, int]:
        found: dict[str, int] = {}
        because: dict[str, str] = {}
        for a in sorted(arguments, key=lambda a: len({e.id for e in _splats(a.param)})):
            splats = [e.id for e in _splats(a.param)]
            if a.info is None or a.info.rank is None:
                continue
            rest = (
                a.info.rank - (len(a.param.type.extents) - len(splats)) - sum(found.get(s, 0) for s in splats)
            )
            open_ = sorted({s for s in splats if s not in found})
            if len(open_) == 1 and rest >= 0 and rest % splats.count(open_[0]) == 0:
                found[open_[0]] = rest // splats.count(open_[0])
                because[open_[0]] = a.param.name
            elif rest != 0 or open_:
                kind = a.param.type.span.text
                fixed = [f"'{because[s]}' has {s}... of length {found[s]}" for s in splats if s in because]
                hint = "; ".join(dict.fromkeys(fixed)) or None
                message = f"'{a.param.name}' of '{op.name}' is {kind}, its argument has {axes(a.info.rank)}"
                raise self._error("PF204", message, a.span, hint)
        return {v: found.get(v, 0) for v in rank_variables(op)}

    def _check_dtypes(self, op: ast.OpDef, mono: ast.OpDef, arguments: list[_Argument]) -> None:
        bad = False
        for p, a in zip(mono.params, arguments, strict=True):
            dtype = BY_NAME.get(p.type.dtype)
            widened = a.param.type.dtype in self.soft and a.info is not None and a.info.dtype.compute is F32
            if dtype is None:
                bad = True
            elif widened:
                pass
            elif a.info is not None and a.info.dtype is not dtype:
                message = f"'{p.name}' of '{op.name}' is {dtype}, its argument is {a.info.dtype}"
                self._error("PF205", message, a.span, f"cast it first: t[...] = {dtype}(...)")
                bad = True
            elif a.info is None and a.ty is not None and not assignable(a.ty, dtype):
                message = f"'{p.name}' of '{op.name}' is {dtype}, its argument is {a.ty}"
                self._error("PF205", message, a.span, f"cast it: {dtype}(...)")
                bad = True
        if bad:
            raise CallError

    # --- scalars, inouts, results, constraints -----------------------------------------------------------

    def _scalar(self, p: ast.Param, a: _Argument, prefix: str) -> TensorInfo:
        """A scalar argument: a constant in place, or a rank-0 temp."""
        dtype = BY_NAME[p.type.dtype]
        name = self.ctx.tensor_names.fresh(prefix + p.name)
        info = TensorInfo(name, g.Role.TEMP, hard(dtype), 0, (), a.span, inlined=True)
        info.total = info.declared = True
        value: g.Expr
        if a.expr is None:
            assert p.default is not None
            literal = default_value(p.default, info, self.ctx)
            if literal is None:
                raise CallError
            value = g.Const(literal, dtype.compute, a.span)
        else:
            typer = Typer(self.scope, self.ctx.library, self.ctx.diags)
            typer.infer(a.expr)
            builder = ExprBuilder(self.ctx, self.scope, typer, name, extract)
            try:
                value = builder.stored(a.expr, dtype.compute)
            except BuildError:
                raise CallError from None
        if is_index_number(value) and dtype.compute is dtype:
            info.constant = value
            return info
        value = value if dtype.compute is dtype else g.Cast(value, dtype, a.span)
        self.ctx.new_info(info)
        statement = self.ctx.statement_names.fresh(name, joint="__")
        self.ctx.statements.append(g.Statement(statement, name, (), (), value, span=a.span))
        return info

    def _inouts(self, mono: ast.OpDef, arguments: list[_Argument], inner: Scope) -> None:
        """An inout argument must be an inout parameter of the caller that nothing else writes."""
        names = frozenset(p.name for p in mono.params if p.inout)
        inner.inouts = names
        for p, a in zip(mono.params, arguments, strict=True):
            if not p.inout:
                continue
            name = a.expr.id if isinstance(a.expr, ast.Name) else ""
            if name not in self.scope.inouts:
                hint = "only an inout parameter of the calling operator can be updated in place"
                raise self._error("PF229", f"'{p.name}' of '{mono.name}' is inout", a.span, hint)
            if name in self.scope.updated:
                raise self._error("PF209", f"'{name}' is written elsewhere too", a.span)
            self.scope.updated.add(name)
            if name not in self.scope.writes:
                entry = next(q for q in self.scope.op.params if q.name == name)
                declare_inout(entry, self.scope, self.ctx)
            inner.writes[p.name] = self.scope.writes[name]

    def _results(self, op: ast.OpDef, mono: ast.OpDef, inner: Scope) -> list[tuple[TensorInfo, TensorInfo]]:
        """Bind results to targets; returns pairs of an f32 temp and the 16-bit target it is rounded to."""
        ok, rounded = True, []
        for written, r, target in zip(op.results, mono.results, self.group.targets, strict=True):
            info = self.scope.writes[target]
            soft = written.type.dtype in self.soft
            into = info
            if soft and info.declared and not info.failed and info.dtype in (F16, BF16):
                name = self.ctx.tensor_names.fresh(inner.prefix + r.name)
                into = self.ctx.new_info(TensorInfo(name, g.Role.TEMP, span=self.group.span, inlined=True))
                into.ty, into.shape, into.rank, into.declared = SOFT, info.shape, info.rank, True
                rounded.append((into, info))
            ok &= check_result(self.ctx, inner, r, into, (target, soft), self.group.span)
            inner.reads[r.name] = inner.writes[r.name] = into
        if not ok:
            raise CallError
        return rounded

    def _constraints(self, mono: ast.OpDef, inner: Scope) -> None:
        for e in mono.where:
            for c in constraints_of(e, inner.sizes, self.ctx.diags, inner.owner):
                if not self.ctx.assume(c):
                    message = f"'{mono.name}' needs {e.span.text}, here {c.left} {c.op} {c.right}"
                    raise self._error("PF221", message, self.call.span)


def _takes(op: ast.OpDef, count: int) -> bool:
    """Can the operator be called with so many arguments?"""
    return sum(p.default is None for p in op.params) <= count <= len(op.params)


def _splats(p: ast.Param) -> list[ast.Splat]:
    return [e for e in p.type.extents if isinstance(e, ast.Splat)]
