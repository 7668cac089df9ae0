"""Proofs that a graph only touches what exists: reads and writes in range, pieces, recurrences.

`prove_ranges` adds every refuted obligation to the diagnostics, with an example index:

    PF350 read out of range          PF356 division by zero in an index
    PF351 write out of range         PF357 index not affine although the sizes are known
    PF352 pieces overlap             PF358 no proof within the limit of operations
    PF353 result not fully defined   PF359 max or min of an empty range
    PF354 read of an element that no definition covers
    PF355 an element needs itself    PF360 negative extent
    PF362 index beyond 64 bits       PF363 an index is no value of the other operand's dtype

Sizes without a value are parameters of the proof, not negative, and bound by the constraints.  An
obligation is left open, to be proved again when sizes are known, where an index or a guard is not
affine in symbolic sizes, where a proof runs out of operations, and where it fails only for a size of
0 (``c[0] = x[0]`` on ``x: f32[N]``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import islpy as isl

from polyfuse.diagnostics import Diagnostics
from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.index_expr import sizes as sizes_in
from polyfuse.ir.intervals import Interval, fits, of_dtype, of_tree
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    IndexValue,
    IterDim,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    data_bounds_it,
)
from polyfuse.poly.legality.index_overflow import arithmetic, has_room, refuse_large, span, spans_of, wrapping
from polyfuse.poly.legality.obligations import Bad, Example, Obligation, Proofs
from polyfuse.poly.legality.pieces import prove_pieces
from polyfuse.poly.legality.recurrences import prove_order
from polyfuse.poly.model.dependences import Element, Guard, guarded_parts, outer_dims, reads_of, write_of
from polyfuse.poly.model.isl_bridge import NotAffine, isl_lock
from polyfuse.poly.model.isl_text import never_negative

# --- indices and sizes as numbers -------------------------------------------------------------------------

# Proofs that indices and sizes are values of the dtypes in which they are numbers (PF363).
#
# y[i] = k[i] + i * 3000000000        k: i32, where the index takes the type of the other operand


def prove_numbers(proofs: Proofs, statements: Iterable[Statement]) -> None:
    """PF363: what is converted by no cast keeps its value."""
    for s in statements:
        for e, guards in guarded_parts(s):
            if isinstance(e, IndexValue) and e.dtype.is_integer and e.dtype is not I64:
                _prove_number(proofs, s, e, guards)


def _prove_number(proofs: Proofs, s: Statement, e: IndexValue, guards: tuple[Guard, ...]) -> None:
    spans = spans_of(s.dims, proofs.sizes)
    values: Interval | None = span(e.index, spans)
    room = has_room(e.index, spans)
    if values is not None and not room:
        values = of_tree(arithmetic(e.index, spans, e), spans)
    if values is None or fits(values, e.dtype):
        return
    o = Obligation("PF363", s.name, f"{e.index} is a value of {e.dtype}", e.span)
    hint = f"convert it, {e.dtype}(...), which wraps; or convert the other operand, i64(...)"

    def find() -> Bad:
        scope = proofs.scope(s.dims)
        at, (low, high) = proofs.text.index(e.index, scope), of_dtype(e.dtype)
        inside = proofs.where(s.dims, guards, scope)
        points = proofs.text.set([*scope.values()], [*inside, f"{at} < {low}"], [*inside, f"{at} > {high}"])
        return Bad(points, tuple(scope), say)

    def say(x: Example) -> str:
        value = proofs.value(e.index, x)
        return f"{e.index} is no value of {e.dtype}: {proofs.place(s.dims, x)} it is {value}"

    if room and _affine(proofs, s, e):
        proofs.settle(o, find, hint, s.dims)
        return
    message = f"{e.index} may be no value of {e.dtype}: it lies in {values[0]}..{values[1]}"
    proofs.diagnostics.error("PF363", message, e.span, hint)


def _affine(proofs: Proofs, s: Statement, e: IndexValue) -> bool:
    try:
        proofs.text.index(e.index, proofs.scope(s.dims))
    except NotAffine:
        return False
    return True


def prove_ranges(
    graph: TensorGraph,
    sizes: Mapping[str, int] | None,
    diagnostics: Diagnostics,
    only: frozenset[Obligation] | None = None,
) -> frozenset[Obligation]:
    """Prove what can be proved; returns the obligations left open.

    `sizes` may give some or all sizes; with all of them nothing is left open. `only` restricts the
    work to obligations that an earlier, symbolic run left open.
    """
    known = dict(sizes or {})
    if refuse_large(graph, known, diagnostics):
        return frozenset()
    with isl_lock:
        proofs = Proofs(wrapping(graph, known), known, diagnostics, only)
        prove_numbers(proofs, graph.statements)
        for t in graph.tensors:
            _prove_extents(proofs, t)
        for s in proofs.graph.statements:
            for access in (write_of(s), *reads_of(s)):
                _prove_in_range(proofs, s, access)
            _prove_not_empty(proofs, s)
            _prove_place(proofs, s)
        prove_pieces(proofs)
        prove_order(proofs)
        return frozenset(proofs.open)


def _prove_in_range(proofs: Proofs, s: Statement, a: Element) -> None:
    """PF350, PF351: every index of an access is within the extent of its axis."""
    verb, code = ("writes", "PF351") if a.is_write else ("reads", "PF350")
    for axis, (index, extent) in enumerate(
        zip(a.indices, proofs.graph.tensor(a.tensor).shape, strict=True), start=1
    ):
        if isinstance(index, EXPR_TYPES) or _plainly_inside(index, extent, a.dims):
            continue
        text = a.named(proofs.called(a.tensor))
        o = Obligation(code, s.name, f"{text} is in range on axis {axis}", a.span)

        def find(index: IndexExpr = index, extent: IndexExpr = extent, text: str = text) -> Bad:
            scope = proofs.scope(a.dims)
            low = proofs.text.compared(index, "<", IConst(0), scope)
            high = proofs.text.compared(index, ">=", extent, scope)
            inside = proofs.inside(a, scope)
            points = proofs.text.set([*scope.values()], [*inside, low], [*inside, high])

            def say(x: Example) -> str:
                value, top = proofs.value(index, x), proofs.value(extent, x)
                place = proofs.place(a.dims, x)
                return f"{verb} {text} out of range: {place}, index {value} is not in 0..{top}"

            return Bad(points, tuple(d.name for d in a.dims), say)

        def hint(bad: Bad, x: Example, index: IndexExpr = index, extent: IndexExpr = extent) -> str:
            return _range_hint(proofs, a, index, extent, bad, x)

        if not proofs.settle(o, find, hint, a.dims):
            proofs.refuted.add(a.tensor)


def _range_hint(proofs: Proofs, a: Element, index: IndexExpr, extent: IndexExpr, bad: Bad, x: Example) -> str:
    """What can help: a guard (of a read), another range of a variable, a constraint on the sizes."""
    ways = []
    below = proofs.value(index, x) < 0
    used = variables(index)
    moved = next((d for d in a.dims if d.name in used), None)
    if moved is not None:
        if not a.is_write:
            ways.append(f"guard the read (`{a} if {index} {'>= 0' if below else f'< {extent}'} else ...`)")
            ways.append(f"say what is outside (`{str(a)[:-1]} else ...]`)")
        written = f"{moved.name} in {moved.lower}..{moved.upper}"
        where = f"[{written}]" if moved.reduce else f"for {written}"
        ways.append(f"give '{moved.name}' another range than `{where}`")
    top = moved.upper if moved is not None and isinstance(index, IVar) else None
    if proofs.only_small(bad):
        known = index.value + 1 if isinstance(index, IConst) else top if isinstance(top, IConst) else "..."
        ways.append(f"state what holds of the sizes (`where {extent} >= {known}`)")
    elif top is not None and not below and proofs.symbolic and _independent(top, extent):
        ways.append(f"state what holds of the sizes (`where {extent} >= {top}`)")
    elif not proofs.symbolic and proofs.sizes:
        ways.append("call it with sizes that fit (and say so in `where`)")
    if not ways:
        return f"indices do not wrap: they are in 0..{extent}, without the end"
    return f"{', '.join(ways[:-1])}, or {ways[-1]}" if len(ways) > 1 else ways[0]


def _independent(a: IndexExpr, b: IndexExpr) -> bool:
    """Whether both depend on sizes, and on none together."""
    return bool(sizes_in(a)) and bool(sizes_in(b)) and not {*sizes_in(a)} & {*sizes_in(b)}


def _plainly_inside(index: IndexExpr, extent: IndexExpr, dims: tuple[IterDim, ...]) -> bool:
    """Whether the index is a variable that runs to the extent, from 0 or a constant: no need for isl."""
    if not isinstance(index, IVar):
        return False
    d = next(d for d in dims if d.name == index.name)
    return d.upper == extent and isinstance(d.lower, IConst) and d.lower.value >= 0


def _prove_not_empty(proofs: Proofs, s: Statement) -> None:
    """PF359: max, min, argmax and argmin have at least one element, unless data bounds their ranges."""
    if s.reduction not in ("max", "min", "argmax", "argmin") or s.accumulate:
        return
    if data_bounds_it(s.expr):
        return
    o = Obligation("PF359", s.name, f"{s.reduction} has elements", s.span)
    outer, inner = outer_dims(s), tuple(d for d in s.dims if d.reduce)

    def find() -> Bad:
        scope = proofs.scope((*outer, *inner))
        points = proofs.text.set([scope[d.name] for d in outer], proofs.text.bounds(outer, scope))
        whole = proofs.text.set([*scope.values()], proofs.text.bounds((*outer, *inner), scope))
        some = whole.project_out(isl.dim_type.set, len(outer), len(inner))
        return Bad(points.subtract(some), tuple(d.name for d in outer), say)

    def say(x: Example) -> str:
        return f"{s.reduction} of no elements: {proofs.place(outer, x)}"

    proofs.settle(o, find, "it has no value for an empty range: add `where ... >= 1`", outer)


def _prove_place(proofs: Proofs, s: Statement) -> None:
    """PF380: the place of arglargest and argsmallest is one of their elements'."""
    if s.place is None:
        return
    place, outer = s.place, outer_dims(s)
    (over,) = (d for d in s.dims if d.reduce)
    count = binary("-", over.upper, over.lower)
    if _plainly_inside(place, count, outer):
        return
    o = Obligation("PF380", s.name, f"the place {place} of {s.reduction} is an element's", s.span)

    def find() -> Bad:
        scope = proofs.scope(outer)
        low = proofs.text.compared(place, "<", IConst(0), scope)
        high = proofs.text.compared(place, ">=", count, scope)
        inside = proofs.text.bounds(outer, scope)
        points = proofs.text.set([*scope.values()], [*inside, low], [*inside, high])
        return Bad(points, tuple(d.name for d in outer), say)

    def say(x: Example) -> str:
        value, top = proofs.value(place, x), proofs.value(count, x)
        text = f"{s.reduction} takes a place that its elements do not have"
        return f"{text}: {proofs.place(outer, x)}, place {value} is not in 0..{top}"

    proofs.settle(o, find, _enough_places(place, count, outer), outer)


def _enough_places(place: IndexExpr, count: IndexExpr, outer: tuple[IterDim, ...]) -> str:
    """What can be done about a place that may be beyond the last element."""
    moved = list(variables(place))
    stated = f"where {count} > {place}"
    if isinstance(place, IVar):
        stated = next(f"where {count} >= {d.upper}" for d in outer if d.name == place.name)
    if variables(count) or (moved and not isinstance(place, IVar)):
        return f"give '{moved[0]}' the range of the places" if moved else "give the elements a longer range"
    ranged = f"give '{moved[0]}' the range of the places, or " if moved else ""
    return f"{ranged}state that there are as many: `{stated}`"


def _prove_extents(proofs: Proofs, t: Tensor) -> None:
    """PF360: no declared extent is negative. With symbolic sizes this is left to the call."""
    for k, extent in enumerate(t.shape if t.role is not Role.TEMP else (), start=1):
        if never_negative(extent):
            continue
        o = Obligation("PF360", t.name, f"extent {k} of {t.name} is not negative", t.span)

        def find(extent: IndexExpr = extent) -> Bad:
            text = proofs.text.index(extent, {})
            if proofs.symbolic and not isinstance(extent, IConst):
                raise NotAffine(str(extent))

            def say(x: Example) -> str:
                return f"extent {extent} of {t.name} is {proofs.value(extent, x)}{proofs.given(x)}"

            return Bad(_unassumed(proofs, f"{text} < 0"), (), say)

        proofs.settle(o, find, "state what the sizes must fulfil: `where N >= 2`")


def _unassumed(proofs: Proofs, condition: str) -> isl.Set:
    """A condition on known sizes only, without the assumption that extents are not negative."""
    return isl.Set.read_from_str(proofs.context, f"{{ [] : {condition} }}")
