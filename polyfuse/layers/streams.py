"""Which results of an operator are stored past the caches (CPU).

A plain store first reads the line that it writes, so a result takes twice its bytes of the memory's time;
one past the caches takes them once, and leaves the caches to what is read.  It loses where the result would
have stayed in a cache until somebody reads it.  So it is done where what the operator touches does not fit
the last cache: then the result is gone anyway when the operator has ended.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyfuse.cost.cpu_device import table_cpu
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.decisions import Decision, format_bytes
from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.kernel import Kernel, KernelGraph, Scope
from polyfuse.ir.tensor_graph import EXPR_TYPES, Role, depends_on, statement_reads
from polyfuse.layers.product_measures import extents_of


def stores_past_caches(
    kernels: KernelGraph, threads: int, decisions: list[Decision], wanted: bool | None = None
) -> KernelGraph:
    """The kernels with `Buffer.past` set: where it pays (None), wherever it can be done, or nowhere."""
    if kernels.graph.sizes or wanted is False:
        return kernels
    found = [n for n in _results(kernels) if wanted or _bytes(kernels, n) >= FITTED.streams_least_bytes]
    if not found:
        return kernels
    total, capacity = touched(kernels), table_cpu(threads).levels[-2].capacity
    pays = total > FITTED.streams_beyond * capacity
    names = ", ".join(found)
    if not (wanted or pays):
        if total > capacity / 4:
            why = f"most of {format_bytes(total)} in all stays in L3"
            decisions.append(Decision("stream", names, False, why))
        return kernels
    why = f"{format_bytes(total)} in all do not fit L3" if pays else "asked for"
    decisions.append(Decision("stream", names, True, f"non-temporal stores: {why}"))
    return replace(kernels, kernels=tuple(_marked(k, frozenset(found)) for k in kernels.kernels))


def _marked(k: Kernel, names: frozenset[str]) -> Kernel:
    buffers = tuple(replace(b, past=True) if b.tensor in names else b for b in k.buffers)
    return replace(k, buffers=buffers)


def _results(kernels: KernelGraph) -> list[str]:
    """Results that are written once and that no kernel reads, nor memory of an inout parameter."""
    statements = [s for k in kernels.kernels for s in k.graph.statements]
    read = {r.tensor for s in statements for r in statement_reads(s)}
    added = {s.target for s in statements if s.accumulate}
    library = {s.target for k in kernels.kernels if k.library is not None for s in k.graph.statements}
    return [
        t.name
        for t in kernels.graph.tensors
        if t.role is Role.OUTPUT and t.alias is None and t.name not in read | added | library
    ]


def _bytes(kernels: KernelGraph, name: str) -> int:
    t = kernels.graph.tensor(name)
    return evaluate(product(t.shape), {}) * t.dtype.bytes


def touched(kernels: KernelGraph) -> int:
    """Bytes of all memory that the kernels touch, what is written in place counted once; of a table whose
    rows data choose no more than is read."""
    outside = (Scope.ARGUMENT, Scope.GLOBAL)
    names = {b.tensor for k in kernels.kernels for b in k.buffers if b.scope in outside}
    own = {t.name for t in kernels.graph.tensors if t.alias is None}
    chosen = _chosen(kernels)
    return sum(min(_bytes(kernels, n), chosen.get(n, _bytes(kernels, n))) for n in names & own)


def _chosen(kernels: KernelGraph) -> dict[str, int]:
    """Bytes of all reads of a tensor together, of those that are only read, and only where data say."""
    found: dict[str, int] = {}
    whole: set[str] = set()
    for s in (s for k in kernels.kernels for s in k.graph.statements):
        of = extents_of(s)
        whole.add(s.target)
        for r in statement_reads(s):
            elements = prod(of[d] for d in depends_on(*r.indices))
            if elements == 0 or not any(isinstance(i, EXPR_TYPES) for i in r.indices):
                whole.add(r.tensor)
            found[r.tensor] = found.get(r.tensor, 0) + elements * r.dtype.bytes
    return {n: size for n, size in found.items() if n not in whole}
