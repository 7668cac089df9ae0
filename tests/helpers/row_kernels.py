"""Kernels of operators whose rows are computed together."""

from __future__ import annotations

from equivalence import fixed_graph_of

from polyfuse.ir.kernel import KernelGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching


def made(text: str, **sizes: int) -> KernelGraph:
    """Those for two threads; a single row is enough to run in parallel."""
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2, Stitching(rows=1))[0]
