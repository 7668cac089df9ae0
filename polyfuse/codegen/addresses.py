"""Where an element of a buffer lives, as C text; the same on all targets.

`plan_buffers` has what a launch plan reserves memory for or is given: arguments, results, temporaries.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.codegen.analysis.renaming import scalar_name
from polyfuse.codegen.c_printer import Printer, bare
from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IConst, IndexExpr, binary, evaluate
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Scope
from polyfuse.ir.launch_plan import Kind, PlanBuffer
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Expr, Index, Role, walk, within_text
from polyfuse.source import NO_SPAN, Span


class Addresses:
    """Names of buffers and elements in the function of one kernel; collects the checks made.

    `buffers` are those of the plan, `copied` the inout parameters with memory of their own; with
    `checked`, an index from data that is out of range is reported through `status`.
    """

    def __init__(
        self,
        kernel: Kernel,
        buffers: dict[str, PlanBuffer],
        checked: bool,
        copied: frozenset[str],
        checks: list[tuple[Span, str]],
    ) -> None:
        self.kernel = kernel
        self.buffers = buffers
        self.checked = checked
        self.checks = checks
        self.written = {s.target for s in kernel.graph.statements}
        self.shared = self._shared(copied)

    def _shared(self, copied: frozenset[str]) -> set[str]:
        """Entry values whose memory this kernel also writes through the output: one pointer for both.

        Those that are copied have memory of their own.
        """
        names = {b.tensor for b in self.kernel.arguments} - copied
        return {p.alias for n in names if (p := self.buffers[n]).alias is not None and p.alias in names}

    def by_value(self, b: Buffer) -> bool:
        """Scalars that a kernel only reads are parameters by value."""
        outside = b.scope in (Scope.ARGUMENT, Scope.GLOBAL)
        return outside and not b.shape and b.tensor not in self.written and b.tensor not in self.shared

    def element(self, printer: Printer, name: str, indices: tuple[Index, ...]) -> str:
        """An element as an lvalue."""
        b = self.kernel.find(name)
        if b is None:
            own = f"[{self.index(printer, indices[0], IConst(0))}]" if indices else ""
            return scalar_name(name) + own
        if b.scope is Scope.REGISTER:
            return scalar_name(name)
        if self.by_value(b):
            return f"v_{name}"
        return f"{self.pointer(name)}[{bare(self.offset(printer, name, indices))}]"

    def offset(self, printer: Printer, name: str, indices: tuple[Index, ...]) -> str:
        """The element's number, counted from the buffer's pointer."""
        b = self.kernel.buffer(name)
        plan = self.buffers.get(name)
        if plan is not None and plan.strided:
            source = self.source(name)
            terms = [
                f"{self.index(printer, i, e)} * st_{source}_{k}"
                for k, (i, e) in enumerate(zip(indices, b.shape, strict=True))
            ]
            return " + ".join(terms) or "0"
        if not any(isinstance(i, EXPR_TYPES) for i in indices):
            flat: IndexExpr = IConst(0)
            for i, e in zip(indices, b.extents, strict=True):
                assert not isinstance(i, EXPR_TYPES)
                flat = binary("+", binary("*", flat, e), i)
            return printer.index(flat)
        text = "0"
        wide = any(not isinstance(e, IConst) for e in b.extents) or evaluate(b.elements, {}) > 2**31
        for i, e in zip(indices, b.extents, strict=True):
            step = printer.index(e)
            mine = self.index(printer, i, e)
            if wide and isinstance(i, EXPR_TYPES):  # in range it has 32 bits, its products may have more
                mine = f"({I64.c_name}){mine}"
            text = f"({text} * {step} + {mine})" if text != "0" else mine
        return text

    def pointer(self, name: str) -> str:
        """What a buffer is called; red0 of a block's threads has its own name."""
        return f"b_{self.source(name)}"

    def source(self, name: str) -> str:
        """The output in place of an entry value that shares its memory in this kernel."""
        if name in self.shared:
            return next(n for n, p in self.buffers.items() if p.alias == name)
        return name

    def index(self, printer: Printer, i: Index, extent: IndexExpr) -> str:
        if not isinstance(i, EXPR_TYPES):
            return printer.index(i)
        if self.checked:
            return self._checked(printer, i, extent)
        return printer.data_index(i, extent)

    def _checked(self, printer: Printer, e: Expr, extent: IndexExpr) -> str:
        """Store the number of the check in the status cell if the index is out of range; then clamp."""
        placed = (x.span for x in walk(e) if x.span != NO_SPAN)
        self.checks.append((next(placed, NO_SPAN), f"0..{extent}"))
        value = printer.cast(printer.expr(e), e.dtype, I64)
        return self.reported(printer, value, printer.index(extent), len(self.checks))

    def within(self, printer: Printer, e: Apply) -> str:
        """A number; that of the check goes to the status cell where it does not lie between the others."""
        value, least, most = map(printer.expr, e.args)
        self.checks.append((e.span, within_text(e)))
        return self.kept_within(bare(value), bare(least), bare(most), len(self.checks))

    def kept_within(self, value: str, least: str, most: str, number: int) -> str:
        """The number; that of the check goes to the status cell if it is not within."""
        test = f"q < {least} || q > {most}"
        return f"({{ const pf_i64 q = {value}; if ({test}) *status = {number}; q; }})"

    def reported(self, printer: Printer, value: str, bound: str, number: int) -> str:
        """The index within its bounds; the number of the check goes to the status cell if it was not."""
        clamped = printer.call("pf_min_i64", [printer.call("pf_max_i64", ["q", "0"]), f"{bound} - 1"])
        return f"({{ const pf_i64 q = {value}; if (q < 0 || q >= {bound}) *status = {number}; {clamped}; }})"


# --- what a launch plan reserves memory for or is given ---------------------------------------------------


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
