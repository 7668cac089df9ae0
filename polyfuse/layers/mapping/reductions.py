"""Reductions: made explicit (`explicit_reductions`), and split over blocks (`rfactor`).

An explicit reduction has an initialising statement, ordered before the first reduction loop.

    sum:  s[t] = sum[h](x[t, h])          B(t)B(h)(sum)
becomes
    sum__init:  s[t] = 0
    sum:        s[t] sum= x[t, h]         B(t)[sum__init; B(h)(sum)]

From here on the schedule says when an accumulator starts, and legality checks it.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.cpu_core import Core
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, variables
from polyfuse.ir.schedule_tree import (
    Band,
    Coordinate,
    Leaf,
    Member,
    Sequence,
    Tree,
    band,
    path,
    sequence,
    statements,
)
from polyfuse.ir.tensor_graph import Const, IterDim, Purpose, Read, Role, Statement, Tensor, TensorGraph
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.mapping.nests import is_free
from polyfuse.layers.mapping.scatter_copies import found_by_data, in_turns, turns_of, with_start_and_end


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
    return Statement(name, s.target, outer, s.write, value, span=s.span, purpose=Purpose.INIT)


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


# --- rfactor ----------------------------------------------------------------------------------------------

# A reduction over blocks becomes partial results and their combination.
#
#     g[h] = sum[t in 0..T](e)                        B(t: reduction, h)(g, others)
# becomes, for chunks of C iterations of t,
#     g__part[p, h] = sum[t in C*p..min(C*p+C, T)](e)    B(p)B(t, h)(g__part, others)    p = t // C
#     g[h]          = sum[p](g__part[p, h])              B(h)B(p)(g)
#
# `written_back` gives the partial results a temporary of their own, which is copied after the chunk:
#     g__acc[p, h] = sum[t in ...](e)                    B(p)[B(t, h)(g__acc, others); B(h)(g__part)]
#     g__part[p, h] = g__acc[p, h]
#
# A scatter over chunks has copies of its result instead, which start before the chunk and end in the result
# after all chunks (`layers.mapping.scatter_copies`).
#
# Where t begins at S, so do the chunks: p = (t - S) // C.  The loop over p may run in parallel: no two of
# its iterations update one element.


def rfactor(
    graph: TensorGraph,
    nest: Band,
    reductions: tuple[str, ...],
    chunk: int,
    chunks: int | IndexExpr,
    start: int = 0,
) -> tuple[TensorGraph, list[Tree]]:
    """Factor the named reductions of `nest` over its first loop, `chunk` iterations each from `start` on.

    The first member must be a plain dim with no iterations outside of these chunks, and a reduction dim
    of each of `reductions`.  Returns the new graph, the nest with a block loop around it, and the nests
    that combine the partial results.
    """
    outer = nest.members[0]
    block = f"{outer.name}_blk"
    number = fresh_name(graph, "p__")
    parts: dict[str, str] = {}
    starts: list[Statement] = []
    finals: list[Statement] = []
    statements: list[Statement] = []
    tensors = list(graph.tensors)
    for s in graph.statements:
        if s.name not in reductions:
            statements.append(s)
            continue
        part, tensor, final = _split(graph, s, outer, number, chunk, as_index(chunks), start)
        parts[s.name] = part.name
        if s.accumulate:
            count = binary("-", outer.of(s.name), IVar(number) * chunk + start)
            part, tensor = in_turns(part, tensor, turns_of(graph, s), count)
            begin, final = with_start_and_end(graph, s, part, tensor)
            starts.append(begin)
            statements.append(begin)
        statements += [part, final]
        tensors.append(tensor)
        finals.append(final)
    graph = replace(graph, statements=tuple(statements), tensors=tuple(tensors))
    renamed = _rename(nest, parts)
    assert isinstance(renamed, Band)
    rows = [
        (n, IVar(number) if n in parts.values() else binary("//", binary("-", e, start), chunk))
        for n, e in renamed.members[0].exprs
    ]
    rows += [(s.name, IVar(number)) for s in starts]
    blocks = Member(block, tuple(sorted(rows)), coincident=True, coordinate=Coordinate.BLK)
    inside = sequence([*(_own_loops(s) for s in starts), renamed])
    return graph, [Band((blocks,), inside, permutable=True), *_combine_nests(finals)]


def _split(
    graph: TensorGraph, s: Statement, outer: Member, number: str, chunk: int, chunks: IndexExpr, start: int
) -> tuple[Statement, Tensor, Statement]:
    """(partial reduction, its tensor, combination). `number` is the variable that counts chunks."""
    over = outer.of(s.name)
    assert isinstance(over, IVar)
    first = binary("+", binary("*", IVar(number), chunk), start)
    block = IterDim(number, IConst(0), chunks)
    dims: list[IterDim] = [block]
    for d in s.dims:
        if d.name == over.name:
            low = binary("max", first, d.lower) if d.lower != IConst(start) else first
            d = replace(d, lower=low, upper=binary("min", first + chunk, d.upper))
        dims.append(d)
    target = graph.tensor(s.target)
    name = fresh_name(graph, f"{s.name}__part")
    part = replace(s, name=name, target=name, dims=tuple(dims), write=(IVar(number), *s.write))
    rows = target.shape if s.accumulate and found_by_data(s) else _to_lines(target)
    shape = (chunks, *rows)
    tensor = Tensor(name, target.dtype, shape, Role.TEMP, target.span)
    kept = tuple(d for d in s.dims if not d.reduce)
    value = Read(name, (IVar(number), *s.write), target.dtype, s.span)
    final = replace(s, dims=(*kept, replace(block, reduce=True)), expr=value)
    return part, tensor, final


def _own_loops(start: Statement) -> Tree:
    """Loops over the elements of a copy."""
    members = [Member(d.name, ((start.name, IVar(d.name)),), True) for d in start.dims[1:]]
    return band(members, Leaf(start.name), permutable=True)


def _to_lines(target: Tensor) -> tuple[IndexExpr, ...]:
    """The shape of a tensor with rows that end where a cache line does, if they are longer than one: so that
    the rows of all chunks begin where one does. Vectors that cross lines take twice as long to be stored."""
    *outer, last = target.shape or (IConst(1),)
    line = Core().line // target.dtype.bytes
    if not target.shape or (isinstance(last, IConst) and last.value <= line):
        return target.shape
    return (*outer, binary("*", binary("//", binary("+", last, line - 1), line), line))


def _combine_nests(finals: list[Statement]) -> list[Tree]:
    """Loops of the combinations: chunks outside, so that the inner loop is contiguous.

    Combinations with the same bounds share their loops.
    """
    alike: dict[object, list[Statement]] = {}
    for s in finals:
        alike.setdefault(tuple((d.lower, d.upper, d.reduce) for d in s.dims), []).append(s)
    nests: list[Tree] = []
    for group in alike.values():
        places = sorted(range(len(group[0].dims)), key=lambda k: not group[0].dims[k].reduce)
        loops = [
            Member(group[0].dims[k].name, tuple(sorted((s.name, IVar(s.dims[k].name)) for s in group)), True)
            for k in places
        ]
        nests.append(band(loops, sequence([Leaf(s.name) for s in group]), permutable=True))
    return nests


def rows_first(graph: TensorGraph, end: Tree) -> Tree:
    """A combination with rows of results before the parts, so that workers can share them."""
    if not isinstance(end, Band):
        return end
    free = [m for m in end.members if is_free(graph, m, statements(end))]
    parts = [m for m in end.members if m not in free]
    return replace(end, members=(*free[:-1], *parts, free[-1])) if len(free) > 1 else end


def _rename(tree: Tree, names: dict[str, str]) -> Tree:
    match tree:
        case Leaf(name):
            return Leaf(names.get(name, name))
        case Band(members, child, permutable):
            renamed = tuple(
                replace(m, exprs=tuple(sorted((names.get(n, n), e) for n, e in m.exprs))) for m in members
            )
            return Band(renamed, _rename(child, names), permutable)
        case _:
            return replace(tree, children=tuple(_rename(c, names) for c in tree.children))


def written_back(graph: TensorGraph, nest: Band, outside: frozenset[str]) -> tuple[TensorGraph, Band]:
    """Partial results of a nest whose first loop runs over chunks in temporaries, copied at the end.

    `outside` are the tensors of partial results that other nests read.
    """
    chunks = nest.members[0]
    statements: list[Statement] = []
    tensors = list(graph.tensors)
    copies: list[Statement] = []
    for s in graph.statements:
        if s.target not in outside or s.reduction is None or s.name not in dict(chunks.exprs):
            statements.append(s)
            continue
        part = graph.tensor(s.target)
        name = fresh_name(graph, part.name.removesuffix("__part") + "__acc")
        tensors.append(replace(part, name=name))
        kept = tuple(d for d in s.dims if not d.reduce)
        copy = Statement(
            fresh_name(graph, f"{s.name}__out"), part.name, kept, s.write, Read(name, s.write, part.dtype)
        )
        copies.append(replace(copy, span=s.span))
        statements += [replace(s, target=name), copies[-1]]
    rows = [*chunks.exprs, *((c.name, IVar(c.dims[0].name)) for c in copies)]
    first = replace(chunks, exprs=tuple(sorted(rows, key=lambda row: row[0])))
    inner = band(list(nest.members[1:]), nest.child, nest.permutable)
    last = [
        band([Member(d.name, ((c.name, IVar(d.name)),), True) for d in c.dims[1:]], Leaf(c.name), True)
        for c in copies
    ]
    graph = replace(graph, statements=tuple(statements), tensors=tuple(tensors))
    return graph, Band((first,), sequence([inner, *last]), True)
