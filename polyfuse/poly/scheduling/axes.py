"""Axes: dims of different statements that run over the same thing.

Two dims belong to one axis when some tensor is written along one and read along the other at the same
position by a plain index (``s[t, h]`` written, ``s[t, h]`` read), or when two statements read one input
along them by injective plain reads.  Union-find over (statement, dim) finds them in near-linear time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Statement, TensorGraph, statement_reads

Dim = tuple[str, str]  # (statement, dim)


@dataclass(frozen=True, slots=True)
class Edge:
    """`sink` reads (or adds to) what `source` writes. Indices are positions of one tensor on both sides.

    `anti`: the sink overwrites in place what the source reads, which is an order and no flow."""

    source: str
    sink: str
    written: tuple[Index, ...]
    read: tuple[Index, ...]
    anti: bool = False


@dataclass(slots=True)
class Axes:
    """The axes of a graph. `edges` are the flow edges, in order of the statements, and behind them those of
    entry values that are read before they are overwritten, where that can be."""

    graph: TensorGraph
    edges: list[Edge] = field(default_factory=list)
    # Statements tied only by reading one input each time: they order nothing, but share loops gladly.
    ties: list[tuple[str, ...]] = field(default_factory=list)
    _parent: dict[Dim, Dim] = field(default_factory=dict)
    _inside: dict[Dim, dict[str, str]] = field(default_factory=dict)  # root -> statement -> its dim
    _dims: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, s: Statement) -> None:
        self._dims[s.name] = tuple(d.name for d in s.dims)
        for d in s.dims:
            self._parent[s.name, d.name] = (s.name, d.name)
            self._inside[s.name, d.name] = {s.name: d.name}

    def axis(self, statement: str, dim: str) -> Dim:
        node = (statement, dim)
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def dim_of(self, statement: str, axis: Dim) -> str | None:
        """The dim of a statement that lies on an axis."""
        return self._inside[axis].get(statement)

    def statements_on(self, axis: Dim) -> Iterable[str]:
        """The statements with a dim on an axis."""
        return self._inside[axis]

    def axes_of(self, statement: str) -> tuple[Dim, ...]:
        return tuple(self.axis(statement, d) for d in self._dims[statement])

    def join(self, a: Dim, b: Dim) -> None:
        """Unify two dims unless a statement would then have two dims on one axis."""
        first, second = self.axis(*a), self.axis(*b)
        if first == second or not self._inside[first].keys().isdisjoint(self._inside[second]):
            return
        root, other = min(first, second), max(first, second)
        self._parent[other] = root
        small, large = sorted((self._inside.pop(root), self._inside.pop(other)), key=len)
        large.update(small)
        self._inside[root] = large


def plain(i: Index) -> str | None:
    """The variable of a plain index."""
    return i.name if isinstance(i, IVar) else None


def offset(i: Index) -> tuple[str, int] | None:
    """`(variable, c)` of an index `variable + c`."""
    match i:
        case IVar(name):
            return name, 0
        case IBin("+", IVar(name), IConst(c)):
            return name, c
        case IBin("-", IVar(name), IConst(c)):
            return name, -c
        case _:
            return None


def find_axes(graph: TensorGraph, statements: Iterable[Statement] | None = None) -> Axes:
    """Axes and edges of the given statements (default: all)."""
    chosen = tuple(statements) if statements is not None else graph.statements
    axes = Axes(graph)
    for s in chosen:
        axes.add(s)
    by_target: dict[str, list[Statement]] = {}
    for s in chosen:
        by_target.setdefault(s.target, []).append(s)
    inputs: dict[str, list[tuple[Statement, tuple[Index, ...]]]] = {}
    for s in chosen:
        for r in statement_reads(s):
            for w in by_target.get(r.tensor, []):
                if not _apart(w, s, r.indices):
                    axes.edges.append(Edge(w.name, s.name, w.write, r.indices))
            if r.tensor not in by_target and _covers(s, r.indices):
                inputs.setdefault(r.tensor, []).append((s, r.indices))
        if s.accumulate:
            for w in by_target[s.target]:
                if not w.accumulate:
                    axes.edges.append(Edge(w.name, s.name, w.write, s.write))
    _replace_later(axes, chosen)
    _unify_edges(axes)
    _unify_inputs(axes, inputs)
    return axes


def _replace_later(axes: Axes, chosen: tuple[Statement, ...]) -> None:
    """Edges from who reads an element of an inout parameter to who replaces it, if the reader does not come
    later.  Then, or where other elements are read, entry values are copied (`layers.mapping.kernels`)."""
    for s in chosen:
        alias = axes.graph.tensor(s.target).alias
        if alias is None or not all(isinstance(i, IVar) for i in s.write):
            continue
        later = _sinks(axes, s.name)
        for q in chosen:
            reads = [r for r in statement_reads(q) if r.tensor == alias]
            if reads and q.name not in later and all(_alike(q, r.indices, s) for r in reads):
                axes.edges.append(Edge(q.name, s.name, reads[0].indices, s.write, anti=True))


def _sinks(axes: Axes, source: str) -> set[str]:
    """All that a statement's values go to."""
    found, new = {source}, {source}
    while new:
        new = {e.sink for e in axes.edges if e.source in new} - found
        found |= new
    return found


def _alike(q: Statement, read: tuple[Index, ...], s: Statement) -> bool:
    """Does one statement read the element that the other writes, in the same iteration of as many loops?"""
    one, other = ({d.name: (d.lower, d.upper) for d in x.dims} for x in (q, s))
    names = [(plain(i), plain(w)) for i, w in zip(read, s.write, strict=True)]
    return len({*names}) == len(names) == len(other) and all(
        i is not None and w is not None and one.get(i) == other.get(w) for i, w in names
    )


def _apart(w: Statement, s: Statement, read: tuple[Index, ...]) -> bool:
    """Do a piece of a tensor and a read of it plainly touch different elements, at some position?

    `c[0, j]` is not among the elements that ``c[t, j] = ... for t in 1..T`` defines.  Without this, a
    recurrence and its first piece would look like one cycle.
    """
    return any(
        _excluded(a, w, b) or _excluded(b, s, a)
        for a, b in zip(w.write, read, strict=True)
        if not isinstance(a, EXPR_TYPES) and not isinstance(b, EXPR_TYPES)
    )


def _excluded(i: IndexExpr, s: Statement, fixed: IndexExpr) -> bool:
    """Is the index `i` of a statement never equal to `fixed`, an index without loop variables?"""
    if variables(fixed):
        return False
    if not variables(i):
        return isinstance(binary("-", i, fixed), IConst) and i != fixed
    place = offset(i)
    d = next((d for d in s.dims if place and d.name == place[0]), None)
    if place is None or d is None:
        return False
    below, above = binary("-", d.lower + place[1], fixed), binary("-", fixed, d.upper + place[1])
    return any(isinstance(x, IConst) and x.value >= least for x, least in ((below, 1), (above, 0)))


def _covers(s: Statement, indices: tuple[Index, ...]) -> bool:
    """An injective plain read: every dim of the statement stands alone at some position."""
    return {d.name for d in s.dims} <= {v for i in indices if (v := plain(i)) is not None}


def _unify_edges(axes: Axes) -> None:
    """Plain matches first; `t-1` against `t` only joins what nothing else separates."""
    for same_only in (True, False):
        for e in axes.edges:
            for w, r in zip(e.written, e.read, strict=True):
                a, b = offset(w), offset(r)
                if a and b and (a[1] == b[1] == 0 or not same_only):
                    axes.join((e.source, a[0]), (e.sink, b[0]))


def _unify_inputs(axes: Axes, inputs: dict[str, list[tuple[Statement, tuple[Index, ...]]]]) -> None:
    for uses in inputs.values():
        first, first_indices = uses[0]
        tied = [first.name]
        for s, indices in uses[1:]:
            if s.name == first.name:
                continue
            joined = False
            for a, b in zip(first_indices, indices, strict=True):
                va, vb = plain(a), plain(b)
                if va is not None and vb is not None:
                    axes.join((first.name, va), (s.name, vb))
                    joined = True
            if joined:
                tied.append(s.name)
        axes.ties.append(tuple(dict.fromkeys(tied)))
