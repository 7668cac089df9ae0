"""The terms of a small window are added at once.

    for r in 0..3:                                  for c @vec:
      for s in 0..3:                                  y[c] sum= (x[0, c] * w[0, 0] + x[0, c + 1] * w[0, 1])
        for c @vec:                           ->                + ... + x[2, c + 2] * w[2, 2]
          y[c] sum= x[r, c + s] * w[r, s]

Totals of a row are in memory: each term loads and stores all of them.  Filters, blurs and pools of a few
elements have a handful of terms, of few rows, which lie side by side in registers and in L1.

Sums may be reassociated (Meaning, in the language), so loops over strips of the row may come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyfuse.codegen.analysis.reduction_nests import EXTREMES, adds, beside, nest
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.passes import missed
from polyfuse.codegen.transforms.unroll_and_jam.weave import Join, weave
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import Block, For, Update, map_outermost, substituted
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, reads

# Vectors of such totals; half a vector is one as well.
EVEN_BYTES = 32


def jammed_windows(block: Block, core: Core) -> Block:
    """The block with such sums in one loop."""
    return map_outermost(block, lambda loop: _jammed(loop, core))


def _jammed(loop: For, core: Core) -> Block | None:
    *around, inner = nest(loop)
    if inner.coordinate is not Coordinate.VECTOR or inner.lanes or inner.step != 1 or not inner.body:
        return None
    updates = [n for n in inner.body if isinstance(n, Update)]
    if len(updates) < len(inner.body):
        return None
    bounds = {v for x in (*around, inner) for e in (x.lower, x.upper) for v in variables(e)}
    terms = [
        x
        for x in reversed(around)
        if x.var not in bounds and all(adds(n, x.var, inner, integers=True) for n in updates)
    ]
    lanes = (inner,) if any(x.var in beside(updates, inner) for x in terms) else ()
    window = _window(terms, updates, inner, core)
    if _extremes(updates) and len(window) < len(around) and not _in_groups(terms, updates, inner):
        missed(lanes, "extremes are more than go at once")
        return (loop,) if terms else None
    if not window:
        missed(lanes, "a window has more terms or rows than go at once")
        return None
    strips = [x for x in around if x not in window]
    places: list[dict[str, IndexExpr]] = [{}]
    for x in window:
        places = [{**p, x.var: binary("+", x.lower, k)} for p in places for k in range(trip_of(x) or 0)]
    (made,) = weave([substituted((inner,), p) for p in places], lambda loop: Join.COMBINED)
    for x in reversed(strips):
        made = replace(x, body=(made,))
    return (made,)


def _window(loops: Sequence[For], updates: Sequence[Update], inner: For, core: Core) -> list[For]:
    """The innermost of the loops that make few terms, of few rows, some of which lie side by side along the
    vector loop; the outermost first."""
    one_by_one = _held(updates, inner, core) and not _in_groups(loops, updates, inner)
    most = (
        FITTED.jam_stencils_most_extremes
        if _extremes(updates) and one_by_one
        else FITTED.jam_stencils_most_terms
    )
    along = beside(updates, inner)
    found: list[For] = []
    terms = rows = 1
    for x in loops:
        trip = trip_of(x)
        if not trip:
            continue
        more = rows if x.var in along else rows * trip
        if terms * trip > most or more > FITTED.jam_stencils_most_rows:
            break
        terms, rows = terms * trip, more
        found.insert(0, x)
    return found if terms > 1 and any(x.var in along for x in found) else []


def _extremes(updates: Sequence[Update]) -> bool:
    return any(n.op in EXTREMES for n in updates)


def _held(updates: Sequence[Update], inner: For, core: Core) -> bool:
    """Do registers hold the totals of a row, in whole vectors from the beginning of a line on?  So they do
    where terms do not lie side by side along it: each is read by itself anyway."""
    lane, trip, at = IVar(inner.var), trip_of(inner), inner.lower
    last = [r.indices[-1] for n in updates for r in reads(n.value) if r.indices]
    if any(isinstance(i, EXPR_TYPES) or linear(i).factor(lane) not in (0, 1) for i in last):
        return True
    size = max(n.value.dtype.bytes for n in updates)
    if (
        trip is None
        or not isinstance(at, IConst)
        or trip * size > FITTED.jam_stencils_held * core.vector_bytes
    ):
        return False
    return not (trip * size % EVEN_BYTES or at.value * size % EVEN_BYTES)


def _in_groups(loops: Sequence[For], updates: Sequence[Update], inner: For) -> bool:
    """Are the terms of each lane all that lies up to those of the next one, in a row without a rest? Together
    they are loaded as vectors, whose elements are put in order; each for itself is loaded lane by lane."""
    last = [r.indices[-1] for n in updates for r in reads(n.value) if r.indices]
    size, trip = max(n.value.dtype.bytes for n in updates), trip_of(inner)
    if trip is None or trip * size % EVEN_BYTES or any(isinstance(i, EXPR_TYPES) for i in last):
        return False
    filled = {(x.var, trip_of(x)) for x in loops}
    forms = [linear(i) for i in last if not isinstance(i, EXPR_TYPES)]
    steps = [(f, f.factor(IVar(inner.var))) for f in forms]
    return any(c > 1 for _, c in steps) and all(
        c in (0, 1) or any(n == c and f.factor(IVar(v)) == 1 for v, n in filled) for f, c in steps
    )
