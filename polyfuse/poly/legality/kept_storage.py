"""Storage that a schedule is to keep within, and the order that it asks for.

Values need no more than that each is computed before it is read.  Where elements take turns in memory, an
element must not be written either while another one is needed in its place:

    for t: e = f(x[t]); y[t] = e                 memory for one element of e[T]
    for t: e = f(x[t]);  for t: y[t] = e         is wrong: y(0) reads what e(T - 1) wrote
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import islpy as isl

from polyfuse.decisions import Decision
from polyfuse.diagnostics import Diagnostic, ScheduleError
from polyfuse.ir.index_expr import IConst, IndexExpr, evaluate, product
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.schedule_tree import Tree
from polyfuse.poly.legality.schedules import Illegal, check_turns, earlier_than
from polyfuse.poly.model.dependences import anti
from polyfuse.poly.model.domains import PolyModel
from polyfuse.poly.model.storage import smallest


@dataclass(frozen=True, slots=True)
class Kept:
    """Memory for so many elements of a temporary along each dim; none: an inout parameter, in place."""

    tensor: str
    extents: tuple[IndexExpr, ...] = ()


def require_storage(model: PolyModel, tree: Tree, kept: Sequence[Kept]) -> None:
    """Raises ScheduleError PF542 where a tree needs more than is kept."""
    for k in kept:
        if not k.extents:
            verdict = earlier_than(model, tree, _replaced(model, k.tensor))
            if isinstance(verdict, Illegal):
                assert verdict.witness is not None
                late, early = verdict.witness.source, verdict.witness.sink
                what = f"{late} reads '{k.tensor}' after {early} has replaced the element"
                raise ScheduleError([replace(verdict.diagnostic, code="PF542", message=what, related=())])
            continue
        needed = smallest(model, tree, k.tensor)
        if all(_within(a, b) for a, b in zip(needed, k.extents, strict=True)):
            continue
        verdict = check_turns(model, tree, k.tensor, k.extents)
        more, less = (", ".join(map(str, e)) for e in (needed, k.extents))
        what = f"[{more}] of '{k.tensor}' are needed at a time, there is memory for [{less}]"
        if isinstance(verdict, Illegal) and verdict.witness is not None:
            what += f": {verdict.witness.sink} would find what {verdict.witness.source} wrote"
        raise ScheduleError([Diagnostic("PF542", what, model.graph.tensor(k.tensor).span)])


def _within(needed: IndexExpr, kept: IndexExpr) -> bool:
    known = isinstance(needed, IConst) and isinstance(kept, IConst)
    return needed.value <= kept.value if known else needed == kept  # type: ignore[union-attr]


def _replaced(model: PolyModel, parameter: str) -> isl.UnionMap:
    """Reads of an inout parameter -> the writes that replace what they read, in other instances."""
    return anti(model, parameter).subtract(model.domain().identity())


def storage_order(model: PolyModel, kept: Sequence[Kept]) -> isl.UnionMap:
    """The pairs of instances that storage orders, of parameters that are written in place. Iterations of a
    parallel loop have temporaries of their own."""
    order = model.union_map(())
    for k in kept:
        order = order if k.extents else order.union(_replaced(model, k.tensor))
    return order


def kept_in(kernels: KernelGraph, kept: Kept) -> Iterator[Decision]:
    """Whether kernels keep no more of a temporary than was asked for."""
    for kernel in kernels.kernels:
        for b in kernel.buffers:
            if b.tensor != kept.tensor:
                continue
            mine, asked = product(b.extents), product(kept.extents)
            if not (isinstance(mine, IConst) and isinstance(asked, IConst)):
                continue
            count, most = evaluate(mine, {}), evaluate(asked, {})
            why = f"{kernel.name} keeps {count} elements where {most} suffice"
            why += f": {b.reason}" if count > most and b.reason else ""
            yield Decision("kept", kept.tensor, count <= most, why)
