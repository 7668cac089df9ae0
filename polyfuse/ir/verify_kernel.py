"""Facts that hold for every set of kernels; checked between passes where verification is on."""

from __future__ import annotations

from polyfuse.diagnostics import InternalError
from polyfuse.ir.index_expr import variables
from polyfuse.ir.kernel import Kernel, KernelGraph, Scope, tree
from polyfuse.ir.schedule_tree import Member, path, statements
from polyfuse.ir.tensor_graph import Role, statement_reads


def verify_kernels(kernels: KernelGraph) -> None:
    """Raise InternalError PF904, naming the kernel and the broken fact.

    Every statement of the graph is in exactly one kernel, each kernel has a buffer for every tensor it
    touches, registers have one element, arguments have their own extents, loops use dims of their
    statements only, and what two kernels share is global.
    """
    placed = [s for k in kernels.kernels for s in k.statements]
    wanted = sorted(s.name for s in kernels.graph.statements)
    if sorted(placed) != wanted:
        odd = sorted(set(placed) ^ set(wanted)) or "one of them twice"
        raise InternalError(f"the kernels do not hold each statement once: {odd}", code="PF904")
    for kernel in kernels.kernels:
        _verify_tree(kernel)
        _verify_buffers(kernel, kernels)


def _broken(kernel: Kernel, what: str) -> InternalError:
    return InternalError(f"kernel {kernel.name}: {what}\n{kernel}", code="PF904")


def _verify_tree(kernel: Kernel) -> None:
    whole = tree(kernel)
    if sorted(statements(whole)) != sorted(s.name for s in kernel.graph.statements):
        raise _broken(kernel, "its tree and its graph have different statements")
    for s in kernel.graph.statements:
        dims = {d.name for d in s.dims}
        for m in path(whole, s.name):
            if isinstance(m, Member) and not set(variables(m.of(s.name))) <= dims:
                raise _broken(kernel, f"loop {m.name} uses what is no dim of {s.name}")


def _verify_buffers(kernel: Kernel, kernels: KernelGraph) -> None:
    names = [b.tensor for b in kernel.buffers]
    touched = {s.target for s in kernel.graph.statements}
    touched |= {r.tensor for s in kernel.graph.statements for r in statement_reads(s)}
    if set(names) != touched or len(set(names)) != len(names):
        raise _broken(kernel, "its buffers are not the tensors it touches")
    for b in kernel.buffers:
        t = kernels.graph.tensor(b.tensor)
        if len(b.extents) != len(t.shape) or b.dtype != t.dtype:
            raise _broken(kernel, f"buffer {b.tensor} has another rank or dtype than its tensor")
        if t.role is not Role.TEMP and (b.scope is not Scope.ARGUMENT or b.extents != t.shape):
            raise _broken(kernel, f"{b.tensor} is an argument, its buffer is not")
        others = [k for k in kernels.kernels if k is not kernel and b.tensor in {x.tensor for x in k.buffers}]
        if others and b.scope not in (Scope.ARGUMENT, Scope.GLOBAL):
            raise _broken(kernel, f"{b.tensor} is shared with kernel {others[0].name}, but not global")
