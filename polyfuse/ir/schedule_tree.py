"""Schedule trees: the order of statement instances, as layer I finds it and later layers refine it.

    Tree     = Band(members, child, permutable)
             | Sequence(children)                 children run one after the other
             | Leaf(statement)
    Member   = one loop: for each statement below, an affine expression of that statement's dims

A statement's instances run in lexicographic order of the member values and sequence positions on its
path from the root.  A member is *coincident* when no dependence between instances that agree on all
outer members crosses it (reductions relaxed: they may be reassociated, so a reduction loop may be
coincident; whether it may run in parallel is asked by `poly.legality.schedules.parallel`).

This is the isl schedule tree without domain, filter and mark nodes: the domain is the graph's, a
filter is the set of leaves below.  `poly.scheduling.tree_convert` goes to isl and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias, Union

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IBin, IndexExpr, IVar, variables
from polyfuse.ir.tensor_graph import Statement, TensorGraph

# A loop over less than one of so many of the elements of another one is short beside it, as one over the
# first elements of a row is (`layers.graph.one_pass.moments`).
HEAD = 4


class Coordinate(Enum):
    """What a loop becomes on the target (kernel IR, `placement`)."""

    SEQ = "seq"
    TIME = "tim"  # steps of a recurrence, in order, each of which the workers of a CPU share
    BLK = "blk"
    WORKER = "wrk"  # a worker's share of the iterations of blocks (CPU)
    ROW = "row"  # a group of neighbouring threads: threadIdx.y
    STEP = "stp"  # a loop that the rows of a block share: each takes every TY-th iteration
    ROUND = "rnd"
    THREAD = "thr"
    VECTOR = "vec"


@dataclass(frozen=True, slots=True)
class Member:
    """One loop of a band. `exprs` maps each statement below to its value, sorted by statement name."""

    name: str
    exprs: tuple[tuple[str, IndexExpr], ...]
    coincident: bool = False
    coordinate: Coordinate = Coordinate.SEQ

    def of(self, statement: str) -> IndexExpr:
        return dict(self.exprs)[statement]

    def restricted(self, statements: frozenset[str]) -> Member:
        return replace(self, exprs=tuple((s, e) for s, e in self.exprs if s in statements))


@dataclass(frozen=True, slots=True)
class Leaf:
    statement: str

    def __str__(self) -> str:
        return format_tree(self)


@dataclass(frozen=True, slots=True)
class Band:
    members: tuple[Member, ...]
    child: Tree
    permutable: bool = False

    def __str__(self) -> str:
        return format_tree(self)


@dataclass(frozen=True, slots=True)
class Sequence:
    children: tuple[Tree, ...]

    def __str__(self) -> str:
        return format_tree(self)


Tree: TypeAlias = Union[Band, Sequence, Leaf]  # noqa: UP007


def statements(tree: Tree) -> tuple[str, ...]:
    """Statement names below, in order of the leaves."""
    match tree:
        case Leaf(name):
            return (name,)
        case Band(_, child):
            return statements(child)
        case Sequence(children):
            return tuple(s for c in children for s in statements(c))


def sequence(children: list[Tree]) -> Tree:
    """Children in order, nested sequences flattened; a single child is itself."""
    flat: list[Tree] = []
    for c in children:
        flat.extend(c.children if isinstance(c, Sequence) else [c])
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def band(members: list[Member], child: Tree, permutable: bool = False) -> Tree:
    """A band over `child`; no members gives the child itself."""
    return Band(tuple(members), child, permutable) if members else child


def restrict(tree: Tree, keep: frozenset[str]) -> Tree | None:
    """The tree of the statements in `keep` only, or None if there are none."""
    match tree:
        case Leaf(name):
            return tree if name in keep else None
        case Band(members, child, permutable):
            below = restrict(child, keep)
            return below and Band(tuple(m.restricted(keep) for m in members), below, permutable)
        case Sequence(children):
            kept = [r for c in children if (r := restrict(c, keep)) is not None]
            return sequence(kept) if kept else None


def path(tree: Tree, statement: str) -> Iterator[Member | int]:
    """What orders a statement, outermost first: band members and positions in sequences."""
    match tree:
        case Leaf():
            return
        case Band(members, child):
            yield from members
            yield from path(child, statement)
        case Sequence(children):
            for i, c in enumerate(children):
                if statement in statements(c):
                    yield i
                    yield from path(c, statement)
                    return


def map_members(tree: Tree, change: Callable[[Member], Member | tuple[Member, ...]]) -> Tree:
    """Rebuild with every member replaced by one or several members."""
    match tree:
        case Leaf():
            return tree
        case Sequence(children):
            return Sequence(tuple(map_members(c, change) for c in children))
        case Band(members, child, permutable):
            new: list[Member] = []
            for m in members:
                changed = change(m)
                new.extend(changed if isinstance(changed, tuple) else (changed,))
            return Band(tuple(new), map_members(child, change), permutable)


def members_of(tree: Tree, *coordinates: Coordinate) -> list[Member]:
    """The loops of a tree, those of some coordinates if any are given; outer ones first."""
    match tree:
        case Leaf():
            return []
        case Sequence(children):
            return [m for c in children for m in members_of(c, *coordinates)]
        case Band(members, child):
            chosen = [m for m in members if not coordinates or m.coordinate in coordinates]
            return chosen + members_of(child, *coordinates)


def sequential(tree: Tree) -> Tree:
    """Loops that are spread over rounds, threads and vectors as the one loop they were, a ROUND.

    The three run in the order of the one, so that order and storage may be asked of the simpler tree.
    """
    match tree:
        case Leaf():
            return tree
        case Sequence(children):
            return Sequence(tuple(map(sequential, children)))
        case Band(members, child, permutable):
            merged: list[Member] = []
            rest = list(members)
            while rest:
                m = rest.pop(0)
                if m.coordinate is Coordinate.ROUND:
                    thread, _ = rest.pop(0), rest.pop(0)
                    exprs = tuple((n, _numerator(e)) for n, e in m.exprs)
                    m = replace(m, name=thread.name, exprs=exprs)
                merged.append(m)
            return Band(tuple(merged), sequential(child), permutable)


def _numerator(e: IndexExpr) -> IndexExpr:
    assert isinstance(e, IBin) and e.op == "//"
    return e.left


def reducing(m: Member, graph: TensorGraph | None) -> tuple[str, ...]:
    """The statements of a loop that update one element in several of its iterations."""
    if graph is None:
        return ()
    found = {s.name: s for s in graph.statements}
    return tuple(n for n, e in m.exprs if n in found and _reduces(found[n], e))


def _reduces(s: Statement, e: IndexExpr) -> bool:
    over = {d.name for d in s.dims if d.reduce or (s.accumulate and IVar(d.name) not in s.write)}
    return not over.isdisjoint(variables(e))


def word_of(m: Member, graph: TensorGraph | None) -> str:
    """What a loop is: `parallel` where no iteration needs another; of a reduction only the order is free."""
    if not m.coincident:
        return "ordered"
    return "reduction (any order)" if reducing(m, graph) else "parallel"


def format_tree(tree: Tree, indent: str = "", graph: TensorGraph | None = None) -> str:
    """Readable text, one node a line; stable, for dumps and goldens. With the graph, loops that reduce are
    told from parallel ones."""
    match tree:
        case Leaf(name):
            return f"{indent}{name}"
        case Sequence(children):
            return "\n".join(
                f"{indent}- " + format_tree(c, indent + "  ", graph).removeprefix(indent + "  ")
                for c in children
            )
        case Band(members, child, permutable):
            loops = []
            for m in members:
                where = "" if m.coordinate is Coordinate.SEQ else f" @{m.coordinate.value}"
                loops.append(f"{m.name} ({word_of(m, graph)}{where}: {_format_exprs(m)})")
            tag = "band" + ("*" if permutable else "")
            below = format_tree(child, indent + "  ", graph)
            return f"{indent}{tag} " + f"\n{indent}     ".join(loops) + "\n" + below


def _format_exprs(m: Member) -> str:
    """`sum,ce->h; y->h+1`: statements that share an expression are grouped."""
    groups: dict[str, list[str]] = {}
    for s, e in m.exprs:
        groups.setdefault(str(e), []).append(s)
    return "; ".join(f"{','.join(ss)}->{e}" for e, ss in groups.items())


def shape(tree: Tree) -> str:
    """One line: `B1([sum:B1; mu; ce+sq:B1; rs; y:B1])`, 1 for a coincident member, 0 for another."""
    match tree:
        case Leaf(name):
            return name
        case Sequence(children):
            if all(isinstance(c, Leaf) for c in children):
                return "+".join(shape(c) for c in children)
            return "[" + "; ".join(shape(c) for c in children) + "]"
        case Band(members, child):
            flags = "".join("1" if m.coincident else "0" for m in members)
            inner = shape(child)
            return f"B{flags}({inner})"


# --- a graph with its schedule ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduledGraph:
    """`tree` orders all statements of `graph`; `decisions` tells how it came about."""

    graph: TensorGraph
    tree: Tree
    decisions: tuple[Decision, ...] = ()

    @property
    def shape(self) -> str:
        """The tree on one line."""
        return shape(self.tree)

    def __str__(self) -> str:
        return f"{self.graph.name}: {self.shape}\n{format_tree(self.tree, graph=self.graph)}"
