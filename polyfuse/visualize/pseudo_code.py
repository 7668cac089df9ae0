"""A schedule as readable loops.

    for t in 0..64:  # parallel
      for h in 0..128:  # a reduction: any order
        m[t] max= x[t, h]
      for h in 0..128:  # parallel
        e[t, h] = exp(x[t, h] - m[t])

Loops have the names that the schedule's primitives take.  A statement has its name in front where that is not
the name of its tensor.  What stands in an index says which instance runs in which iteration: ``b[i - 1]`` in
a loop over i is a statement that was shifted by one.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, substitute
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import Block, Exec, For, If, Node
from polyfuse.ir.schedule_tree import Member, Tree, path, word_of
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Expr,
    Index,
    IndexValue,
    TensorGraph,
    format_expr,
    format_index,
    map_expr,
    map_index,
)

Names = Mapping[str, IndexExpr]

# Reductions that have a sign of their own; of the others `f=` is written.
_SIGNS = {"sum": "+=", "prod": "*="}


def pseudo_code(graph: TensorGraph, tree: Tree, loops: Block) -> str:
    """The text of a tree's loops, as `poly.ast_build` makes them (`c0` is the outermost loop)."""
    return "\n".join(_Printer(graph, tree).block(loops, "", {}))


class _Printer:
    def __init__(self, graph: TensorGraph, tree: Tree) -> None:
        self.graph = graph
        self.tree = tree

    def block(self, nodes: Block, indent: str, names: Names) -> list[str]:
        return [line for node in nodes for line in self.node(node, indent, names)]

    def node(self, node: Node, indent: str, names: Names) -> list[str]:
        match node:
            case For(var, lower, upper, _, body):
                m = self._member(_first(body), int(var[1:]))
                bounds = "..".join(str(_plain(substitute(e, names))) for e in (lower, upper))
                head = f"{indent}for {m.name} in {bounds}:  # {_word(m, self.graph)}"
                return [head, *self.block(body, indent + "  ", {**names, var: IVar(m.name)})]
            case If(cond, then, other):
                lines = [f"{indent}if {_condition(cond, names)}:"]
                lines += self.block(then, indent + "  ", names)
                lines += [f"{indent}else:", *self.block(other, indent + "  ", names)] if other else []
                return lines
            case Exec(name, args):
                values = [_plain(substitute(a, names)) for a in args]
                return [indent + self._statement(name, values)]
            case _:
                raise AssertionError(f"no part of a schedule: {node}")

    def _member(self, statement: str, depth: int) -> Member:
        return [m for m in path(self.tree, statement) if isinstance(m, Member)][depth]

    def _statement(self, name: str, values: list[IndexExpr]) -> str:
        s = self.graph.statement(name)
        env = {d.name: v for d, v in zip(s.dims, values, strict=True)}
        indices = ", ".join(format_index(_index(i, env)) for i in s.write)
        sign = "=" if s.reduction is None else _SIGNS.get(s.reduction, f"{s.reduction}=")
        value = format_expr(_at(s.expr, env))
        inner = value[1:-1] if value.startswith("(") and _closes_last(value) else value
        text = f"{s.target}[{indices}] {sign} {inner}"
        return text if name == s.target else f"{name}: {text}"


def _first(block: Block) -> str:
    """A statement in a loop."""
    for node in block:
        match node:
            case Exec(name):
                return name
            case For(_, _, _, _, body):
                return _first(body)
            case If(_, then, other):
                return _first(then or other)
    raise AssertionError("a loop without statements")


def _word(m: Member, graph: TensorGraph) -> str:
    word = word_of(m, graph)
    return "in order" if word == "ordered" else word.replace("reduction (any order)", "a reduction: any order")


_WORDS = {"le": "<=", "lt": "<", "ge": ">=", "gt": ">", "eq": "==", "and": "and", "or": "or"}


def _condition(e: Expr, names: Names) -> str:
    match e:
        case Apply(op, (left, right)):
            return f"{_condition(left, names)} {_WORDS[op]} {_condition(right, names)}"
        case IndexValue(index):
            return str(_plain(substitute(index, names)))
        case _:
            return format_expr(e)


def _plain(e: IndexExpr) -> IndexExpr:
    """`7 + 1` as 8, `min(7, i) + 1` as `min(8, i + 1)`."""
    match e:
        case IBin("+", IBin("min" | "max" as op, left, right), IConst() as more):
            return IBin(op, _plain(binary("+", left, more)), _plain(binary("+", right, more)))
        case _:
            return linear(e).expr()


def _index(i: Index, env: Names) -> Index:
    return _at(i, env) if isinstance(i, EXPR_TYPES) else _plain(substitute(i, env))


def _at(e: Expr, env: Names) -> Expr:
    return map_expr(e, lambda x: x, lambda i: _plain(substitute(i, env)))


def _closes_last(text: str) -> bool:
    """Does the first bracket of a text close at its end?"""
    depth = 0
    for k, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if depth == 0:
            return k == len(text) - 1
    return False
