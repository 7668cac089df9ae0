"""Every name of a program: its place, its kind, and the part of the program in which it is the same thing.

    op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + sum[k](x[k]) }

Here x, y and N belong to the operator, i to the statement and k to the reduction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeGuard

from polyfuse.frontend_dsl.semantics.signature import size_names
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import children, walk
from polyfuse.frontend_dsl.syntax.names import CONSTANTS, is_builtin
from polyfuse.source import Span


class Kind(Enum):
    """What a name stands for."""

    OPERATOR = "operator"
    FUNCTION = "function"
    TENSOR = "tensor"
    SIZE = "size"
    GENERIC = "generic"
    VARIABLE = "variable"


@dataclass(frozen=True)
class Symbol:
    """A name at a place. Symbols of one name, kind and scope are one thing.

    `scope` is the place of the operator, statement or reduction that it belongs to, None for operators.
    """

    name: str
    kind: Kind
    scope: int | None
    span: Span
    declares: bool = False

    def is_same(self, other: Symbol) -> bool:
        """Whether both mean one thing."""
        return (self.name, self.kind, self.scope) == (other.name, other.kind, other.scope)


def symbols(program: ast.Program) -> tuple[Symbol, ...]:
    """All names of a program, in the order of the text."""
    found = [s for op in program.ops for s in _Operator(op).symbols()]
    return tuple(sorted(found, key=lambda s: s.span.start))


def at(found: Iterable[Symbol], offset: int) -> Symbol | None:
    """The name at a place; between two, the one that ends there."""
    return next((s for s in found if s.span.start <= offset <= s.span.end), None)


_Bound = Mapping[str, int]


class _Operator:
    """The names of one operator."""

    def __init__(self, op: ast.OpDef) -> None:
        self.op = op
        self.scope = op.span.start
        self.generics = {g.name for g in op.generics}
        self.sizes = set(size_names(op)) | {g.name for g in op.generics if g.kind == "size"}
        self.tensors = {p.name for p in (*op.params, *op.results)} | {t for s in op.body for t in targets(s)}

    def symbols(self) -> Iterator[Symbol]:
        op = self.op
        yield Symbol(op.name, Kind.OPERATOR, None, op.name_span, True)
        for g in op.generics:
            kind = Kind.SIZE if g.kind == "size" else Kind.GENERIC
            yield self._own(g.name, kind, _start(g.span, g.name), True)
            if g.default is not None:
                yield from self._names(g.default, {}, 0)
        for p in (*op.params, *op.results):
            yield self._own(p.name, Kind.TENSOR, p.name_span, True)
            yield from self._type(p.type)
        for e in op.where:
            yield from self._names(e, {}, 0)
        for s in op.body:
            yield from self._statement(s)

    def _own(self, name: str, kind: Kind, span: Span, declares: bool = False) -> Symbol:
        return Symbol(name, kind, self.scope, span, declares)

    def _type(self, t: ast.TensorType) -> Iterator[Symbol]:
        if t.dtype in self.generics:
            yield self._own(t.dtype, Kind.GENERIC, t.dtype_span)
        for e in t.extents:
            if isinstance(e, ast.Splat):
                yield self._own(e.id, Kind.SIZE, _start(e.span, e.id), True)
            else:
                yield from self._names(e, {}, 0)

    def _statement(self, s: ast.Stmt) -> Iterator[Symbol]:
        here = s.span.start
        match s:
            case ast.Define():
                yield self._own(s.target, Kind.TENSOR, s.target_span, True)
                left = s.indices or ()
                parts = [x for e in left for x in (walk(e) if s.op == "=" else (e,))]
                names = [e.id for e in parts if isinstance(e, ast.Splat) or self._is_variable(e)]
                bound = dict.fromkeys((*names, *(r.var for r in s.ranges)), here)
                for r in s.ranges:
                    yield Symbol(r.var, Kind.VARIABLE, here, _start(r.span, r.var), True)
                bounds = [e for r in s.ranges for e in (r.lower, r.upper) if e is not None]
                for e in (*left, s.value, *bounds):
                    yield from self._names(e, bound, here)
            case ast.Let():
                yield self._own(s.name, Kind.TENSOR, s.name_span, True)
                yield from self._type(s.type)
                if s.value is not None:
                    yield from self._names(s.value, {}, here)
            case ast.CallStmt():
                for name, span in zip(s.targets, s.target_spans, strict=True):
                    yield self._own(name, Kind.TENSOR, span, True)
                yield from self._names(s.call, {}, here)

    def _names(self, e: ast.Expr, bound: _Bound, statement: int) -> Iterator[Symbol]:
        """The names of an expression; `bound` has the scopes of variables, `statement` that of all others."""
        waiting: list[tuple[ast.Expr, _Bound]] = [(e, bound)]
        while waiting:
            x, known = waiting.pop()
            match x:
                case ast.Name(name) if name not in CONSTANTS or name in known:
                    yield self._name(name, x.span, known, statement)
                case ast.Splat(name):
                    scope = known.get(name, statement)
                    yield Symbol(name, Kind.VARIABLE, scope, _start(x.span, name))
                case ast.Subscript(name):
                    yield self._own(name, Kind.TENSOR, x.name_span)
                case ast.Call(name):
                    yield Symbol(
                        name, Kind.FUNCTION if is_builtin(name) else Kind.OPERATOR, None, x.callee_span
                    )
                case ast.Reduce():
                    inner = {**known, **{v.var: x.span.start for v in x.vars}}
                    for v in x.vars:
                        yield Symbol(v.var, Kind.VARIABLE, x.span.start, _start(v.span, v.var), True)
                    waiting += [(c, inner) for c in children(x)]
                    continue
            waiting += [(c, known) for c in children(x)]

    def _is_variable(self, e: ast.Expr) -> TypeGuard[ast.Name]:
        return isinstance(e, ast.Name) and e.id not in self.sizes

    def _name(self, name: str, span: Span, bound: _Bound, statement: int) -> Symbol:
        if name in bound:
            return Symbol(name, Kind.VARIABLE, bound[name], span)
        if name in self.sizes:
            return self._own(name, Kind.SIZE, span)
        if name in self.tensors:
            return self._own(name, Kind.TENSOR, span)
        return Symbol(name, Kind.VARIABLE, statement, span)


def targets(s: ast.Stmt) -> tuple[str, ...]:
    """Tensors that a statement defines or declares."""
    match s:
        case ast.Define():
            return (s.target,)
        case ast.Let():
            return (s.name,)
        case ast.CallStmt():
            return s.targets


def _start(span: Span, name: str) -> Span:
    """The place of a name with which a part of the text begins."""
    return Span(span.source, span.start, span.start + len(name))
