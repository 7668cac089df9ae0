"""Which kernels may share one launch with barriers between: those that depend on each other.

    a; b; c      c reads what a and b made      ->      [a, b, c]
    a; b; c      c reads what a made            ->      [a, c], b

A kernel joins the latest group that it depends on, and where it needs several groups these are joined with
it.  Kernels without a dependence stay apart: a barrier would make one wait for the other for nothing, and
side by side they fill the machine better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph
from polyfuse.ir.tensor_graph import TensorGraph, statement_reads
from polyfuse.layers.shared_plan import overlaid

Group = tuple[Kernel, ...]
# Groups in order and the kernel after them -> whether they are joined, and why.
Judge = Callable[[Sequence[Group], Kernel], tuple[bool, str]]


def grouped(
    kernels: KernelGraph, judge: Judge, kind: str, decisions: list[Decision], apart: bool = True
) -> list[Group]:
    """The kernels in groups, in an order that respects dependences.

    Without `apart` a kernel also joins what it does not depend on.
    """
    groups: list[Group] = []
    reasons: dict[str, str] = {}
    uses = _Uses(kernels.graph)
    place = {k.name: n for n, k in enumerate(kernels.kernels)}
    for k in kernels.kernels:
        needed = [g for g in groups if not apart or uses.depend(g, (k,))]
        movable = _at_the_end(groups, needed, uses)
        if not needed:
            if groups:
                reason = "it needs nothing that others make before it: a barrier would only make it wait"
                decisions.append(Decision(kind, k.name, False, reason))
            groups.append((k,))
            continue
        reason = ""
        for first in range(len(movable)):  # all that it needs, else the later ones
            taken, reason = judge(movable[first:], k)
            if taken:
                parts = tuple(p for g in movable[first:] for p in g)
                groups = [g for g in groups if g not in movable[first:]]
                groups.append((*sorted(parts, key=lambda p: place[p.name]), k))
                reasons[k.name] = reason
                break
        else:
            reason = reason or "others that need what it needs come between"
            decisions.append(Decision(kind, k.name, False, reason))
            groups.append((k,))
    for g in groups:
        if len(g) > 1:
            decisions.append(Decision(kind, ", ".join(p.name for p in g), True, reasons[g[-1].name]))
    return groups


def _at_the_end(groups: list[Group], needed: list[Group], uses: _Uses) -> list[Group]:
    """Those of the needed groups that may be moved behind all others."""
    found: list[Group] = []
    for n in reversed(needed):
        later = [g for g in groups[groups.index(n) + 1 :] if g not in found]
        if not any(uses.depend(n, g) for g in later):
            found.insert(0, n)
    return found


class _Uses:
    """What kernels touch outside of themselves; an inout parameter and its new value are one memory."""

    def __init__(self, graph: TensorGraph) -> None:
        self._memory = {t.name: t.alias or t.name for t in graph.tensors}
        self._known: dict[str, tuple[set[str], set[str]]] = {}  # by the kernel's name

    def depend(self, first: Group, second: Group) -> bool:
        """Does one of the two write what the other touches?"""
        return any(self._meet(a, b) for a in first for b in second)

    def _meet(self, first: Kernel, second: Kernel) -> bool:
        (written, read), (also_written, also_read) = self._of(first), self._of(second)
        apart = written.isdisjoint(also_written) and written.isdisjoint(also_read)
        return not (apart and read.isdisjoint(also_written))

    def _of(self, k: Kernel) -> tuple[set[str], set[str]]:
        """(written, read)"""
        if k.name not in self._known:
            outside = {b.tensor for b in k.arguments}
            written = {self._memory[s.target] for s in k.graph.statements if s.target in outside}
            touched = {r.tensor for s in k.graph.statements for r in statement_reads(s)}
            self._known[k.name] = written, {self._memory[t] for t in touched & outside}
        return self._known[k.name]


def one_kernel(parts: Group, threads: tuple[int, int] = (1, 1), resident: int = 0, per_sm: int = 1) -> Kernel:
    """One kernel that runs several, one stage for each."""
    graph = replace(
        parts[0].graph,
        statements=tuple(s for p in parts for s in p.graph.statements),
        tensors=tuple(dict.fromkeys(t for p in parts for t in p.graph.tensors)),
    )
    buffers: dict[str, Buffer] = {}
    for p in parts:
        for b in p.buffers:
            buffers.setdefault(b.tensor, b)
    return Kernel(
        parts[0].name,
        graph,
        tuple(s for p in parts for s in p.stages),
        overlaid(parts, tuple(buffers.values())),
        threads,
        1,
        frozenset(n for p in parts for n in p.atomic),
        parts,
        resident,
        per_sm,
    )
