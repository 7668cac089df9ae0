"""Dependences between statement instances.

Tensor programs are single-assignment, so the flow dependences are the writes composed with the
inverse reads; no dataflow analysis is needed, and a consumer of a reduction depends on all its
updates.  The legality check does not use this module: it asks isl's dataflow analysis instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import islpy as isl

from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    Index,
    IterDim,
    Read,
    Select,
    Statement,
    children,
    format_index,
)
from polyfuse.poly.model.domains import Access, PolyModel
from polyfuse.poly.model.isl_bridge import tensor_id
from polyfuse.source import Span


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


# --- reads and writes under their guards ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that holds (or, if not `positive`, does not hold) where an access happens."""

    cond: Expr
    positive: bool


@dataclass(frozen=True, slots=True)
class Element:
    """One access; `dims` are the loops around it."""

    tensor: str
    indices: tuple[Index, ...]
    dims: tuple[IterDim, ...]
    guards: tuple[Guard, ...]
    is_write: bool
    span: Span = field(compare=False)

    def __str__(self) -> str:
        return self.named(self.tensor)

    @property
    def by_data(self) -> bool:
        """Do values of tensors tell where it is?"""
        return any(isinstance(i, EXPR_TYPES) for i in self.indices)

    def named(self, tensor: str) -> str:
        """Its text, for a tensor that the program calls so."""
        return f"{tensor}[{', '.join(map(format_index, self.indices))}]"


def outer_dims(s: Statement) -> tuple[IterDim, ...]:
    """The loops that number the elements a statement defines."""
    return s.dims if s.accumulate else tuple(d for d in s.dims if not d.reduce)


def write_of(s: Statement) -> Element:
    return Element(s.target, s.write, outer_dims(s), (), True, s.span)


def reads_of(s: Statement) -> list[Element]:
    """All reads, left to right, those inside data indices included."""
    return [
        Element(e.tensor, e.indices, s.dims, guards, False, e.span)
        for e, guards in guarded_parts(s)
        if isinstance(e, Read)
    ]


def guarded_parts(s: Statement) -> Iterator[tuple[Expr, tuple[Guard, ...]]]:
    """All expressions in a statement, parents first, each with the guards around it."""
    yield from _parts(s.expr, ())
    for i in s.write:
        if isinstance(i, EXPR_TYPES):
            yield from _parts(i, ())


def _parts(e: Expr, guards: tuple[Guard, ...]) -> Iterator[tuple[Expr, tuple[Guard, ...]]]:
    yield e, guards
    if isinstance(e, Select):
        yield from _parts(e.cond, guards)
        yield from _parts(e.then, (*guards, Guard(e.cond, True)))
        yield from _parts(e.other, (*guards, Guard(e.cond, False)))
        return
    for c in children(e):
        yield from _parts(c, guards)
