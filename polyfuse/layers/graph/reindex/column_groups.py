"""Dims that are read as groups of columns, `g * K + k`, are two dims.

    s[n, g] = sum[h, k](x[n, h, g * K + k])            for g in 0..G, k in 0..K
    y[n, h, c] = x[n, h, c] - s[n, c // K]             for c in 0..G*K
becomes
    s[n, g] = sum[h, k](x[n, h, g, k])
    y[n, h, g, k] = x[n, h, g, k] - s[n, g]

for what wants to see groups and columns (`layers.graph.grouped_reductions`).  Every statement that has one of
the tensors must read it so, or by a column whose other uses are its digits `c // K` and `c % K`.  Tensors
must be dense: shapes change, memory does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.linear import linear
from polyfuse.ir.tensor_graph import (
    ARG_REDUCTIONS,
    EXPR_TYPES,
    Expr,
    Index,
    IndexValue,
    IterDim,
    Read,
    Statement,
    TensorGraph,
    map_expr,
    statement_reads,
    walk,
)
from polyfuse.layers.graph.names import fresh_name


def with_group_dims(graph: TensorGraph, strided: frozenset[str]) -> Iterator[TensorGraph]:
    """The graph with two dims in place of one, for each sum over the columns of groups."""
    for s in graph.statements:
        if s.reduction is not None:
            for r in statement_reads(s):
                split = _Split.of(graph, s, r)
                if split is not None and split.grow(r.tensor) and not strided & set(split.tensors):
                    yield split.rewritten()


def grown(
    graph: TensorGraph, tensor: str, follow: Callable[[Statement, str], list[str] | None]
) -> dict[str, None] | None:
    """All tensors with the same dims, from one on: `follow` names those of a statement, or None where it uses
    the dims of a tensor otherwise.  None if one does, or if memory is updated in place."""
    found: dict[str, None] = {}
    todo = [tensor]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found[name] = None
        for s in graph.statements:
            if name in {s.target, *(r.tensor for r in statement_reads(s))}:
                more = follow(s, name)
                if more is None:
                    return None
                todo += more
    aliases = {n for t in graph.tensors if t.alias for n in (t.name, t.alias)}
    return None if aliases & set(found) else found


@dataclass(slots=True)
class _Split:
    """Tensors whose last dim becomes two, and how statements go over it: by groups and columns, or by one."""

    graph: TensorGraph
    groups: int
    size: int
    tensors: dict[str, None] = field(default_factory=dict)
    pairs: dict[str, tuple[str, str]] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(graph: TensorGraph, s: Statement, r: Read) -> _Split | None:
        """Of a read of a sum's columns."""
        length = graph.tensor(r.tensor).shape[-1:]
        reduced = {d.name: d for d in s.dims if d.reduce}
        last = r.indices[-1] if r.indices else IConst(0)
        if isinstance(last, EXPR_TYPES) or not isinstance(last, IBin) or not isinstance(length[0], IConst):
            return None
        for k in (reduced[v] for v in variables(last) if v in reduced):
            size, lower = k.upper, k.lower
            if isinstance(size, IConst) and lower == IConst(0) and size.value > 1:
                groups, rest = divmod(length[0].value, size.value)
                if rest == 0 and groups > 1:
                    return _Split(graph, groups, size.value)
        return None

    # --- what belongs together ----------------------------------------------------------------------------

    def grow(self, tensor: str) -> bool:
        """Follow the dim through all statements; False where it is used otherwise."""
        found = grown(self.graph, tensor, self._of)
        self.tensors = found or {}
        return found is not None and bool(self.pairs)

    def _of(self, s: Statement, tensor: str) -> list[str] | None:
        """Tensors of a statement with the same dim; None if it uses the one that it has otherwise."""
        accesses = [(s.target, s.write), *((r.tensor, r.indices) for r in statement_reads(s))]
        for name, indices in accesses:
            if name == tensor and not self._enters(s, indices[-1]):
                return None
        if s.name in self.pairs:
            return [n for n, i in accesses if i and self._is_long(n) and self._pair(s, i[-1]) is not None]
        column = self.columns[s.name]
        found = []
        for name, indices in accesses:
            for place, i in enumerate(indices):
                if isinstance(i, EXPR_TYPES):
                    continue  # what is read to find it is an access of its own
                if place == len(indices) - 1 and i == IVar(column) and self._is_long(name):
                    found.append(name)
                elif column in variables(i) and i not in self._digits(column):
                    return None
        return found

    def _enters(self, s: Statement, last: Index) -> bool:
        """Does a statement go over the dim by groups and columns, or by one loop, always the same?"""
        if isinstance(last, EXPR_TYPES):
            return False
        pair = self._pair(s, last)
        if pair is not None:
            return s.name not in self.columns and self.pairs.setdefault(s.name, pair) == pair
        of = {d.name: d for d in s.dims}
        if not isinstance(last, IVar) or s.name in self.pairs or not self._spans(of[last.name], self.length):
            return False
        values = {v for x in walk(s.expr) if isinstance(x, IndexValue) for v in variables(x.index)}
        bounds = {v for d in s.dims for e in (d.lower, d.upper) for v in variables(e)}
        place = of[last.name].reduce and s.reduction in ARG_REDUCTIONS
        if last.name in values | bounds or place:
            return False
        return self.columns.setdefault(s.name, last.name) == last.name

    def _pair(self, s: Statement, last: Index) -> tuple[str, str] | None:
        """The loops over groups and columns of an index `g * K + k`."""
        if isinstance(last, EXPR_TYPES) or len(variables(last)) != 2:
            return None
        of = {d.name: d for d in s.dims}
        for a, b in (variables(last), variables(last)[::-1]):
            place = binary("+", binary("*", IVar(a), self.size), IVar(b))
            whole = self._spans(of[a], self.groups) and self._spans(of[b], self.size)
            if whole and linear(binary("-", last, place)) == linear(IConst(0)):
                return a, b
        return None

    @staticmethod
    def _spans(d: IterDim, extent: int) -> bool:
        return (d.lower, d.upper) == (IConst(0), IConst(extent))

    @property
    def length(self) -> int:
        return self.groups * self.size

    def _is_long(self, tensor: str) -> bool:
        return self.graph.tensor(tensor).shape[-1:] == (IConst(self.length),)

    def _digits(self, column: str) -> tuple[IndexExpr, IndexExpr]:
        return binary("//", IVar(column), self.size), binary("%", IVar(column), self.size)

    # --- the rewrite --------------------------------------------------------------------------------------

    def rewritten(self) -> TensorGraph:
        two = (IConst(self.groups), IConst(self.size))
        tensors = tuple(
            replace(t, shape=(*t.shape[:-1], *two)) if t.name in self.tensors else t
            for t in self.graph.tensors
        )
        return replace(
            self.graph, tensors=tensors, statements=tuple(map(self._statement, self.graph.statements))
        )

    def _statement(self, s: Statement) -> Statement:
        if s.name in self.pairs:
            return self._changed(s, s.dims, self.pairs[s.name], {})
        if s.name not in self.columns:
            return s
        column = self.columns[s.name]
        group, own = (fresh_name(self.graph, f"{column}_{what}") for what in ("group", "column"))
        quotient, remainder = self._digits(column)
        dims: list[IterDim] = []
        for d in s.dims:
            if d.name == column:
                dims.append(replace(d, name=group, upper=IConst(self.groups)))
                dims.append(replace(d, name=own, upper=IConst(self.size)))
            else:
                dims.append(d)
        digits: dict[IndexExpr, IndexExpr] = {quotient: IVar(group), remainder: IVar(own)}
        return self._changed(s, tuple(dims), (group, own), digits)

    def _changed(
        self,
        s: Statement,
        dims: tuple[IterDim, ...],
        pair: tuple[str, str],
        digits: dict[IndexExpr, IndexExpr],
    ) -> Statement:
        two = tuple(map(IVar, pair))

        def on_index(i: IndexExpr) -> IndexExpr:
            return digits.get(i, i)

        def on_read(e: Expr) -> Expr:
            if isinstance(e, Read) and e.tensor in self.tensors:
                return replace(e, indices=(*e.indices[:-1], *two))
            return e

        write = tuple(i if isinstance(i, EXPR_TYPES) else on_index(i) for i in s.write)
        if s.target in self.tensors:
            write = (*write[:-1], *two)
        return replace(s, dims=dims, write=write, expr=map_expr(s.expr, on_read, on_index))
