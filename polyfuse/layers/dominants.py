"""Dominants: the statements of a kernel that the others follow.

candidates   reductions, outputs, and expensive statements of which several others read one element
local edge   each element that goes over it is read by one instance: no broadcast, nothing found by data
merging      candidates that local edges join, by way of other statements, are one group; a reduction
             dominates it before others, then what has most instances; the losers are sub-dominants

A group without a reduction follows a reduction that reads the same elements of an input.  In

    r1[t] = sum[h](x[t, h]);  p[t] = r1[t] ** 1.3;  c[t, h] = p[t] + y[t, h];  r2[t] = sum[h](c[t, h]);
    z[t, h] = c[t, h] * r2[t]

r1 dominates p, and r2 dominates c and z: p goes to many c, and r2 to many z.

Source: AStitch (ASPLOS'22) section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polyfuse.decisions import Decision
from polyfuse.ir.functions import has_function
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.tensor_graph import Role, Statement, TensorGraph
from polyfuse.layers.nest import volume
from polyfuse.layers.rewrites import inline
from polyfuse.poly.domains import PolyModel, build_model
from polyfuse.poly.isl_bridge import isl_lock
from polyfuse.poly.placement import Links


@dataclass(frozen=True, slots=True)
class Dominant:
    """A dominant with its sub-dominants, and the other statements that follow it."""

    name: str
    sub_dominants: tuple[str, ...]
    others: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.followers}" if self.followers else self.name

    @property
    def followers(self) -> str:
        """``its loops run p (sub-dominant), c as well``; empty where nothing follows."""
        names = [f"{n} (sub-dominant)" for n in self.sub_dominants] + list(self.others)
        return f"its loops run {', '.join(names)} as well" if names else ""


def dominants(model: PolyModel, names: Iterable[str], links: Links | None = None) -> tuple[Dominant, ...]:
    """Of the statements of one kernel, in their order."""
    finder = _Finder(model, tuple(names), links or Links(model))
    return finder.found()


def dominants_of(
    graph: TensorGraph, kernels: KernelGraph, decisions: Iterable[Decision]
) -> tuple[Dominant, ...]:
    """Of finished kernels, by the statements that the graph had before they were mapped."""
    for d in decisions:
        if d.kind == "recompute" and d.taken:
            graph = inline(graph, d.subject)
    with isl_lock:
        model = build_model(graph)
        links = Links(model)
        known = {s.name for s in graph.statements}
        parts = [[n for n in k.statements if n in known] for k in kernels.kernels]
        return tuple(d for names in parts for d in dominants(model, names, links))


class _Finder:
    def __init__(self, model: PolyModel, names: tuple[str, ...], links: Links) -> None:
        self.graph: TensorGraph = model.graph
        self.names = names
        self.links = links
        inside = frozenset(names)
        self.broadcast: set[str] = set()
        self.local: list[tuple[str, str]] = []
        for a in model.reads:
            for s in self.graph.writers(a.tensor) if a.statement in inside else ():
                if a.may or not a.relation.is_injective():
                    self.broadcast.add(s.name)
                elif s.name in inside and s.name != a.statement:
                    self.local.append((s.name, a.statement))

    def found(self) -> tuple[Dominant, ...]:
        parts = self._joined(_components(self.names, self.local))
        return tuple(self._dominant(p) for p in parts if any(map(self._is_candidate, p)))

    def _is_candidate(self, name: str) -> bool:
        s = self.graph.statement(name)
        output = self.graph.tensor(s.target).role is Role.OUTPUT
        return _reduces(s) or output or (name in self.broadcast and _expensive(s))

    def _has_reduction(self, part: list[str]) -> bool:
        return any(_reduces(self.graph.statement(n)) for n in part)

    def _joined(self, parts: list[list[str]]) -> list[list[str]]:
        """Parts without a reduction join the latest with one that reads elements of inputs with them."""
        leading = [p for p in parts if self._has_reduction(p)]
        rest: list[list[str]] = []
        for p in parts:
            if p in leading:
                continue
            hosts = [q for q in leading if self.links.share(q, p)]
            if hosts:
                hosts[-1].extend(p)
            else:
                rest.append(p)
        return sorted((sorted(p, key=self.names.index) for p in (*leading, *rest)), key=self._place)

    def _place(self, part: list[str]) -> int:
        return self.names.index(part[0])

    def _dominant(self, part: list[str]) -> Dominant:
        candidates = [n for n in part if self._is_candidate(n)]
        chosen = max(
            candidates,
            key=lambda n: (_reduces(self.graph.statement(n)), volume(self.graph, (n,))),
        )
        subs = tuple(n for n in candidates if n != chosen)
        return Dominant(chosen, subs, tuple(n for n in part if n not in candidates))


def _reduces(s: Statement) -> bool:
    return s.reduction is not None


def _expensive(s: Statement) -> bool:
    return has_function(s.expr)


def _components(names: tuple[str, ...], edges: list[tuple[str, str]]) -> list[list[str]]:
    """Statements that edges join, each part in order."""
    part = {n: [n] for n in names}
    for a, b in edges:
        one, other = part[a], part[b]
        if one is not other:
            one.extend(other)
            for n in other:
                part[n] = one
    found: list[list[str]] = []
    for n in names:
        if not any(part[n] is p for p in found):
            found.append(part[n])
    return [sorted(p, key=names.index) for p in found]
