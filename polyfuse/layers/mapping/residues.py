"""Loops whose iterations differ by `d % 2` are split: an iteration does one of each kind.

    B(d in 0..2D)[ y[d] = x[d] * c[d // 2] - x[d + 1] * s[d // 2] if d % 2 == 0 else x[d - 1] ]
becomes
    B(d in 0..D)[ y[2*d] = x[2*d] * c[d] - x[2*d + 1] * s[d];   y[2*d + 1] = x[2*d] ]

Elements in turn are vectors then (`codegen.cuda.interleaved`), and there is no condition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.linear import simplify
from polyfuse.ir.schedule_tree import Band, Leaf, Member, Sequence, Tree, members_of, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    IndexValue,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
    map_expr,
    map_index,
    statement_reads,
    walk,
)
from polyfuse.layers.graph.cleanup.folding import constant_value, fold_node
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.mapping.nests import NEAR, dim_of, innermost, vector_width


def split_residues(graph: TensorGraph, tree: Tree, decisions: list[Decision]) -> tuple[TensorGraph, Tree]:
    """The graph with a statement for each remainder, where longer vectors come of it, and their tree."""
    for b in innermost(tree):
        for m in b.members if _alone(graph, statements(b)) else ():
            count = _divisor(graph, m, members_of(tree))
            if count is None:
                continue
            names = {n: _names(graph, n, count) for n in statements(b)}
            made, after = _split(graph, m, names, count), _renamed(m, names)
            parts = tuple(p for found in names.values() for p in found)
            if vector_width(graph, m, statements(b)) >= vector_width(made, after, parts):
                continue
            graph, tree = made, _with_parts(tree, names)
            why = f"one of {count} iterations of {m.name} is like the next one: they go together"
            decisions.append(Decision("split loop", ", ".join(names), True, why))
            break  # the other loops of the band are those of other statements now
    return graph, tree


def _divisor(graph: TensorGraph, m: Member, every: list[Member]) -> int | None:
    """By what indices divide the iterations of a loop, if all of its statements can be split by that.

    Not those that sum up: their totals would be parts of one tensor, and in no register.
    """
    divisors: set[int] = set()
    lengths: list[int] = []
    for n, e in m.exprs:
        s = graph.statement(n)
        dim = dim_of(s, e.name) if isinstance(e, IVar) else None
        if dim is None or dim.lower != IConst(0) or not isinstance(dim.upper, IConst):
            return None
        asked = [x for o in every if o is not m for k, x in o.exprs if k == n]
        asked += [x for d in s.dims for x in (d.lower, d.upper)]
        if s.reduction is not None or any(dim.name in variables(x) for x in asked):
            return None
        lengths.append(dim.upper.value)
        divisors |= {c for i in _indices(s) for c in _divisors(i, dim.name)}
    count = math.lcm(*divisors) if m.coincident else 1
    return count if 1 < count <= NEAR and not any(n % count for n in lengths) else None


def _alone(graph: TensorGraph, names: tuple[str, ...]) -> bool:
    """Do no other statements touch the temporaries of these: a row that threads keep, above all?"""
    touched = {t for n in names for t in (graph.statement(n).target, *_tensors(graph.statement(n)))}
    temporary = (t for t in touched if graph.tensor(t).role is Role.TEMP)
    return all(s.name in names for t in temporary for s in (*graph.writers(t), *graph.readers(t)))


def _tensors(s: Statement) -> set[str]:
    return {r.tensor for r in statement_reads(s)}


def _indices(s: Statement) -> Iterator[IndexExpr]:
    for e in (s.expr, *(i for i in s.write if isinstance(i, EXPR_TYPES))):
        for x in walk(e):
            if isinstance(x, IndexValue):
                yield x.index
            elif isinstance(x, Read):
                yield from (i for i in x.indices if not isinstance(i, EXPR_TYPES))


def _divisors(e: IndexExpr, dim: str) -> Iterator[int]:
    if isinstance(e, IBin):
        if e.op in ("//", "%") and isinstance(e.right, IConst) and dim in variables(e.left):
            yield e.right.value
        yield from _divisors(e.left, dim)
        yield from _divisors(e.right, dim)


# --- the parts --------------------------------------------------------------------------------------------


def _names(graph: TensorGraph, name: str, count: int) -> tuple[str, ...]:
    return (name, *(fresh_name(graph, f"{name}__{k}") for k in range(1, count)))


def _split(graph: TensorGraph, m: Member, names: Mapping[str, tuple[str, ...]], count: int) -> TensorGraph:
    made: list[Statement] = []
    for s in graph.statements:
        e = m.of(s.name) if s.name in names else None
        parts = names.get(s.name, ())
        made += [_part(s, e.name, n, k, count) for k, n in enumerate(parts)] if isinstance(e, IVar) else [s]
    return replace(graph, statements=tuple(made))


def _part(s: Statement, dim: str, name: str, rest: int, count: int) -> Statement:
    """The iterations of a statement with one remainder."""
    env = {dim: binary("+", binary("*", IVar(dim), count), rest)}
    ranges = {
        d.name: (0, d.upper.value // count - 1 if d.name == dim else d.upper.value - 1)
        for d in s.dims
        if d.lower == IConst(0) and isinstance(d.upper, IConst)
    }

    def index(i: IndexExpr) -> IndexExpr:
        return simplify(substitute(i, env), ranges) if dim in variables(i) else i

    def chosen(e: Expr) -> Expr:
        made = fold_node(e) if e.dtype.is_bool else e
        if isinstance(made, Select) and (value := constant_value(made.cond)) is not None:
            return made.then if value else made.other
        return made

    def bounds(d: IterDim) -> IterDim:
        short = d.name == dim and isinstance(d.upper, IConst)
        return replace(d, upper=binary("//", d.upper, count)) if short else d

    write = tuple(map_index(i, lambda e: map_expr(e, chosen, index), index) for i in s.write)
    dims = tuple(map(bounds, s.dims))
    return replace(s, name=name, dims=dims, write=write, expr=map_expr(s.expr, chosen, index))


def _renamed(m: Member, names: Mapping[str, tuple[str, ...]]) -> Member:
    exprs = ((p, e) for n, e in m.exprs for p in names.get(n, (n,)))
    return replace(m, exprs=tuple(sorted(exprs, key=lambda x: x[0])))


def _with_parts(tree: Tree, names: Mapping[str, tuple[str, ...]]) -> Tree:
    match tree:
        case Leaf(name):
            return Sequence(tuple(map(Leaf, names[name]))) if name in names else tree
        case Sequence(children):
            parts: list[Tree] = []
            for c in children:
                new = _with_parts(c, names)
                parts += new.children if isinstance(new, Sequence) else (new,)
            return Sequence(tuple(parts))
        case Band(members, child, permutable):
            return Band(tuple(_renamed(m, names) for m in members), _with_parts(child, names), permutable)
