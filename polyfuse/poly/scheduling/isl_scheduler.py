"""Schedule trees from isl's scheduler: for what the axis planner does not cover, and as its rival.

    relations --contract--> macro-statements --per component--> prefix + inside --expand--> Tree

One connected component is scheduled by two calls of isl:

1. *Prefix*: ``whole_component=1``, no proximity, coincidence from flow and shared reads. Only the
   leading coincident members are kept: they are the parallel loops that everything shares.
2. *Inside*: the domain sliced at one point of the prefix (its coordinates are parameters),
   ``whole_component=0``, proximity from flow and shared reads; grafted under the prefix band.

Where no loop can be shared in parallel and the first answer is a recurrence without any parallel loop,
Feautrier's algorithm is asked: it carries dependences outside (a wavefront) and leaves parallel loops.

isl gets at most about a dozen statements: of more, chains that run instance by instance over one
domain become one macro-statement.  The calls go through `poly.scheduling.isl_worker`, which limits isl's
operations.  The result is a proposal; `poly.legality.schedules` proves it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import islpy as isl

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.index_expr import substitute, variables
from polyfuse.ir.schedule_tree import Band, Leaf, Member, Sequence, Tree, band, map_members, sequence
from polyfuse.poly.model.dependences import ordering, shared_reads
from polyfuse.poly.model.domains import PolyModel
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.scheduling import isl_worker
from polyfuse.poly.scheduling.macro_statements import contract, expand, pairs_of, project
from polyfuse.poly.scheduling.tree_convert import from_isl, member_map

MACRO_THRESHOLD = 12

_PLUTO = (("maximize_coincidence", 1), ("algorithm", 0))
_PREFIX = (("whole_component", 1), *_PLUTO)
_INSIDE = (("whole_component", 0), *_PLUTO)
_WAVEFRONT = (("whole_component", 0), ("maximize_coincidence", 1), ("algorithm", 1))


class ScheduleTimeout(ScheduleError):
    """isl did not answer within its limit on operations; a smaller graph may succeed."""

    default_code = "PF511"


def schedule(
    model: PolyModel, statements: Iterable[str] | None = None, *, operations: int = isl_worker.MAX_OPERATIONS
) -> Tree:
    """A schedule tree for the given statements (default: all); isl may do `operations` for each of its calls.

    Raises ScheduleTimeout (PF511; PF514 where isl hangs), or ScheduleError: PF512 where no affine schedule
    exists, PF514 where the helper process fails on this graph.
    """
    chosen = frozenset(model.domains if statements is None else statements)
    names = tuple(s.name for s in model.graph.statements if s.name in chosen)
    isl_worker.prepare()
    with isl_lock:
        return _Scheduler(model, operations).run(names)


@dataclass(frozen=True, slots=True)
class _Scheduler:
    model: PolyModel
    operations: int

    def run(self, names: tuple[str, ...]) -> Tree:
        order = self._restricted(ordering(self.model), self.model.domain(names))
        ties = self._restricted(shared_reads(self.model), self.model.domain(names))
        if len(names) <= MACRO_THRESHOLD:
            return self._all(names, order, ties)
        macros = contract(self.model, names, order)
        leaders = tuple(m.leader for m in macros)
        inner = project(self.model, order, macros), project(self.model, ties, macros)
        return expand(self._all(leaders, *inner), {m.leader: m for m in macros})

    def _all(self, names: tuple[str, ...], order: isl.UnionMap, ties: isl.UnionMap) -> Tree:
        parts = _components(names, [*pairs_of(order), *pairs_of(ties)])
        return sequence([self._tied(part, order, ties) for part in parts])

    def _tied(self, names: tuple[str, ...], order: isl.UnionMap, ties: isl.UnionMap) -> Tree:
        """Statements joined by dependences and shared reads; those only share what loops they can."""
        domain = self.model.domain(names)
        order, ties = self._restricted(order, domain), self._restricted(ties, domain)
        near = order.union(ties)
        if not ties.is_empty():
            prefix = self._prefix(domain, order, near, skew=False)
            if prefix is not None:
                return self._inside(domain, prefix, order, near)
        parts = _components(names, pairs_of(order))
        return sequence([self._component(part, order, near) for part in parts])

    def _component(self, names: tuple[str, ...], order: isl.UnionMap, near: isl.UnionMap) -> Tree:
        """Statements joined by dependences; `near` holds shared reads as well."""
        domain = self.model.domain(names)
        order, near = self._restricted(order, domain), self._restricted(near, domain)
        prefix = self._prefix(domain, order, order, skew=_recurrent(pairs_of(order)))
        if prefix is not None:
            return self._inside(domain, prefix, order, near)
        tree = self._call(domain, order, order, near, _INSIDE)
        if _ordered_throughout(tree):
            wavefront = self._call(domain, order, order, near, _WAVEFRONT)
            return tree if _ordered_throughout(wavefront) else wavefront
        return tree

    def _prefix(
        self, domain: isl.UnionSet, order: isl.UnionMap, coincidence: isl.UnionMap, skew: bool
    ) -> tuple[Member, ...] | None:
        """The parallel loops that all statements share, outermost first; None if there are none.

        A skewed loop is taken for a recurrence only: isl also finds them where a tensor is read
        transposed or in part, and two phases with plain loops are better then.
        """
        tree = self._call(domain, order, coincidence, self.model.union_map([]), _PREFIX)
        if not isinstance(tree, Band):
            return None
        leading: list[Member] = []
        for m in tree.members:
            if not m.coincident or not (skew or all(len(variables(e)) <= 1 for _, e in m.exprs)):
                break
            leading.append(m)
        return tuple(leading) or None

    def _inside(
        self, domain: isl.UnionSet, prefix: tuple[Member, ...], order: isl.UnionMap, near: isl.UnionMap
    ) -> Tree:
        """Everything below one point of the prefix, under the prefix band."""
        context = self.model.context
        point = _fresh_names(len(prefix), self.model.params)
        sliced = domain
        for name, m in zip(point, prefix, strict=True):
            at = isl.UnionSet.read_from_str(context, f"[{', '.join(point)}] -> {{ [{name}] }}")
            sliced = sliced.intersect(member_map(self.model, m).intersect_range(at).domain())
        inner = [self._restricted(r, sliced) for r in (order, order, near)]
        body = self._call(sliced, inner[0], inner[1], inner[2], _INSIDE)
        body = _without_point(body, dict(zip(point, prefix, strict=True)))
        if isinstance(body, Band) and body.permutable and all(m.coincident for m in body.members):
            return replace(body, members=(*prefix, *body.members))
        return band(list(prefix), body, permutable=True)

    def _restricted(self, relation: isl.UnionMap, domain: isl.UnionSet) -> isl.UnionMap:
        return relation.intersect_domain(domain).intersect_range(domain)

    def _call(
        self,
        domain: isl.UnionSet,
        validity: isl.UnionMap,
        coincidence: isl.UnionMap,
        proximity: isl.UnionMap,
        options: tuple[tuple[str, int], ...],
    ) -> Tree:
        texts = [str(x) for x in (domain, self.model.assumptions, validity, coincidence, proximity)]
        job = isl_worker.Job(texts[0], texts[1], texts[2], texts[3], texts[4], options)
        try:
            text = isl_worker.solve(job, self.operations)
        except (isl_worker.OverBudget, isl_worker.NoAnswer) as error:
            code = "PF511" if isinstance(error, isl_worker.OverBudget) else "PF514"
            what = self._message(domain, str(error))
            raise ScheduleTimeout(what, code=code, span=self.model.graph.span) from None
        except isl_worker.Infeasible as error:
            raise self._failure(domain, "PF512", f"no affine schedule exists ({error})") from None
        except isl_worker.WorkerError as error:
            raise self._failure(domain, "PF514", str(error)) from None
        return from_isl(self.model, isl.Schedule.read_from_str(self.model.context, text))

    def _message(self, domain: isl.UnionSet, what: str) -> str:
        return f"scheduling '{self.model.graph.name}' ({domain.n_set()} statements): {what}"

    def _failure(self, domain: isl.UnionSet, code: str, what: str) -> ScheduleError:
        return ScheduleError(self._message(domain, what), code=code, span=self.model.graph.span)


def _components(names: tuple[str, ...], links: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Connected parts, ordered by their first statement."""
    part = {n: n for n in names}

    def find(n: str) -> str:
        while part[n] != n:
            part[n] = part[part[n]]
            n = part[n]
        return n

    for a, b in links:
        part[find(b)] = find(a)
    groups: dict[str, list[str]] = {}
    for n in names:
        groups.setdefault(find(n), []).append(n)
    return [tuple(g) for g in groups.values()]


def _ordered_throughout(tree: Tree) -> bool:
    """Is there a nest of two loops or more without a single parallel one?"""
    match tree:
        case Leaf():
            return False
        case Sequence(children):
            return any(map(_ordered_throughout, children))
        case Band(members, child):
            mine = len(members) > 1 and not any(m.coincident for m in members)
            return (mine and not _any_parallel(child)) or _ordered_throughout(child)


def _any_parallel(tree: Tree) -> bool:
    match tree:
        case Leaf():
            return False
        case Sequence(children):
            return any(map(_any_parallel, children))
        case Band(members, child):
            return any(m.coincident for m in members) or _any_parallel(child)


def _fresh_names(count: int, taken: tuple[str, ...]) -> list[str]:
    """Parameter names that no size has."""
    stem = "at"
    while any(n.startswith(stem) for n in taken):
        stem += "_"
    return [f"{stem}{k}" for k in range(count)]


def _without_point(body: Tree, prefix: dict[str, Member]) -> Tree:
    """The loops inside, with the point of the prefix written as the prefix's expressions."""

    def at(m: Member) -> Member:
        rows = [(s, substitute(e, sizes={n: p.of(s) for n, p in prefix.items()})) for s, e in m.exprs]
        return replace(m, exprs=tuple(rows))

    return map_members(body, at)


def _recurrent(links: Iterable[tuple[str, str]]) -> bool:
    """Is there a cycle?"""
    needs: dict[str, set[str]] = {}
    for a, b in links:
        needs.setdefault(b, set()).add(a)
        needs.setdefault(a, set())
    while ready := {n for n, sources in needs.items() if not sources}:
        needs = {n: sources - ready for n, sources in needs.items() if n not in ready}
    return bool(needs)
