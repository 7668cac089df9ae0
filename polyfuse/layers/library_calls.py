"""Contractions that a library computes: matrix products large enough to be worth a call.

Nothing that this compiler generates comes near a tuned matrix product, so that a contraction that is one is
left to BLAS, and what is around it is fused apart from it.  The kernel that is generated for it stays: it
says what the call computes, and runs where there is no library.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.contraction import MatrixProduct, matrix_product
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.tensor_graph import Statement, TensorGraph

# Multiplications below which a call costs more than it saves: about what generated loops do in a microsecond
# or two, which is what a call takes.
FEWEST_PRODUCTS = 32 * 1024


def library_product(
    graph: TensorGraph, s: Statement, strided: frozenset[str] = frozenset()
) -> MatrixProduct | None:
    """The matrix product that a library should compute for a statement, or None."""
    if graph.sizes:
        return None
    found = matrix_product(graph, s)
    if found is None or found.products < FEWEST_PRODUCTS:
        return None
    return None if strided & {found.left.tensor, found.right.tensor, found.out.tensor} else found


def whole_product(graph: TensorGraph, strided: frozenset[str]) -> MatrixProduct | None:
    """The product that a library computes where it is all of a cluster, or None."""
    return library_product(graph, graph.statements[0], strided) if len(graph.statements) == 1 else None


def with_library(kernels: KernelGraph, found: MatrixProduct, decisions: list[Decision]) -> KernelGraph:
    """The kernel of a cluster that is one matrix product, as a library call."""
    if len(kernels.kernels) != 1:
        return kernels
    why = f"{found.products / 1e6:.3g} M products: a matrix product of the library"
    decisions.append(Decision("library", found.out.tensor, True, why))
    return replace(kernels, kernels=(replace(kernels.kernels[0], library=found),))
