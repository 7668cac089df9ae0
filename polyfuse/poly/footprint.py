"""Storage contraction: how much of a tensor lives at a time, asked of isl.

A tensor whose every element is touched under one value of the outer `d` loops only needs storage for
what one iteration of these loops touches.  Along each dim that is a window of some extent E, and
``x mod E`` addresses it without conflicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import islpy as isl

from polyfuse.ir.index_expr import IConst, IndexExpr
from polyfuse.ir.schedule_tree import Coordinate, Member, Tree, path
from polyfuse.poly.domains import Access, PolyModel
from polyfuse.poly.isl_bridge import params_prefix
from polyfuse.poly.tree_convert import member_text


@dataclass(frozen=True, slots=True)
class Window:
    """Storage that suffices for a tensor in a tree.

    `loops` are the loops whose every iteration has storage of its own; `extents` the window per dim
    (the tensor's own extent where nothing is gained).
    """

    loops: tuple[Member, ...]
    extents: tuple[IndexExpr, ...]

    @property
    def scalar(self) -> bool:
        return all(e == IConst(1) for e in self.extents)


def window(model: PolyModel, tree: Tree, tensor: str) -> Window:
    """The smallest window of `tensor` for the statements of `tree` that touch it."""
    accesses = [a for a in (*model.writes.values(), *model.reads) if a.tensor == tensor]
    common = common_loops(tree, list(dict.fromkeys(a.statement for a in accesses)))
    for depth in range(len(common), 0, -1):
        found = touched(model, accesses, common[:depth])
        if found.reverse().is_single_valued():
            return Window(tuple(common[:depth]), _extents(model, tensor, found))
    return Window((), model.graph.tensor(tensor).shape)


def window_of(model: PolyModel, tensor: str, loops: list[Member]) -> Window | None:
    """The window of `tensor` where every iteration of the given loops has storage of its own.

    Each loop has a value in every statement that touches the tensor.  None where an element is touched in
    several iterations.
    """
    if not loops:
        return Window((), model.graph.tensor(tensor).shape)
    accesses = [a for a in (*model.writes.values(), *model.reads) if a.tensor == tensor]
    found = touched(model, accesses, loops)
    if not found.reverse().is_single_valued():
        return None
    return Window(tuple(loops), _extents(model, tensor, found))


def private_to_blocks(window_: Window, tree: Tree, statement: str) -> bool:
    """Does every loop around a statement that is over blocks, or over steps that workers share, have storage
    of its own in the window?"""
    shared = (Coordinate.BLK, Coordinate.TIME)
    blocks = [m for m in path(tree, statement) if isinstance(m, Member) and m.coordinate in shared]
    return all(any(m.name == b.name and m.coordinate == b.coordinate for m in window_.loops) for b in blocks)


def common_loops(tree: Tree, statements: list[str]) -> list[Member]:
    """The loops that all the statements share, outermost first."""
    paths = [list(path(tree, s)) for s in statements]
    shared: list[Member] = []
    for step in zip(*paths, strict=False):
        if any(x is not step[0] and x != step[0] for x in step):
            break
        if isinstance(step[0], Member):
            shared.append(step[0])
    return shared


def touched(model: PolyModel, accesses: Sequence[Access], loops: Sequence[Member]) -> isl.Map:
    """Values of the loops -> elements touched under them."""
    result: isl.Map | None = None
    for a in accesses:
        rows = [member_text(model, [(a.statement, m.of(a.statement))]) for m in loops]
        text = params_prefix(model.params) + "[" + ", ".join(rows) + "]"
        values = isl.MultiUnionPwAff.read_from_str(model.context, text)
        prefix = (
            isl.Map.from_union_map(
                isl.UnionMap.from_multi_union_pw_aff(values).intersect_domain(
                    isl.UnionSet.from_set(model.domains[a.statement])
                )
            )
            if not model.domains[a.statement].is_empty()
            else None
        )
        if prefix is None:
            continue
        found = prefix.reverse().apply_range(a.relation)
        result = found if result is None else result.union(found)
    if result is None:
        space = accesses[0].relation.get_space().range()
        out = isl.Space.alloc(model.context, len(model.params), len(loops), space.dim(isl.dim_type.set))
        return isl.Map.empty(out)
    return result


def _extents(model: PolyModel, tensor: str, found: isl.Map) -> tuple[IndexExpr, ...]:
    shape = model.graph.tensor(tensor).shape
    spread = found.reverse().apply_range(found).intersect_params(model.assumptions).deltas()
    extents: list[IndexExpr] = []
    for k, full in enumerate(shape):
        if spread.is_empty():
            extents.append(IConst(1))
            continue
        largest = spread.dim_max_val(k)
        known = largest.is_int()
        extents.append(IConst(int(largest.to_python()) + 1) if known else full)
    return tuple(extents)
