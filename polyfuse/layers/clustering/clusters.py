"""Clusters: the pieces of a graph that are scheduled one by one.

    TensorGraph of hundreds of statements    ->    clusters, in an order that dependences agree with

Layer I looks for loops that all statements of a graph share, which is work that grows faster than the
number of statements and finds nothing where they have nothing in common.  So a graph is cut first:

contraction   a sum of products whose factors each lack an index that the other has (matrix products,
              convolutions): bound by arithmetic, and a cluster of its own
connection    other statements come together where a tensor goes from one to the other, or where both read
              one; those that nothing connects are apart, and may be packed (layer III)
separators    numbers that come from several clusters or go to several (the norm of all gradients) tie
              nothing together: each stays with those of its kind
size          a cluster has at most `most` statements; where one would be larger it is cut where tensors
              are small

With `partition="search"` a graph is cut along the patterns that the cost model likes best instead
(`layers.clustering.search`); contractions, pieces of one tensor and recurrences are as above.

No group of statements is formed that others lie between (`layers.clustering.quotient`).  Sources: Apollo
(MLSys'22) section 3, cluster extraction; opaque operators by relations, not by names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

from polyfuse.cost.extents import OPEN_SIZE
from polyfuse.decisions import Decision
from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IConst, IndexExpr, evaluate, product, sizes
from polyfuse.ir.target import Target, as_target
from polyfuse.ir.tensor_graph import (
    Apply,
    Expr,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    plain_variables,
    reads,
    statement_reads,
    walk,
)
from polyfuse.layers.clustering.cuts import Cut, Cuts
from polyfuse.layers.clustering.quotient import Quotient
from polyfuse.layers.clustering.search import Nodes, PlanSearch, union
from polyfuse.layers.contractions.contraction import Followed, followed
from polyfuse.layers.fusion.rematerialise import too_large
from polyfuse.layers.graph.inline import inlinable, inline
from polyfuse.layers.packing.blas_products import Library, Wanted, library_product
from polyfuse.poly.model.domains import specialize
from polyfuse.poly.scheduling.axis_planner import strongly_connected

Partition = Literal["connect", "search"]
Feedback = Literal["failures", "model", "measure"]

# Clusters come together along a tensor of which one element stands for at most so many of each: a number for
# each row ties rows together, one for a whole tensor does not.
ELEMENTS = 2048
# A cluster is large beside one whose largest tensor has this part of its bytes.
LARGER = 8


@dataclass(frozen=True, slots=True)
class Clustering:
    """How a graph of many statements is cut into clusters that are scheduled one by one.

    Parameters
    ----------
    most
        Statements of a cluster at most (those that must stay together count, but are never cut).
    whole
        Graphs with at most so many statements are not cut, but for what a library computes.
    library
        What is left to a library: matrix products that it computes faster ("auto"), all, or none.
    partition
        "connect": along large tensors; "search": into the patterns of the best plan that is found.
    feedback
        Which clusters are cut and tried again: "failures": those that cannot be compiled; "model": also those
        that the cost model finds slower than their parts; "measure": those that are, on a CPU, which takes a
        few seconds more.

    groups
        The clusters by hand, as names of statements (those that `polyfuse emit --stage micro` shows); None
        leaves them to the fields above.

    Raises
    ------
    ArgumentError
        PF419 for a word that a field does not know.

    Notes
    -----
    Apollo (MLSys 2022), section 3.

    Examples
    --------
    >>> f = pf.compile("stdlib:layer_norm", clustering=pf.Clustering(most=20), target="cpu")
    """

    most: int = 40
    whole: int = 40
    library: Wanted = "auto"
    partition: Partition = "connect"
    feedback: Feedback = "model"
    groups: Cut | None = None

    def __post_init__(self) -> None:
        if self.feedback not in get_args(Feedback):
            known = " or ".join(map(repr, get_args(Feedback)))
            raise ArgumentError(f"there is no feedback {self.feedback!r}", code="PF419", hint=known)
        if self.library not in get_args(Wanted):
            known = " or ".join(map(repr, get_args(Wanted)))
            raise ArgumentError(f"a library cannot be used {self.library!r}", code="PF419", hint=known)
        if self.partition not in get_args(Partition):
            known = " or ".join(map(repr, get_args(Partition)))
            raise ArgumentError(f"a graph cannot be cut by {self.partition!r}", code="PF419", hint=known)

    def clusters(
        self,
        graph: TensorGraph,
        decisions: list[Decision],
        machine: Target | int = 2,
        remote: bool = True,
        core: Core | None = None,
        strided: frozenset[str] = frozenset(),
    ) -> list[tuple[str, ...]]:
        """The clusters of a graph, each with its statements in order of the graph.

        Parameters
        ----------
        graph
            The statements.
        decisions
            The list that what is decided goes to.
        machine
            What kernels are for; a number is a CPU with so many threads.
        remote
            Will independent clusters be packed, as a search asks?
        core
            That of a CPU.
        strided
            Tensors that need not be dense.
        """
        names = tuple(s.name for s in graph.statements)
        target = as_target(machine)
        if self.groups is not None:
            given = cuts_of(graph).checked(self.groups)
            decisions.append(Decision("clusters", graph.name, True, f"{len(given)} clusters, as given"))
            return [*given]
        products = [s for s in graph.statements if library_product(graph, s, target, strided)]
        if len(names) <= self.whole and (self.library == "never" or not products):
            return [names] if names else []
        if self.partition == "search":
            plan = search_of(graph, target, self.most).run(decisions, remote)
            return [tuple(names[s] for s in members) for members in plan]
        library = Library(self.library, target, core or Core(), strided)
        called = {s.name for s in products if library.product(graph, s, decisions)}
        tiled = followed(graph, called) if target.followers and not graph.sizes else {}
        found = _Clusters(graph, self.most).run(tiled)
        sizes_of = ", ".join(str(len(c)) for c in found)
        why = f"{len(found)} clusters of {sizes_of} statements, cut at contractions and small tensors"
        decisions.append(Decision("clusters", graph.name, True, why))
        return found


@dataclass(frozen=True, slots=True)
class _Groups:
    """Clusters in the making: how many statements each has, the bytes of its largest tensor, and those that
    stay alone."""

    graph: Quotient
    weight: dict[int, int]
    largest: dict[int, int]
    alone: frozenset[int]

    def merged(self, ties: list[tuple[int, int, int]], most: int) -> bool:
        """Put clusters together along the ties that allow it; whether there was one."""
        any_merged = False
        for nbytes, a, b in ties:
            x, y = self.graph.group(a), self.graph.group(b)
            if x == y or self.alone & {x, y} or self.weight[x] + self.weight[y] > most:
                continue
            if self._tied(nbytes, x, y) and self.graph.can_merge(x, y):
                weight, largest = self.weight[x] + self.weight[y], max(self.largest[x], self.largest[y])
                merged = self.graph.merge(x, y)
                self.weight[merged], self.largest[merged] = weight, largest
                any_merged = True
        return any_merged

    def _tied(self, nbytes: int, x: int, y: int) -> bool:
        """Does a tensor of so many bytes tie two clusters together?"""
        small, large = sorted((x, y), key=lambda g: self.largest[g])
        if ELEMENTS * nbytes < self.largest[small]:
            return False
        alike = self.largest[large] <= LARGER * self.largest[small]
        return alike or not self._separates(small)

    def _separates(self, g: int) -> bool:
        """Does a small cluster stand between several large ones?"""
        around = self.graph.inputs(g), self.graph.outputs(g)
        return any(sum(self.largest[x] > LARGER * self.largest[g] for x in side) > 1 for side in around)


class _Clusters:
    def __init__(self, graph: TensorGraph, most: int) -> None:
        self.graph = graph
        self.most = most
        self.statements = graph.statements
        self.writers: dict[str, list[int]] = defaultdict(list)
        self.readers: dict[str, list[int]] = defaultdict(list)
        for k, s in enumerate(graph.statements):
            self.writers[s.target].append(k)
            for name in dict.fromkeys(r.tensor for r in statement_reads(s)):
                self.readers[name].append(k)
        self.bytes = {t.name: _bytes(t) for t in graph.tensors}
        self.aliases = {t.name: t.alias for t in graph.tensors if t.alias is not None}
        self.alone = [is_contraction(s) for s in self.statements]

    def run(self, tiled: Followed | None = None) -> list[tuple[str, ...]]:
        """The clusters; `tiled` are contractions, each with what may follow its elements."""
        together = _bound_together(len(self.statements), list(self._edges()), self.writers)
        of = {s: k for k, t in enumerate(together) for s in t}
        quotient = Quotient(len(together), [(of[a], of[b]) for a, b in self._edges()])
        self._with_followers(quotient, of, tiled or {})
        members = {quotient.group(k): list[int]() for k in range(len(together))}
        for k, t in enumerate(together):
            members[quotient.group(k)] += t
        weight = {g: len(t) for g, t in members.items()}
        largest = {g: max(map(self._largest, t)) for g, t in members.items()}
        groups = _Groups(quotient, weight, largest, self._with_contraction(quotient, of))
        ties = sorted((*self._flows(), *self._shared()), key=lambda t: -t[0])
        pairs = [(nbytes, of[a], of[b]) for nbytes, a, b in ties]
        while groups.merged(pairs, self.most):
            pass  # what stood between two clusters may stand inside of one now
        ordered = [sorted(s for k in members for s in together[k]) for members in groups.graph.ordered()]
        return [tuple(self.statements[s].name for s in members) for members in ordered]

    def _with_contraction(self, quotient: Quotient, of: dict[int, int]) -> frozenset[int]:
        """The groups that have a contraction."""
        return frozenset(quotient.group(of[s]) for s, alone in enumerate(self.alone) if alone)

    def _with_followers(self, quotient: Quotient, of: dict[int, int], tiled: Followed) -> None:
        """Put to each contraction in tiles what is computed while it has an element."""
        at = {s.name: of[k] for k, s in enumerate(self.statements)}
        for name, followers in tiled.items():
            for follower in followers[: self.most - 1]:
                mine, its = quotient.group(at[name]), quotient.group(at[follower])
                free = its not in {mine, *self._with_contraction(quotient, of)}
                if free and quotient.can_merge(mine, its):
                    quotient.merge(mine, its)

    def nodes(self) -> Nodes:
        """What a search puts together, in dependence order."""
        together = _bound_together(len(self.statements), list(self._edges()), self.writers)
        of = {s: k for k, t in enumerate(together) for s in t}
        ordered = Quotient(len(together), [(of[a], of[b]) for a, b in self._edges()]).ordered()
        together = [together[k] for (k,) in ordered]
        of = {s: k for k, t in enumerate(together) for s in t}
        edges = {(of[a], of[b]) for a, b in self._edges() if of[a] != of[b]}
        outside = [readers for name, readers in self.readers.items() if name not in self.writers]
        return Nodes(
            tuple(map(tuple, together)),
            tuple(sorted(edges)),
            tuple(_set_of(of[r] for r in readers) for readers in outside if len(readers) > 1),
            _set_of(k for k, t in enumerate(together) if any(self.alone[s] for s in t)),
        )

    def _edges(self) -> Iterator[tuple[int, int]]:
        """Producer and consumer; and who reads the entry value of an inout parameter, and who replaces it."""
        for name, writers in self.writers.items():
            for w in writers:
                yield from ((w, r) for r in self.readers[name])
            if name in self.aliases:
                yield from ((r, w) for r in self.readers[self.aliases[name]] for w in writers)

    def _flows(self) -> list[tuple[int, int, int]]:
        """Bytes, producer and consumer; large tensors first, so that what is cut in the end is small."""
        pairs = [
            (-self.bytes[name], r, w)
            for name, writers in self.writers.items()
            for w in writers
            for r in self.readers[name]
        ]
        return [(-less, w, r) for less, r, w in sorted(pairs)]

    def _shared(self) -> list[tuple[int, int, int]]:
        """Bytes and pairs that read one tensor which is most of what either of them touches."""
        found = []
        for name, readers in self.readers.items():
            large = [k for k in readers if 2 * self.bytes[name] >= self._largest(k)]
            found += [(-self.bytes[name], a, b) for a, b in pairwise(large)]
        return [(-less, a, b) for less, a, b in sorted(found)]

    def _largest(self, k: int) -> int:
        s = self.statements[k]
        return max(self.bytes[n] for n in (s.target, *(r.tensor for r in statement_reads(s))))


def search_of(graph: TensorGraph, target: Target, most: int = 40) -> PlanSearch:
    """The search for a plan of a graph; sizes that are open count as layer II counts them."""
    fixed = specialize(graph, dict.fromkeys(graph.sizes, OPEN_SIZE)) if graph.sizes else graph
    return PlanSearch(fixed, _Clusters(fixed, most).nodes(), target, most)


def cuts_of(graph: TensorGraph) -> Cuts:
    """The cuts that a graph can have."""
    return Cuts(graph.name, tuple(s.name for s in graph.statements), _Clusters(graph, 1).nodes())


def _set_of(nodes: Iterable[int]) -> int:
    """A set as bits of a number."""
    return union(1 << k for k in nodes)


def _bytes(t: Tensor) -> int:
    """Of a tensor; one whose sizes are open counts by its rank."""
    count = product(t.shape)
    return t.dtype.bytes * (1024 ** len(t.shape) if sizes(count) else evaluate(count, {}))


def _bound_together(
    count: int, edges: list[tuple[int, int]], writers: dict[str, list[int]]
) -> list[list[int]]:
    """Statements that one cluster must have: pieces of one tensor, and recurrences."""
    successors: dict[str, list[str]] = {str(k): [] for k in range(count)}
    for a, b in edges:
        successors[str(a)].append(str(b))
    for pieces in writers.values():
        for a, b in pairwise(pieces):
            successors[str(a)].append(str(b))
            successors[str(b)].append(str(a))
    return [sorted(map(int, part)) for part in strongly_connected(tuple(successors), successors)]


def recompute_numbers(graph: TensorGraph, decisions: list[Decision], arguments: bool) -> TensorGraph:
    """Numbers that follow from constants alone are computed where they are read.

        c = rsqrt(64.0);   m0[i] = g0[i] * c;   m1[i] = g1[i] * c
    becomes
        m0[i] = g0[i] * rsqrt(64.0);   m1[i] = g1[i] * rsqrt(64.0)

    Kept, such a number is a step that all its readers wait for.  `arguments`: also numbers that follow from
    scalar arguments, as `1.0 - beta ** step` does; that pays where waiting costs more than computing.
    """
    known = {t.name for t in graph.tensors if t.role is Role.INPUT and not t.shape} if arguments else set()
    for t in graph.tensors:
        if t.role is not Role.TEMP or t.shape:
            continue
        made = inlinable(graph, t.name)
        if made is not None and all(r.tensor in known for r in reads(made.expr)):
            if (large := too_large(made)) is not None:
                decisions.append(Decision("recompute", t.name, False, large))
                continue
            graph = inline(graph, t.name)
            what = "scalar arguments" if reads(made.expr) else "constants"
            why = f"a number from {what} alone: what reads it computes it, and waits for none"
            decisions.append(Decision("recompute", t.name, True, why))
    return graph


def is_contraction(s: Statement) -> bool:
    """Is it a sum of products of which two factors each lack an index of the result that the other has?

    c[m, n] = sum[k](a[m, k] * b[k, n])         a lacks n, b lacks m: each element is read many times over
    d[m] = sum[k](a[m, k] * v[k])               v lacks m, a lacks nothing: as fast as a is read
    """
    if s.reduction != "sum":
        return False
    free = {d.name for d in s.dims if not d.reduce and not _single(d.lower, d.upper)}
    over = {d.name for d in s.dims if d.reduce}
    lacking = []
    for read in _factors(s.expr):
        used = plain_variables(read.indices)
        if used & over:
            lacking.append(free - used)
    return any(a - b and b - a for k, a in enumerate(lacking) for b in lacking[:k])


def _single(lower: IndexExpr, upper: IndexExpr) -> bool:
    return isinstance(lower, IConst) and isinstance(upper, IConst) and upper.value - lower.value == 1


def _factors(e: Expr) -> tuple[Read, ...]:
    """The reads on both sides of the products in an expression."""
    products = [x for x in walk(e) if isinstance(x, Apply) and x.op == "mul"]
    return tuple(dict.fromkeys(r for x in products for r in reads(x)))


def cut_off(graph: TensorGraph, clusters: Sequence[tuple[str, ...]]) -> list[TensorGraph]:
    """Each cluster as a graph of its own: what comes from others is an input, what they read a result.

    An inout parameter is one where its new value is written, and an input where its old one is only read.
    """
    of = {name: k for k, names in enumerate(clusters) for name in names}
    chosen: list[list[Statement]] = [[] for _ in clusters]
    readers: dict[str, set[int]] = defaultdict(set)
    touching: dict[str, set[int]] = defaultdict(set)
    for s in graph.statements:
        k = of[s.name]
        chosen[k].append(s)
        touching[s.target].add(k)
        for r in statement_reads(s):
            readers[r.tensor].add(k)
            touching[r.tensor].add(k)
    tensors: list[list[Tensor]] = [[] for _ in clusters]
    for t in graph.tensors:
        for k in touching[t.name]:
            tensors[k].append(t)
        for x in (graph.tensor(t.alias),) if t.alias is not None else ():
            for k in touching[t.name] - touching[x.name]:
                tensors[k].append(x)
    return [
        _cut(graph, tuple(chosen[k]), tensors[k], {n for n, ks in readers.items() if ks - {k}})
        for k in range(len(clusters))
    ]


def _cut(
    graph: TensorGraph, chosen: tuple[Statement, ...], touched: list[Tensor], outside: set[str]
) -> TensorGraph:
    written = {s.target for s in chosen}
    read = {r.tensor for s in chosen for r in statement_reads(s)}
    replaced = {t.alias for t in touched if t.name in written and t.alias is not None}
    tensors = []
    for t in touched:
        if t.name in written:
            passed_on = t.role is Role.TEMP and t.name in outside
            tensors.append(replace(t, role=Role.OUTPUT) if passed_on else t)
        elif t.name in replaced:
            tensors.append(t)
        elif t.name in read:
            tensors.append(replace(t, role=Role.INPUT, alias=None))
    inputs = tuple(t.name for t in tensors if t.role in (Role.INPUT, Role.INOUT))
    outputs = tuple(t.name for t in tensors if t.role is Role.OUTPUT and t.alias is None)
    return replace(graph, tensors=tuple(tensors), statements=chosen, inputs=inputs, outputs=outputs)
