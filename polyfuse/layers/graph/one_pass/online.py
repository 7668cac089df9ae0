"""Online forms: both reductions of a cascade in one pass over memory.

    m[r] = max[k](u[r, k]);     s[r] = sum[k](exp(u[r, k] - m[r]))
becomes, for chunks c of the elements,
    m__part[r, c] = max[k in c](u[r, k])                    m__ref[r, c] = m__part[r, c], made finite
    s__part[r, c] = sum[k in c](exp(u[r, k] - m__ref[r, c]))
    m[r] = max[c](m__part[r, c])                            s[r] = sum[c](s__part * exp(m__ref - m[r]))
and
    t[r] = sum[k](u[r, k]);     v[r] = sum[k]((u[r, k] - t[r] / n)^2)
becomes
    t__part[r, c] = sum[k in c](u[r, k])                    t__ref[r, c] = t__part[r, c] / n_c
    t__rest[r, c] = sum[k in c](u[r, k] - t__ref[r, c])     v__part[r, c] = sum[k in c]((u[r, k] - t__ref)^2)
    t[r] = sum[c](t__part[r, c])                            v__off[r] = sum[c](t__rest + n_c d)
    v[r] = sum[c](v__part + d (2 t__rest + n_c d)) - v__off[r]^2 / n       where d = t__ref - t[r] / n
Means of chunks and of the row are rounded: t__rest and v__off make up for what they are off by, so that rows
far from 0 lose no more than in two passes.

A chunk is small enough to stay near between its two phases, so that a row of any length comes from memory
once; chunks are independent, so that a single row can fill a machine.

Infinities and NaN give what they give without.  A chunk of nothing but -inf adds 0 where another one of its
row is finite, and NaN, as 0 * exp(lowest + inf), where none is; hence m__ref is clamped to finite numbers.
Sums of finite numbers that overflow give an infinite variance; hence t__ref - t[r] / n is 0 where both are
equal.

Sources: Milakov and Gimelshein 2018 (online softmax); Chan, Golub and LeVeque 1979 (variances by parts).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.extents import extents
from polyfuse.cost.machines import Machine, machine_of
from polyfuse.cost.online_gain import Row, chunk_elements, passes
from polyfuse.cost.operations import operations
from polyfuse.decisions import Decision
from polyfuse.ir.dtypes import BOOL, DType
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.target import Kind, Target
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Const,
    Expr,
    IndexValue,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    reads,
    statement_reads,
)
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.graph.one_pass.cascades import Cascade, Unknown, cascades, derived_from, span
from polyfuse.layers.graph.one_pass.moments import about_a_pivot, applied, why_not


@dataclass(frozen=True, slots=True)
class Chunks:
    """How the elements of a reduction are cut: the dims before `position` are taken apart, the one there is
    cut into `count` parts of `size` iterations, those behind stay whole.  total: chunks of one row."""

    position: int
    size: int
    count: int
    total: int
    elements: int


def online_forms(
    graph: TensorGraph,
    target: Target,
    decisions: list[Decision],
    *,
    wanted: bool | None = None,
    chunk: int | None = None,
) -> TensorGraph:
    """The graph with cascades in one pass: where it pays (None), wherever it can be done (True), or nowhere.

    chunk: elements of a chunk (None: what suits the target).  While sizes are open there are no chunks.
    """
    if wanted is False:
        return graph
    machine = machine_of(target)
    if graph.sizes:
        return _with_pivots(graph, machine, decisions)
    taken: dict[str, list[Cascade]] = {}
    cuts: dict[str, Chunks] = {}
    pivoted: dict[str, list[Cascade]] = {}
    for found in cascades(graph):
        row = _row(graph, found, target.kind)
        cut = _chunks(found.first, chunk or chunk_elements(row, machine))
        times = passes(row, machine)
        made = {c.second.name for cs in (*taken.values(), *pivoted.values()) for c in cs}
        reason = _against(graph, found, cut, made)
        if found.first.name in pivoted:
            reason = f"{found.first.name} is made about a pivot"
        if not wanted and (times.near or (reason is None and not times.pays)):
            reason = str(times)
        if reason is None and isinstance(found, Cascade) and cut is not None:
            taken.setdefault(found.first.name, []).append(found)
            cuts[found.first.name] = cut
            why = f"{found.law}, in one pass with {found.first.name}, {cut.total} chunks of a row: {times}"
            decisions.append(Decision("online", found.second.name, True, why))
            continue
        kept = _without_pivot(graph, found, machine, made | set(taken))
        if isinstance(found, Cascade) and kept is None:
            pivoted.setdefault(found.first.name, []).append(found)
            why = f"{found.law}, in one pass with {found.first.name}, about a pivot; {reason}"
            decisions.append(Decision("online", found.second.name, True, why))
        elif wanted or not (times.near and isinstance(found, Unknown)):
            why = "; ".join(x for x in (reason, kept) if x)
            decisions.append(Decision("online", found.second.name, False, why))
    for name, several in taken.items():
        graph = _Rewrite(graph, several[0].first, cuts[name]).run(several)
    for several in pivoted.values():
        graph = about_a_pivot(graph, several)
    return _without_unread(graph) if taken or pivoted else graph


def _with_pivots(graph: TensorGraph, machine: Machine, decisions: list[Decision]) -> TensorGraph:
    """The graph with means and variances of rows whose length is open about pivots, where that pays."""
    pivoted: dict[str, list[Cascade]] = {}
    for found in cascades(graph):
        made = {c.second.name for cs in pivoted.values() for c in cs}
        kept = _without_pivot(graph, found, machine, made)
        if not isinstance(found, Cascade) or kept == "":
            continue
        if kept is None:
            pivoted.setdefault(found.first.name, []).append(found)
        why = f"{found.law}, in one pass with {found.first.name}, about a pivot" if kept is None else kept
        decisions.append(Decision("online", found.second.name, kept is None, why))
    for several in pivoted.values():
        graph = about_a_pivot(graph, several)
    return _without_unread(graph) if pivoted else graph


def _without_pivot(
    graph: TensorGraph, found: Cascade | Unknown, machine: Machine, formed: set[str]
) -> str | None:
    """Why a mean and its variance are not made about a pivot ("" for what is none); None if they are."""
    if not isinstance(found, Cascade) or found.law != "centred" or not isinstance(machine, CpuDevice):
        return ""
    if not _same_type(graph, found):
        return ""
    if found.first.name in formed:
        return f"{found.first.name} has a form of its own"
    return why_not(graph, found.first, machine)


# --- what is cut, and whether it may ------------------------------------------------------------------------


def _row(graph: TensorGraph, found: Cascade | Unknown, kind: Kind) -> Row:
    first, second = found.first, found.second
    along = {d.name: span(d)[1] - span(d)[0] for d in first.dims if d.reduce}
    nbytes: dict[str, int] = {}
    for r in reads(first.expr):
        used = {v for i in r.indices if not isinstance(i, EXPR_TYPES) for v in variables(i)} & set(along)
        if used:
            size = prod(along[v] for v in used) * r.dtype.bytes
            nbytes[r.tensor] = max(size, nbytes.get(r.tensor, 0))
    length, count = max(1, prod(along.values())), max(1, prod(_trips(first, reduce=False)))
    behind = derived_from(graph, second.target)
    after = [s for s in graph.statements if s.target in behind and s is not second]
    later = any(prod(b - a for a, b in map(span, s.dims)) >= count * length for s in after if _is_box(s))
    each = [
        operations([(s, extents(s))], kind).weighted / (count * length)
        for s in (first, replace(second, expr=found.terms if isinstance(found, Cascade) else second.expr))
    ]
    if isinstance(found, Cascade) and found.law == "centred":
        each[1] += 1.0  # what elements of a chunk are off its mean by is added up as well
    return Row(count, length, float(max(1, sum(nbytes.values()))), each[0], each[1], later)


def _is_box(s: Statement) -> bool:
    return all(isinstance(d.lower, IConst) and isinstance(d.upper, IConst) for d in s.dims)


def _trips(s: Statement, reduce: bool) -> list[int]:
    return [span(d)[1] - span(d)[0] for d in s.dims if d.reduce == reduce]


def _chunks(s: Statement, elements: int) -> Chunks | None:
    """Chunks of at most so many elements, in the order of the loops; None if one holds them all."""
    trips = _trips(s, reduce=True)
    if prod(trips) <= elements:
        return None
    for k, trip in enumerate(trips):
        inner = prod(trips[k + 1 :])
        if inner <= elements:
            size = min(trip, elements // inner)
            count = -(-trip // size)
            return Chunks(k, size, count, prod(trips[:k]) * count, size * inner)
    return None


def _against(graph: TensorGraph, found: Cascade | Unknown, cut: Chunks | None, parts: set[str]) -> str | None:
    """Why a cascade must stay as it is; None if it need not."""
    if isinstance(found, Unknown):
        return found.reason
    if not _same_type(graph, found):
        return "its total is of another type than its terms"
    if found.first.name in parts:
        return f"{found.first.name} is made in parts itself"
    if not _in_order(found.first):
        return "the elements of a row do not follow each other in memory"
    return "a chunk holds all of a row" if cut is None else None


def _same_type(graph: TensorGraph, found: Cascade) -> bool:
    """Are both totals floats of the type of their terms?"""
    kept = {graph.tensor(s.target).dtype for s in (found.first, found.second)}
    return kept == {found.terms.dtype} and found.terms.dtype.is_float


def _in_order(s: Statement) -> bool:
    """Does the innermost loop of a reduction run along the last index of all that it reads there?"""
    along = {d.name for d in s.dims if d.reduce}
    last = [d.name for d in s.dims if d.reduce][-1]
    for r in reads(s.expr):
        places = [set() if isinstance(i, EXPR_TYPES) else along & set(variables(i)) for i in r.indices]
        if any(isinstance(i, EXPR_TYPES) for i in r.indices) or any(last in p for p in places[:-1]):
            return False
        if any(places) and last not in places[-1]:
            return False
    return True


# --- the rewrite -------------------------------------------------------------------------------------------


class _Rewrite:
    """One first reduction, with all that are made in the same pass."""

    def __init__(self, graph: TensorGraph, first: Statement, cut: Chunks) -> None:
        self.graph, self.first, self.cut = graph, first, cut
        self.number = fresh_name(graph, "c__")

    def run(self, several: list[Cascade]) -> TensorGraph:
        dtype = self.graph.tensor(self.first.target).dtype
        part = self._part(self.first, self.first.expr, dtype)
        centre = self._centre(part, several[0].law, dtype)
        made = [part, centre]
        if several[0].law == "centred":
            made.append(self._part(self.first, self._rest(centre, dtype), dtype, "rest"))
        self._insert(self.first, made, self._combined(self.first, self._read(part, dtype)))
        for c in several:
            if c.law == "centred":
                self._centred(c, centre, made[-1], dtype)
            else:
                self._shifted(c, centre, dtype)
        return self.graph

    def _shifted(self, c: Cascade, centre: Statement, dtype: DType) -> None:
        near, part = self._near(c, centre, dtype)
        off = (near, c.centre) if c.sign == 1 else (c.centre, near)
        value = applied("mul", self._read(part, dtype), applied("exp", applied("sub", *off)))
        self._insert(c.second, [part], self._combined(c.second, value))

    def _centred(self, c: Cascade, centre: Statement, rest: Statement, dtype: DType) -> None:
        """v = sum[c](v__part + d (2 t__rest + n_c d)) - off^2 / n, where d = t__ref - t / n and
        off = sum[c](t__rest + n_c d): what t__ref and t / n are off by, being rounded, is made up for."""
        s, zero = c.second, Const(0.0, dtype)
        near, part = self._near(c, centre, dtype)
        same = Apply("eq", (near, c.centre), BOOL)  # both infinite where sums of large numbers are
        apart = Select(same, zero, applied("sub", near, c.centre), dtype)
        left = Read(rest.target, near.indices, dtype, s.span)
        far = applied("mul", self._elements(s, dtype), apart)
        more = applied("mul", apart, applied("add", applied("add", left, left), far))
        squares = applied("add", self._read(part, dtype), Select(same, zero, more, dtype))
        about = self._beside(s, "about", squares)
        off = self._beside(s, "off", applied("add", left, far))
        kept, missed = (Read(x.target, s.write, dtype, s.span) for x in (about, off))
        count = Const(float(prod(_trips(s, reduce=True))), dtype)
        least = applied("sub", kept, applied("mul", missed, applied("div", missed, count)))
        infinite = Apply("eq", (kept, Const(inf, dtype)), BOOL)
        value = Select(infinite, kept, applied("max", least, zero), dtype)
        dims = tuple(d for d in s.dims if not d.reduce)
        self._insert(s, [part, about, off], replace(s, dims=dims, expr=value, reduction=None))

    def _near(self, c: Cascade, centre: Statement, dtype: DType) -> tuple[Read, Statement]:
        """What the terms of a chunk are taken relative to, and their reduction so."""
        near = Read(centre.target, (*c.indices, *self._place(c.second)), dtype, c.second.span)
        expr = map_expr(c.terms, lambda x: near if x == c.centre else x)
        return near, self._part(c.second, expr, dtype)

    def _rest(self, centre: Statement, dtype: DType) -> Expr:
        """What the elements of a chunk are off its mean by, as that was rounded."""
        place = (*self.first.write, *self._place(self.first))
        return applied("sub", self.first.expr, Read(centre.target, place, dtype, self.first.span))

    def _beside(self, s: Statement, what: str, value: Expr) -> Statement:
        """A reduction over chunks into a new temporary, shaped as the result of another one."""
        name, kept = fresh_name(self.graph, f"{s.name}__{what}"), self.graph.tensor(s.target)
        more = Tensor(name, kept.dtype, kept.shape, Role.TEMP, kept.span)
        self.graph = replace(self.graph, tensors=(*self.graph.tensors, more))
        return replace(self._combined(s, value), name=name, target=name)

    def _part(self, s: Statement, expr: Expr, dtype: DType, what: str = "part") -> Statement:
        """The reduction of every chunk, into a new temporary with dims for the chunks behind the others."""
        name = fresh_name(self.graph, f"{s.name}__{what}")
        dims = [d for d in s.dims if not d.reduce]
        over = [d for d in s.dims if d.reduce]
        at, cut = over[self.cut.position], self.cut
        low = binary("+", binary("*", IVar(self.number), cut.size), at.lower)
        high = binary("+", low, cut.size)
        if (span(at)[1] - span(at)[0]) % cut.size:
            high = binary("min", high, at.upper)
        dims += [replace(d, reduce=False) for d in over[: cut.position]]
        dims.append(IterDim(self.number, IConst(0), IConst(cut.count)))
        inner = over[cut.position + 1 :]
        if (
            cut.size == 1
            and inner
            and not any(at.name in {*variables(d.lower), *variables(d.upper)} for d in inner)
        ):
            expr = map_expr(expr, lambda x: x, lambda i: substitute(i, {at.name: low}))
        else:
            dims.append(replace(at, lower=low, upper=high))
        dims += inner
        self._add(name, s, dtype)
        return replace(
            s, name=name, target=name, dims=tuple(dims), write=(*s.write, *self._place(s)), expr=expr
        )

    def _centre(self, part: Statement, law: str, dtype: DType) -> Statement:
        """What the terms of a chunk are taken relative to: its extreme, made finite, or its mean."""
        total = self._read(part, dtype)
        if law == "shifted":
            limits = np.finfo(dtype.numpy)
            low, high = (Const(float(x), dtype) for x in (limits.min, limits.max))
            value = applied("min", applied("max", total, low), high)
        else:
            value = applied("div", total, self._elements(self.first, dtype))
        name = fresh_name(self.graph, f"{self.first.name}__ref")
        self._add(name, self.first, dtype, exact=True)  # once for each chunk, not for each of its elements
        dims = tuple(d for d in part.dims if not d.reduce)
        return Statement(name, name, dims, part.write, value, span=self.first.span)

    def _combined(self, s: Statement, value: Expr) -> Statement:
        """The reduction over chunks, in place of that over elements."""
        over = [d for d in s.dims if d.reduce][: self.cut.position]
        number = IterDim(self.number, IConst(0), IConst(self.cut.count), reduce=True)
        return replace(s, dims=(*(d for d in s.dims if not d.reduce), *over, number), expr=value)

    def _place(self, s: Statement) -> tuple[IndexExpr, ...]:
        """Where the chunks of a reduction are in its temporary, behind what the reduction writes at."""
        over = [d for d in s.dims if d.reduce][: self.cut.position]
        return (*(binary("-", IVar(d.name), d.lower) for d in over), IVar(self.number))

    def _elements(self, s: Statement, dtype: DType) -> Expr:
        """How many elements a chunk has; the last one may have fewer."""
        over = [d for d in s.dims if d.reduce][self.cut.position :]
        trip, *inner = (span(d)[1] - span(d)[0] for d in over)
        size: IndexExpr = IConst(self.cut.size)
        if trip % self.cut.size:
            size = binary("min", size, binary("-", trip, binary("*", IVar(self.number), self.cut.size)))
        return IndexValue(binary("*", size, prod(inner)), dtype)

    def _read(self, s: Statement, dtype: DType) -> Read:
        return Read(s.target, s.write, dtype, s.span)

    def _add(self, name: str, s: Statement, dtype: DType, exact: bool = False) -> None:
        kept = self.graph.tensor(s.target)
        over = _trips(s, reduce=True)[: self.cut.position]
        shape = (*kept.shape, *map(IConst, over), IConst(self.cut.count))
        more = Tensor(name, dtype, shape, Role.TEMP, kept.span, exact=exact)
        self.graph = replace(self.graph, tensors=(*self.graph.tensors, more))

    def _insert(self, s: Statement, before: list[Statement], instead: Statement) -> None:
        mine = [
            x for old in self.graph.statements for x in ((*before, instead) if old.name == s.name else (old,))
        ]
        self.graph = replace(self.graph, statements=tuple(mine))


def _without_unread(graph: TensorGraph) -> TensorGraph:
    """Less the temporaries that nothing reads any more."""
    while True:
        read = {r.tensor for s in graph.statements for r in statement_reads(s)}
        dead = {t.name for t in graph.tensors if t.role is Role.TEMP and t.name not in read}
        if not dead:
            return graph
        graph = replace(
            graph,
            tensors=tuple(t for t in graph.tensors if t.name not in dead),
            statements=tuple(s for s in graph.statements if s.target not in dead),
        )
