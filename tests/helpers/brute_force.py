"""Judges of schedule trees that know no isl: they enumerate every instance and every access.

The meaning is that of the graph: a guard that is affine in loop variables is evaluated, one that needs
data may be true or false; a data-dependent index may be any index of the tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from polyfuse.ir.index_expr import IndexExpr, evaluate
from polyfuse.ir.schedule_tree import Member, Tree, path, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    Select,
    Statement,
    TensorGraph,
)

Instance = tuple[str, tuple[int, ...]]
Cell = tuple[str, tuple[int, ...]]
Time = tuple[int, ...]

_HOLDS = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


@dataclass
class Enumeration:
    """All instances and accesses of a graph at given sizes."""

    graph: TensorGraph
    sizes: Mapping[str, int]
    instances: list[Instance] = field(default_factory=list)
    writes: dict[Cell, list[Instance]] = field(default_factory=dict)
    reads: dict[Cell, list[Instance]] = field(default_factory=dict)
    envs: dict[Instance, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for s in self.graph.statements:
            for env in self._points(s, 0, dict(self.sizes)):
                instance = (s.name, tuple(env[d.name] for d in s.dims))
                self.instances.append(instance)
                self.envs[instance] = env
                for cell in self._cells(s.target, s.write, env):
                    self.writes.setdefault(cell, []).append(instance)
                for cell in sorted(set(self._reads(s, env))):
                    self.reads.setdefault(cell, []).append(instance)

    def _points(self, s: Statement, k: int, env: dict[str, int]) -> Iterator[dict[str, int]]:
        if k == len(s.dims):
            yield dict(env)
            return
        d = s.dims[k]
        for value in range(evaluate(d.lower, env), evaluate(d.upper, env)):
            yield from self._points(s, k + 1, {**env, d.name: value})

    def _cells(self, tensor: str, indices: tuple[Index, ...], env: Mapping[str, int]) -> Iterator[Cell]:
        shape = self.graph.tensor(tensor).shape
        ranges = [
            range(evaluate(shape[k], env)) if isinstance(i, EXPR_TYPES) else [evaluate(i, env)]
            for k, i in enumerate(indices)
        ]
        for where in itertools.product(*ranges):
            yield tensor, where

    def _reads(self, s: Statement, env: Mapping[str, int]) -> Iterator[Cell]:
        yield from self._read_by(s.expr, env)
        for i in s.write:
            if isinstance(i, EXPR_TYPES):
                yield from self._read_by(i, env)

    def _read_by(self, e: Expr, env: Mapping[str, int]) -> Iterator[Cell]:
        match e:
            case Read(tensor, indices):
                yield from self._cells(tensor, indices, env)
                for i in indices:
                    if isinstance(i, EXPR_TYPES):
                        yield from self._read_by(i, env)
            case Select(cond, then, other):
                yield from self._read_by(cond, env)
                known = truth(cond, env)
                if known is not False:
                    yield from self._read_by(then, env)
                if known is not True:
                    yield from self._read_by(other, env)
            case Apply(_, args):
                for a in args:
                    yield from self._read_by(a, env)
            case Cast(arg):
                yield from self._read_by(arg, env)

    # --- judging ---------------------------------------------------------------------------------

    def times(self, tree: Tree) -> dict[Instance, Time]:
        """When each instance of the tree's statements runs."""
        along = {n: list(path(tree, n)) for n in statements(tree)}
        rows = {n: [x if isinstance(x, int) else x.of(n) for x in p] for n, p in along.items()}
        return {i: tuple(_value(x, self.envs[i]) for x in rows[i[0]]) for i in self.instances if i[0] in rows}

    def complete(self, tree: Tree) -> bool:
        """Has every instance its own time?"""
        times = self.times(tree)
        return len({(i[0], t) for i, t in times.items()}) == len(times)

    def ordered(self, tree: Tree) -> bool:
        """Does every write of an element come before every read of it?"""
        times = self.times(tree)
        for sources, sinks in self._dependences():
            before = [times[i] for i in sources if i in times]
            after = [times[i] for i in sinks if i in times]
            if before and after and max(before) >= min(after):
                return False
        return True

    def _dependences(self) -> Iterator[tuple[list[Instance], list[Instance]]]:
        """(writers, readers) of each element; (definitions, accumulations) as well."""
        adds = {s.name for s in self.graph.statements if s.accumulate}
        for cell, writers in self.writes.items():
            yield writers, self.reads.get(cell, [])
            if adds:
                yield [i for i in writers if i[0] not in adds], [i for i in writers if i[0] in adds]

    def is_dependence(self, source: Instance, sink: Instance) -> bool:
        return any(source in sources and sink in sinks for sources, sinks in self._dependences())

    def _updates(self) -> Iterator[tuple[list[Instance], list[Instance]]]:
        reductions = {s.name for s in self.graph.statements if s.reduction is not None}
        for writers in self.writes.values():
            mine = [i for i in writers if i[0] in reductions]
            yield mine, mine

    def parallel(self, tree: Tree, member: Member, races: bool = False) -> bool:
        """Does no dependence (or no two updates) inside the loops around cross iterations of `member`?"""
        rows = {}
        for n, _ in member.exprs:
            members = [m for m in path(tree, n) if isinstance(m, Member)]
            place = next(k for k, m in enumerate(members) if m is member)
            rows[n] = [m.of(n) for m in members[: place + 1]]
        values = {
            i: tuple(_value(x, self.envs[i]) for x in rows[i[0]]) for i in self.instances if i[0] in rows
        }
        for sources, sinks in self._updates() if races else self._dependences():
            by_outer: dict[Time, tuple[set[int], set[int]]] = {}
            for side, group in enumerate((sources, sinks)):
                for i in group:
                    if i in values:
                        *outer, mine = values[i]
                        by_outer.setdefault(tuple(outer), (set(), set()))[side].add(mine)
            if any(a and b and len(a | b) > 1 for a, b in by_outer.values()):
                return False
        return True


def _value(x: IndexExpr | int, env: Mapping[str, int]) -> int:
    return x if isinstance(x, int) else evaluate(x, env)


def truth(cond: Expr, env: Mapping[str, int]) -> bool | None:
    """The value of a guard, or None where it depends on data."""
    match cond:
        case Const(value):
            return bool(value)
        case Apply("not", (arg,)):
            known = truth(arg, env)
            return None if known is None else not known
        case Apply("and" | "or" as op, (left, right)):
            both = (truth(left, env), truth(right, env))
            decisive = op == "or"
            if decisive in both:
                return decisive
            return None if None in both else not decisive
        case Apply(op, (IndexValue(a), IndexValue(b))) if op in _HOLDS:
            return _HOLDS[op](evaluate(a, env), evaluate(b, env))
        case _:
            return None
