"""Dependences between statement instances.

Tensor programs are single-assignment, so the flow dependences are the writes composed with the
inverse reads; no dataflow analysis is needed, and a consumer of a reduction depends on all its
updates.  The legality check does not use this module: it asks isl's dataflow analysis instead.
"""

from __future__ import annotations

import itertools

import islpy as isl

from polyfuse.poly.domains import Access, PolyModel
from polyfuse.poly.isl_bridge import tensor_id


def flow(model: PolyModel) -> isl.UnionMap:
    """Producer instance -> consumer instance, for every element written and read."""
    return model.all_writes().apply_range(model.all_reads().reverse())


def accumulation_order(model: PolyModel) -> isl.UnionMap:
    """Definitions of a tensor come before the scatters that add to the same element."""
    maps = []
    for s in model.graph.statements:
        if not s.accumulate:
            continue
        for other in model.graph.writers(s.target):
            if not other.accumulate:
                maps.append(_through(model.writes[other.name].relation, model.writes[s.name].relation))
    return model.union_map(maps)


def ordering(model: PolyModel) -> isl.UnionMap:
    """Everything a schedule must respect: flow and the order of accumulations."""
    return flow(model).union(accumulation_order(model))


def reduction_self(model: PolyModel) -> isl.UnionMap:
    """Relaxed self-dependences: pairs of updates of one element, which may run in any order but not at
    the same time. "Does this loop split a reduction?" is "does it separate a pair?"."""
    maps = []
    for s in model.graph.statements:
        if s.reduction is None:
            continue
        mine = model.writes[s.name].relation
        for other in model.graph.writers(s.target):
            if other.reduction is not None:
                maps.append(_through(model.writes[other.name].relation, mine))
    return model.union_map(maps)


def shared_reads(model: PolyModel) -> isl.UnionMap:
    """Read-after-read pairs of injective reads of one input by different statements.

    They order nothing; as coincidence constraints they tie, for example, the column sums of a
    LayerNorm backward to its row pass.
    """
    by_tensor: dict[str, list[Access]] = {}
    written = {s.target for s in model.graph.statements}
    for a in model.reads:
        if a.tensor not in written and not a.may and a.relation.is_injective():
            by_tensor.setdefault(a.tensor, []).append(a)
    maps = []
    for accesses in by_tensor.values():
        for first, second in itertools.pairwise(accesses):
            if first.statement != second.statement:
                maps.append(_through(first.relation, second.relation))
    return model.union_map(maps)


def anti(model: PolyModel, name: str) -> isl.UnionMap:
    """Reads of the entry value of an inout parameter -> the write that would replace it in place."""
    maps = []
    for t in model.graph.tensors:
        if t.alias != name:
            continue
        for writer in model.graph.writers(t.name):
            to_entry = model.writes[writer.name].relation.set_tuple_name(isl.dim_type.out, tensor_id(name))
            maps += [_through(a.relation, to_entry) for a in model.reads if a.tensor == name]
    return model.union_map(maps)


def _through(source: isl.Map, sink: isl.Map) -> isl.Map:
    """source instance -> sink instance, for pairs that touch the same element."""
    return source.apply_range(sink.reverse())
