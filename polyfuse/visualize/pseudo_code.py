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
from dataclasses import dataclass

from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, substitute
from polyfuse.ir.linear import Range, interval, linear, simplify
from polyfuse.ir.loop_ir import Block, Exec, For, If, Node
from polyfuse.ir.schedule_tree import Member, Tree, path, word_of
from polyfuse.ir.tensor_graph import (
    Apply,
    Const,
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
Ranges = Mapping[str, Range]

# Reductions that have a sign of their own; of the others `f=` is written.
_SIGNS = {"sum": "+=", "prod": "*="}


def pseudo_code(graph: TensorGraph, tree: Tree, loops: Block) -> str:
    """The text of a tree's loops, as `poly.ast_build` makes them (`c0` is the outermost loop)."""
    return "\n".join(_Printer(graph, tree).block(loops, "", {}, {}))


class _Printer:
    def __init__(self, graph: TensorGraph, tree: Tree) -> None:
        self.graph = graph
        self.tree = tree

    def block(self, nodes: Block, indent: str, names: Names, ranges: Ranges) -> list[str]:
        return [line for node in nodes for line in self.node(node, indent, names, ranges)]

    def node(self, node: Node, indent: str, names: Names, ranges: Ranges) -> list[str]:
        match node:
            case For(var, lower, upper, _, body):
                m = self._member(_first(body), int(var[1:]))
                first, end = (_plain(substitute(e, names), ranges) for e in (lower, upper))
                head = f"{indent}for {m.name} in {_text(first)}..{_text(end)}:  # {_word(m, self.graph)}"
                names = {**names, var: IVar(m.name)}
                low, high = interval(first, ranges), interval(end, ranges)
                if low is not None and high is not None:
                    ranges = {**ranges, m.name: (low[0], max(low[0], high[1] - 1))}
                return [head, *self.block(body, indent + "  ", names, ranges)]
            case If(cond, then, other):
                lines = [f"{indent}if {_condition(cond, names, ranges)}:"]
                lines += self.block(then, indent + "  ", names, ranges)
                rest = self.block(other, indent + "  ", names, ranges)
                return [*lines, f"{indent}else:", *rest] if other else lines
            case Exec(name, args):
                values = [substitute(a, names) for a in args]
                return [indent + self._statement(name, values, ranges)]
            case _:
                raise AssertionError(f"no part of a schedule: {node}")

    def _member(self, statement: str, depth: int) -> Member:
        return [m for m in path(self.tree, statement) if isinstance(m, Member)][depth]

    def _statement(self, name: str, values: list[IndexExpr], ranges: Ranges) -> str:
        s = self.graph.statement(name)
        env = {d.name: v for d, v in zip(s.dims, values, strict=True)}

        def index(i: IndexExpr) -> IndexExpr:
            return _Shown(_text(_plain(substitute(i, env), ranges)))

        def indices(i: Index) -> Index:
            return map_index(i, lambda x: map_expr(x, lambda y: y, index), index)

        sign = "=" if s.reduction is None else _SIGNS.get(s.reduction, f"{s.reduction}=")
        value = without_double_brackets(format_expr(map_expr(s.expr, _number, index)))
        place = ", ".join(format_index(indices(i)) for i in s.write)
        text = f"{s.target}[{place}] {sign} {value}"
        return text if name == s.target else f"{name}: {text}"


@dataclass(frozen=True, slots=True)
class _Shown(IVar):
    """An index as it is printed."""

    def __str__(self) -> str:
        return self.name


class _Word(str):
    """What is printed as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _number(e: Expr) -> Expr:
    """An index as a number, without the type that it is computed in."""
    return Const(_Word(e.index), e.dtype) if isinstance(e, IndexValue) and e.dtype is I64 else e  # type: ignore[arg-type]


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
    return (
        "in order" if word == "ordered" else word.replace("reduction (any order)", "a reduction: any order")
    )


_WORDS = {"le": "<=", "lt": "<", "ge": ">=", "gt": ">", "eq": "==", "and": "and", "or": "or"}


def _condition(e: Expr, names: Names, ranges: Ranges) -> str:
    match e:
        case Apply(op, (left, right)):
            sides = (_condition(x, names, ranges) for x in (left, right))
            return f" {_WORDS[op]} ".join(sides)
        case IndexValue(index):
            return _text(_plain(substitute(index, names), ranges))
        case _:
            return format_expr(e)


def _plain(e: IndexExpr, ranges: Ranges) -> IndexExpr:
    """`7 + 1` as 8, `min(7, i) + 1` as `min(8, i + 1)`."""
    match e:
        case IBin("+", IBin("min" | "max" as op, left, right), IConst() as more):
            return simplify(IBin(op, binary("+", left, more), binary("+", right, more)), ranges)
        case _:
            return simplify(e, ranges)


def _text(e: IndexExpr) -> str:
    """An index with what is added first, what is taken away last: `8*i + j - 1`, `100 - i`."""
    match e:
        case IBin("min" | "max" as op, left, right):
            return f"{op}({_text(left)}, {_text(right)})"
        case IBin("+" | "-" | "*"):
            form = linear(e)
            terms = [(c, f"{abs(c)}*{a}" if abs(c) != 1 else str(a)) for a, c in form.terms]
            terms += [(form.constant, str(abs(form.constant)))] if form.constant else []
            ordered = sorted(terms, key=lambda t: t[0] < 0) or [(0, "0")]
            signs = ["-" if c < 0 else "+" for c, _ in ordered]
            first, *rest = (s + text for s, (_, text) in zip(signs, ordered, strict=True))
            return " ".join([first.lstrip("+"), *(f"{x[0]} {x[1:]}" for x in rest)])
        case _:
            return str(e)


def without_double_brackets(text: str) -> str:
    """`exp((x - m))` as `exp(x - m)`, `(a + b)` as `a + b`."""
    opened: list[int] = []
    closed: dict[int, int] = {}
    for k, c in enumerate(text):
        if c == "(":
            opened.append(k)
        elif c == ")":
            closed[opened.pop()] = k
    end = len(text) - 1
    double = {a for a, b in closed.items() if closed.get(a - 1) == b + 1 or (a, b) == (0, end)}
    gone = double | {closed[a] for a in double}
    return "".join(c for k, c in enumerate(text) if k not in gone)
