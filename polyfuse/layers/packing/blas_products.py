"""Contractions that a library computes: matrix products large enough to be worth a call.

A contraction that is a matrix product is left to cuBLAS on a GPU where it is found, on a CPU to BLAS where
tiles would be slower (`layers.contractions.times`), and what is around it is fused apart from it.  The kernel
that is generated for it stays: it says what the call computes, and the interpreter runs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from polyfuse.decisions import Decision
from polyfuse.ir.contraction import MatrixProduct, matrix_product
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.gemm import gemm_of
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.target import CpuTarget, Target
from polyfuse.ir.tensor_graph import Statement, TensorGraph
from polyfuse.layers.contractions.times import ContractionTimes, contraction_times

Wanted = Literal["auto", "always", "never"]

# Multiplications below which a call costs more than it saves: about what generated loops do in a microsecond
# or two, which is what a call takes.
FEWEST_PRODUCTS = 32 * 1024


@dataclass(frozen=True, slots=True)
class Library:
    """What libraries compute on a machine: `wanted` as `Options.library`; on a CPU with "auto" what tiles for
    its core do not compute as fast."""

    wanted: Wanted = "auto"
    target: Target = field(default_factory=CpuTarget)
    core: Core = field(default_factory=Core)
    strided: frozenset[str] = frozenset()

    def product(
        self, graph: TensorGraph, s: Statement, decisions: list[Decision] | None = None
    ) -> MatrixProduct | None:
        """The matrix product that a library should compute for a statement, or None."""
        found = None if self.wanted == "never" else library_product(graph, s, self.target, self.strided)
        times = self.times(graph, s, found) if found is not None else None
        if found is None or times is None or not times.generated:
            return found
        if decisions is not None:
            decisions.append(Decision("library", found.out.tensor, False, f"a call would take {times}"))
        return None

    def times(self, graph: TensorGraph, s: Statement, found: MatrixProduct) -> ContractionTimes | None:
        """What a call takes, and what generated code takes; None where that decides nothing."""
        # Only of CPUs it is known how long tiles take; elsewhere a call is the faster way.
        if self.wanted == "always" or not isinstance(self.target, CpuTarget):
            return None
        return contraction_times(graph, s, found, self.core, self.target.threads)


def library_product(
    graph: TensorGraph, s: Statement, target: Target, strided: frozenset[str] = frozenset()
) -> MatrixProduct | None:
    """The matrix product that a library can compute for a statement, if it is large enough, or None."""
    if graph.sizes:
        return None
    found = matrix_product(graph, s, halves=target.library_halves)
    if found is None or found.products < FEWEST_PRODUCTS:
        return None
    names = {found.left.tensor, found.right.tensor, found.out.tensor}
    if strided & names:
        return None
    as_it_lies = target.library_copies or gemm_of(found, {n: _shape(graph, n) for n in names}) is not None
    return found if as_it_lies else None


def _shape(graph: TensorGraph, name: str) -> tuple[int, ...]:
    return tuple(evaluate(e, {}) for e in graph.tensor(name).shape)


def whole_product(graph: TensorGraph, library: Library, decisions: list[Decision]) -> MatrixProduct | None:
    """The product that the machine's library computes where it is all of a cluster, or None."""
    there = library.target.library
    if len(graph.statements) != 1 or there is None:
        return None
    found = library.product(graph, graph.statements[0])
    if found is None or there:
        return found
    why = "cuBLAS was not found on this machine: loops are generated (pip install nvidia-cublas-cu12)"
    decisions.append(Decision("library", found.out.tensor, False, why))
    return None


def with_library(
    kernels: KernelGraph,
    graph: TensorGraph,
    found: MatrixProduct,
    library: Library,
    decisions: list[Decision],
) -> KernelGraph:
    """The kernel of a cluster that is one matrix product, as a library call. `graph`: as it came."""
    if len(kernels.kernels) != 1:
        return kernels
    why = f"{found.products / 1e6:.3g} M products: a matrix product of the library"
    if (times := library.times(graph, graph.statements[0], found)) is not None:
        why += f", {times}"
    decisions.append(Decision("library", found.out.tensor, True, why))
    return replace(kernels, kernels=(replace(kernels.kernels[0], library=found),))
