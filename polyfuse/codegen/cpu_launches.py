"""How functions of C++ for the CPU are run: their numbers, their launches, a worker's memory."""

from __future__ import annotations

from collections.abc import Iterable

from polyfuse.codegen.lower import LoweredKernel
from polyfuse.codegen.tasks import Task
from polyfuse.codegen.time_parts import iteration_count
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IndexExpr, as_index, binary, evaluate, product, substitute
from polyfuse.ir.index_expr import sizes as sizes_of
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Scope
from polyfuse.ir.launch_plan import Launch, PlanBuffer
from polyfuse.ir.loop_ir import Declare
from polyfuse.ir.tensor_graph import Statement
from polyfuse.ir.work import work

CACHE_LINE = Core().line


def number_table(kernels: KernelGraph, buffers: Iterable[PlanBuffer]) -> dict[str, int]:
    """Name of an integer argument -> its place in `num`."""
    names = [f"N_{n}" for n in kernels.graph.sizes]
    names += [f"st_{b.name}_{k}" for b in buffers if b.strided for k in range(len(b.shape))]
    return {n: k for k, n in enumerate(names)}


def launch_of(name: str, kernel: str, low: LoweredKernel, task: Task) -> Launch:
    """How the function `name`, a task of a lowered kernel that is part of `kernel`, is run."""
    counts = [(s, instances(s)) for s in low.kernel.graph.statements]
    total = sum((n for _, n in counts), as_index(0))
    together = tuple(x.rows for x in task.ways)
    # Arrays that a chunk fills for all of its iterations (`codegen.widened`, `codegen.column_values`).
    filled = any(isinstance(n, Declare) and n.count for n in task.before)
    count, parallel, least = (
        iteration_count(task),
        bool(task.loops),
        FITTED.widened_fewest_rows if filled else 1,
    )
    return Launch(name, kernel, count, total, work(counts), parallel, together=together, least=least)


def instances(s: Statement) -> IndexExpr:
    """Instances of a statement; a dim whose bounds depend on others counts as in the middle of these."""
    middle: dict[str, IndexExpr] = {}
    extents = []
    for d in s.dims:
        low, high = substitute(d.lower, middle), substitute(d.upper, middle)
        middle[d.name] = binary("//", binary("+", low, high), 2)
        extents.append(binary("-", high, low))
    return product(tuple(extents))


def scratch_bytes(kernel: Kernel) -> int:
    """Of a worker's own arrays, each from a cache line on."""
    return sum(whole_lines(local_bytes(b)) for b in kernel.buffers if b.scope is Scope.LOCAL)


def local_bytes(b: Buffer) -> int:
    assert not sizes_of(b.elements)
    return evaluate(b.elements, {}) * b.dtype.bytes


def whole_lines(nbytes: int) -> int:
    return -(-nbytes // CACHE_LINE) * CACHE_LINE
