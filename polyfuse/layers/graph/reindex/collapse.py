"""Fewer dims: neighbours that are always used together become one, last dims of one element go.

Adjacent dims that are always used together become one:

    y[n, c, h, w] = x[n, c, h, w] * g[c]      for h in 0..56, w in 0..56
becomes
    y[n, c, hw] = x[n, c, hw] * g[c]          for hw in 0..3136

Longer innermost loops, fewer of them.  Legal where every access that uses one of the two uses both, side by
side, in full, and where the tensors are dense: shapes change, memory does not.  (`layouts` of the
compiled operator say which inputs are dense; strided ones take part in no collapse.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, sizes, substitute, variables
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    Index,
    IndexValue,
    Read,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    map_index,
    statement_reads,
    walk,
)

# --- unit dims --------------------------------------------------------------------------------------------

# A last dim of one element is dropped.
#
#     y[n, h, w, c] = sum[r, s](x[n, h+r, w+s, c] * k[r, s, c])      for c in 0..1
# becomes
#     y[n, h, w] = sum[r, s](x[n, h+r, w+s] * k[r, s])
#
# Images with one channel, series of one value: loops run along memory over what was the dim before.  Shapes
# change, memory does not, so tensors that are not dense keep the dim, and so do those whose dim is found by
# data, which is to be checked.  The first dim stays: a batch of one row is computed like any other.


def drop_unit_dims(
    graph: TensorGraph, decisions: list[Decision], strided: frozenset[str] = frozenset()
) -> TensorGraph:
    """The graph without such dims. `strided` names tensors whose memory is not dense."""
    while dropped := _droppable(graph, strided):
        for name in sorted(dropped):
            what = f"{name}[.., {len(graph.tensor(name).shape) - 1}]"
            decisions.append(Decision("drop", what, True, "the dim has one element"))
        tensors = tuple(_without(t) if t.name in dropped else t for t in graph.tensors)
        statements = tuple(_statement(s, dropped) for s in graph.statements)
        graph = replace(graph, tensors=tensors, statements=statements)
    return graph


def _droppable(graph: TensorGraph, strided: frozenset[str]) -> frozenset[str]:
    """Tensors whose last dim has one element that every access knows."""
    found = {t.name for t in graph.tensors if len(t.shape) > 1 and t.shape[-1] == IConst(1)} - strided
    for s in graph.statements:
        if s.target in found and not _written_once(s):
            found.discard(s.target)
        found -= {r.tensor for r in statement_reads(s) if r.indices and isinstance(r.indices[-1], EXPR_TYPES)}
    # An inout tensor and its entry value are one memory.
    pairs = [(t.name, t.alias) for t in graph.tensors if t.alias is not None]
    while split := {x for pair in pairs if len(found & {*pair}) == 1 for x in pair}:
        found -= split
    return frozenset(found)


def _written_once(s: Statement) -> bool:
    """Is the last index of what is written a constant, or a dim of one iteration?"""
    match s.write[-1]:
        case IConst():
            return True
        case IVar(name):
            (dim,) = (d for d in s.dims if d.name == name)
            ends = dim.lower, dim.upper
            return not dim.reduce and ends == (IConst(0), IConst(1))
        case _:
            return False


def _without(t: Tensor) -> Tensor:
    return replace(t, shape=t.shape[:-1])


def _statement(s: Statement, dropped: frozenset[str]) -> Statement:
    env: dict[str, IndexExpr] = {}
    if s.target in dropped and isinstance(last := s.write[-1], IVar):
        env[last.name] = IConst(0)

    def index(i: IndexExpr) -> IndexExpr:
        return substitute(i, env) if env else i

    def expr(e: Expr) -> Expr:
        return replace(e, indices=e.indices[:-1]) if isinstance(e, Read) and e.tensor in dropped else e

    def place(i: Index) -> Index:
        return map_index(i, lambda e: map_expr(e, expr, index), index)

    write = s.write[:-1] if s.target in dropped else s.write
    dims = tuple(replace(d, lower=index(d.lower), upper=index(d.upper)) for d in s.dims if d.name not in env)
    return replace(s, dims=dims, write=tuple(map(place, write)), expr=map_expr(s.expr, expr, index))


def collapse(
    graph: TensorGraph, decisions: list[Decision], strided: frozenset[str] = frozenset()
) -> TensorGraph:
    """Drop last dims of one element (`drop_unit_dims`), then collapse until no pair is left.

    `strided` names tensors whose memory is not dense."""
    graph = drop_unit_dims(graph, decisions, strided)
    work = _Work(graph, strided)
    again, changed = True, False
    while again:  # a pair that was none may be one after others have gone
        again = False
        for name in [t.name for t in graph.tensors]:
            while (pair := work.candidate(name)) is not None:
                again = changed = True
                work.apply(pair)
                what = ", ".join(f"{t}[..{k}, {k + 1}..]" for t, k in sorted(pair.places.items()))
                decisions.append(Decision("collapse", what, True, "the two dims are always used together"))
    return work.graph() if changed else graph


@dataclass(frozen=True, slots=True)
class _Pair:
    """Tensor -> position of the first of the two dims; statement -> the two loop variables."""

    places: dict[str, int]
    variables: dict[str, tuple[str, str]]
    extents: tuple[IndexExpr, IndexExpr]


class _Work:
    """A graph whose tensors and statements change while their names stay, those of one pair at a time."""

    def __init__(self, graph: TensorGraph, strided: frozenset[str]) -> None:
        self._graph, self._strided = graph, strided
        self.tensors = {t.name: t for t in graph.tensors}
        self.statements = {s.name: s for s in graph.statements}
        self.touching: dict[str, list[str]] = {t.name: [] for t in graph.tensors}
        for s in graph.statements:
            for name in dict.fromkeys((s.target, *(r.tensor for r in statement_reads(s)))):
                self.touching[name].append(s.name)
        self._partners: dict[str, list[tuple[str, str]]] = {}
        for t in graph.tensors:
            if t.alias is not None:
                for name in (t.name, t.alias):
                    self._partners.setdefault(name, []).append((t.name, t.alias))

    def graph(self) -> TensorGraph:
        return replace(
            self._graph, tensors=tuple(self.tensors.values()), statements=tuple(self.statements.values())
        )

    def candidate(self, name: str) -> _Pair | None:
        """The first pair of dims of a tensor that may be one."""
        for k in range(len(self.tensors[name].shape) - 1):
            pair = self._grow(self.tensors[name], k)
            if pair and not (set(pair.places) & self._strided):
                return pair
        return None

    def _grow(self, start: Tensor, position: int) -> _Pair | None:
        """Follow a pair of dims through all statements that touch it; None where it is not always a pair."""
        extents = (start.shape[position], start.shape[position + 1])
        if any(isinstance(e, IConst) and e.value < 1 for e in extents) or all(map(sizes, extents)):
            return None
        pair = _Pair({start.name: position}, {}, extents)
        todo = dict.fromkeys(self.touching[start.name])
        while todo:
            name = next(iter(todo))
            del todo[name]
            before = len(pair.places)
            if not _grow_statement(self.tensors, self.statements[name], pair):
                return None
            for tensor in list(pair.places)[before:]:
                todo |= dict.fromkeys(self.touching[tensor])
        return pair if pair.variables and self._aliases_agree(pair) else None

    def _aliases_agree(self, pair: _Pair) -> bool:
        """An inout tensor and its entry value are one memory: both collapse, or none."""
        for new, old in [x for n in list(pair.places) for x in self._partners.get(n, ())]:
            if pair.places.get(new) != pair.places.get(old):
                if self._is_read(old) or old in pair.places:
                    return False
                pair.places[old] = pair.places[new]
        return True

    def _is_read(self, tensor: str) -> bool:
        found = (self.statements[n] for n in self.touching[tensor])
        return any(r.tensor == tensor for s in found for r in statement_reads(s))

    def apply(self, pair: _Pair) -> None:
        merged = binary("*", *pair.extents)
        for name, at in pair.places.items():
            t = self.tensors[name]
            self.tensors[name] = replace(t, shape=_merged(t.shape, at, merged))
        for name in pair.variables:
            self.statements[name] = _merge_statement(self.statements[name], pair, merged)


def _grow_statement(tensors: dict[str, Tensor], s: Statement, pair: _Pair) -> bool:
    """Let the pair grow at this statement; False if it breaks here."""
    for tensor, indices in _accesses(s):
        if tensor in pair.places:
            two = _two(indices, pair.places[tensor])
            if two is None or pair.variables.setdefault(s.name, two) != two:
                return False
    if s.name not in pair.variables:
        return True
    a, b = pair.variables[s.name]
    if not _full_dims(s, a, b, pair.extents):
        return False
    for tensor, indices in _accesses(s):
        at = _position(indices, a, b)
        if at is None:
            return False
        if at >= 0 and tensor not in pair.places:
            shape = tensors[tensor].shape
            if (shape[at], shape[at + 1]) != pair.extents:
                return False
            pair.places[tensor] = at
        elif (at >= 0) != (tensor in pair.places) or (at >= 0 and pair.places[tensor] != at):
            return False
    return True


def _accesses(s: Statement) -> list[tuple[str, tuple[Index, ...]]]:
    return [(s.target, s.write), *((r.tensor, r.indices) for r in statement_reads(s))]


def _two(indices: tuple[Index, ...], at: int) -> tuple[str, str] | None:
    a, b = indices[at], indices[at + 1]
    return (a.name, b.name) if isinstance(a, IVar) and isinstance(b, IVar) and a != b else None


def _position(indices: tuple[Index, ...], a: str, b: str) -> int | None:
    """Where `a, b` stand side by side (-1: neither is used); None if they are used otherwise."""
    uses = [k for k, i in enumerate(indices) if not isinstance(i, EXPR_TYPES) and {a, b} & set(variables(i))]
    data = [i for i in indices if isinstance(i, EXPR_TYPES)]
    if any(_uses_value(i, a, b) for i in data):
        return None
    if not uses:
        return -1
    k = uses[0]
    fits = uses == [k, k + 1] and indices[k] == IVar(a) and indices[k + 1] == IVar(b)
    return k if fits else None


def _uses_value(e: Expr, a: str, b: str) -> bool:
    """Is one of the variables used as a number?"""
    return any(isinstance(x, IndexValue) and {a, b} & set(variables(x.index)) for x in walk(e))


def _full_dims(s: Statement, a: str, b: str, extents: tuple[IndexExpr, IndexExpr]) -> bool:
    """Both dims run over their whole extents, in this order, with equal roles, and as indices only."""
    names = [d.name for d in s.dims]
    if _uses_value(s.expr, a, b) or a not in names or b not in names:
        return False
    first, second = s.dims[names.index(a)], s.dims[names.index(b)]
    ranges = [(d.lower, d.upper) for d in (first, second)]
    if ranges != [(IConst(0), e) for e in extents] or first.reduce != second.reduce:
        return False
    bounds = [e for d in s.dims for e in (d.lower, d.upper)]
    return not any({a, b} & set(variables(e)) for e in bounds)


def _merged(items: tuple[IndexExpr, ...], at: int, merged: IndexExpr) -> tuple[IndexExpr, ...]:
    return (*items[:at], merged, *items[at + 2 :])


def _merge_statement(s: Statement, pair: _Pair, extent: IndexExpr) -> Statement:
    a, b = pair.variables[s.name]
    joint = f"{a}_{b}"
    while joint in {d.name for d in s.dims}:
        joint += "_"
    dims = tuple(replace(d, name=joint, upper=extent) if d.name == a else d for d in s.dims if d.name != b)

    def merge(indices: tuple[Index, ...], tensor: str) -> tuple[Index, ...]:
        at = pair.places.get(tensor)
        return indices if at is None else (*indices[:at], IVar(joint), *indices[at + 2 :])

    def on_read(e: Expr) -> Expr:
        return replace(e, indices=merge(e.indices, e.tensor)) if isinstance(e, Read) else e

    write = tuple(map_expr(i, on_read) if isinstance(i, EXPR_TYPES) else i for i in merge(s.write, s.target))
    return replace(s, dims=dims, write=write, expr=map_expr(s.expr, on_read))
