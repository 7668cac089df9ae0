"""rfactor: split a reduction over blocks into partial results and their combination.

    g[h] = sum[t in 0..T](e)                        B(t: reduction, h)(g, others)
becomes, for chunks of C iterations of t,
    g__part[p, h] = sum[t in C*p..min(C*p+C, T)](e)    B(p)B(t, h)(g__part, others)    p = t // C
    g[h]          = sum[p](g__part[p, h])              B(h)B(p)(g)

Where t begins at S, so do the chunks: p = (t - S) // C.  The loop over p may run in parallel: no two of
its iterations update one element.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.index_expr import IConst, IVar, binary
from polyfuse.ir.schedule_tree import Band, Coordinate, Leaf, Member, Tree, band
from polyfuse.ir.tensor_graph import IterDim, Read, Role, Statement, Tensor, TensorGraph
from polyfuse.layers.fresh import fresh_name


def rfactor(
    graph: TensorGraph, nest: Band, reductions: tuple[str, ...], chunk: int, chunks: int, start: int = 0
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
    combine: list[Tree] = []
    statements: list[Statement] = []
    tensors = list(graph.tensors)
    for s in graph.statements:
        if s.name not in reductions:
            statements.append(s)
            continue
        part, tensor, final = _split(graph, s, outer, number, chunk, chunks, start)
        parts[s.name] = part.name
        statements += [part, final]
        tensors.append(tensor)
        combine.append(_combine_nest(final))
    graph = replace(graph, statements=tuple(statements), tensors=tuple(tensors))
    renamed = _rename(nest, parts)
    assert isinstance(renamed, Band)
    rows = [
        (n, IVar(number) if n in parts.values() else binary("//", binary("-", e, start), chunk))
        for n, e in renamed.members[0].exprs
    ]
    blocks = Member(block, tuple(sorted(rows)), coincident=True, coordinate=Coordinate.BLK)
    return graph, [Band((blocks,), renamed, permutable=True), *combine]


def _split(
    graph: TensorGraph, s: Statement, outer: Member, number: str, chunk: int, chunks: int, start: int
) -> tuple[Statement, Tensor, Statement]:
    """(partial reduction, its tensor, combination). `number` is the variable that counts chunks."""
    over = outer.of(s.name)
    assert isinstance(over, IVar)
    first = binary("+", binary("*", IVar(number), chunk), start)
    block = IterDim(number, IConst(0), IConst(chunks))
    dims: list[IterDim] = [block]
    for d in s.dims:
        if d.name == over.name:
            low = binary("max", first, d.lower) if d.lower != IConst(start) else first
            d = replace(d, lower=low, upper=binary("min", first + chunk, d.upper))
        dims.append(d)
    target = graph.tensor(s.target)
    name = fresh_name(graph, f"{s.name}__part")
    part = replace(s, name=name, target=name, dims=tuple(dims), write=(IVar(number), *s.write))
    tensor = Tensor(name, target.dtype, (IConst(chunks), *target.shape), Role.TEMP, target.span)
    kept = tuple(d for d in s.dims if not d.reduce)
    value = Read(name, (IVar(number), *s.write), target.dtype, s.span)
    final = replace(s, dims=(*kept, replace(block, reduce=True)), expr=value)
    return part, tensor, final


def _combine_nest(final: Statement) -> Tree:
    """Loops of the combination: chunks outside, so that the inner loop is contiguous."""
    kept = [d.name for d in final.dims if not d.reduce]
    over = [d.name for d in final.dims if d.reduce]
    loops = [Member(d, ((final.name, IVar(d)),), coincident=True) for d in over + kept]
    return band(loops, Leaf(final.name), permutable=True)


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
