"""What goes from where to where in finished kernels, and by which of AStitch's schemes.

Independent   nothing goes from one to the other; both read one element of an input
Local         what a thread (CPU: an iteration of a worker) uses, it made itself, or has the total of
Regional      what a block (a worker) uses, it made itself: shared memory, an array in cache
Global        the rest: global memory, after a barrier of the grid or in a later kernel

The first three are subset tests on the flow between statement instances and the places where those run.

Source: AStitch (ASPLOS'22) section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from polyfuse.decisions import Decision
from polyfuse.ir.functions import has_function
from polyfuse.ir.kernel import Kernel, KernelGraph, Scope, placement, tree
from polyfuse.ir.schedule_tree import Coordinate, Member, path
from polyfuse.ir.tensor_graph import Purpose, Role, Statement, TensorGraph, statement_reads
from polyfuse.layers.graph.inline import inline
from polyfuse.layers.mapping.nests import volume
from polyfuse.poly.model.domains import PolyModel, build_model
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.scheduling.placement import Links

_Places = Mapping[str, tuple[Kernel, Kernel]]
Scheme = Literal["Independent", "Local", "Regional", "Global"]


@dataclass(frozen=True, slots=True)
class Edge:
    """From a producer to a consumer in `kernel`: what goes, how, where it is kept, and why so."""

    kernel: str
    producer: str
    consumer: str
    tensor: str
    scheme: Scheme
    storage: Scope
    why: str

    def __str__(self) -> str:
        return f"{self.producer} -> {self.consumer}: {self.scheme}, {self.storage.value}: {self.why}"

    def row(self) -> tuple[str, ...]:
        ends = f"{self.producer} -> {self.consumer}"
        return self.kernel, ends, self.tensor, self.scheme, self.storage.value, self.why


@dataclass(frozen=True, slots=True)
class Schemes:
    """Every edge of some kernels; `print` shows a table."""

    edges: tuple[Edge, ...]

    def of(self, producer: str, consumer: str) -> Scheme:
        """The scheme from one statement to another."""
        found = [e.scheme for e in self.edges if (e.producer, e.consumer) == (producer, consumer)]
        return found[0] if found else "Independent"

    def __str__(self) -> str:
        rows = [("kernel", "edge", "tensor", "scheme", "storage", "why"), *(e.row() for e in self.edges)]
        widths = [max(len(r[c]) for r in rows) for c in range(5)]
        return "\n".join(
            "  ".join([*(x.ljust(w) for x, w in zip(r, widths, strict=False)), r[-1]]) for r in rows
        )


def schemes(kernels: KernelGraph) -> Schemes:
    """Of all pairs of statements that an element goes between, or that read one element of an input."""
    parts = list(_parts(kernels))
    place = {n: (k, p) for k, p in parts for n in p.statements}
    found: list[Edge] = []
    with isl_lock:
        for k, part in parts:
            judge = _Judge(part)
            for consumer in part.graph.statements:
                for tensor in dict.fromkeys(r.tensor for r in statement_reads(consumer)):
                    for producer in producers(kernels.graph, tensor, consumer):
                        found.append(_edge(k, judge, producer, consumer, tensor, place))
            found += judge.independent(k.name)
    return Schemes(tuple(found))


def _edge(
    k: Kernel, judge: _Judge, producer: Statement, consumer: Statement, tensor: str, place: _Places
) -> Edge:
    there, part = place[producer.name]
    scheme: Scheme = "Global"
    if there is not k:
        why = f"made in {there.name}, a launch before"
    elif part is not judge.part:
        why = "made before a barrier of all blocks"
    else:
        scheme, why = judge.scheme(producer, consumer)
    storage = judge.part.buffer(tensor).scope
    return Edge(k.name, producer.name, consumer.name, tensor, scheme, storage, why)


def producers(graph: TensorGraph, tensor: str, consumer: Statement) -> list[Statement]:
    """Who writes what a statement reads; it waits for totals, not for what they start from."""
    writers = [s for s in graph.writers(tensor) if s.name != consumer.name]
    return [s for s in writers if s.purpose is not Purpose.INIT]


def _parts(kernels: KernelGraph) -> Iterator[tuple[Kernel, Kernel]]:
    """Kernels as launched, each with what runs in it between barriers."""
    for k in kernels.kernels:
        for one in k.packed or (k,):
            for part in one.parts or (one,):
                yield k, part


class _Judge:
    """Tests on one kernel, or one part of a kernel between barriers of the grid."""

    def __init__(self, part: Kernel) -> None:
        self.part = part
        self.where = placement(part)
        self.links = Links(build_model(part.graph))
        self.on_gpu = part.threads != (1, 1) or any(Coordinate.THREAD in w for w in self.where.values())

    def scheme(self, producer: Statement, consumer: Statement) -> tuple[Scheme, str]:
        """The scheme between two statements of the part, and what it follows from."""
        a, b = producer.name, consumer.name
        if not self.links.leads((a,), (b,)):
            return "Independent", "they touch different elements"
        pairs = self.links.flow((a,), (b,))

        def agree(coordinate: Coordinate) -> bool:
            mine, theirs = (self.where[n].get(coordinate, ()) for n in (a, b))
            return len(mine) == len(theirs) and all(
                self.links.agree(pairs, Member("", ((a, x),)), Member("", ((b, y),)))
                for x, y in zip(mine, theirs, strict=True)
            )

        if not agree(Coordinate.BLK):
            return "Global", f"other {'blocks' if self.on_gpu else 'workers'} need it"
        if self.on_gpu:
            return self._in_block(producer, agree(Coordinate.ROW), agree(Coordinate.THREAD))
        return self._in_worker(producer, consumer)

    def _in_block(self, producer: Statement, row: bool, thread: bool) -> tuple[Scheme, str]:
        place = self.where[producer.name]
        combined = producer.reduction is not None and (Coordinate.ROUND in place or Coordinate.STEP in place)
        if row and combined:
            return "Local", "its threads combine it: each has the total"
        if row and Coordinate.THREAD not in place:
            return "Local", "every thread of the row makes it for itself"
        if row and thread:
            return "Local", "the same block, row and thread"
        return "Regional", "the same block, other threads"

    def _in_worker(self, producer: Statement, consumer: Statement) -> tuple[Scheme, str]:
        mine, theirs = (list(path(tree(self.part), s.name)) for s in (producer, consumer))
        common = [a for a, b in takewhile(lambda p: p[0] == p[1], zip(mine, theirs, strict=False))]
        loops = [m for m in common if isinstance(m, Member)]
        within = f"an iteration of {', '.join(m.name for m in loops)}" if loops else "the kernel"
        if self.part.buffer(producer.target).scope is Scope.REGISTER:
            return "Local", f"one element in {within}"
        every = (sum(isinstance(m, Member) for m in way) for way in (mine, theirs))
        if all(count == len(loops) for count in every):
            return "Local", f"both are in {within}"
        return "Regional", f"the same worker, loops of their own in {within}"

    def independent(self, kernel: str) -> list[Edge]:
        """Pairs that only read elements of one input."""
        found = []
        names = self.part.statements
        for k, a in enumerate(names):
            for b in names[k + 1 :]:
                shared = self.links.share((a,), (b,)) or self.links.share((b,), (a,))
                if shared and not (self.links.leads((a,), (b,)) or self.links.leads((b,), (a,))):
                    tensor = self._input(a, b)
                    why = "nothing goes between; both read it"
                    storage = self.part.buffer(tensor).scope
                    found.append(Edge(kernel, a, b, tensor, "Independent", storage, why))
        return found

    def _input(self, a: str, b: str) -> str:
        """An input that both read."""
        reads = [[r.tensor for r in statement_reads(self.part.graph.statement(n))] for n in (a, b)]
        written = {s.target for s in self.part.graph.statements}
        return next(t for t in reads[0] if t in reads[1] and t not in written)


# --- dominants --------------------------------------------------------------------------------------------

# Dominants: the statements of a kernel that the others follow.
#
# candidates   reductions, outputs, and expensive statements of which several others read one element
# local edge   each element that goes over it is read by one instance: no broadcast, nothing found by data
# merging      candidates that local edges join, by way of other statements, are one group; a reduction
#              dominates it before others, then what has most instances; the losers are sub-dominants
#
# A group without a reduction follows a reduction that reads the same elements of an input.  In
#
#     r1[t] = sum[h](x[t, h]);  p[t] = r1[t] ** 1.3;  c[t, h] = p[t] + y[t, h];  r2[t] = sum[h](c[t, h]);
#     z[t, h] = c[t, h] * r2[t]
#
# r1 dominates p, and r2 dominates c and z: p goes to many c, and r2 to many z.
#
# Source: AStitch (ASPLOS'22) section 4.2.


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
