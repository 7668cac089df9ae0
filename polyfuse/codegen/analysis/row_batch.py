"""Rows that are computed as one batch: which arrays have a place for each row, and their totals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from polyfuse.codegen.analysis.accesses import touched_in
from polyfuse.codegen.analysis.renaming import scalar_name
from polyfuse.codegen.function import ITERATION
from polyfuse.codegen.math.vector_reduce import joins
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, variables
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    Delinearize,
    For,
    Node,
    Store,
    Update,
    map_nodes,
    map_values,
    nodes_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Expr, Read

# The variable of the rows that are computed at once.
ROW = "row"


def of_all(scalar: str) -> str:
    """The array of a scalar, with a place for each row."""
    return f"%all_{scalar_name(scalar)}"


def first_row(var: str) -> str:
    """What the variable of a loop is called for the first of the rows."""
    return f"{var}_0"


def places_of_batch(nest: tuple[For, ...], rows: int) -> tuple[Delinearize, ...]:
    """What finds the variables of a nest in loops over so many of its iterations.  Of a single loop the first
    ones are known outside of these, too."""
    each = For(ROW, IConst(0), IConst(rows), 1, ())
    if len(nest) > 1:
        return (Delinearize(nest, ITERATION + IVar(ROW), each),)
    first = replace(nest[0], var=first_row(nest[0].var))
    of_row = replace(nest[0], lower=IVar(first.var))
    return Delinearize((first,), ITERATION), Delinearize((of_row,), IVar(ROW), each)


def joint_totals(loop: For) -> list[Update]:
    """The totals of a loop whose lanes can be combined with those of other rows."""
    found = {n.buffer: n for n in nodes_of(loop.body) if isinstance(n, Update) and n.buffer in loop.lanes}
    return [u for u in found.values() if joins(u.op, u.value.dtype)]


def row_places(n: Declare) -> int:
    """Elements of a row of an array: the last step of lanes may go beyond what is used of them."""
    return -(-n.count // FITTED.half_precision_lanes) * FITTED.half_precision_lanes


def loop_over_batch(
    body: Block, rows: int, coordinate: Coordinate = Coordinate.SEQ, lanes: tuple[str, ...] = ()
) -> For:
    return For(ROW, IConst(0), IConst(rows), 1, body, coordinate, lanes, joint=True)


def for_all_rows(
    run: Block, scalars: Mapping[str, Declare], rows: int, common: Set[str] = frozenset()
) -> Iterator[Node]:
    """What is between two loops, for all rows: scalars are elements of their arrays.  Where rows add to the
    same elements they do so in order."""
    place = (IVar(ROW),)
    indices = {name for name in index_names(run) if name in scalars}
    here = {n.name for n in run if isinstance(n, Declare)}
    known = [d for d in scalars.values() if d.name in indices - here]

    def expr(e: Expr) -> Expr:
        return Read(of_all(e.tensor), place, e.dtype) if isinstance(e, Read) and e.tensor in scalars else e

    def node(n: Node) -> Node | Block:
        match n:
            case Declare(name, dtype) if name in indices:
                return n, Store(of_all(name), place, Read(name, (), dtype))
            case Declare(name, _, value) if name in scalars:
                return () if value is None else Store(of_all(name), place, value)
            case Declare() if n.count:
                return ()
            case Store(name) | Update(name) if name in scalars:
                return replace(n, buffer=of_all(name), indices=place)
            case Comment():
                return ()
            case _:
                return n

    body = map_nodes(map_values(run, expr, lambda i: i), node)
    if body:
        copies = (replace(d, value=Read(of_all(d.name), place, d.dtype)) for d in known)
        kind = Coordinate.SEQ if indices or touched_in(body) & common else Coordinate.VECTOR
        yield loop_over_batch((*copies, *body), rows, kind)


def index_names(block: Block) -> set[str]:
    """What indices and bounds of loops are made of: variables, and scalars that are bounds from data."""
    found: set[str] = set()

    def index(i: IndexExpr) -> IndexExpr:
        found.update(variables(i))
        return i

    map_values(block, lambda e: e, index)
    return found
