"""Elements of a tensor computed, or copied, where one iteration of a loop needs them.

    for i_tile: for i: y[i] = a[i - 1] + a[i + 1]        where a[i] = exp(x[i])
becomes
    for i_tile:
      for k in 0..10:  a__local[i_tile, k] = exp(x[8*i_tile + k - 1])
      for i:  y[i] = a__local[i//8, i%8] + a__local[i//8, i%8 + 2]

Neighbouring iterations compute the elements that both need, each its own (overlapped tiling, `compute_at` of
Halide).  The new tensor has an axis for each loop around, so that every element is still written once;
contraction leaves what lives in one iteration.  A copy of an input is the same with ``x[...]`` for exp.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute
from polyfuse.ir.linear import simplify
from polyfuse.ir.schedule_tree import (
    Band,
    Leaf,
    Member,
    Sequence,
    Tree,
    band,
    path,
    restrict,
    sequence,
    statements,
)
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Cast,
    Expr,
    IterDim,
    Purpose,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    statement_reads,
)
from polyfuse.layers.graph.names import fresh_name
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.model.storage import Box, all_written, box


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no local copy."""

    reason: str


def whole_definition(graph: TensorGraph, tensor: str) -> Statement | Refused:
    """The one statement that gives every element of a temporary from other tensors."""
    writers = graph.writers(tensor)
    if graph.tensor(tensor).role is not Role.TEMP:
        return Refused("it is no temporary")
    if len(writers) != 1 or writers[0].accumulate:
        return Refused(f"{len(writers)} statements define it")
    (s,) = writers
    plain = s.write == tuple(IVar(d.name) for d in s.dims if not d.reduce)
    if not plain or s.purpose is not Purpose.VALUE or s.place is not None:
        return Refused("its definition has no index for each of its dims")
    if any(r.tensor == tensor for r in statement_reads(s)):
        return Refused("it is a recurrence: an element needs others of it")
    return s


def copy_of(graph: TensorGraph, tensor: str) -> Statement | Refused:
    """A statement that copies a tensor: those elements that are written, if it is no argument. The local
    tensor of a loop has others, where tiles end."""
    source, writers = graph.tensor(tensor), graph.writers(tensor)
    dims = tuple(IterDim(f"d{k}", IConst(0), e) for k, e in enumerate(source.shape))
    if writers:
        own = tuple(d for d in writers[0].dims if not d.reduce)
        if len(writers) == 1 and writers[0].write == tuple(IVar(d.name) for d in own):
            dims = own
        else:
            with isl_lock:
                if not all_written(build_model(graph), tensor):
                    return Refused("some of its elements are never written")
    value: Expr = Read(tensor, tuple(IVar(d.name) for d in dims), source.dtype)
    if source.dtype.compute is not source.dtype:  # what is stored in 16 bits comes from a cast
        value = Cast(Cast(value, source.dtype.compute), source.dtype)
    return Statement(tensor, tensor, dims, tuple(IVar(d.name) for d in dims), value, span=source.span)


def local_copy(
    graph: TensorGraph, tree: Tree, tensor: str, definition: Statement, target: Member, suffix: str
) -> tuple[TensorGraph, Tree] | Refused:
    """Graph and tree with what an iteration of a loop reads of a tensor computed at its start."""
    around = loops_to(tree, target)
    readers = [s.name for s in graph.readers(tensor) if s.name in dict(target.exprs) and s is not definition]
    if not readers:
        return Refused(f"nothing in loop {target.name} reads it")
    reads = [r for n in readers for r in statement_reads(graph.statement(n)) if r.tensor == tensor]
    if any(isinstance(i, EXPR_TYPES) for r in reads for i in r.indices):
        return Refused("data say which of its elements are read")
    with isl_lock:
        found = box(build_model(graph), tensor, readers, around)
    if found is None:
        return Refused(f"how far the loops around {target.name} go is not known")
    made = _Local(graph, tensor, definition, around, found, fresh_name(graph, f"{tensor}__{suffix}"))
    new = made.graph(readers)
    unused = definition.name in {s.name for s in graph.statements} and not new.readers(tensor)
    if unused:
        new = _without(new, tensor)
    kept = restrict(tree, frozenset(s.name for s in new.statements))
    assert kept is not None
    return new, _placed(kept, target, made)


def _without(graph: TensorGraph, tensor: str) -> TensorGraph:
    """The graph less a temporary that nothing reads."""
    return replace(
        graph,
        statements=tuple(s for s in graph.statements if s.target != tensor),
        tensors=tuple(t for t in graph.tensors if t.name != tensor),
    )


def loops_to(tree: Tree, target: Member) -> list[Member]:
    """The loops around a loop, and itself."""
    along = [m for m in path(tree, target.exprs[0][0]) if isinstance(m, Member)]
    return along[: next(k for k, m in enumerate(along) if m is target) + 1]


class _Local:
    """The statement that computes a box, in terms of the values of the loops around."""

    def __init__(
        self, graph: TensorGraph, tensor: str, s: Statement, around: list[Member], box: Box, name: str
    ) -> None:
        self.old, self.tensor, self.box, self.name, self.around = graph, tensor, box, name, around
        own = [d for d in s.dims if not d.reduce]
        taken = {d.name for d in s.dims}
        self.loops: list[str] = []
        for m in around:
            self.loops.append(_fresh(m.name, taken))
            taken.add(self.loops[-1])
        ranges = {n: (a, b - 1) for n, (a, b) in zip(self.loops, box.ranges, strict=True)}
        at = {m.name: IVar(n) for m, n in zip(around, self.loops, strict=True)}
        offsets = [substitute(e, dict(at)) for e in box.offsets]
        env: dict[str, IndexExpr] = {}
        self.single: list[bool] = []  # dims with one element, which the new tensor does not have
        dims = [IterDim(n, IConst(a), IConst(b)) for n, (a, b) in zip(self.loops, box.ranges, strict=True)]
        inner: list[IterDim] = []
        for d, offset, extent in zip(own, offsets, box.extents, strict=True):
            low = binary("max", 0, binary("-", substitute(d.lower, env), offset))
            high = binary("min", extent, binary("-", substitute(d.upper, env), offset))
            inside = IterDim(d.name, simplify(low, ranges), simplify(high, ranges))
            self.single.append((inside.lower, inside.upper) == (IConst(0), IConst(1)))
            inner += [] if self.single[-1] else [inside]
            # inside of the statement the dim counts from the offset on
            env[d.name] = offset if self.single[-1] else binary("+", offset, IVar(d.name))
        reduced = [
            IterDim(d.name, substitute(d.lower, env), substitute(d.upper, env), True)
            for d in s.dims
            if d.reduce
        ]
        index = [binary("-", IVar(n), a) for n, (a, _) in zip(self.loops, box.ranges, strict=True)]
        index += [IVar(d.name) for d in inner]
        self.own = [*inner, *reduced]
        value = map_expr(s.expr, lambda x: x, lambda i: substitute(i, env))
        self.statement = replace(
            s, name=name, target=name, dims=(*dims, *inner, *reduced), write=tuple(index), expr=value
        )

    def graph(self, readers: Collection[str]) -> TensorGraph:
        """The graph in which the readers read the box."""
        source = self.old.tensor(self.tensor)
        extents = (e for e, single in zip(self.box.extents, self.single, strict=True) if not single)
        shape = (*(IConst(b - a) for a, b in self.box.ranges), *extents)
        new = Tensor(self.name, source.dtype, shape, Role.TEMP, source.span, exact=True)
        found: list[Statement] = []
        for s in self.old.statements:
            if s.name in readers and self.statement not in found:
                found.append(self.statement)
            found.append(self._reading(s) if s.name in readers else s)
        return replace(self.old, tensors=(*self.old.tensors, new), statements=tuple(found))

    def _reading(self, s: Statement) -> Statement:
        values = {m.name: m.of(s.name) for m in self.around}
        first = [
            binary("-", values[m.name], a) for m, (a, _) in zip(self.around, self.box.ranges, strict=True)
        ]
        offsets = [substitute(e, values) for e in self.box.offsets]
        ranges = {
            d.name: (d.lower.value, d.upper.value - 1)
            for d in s.dims
            if isinstance(d.lower, IConst) and isinstance(d.upper, IConst)
        }

        def read(e: Expr) -> Expr:
            if not (isinstance(e, Read) and e.tensor == self.tensor):
                return e
            along = zip(e.indices, offsets, self.single, strict=True)
            inside = [binary("-", i, o) for i, o, single in along if not single]  # type: ignore[arg-type]
            index = tuple(simplify(i, ranges) for i in (*first, *inside))
            return replace(e, tensor=self.name, indices=index)

        return replace(s, expr=map_expr(s.expr, read))


def _fresh(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _placed(tree: Tree, target: Member, made: _Local) -> Tree:
    """The tree with the new statement at the start of each iteration of a loop."""
    outer = dict(zip((m.name for m in made.around), made.loops, strict=True))
    name = made.name
    nest = band([Member(d.name, ((name, IVar(d.name)),)) for d in made.own], Leaf(name))

    def go(t: Tree, depth: int) -> Tree:
        match t:
            case Band(members, child):
                wanted = [m.name for m in made.around][depth:]
                count = next((k + 1 for k, m in enumerate(members) if m.name == wanted[-1]), len(members))
                last = members[min(count, len(members)) - 1].name == wanted[-1]
                mine = [_with(m, name, IVar(outer[m.name])) for m in members[:count]]
                if last:
                    rest = band(list(members[count:]), child, t.permutable)
                    return band(mine, sequence([nest, rest]))
                return band(mine, go(child, depth + count))
            case Sequence(children):
                return Sequence(tuple(go(c, depth) if _has(c, target) else c for c in children))
            case Leaf():
                raise AssertionError("a loop is in a band")

    return go(tree, 0)


def _has(tree: Tree, target: Member) -> bool:
    return not set(statements(tree)).isdisjoint(dict(target.exprs))


def _with(m: Member, name: str, value: IndexExpr) -> Member:
    return replace(m, exprs=tuple(sorted((*m.exprs, (name, value)), key=lambda row: row[0])))
