"""What kind of operator a statement is, read from its access relations.

For each read, the relation between elements read and elements written by one instance:

    one to one, in order     elementwise    y[i, j] from x[i, j]
    one to one, reordered    transpose      y[i, j] from x[j, i]
    one to many              broadcast      y[i, j] from b[j]
    many to one              reduction      s[i] from x[i, j]
    many to many             opaque         c[i, j] from a[i, k]; and what data finds (gather, scatter)

A statement is the last of these that one of its reads is; a reduction over a product in which two
factors are many to many is a contraction.  Source: Apollo (MLSys'22) section 3, types of primitives, per dim
of the input-to-output map; here from isl, never from names.
"""

from __future__ import annotations

from enum import IntEnum

import islpy as isl

from polyfuse.ir.tensor_graph import Statement
from polyfuse.poly.model.domains import Access, PolyModel


class Primitive(IntEnum):
    """In order: a statement is of the greatest kind of its reads."""

    ELEMENTWISE = 0
    BROADCAST = 1
    TRANSPOSE = 2
    REDUCTION = 3
    CONTRACTION = 4
    OPAQUE = 5

    def __str__(self) -> str:
        return self.name.lower()


def primitive_types(model: PolyModel) -> dict[str, Primitive]:
    """Statement -> what kind of operator it is. Hold `isl_lock`."""
    reads: dict[str, list[Access]] = {name: [] for name in model.domains}
    for access in model.reads:
        reads[access.statement].append(access)
    known: dict[str, Primitive] = {}
    return {s.name: _statement_type(model, s, reads[s.name], known) for s in model.graph.statements}


def _statement_type(
    model: PolyModel, s: Statement, reads: list[Access], known: dict[str, Primitive]
) -> Primitive:
    write = model.writes[s.name]
    if write.may or s.accumulate or any(a.may for a in reads):
        return Primitive.OPAQUE
    kinds = [_kind(a.relation.reverse().apply_range(write.relation), known) for a in reads]
    if s.reduction is None:
        return max(kinds, default=Primitive.BROADCAST)
    opaque = kinds.count(Primitive.OPAQUE)
    return Primitive.CONTRACTION if opaque > 1 and s.reduction == "sum" else Primitive.REDUCTION


def _kind(pairs: isl.Map, known: dict[str, Primitive]) -> Primitive:
    """Of the relation from elements read to elements written; statements of one form are many, `known`
    remembers them."""
    plain = pairs.set_tuple_name(isl.dim_type.in_, "").set_tuple_name(isl.dim_type.out, "")
    form = str(plain)
    if form not in known:
        known[form] = _of_relation(plain)
    return known[form]


def _of_relation(pairs: isl.Map) -> Primitive:
    one_input, one_output = pairs.is_injective(), pairs.is_single_valued()
    if one_input and one_output:
        return Primitive.ELEMENTWISE if _in_order(pairs) else Primitive.TRANSPOSE
    if one_input:
        return Primitive.BROADCAST
    return Primitive.REDUCTION if one_output else Primitive.OPAQUE


def _in_order(pairs: isl.Map) -> bool:
    """Do elements written come in the order of the elements read?"""
    earlier = isl.Map.lex_lt(pairs.get_space().domain())
    later = isl.Map.lex_lt(pairs.get_space().range())
    moved = pairs.reverse().apply_range(earlier).apply_range(pairs)
    return bool(moved.is_subset(later))
