"""The loops of a recurrence in its own order, found without isl's scheduler: for the plan without fusion.

    x__sum[i, m] = sum[k in 0..i](l[i, k] * x[k, m])        band i (ordered)
    x[i, m] = (b[i, m] - x__sum[i, m]) / l[i, i]       ->     - band m, k: x__sum
                                                              - band m: x

One loop after the other, outermost first.  In a loop each statement of the recurrence runs over one of its
dims, forwards or backwards and so many iterations later as what it needs asks for, or takes part in one
iteration only.  What the loop carries is done; inside, statements that no longer need each other have loops
of their own.  Where no dims will do, sums of two are tried.

The axis planner asks for constant distances along an axis; here isl says how far each dependence goes back at
most, the minimum of a relation.  The result is a proposal; `poly.legality.schedules` proves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf

import islpy as isl

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary
from polyfuse.ir.schedule_tree import Member, Tree, band, sequence
from polyfuse.ir.tensor_graph import IterDim, TensorGraph
from polyfuse.poly.model.dependences import accumulation_order
from polyfuse.poly.model.domains import PolyModel, build_model
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.scheduling.axis_planner import loops_of, program_order, strongly_connected
from polyfuse.poly.scheduling.macro_statements import Pairs, pairs_of
from polyfuse.poly.scheduling.tree_convert import axis_name, value_map, with_one_value

# Factors of two dims whose sum is tried where no dims alone will do.
SUMS = ((1, 1), (1, -1), (-1, 1), (2, 1), (1, 2), (2, -1), (1, -2), (-1, 2), (-2, 1), (-1, -1))

# Of a statement, the dims whose value the loops outside tell.
Told = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Run:
    """What a loop is for a statement, and the dim whose value it tells ("" if none)."""

    value: IndexExpr
    tells: str = ""


def own_order(graph: TensorGraph) -> Tree:
    """A tree of all statements, each in loops of its own but for those of recurrences.

    Raises ScheduleError where a recurrence advances along no such loops: PF512, or PF513 with open sizes, as
    its places may depend on these.
    """
    with isl_lock:
        real = build_model(graph)
        model = build_model(_with_terms(graph), real.context)
        order = model.all_writes().apply_range(real.all_reads().reverse()).union(accumulation_order(real))
        names = program_order(graph, model.domains)
        told = dict.fromkeys(names, frozenset[str]())
        empty = tuple(n for n in names if model.domains[n].is_empty())
        rest = tuple(n for n in names if n not in empty)
        return sequence([*(loops_of(graph, n, told[n]) for n in empty), _tree(model, rest, order, told)])


def _with_terms(graph: TensorGraph) -> TensorGraph:
    """The graph with one term in each sum that has none: who reads what an empty one leaves comes after."""

    def with_one(d: IterDim) -> IterDim:
        return replace(d, upper=binary("max", d.upper, binary("+", d.lower, 1))) if d.reduce else d

    found = (replace(s, dims=tuple(map(with_one, s.dims))) for s in graph.statements)
    return replace(graph, statements=tuple(found))


def _tree(model: PolyModel, names: tuple[str, ...], order: isl.UnionMap, told: Told) -> Tree:
    return sequence([_part(model, part, order, told) for part in _parts(names, pairs_of(order))])


def _parts(names: tuple[str, ...], pairs: Pairs) -> list[tuple[str, ...]]:
    """Statements that need each other, in dependence order."""
    successors: dict[str, list[str]] = {n: [] for n in names}
    for (source, sink), m in pairs.items():
        if source in successors and sink in successors and not m.is_empty():
            successors[source].append(sink)
    found = strongly_connected(names, successors)
    return [tuple(sorted(p, key=names.index)) for p in found]


def _part(model: PolyModel, names: tuple[str, ...], order: isl.UnionMap, told: Told) -> Tree:
    domain = model.domain(names)
    order = order.intersect_domain(domain).intersect_range(domain)
    if order.is_empty():
        (name,) = names
        return loops_of(model.graph, name, told[name])
    runs = _Search(model, names, pairs_of(order), told).best(order)
    inside = {n: told[n] | {r.tells} for n, r in runs.items()}
    loop = _member(runs)
    return band([loop], _tree(model, names, with_one_value(model, order, loop, loop), inside))


def _member(runs: Mapping[str, Run]) -> Member:
    rows = tuple((n, runs[n].value) for n in sorted(runs))
    return Member(axis_name(rows, 0), rows)


# --- one loop ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Search:
    """For a loop around statements that need each other through `pairs`."""

    model: PolyModel
    names: tuple[str, ...]
    pairs: Pairs
    told: Told
    known: dict[tuple[str, IndexExpr, str, IndexExpr], float] = field(default_factory=dict)

    def best(self, order: isl.UnionMap) -> dict[str, Run]:
        """The first loop that leaves the fewest statements in recurrences, of those that carry something."""
        for choices in (self._dims, self._sums):
            found: list[tuple[int, dict[str, Run]]] = []
            for runs in self._loops(choices):
                loop = _member(runs)
                rest = with_one_value(self.model, order, loop, loop)
                if order.is_subset(rest):
                    continue
                left = pairs_of(rest)
                parts = _parts(self.names, left)
                found.append((sum(len(p) for p in parts if len(p) > 1 or (p[0], p[0]) in left), runs))
                if found[-1][0] == 0:
                    break
            if found:
                return min(found, key=lambda f: f[0])[1]
        raise self._none()

    def _none(self) -> ScheduleError:
        span = self.model.graph.statement(self.names[0]).span
        what = f"no loops keep the order of the recurrence through '{self.names[0]}'"
        if not self.model.params:
            return ScheduleError(what, code="PF512", span=span)
        open_sizes = f"with {', '.join(self.model.params)} open"
        return ScheduleError(
            f"{what} {open_sizes}", code="PF513", span=span, hint="give them to specialize()"
        )

    def _dims(self, name: str) -> list[Run]:
        """Each dim, forwards and backwards."""
        dims = [
            d for d in (x.name for x in self.model.graph.statement(name).dims) if d not in self.told[name]
        ]
        return [*(Run(IVar(d), d) for d in dims), *(Run(binary("-", 0, IVar(d)), d) for d in dims)]

    def _sums(self, name: str) -> list[Run]:
        """Each dim, and sums of two."""
        alone = self._dims(name)
        pairs = combinations([r.tells for r in alone[: len(alone) // 2]], 2)
        return [*alone, *(_sum(a, b, p, q) for a, b in pairs for p, q in SUMS)]

    def _loops(self, choices: Callable[[str], list[Run]]) -> Iterator[dict[str, Run]]:
        """Loops that no dependence goes against, for each choice of each statement."""
        for name in self.names:
            for run in choices(name):
                runs = self._moved(self._with_neighbours(name, run, choices))
                if runs is not None:
                    yield runs

    def _with_neighbours(self, name: str, run: Run, choices: Callable[[str], list[Run]]) -> dict[str, Run]:
        """One choice made, and for the others what goes back least from and to those already chosen."""
        runs = {name: run}
        while len(runs) < len(self.names):
            near = next(n for n in self.names if n not in runs and any(self._between(n, m) for m in runs))
            tried = [*choices(near), Run(IConst(0))]
            runs[near] = min(tried, key=lambda r: sum(self._back({**runs, near: r}, near).values()))
        return runs

    def _between(self, a: str, b: str) -> bool:
        return (a, b) in self.pairs or (b, a) in self.pairs

    def _back(self, runs: Mapping[str, Run], of: str = "") -> dict[tuple[str, str], float]:
        """How far each dependence between chosen statements (of one of them) goes back at most; less than 0
        where all go forwards."""
        ends = ((a, b) for a, b in self.pairs if a in runs and b in runs and (not of or of in (a, b)))
        return {(a, b): self._most(a, runs[a].value, b, runs[b].value) for a, b in ends}

    def _most(self, source: str, first: IndexExpr, sink: str, second: IndexExpr) -> float:
        key = source, first, sink, second
        if key not in self.known:
            values = value_map(self.model, source, first), value_map(self.model, sink, second)
            steps = self.pairs[source, sink].apply_domain(values[0]).apply_range(values[1]).deltas()
            least = steps.dim_min_val(0)
            self.known[key] = -least.to_python() if least.is_int() else inf
        return self.known[key]

    def _moved(self, runs: dict[str, Run]) -> dict[str, Run] | None:
        """Statements moved by so many iterations that no dependence goes back; None if that is in vain."""
        back = self._back(runs)
        if inf in back.values():
            return None
        later = dict.fromkeys(self.names, 0.0)
        for _ in range(len(self.names) + 1):
            before = dict(later)
            for (source, sink), steps in back.items():
                later[sink] = max(later[sink], later[source] + steps)
            if later == before:
                return {n: Run(binary("+", r.value, int(later[n])), r.tells) for n, r in runs.items()}
        return None


def _sum(a: str, b: str, p: int, q: int) -> Run:
    value = binary("+", binary("*", p, IVar(a)), binary("*", q, IVar(b)))
    return Run(value, a if abs(p) == 1 else b)
