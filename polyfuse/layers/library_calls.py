"""Contractions that a library computes: matrix products large enough to be worth a call.

A contraction that is a matrix product is left to BLAS, on a GPU to cuBLAS where it is found, and what is
around it is fused apart from it.  The kernel that is generated for it stays: it says what the call computes,
and the interpreter runs it.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.contraction import MatrixProduct, matrix_product
from polyfuse.ir.gemm import gemm_of
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.tensor_graph import Statement, TensorGraph
from polyfuse.layers.gpu_rows import GpuTarget

# Multiplications below which a call costs more than it saves: about what generated loops do in a microsecond
# or two, which is what a call takes.
FEWEST_PRODUCTS = 32 * 1024


def library_product(
    graph: TensorGraph, s: Statement, machine: int | GpuTarget, strided: frozenset[str] = frozenset()
) -> MatrixProduct | None:
    """The matrix product that a library should compute for a statement, or None. On a GPU factors may be of
    half precision."""
    if graph.sizes:
        return None
    on_gpu = isinstance(machine, GpuTarget)
    found = matrix_product(graph, s, halves=isinstance(machine, GpuTarget) and bool(machine.library))
    if found is None or found.products < FEWEST_PRODUCTS:
        return None
    names = {found.left.tensor, found.right.tensor, found.out.tensor}
    if strided & names or (on_gpu and gemm_of(found, {n: _shape(graph, n) for n in names}) is None):
        return None
    return found


def _shape(graph: TensorGraph, name: str) -> tuple[int, ...]:
    return tuple(evaluate(e, {}) for e in graph.tensor(name).shape)


def whole_product(
    graph: TensorGraph, machine: int | GpuTarget, strided: frozenset[str], decisions: list[Decision]
) -> MatrixProduct | None:
    """The product that the machine's library computes where it is all of a cluster, or None."""
    if len(graph.statements) != 1 or (isinstance(machine, GpuTarget) and machine.library is None):
        return None
    found = library_product(graph, graph.statements[0], machine, strided)
    if found is None or not isinstance(machine, GpuTarget) or machine.library:
        return found
    why = "cuBLAS was not found on this machine: loops are generated (pip install nvidia-cublas-cu12)"
    decisions.append(Decision("library", found.out.tensor, False, why))
    return None


def with_library(kernels: KernelGraph, found: MatrixProduct, decisions: list[Decision]) -> KernelGraph:
    """The kernel of a cluster that is one matrix product, as a library call."""
    if len(kernels.kernels) != 1:
        return kernels
    why = f"{found.products / 1e6:.3g} M products: a matrix product of the library"
    decisions.append(Decision("library", found.out.tensor, True, why))
    return replace(kernels, kernels=(replace(kernels.kernels[0], library=found),))
