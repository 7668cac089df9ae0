"""Versions of a kernel for short and for long rows, where the length of rows is an open size, and for memory
that is far.

    void k0(...):                            N is 1 to 4096
      if (N > 256 and 8 * T * N > L3) return k0_far(...)     non-temporal stores, prefetches
      if (N <= 16) return k0_r16(...)        sixteen rows at once, one vector each
      if (N <= 64) return k0_r64(...)        ...
      k0_body(...)                           the first phase of the next row runs before the last one

What is decided by how long a row is (how many are computed at a time, how many lanes a loop has, what stays
in registers) is decided for each version by the lengths that it is for, as for rows of a known length.
Versions whose code is the same are one.  What the operator touches is an expression of sizes, and where it is
more than L3 keeps, memory is far (`layers.mapping.memory_hints`).  Kernels with tiles of products have none,
nor have those whose workers share rows by what data says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeGuard

from polyfuse.codegen.analysis.trip_count import is_open_row
from polyfuse.codegen.function import Function
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IConst, IndexExpr, ISize, IVar, evaluate, sizes, variables
from polyfuse.ir.kernel import Buffer, Kernel, Scope, instances, tree
from polyfuse.ir.linear import of_size, size_ranges
from polyfuse.ir.loop_ir import For, nodes_of
from polyfuse.ir.schedule_tree import Band, Coordinate, Sequence, Tree
from polyfuse.ir.tensor_graph import Constraint, IterDim, Statement


@dataclass(frozen=True, slots=True)
class Version:
    """A kernel for sizes with these conditions, and what its name ends with."""

    kernel: Kernel
    name: str = ""
    where: tuple[Constraint, ...] = ()


def by_rows(kernel: Kernel) -> tuple[Version, ...]:
    """A kernel that is for rows of some lengths as ones for short rows, the shortest first, and for others;
    none where there are no short rows, or their length is not one open size."""
    size = row_size(kernel)
    if size is None:
        return ()
    found: list[Version] = []
    low, high = size_ranges(kernel.graph)[of_size(size)]
    each = _elements_of_one(kernel, size)
    for border in FITTED.open_rows_borders:
        most = border // each
        if low <= most < high:
            shorter = Constraint("<=", ISize(size), IConst(most))
            found.append(Version(_bounded(kernel, size, low, most), f"_r{border}", (shorter,)))
            low = most + 1
    return (*found, Version(_bounded(kernel, size, low, high))) if found else ()


def row_size(kernel: Kernel) -> str | None:
    """The open size that says how long rows are, if there is one; of several that of loops of lanes with the
    most to do."""
    ranges = size_ranges(kernel.graph)
    known = [n for n in kernel.graph.sizes if of_size(n) in ranges]
    found = [n for n in known if ranges[of_size(n)][1] <= FITTED.open_rows_longest]
    if len(found) < 2:
        return found[0] if found else None
    usual = dict.fromkeys(kernel.graph.sizes, FITTED.open_rows_longest)
    done = dict.fromkeys(found, 0)
    for s, dim in _in_lanes(kernel, tree(kernel)):
        for n in {*sizes(dim.upper)} & {*found}:
            done[n] += evaluate(instances(s), usual)
    return max(found, key=lambda n: done[n])


def _elements_of_one(kernel: Kernel, size: str) -> int:
    """By how many elements rows are longer where the size is one more: 56 in loops of lanes over 56 * W."""
    most = FITTED.open_rows_longest
    at = [dict.fromkeys(kernel.graph.sizes, most) | {size: n} for n in (most, 2 * most)]
    trips = [d.upper - d.lower for _, d in _in_lanes(kernel, tree(kernel)) if size in sizes(d.upper)]
    found = [(evaluate(e, at[1]) - evaluate(e, at[0])) // most for e in trips if not variables(e)]
    return min((n for n in found if n > 0), default=1)


def _in_lanes(kernel: Kernel, node: Tree) -> Iterator[tuple[Statement, IterDim]]:
    """The statements in loops of lanes, each with the dim that these run over."""
    match node:
        case Sequence(children):
            for c in children:
                yield from _in_lanes(kernel, c)
        case Band(members, child):
            for n, e in (x for m in members if m.coordinate is Coordinate.VECTOR for x in m.exprs):
                s = kernel.graph.statement(n)
                yield from ((s, d) for d in s.dims if e == IVar(d.name))
            yield from _in_lanes(kernel, child)


def where_near(kernel: Kernel) -> Kernel:
    """A kernel with open sizes as one for sizes at which memory is near: it has none of the hints."""
    if kernel.far is None:
        return kernel
    buffers = tuple(replace(b, past=False, soon=False, ahead=0) for b in kernel.buffers)
    return replace(kernel, buffers=buffers, far=None)


def where_far(kernel: Kernel) -> Version | None:
    """A kernel with open sizes as one for sizes at which memory is far, if that has hints.  Short rows are
    computed several at a time, and hints are for long loops."""
    if kernel.far is None:
        return None
    size, hinted = row_size(kernel), replace(kernel, far=None)
    if size is None:
        return Version(hinted, "_far", (kernel.far,))
    low, high = size_ranges(kernel.graph)[of_size(size)]
    low = max(low, FITTED.open_rows_short // _elements_of_one(kernel, size) + 1)
    longer = Constraint(">=", ISize(size), IConst(low))
    return Version(_bounded(hinted, size, low, high), "_far", (longer, kernel.far)) if low <= high else None


def _bounded(kernel: Kernel, size: str, low: int, high: int) -> Kernel:
    """The kernel for values of a size in these bounds."""
    bounds = (Constraint(">=", ISize(size), IConst(low)), Constraint("<=", ISize(size), IConst(high)))
    graph = replace(kernel.graph, constraints=(*kernel.graph.constraints, *bounds))

    def shorter(b: Buffer) -> Buffer:
        """An array of a worker with places for a row of any length, as one for these rows."""
        pairs = zip(b.extents, b.shape, strict=True)
        extents = (IConst(min(e.value, high)) if _is_row_of(e, full, size) else e for e, full in pairs)
        return replace(b, extents=tuple(extents)) if b.scope is Scope.LOCAL and b.slots else b

    return replace(kernel, graph=graph, buffers=tuple(map(shorter, kernel.buffers)))


def _is_row_of(extent: IndexExpr, full: IndexExpr, size: str) -> TypeGuard[IConst]:
    return isinstance(extent, IConst) and full == ISize(size)


def least_row_text(kernel: Kernel, f: Function) -> list[str]:
    """What compilers may take for granted of lengths of rows; not how long they are at most: they would
    unroll loops in full.

    That a loop of lanes runs at least once saves a branch, behind which gcc 12 keeps accumulators in memory.
    """
    size = row_size(kernel)
    if size is None or not any(isinstance(n, For) and is_open_row(kernel, n) for n in nodes_of(f.block)):
        return []
    low, _ = size_ranges(kernel.graph)[of_size(size)]
    return [f"  if (N_{size} < {low}) __builtin_unreachable();"]
