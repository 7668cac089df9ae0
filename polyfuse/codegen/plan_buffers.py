"""What a launch plan reserves memory for or is given: arguments, results, temporaries."""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.ir.index_expr import IndexExpr
from polyfuse.ir.kernel import Kernel, KernelGraph, Scope
from polyfuse.ir.launch_plan import Kind, PlanBuffer
from polyfuse.ir.tensor_graph import Role


def plan_buffers(
    kernels: KernelGraph, strided: frozenset[str], copied: frozenset[str], steps: Sequence[Kernel]
) -> tuple[PlanBuffer, ...]:
    """Arguments in signature order, results, then global temporaries in order of the graph.

    `steps` run one after the other.
    """
    graph = kernels.graph
    live: dict[str, tuple[int, int]] = {}
    extents: dict[str, tuple[IndexExpr, ...]] = {}
    for k, step in enumerate(steps):
        for b in step.buffers:
            if b.scope is Scope.GLOBAL:
                live[b.tensor] = live.get(b.tensor, (k, k))[0], k
                extents[b.tensor] = b.extents
    found: list[PlanBuffer] = []
    for name in graph.inputs:
        t = graph.tensor(name)
        kind = Kind.INOUT if t.role is Role.INOUT else Kind.INPUT
        found.append(PlanBuffer(name, t.dtype, t.shape, kind, name in strided))
    for t in graph.tensors:
        if t.role is Role.OUTPUT:
            alias = t.alias
            found.append(PlanBuffer(t.name, t.dtype, t.shape, Kind.OUTPUT, alias in strided, alias))
    for t in graph.tensors:
        if t.role is Role.TEMP and t.name in live:
            found.append(PlanBuffer(t.name, t.dtype, extents[t.name], Kind.WORKSPACE, live=live[t.name]))
    return tuple(found)
