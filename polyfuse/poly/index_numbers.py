"""Proofs that indices and sizes are values of the dtypes in which they are numbers (PF363).

y[i] = k[i] + i * 3000000000        k: i32, where the index takes the type of the other operand
"""

from __future__ import annotations

from collections.abc import Iterable

from polyfuse.ir.intervals import Interval, fits, of_dtype, of_tree
from polyfuse.ir.tensor_graph import IndexValue, Statement
from polyfuse.poly.accesses import Guard, guarded_parts
from polyfuse.poly.index_room import arithmetic, has_room, span, spans_of
from polyfuse.poly.isl_bridge import NotAffine
from polyfuse.poly.obligations import Bad, Example, Obligation, Proofs


def prove_numbers(proofs: Proofs, statements: Iterable[Statement]) -> None:
    """PF363: what is converted by no cast keeps its value."""
    for s in statements:
        for e, guards in guarded_parts(s):
            if isinstance(e, IndexValue) and e.dtype.is_integer and e.dtype.bits < 64:
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
