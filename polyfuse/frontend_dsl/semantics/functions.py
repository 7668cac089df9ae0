"""Functions, `fn silu(x) = x * sigmoid(x)`, put in the place of their calls before types are looked at.

    y[i] = silu(a[i]) + 1.0        becomes        y[i] = a[i] * sigmoid(a[i]) + 1.0

Arguments are put in unevaluated: each is one node, which the body may hold several times.  So a condition of
the body guards the reads of an argument, and the same function serves every dtype and rounds nowhere.  Places
in a body know the call (`CalledSpan`): errors show both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import children, rewrite, rewrite_ranges, walk
from polyfuse.frontend_dsl.syntax.build_ast import MAX_HEIGHT, levels_of
from polyfuse.frontend_dsl.syntax.names import (
    CONSTANTS,
    FROM_BITS,
    Library,
    did_you_mean,
    function_meant,
    is_builtin,
    is_reserved,
)
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.source import Span, called

MAX_NODES = 10_000
"""Nodes of an expression in which functions stand no more."""


def expanded(op: ast.OpDef, home: ast.Program, library: Library, diags: Diagnostics) -> ast.OpDef:
    """The operator without calls of functions."""
    if not library.has_functions:
        return op
    expander = _Expander(home, library, diags)
    body = tuple(map(expander.statement, op.body))
    return op if all(a is b for a, b in zip(body, op.body, strict=True)) else replace(op, body=body)


def check_functions(program: ast.Program, library: Library, diags: Diagnostics) -> None:
    """Report what is wrong with the functions of a file, called or not."""
    expander = _Expander(program, library, diags)
    for function in program.functions:
        expander.body_of(function, program)


@dataclass(eq=False)
class _Expander:
    """What is written in one file; bodies of other files have expanders of their own.

    `wrong` has an entry for each report, also of what was reported before.
    """

    home: ast.Program
    library: Library
    diags: Diagnostics
    chain: tuple[ast.FnDef, ...] = ()
    bodies: dict[int, ast.Expr | None] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def statement(self, s: ast.Stmt) -> ast.Stmt:
        match s:
            case ast.Define(_, None | (), "=", ast.Call() as call) if self._is_operator(call):
                return replace(s, value=self._arguments(call))
            case ast.Define(_, indices, _, value, ranges):
                left = None if indices is None else tuple(map(self.expr, indices))
                ranges = rewrite_ranges(ranges, self._node)
                return replace(s, indices=left, value=self.expr(value), ranges=ranges)
            case ast.Let(_, _, value):
                return s if value is None else replace(s, value=self.expr(value))
            case ast.CallStmt(_, call):
                return replace(s, call=self._arguments(call))

    def expr(self, e: ast.Expr) -> ast.Expr:
        """An expression without calls of functions; what is wrong is reported, and a number in its place."""
        return rewrite(e, self._node) if any(isinstance(x, ast.Call) for x in walk(e)) else e

    def body_of(self, function: ast.FnDef, home: ast.Program) -> ast.Expr | None:
        """The body without calls of other functions; None after a report."""
        if id(function) not in self.bodies:
            before = len(self.wrong)
            inner = replace(self, home=home, chain=(*self.chain, function))
            inner.check(function)
            body = inner.expr(function.body) if len(self.wrong) == before else None
            self.bodies[id(function)] = body if len(self.wrong) == before else None
        return self.bodies[id(function)]

    def _error(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        self.wrong.append(message)
        self.diags.error(code, message, span, hint)

    # --- calls ---------------------------------------------------------------------------------------

    def _is_operator(self, call: ast.Call) -> bool:
        """Is an operator of this name found before a function?"""
        return self.library.operator_first(call.callee, self.home)

    def _arguments(self, call: ast.Call) -> ast.Call:
        keywords = tuple((k, self.expr(v)) for k, v in call.keywords)
        return replace(call, args=tuple(map(self.expr, call.args)), keywords=keywords)

    def _node(self, e: ast.Expr) -> ast.Expr:
        found = self.library.find_function(e.callee, self.home) if isinstance(e, ast.Call) else None
        if not isinstance(e, ast.Call) or found is None:
            return e
        function, home = found
        count, body = len(function.params), None
        if e.keywords or len(e.args) != count:
            takes = f"takes {count} argument{'s' * (count != 1)}, got {len(e.args)}"
            message = f"{e.callee} {'takes no keyword arguments' if e.keywords else takes}"
            place = e.keywords[0][1].span if e.keywords else e.span
            self._error("PF203", message, place, f"{e.callee}({', '.join(function.params)})")
        elif any(function is f for f in self.chain):
            names = [f.name for f in self.chain]
            chain = " -> ".join((*names[names.index(function.name) :], function.name))
            self._error("PF212", f"recursive call: {chain}", e.callee_span)
        else:
            body = self.body_of(function, home)
        return ast.Number(0, "0", e.span) if body is None else self._substituted(function, body, e)

    def _substituted(self, function: ast.FnDef, body: ast.Expr, call: ast.Call) -> ast.Expr:
        given = dict(zip(function.params, call.args, strict=True))
        nodes, height = _measured(body, given)
        if nodes > MAX_NODES or height > MAX_HEIGHT:
            high = f"{MAX_HEIGHT} operators above one another"
            much = f"{MAX_NODES:,} nodes" if nodes > MAX_NODES else high
            message = f"with its functions written out, this expression has more than {much}"
            hint = "give a part of it a name in a statement of its own"
            self._error("PF246", message, call.span, hint)
            return ast.Number(0, "0", call.span)

        def put(e: ast.Expr) -> ast.Expr:
            if isinstance(e, ast.Name) and e.id in given:
                return given[e.id]
            at = called(e.span, call.span)
            if isinstance(e, ast.Name) and e.id in CONSTANTS:  # what else is called so there is not meant
                return ast.Number(CONSTANTS[e.id], e.id, at)
            if isinstance(e, ast.Call):
                return replace(e, span=at, callee_span=called(e.callee_span, call.span))
            return replace(e, span=at)

        return rewrite(body, put)

    # --- definitions ---------------------------------------------------------------------------------

    def check(self, function: ast.FnDef) -> None:
        """Report what is wrong with a definition wherever it is called."""
        name, seen = function.name, set[str]()
        if is_reserved(name):
            message = f"'{name}' is a built-in function and cannot be the name of a function"
            self._error("PF232", message, function.name_span)
        for p, span in zip(function.params, function.param_spans, strict=True):
            if p in seen:
                self._error("PF210", f"'{p}' is declared twice", span)
            seen.add(p)
        dtypes = [c.args[0] for c in walk(function.body) if isinstance(c, ast.Call) and _names_dtype(c)]
        for e in walk(function.body):
            if not any(e is d for d in dtypes):
                self._check_node(e, function)

    def _check_node(self, e: ast.Expr, function: ast.FnDef) -> None:
        hint = f"give it to '{function.name}' as an argument"
        match e:
            case ast.Subscript(name):
                message = f"a function has no tensors, '{name}' is none of its names"
                self._error("PF244", message, e.span, hint)
            case ast.Reduce(op) | ast.Call("old" | "position" as op):
                self._error("PF244", f"a function is a scalar expression, without {op}", e.span, hint)
            case ast.Name(name) if name not in function.params and name not in CONSTANTS:
                near = did_you_mean(name, (*function.params, *CONSTANTS))
                message = f"unknown name '{name}' in the function '{function.name}'"
                self._error("PF201", message, e.span, near or hint)
            case ast.Call(name) if not is_builtin(name) and not self.library.find_function(name, self.home):
                if self.library.find(name, self.home) is not None:
                    message = f"a function is a scalar expression, '{name}' is an operator"
                    self._error("PF244", message, e.callee_span, hint)
                    return
                functions = self.library.functions_of(len(e.args))
                meant = function_meant(name, [a.span.text for a in e.args], functions)
                self._error("PF202", f"unknown function '{name}'", e.callee_span, meant)
            case _:
                pass


def _names_dtype(call: ast.Call) -> bool:
    first = call.args[0] if call.callee == FROM_BITS and call.args else None
    return isinstance(first, ast.Name) and first.id in BY_NAME


def _measured(body: ast.Expr, given: Mapping[str, ast.Expr]) -> tuple[int, int]:
    """Nodes and height of a body with its arguments in place; a node that is shared counts each time."""
    known: dict[int, tuple[int, int]] = {}

    def measure(e: ast.Expr) -> tuple[int, int]:
        if isinstance(e, ast.Name) and e.id in given:
            return arguments[e.id]
        if id(e) not in known:
            parts = [measure(c) for c in children(e)]
            above = levels_of(e) if parts else 0
            known[id(e)] = 1 + sum(n for n, _ in parts), above + max((h for _, h in parts), default=0)
        return known[id(e)]

    arguments: dict[str, tuple[int, int]] = {}
    if given:
        arguments = {n: _measured(a, {}) for n, a in given.items()}
    return measure(body)
