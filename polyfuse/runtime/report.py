"""What the kernels of an operator move and take: the figures behind `polyfuse run` and `emit`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.codegen.cuda.functions import lower_device
from polyfuse.codegen.cuda.spmd import DeviceTask
from polyfuse.codegen.function import Function
from polyfuse.codegen.transforms.outline import time_parts
from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Scope
from polyfuse.ir.launch_plan import Kind
from polyfuse.ir.loop_ir import format_block
from polyfuse.ir.tensor_graph import statement_reads
from polyfuse.runtime.arguments import Array
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.inputs import dim_ranges
from polyfuse.runtime.machine.probe import BandwidthReport

ENOUGH_S = 0.25
MOSTLY = 0.9


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """One kernel: its statements, bytes read and written (each buffer once), and what it keeps to itself."""

    name: str
    statements: tuple[str, ...]
    read: int
    written: int
    launches: tuple[int, ...]
    on_chip: int

    @property
    def bytes(self) -> int:
        """All bytes moved."""
        return self.read + self.written


def kernel_figures(kernels: KernelGraph, executable: CpuExecutable | None) -> list[KernelFigures]:
    """Figures of each kernel, in launch order; sizes must be known."""
    found = []
    launches = executable.plan.launches if executable is not None else ()
    for k in kernels.kernels:
        names = k.computed
        mine = tuple(i for i, x in enumerate(launches) if x.kernel == k.name)
        read = sum(_read_bytes(k, b) for b in k.arguments)
        written = sum(_written_bytes(k, b) for b in k.arguments)
        local = [b for b in k.buffers if b.scope in (Scope.LOCAL, Scope.SHARED)]
        on_chip = sum(b.dtype.bytes * evaluate(b.elements, {}) for b in local)
        found.append(KernelFigures(k.name, names, read, written, mine, on_chip))
    return found


def _size(b: Buffer) -> int:
    return b.dtype.bytes * evaluate(product(b.shape), {})


def _read_bytes(kernel: Kernel, b: Buffer) -> int:
    """A buffer counts once, with no more elements than are read: a gather may see only some.

    What the kernel itself has written is still in a register or a cache.
    """
    if any(s.target == b.tensor for s in kernel.graph.statements):
        return 0
    reads = [s.name for s in kernel.graph.statements for r in statement_reads(s) if r.tensor == b.tensor]
    return min(_size(b), sum(_instances(kernel, name) for name in reads) * b.dtype.bytes)


def _written_bytes(kernel: Kernel, b: Buffer) -> int:
    writers = [s.name for s in kernel.graph.statements if s.target == b.tensor]
    return min(_size(b), sum(_instances(kernel, name) for name in writers) * b.dtype.bytes)


def _instances(kernel: Kernel, statement: str) -> int:
    total = 1
    for low, high in dim_ranges(kernel.graph.statement(statement), {}).values():
        total *= max(0, high - low)
    return total


def working_set(executable: CpuExecutable) -> int:
    """Bytes of all arguments, results and temporaries together."""
    sizes = [
        (b, evaluate(product(b.shape), executable.sizes) * b.dtype.bytes) for b in executable.plan.buffers
    ]
    return sum(n for b, n in sizes if b.alias is None)


def rate_for(report: BandwidthReport, read: int, written: int) -> float:
    """GB/s that the machine reaches for this mix of reads and writes."""
    total = max(1, read + written)
    if read >= MOSTLY * total:
        return report.read
    if written >= MOSTLY * total:
        return max(report.fill, report.fill_nt)
    return max(report.map, report.map_nt, report.copy)


def memory(executable: CpuExecutable, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Memory for every argument and result of an executable; inout parameters are copied first."""
    arrays: dict[str, Array] = {}
    for b in executable.plan.buffers:
        if b.kind is Kind.INPUT:
            arrays[b.name] = inputs[b.name]
        elif b.kind is Kind.INOUT:
            arrays[b.name] = inputs[b.name].copy()
    for b in executable.plan.buffers:
        if b.kind is Kind.OUTPUT:
            arrays[b.name] = arrays[b.alias] if b.alias else executable.output(b)
    return arrays


def best_time(call: Callable[[], object], repeat: int | None = None) -> float:
    """Seconds of the best of `repeat` calls; without it, of as many as a quarter of a second holds."""
    best, spent, count = float("inf"), 0.0, 0
    while count < (repeat or 2) or (repeat is None and spent < ENOUGH_S and count < 1000):
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        best, spent, count = min(best, took), spent + took, count + 1
        if repeat is None and took > ENOUGH_S:
            break
    return best


def loops_text(kernels: KernelGraph, on_gpu: bool = False) -> str:
    """The loop IR of every kernel, one function after the other; `on_gpu`: what each thread does."""
    parts = []
    each = (
        kernels.kernels
        if on_gpu
        else tuple(x for k in kernels.kernels for p in k.parts or (k,) for x in time_parts(p))
    )
    for k in each:
        found: Sequence[Function | DeviceTask] = lower_device(k) if on_gpu else lower(k).functions
        word = "blocks" if on_gpu else "parallel"
        for number, task in enumerate(found):
            over = ", ".join(f"{x.var} in {x.lower}..{x.upper}" for x in task.loops)
            head = f"function pf_{k.name}_{number}" + (f" {word} over {over}" if over else "")
            body = task.block if isinstance(task, Function) else task.body
            parts.append(f"{head}:\n{format_block(body, '  ')}")
    return "\n\n".join(parts)
