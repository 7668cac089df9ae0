"""Where elements are in a function of a GPU, and whether two functions differ in names only."""

from __future__ import annotations

from polyfuse.codegen.addresses import Addresses
from polyfuse.codegen.c_family import Printer, bare
from polyfuse.ir.kernel import Buffer, Kernel
from polyfuse.ir.launch_plan import Kind, PlanBuffer
from polyfuse.ir.rename import kernel_form
from polyfuse.source import Span

NONE: frozenset[str] = frozenset()


class DeviceAddresses(Addresses):
    """On a GPU only scalars that the host knows come by value; `late` is the memory that other stages of the
    launch write."""

    def __init__(
        self,
        kernel: Kernel,
        buffers: dict[str, PlanBuffer],
        checked: bool,
        copied: frozenset[str],
        checks: list[tuple[Span, str]],
        late: frozenset[str] = NONE,
    ) -> None:
        super().__init__(kernel, buffers, checked, copied, checks)
        self._late = late

    def is_late(self, name: str) -> bool:
        plan = self.buffers[name]
        return (plan.alias or plan.name) in self._late

    def by_value(self, b: Buffer) -> bool:
        return super().by_value(b) and self.buffers[b.tensor].kind is Kind.INPUT

    def form(self) -> object:
        """Equal for kernels that differ in names only. Checks say where they are: none are alike."""
        if self.checked:
            return self.kernel.name
        arguments = self.kernel.arguments
        plans = [self.buffers[b.tensor] for b in arguments]
        shared = tuple(b.tensor in self.shared for b in arguments)
        pairs = [(k, n) for k, b in enumerate(arguments) for n, p in enumerate(plans) if p.alias == b.tensor]
        passed = tuple(
            (p.strided, self.by_value(b), self.is_late(p.name)) for p, b in zip(plans, arguments, strict=True)
        )
        return kernel_form(self.kernel), shared, tuple(pairs), passed

    def reported(self, printer: Printer, value: str, bound: str, number: int) -> str:
        return f"pf_checked({bare(value)}, {bare(bound)}, {number}, status)"
