"""What became of a model: regions, kernels, bytes, and why a region ends where it does.

print(polyfuse.torch.report(model))
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

from polyfuse.api import Program, parse
from polyfuse.autodiff.graph_text import operator_text
from polyfuse.decisions import format_bytes
from polyfuse.torch.dynamo.kernels import Call
from polyfuse.torch.dynamo.lowering import Lowered, is_item, is_view
from polyfuse.torch.dynamo.lowerings.table import rule_of
from polyfuse.torch.dynamo.partition import Kind, Partition, Region, base_of, bytes_of

COUNTERS = "polyfuse"
"""What `torch._dynamo.utils.counters` has of this backend."""


@dataclass(frozen=True)
class RegionReport:
    """A region: its operators, how many kernels it is, bytes that eager mode moves besides, and why it
    ends."""

    name: str
    operators: tuple[str, ...]
    kernels: int | None
    bytes_saved: int
    ends: tuple[str, ...]
    call: Call = field(repr=False, compare=False)

    @property
    def program(self) -> Program:
        """The region in the language, with the names of definitions that `explain` uses; `print` shows it.

        Raises ArgumentError PF794 for what the language has no words for.
        """
        graph = self.call.program.graph
        named = ", ".join(f"{s.name}:{s.target}" for s in graph.statements)
        return parse(operator_text(graph, comments=wrap(f"definitions: {named}", 100)))

    def explain(self) -> str:
        """Every decision of the compiler for its kernels, one a line."""
        return self.call.explain()

    def __str__(self) -> str:
        launched = "?" if self.kernels is None else str(self.kernels)
        kinds = Counter(self.operators)
        names = ", ".join(f"{n} x{c}" if c > 1 else n for n, c in kinds.items())
        return (
            f"{self.name}: {len(self.operators)} nodes, {launched} kernels, "
            f"{format_bytes(self.bytes_saved)} less moved ({names})\n"
            f"      ends: {'; '.join(self.ends) or 'results of the graph'}"
        )


@dataclass
class GraphReport:
    """A graph that was compiled: forward, backward or inference."""

    kind: str
    regions: list[RegionReport] = field(default_factory=list)
    aten: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    calls: list[Call] = field(default_factory=list, repr=False)
    tensors: tuple[Any, ...] = field(default=(), repr=False)
    by_inductor: list[tuple[str, ...]] = field(default_factory=list)
    """Operators in no region that Inductor computes, by part."""
    kept: bool = False
    """Is it from an earlier process?"""

    @property
    def fallbacks(self) -> list[str]:
        """Why regions went to ATen, when they were compiled and when they were called."""
        return [*self.failures, *(f"{c.__name__}: {why}" for c in self.calls for why in c.failed)]

    @property
    def ours(self) -> int:
        """Nodes in regions."""
        return sum(len(r.operators) for r in self.regions)

    def __str__(self) -> str:
        left = sum(sum(c.values()) for c in self.aten.values())
        lines = [
            f"{self.kind}: {self.ours} nodes in {len(self.regions)} regions, {left} with ATen, "
            f"{self.seconds:.2f} s{' (kept by an earlier process)' if self.kept else ''}"
        ]
        lines += [f"    {r}" for r in self.regions]
        for why, names in self.aten.items():
            listed = ", ".join(f"{n} x{c}" if c > 1 else n for n, c in names.items())
            lines.append(f"    ATen, {why}: {listed}")
        lines += [f"    of these by Inductor: {', '.join(names)}" for names in self.by_inductor]
        lines += [f"    fell back: {f}" for f in self.fallbacks]
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """All graphs of a model; `print` shows them. `is_of_process`: a model was asked for that cannot be told
    from others, and these are the graphs of all."""

    graphs: tuple[GraphReport, ...]
    is_of_process: bool = False

    @property
    def regions(self) -> list[RegionReport]:
        """Of all graphs, in order."""
        return [r for x in self.graphs for r in x.regions]

    @property
    def fallbacks(self) -> list[str]:
        """Why regions went to ATen."""
        return [f for x in self.graphs for f in x.fallbacks]

    def __str__(self) -> str:
        note = [ALL_OF_THIS_PROCESS] if self.is_of_process else []
        return "\n".join([*note, *(map(str, self.graphs) if self.graphs else ["nothing was compiled"])])


ALL_OF_THIS_PROCESS = "all of this process: what has no parameters cannot be told from others"
GRAPHS: list[GraphReport] = []
"""Of this process, in order."""


def report(model: Any = None) -> Report:
    """What became of a model that `torch.compile(model, backend="polyfuse")` gave, or of all of this process.

    A function or a model without parameters cannot be told from others: the report is of all, and says so.
    """
    own = {id(t) for t in _tensors_of(model)}
    if not own:
        return Report(tuple(GRAPHS), is_of_process=model is not None)
    return Report(tuple(x for x in GRAPHS if any(id(r()) in own for r in x.tensors if r() is not None)))


def _tensors_of(model: Any) -> Iterable[Any]:
    if not hasattr(model, "parameters"):
        return []
    return [*model.parameters(), *model.buffers()]


def references(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Weak references to the parameters among arguments."""
    return tuple(weakref.ref(x) for x in inputs if hasattr(x, "requires_grad"))


def region_report(call: Call, region: Region, low: Lowered, found: Partition) -> RegionReport:
    """What became of a region."""
    names = [rule_of(n).name.removeprefix("aten.") for n in region.nodes if not is_item(n)]
    moved = sum(
        bytes_of(n) + sum(bytes_of(base_of(a)) for a in n.all_input_nodes)
        for n in region.nodes
        if not is_item(n)
    )
    own = sum(map(bytes_of, (*low.inputs, *low.outputs, *low.mutated)))
    saved, ends = max(0, moved - own), tuple(_ends(region, found))
    return RegionReport(call.__name__, tuple(names), call.launches, saved, ends, call)


def _ends(region: Region, found: Partition) -> list[str]:
    """Who reads the results of a region, and is in none for which reason."""
    inside = set(region.nodes)
    reasons: dict[str, None] = {}
    left = list(region.outputs)
    while left:
        for u in left.pop().users:
            kind = found.kinds[u]
            if kind is Kind.VIEW or (is_view(u) and kind is not Kind.ATEN):
                left.append(u)
            elif kind is Kind.ATEN:
                reasons[found.reasons.get(u, str(u.target))] = None
            elif kind is Kind.OURS and u not in inside:
                reasons["a later region"] = None
    return list(reasons)


def aten_nodes(found: Partition) -> dict[str, Counter[str]]:
    """What stays with ATen, by reason."""
    names: dict[str, Counter[str]] = {}
    for n, kind in found.kinds.items():
        if kind is Kind.ATEN and not is_item(n):
            why = found.reasons.get(n, "")
            text = str(n.target)
            names.setdefault("no lowering" if why.endswith("is left to ATen") else why, Counter())[
                text.removeprefix("aten.").removesuffix(".default")
            ] += 1
    return names
