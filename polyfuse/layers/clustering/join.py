"""The kernels of all clusters as one kernel graph, in the order of the clusters.

What goes from one cluster to another is a result here and an input there; together it is a temporary in
global memory.  Names that were made inside of a cluster (partial results, initialising statements) are kept
apart from those of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Scope
from polyfuse.ir.rename import Names, canonical, spans_between
from polyfuse.ir.schedule_tree import ScheduledGraph, sequence
from polyfuse.ir.tensor_graph import Role, Tensor, TensorGraph


@dataclass(frozen=True, slots=True)
class Piece:
    """A cluster on its way: its graph as it was cut off, its schedule, its kernels."""

    graph: TensorGraph
    scheduled: ScheduledGraph
    kernels: KernelGraph
    copied: frozenset[str] = frozenset()

    def renamed(self, names: Names) -> Piece:
        if not names.tensors and not names.statements:
            return self
        scheduled = replace(
            self.scheduled,
            graph=names.graph(self.scheduled.graph),
            tree=names.tree(self.scheduled.tree),
        )
        copied = frozenset(map(names.tensor, self.copied))
        return Piece(names.graph(self.graph), scheduled, names.kernels(self.kernels), copied)

    def like(self, graph: TensorGraph) -> Piece:
        """This piece for a graph that differs from its own in names only; what was made keeps its names
        where the graph does not have them."""
        assert canonical(graph) == canonical(self.graph)
        tensors = {a.name: b.name for a, b in zip(self.graph.tensors, graph.tensors, strict=True)}
        statements = {a.name: b.name for a, b in zip(self.graph.statements, graph.statements, strict=True)}
        made = self.made(set(tensors.values()) | set(statements.values()))
        spans = spans_between(self.graph, graph)
        return self.renamed(
            Names({**made.tensors, **tensors}, {**made.statements, **statements}, spans=spans)
        )

    def made(self, taken: set[str]) -> Names:
        """Other names for what was made inside and is called like something taken. `taken` grows."""
        graphs = self.scheduled.graph, self.kernels.graph
        own = {t.name for t in self.graph.tensors}, {s.name for s in self.graph.statements}
        return Names(
            _free((t.name for g in graphs for t in g.tensors), own[0], taken),
            _free((s.name for g in graphs for s in g.statements), own[1], taken),
        )


@dataclass(frozen=True, slots=True)
class Joined:
    scheduled: ScheduledGraph
    kernels: KernelGraph
    copied: frozenset[str]


def join(whole: TensorGraph, pieces: Sequence[Piece]) -> Joined:
    """All pieces as one. `whole` is the graph that they were cut from."""
    taken = {t.name for t in whole.tensors} | {s.name for s in whole.statements} | set(whole.sizes)
    taken |= {d.name for s in whole.statements for d in s.dims}
    apart = [p.renamed(p.made(taken)) for p in pieces]
    outer = {t.name: t for t in whole.tensors}
    kernels: list[Kernel] = []
    for p in apart:
        base = _next_number(kernels)
        kernels += [_numbered(_outside(k, outer), base) for k in p.kernels.kernels]
    tree = sequence([p.scheduled.tree for p in apart])
    scheduled = ScheduledGraph(_together(whole, [p.scheduled.graph for p in apart]), tree)
    graph = _together(whole, [p.kernels.graph for p in apart])
    copied = frozenset(n for p in apart for n in p.copied)
    return Joined(scheduled, KernelGraph(graph, tuple(kernels)), copied)


def _free(names: Iterable[str], own: set[str], taken: set[str]) -> dict[str, str]:
    new: dict[str, str] = {}
    for name in dict.fromkeys(names):
        if name in own:
            continue
        free, k = name, 2
        while free in taken:
            free, k = f"{name}_{k}", k + 1
        taken.add(free)
        if free != name:
            new[name] = free
    return new


def _next_number(kernels: list[Kernel]) -> int:
    return 1 + max((int(p.name[1:]) for k in kernels for p in (k, *k.parts)), default=-1)


def _numbered(k: Kernel, base: int) -> Kernel:
    parts = tuple(_numbered(p, base) for p in k.parts)
    return replace(k, name=f"k{base + int(k.name[1:])}", parts=parts)


def _outside(k: Kernel, outer: dict[str, Tensor]) -> Kernel:
    """A kernel of a cluster among those of the others."""
    return replace(
        k,
        graph=replace(k.graph, tensors=tuple(_as_in(t, outer) for t in k.graph.tensors)),
        buffers=tuple(_global(b, outer) for b in k.buffers),
        parts=tuple(_outside(p, outer) for p in k.parts),
    )


def _as_in(t: Tensor, outer: dict[str, Tensor]) -> Tensor:
    known = outer.get(t.name)
    return t if known is None else replace(t, role=known.role, alias=known.alias)


def _global(b: Buffer, outer: dict[str, Tensor]) -> Buffer:
    known = outer.get(b.tensor)
    if b.scope is not Scope.ARGUMENT or known is None or known.role is not Role.TEMP:
        return b
    return replace(b, scope=Scope.GLOBAL, reason="goes from one cluster to another")


def _together(whole: TensorGraph, graphs: list[TensorGraph]) -> TensorGraph:
    """The statements of all graphs on the tensors of the whole, less those that nothing writes any more."""
    outer = {t.name: t for t in whole.tensors}
    found = {t.name: _as_in(t, outer) for g in graphs for t in g.tensors}
    arguments = [found.pop(t.name, t) for t in whole.tensors if t.role is not Role.TEMP]
    statements = tuple(s for g in graphs for s in g.statements)
    return replace(whole, tensors=(*arguments, *found.values()), statements=statements)
