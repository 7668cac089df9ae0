"""From the parser's reductions to `ast` nodes, bottom up: no Lark tree is kept and nothing recurses.

`Builder` has one method per rule of the grammar; Lark calls it as soon as the rule is complete.
Expressions travel as `Part`: the node, the characters it covers *with* parentheses (so that the span
of ``(a + b) * c`` begins at the parenthesis while that of ``a + b`` does not), and its height, which
is bounded here because every later pass recurses over the tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from lark import Token

from polyfuse.diagnostics import DslError
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import walk
from polyfuse.source import SourceText, Span

MAX_HEIGHT = 200
"""Operators, calls and subscripts that may lie above one another in an expression.

A chain of n operators (``a + b + c`` has two) is n high.
"""


class SourceToken(Token):
    """A token that knows its source and the number of brackets open after it."""

    __slots__ = ("depth", "source")

    depth: int
    source: SourceText
    start_pos: int
    end_pos: int

    @property
    def span(self) -> Span:
        return Span(self.source, self.start_pos, self.end_pos)


@dataclass(slots=True)
class Part:
    """An expression under construction; `outer` includes parentheses around it."""

    node: ast.Expr
    outer: Span
    height: int = 0


@dataclass(slots=True)
class Keyword:
    """`name = value` among the arguments of a call."""

    name: SourceToken
    value: Part


@dataclass(slots=True)
class RangePart:
    """A `VarRange` and the height of its bounds."""

    node: ast.VarRange
    height: int = 0


Children: TypeAlias = list[Any]


def levels_of(e: ast.Expr) -> int:
    """How many operations lie above one another in a node alone: several in a chain or a minimum of many,
    two where an index is data, two for each index that may leave its axis."""
    match e:
        case ast.Subscript(_, indices) if any(isinstance(n, ast.Subscript) for i in indices for n in walk(i)):
            return 2
        case ast.Compare(_, ops):
            return len(ops)
        case ast.Padded(read):
            return 1 + 2 * len(read.indices)
        case ast.Call("min" | "max", args):
            return max(1, len(args) - 1)
        case _:
            return 1


def _grow(span: Span, *below: Part | RangePart, levels: int = 1) -> int:
    """The height of a node above `below`; too high is an error."""
    height = levels + max((part.height for part in below), default=0)
    if height > MAX_HEIGHT:
        raise DslError(
            f"this expression is nested too deep: more than {MAX_HEIGHT} operators, calls and subscripts"
            " lie above one another",
            code="PF103",
            span=Span(span.source, span.start, min(span.end, span.start + 60)),
            hint="give a part of it a name in a statement of its own, or write a long sum as a reduction",
        )
    return height


def _nodes(parts: list[Part] | None) -> tuple[ast.Expr, ...]:
    return tuple(part.node for part in parts or ())


class _Expressions:
    """The rules of expressions."""

    def number(self, children: Children) -> Part:
        token: SourceToken = children[0]
        text = str(token)
        value = float(text) if token.type == "FLOAT" else int(text, 0 if text[:2].lower() == "0x" else 10)
        return Part(ast.Number(value, text, token.span), token.span)

    def boolean(self, children: Children) -> Part:
        token: SourceToken = children[0]
        return Part(ast.BoolLit(token.type == "TRUE", token.span), token.span)

    def name(self, children: Children) -> Part:
        token: SourceToken = children[0]
        return Part(ast.Name(str(token), token.span), token.span)

    def splat(self, children: Children) -> Part:
        span = children[0].span.to(children[1].span)
        return Part(ast.Splat(str(children[0]), span), span)

    def indices(self, children: Children) -> list[Part]:
        return children

    def subscript(self, children: Children) -> Part:
        name, _, indices, close = children
        span = name.span.to(close.span)
        node = ast.Subscript(str(name), _nodes(indices), name.span, span)
        return Part(node, span, _grow(span, *indices, levels=levels_of(node)))

    def padded(self, children: Children) -> Part:
        name, _, indices, _, outside, close = children
        span = name.span.to(close.span)
        read = ast.Subscript(str(name), _nodes(indices), name.span, span)
        node = ast.Padded(read, outside.node, span)
        inner = _grow(span, *indices, levels=levels_of(read))
        return Part(node, span, _grow(span, Part(read, span, inner), outside, levels=levels_of(node)))

    def parenthesised(self, children: Children) -> Part:
        inner: Part = children[1]
        return Part(inner.node, children[0].span.to(children[2].span), inner.height)

    def unary(self, children: Children) -> Part:
        op, arg = children
        span = op.span.to(arg.outer)
        return Part(ast.Unary(str(op), arg.node, span), span, _grow(span, arg))

    def binary(self, children: Children) -> Part:
        left, op, right = children
        span = left.outer.to(right.outer)
        return Part(ast.Binary(str(op), left.node, right.node, span), span, _grow(span, left, right))

    def compare(self, children: Children) -> Part:
        operands: list[Part] = children[::2]
        span = operands[0].outer.to(operands[-1].outer)
        node = ast.Compare(_nodes(operands), tuple(str(op) for op in children[1::2]), span)
        return Part(node, span, _grow(span, *operands, levels=levels_of(node)))

    def conditional(self, children: Children) -> Part:
        then, cond, other = children
        span = then.outer.to(other.outer)
        node = ast.Conditional(cond.node, then.node, other.node, span)
        return Part(node, span, _grow(span, then, cond, other))

    def keyword(self, children: Children) -> Keyword:
        return Keyword(children[0], children[1])

    def arguments(self, children: Children) -> Children:
        return children

    def call(self, children: Children) -> Part:
        name, arguments, close = children
        args: list[Part] = []
        keywords: list[Keyword] = []
        for argument in arguments or ():
            if isinstance(argument, Keyword):
                keywords.append(argument)
            elif keywords:
                raise DslError(
                    "a positional argument may not follow a keyword argument",
                    code="PF101",
                    span=argument.outer,
                    hint=f"move it before '{keywords[0].name} = ...'",
                )
            else:
                args.append(argument)
        span = name.span.to(close.span)
        pairs = tuple((str(k.name), k.value.node) for k in keywords)
        node = ast.Call(str(name), _nodes(args), pairs, name.span, span)
        height = _grow(span, *args, *(k.value for k in keywords), levels=levels_of(node))
        return Part(node, span, height)

    def range(self, children: Children) -> RangePart:
        name, lower, upper = children
        span = name.span.to(upper.outer)
        node = ast.VarRange(str(name), lower.node, upper.node, False, span)
        return RangePart(node, max(lower.height, upper.height))

    def reduction_var(self, children: Children) -> RangePart:
        child = children[0]
        if isinstance(child, RangePart):
            return child
        return RangePart(ast.VarRange(str(child), None, None, False, child.span))

    def splat_var(self, children: Children) -> RangePart:
        span = children[0].span.to(children[1].span)
        return RangePart(ast.VarRange(str(children[0]), None, None, True, span))

    def reduction_vars(self, children: Children) -> Children:
        return children

    def reduction(self, children: Children) -> Part:
        name, variables, body, place, close = children
        span = name.span.to(close.span)
        over = tuple(v.node for v in variables)
        node = ast.Reduce(str(name), over, body.node, span, None if place is None else place.node)
        return Part(node, span, _grow(span, body, *([] if place is None else [place]), *variables))


class Builder(_Expressions):
    """The rules of types, statements and files; the method names are those of the grammar."""

    def type(self, children: Children) -> ast.TensorType:
        name, _, extents, close = children
        span = name.span.to(close.span) if close is not None else name.span
        return ast.TensorType(str(name), _nodes(extents), name.span, span)

    def literal(self, children: Children) -> ast.Expr:
        if len(children) == 1 or children[0] is None:
            node: ast.Expr = children[-1].node
            return node
        return ast.Unary("-", children[1].node, children[0].span.to(children[1].outer))

    def generic(self, children: Children) -> ast.Generic:
        name, kind, default = children
        span = name.span.to(kind.span if default is None else default.outer)
        node = None if default is None else default.node
        return ast.Generic(str(name), str(kind), node, name.span, span)

    def generics(self, children: Children) -> tuple[ast.Generic, ...]:
        return tuple(children)

    def param(self, children: Children) -> ast.Param:
        inout, name, type_, optional, default = children
        first = name if inout is None else inout
        last = optional or type_ if default is None else default
        span = first.span.to(last.span)
        return ast.Param(str(name), type_, inout is not None, default, name.span, span, optional is not None)

    def params(self, children: Children) -> tuple[ast.Param, ...]:
        return tuple(child for child in children if child is not None)

    def result(self, children: Children) -> ast.Param:
        name, type_ = children
        return ast.Param(str(name), type_, False, None, name.span, name.span.to(type_.span))

    def results(self, children: Children) -> tuple[ast.Param, ...]:
        return tuple(children)

    def where(self, children: Children) -> tuple[ast.Expr, ...]:
        return _nodes(children[1:])

    def ranges(self, children: Children) -> list[RangePart]:
        return children

    def define(self, children: Children) -> ast.Define:
        name, _, indices, _, op, value, ranges = children
        nodes = tuple(r.node for r in ranges or ())
        span = name.span.to(nodes[-1].span if nodes else value.outer)
        target = None if indices is None else _nodes(indices)
        return ast.Define(str(name), target, str(op), value.node, nodes, name.span, span)

    def let(self, children: Children) -> ast.Let:
        let, name, type_, value = children
        span = let.span.to(type_.span if value is None else value.outer)
        return ast.Let(str(name), type_, None if value is None else value.node, name.span, span)

    def call_statement(self, children: Children) -> ast.CallStmt:
        open_, *names, call = children
        names = [name for name in names if name is not None]
        span = open_.span.to(call.outer)
        return ast.CallStmt(tuple(map(str, names)), call.node, tuple(n.span for n in names), span)

    def bare_call(self, children: Children) -> ast.CallStmt:
        part: Part = children[0]
        assert isinstance(part.node, ast.Call)
        return ast.CallStmt((), part.node, (), part.outer)

    def body(self, children: Children) -> tuple[ast.Stmt, ...]:
        return tuple(c for c in children if isinstance(c, ast.Define | ast.Let | ast.CallStmt))

    def import_file(self, children: Children) -> ast.Import:
        return ast.Import(str(children[1])[1:-1], children[0].span.to(children[1].span))

    def op(self, children: Children) -> ast.OpDef:
        op, name, generics, params, results, where, body, close = children
        return ast.OpDef(
            str(name),
            generics or (),
            params,
            results or (),
            where or (),
            body,
            name.span,
            op.span.to(close.span),
        )

    def fn(self, children: Children) -> ast.FnDef:
        fn, name, *params, body = children
        params = [p for p in params if p is not None]
        spans = tuple(p.span for p in params)
        return ast.FnDef(
            str(name), tuple(map(str, params)), body.node, spans, name.span, fn.span.to(body.outer)
        )

    def program(self, children: Children) -> list[ast.Import | ast.OpDef | ast.FnDef]:
        return [c for c in children if isinstance(c, ast.Import | ast.OpDef | ast.FnDef)]
