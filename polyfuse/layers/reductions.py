"""Reductions made explicit: an initialising statement, ordered before the first reduction loop.

    sum:  s[t] = sum[h](x[t, h])          B(t)B(h)(sum)
becomes
    sum__init:  s[t] = 0
    sum:        s[t] sum= x[t, h]         B(t)[sum__init; B(h)(sum)]

From here on the schedule says when an accumulator starts, and legality checks it.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IVar, variables
from polyfuse.ir.schedule_tree import (
    Band,
    Leaf,
    Member,
    Sequence,
    Tree,
    band,
    path,
    sequence,
    statements,
)
from polyfuse.ir.tensor_graph import Const, Statement, TensorGraph
from polyfuse.layers.fresh import fresh_name


def explicit_reductions(graph: TensorGraph, trees: list[Tree]) -> tuple[TensorGraph, list[Tree]]:
    """Split every reduction that is not an accumulation already, in the graph and in the trees."""
    new: list[Statement] = []
    inits: dict[str, Statement] = {}
    for s in graph.statements:
        if s.reduction is None or s.accumulate:
            new.append(s)
            continue
        inits[s.name] = _init(graph, s)
        new += [inits[s.name], replace(s, accumulate=True)]
    if len(new) == len(graph.statements):
        return graph, trees
    for name, init in inits.items():
        trees = [_insert(t, graph.statement(name), init) if name in statements(t) else t for t in trees]
    return replace(graph, statements=tuple(new)), trees


def _init(graph: TensorGraph, s: Statement) -> Statement:
    assert s.reduction is not None
    dtype = graph.tensor(s.target).dtype
    value = Const(identity(s.reduction, dtype), dtype, s.span)
    outer = tuple(d for d in s.dims if not d.reduce)
    name = fresh_name(graph, f"{s.name}__init")
    return Statement(name, s.target, outer, s.write, value, span=s.span)


def _insert(t: Tree, s: Statement, init: Statement, around: tuple[Member, ...] = ()) -> Tree:
    """Put the initialisation before the first loop that runs over a reduction dim of `s`.

    `around` are the loops around `t`.  A leaf may lack loops that its initialisation needs: where a
    reduction is empty but for one of its elements, a schedule can do without.
    """
    match t:
        case Leaf():
            return sequence([_init_nest(init, around, ()), t])
        case Sequence(children):
            return sequence([_insert(c, s, init, around) if s.name in statements(c) else c for c in children])
        case Band(members, child, permutable):
            cut = next((k for k, m in enumerate(members) if _reduces(m, s)), None)
            outer = [_with_init(m, s, init) for m in members[:cut]]
            if cut is None:
                return band(outer, _insert(child, s, init, (*around, *outer)), permutable)
            inner = band(list(members[cut:]), child, permutable)
            within = tuple(m for m in path(inner, s.name) if isinstance(m, Member))
            loops = tuple(_with_init(m, s, init) for m in within if not _reduces(m, s))
            mixed = frozenset(v for m in within if _reduces(m, s) for v in variables(m.of(s.name)))
            nest = _init_nest(init, (*around, *outer), loops, mixed)
            return band(outer, sequence([nest, inner]), permutable)


def _reduces(m: Member, s: Statement) -> bool:
    """Does a loop run over a reduction dim? One that follows other dims only is outside the reduction."""
    return bool(set(variables(m.of(s.name))) & set(s.reduction_dims))


def _with_init(m: Member, s: Statement, init: Statement) -> Member:
    return replace(m, exprs=tuple(sorted([*m.exprs, (init.name, m.of(s.name))])))


def _init_nest(
    init: Statement, outer: tuple[Member, ...], loops: tuple[Member, ...], mixed: frozenset[str] = frozenset()
) -> Tree:
    """The initialisation under the loops of its reduction that do not reduce, and under loops of its own
    over dims that these and the outer loops leave open.

    `mixed` are dims of which a reducing loop makes use.
    """
    mine = [m.restricted(frozenset([init.name])) for m in loops]
    fixed = {v for m in (*outer, *mine) for v in variables(m.of(init.name))}
    free = [d.name for d in init.dims if d.name not in fixed or d.name in mixed]
    loops_of_its_own = [Member(d, ((init.name, IVar(d)),), coincident=True) for d in free]
    return band([*mine, *loops_of_its_own], Leaf(init.name), permutable=True)
