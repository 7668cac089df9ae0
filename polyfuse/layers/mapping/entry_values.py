"""Entry values of inout parameters that an iteration still needs when it has replaced them are read first.

    B(d)[ x[d] = x[d] * c[d] - x[d+D] * s[d];   x[d+D] = x[d+D] * c[d] + x[d] * s[d] ]
becomes
    B(d)[ e[d] = x[d];   x[d] = e[d] * c[d] - x[d+D] * s[d];   x[d+D] = x[d+D] * c[d] + e[d] * s[d] ]

`e` is a register, and the parameter is written in place (`layers.mapping.kernels.entry_copies`), where else
all of it would be copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, substitute
from polyfuse.ir.schedule_tree import Band, Leaf, Member, Sequence, Tree, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    Index,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    statement_reads,
)
from polyfuse.layers.graph.names import fresh_name


def read_first(graph: TensorGraph, tree: Tree, decisions: list[Decision]) -> tuple[TensorGraph, Tree]:
    """The graph with such reads, and the tree of its statements."""
    for body in _bodies(tree, ()):
        for read, reader in body.late(graph):
            name = fresh_name(graph, f"{read.tensor}__entry")
            graph = body.with_copy(graph, name, read, reader)
            tree = _before(tree, body.leaves[0], name, reader.name)
            why = "an iteration needs its value at entry after it has replaced it: it is read first"
            decisions.append(Decision("entry value", read.tensor, True, why))
    return graph, tree


def _bodies(tree: Tree, around: tuple[Member, ...]) -> Iterator[_Body]:
    match tree:
        case Band(members, Sequence(children)) if all(isinstance(c, Leaf) for c in children):
            if all(m.coincident for m in (*around, *members)):
                yield _Body(statements(tree), (*around, *members))
        case Band(members, child):
            yield from _bodies(child, (*around, *members))
        case Sequence(children):
            for c in children:
                yield from _bodies(c, around)
        case Leaf():
            pass


@dataclass(frozen=True, slots=True)
class _Body:
    """Statements that follow one another in each iteration of the same loops, which have no order."""

    leaves: tuple[str, ...]
    members: tuple[Member, ...]

    def late(self, graph: TensorGraph) -> list[tuple[Read, Statement]]:
        """Reads of elements that an earlier statement of the same iteration replaces, each once."""
        found: dict[object, tuple[Read, Statement]] = {}
        replaced: set[tuple[str, tuple[IndexExpr, ...]]] = set()
        for s in map(graph.statement, self.leaves):
            for r in statement_reads(s):
                place = self.place(s, r.indices)
                if place is not None and (r.tensor, place) in replaced:
                    found.setdefault((r.tensor, place, self.ranges(s)), (r, s))
            alias, place = graph.tensor(s.target).alias, self.place(s, s.write)
            if alias is not None and place is not None:
                replaced.add((alias, place))
        return list(found.values())

    def with_copy(self, graph: TensorGraph, name: str, read: Read, reader: Statement) -> TensorGraph:
        """The graph with the element read into `name`, for statements of the body with the same ranges."""
        loops = [next(m for m in self.members if m.of(reader.name) == IVar(d.name)) for d in reader.dims]
        copy = Statement(name, name, reader.dims, tuple(IVar(d.name) for d in reader.dims), read)
        tensor = Tensor(name, read.dtype, tuple(d.upper for d in reader.dims), Role.TEMP)
        mine = self.place(reader, read.indices), self.ranges(reader)

        def changed(s: Statement) -> Statement:
            def near(e: Expr) -> Expr:
                if not isinstance(e, Read) or e.tensor != read.tensor:
                    return e
                same = (self.place(s, e.indices), self.ranges(s)) == mine
                return Read(name, tuple(m.of(s.name) for m in loops), e.dtype, e.span) if same else e

            return replace(s, expr=map_expr(s.expr, near))

        made: list[Statement] = []
        for s in graph.statements:
            made += [copy] if s.name == self.leaves[0] else []
            made.append(changed(s) if s.name in self.leaves else s)
        return replace(graph, statements=tuple(made), tensors=(*graph.tensors, tensor))

    def place(self, s: Statement, indices: tuple[Index, ...]) -> tuple[IndexExpr, ...] | None:
        """An access in terms of the loops; None where data say which, or loops are not all dims."""
        loops = {
            e.name: IVar(f"%{k}") for k, m in enumerate(self.members) if isinstance(e := m.of(s.name), IVar)
        }
        plain = tuple(i for i in indices if not isinstance(i, EXPR_TYPES))
        known = all(d.name in loops and isinstance(d.upper, IConst) and not d.reduce for d in s.dims)
        return tuple(substitute(i, loops) for i in plain) if known and len(plain) == len(indices) else None

    def ranges(self, s: Statement) -> tuple[tuple[IndexExpr, IndexExpr], ...]:
        """The bounds of its dims, in order of the loops."""
        dims = {IVar(d.name): (d.lower, d.upper) for d in s.dims}
        return tuple(dims[e] for m in self.members if isinstance(e := m.of(s.name), IVar) and e in dims)


def _before(tree: Tree, first: str, copy: str, like: str) -> Tree:
    """A statement right before the first one of a body, in the loops of another one of it."""
    match tree:
        case Leaf(name):
            return Sequence((Leaf(copy), tree)) if name == first else tree
        case Sequence(children):
            parts: list[Tree] = []
            for c in children:
                new = _before(c, first, copy, like)
                parts += new.children if isinstance(new, Sequence) and isinstance(c, Leaf) else (new,)
            return Sequence(tuple(parts))
        case Band(members, child, permutable):
            found = (
                replace(m, exprs=tuple(sorted([*m.exprs, (copy, m.of(like))], key=lambda x: x[0])))
                if like in dict(m.exprs)
                else m
                for m in members
            )
            return Band(tuple(found), _before(child, first, copy, like), permutable)
