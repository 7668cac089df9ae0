"""Reductions of groups of columns go along whole rows (CPU).

    s[t, g] = sum[h, c](x[t, h, g, c])                 for g in 0..32, c in 0..10
    y[t, h, g, c] = x[t, h, g, c] - s[t, g] / n
becomes, with one dim k of 320 columns in place of both,
    s__columns[t, k] = sum[h](x[t, h, k])              s[t, g] = sum[c](s__columns[t, 10 g + c])
    y__wide[t, k] = s[t, k // 10] / n                  y[t, h, k] = x[t, h, k] - y__wide[t, k]

A group's columns are a short piece of each of many rows: a vector is not full, its lanes are added up for
each piece, and memory, and the sets of a cache, see a piece of every row.  Sums of columns take whole rows in
order and add up a group's columns once.  What only the group knows is computed once for each of its columns,
before the loops over rows.

It is done for tensors in whose statements both dims are used side by side or the first alone, with no more
columns in a group than vectors fill.  As everywhere where dims are merged, tensors must be dense.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.decisions import Decision
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.tensor_graph import (
    ARG_REDUCTIONS,
    Expr,
    Index,
    IndexValue,
    IterDim,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    children,
    depends_on,
    map_expr,
    statement_reads,
    walk,
)
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.graph.one_pass.cascades import Cascade, cascades
from polyfuse.layers.graph.one_pass.moments import about_a_pivot, why_not
from polyfuse.layers.graph.reindex.column_groups import grown, with_group_dims

# Columns of a group at most: longer pieces of rows fill vectors, and lanes are added up seldom.
MOST_COLUMNS = 48
# Rows at least that a sum goes over.
FEWEST_ROWS = 16


def grouped_columns(
    graph: TensorGraph,
    decisions: list[Decision],
    strided: frozenset[str] = frozenset(),
    online: CpuDevice | None = None,
) -> TensorGraph:
    """The graph with such sums along whole rows, for all tensors that have groups of columns.

    `strided` names tensors whose memory is not dense; `online`: a mean and its variance are made in one pass
    where that pays on this machine (`layers.graph.one_pass.moments`), which could not be told of them later.
    While sizes are open the graph stays.
    """
    if graph.sizes:
        return graph
    while (groups := _next(graph, strided)) is not None:
        if online is not None:
            groups = _in_one_pass(groups, strided, decisions, online)
        sums = ", ".join(groups.sums())
        why = f"a group has {groups.extents[1]} columns: sums go along whole rows of {groups.columns}"
        graph = groups.rewritten()
        decisions.append(Decision("grouped columns", sums, True, why))
    return graph


def _next(graph: TensorGraph, strided: frozenset[str]) -> _Groups | None:
    """The first tensor with groups of columns, as dims or in the numbers of columns."""
    made = (
        g
        for form in itertools.chain((graph,), with_group_dims(graph, strided))
        for g in _candidates(form, strided)
    )
    return next(made, None)


def _in_one_pass(
    groups: _Groups, strided: frozenset[str], decisions: list[Decision], machine: CpuDevice
) -> _Groups:
    """The groups, with variances of them made about a pivot."""
    sums, graph = set(groups.sums()), groups.graph
    found: list[Decision] = []
    for c in cascades(graph):
        if not isinstance(c, Cascade) or c.law != "centred" or not {c.first.name, c.second.name} <= sums:
            continue
        if why_not(graph, c.first, machine) is None:
            graph = about_a_pivot(graph, [c])
            sums -= {c.first.name, c.second.name}  # each has one form
            why = f"{c.law}, in one pass with {c.first.name}, about a pivot"
            found.append(Decision("online", c.second.name, True, why))
    made = next(_candidates(graph, strided), None) if found else None
    if made is None:
        return groups
    decisions += found
    return made


def _candidates(graph: TensorGraph, strided: frozenset[str]) -> Iterator[_Groups]:
    """Tensors whose last two dims are groups and their columns, in what sums go over pieces of rows."""
    for s in graph.statements:
        for r in statement_reads(s):
            if len(r.indices) > 2 and _goes_over_pieces(s, r):
                shape = graph.tensor(r.tensor).shape[-2:]
                if all(isinstance(e, IConst) for e in shape):
                    groups = _Groups(graph, (shape[0].value, shape[1].value))  # type: ignore[union-attr]
                    if groups.grow(r.tensor) and not strided & set(groups.tensors):
                        yield groups


def _goes_over_pieces(s: Statement, r: Read) -> bool:
    """Does a sum read a few columns of each of many rows?"""
    *before, a, b = r.indices
    if not (isinstance(a, IVar) and isinstance(b, IVar)) or s.reduction is None or s.accumulate:
        return False
    of = {d.name: d for d in s.dims}
    column, group = of.get(b.name), of.get(a.name)
    if column is None or group is None or not column.reduce or group.reduce or s.reduction in ARG_REDUCTIONS:
        return False
    rows = [d for d in s.dims if d.reduce and d is not column and d.name in depends_on(*before)]
    return 1 < (_trip(column) or 0) <= MOST_COLUMNS and any((_trip(d) or 0) >= FEWEST_ROWS for d in rows)


def _trip(d: IterDim) -> int | None:
    known = isinstance(d.lower, IConst) and isinstance(d.upper, IConst)
    return d.upper.value - d.lower.value if known else None  # type: ignore[union-attr]


@dataclass(slots=True)
class _Groups:
    """Tensors whose last two dims are one pair, and the loops of statements over it: groups and columns."""

    graph: TensorGraph
    extents: tuple[int, int]
    tensors: dict[str, None] = field(default_factory=dict)
    loops: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def columns(self) -> int:
        return self.extents[0] * self.extents[1]

    def sums(self) -> list[str]:
        """Names of the sums that are taken apart."""
        return [s.name for s in self.graph.statements if s.name in self.loops and self._splits(s)]

    # --- what belongs together ----------------------------------------------------------------------------

    def grow(self, tensor: str) -> bool:
        """Follow a tensor's pair of dims through all statements; False where it is not always a pair."""
        found = grown(self.graph, tensor, self._of)
        self.tensors = found or {}
        return found is not None

    def _of(self, s: Statement, tensor: str) -> list[str] | None:
        """Tensors with the pair in a statement that has one of them; None if it cannot have the pair."""
        accesses = [(s.target, s.write), *((r.tensor, r.indices) for r in statement_reads(s))]
        for name, indices in accesses:
            if name == tensor:
                pair = _pair(indices)
                if pair is None or self.loops.setdefault(s.name, pair) != pair:
                    return None
        a, b = self.loops[s.name]
        if not self._whole(s, a, b):
            return None
        found = []
        for name, indices in accesses:
            used = {a, b} & depends_on(*indices)
            if _pair(indices) == (a, b) and not {a, b} & depends_on(*indices[:-2]):
                if self.graph.tensor(name).shape[-2:] != tuple(map(IConst, self.extents)):
                    return None
                found.append(name)
            elif b in used or (used and name == tensor):
                return None
        wide = {id(x) for e in self._wide(s, a, b) for x in walk(e)}
        alone = [r for r in statement_reads(s) if a in depends_on(*r.indices) and _pair(r.indices) != (a, b)]
        return found if all(id(r) in wide for r in alone) else None

    def _whole(self, s: Statement, a: str, b: str) -> bool:
        """Do loops go over all groups and columns, in roles that a sum of columns can have?"""
        of = {d.name: d for d in s.dims}
        ranges = [(IConst(0), IConst(e)) for e in self.extents]
        if [(of[n].lower, of[n].upper) for n in (a, b)] != ranges:
            return False
        bounds = {v for d in s.dims for e in (d.lower, d.upper) for v in variables(e)}
        values = {v for x in walk(s.expr) if isinstance(x, IndexValue) for v in variables(x.index)}
        if {a, b} & (bounds | values) or (of[a].reduce and not of[b].reduce):
            return False
        return of[a].reduce == of[b].reduce or self._can_split(s, b)

    @staticmethod
    def _can_split(s: Statement, b: str) -> bool:
        """Can a reduction be made of one for each column, which writes each total at plain indices?  Not one
        that pairs rows of two tensors: its totals would be many."""
        kept = [d.name for d in s.dims if not d.reduce]
        plain = sorted(map(str, s.write)) == sorted(map(str, map(IVar, kept))) and not s.accumulate
        one = any(set(kept) | {b} <= depends_on(*r.indices) for r in statement_reads(s))
        return plain and one and s.reduction in ("sum", "max", "min") and [b] != list(s.reduction_dims)

    def _splits(self, s: Statement) -> bool:
        of = {d.name: d.reduce for d in s.dims}
        a, b = self.loops[s.name]
        return of[b] and not of[a]

    # --- what only the group knows --------------------------------------------------------------------------

    def _wide(self, s: Statement, a: str, b: str) -> list[Expr]:
        """The largest parts of a statement's terms that depend on the group and on little else."""
        of = {d.name: d for d in s.dims}
        found: list[Expr] = []

        def go(e: Expr) -> None:
            used = depends_on(e)
            if a in used and b not in used and self._few(s, used, of) and self._is_safe(e, of):
                found.append(e)
                return
            for part in children(e):
                go(part)

        go(s.expr)
        return found

    def _few(self, s: Statement, used: set[str], of: dict[str, IterDim]) -> bool:
        """Is what depends on these loops, for each column, little beside what the statement goes over?"""
        if any(of[n].reduce or _trip(of[n]) is None for n in used if n in of):
            return False
        others = [d for n, d in of.items() if n not in used]
        return any((_trip(d) or 0) >= FEWEST_ROWS for d in others)

    def _is_safe(self, e: Expr, of: dict[str, IterDim]) -> bool:
        """Can it be computed where the statement would not?"""
        for x in walk(e):
            if isinstance(x, Read):
                shape = self.graph.tensor(x.tensor).shape
                for i, extent in zip(x.indices, shape, strict=True):
                    if not isinstance(i, IVar) or (of[i.name].lower, of[i.name].upper) != (IConst(0), extent):
                        return False
        return any(isinstance(x, Read) for x in walk(e)) and e.dtype.is_float

    # --- the rewrite ----------------------------------------------------------------------------------------

    def rewritten(self) -> TensorGraph:
        """The graph with one dim in place of each pair."""
        statements: list[Statement] = []
        merged = IConst(self.columns)
        for s in self.graph.statements:
            statements += self._statements(s) if s.name in self.loops else [s]
        tensors = [
            replace(t, shape=(*t.shape[:-2], merged)) if t.name in self.tensors else t
            for t in self.graph.tensors
        ]
        return replace(self.graph, statements=tuple(statements), tensors=tuple(tensors))

    def _statements(self, s: Statement) -> list[Statement]:
        a, b = self.loops[s.name]
        column = fresh_name(self.graph, f"{a}_{b}")
        before: list[Statement] = []
        known: dict[int, Read] = {id(e): self._widened(s, e, a, column, before) for e in self._wide(s, a, b)}
        value = self._merged(s.expr, known, (a, b), column)
        dims = tuple(
            replace(d, name=column, upper=IConst(self.columns), reduce=d.reduce and not self._splits(s))
            if d.name == a
            else d
            for d in s.dims
            if d.name != b
        )
        if not self._splits(s):
            return [*before, replace(s, dims=dims, expr=value, write=_joined(s.write, (a, b), column))]
        return [*before, *self._split(s, dims, value, column)]

    def _split(self, s: Statement, dims: tuple[IterDim, ...], value: Expr, column: str) -> list[Statement]:
        """A sum for each column, and the sum of a group's."""
        a, b = self.loops[s.name]
        total = self.graph.tensor(s.target)
        kept = [i for i in s.write if i != IVar(a)]
        extents = [e for i, e in zip(s.write, total.shape, strict=True) if i != IVar(a)]
        name = self._add(f"{s.name}__columns", total.dtype, (*extents, IConst(self.columns)))
        each = replace(s, name=name, target=name, dims=dims, expr=value, write=(*kept, IVar(column)))
        place = binary("+", binary("*", IVar(a), self.extents[1]), IVar(b))
        own = tuple(d for d in s.dims if not d.reduce or d.name == b)
        return [each, replace(s, dims=own, expr=Read(name, (*kept, place), total.dtype, s.span))]

    def _widened(self, s: Statement, e: Expr, a: str, column: str, before: list[Statement]) -> Read:
        """What only the group knows, for each column; the statement that computes it comes before."""
        used = [d for d in s.dims if d.name in depends_on(e) and d.name != a]
        of_column = IterDim(column, IConst(0), IConst(self.columns))
        shape = (*(d.upper for d in used), of_column.upper)
        name = self._add(f"{s.name}__wide", e.dtype, shape)
        write = (*(IVar(d.name) for d in used), IVar(column))
        group = {a: binary("//", IVar(column), self.extents[1])}
        value = map_expr(e, lambda x: x, lambda i: substitute(i, group))
        before.append(Statement(name, name, (*used, of_column), write, value, span=s.span))
        return Read(name, write, e.dtype, s.span)

    def _add(self, wish: str, dtype: DType, shape: tuple[IndexExpr, ...]) -> str:
        name = fresh_name(self.graph, wish)
        new = Tensor(name, dtype, shape, Role.TEMP, exact=True)
        self.graph = replace(self.graph, tensors=(*self.graph.tensors, new))
        return name

    def _merged(self, e: Expr, known: dict[int, Read], pair: tuple[str, str], column: str) -> Expr:
        """The terms, of one column.  No part of what is in `known` changes, so that it is found as it was."""

        def put(x: Expr) -> Expr:
            if id(x) in known:
                return known[id(x)]
            if isinstance(x, Read) and _pair(x.indices) == pair:
                return replace(x, indices=_joined(x.indices, pair, column))
            return x

        return map_expr(e, put)


def _pair(indices: tuple[Index, ...]) -> tuple[str, str] | None:
    """The variables of the last two indices, if they are two."""
    if len(indices) < 2:
        return None
    a, b = indices[-2:]
    return (a.name, b.name) if isinstance(a, IVar) and isinstance(b, IVar) and a != b else None


def _joined(indices: tuple[Index, ...], pair: tuple[str, str], column: str) -> tuple[Index, ...]:
    return (*indices[:-2], IVar(column)) if _pair(indices) == pair else indices
