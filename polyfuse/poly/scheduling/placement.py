"""Where producers and consumers run: subset tests on relations.

Do two loops have the same value at both ends of everything that goes from one statement to another?  Then
what goes between them stays inside one iteration, and with it inside a worker, a block or a thread.

Source: the schemes of AStitch (ASPLOS'22) section 3.2, as tests on relations.
"""

from __future__ import annotations

from collections.abc import Iterable

import islpy as isl

from polyfuse.ir.schedule_tree import Member
from polyfuse.poly.model.dependences import ordering, shared_reads
from polyfuse.poly.model.domains import Access, PolyModel
from polyfuse.poly.scheduling.tree_convert import with_two_values


class Links:
    """What ties statements of a graph: what goes from one to another, inputs that two read, and rows of a
    tensor that two define elements of."""

    def __init__(self, model: PolyModel) -> None:
        self.model = model
        self._flow = ordering(model)
        self._sharing = shared_reads(model)
        plain = (s.name for s in model.graph.statements if s.reduction is None and not s.accumulate)
        self._pieces = {n: model.writes[n] for n in plain}
        self._leads, self._shares = _statements(self._flow), _statements(self._sharing)

    def leads(self, first: Iterable[str], second: Iterable[str]) -> bool:
        """Must some instance of the second statements follow one of the first?"""
        return _meets(self._leads, first, second)

    def tied(self, first: Iterable[str], second: Iterable[str]) -> bool:
        """Does something go from the first statements to the second, or do both read one element?"""
        return self.leads(first, second) or self.share(first, second)

    def share(self, first: Iterable[str], second: Iterable[str]) -> bool:
        """Do both read one element of an input?"""
        return _meets(self._shares, first, second)

    def flow(self, first: Iterable[str], second: Iterable[str]) -> isl.UnionMap:
        """Instances of the first statements -> instances of the second that must follow them."""
        return self._between(self._flow, first, second)

    def sharing(self, first: Iterable[str], second: Iterable[str]) -> isl.UnionMap:
        """Pairs of instances that read one element of an input."""
        return self._between(self._sharing, first, second)

    def beside(self, first: Iterable[str], second: Iterable[str]) -> isl.UnionMap:
        """Pairs of instances that define elements of one row of a tensor: as many of its leading indices are
        the same as can be, but not the last one, along which rows lie in memory."""
        here, there = (self._among_pieces(names) for names in (first, second))
        found = (_in_one_row(a, b) for a in here for b in there)
        return self.model.union_map([pairs for pairs in found if pairs is not None])

    def pieces(self, first: Iterable[str], second: Iterable[str]) -> set[str]:
        """Tensors that both define elements of, other than sums and the like."""
        here, there = ({a.tensor for a in self._among_pieces(names)} for names in (first, second))
        return here & there

    def _among_pieces(self, names: Iterable[str]) -> list[Access]:
        return [self._pieces[n] for n in names if n in self._pieces]

    def _between(self, relation: isl.UnionMap, first: Iterable[str], second: Iterable[str]) -> isl.UnionMap:
        here, there = self.model.domain(sorted(first)), self.model.domain(sorted(second))
        return relation.intersect_domain(here).intersect_range(there)

    def agree(self, pairs: isl.UnionMap, a: Member, b: Member) -> bool:
        """Has loop `a` at the first end of every pair the value of loop `b` at the second?"""
        return bool(with_two_values(self.model, pairs, a, b).is_empty())


def _in_one_row(a: Access, b: Access) -> isl.Map | None:
    """The pairs of `Links.beside` of two statements, if there are any."""
    if a.tensor != b.tensor:
        return None
    rank = a.relation.dim(isl.dim_type.out)
    for shared in range(rank - 1, 0, -1):
        one, other = (x.relation.project_out(isl.dim_type.out, shared, rank - shared) for x in (a, b))
        pairs = one.apply_range(other.reverse())
        if not pairs.is_empty():
            return pairs
    return None


def _statements(relation: isl.UnionMap) -> dict[str, frozenset[str]]:
    """Statement -> the statements that a relation leads to from it."""
    found: dict[str, set[str]] = {}
    maps = relation.get_map_list()
    for k in range(maps.n_map()):
        m = maps.get_at(k)
        if not m.is_empty():
            source, sink = _name(m, isl.dim_type.in_), _name(m, isl.dim_type.out)
            found.setdefault(source, set()).add(sink)
    return {n: frozenset(sinks) for n, sinks in found.items()}


def _name(m: isl.Map, end: isl.dim_type) -> str:
    return (m.get_tuple_name(end) or "").removeprefix("S_")


def _meets(edges: dict[str, frozenset[str]], first: Iterable[str], second: Iterable[str]) -> bool:
    there = frozenset(second)
    return any(not there.isdisjoint(edges.get(n, frozenset())) for n in first)
