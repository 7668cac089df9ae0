"""Common subexpressions over statements: tensors that are defined equally are computed once.

What is common inside one statement is left to the C++ compiler.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace

from polyfuse.decisions import Decision
from polyfuse.ir.tensor_graph import Expr, Read, Role, Statement, Tensor, TensorGraph, map_expr, map_index
from polyfuse.layers.graph.cleanup.keys import Keys
from polyfuse.layers.graph.cleanup.unused import bytes_of

_ITSELF = ("itself",)


def merge_equal(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """Temporaries that equal another tensor go away, results that equal another reduction are copied.

        a[t] = sum[h](x[t, h]);  u[t, h] = x[t, h] - a[t]
        b[i] = sum[j](x[i, j]);  v[i, j] = x[i, j] * b[i]
    becomes
        a[t] = sum[h](x[t, h]);  u[t, h] = x[t, h] - a[t]
                                 v[i, j] = x[i, j] * a[i]

    Equal are the dtype, the extents and all statements that define them, up to the names of loops and of
    tensors that are equal themselves; a recurrence may read itself. A temporary that equals a result is that
    result. Nothing is merged that a scatter adds to, nor what an inout parameter becomes.
    """
    classes = _classes(graph)
    if all(len(c.members) == 1 for c in classes):
        return graph
    return _merged(graph, [c for c in classes if len(c.members) > 1], decisions)


@dataclass(slots=True)
class _Class:
    """Equal tensors, in the order in which they are finished."""

    members: list[Tensor] = field(default_factory=list)

    @property
    def kept(self) -> Tensor:
        """The one that the others' readers read: a result if there is one."""
        return next((t for t in self.members if t.role is Role.OUTPUT), self.members[0])


def _classes(graph: TensorGraph) -> list[_Class]:
    tensors = {t.name: t for t in graph.tensors}
    writers: dict[str, list[Statement]] = {}
    for s in graph.statements:
        writers.setdefault(s.target, []).append(s)
    first: dict[str, str] = {}  # tensor -> the first of its class
    current = [""]
    keys = Keys(lambda name: _ITSELF if name == current[0] else first.get(name, name))
    classes: dict[object, _Class] = {}
    for s in graph.statements:
        own = writers[s.target]
        t = tensors[s.target]
        if own[-1] is not s or not _mergeable(t, own):
            continue
        current[0] = t.name
        key = (t.dtype.name, t.shape, *map(keys.statement, own))
        found = classes.setdefault(key, _Class())
        found.members.append(t)
        first[t.name] = found.members[0].name
    return list(classes.values())


def _mergeable(t: Tensor, writers: list[Statement]) -> bool:
    if t.role is Role.INOUT or t.role is Role.INPUT or t.alias is not None:
        return False
    return not any(s.accumulate for s in writers)


def _merged(graph: TensorGraph, classes: list[_Class], decisions: list[Decision]) -> TensorGraph:
    writers: dict[str, list[Statement]] = {t.name: [] for c in classes for t in c.members}
    for s in graph.statements:
        if s.target in writers:
            writers[s.target].append(s)
    change = _Change()
    for c in classes:
        kept, first = c.kept, c.members[0]
        for t in c.members:
            if t is kept:
                continue
            change.read_as[t.name] = kept.name
            if t.role is Role.TEMP:
                change.gone.add(t.name)
                why = f"it equals {kept.name}, which is read instead"
                decisions.append(Decision("merge", t.name, True, why, saved_bytes=bytes_of(t)))
                change.exact |= {kept.name} if t.exact else set()
            elif len(writers[t.name]) == 1 and writers[t.name][0].reduction:
                change.copied[t.name] = t
                why = f"it equals {kept.name} and is copied from there"
                decisions.append(Decision("merge", t.name, True, why))
        if first is not kept:
            change.moved[first.name] = writers[kept.name]
    return _rewritten(graph, change)


@dataclass(slots=True)
class _Change:
    """What is done to equal tensors.

    `gone` are temporaries that go away, `read_as` says what is read for a tensor, `moved` which statements
    take the place of those of a temporary (they are a result's, and all that reads it comes after), `copied`
    are results that become copies, `exact` temporaries that stand for one that must be stored.
    """

    gone: set[str] = field(default_factory=set)
    read_as: dict[str, str] = field(default_factory=dict)
    moved: dict[str, list[Statement]] = field(default_factory=dict)
    copied: dict[str, Tensor] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)


def _rewritten(graph: TensorGraph, change: _Change) -> TensorGraph:
    waiting = {first: iter(own) for first, own in change.moved.items()}
    elsewhere = {s.name for own in change.moved.values() for s in own}
    statements: list[Statement] = []
    for s in graph.statements:
        if s.target in waiting:
            statements.append(_redirected(next(waiting[s.target]), change.read_as))
        elif s.target in change.copied:
            statements.append(_copy(s, change.copied[s.target], change.read_as[s.target]))
        elif s.target not in change.gone and s.name not in elsewhere:
            statements.append(_redirected(s, change.read_as))
    if len(statements) == len(graph.statements) and all(map(operator.is_, statements, graph.statements)):
        return graph  # equal results that are cheap to compute: both stay
    tensors = tuple(
        replace(t, exact=True) if t.name in change.exact and t.role is Role.TEMP else t
        for t in graph.tensors
        if t.name not in change.gone
    )
    return replace(graph, tensors=tensors, statements=tuple(statements))


def _copy(s: Statement, target: Tensor, source: str) -> Statement:
    """The statement of a reduction as a copy of the equal tensor `source`."""
    value = Read(source, s.write, target.dtype, s.span)
    return replace(s, dims=tuple(d for d in s.dims if not d.reduce), expr=value, reduction=None)


def _redirected(s: Statement, read_as: dict[str, str]) -> Statement:
    """A statement that reads what is kept; a recurrence goes on reading itself."""

    def read(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor in read_as and e.tensor != s.target:
            return replace(e, tensor=read_as[e.tensor])
        return e

    def mapped(e: Expr) -> Expr:
        return map_expr(e, read)

    expr, write = mapped(s.expr), tuple(map_index(i, mapped, None) for i in s.write)
    if expr is s.expr and all(a is b for a, b in zip(write, s.write, strict=True)):
        return s
    return replace(s, expr=expr, write=write)
