"""Which tensors' lines a kernel's loops ask for shortly before they read them (CPU).

    B(t, h)     becomes     B(t, h // 64)[ (fetch x[t, the next 64]); B(h) ]

The hardware follows streams by itself, from the misses it sees.  That is enough where lines come from L3.
From memory they come too late in a loop that computes, at the beginning of each row, and where vectors cross
lines.  A request costs one instruction for each line, so it is done where what the operator touches is far
from all in L3, and for tensors that do not stay in L2.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.cost.cpu_device import table_cpu
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.decisions import Decision, format_bytes
from polyfuse.ir.kernel import Kernel, KernelGraph
from polyfuse.layers.rematerialise import tensor_bytes
from polyfuse.layers.streams import touched


def fetched_soon(
    kernels: KernelGraph, threads: int, decisions: list[Decision], wanted: bool | None = None
) -> KernelGraph:
    """The kernels with `Buffer.soon` set: where it pays (None), wherever it can be done, or nowhere."""
    if wanted is False or (kernels.graph.sizes and not wanted):
        return kernels
    levels, total = table_cpu(threads).levels, 0 if wanted else touched(kernels)
    if not wanted and total <= levels[-2].capacity * FITTED.soon_share_of_l3:
        return kernels
    least = -1.0 if wanted else levels[1].capacity
    found = {k.name: _inputs(k, least) for k in kernels.kernels if k.library is None}
    names = sorted(set().union(*found.values()))
    if not names:
        return kernels
    why = "asked for" if wanted else f"{format_bytes(total)} in all do not stay in L3"
    decisions.append(
        Decision("prefetch lines", ", ".join(names), True, f"lines are prefetched shortly before use: {why}")
    )
    return replace(
        kernels, kernels=tuple(_marked(k, found.get(k.name, frozenset())) for k in kernels.kernels)
    )


def _inputs(k: Kernel, least: float) -> frozenset[str]:
    """Memory of more bytes than this that a kernel reads and leaves as it is."""
    return frozenset(b.tensor for b in k.unchanged if b.shape and tensor_bytes(k.graph, b.tensor) > least)


def _marked(k: Kernel, names: frozenset[str]) -> Kernel:
    buffers = tuple(replace(b, soon=True) if b.tensor in names else b for b in k.buffers)
    return replace(k, buffers=buffers)
