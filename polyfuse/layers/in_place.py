"""May an inout parameter be written in place?

On every right side an inout name means its value at entry.  In place, a write destroys the entry value
of its element, so every read of that element must come before it (or be part of the same instance), in
every order that parallel and vector loops allow.  Where that does not hold, the entry values are
copied first, and the copy is recorded.
"""

from __future__ import annotations

from polyfuse.decisions import Decision
from polyfuse.ir.kernel import KernelGraph, tree
from polyfuse.ir.schedule_tree import Coordinate, members_of, sequence, statements
from polyfuse.poly.dependences import anti
from polyfuse.poly.domains import PolyModel, build_model
from polyfuse.poly.isl_bridge import isl_lock
from polyfuse.poly.legality import Illegal, Legal, Verdict, earlier_than, parallel

# Loops whose iterations are not ordered when they run.
_CONCURRENT = tuple(c for c in Coordinate if c not in (Coordinate.SEQ, Coordinate.TIME))


def entry_copies(kernels: KernelGraph) -> tuple[frozenset[str], tuple[Decision, ...]]:
    """Inout parameters whose entry values must be copied before the kernels run, and why."""
    copied: list[str] = []
    decisions: list[Decision] = []
    with isl_lock:
        aliases = [t.alias for t in kernels.graph.tensors if t.alias is not None]
        if not aliases:
            return frozenset(), ()
        model = build_model(kernels.graph)
        for name in aliases:
            verdict = _in_place(model, kernels, name)
            if isinstance(verdict, Legal):
                decisions.append(
                    Decision("in place", name, True, "each element is read before it is written")
                )
                continue
            copied.append(name)
            reason = "an element is read after it would be overwritten; its entry values are copied"
            decisions.append(Decision("in place", name, False, reason, str(verdict.witness)))
    return frozenset(copied), tuple(decisions)


def _in_place(model: PolyModel, kernels: KernelGraph, name: str) -> Verdict:
    """Legal if every read of an entry value comes before the write that replaces it."""
    pairs = anti(model, name)
    pairs = pairs.subtract(model.domain().identity())
    trees = [tree(k) for k in kernels.kernels]
    verdict = earlier_than(model, sequence(trees), pairs)
    if not verdict:
        return verdict
    for t in trees:
        inside = model.domain(sorted(statements(t)))
        mine = pairs.intersect_domain(inside).intersect_range(inside)
        for m in members_of(t, *_CONCURRENT):
            verdict = parallel(model, t, m, mine)
            if isinstance(verdict, Illegal):
                return verdict
    return Legal()
