"""How a loop walks memory: strides of accesses, and the vectors that alignment allows."""

from __future__ import annotations

from collections.abc import Iterator

from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, variables
from polyfuse.ir.linear import Linear, flat
from polyfuse.ir.schedule_tree import Member
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Statement, TensorGraph, statement_reads

VECTOR_BYTES = 16
MOST_LANES = 8


def accesses(graph: TensorGraph, s: Statement) -> Iterator[tuple[str, Linear]]:
    """(tensor, element number) of what one instance touches; the sum of a reduction is in a register."""
    if s.reduction is None or s.accumulate:
        yield s.target, address(graph, s.target, s.write)
    for r in statement_reads(s):
        yield r.tensor, address(graph, r.tensor, r.indices)


def address(graph: TensorGraph, tensor: str, indices: tuple[Index, ...]) -> Linear:
    """The element number in dense memory; an index that is data is an atom of its own."""
    plain: list[IndexExpr] = [
        IVar(f"%data{k}") if isinstance(i, EXPR_TYPES) else i for k, i in enumerate(indices)
    ]
    return flat(tuple(plain), graph.tensor(tensor).shape)


def stride(where: Linear, var: str) -> int | None:
    """Elements from one iteration of a loop to the next; None if that varies."""
    for atom, _ in where.terms:
        if atom != IVar(var) and var in variables(atom):
            return None
    return where.factor(IVar(var))


def contiguity(graph: TensorGraph, m: Member, names: tuple[str, ...]) -> int:
    """Accesses that walk contiguous memory along a loop count 2, those that jump -1."""
    score = 0
    for n, e in m.exprs:
        if n not in names or not isinstance(e, IVar):
            continue
        for _, where in accesses(graph, graph.statement(n)):
            step = stride(where, e.name)
            score += 2 if step == 1 else 0 if step == 0 else -1
    return score


def vector_width(graph: TensorGraph, m: Member, names: tuple[str, ...]) -> int:
    """Elements that a thread may take at once along a loop: all contiguous accesses aligned, 16 bytes.

    1 where nothing is contiguous, or an address is not a multiple of the vector in every iteration of
    the other loops.  Memory is taken to begin at a multiple of 16 bytes; launches see to it.
    """
    found: list[tuple[int, Linear]] = []
    for n, e in m.exprs:
        if n not in names:
            continue
        if not isinstance(e, IVar) or not _starts_at_zero(graph.statement(n), e.name):
            return 1
        for tensor, where in accesses(graph, graph.statement(n)):
            if stride(where, e.name) == 1:
                found.append((graph.tensor(tensor).dtype.bytes, where.without(e)))
            elif stride(where, e.name) is None:
                return 1
    if not found:
        return 1
    width = min(MOST_LANES, VECTOR_BYTES // max(b for b, _ in found))
    while width > 1 and not all(base.divisible(width) for _, base in found):
        width //= 2
    return width


def _starts_at_zero(s: Statement, name: str) -> bool:
    dim = next((d for d in s.dims if d.name == name), None)
    return dim is not None and (dim.lower == IConst(0) or bool(variables(dim.lower)))
