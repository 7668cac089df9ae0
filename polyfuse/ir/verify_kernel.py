"""Facts that hold for every set of kernels; checked between passes where verification is on."""

from __future__ import annotations

from polyfuse.diagnostics import InternalError
from polyfuse.ir.index_expr import variables
from polyfuse.ir.kernel import Kernel, KernelGraph, Scope, in_steps, tree
from polyfuse.ir.schedule_tree import Coordinate, Member, members_of, path, statements
from polyfuse.ir.tensor_graph import Role, Statement, statement_reads


def verify_kernels(kernels: KernelGraph) -> None:
    """Raise InternalError PF904, naming the kernel and the broken fact.

    Every statement of the graph is in exactly one kernel, each kernel has a buffer for every tensor it
    touches, registers have one element, arguments have their own extents, loops use dims of their
    statements only, and what two kernels share is global.  A loop over steps that workers share is around
    all of its kernel, and what two parts of its steps share is global.
    """
    placed = [s for k in kernels.kernels for s in k.statements]
    wanted = sorted(s.name for s in kernels.graph.statements)
    if sorted(placed) != wanted:
        odd = sorted(set(placed) ^ set(wanted)) or "one of them twice"
        raise InternalError(f"the kernels do not hold each statement once: {odd}", code="PF904")
    for kernel in kernels.kernels:
        _verify_tree(kernel)
        for part in kernel.parts or (kernel,):
            for one in part.packed or (part,):
                _verify_steps(one)
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


def _verify_steps(kernel: Kernel) -> None:
    phases = [p.tree for s in kernel.stages for p in s.phases]
    if any(members_of(t, Coordinate.TIME) for t in phases):
        raise _broken(kernel, "a loop over steps that workers share is inside of another loop")
    if not in_steps(kernel):
        return
    touched = [{t for n in statements(p) for t in _tensors(kernel.graph.statement(n))} for p in phases]
    for b in kernel.buffers:
        users = sum(b.tensor in tensors for tensors in touched)
        if users > 1 and b.scope not in (Scope.ARGUMENT, Scope.GLOBAL):
            raise _broken(kernel, f"{b.tensor} is shared by parts of a step, but not global")


def _tensors(s: Statement) -> set[str]:
    return {s.target, *(r.tensor for r in statement_reads(s))}


def _verify_buffers(kernel: Kernel, kernels: KernelGraph) -> None:
    names = [b.tensor for b in kernel.buffers]
    touched = {t for s in kernel.graph.statements for t in _tensors(s)}
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
