"""Private copies of a scatter's result, one for each part of its updates, which are combined.

    y[d[e]] += x[e]      becomes, with p = e // C,      y__part[p, i] = -0
                                                        y__part[p, d[e]] += x[e]     for e of part p
                                                        y[i] += y__part[p, i]        for all p

Parts run in parallel: no two of them update one element.  That pays where the updates are many beside the
elements of all copies, which are cleared and added up, and where a core's cache holds a copy.

An update waits for the one before, if that was of the same element: 14 cycles for a sum of f32.  So parts
have four small copies, which their updates take in turn: y__part[p, (e - C*p) % 4, d[e]].  Sums of integers
wait for nothing, and neighbours in a row are updated together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.cost.extents import tensor_bytes
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary
from polyfuse.ir.tensor_graph import EXPR_TYPES, Const, IterDim, Read, Statement, Tensor, TensorGraph
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.mapping.nests import volume


def worth_copying(graph: TensorGraph, scatters: Sequence[str], threads: int, core: Core) -> bool:
    """Are copies of the results, one for each thread, small beside the updates, and each one beside L2?"""
    if threads == 1:
        return not scatters
    largest = 0
    for n in scatters:
        target = graph.tensor(graph.statement(n).target)
        nbytes = tensor_bytes(graph, target.name)
        largest = max(largest, nbytes)
        if FITTED.scatter_copies_fewest_updates * threads * nbytes > volume(graph, (n,)) * target.dtype.bytes:
            return False
    return largest <= core.l2


def turns_of(graph: TensorGraph, s: Statement) -> int:
    """How many copies of a scatter's result a part has."""
    target = graph.tensor(s.target)
    small = tensor_bytes(graph, target.name) <= FITTED.scatter_copies_most_bytes
    return (
        FITTED.scatter_copies_turns
        if s.accumulate and target.dtype.is_float and found_by_data(s) and small
        else 1
    )


def in_turns(part: Statement, tensor: Tensor, turns: int, count: IndexExpr) -> tuple[Statement, Tensor]:
    """`part` of a scatter with several copies, for iterations that `count` counts in turn."""
    if turns == 1:
        return part, tensor
    (chunk, *rest), (chunks, *shape) = part.write, tensor.shape
    part = replace(part, write=(chunk, binary("%", count, turns), *rest))
    return part, replace(tensor, shape=(chunks, IConst(turns), *shape))


def with_start_and_end(
    graph: TensorGraph, s: Statement, part: Statement, tensor: Tensor
) -> tuple[Statement, Statement]:
    """What the copies in `tensor` that `part` of a scatter updates start from, and their way into its target.

    A sum starts from -0.0, which changes no number it is added to: elements that no data names keep the
    sign of their zero.
    """
    target = graph.tensor(s.target)
    assert s.reduction is not None
    neutral = identity(s.reduction, target.dtype)
    if s.reduction == "sum" and target.dtype.is_float:
        neutral = -0.0
    lead = len(tensor.shape) - len(target.shape)
    shape = (*tensor.shape[:lead], *target.shape)  # lines of rows may have been filled up
    names = (part.dims[0].name, *(fresh_name(graph, f"{s.name}__{k}") for k in range(1, len(shape))))
    dims = tuple(IterDim(n, IConst(0), e) for n, e in zip(names, shape, strict=True))
    copy = tuple(IVar(d.name) for d in dims)
    value = Const(neutral, target.dtype, s.span)
    start = Statement(fresh_name(graph, f"{s.name}__start"), tensor.name, dims, copy, value, span=s.span)
    read = Read(tensor.name, copy, target.dtype, s.span)
    end = replace(s, dims=(*dims[lead:], *dims[:lead]), write=copy[lead:], expr=read)
    return start, end


def found_by_data(s: Statement) -> bool:
    """Does data say which column of a row a scatter updates?"""
    return any(isinstance(i, EXPR_TYPES) for i in s.write[-1:])
