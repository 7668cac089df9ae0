"""Which values the backward operator takes from the forward one, and which it computes again.

A value costs its bytes: written and read once where it is kept for this alone, read once where it is an
argument or a result.  The cheapest set that all the others follow from is a minimum cut of the graph of
values.  Sums, extremes, orders and recurrences are not computed again, unless the caller says so: they cost
more than the bytes of their results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from polyfuse.autodiff.structure import groups
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.tensor_graph import Role, Tensor, TensorGraph, statement_reads

UNKNOWN = 256
"""What a size counts as that is not known."""
_MOST = 1 << 60


@dataclass(frozen=True)
class Choice:
    """The `arguments`, `results` and `kept` values that are read; those of `again` are computed again."""

    arguments: tuple[str, ...]
    results: tuple[str, ...]
    kept: tuple[str, ...]
    again: tuple[str, ...]


def bytes_of(t: Tensor, sizes: Mapping[str, int]) -> int:
    """The bytes of a tensor where unknown sizes are `UNKNOWN`."""
    count = t.dtype.bytes
    for extent in t.shape:
        try:
            count *= max(0, evaluate(extent, sizes))
        except ZeroDivisionError:
            count *= UNKNOWN
    return count


def representative(graph: TensorGraph, sizes: Mapping[str, int]) -> dict[str, int]:
    """Values for all sizes: those that are known, defaults, and one for all others."""
    found = dict(sizes)
    defaults = {p.name: p.default for p in graph.size_parameters}
    for n in graph.sizes:
        default = defaults.get(n)
        if n not in found and (default is None):
            found[n] = UNKNOWN
    for n in graph.sizes:
        if n not in found:
            default = defaults[n]
            assert default is not None
            found[n] = evaluate(default, {**dict.fromkeys(graph.sizes, UNKNOWN), **found})
    return found


@dataclass
class _Flow:
    """Maximum flow by shortest augmenting paths."""

    edges: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, a: str, b: str, capacity: int) -> None:
        self.edges.setdefault(a, {})[b] = self.edges.get(a, {}).get(b, 0) + capacity
        self.edges.setdefault(b, {}).setdefault(a, 0)

    def saturate(self, start: str, end: str) -> None:
        while (path := self._path(start, end)) is not None:
            least = min(self.edges[a][b] for a, b in path)
            for a, b in path:
                self.edges[a][b] -= least
                self.edges[b][a] += least

    def _path(self, start: str, end: str) -> list[tuple[str, str]] | None:
        before: dict[str, str] = {start: start}
        left = deque([start])
        while left:
            a = left.popleft()
            for b, room in self.edges[a].items():
                if room > 0 and b not in before:
                    before[b] = a
                    if b == end:
                        return self._back(before, start, end)
                    left.append(b)
        return None

    @staticmethod
    def _back(before: Mapping[str, str], start: str, end: str) -> list[tuple[str, str]]:
        path, at = [], end
        while at != start:
            path.append((before[at], at))
            at = before[at]
        return path

    def behind(self, end: str) -> set[str]:
        """What can still reach the end: the cut that lies nearest to it."""
        found, left = {end}, [end]
        while left:
            b = left.pop()
            for a, back in self.edges.items():
                if a not in found and back.get(b, 0) > 0:
                    found.add(a)
                    left.append(a)
        return found


def choose(
    graph: TensorGraph,
    needed: Collection[str],
    sizes: Mapping[str, int],
    keep: Collection[str] = (),
    again: Collection[str] = (),
) -> Choice:
    """The choice for the tensors that the backward graph reads. `keep` and `again` are wishes."""
    values = representative(graph, sizes)
    needs = {t.name: tuple(dict.fromkeys(r.tensor for s in graph.writers(t.name) for r in statement_reads(s)))
             for t in graph.tensors}  # fmt: skip
    stays = firm(graph) - set(again)
    flow = _Flow()
    for name in _behind(needs, needed):
        t = graph.tensor(name)
        price = bytes_of(t, values) + 1
        if t.role in (Role.TEMP, Role.INOUT):
            price = 0 if name in keep else _MOST if name in again else 2 * price
        flow.add(f"{name}<", f"{name}>", price)
        if t.role in (Role.INPUT, Role.INOUT) or name in stays or (name in keep and not needs[name]):
            flow.add("start", f"{name}<", _MOST * 4)
        for r in needs[name] if name not in stays else ():
            flow.add(f"{r}>", f"{name}<", _MOST * 4)
    for name in needed:
        flow.add(f"{name}>", "end", _MOST * 4)
    if "start" not in flow.edges or "end" not in flow.edges:  # what is needed follows from indices alone
        return _choice(graph, needs, needed, ())
    flow.saturate("start", "end")
    late = flow.behind("end")
    return _choice(graph, needs, needed, {n for n in needs if f"{n}>" in late and f"{n}<" not in late})


def _choice(
    graph: TensorGraph, needs: Mapping[str, tuple[str, ...]], needed: Collection[str], cut: Collection[str]
) -> Choice:
    again, left, read = dict[str, None](), list(needed), set[str]()
    while left:
        n = left.pop()
        if n in cut:
            read.add(n)
        elif n not in again:
            again[n] = None
            left += needs[n]
    order = [t for t in graph.tensors if t.name in read]
    return Choice(
        tuple(t.name for t in order if t.role is Role.INPUT),
        tuple(t.name for t in order if t.role is Role.OUTPUT),
        tuple(t.name for t in order if t.role in (Role.TEMP, Role.INOUT)),
        tuple(t.name for t in graph.tensors if t.name in again),
    )


def _behind(needs: Mapping[str, tuple[str, ...]], names: Collection[str]) -> list[str]:
    """What values are computed from, themselves included."""
    found, left = dict.fromkeys(names), list(names)
    while left:
        for n in needs[left.pop()]:
            if n not in found:
                found[n] = None
                left.append(n)
    return list(found)


def firm(graph: TensorGraph) -> set[str]:
    """The values that are not computed again: reductions, scatters and recurrences."""
    found = {s.target for s in graph.statements if s.reduction is not None}
    for group, cyclic in groups(graph, [t.name for t in graph.tensors]):
        found |= set(group) if cyclic else set()
    return found
