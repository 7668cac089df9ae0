"""What makes a fused cluster doubtful, once there are kernels of it, and where to cut it.

lost coincidence   a kernel keeps so little of the machine busy, because its statements share loops, that one
                   of them alone would be faster by more than a launch
predicted slower   the model says of a kernel that it takes longer than its statements one by one, and that
                   most of its time parts of the machine are idle
rows in pieces     memory takes long for short pieces of many rows, which a statement alone reads whole
measured slower    where kernels are timed: nothing speaks against the slowest kernel, but a clock might

Figures of statements are those of the plan search (`layers.pattern_figures`), those of kernels are of the
speed-of-light model.  A doubt is no verdict: `feedback` compiles the parts, and takes what is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from polyfuse.cost.figures import KernelEstimate
from polyfuse.cost.idle import busy_s
from polyfuse.cost.machines import machine_of
from polyfuse.cost.speed_of_light import estimate
from polyfuse.cost.stitching_gain import microseconds
from polyfuse.ir.target import Target
from polyfuse.ir.tensor_graph import statement_reads
from polyfuse.layers.clusters import search_of
from polyfuse.layers.explorer import bits, union
from polyfuse.layers.joining import Piece
from polyfuse.layers.plan_search import PlanSearch

# Two ways to do the same are told apart by the model where one takes so many times as long: it is not exact,
# and what shares loops is fused for reasons that were weighed before.
APART = 1.5
# A kernel that is busy for more than this share of its time is not slow because of what it shares.
BUSY = 0.6


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a cluster may be faster in parts ("" if a clock is to tell), the parts in dependence order, and the
    edge where it is cut.  `deep`: parts may have the same fault, and are cut before they are judged."""

    why: str
    parts: tuple[tuple[str, ...], ...]
    edge: str
    deep: bool = False


def doubt_of(piece: Piece, target: Target) -> Doubt | None:
    """About the kernel of a cluster that is slowest compared with what its statements could be."""
    if piece.graph.sizes or len(piece.graph.statements) < 2:
        return None
    return _Suspicion(piece, target).doubt()


def any_cut(piece: Piece, target: Target) -> Doubt | None:
    """Where a cluster would be cut if it must be: in its slowest kernel that has several statements."""
    if piece.graph.sizes or len(piece.graph.statements) < 2:
        return None
    return _Suspicion(piece, target).cut_somewhere()


class _Suspicion:
    """The kernels of a cluster beside the figures of its statements."""

    def __init__(self, piece: Piece, target: Target) -> None:
        self.piece, self.target, self.machine = piece, target, machine_of(target)
        self.search: PlanSearch = search_of(piece.graph, target)
        self.kernels = estimate(piece.kernels, self.machine).kernels
        self.home = _homes(piece, self.search)

    def doubt(self) -> Doubt | None:
        found = []
        for k, group in self._shared():
            kernel = self.kernels[k]
            pieces = self._in_pieces(kernel)
            why = pieces or self._lost(kernel, group) or self._slower(kernel, group)
            if why is not None:
                seconds, first = self._cut(group, after_sums=pieces is not None)
                cut = self._at(k, first, group, why)
                # Figures of statements know no pieces; those of the kernels of parts do.
                if seconds * (1.0 if pieces else APART) < self.kernels[k].seconds and cut is not None:
                    cut = replace(cut, deep=pieces is not None)
                    found.append((self.kernels[k].seconds - seconds, cut))
        return max(found, key=lambda f: f[0])[1] if found else None

    def cut_somewhere(self) -> Doubt | None:
        shared = [(self.kernels[k].seconds, k, group) for k, group in self._shared()]
        if not shared:
            return None
        _, k, group = max(shared)
        return self._at(k, self._cut(group)[1], group, "")

    def _shared(self) -> Iterator[tuple[int, int]]:
        """Kernels that have several nodes of the search, and these."""
        for k in range(len(self.kernels)):
            group = union(1 << node for node, home in enumerate(self.home) if home == k)
            if group & (group - 1):
                yield k, group

    # --- reasons ------------------------------------------------------------------------------------------

    def _lost(self, kernel: KernelEstimate, group: int) -> str | None:
        """Does a statement lose more than a launch because the kernel keeps less of the machine busy?"""
        stitching = self.search.cost.stitching
        whole = stitching.share_of(kernel.blocks)
        for node in bits(group):
            alone = self.search.of(1 << node)
            busy, real = stitching.times(alone, self.search.cost.touched)
            lost = busy / whole - real
            if stitching.share(alone) > APART * whole and lost > stitching.launch_s:
                names = self._names(1 << node)
                return (
                    f"lost coincidence: common loops keep {whole:.0%} of the machine busy, "
                    f"{names} alone {stitching.share(alone):.0%}"
                )
        return None

    def _slower(self, kernel: KernelEstimate, group: int) -> str | None:
        """Is the kernel slower than its statements one by one, and idle?"""
        apart = self.search.seconds(1 << node for node in bits(group))
        if kernel.seconds <= apart * APART or busy_s(kernel, self.machine) > BUSY * kernel.terms.spent:
            return None
        return (
            f"predicted slower: its kernel takes {microseconds(kernel.seconds)}, its statements one by one "
            f"{microseconds(apart)}"
        )

    def _in_pieces(self, kernel: KernelEstimate) -> str | None:
        """Does memory behind caches take much of its time for short pieces of many rows?"""
        lost = kernel.terms.latency
        if not self.target.row_caches or lost * APART < kernel.seconds - lost:
            return None
        return f"rows in pieces: of many rows it touches a piece at a time, {microseconds(lost)} longer"

    # --- where to cut ---------------------------------------------------------------------------------------

    def _cut(self, group: int, after_sums: bool = False) -> tuple[float, int]:
        """The faster halves that an edge, or what two read, can be cut into: seconds of both, the first.

        `after_sums`: what follows a reduction is cut off, if anything does."""
        order = self.search.explorer.order
        firsts = {group & ~(order.after[n] | 1 << n) for n in bits(group)}
        firsts |= {group & (order.before[n] | 1 << n) for n in bits(group)}
        sums = [n for n in bits(group) if self._reduces(n)]
        ended = {group & (order.before[n] | 1 << n) for n in sums if after_sums} - {group}
        able = [first for first in ended or firsts if first and first != group]
        return min((self.search.seconds((first, group & ~first)), first) for first in able)

    def _at(self, kernel: int, first: int, group: int, why: str) -> Doubt | None:
        """The cluster cut there: what runs before is with the first half, what runs later with the second.

        None where the first half needs all of the second, which an earlier kernel recomputes.
        """
        before = first | union(1 << n for n, home in enumerate(self.home) if home < kernel)
        everything = (1 << len(self.home)) - 1
        before |= union(self.search.explorer.order.before[n] for n in bits(before))
        if before & group == group:
            return None
        statements = self.piece.graph.statements
        parts = tuple(
            tuple(statements[s].name for s in sorted(x for n in bits(half) for x in self._of(n)))
            for half in (before, everything & ~before)
        )
        return Doubt(why, parts, self._edge(first, group & ~first))

    def _edge(self, first: int, second: int) -> str:
        """The first edge between two halves."""
        for a, b in self.search.nodes.edges:
            if first >> a & 1 and second >> b & 1:
                return f"{self._names(1 << a)} -> {self._names(1 << b)}"
        return f"{self._names(first)} | {self._names(second)}"

    def _reduces(self, node: int) -> bool:
        return any(self.piece.graph.statements[s].reduction for s in self._of(node))

    def _of(self, node: int) -> Sequence[int]:
        return self.search.nodes.statements[node]

    def _names(self, group: int) -> str:
        names = [self.piece.graph.statements[s].name for n in bits(group) for s in self._of(n)]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _homes(piece: Piece, search: PlanSearch) -> list[int]:
    """For each node of the search the kernel that computes it; what was inlined is with its first reader."""
    written: dict[str, int] = {}
    for k, kernel in enumerate(piece.kernels.kernels):
        for s in kernel.graph.statements:
            written[s.target] = k
    statements = piece.graph.statements
    last = len(piece.kernels.kernels) - 1
    homes: dict[str, int] = {}
    for s in reversed(statements):
        readers = [homes[r.name] for r in statements if r.name in homes and _reads(r, s.target)]
        homes[s.name] = written.get(s.target, min(readers, default=last))
    return [homes[statements[node[0]].name] for node in search.nodes.statements]


def _reads(reader: object, tensor: str) -> bool:
    return any(r.tensor == tensor for r in statement_reads(reader))  # type: ignore[arg-type]
