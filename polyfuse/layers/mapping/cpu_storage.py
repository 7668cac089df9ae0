"""Where the temporaries of CPU kernels live.

register   one element of it lives in an iteration of the loops around
local      a few: an array of the worker
global     the rest; one that several kernels touch has only the steps of a recurrence that live at a time
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import TypeAlias

from polyfuse.cost.cpu_tables import FITTED
from polyfuse.decisions import Decision, format_bytes
from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, evaluate, product, sizes
from polyfuse.ir.kernel import Buffer, Scope
from polyfuse.ir.linear import interval, size_ranges
from polyfuse.ir.schedule_tree import Band, Coordinate, Member, Sequence, Tree, path, sequential, statements
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.layers.mapping.cpu import parts_of_step, time_loop
from polyfuse.layers.mapping.memory_hints import prefetched_rows
from polyfuse.layers.mapping.nests import Nest
from polyfuse.poly.legality.schedules import Illegal, check_turns
from polyfuse.poly.model.domains import PolyModel
from polyfuse.poly.model.storage import Window, folded, private_to_blocks, window

Extents: TypeAlias = tuple[IndexExpr, ...]


def crossing(model: PolyModel, nests: list[Nest], decisions: list[Decision]) -> dict[str, Extents]:
    """Extents of temporaries that several kernels touch, where few steps of a recurrence live at a time.

    Kernels of which one writes what another touches run in order, whatever elements these are.
    """
    order = Sequence(tuple(sequential(n.tree) for n in nests))
    inside = [set(statements(n.tree)) for n in nests]
    found: dict[str, Extents] = {}
    for t in model.graph.tensors:
        users = {s.name for s in (*model.graph.writers(t.name), *model.graph.readers(t.name))}
        if t.role is not Role.TEMP or not users or any(users <= names for names in inside):
            continue
        extents = _in_turns(model, order, t.name, Window((), t.shape), decisions).extents
        if extents != t.shape:
            found[t.name] = extents
    return found


@dataclass(frozen=True, slots=True)
class CpuStorage:
    """Chooses buffers for one kernel. `tree` has shared loops as one (`sequential`)."""

    graph: TensorGraph
    part: PolyModel
    tree: Tree
    nest: Nest
    threads: int
    decisions: list[Decision]
    knobs: CpuKnobs

    def buffer(self, name: str) -> Buffer:
        """Storage of a temporary that only this kernel uses."""
        tensor = self.part.graph.tensor(name)
        found = window(self.part, self.tree, name)
        users = sorted(s.name for s in (*self.part.graph.writers(name), *self.part.graph.readers(name)))
        if time_loop(self.tree) is not None and not (
            self._in_one_part(users) and self._private(found, users)
        ):
            whole = Window((), tensor.shape)
            extents = _in_turns(self.part, self.tree, name, whole, self.decisions).extents
            reason = "goes from one part or step of a recurrence to another, which other workers may run"
            return Buffer(name, tensor.dtype, Scope.GLOBAL, extents, tensor.shape, reason)
        if (found.loops and self._private(found, users)) or not self._has_blocks(users[0]):
            return self._contracted(name, _in_turns(self.part, self.tree, name, found, self.decisions))
        reason = "shared by the iterations of a parallel loop"
        return Buffer(name, tensor.dtype, Scope.GLOBAL, tensor.shape, tensor.shape, reason)

    def planned(self, buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        """All buffers of the kernel, those marked whose rows are prefetched."""
        return prefetched_rows(self.graph, self.nest.tree, buffers, self.threads, self.decisions, self.knobs)

    def _private(self, found: Window, users: Many[str]) -> bool:
        return private_to_blocks(found, self.tree, users[0])

    def _in_one_part(self, users: Many[str]) -> bool:
        """Are these statements in one part of the steps that workers share?"""
        t = self.tree
        return isinstance(t, Band) and any(set(users) <= set(statements(p)) for p in parts_of_step(t.child))

    def _has_blocks(self, statement: str) -> bool:
        around = path(self.tree, statement)
        return any(isinstance(m, Member) and m.coordinate is Coordinate.BLK for m in around)

    def _contracted(self, name: str, found: Window) -> Buffer:
        tensor = self.part.graph.tensor(name)
        loops = ", ".join(m.name for m in found.loops)
        if found.scalar:
            reason = f"one element lives in an iteration of {loops}" if loops else "a scalar of one kernel"
            self.decisions.append(Decision("contract", name, True, f"to a register: {reason}"))
            return Buffer(name, tensor.dtype, Scope.REGISTER, found.extents, tensor.shape, reason)
        elements = product(found.extents)
        if not sizes(elements):
            count = evaluate(elements, {}) * tensor.dtype.bytes
            most = (
                FITTED.cpu_storage_largest_local_bytes
                if self.knobs.local_bytes is None
                else self.knobs.local_bytes
            )
            if count <= most:
                reason = f"{format_bytes(count)} live in an iteration of {loops}" if loops else "small"
                self.decisions.append(Decision("contract", name, True, f"to a worker's array: {reason}"))
                slots = _slots(found.extents, tensor.shape, self.graph)
                return Buffer(name, tensor.dtype, Scope.LOCAL, found.extents, tensor.shape, reason, slots)
        reason = "too large for a worker's array"
        if found.extents != tensor.shape and all(isinstance(e, IConst) for e in found.extents):
            self.decisions.append(Decision("contract", name, False, reason))
        return Buffer(name, tensor.dtype, Scope.GLOBAL, tensor.shape, tensor.shape, reason)


def _slots(extents: Extents, shape: Extents, graph: TensorGraph) -> Extents:
    """Where elements live in an array with room for all values of open sizes: along these axes at their own
    places. () where no axis is so."""
    ranges, x, found = size_ranges(graph), IVar("x"), []
    roomy = False
    for e, full in zip(extents, shape, strict=True):
        values = interval(full, ranges) if e != full else None
        own = values is not None and isinstance(e, IConst) and values[1] <= e.value
        roomy = roomy or own
        found.append(x if e == full or own else binary("%", x, e))
    return tuple(found) if roomy else ()


def _in_turns(model: PolyModel, tree: Tree, name: str, found: Window, decisions: list[Decision]) -> Window:
    """The window of a tensor whose steps take turns in it, where few of them live at a time."""
    extents = folded(model, tree, name, found.loops, found.extents)
    fewer = [e if e != full else None for e, full in zip(extents, found.extents, strict=True)]
    if not any(fewer):
        return found
    shape = model.graph.tensor(name).shape
    verdict = check_turns(model, tree, name, tuple(e or full for e, full in zip(fewer, shape, strict=True)))
    if isinstance(verdict, Illegal):
        raise ScheduleError([verdict.diagnostic])
    steps = " x ".join(str(e) for e in fewer if e)
    reason = f"{steps} steps of it live at a time, and take turns in their memory"
    decisions.append(Decision("fold", name, True, reason))
    return replace(found, extents=extents)
