"""Storage contraction: how much of a tensor lives at a time, asked of isl.

A tensor whose every element is touched under one value of the outer `d` loops only needs storage for
what one iteration of these loops touches.  Along each dim that is a window of some extent E, and
``x mod E`` addresses it without conflicts.

`window_of` gives these windows; `folded` has steps of a recurrence take turns in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import islpy as isl

from polyfuse.ir.index_expr import IConst, IndexExpr, variables
from polyfuse.ir.schedule_tree import Coordinate, Member, Tree, path
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, statement_reads
from polyfuse.poly.model.domains import Access, PolyModel
from polyfuse.poly.model.isl_bridge import from_aff, index_text, params_prefix, tensor_id
from polyfuse.poly.scheduling.tree_convert import member_text


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


def smallest(model: PolyModel, tree: Tree, tensor: str) -> tuple[IndexExpr, ...]:
    """Extents of the least storage of a tensor in which elements take turns, as `x mod extent` has it."""
    found = window(model, tree, tensor)
    return folded(model, tree, tensor, found.loops, found.extents)


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


# --- boxes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Box:
    """Elements that one iteration of some loops touches, and maybe others: along each dim from an offset, in
    terms of the loops' names, so many.  `ranges` are the first value of each loop and the one after
    the last."""

    ranges: tuple[tuple[int, int], ...]
    offsets: tuple[IndexExpr, ...]
    extents: tuple[IndexExpr, ...]


def box(model: PolyModel, tensor: str, readers: Collection[str], loops: Sequence[Member]) -> Box | None:
    """The smallest box of a tensor that the readers touch; None where nothing is read, or a loop has no known
    range."""
    accesses = [a for a in model.reads if a.tensor == tensor and a.statement in readers]
    found = touched(model, accesses, loops).intersect_params(model.assumptions)
    if found.is_empty():
        return None
    values = found.domain()
    ends = [(values.dim_min_val(k), values.dim_max_val(k)) for k in range(len(loops))]
    if not all(v.is_int() for pair in ends for v in pair):
        return None
    ranges = tuple((int(a.to_python()), int(b.to_python()) + 1) for a, b in ends)
    names = tuple(m.name for m in loops)
    shape = model.graph.tensor(tensor).shape
    sides = [_side(found, k, names) or (IConst(0), e) for k, e in enumerate(shape)]
    return Box(ranges, tuple(a for a, _ in sides), tuple(b for _, b in sides))


def _side(found: isl.Map, k: int, names: tuple[str, ...]) -> tuple[IndexExpr, IndexExpr] | None:
    """Offset and extent along a dim: the bound, of those that hold somewhere, that is nearest everywhere."""
    count = found.dim(isl.dim_type.out)
    along = found.project_out(isl.dim_type.out, k + 1, count - k - 1).project_out(isl.dim_type.out, 0, k)
    first, last = along.lexmin_pw_multi_aff().get_at(0), along.lexmax_pw_multi_aff().get_at(0)
    bounds: list[isl.Aff] = []
    first.foreach_piece(lambda _, aff: bounds.append(aff))
    best: tuple[int, isl.Aff] | None = None
    for bound in bounds:
        least = _values(first.sub(isl.PwAff.from_aff(bound))).dim_min_val(0)
        most = _values(last.sub(isl.PwAff.from_aff(bound))).dim_max_val(0)
        if least.is_int() and most.is_int() and not least.is_neg():
            extent = int(most.to_python()) + 1
            best = (extent, bound) if best is None or extent < best[0] else best
    return None if best is None else (from_aff(best[1], names), IConst(best[0]))


def _values(e: isl.PwAff) -> isl.Set:
    return isl.Map.from_pw_aff(e).range()


def all_written(model: PolyModel, tensor: str) -> bool:
    """Is every element of a tensor written?"""
    shape = model.graph.tensor(tensor).shape
    dims = [f"x{k}" for k in range(len(shape))]
    inside = " and ".join(f"0 <= {d} < {index_text(e)}" for d, e in zip(dims, shape, strict=True)) or "true"
    text = f"{params_prefix(model.params)}{{ {tensor_id(tensor)}[{', '.join(dims)}] : {inside} }}"
    every = isl.UnionSet.read_from_str(model.context, text).intersect_params(model.assumptions)
    written = model.union_map(model.writes[s.name].relation for s in model.graph.writers(tensor)).range()
    return every.subtract(written).is_empty()


# --- folding ----------------------------------------------------------------------------------------------

# Steps of a recurrence take turns in the memory of those that are no longer needed.
#
#     u[0, i] = x[i];  u[t, i] = f(u[t-1, i-1], u[t-1, i+1]);  y[i] = u[T, i]
# needs two rows of u at a time: ``u[t mod 2, i]``.
#
# An element lives from the first loop iteration that touches it to the last.  Two of them may share memory
# unless both live at once (Lefebvre and Feautrier 1998, section 4), which isl is asked for all pairs that
# differ along time alone.  Only loops that run in order are clocks: iterations of all others count as one
# moment, so that what they become (blocks, lanes, pipelined rows) changes nothing.


Steps = dict[str, list[Member | int]]


def folded(
    model: PolyModel, tree: Tree, tensor: str, loops: Sequence[Member], extents: tuple[IndexExpr, ...]
) -> tuple[IndexExpr, ...]:
    """Extents of storage for a tensor of which every iteration of `loops` has its own, of these extents: the
    same, but for dims along which steps take turns."""
    accesses = [a for a in (*model.writes.values(), *model.reads) if a.tensor == tensor]
    steps: Steps = {n: _steps(tree, n, loops) for n in dict.fromkeys(a.statement for a in accesses)}
    along = _dims_of_time(model, tensor, steps)
    if not along:
        return extents
    both = _alive_at_once(touched(model, accesses, _clock(steps)))
    both = both.intersect_params(model.assumptions)
    for k in range(len(extents)):
        if k not in along:
            both = both.equate(isl.dim_type.in_, k, isl.dim_type.out, k)
    found = list(extents)
    for k in along:
        largest = isl.Val.zero(model.context) if both.is_empty() else both.deltas().dim_max_val(k)
        if largest.is_int():
            found[k] = _smaller(found[k], int(largest.to_python()) + 1)
        both = both.equate(isl.dim_type.in_, k, isl.dim_type.out, k)
    return tuple(found)


def _steps(tree: Tree, statement: str, loops: Sequence[Member]) -> list[Member | int]:
    """What orders a statement within the loops, up to the first loop whose iterations run in any order."""
    found: list[Member | int] = []
    for step in path(tree, statement):
        if isinstance(step, Member) and step in loops:
            continue
        if isinstance(step, Member) and step.coincident:
            break
        found.append(step)
    return found


def _dims_of_time(model: PolyModel, tensor: str, steps: Steps) -> list[int]:
    """The dims of a tensor whose indices are those of loops that run in order, in all that touches it."""
    clocks = {
        name: {v for m in order if isinstance(m, Member) for v in variables(m.of(name))}
        for name, order in steps.items()
    }
    uses = [(name, i) for name in steps for i in _indices(model, tensor, name)]
    return [
        k
        for k in range(len(model.graph.tensor(tensor).shape))
        if all(_is_of(indices[k], clocks[name]) for name, indices in uses)
        and any(not isinstance(indices[k], IConst) for _, indices in uses)
    ]


def _indices(model: PolyModel, tensor: str, statement: str) -> Iterator[tuple[Index, ...]]:
    s = model.graph.statement(statement)
    if s.target == tensor:
        yield s.write
    yield from (r.indices for r in statement_reads(s) if r.tensor == tensor)


def _is_of(index: Index, clock: set[str]) -> bool:
    return not isinstance(index, EXPR_TYPES) and set(variables(index)) <= clock


def _clock(steps: Steps) -> list[Member]:
    """The orders of all statements as loops that they have in common; where one has fewer, 0."""
    length = max(map(len, steps.values()))
    members = []
    for p in range(length):
        at = {name: order[p] if p < len(order) else 0 for name, order in steps.items()}
        exprs = tuple((name, x.of(name) if isinstance(x, Member) else IConst(x)) for name, x in at.items())
        members.append(Member(f"step{p}", exprs, False))
    return members


def _alive_at_once(moments: isl.Map) -> isl.Map:
    """Pairs of elements that live at the same time, of the moments at which elements are touched."""
    of = moments.reverse()
    before = isl.Map.lex_le(of.get_space().range())
    begun = of.lexmin().apply_range(before).apply_range(of.lexmax().reverse())
    return begun.intersect(begun.reverse())


def _smaller(extent: IndexExpr, steps: int) -> IndexExpr:
    """Two steps at least: what a step writes is nowhere what it has read."""
    fewest = max(steps, 2)
    return extent if isinstance(extent, IConst) and extent.value <= fewest else IConst(fewest)
