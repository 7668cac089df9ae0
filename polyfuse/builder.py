"""Programs written in Python: loops over layers or tensors that make the tree the text would give.

    import polyfuse as pf

    b = pf.ProgramBuilder()
    f = b.op("sgd_all")
    lr = f.param("lr", "f32")
    for k, shape in enumerate([(64, 64), (64,)]):
        p, g = f.inout(f"p{k}", "f32", shape), f.param(f"g{k}", "f32", shape)
        f.call("sgd", p, g, lr)
    program = b.program()

No text is made on the way: `tree()` is the syntax tree, `program()` what `parse` would give for it, and
``str(b)`` prints it through the formatter.
"""

from __future__ import annotations

from collections.abc import Callable

from polyfuse.api import Program, checked, standard_programs
from polyfuse.frontend_dsl.builder.ops import OpBuilder, Tensor
from polyfuse.frontend_dsl.builder.values import (
    Expression,
    Function,
    Index,
    Operand,
    Value,
    checked_name,
    fn,
    here,
    literal,
    node_of,
    refuse,
    total,
    when,
)
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.formatter import format_program
from polyfuse.frontend_dsl.syntax.names import did_you_mean
from polyfuse.source import SourceText

__all__ = [
    "Expression",
    "Index",
    "OpBuilder",
    "ProgramBuilder",
    "Tensor",
    "Value",
    "fn",
    "literal",
    "total",
    "when",
]


class ProgramBuilder:
    """A program in the making; `program` gives what `parse` would give for its text, which ``str`` shows.

    Parameters
    ----------
    name
        What errors and pictures call the program.

    Examples
    --------
    >>> b = pf.ProgramBuilder()
    >>> f = b.op("twice")
    >>> x, y, i = f.param("x", "f32", "N"), f.result("y", "f32", "N"), f.index("i")
    >>> y[i] = x[i] + x[i]
    >>> print(b)
    op twice(x: f32[N]) -> (y: f32[N]) {
      y[i] = x[i] + x[i]
    }
    """

    def __init__(self, name: str = "<builder>") -> None:
        self.name = name
        self._ops: list[ast.OpDef | OpBuilder] = []
        self._functions: list[ast.FnDef] = []

    def op(self, name: str) -> OpBuilder:
        """Begin an operator of a `name`; it is complete when the program is taken. Raises DslError PF108,
        PF113."""
        made = OpBuilder(name, self._results_of)
        self._add(made)
        return made

    def function(self, name: str, params: str, body: Callable[..., Operand]) -> Function:
        """A function, which is called as those of `fn` are.

        Parameters
        ----------
        name
            What the program calls it.
        params
            Names of its parameters, separated by blanks.
        body
            A Python function of so many expressions: ``b.function("lerp", "a b t", lambda a, b, t: a + t * (b
            - a))``.

        Raises
        ------
        DslError
            PF108 for a name that is taken.
        """
        names = tuple(checked_name(p, "a parameter") for p in params.split())
        place = here()
        value = node_of(body(*(Value(ast.Name(p, place)) for p in names)))
        if any(f.name == name for f in self._functions):
            refuse(f"function '{name}' is defined twice", "rename one of them", "PF108")
        made = ast.FnDef(checked_name(name, "a function"), names, value, (place,) * len(names), place, place)
        self._functions.append(made)
        return Function(name)

    def include(self, program: Program) -> None:
        """Make the operators and functions of a `program`, and of the files that it imports, part of this
        one.

        Those of the standard library are there anyway.
        """
        for part in program.programs:
            if not part.source.name.startswith("stdlib/"):
                for op in part.ops:
                    self._add(op)
                self._functions += part.functions

    def _add(self, op: ast.OpDef | OpBuilder) -> None:
        if any(o.name == op.name for o in self._ops):
            refuse(f"operator '{op.name}' is defined twice", "rename one of them", "PF108")
        self._ops.append(op)

    def _results_of(self, callee: str) -> tuple[str, ...]:
        """Names of the results of an operator; own ones first, as in calls."""
        known: list[ast.OpDef | OpBuilder] = [*self._ops, *(o for p in standard_programs() for o in p.ops)]
        op = next((op for op in known if op.name == callee), None)
        if op is None:
            hint = (
                did_you_mean(callee, [o.name for o in known]) or "include(program) makes its operators known"
            )
            refuse(f"unknown operator '{callee}'", hint, "PF202")
        return op.results if isinstance(op, OpBuilder) else tuple(r.name for r in op.results)

    def tree(self) -> ast.Program:
        """The syntax tree, unchecked. Its places are those of the Python source."""
        ops = tuple(op.build() if isinstance(op, OpBuilder) else op for op in self._ops)
        return ast.Program(SourceText(self.name, ""), (), ops, (), tuple(self._functions))

    def program(self) -> Program:
        """The checked program. Raises DslError with everything that is wrong, at lines of Python."""
        return checked((self.tree(),))

    def __str__(self) -> str:
        """The program as text: parsed again, it gives an equal tree."""
        return format_program(self.tree())
