"""Nests that add to totals: what they add, where, and whether steps of a recurrence go row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IndexExpr, substitute, variables
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import Declare, For, LocalRole, Store, Update, nodes_of, values_of
from polyfuse.ir.ops import COMBINES
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Expr,
    Read,
    depends_on,
    map_expr,
    plain_variables,
    reads,
)

EXTREMES = {"max": "max", "min": "min"}
_COMBINED = {op: COMBINES[op] for op in ("sum", "prod", *EXTREMES)}


def adds(n: Update, var: str, inner: For, integers: bool = False) -> bool:
    """Does an update add floats, or integers as well, to the same elements in all iterations of the outer
    loop, and is nothing it needs changed by the inner one?"""
    number = n.value.dtype.is_float or (integers and n.value.dtype.is_integer)
    if n.op not in _COMBINED or n.atomic or not number or not n.indices:
        return False
    if any(isinstance(i, EXPR_TYPES) or var in variables(i) for i in n.indices):
        return False
    changed = {x.buffer for x in inner.body if isinstance(x, Update)}
    return len(changed) == len(inner.body) and not changed & {r.tensor for r in reads(n.value)}


def combined(op: str, terms: list[Expr]) -> Expr:
    """The total of terms, as a tree: chains of additions would wait for each other."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    sides = combined(op, terms[:half]), combined(op, terms[half:])
    return Apply(_COMBINED[op], sides, terms[0].dtype)


def nest(loop: For) -> list[For]:
    """The loops of a perfect nest, up to the first that is no plain one."""
    found = [loop]
    while found[-1].coordinate is Coordinate.SEQ and found[-1].step == 1 and len(found[-1].body) == 1:
        (node,) = found[-1].body
        if not isinstance(node, For):
            break
        found.append(node)
    return found


def beside(updates: Sequence[Update], inner: For) -> set[str]:
    """The variables of indices that a vector loop's variable is in as well: their terms lie side by side."""
    indices = (plain_variables((i,)) for n in updates for r in reads(n.value) for i in r.indices)
    return {v for found in indices if inner.var in found for v in found} - {inner.var}


def at_place(e: Expr, place: dict[str, IndexExpr]) -> Expr:
    """An expression at values of loop variables."""
    return map_expr(e, lambda x: x, lambda i: substitute(i, place))


def bounds_of(loops: Sequence[For]) -> set[str]:
    return {v for n in loops for e in (n.lower, n.upper) for v in variables(e)}


def are_steps(loop: For, rows: Set[str]) -> bool:
    """Are these steps of a recurrence, as many for all rows, that wait for one another?"""
    if loop.coordinate is not Coordinate.SEQ or loop.scan or rows & bounds_of([loop]):
        return False
    nodes = list(nodes_of(loop.body))
    if any(isinstance(n, Declare) and n.role is LocalRole.CARRIED for n in nodes):
        return True
    written = [n for n in nodes if isinstance(n, (Store, Update))]
    read = [r for e in values_of(nodes) for r in reads(e)]
    return any(_before(r, n, loop.var) for r in read for n in written if r.tensor == n.buffer)


def _before(r: Read, at: Store | Update, var: str) -> bool:
    """Does an index say that what is read is what another step writes?"""
    pairs = [(i, j) for i, j in zip(r.indices, at.indices, strict=True) if depends_on(j) >= {var}]
    plain = ((i, j) for i, j in pairs if not isinstance(i, EXPR_TYPES) and not isinstance(j, EXPR_TYPES))
    apart = [linear(i - j) for i, j in plain]
    return any(x.constant and not x.terms for x in apart)


def held_row(loop: For, inner: For, dtypes: Mapping[str, DType], core: Core) -> bool:
    """Does a loop of data, which may be short, do nothing but add to totals of a row that registers hold?"""
    trip, updates = trip_of(inner), [n for n in inner.body if isinstance(n, Update)]
    plain = inner.coordinate is Coordinate.VECTOR and inner.step == 1 and not (inner.lanes or inner.joint)
    if not (
        loop.of_data and loop.body == (inner,) and plain and trip and 0 < len(updates) == len(inner.body)
    ):
        return False
    taken = trip * sum(n.value.dtype.bytes for n in updates)
    return (
        loop.var not in variables(inner.lower) + variables(inner.upper)
        and all(adds(n, loop.var, inner) and dtypes.get(n.buffer) == n.value.dtype for n in updates)
        and taken <= FITTED.strip_accumulators_registers * core.vector_bytes
    )
