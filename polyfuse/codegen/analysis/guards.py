"""Guards: conditions that the loops around them decide are resolved (`simplify_guards`).

    for s in 0..N:                                            for s in 0..N:
      for t in 0..s+1:  m max= x[s, t] if t <= s else -inf  ->    for t in 0..s+1:  m max= x[s, t]
      for t in s+1..N:  m max= x[s, t] if t <= s else -inf        for t in s+1..N:  m max= -inf

Loops are cut where some statement of theirs has a bound; what another one asks is the same all over a piece.
A loop over vector lanes with a condition that guards memory would not be vectorised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyfuse.ir.dtypes import BOOL
from polyfuse.ir.index_expr import IndexExpr, IVar, binary
from polyfuse.ir.linear import Range, arms, conjuncts, interval, linear
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, Update
from polyfuse.ir.tensor_graph import Apply, Const, Expr, Select, map_expr, map_index

TRUE, FALSE = Const(True, BOOL), Const(False, BOOL)
# So many combinations of arms of minima and maxima are tried as bounds.
MOST_BOUNDS = 16

Loops = tuple[For, ...]  # outermost first


def simplify_guards(block: Block, around: Loops = ()) -> Block:
    """See the module docstring."""

    def expr(e: Expr) -> Expr:
        return map_expr(e, lambda x: _chosen(x, around))

    result: list[Node] = []
    for node in block:
        match node:
            case For():
                result.append(replace(node, body=simplify_guards(node.body, (*around, node))))
            case If(cond, then, other):
                cond = settled(cond, around)
                if isinstance(cond, Const):
                    result += simplify_guards(then if cond.value else other, around)
                else:
                    kept = (simplify_guards(b, around) for b in (then, other))
                    result.append(If(cond, *kept))
            case Store(_, indices, value) | Update(_, indices, _, value):
                places = tuple(map_index(i, expr, lambda i: i) for i in indices)
                result.append(replace(node, indices=places, value=expr(value)))
            case Declare(_, _, value) if value is not None:
                result.append(replace(node, value=expr(value)))
            case _:
                result.append(node)
    return tuple(result)


def _chosen(e: Expr, around: Loops) -> Expr:
    if not isinstance(e, Select):
        return e
    cond = settled(e.cond, around)
    if isinstance(cond, Const):
        return e.then if cond.value else e.other
    return e if cond is e.cond else replace(e, cond=cond)


def settled(cond: Expr, around: Loops) -> Expr:
    """The condition without what is the same in all iterations of the loops."""
    match cond:
        case Apply("and" | "or" as op, (left, right)):
            return _joined(cond, op, settled(left, around), settled(right, around))
        case Apply("not", (arg,)):
            inner = settled(arg, around)
            if isinstance(inner, Const):
                return FALSE if inner.value else TRUE
            return cond if inner is arg else replace(cond, args=(inner,))
        case Apply():
            parts = conjuncts(cond)
            if parts is None:
                return cond
            if all(never_negative(p, around) for p in parts):
                return TRUE
            return FALSE if any(never_negative(-1 - p, around) for p in parts) else cond
        case _:
            return cond


def _joined(cond: Apply, op: str, left: Expr, right: Expr) -> Expr:
    """`and` of sides that may be known; `or` likewise, with the values exchanged."""
    neutral = op == "and"
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Const):
            return other if one.value == neutral else one
    same = all(a is b for a, b in zip(cond.args, (left, right), strict=True))
    return cond if same else replace(cond, args=(left, right))


def never_negative(e: IndexExpr, around: Loops, sizes: Mapping[str, Range] | None = None) -> bool:
    """Is the least value that the loops allow 0 or more?  Each variable goes to one of its bounds; `sizes`:
    values of those that are open (`ir.linear.size_ranges`)."""
    found = [linear(e)]
    for loop in reversed(around):
        var, reached = IVar(loop.var), []
        for x in found:
            c = x.factor(var)
            if not c:
                reached.append(x)
                continue
            ends = arms("max", loop.lower) if c > 0 else arms("min", loop.upper - 1)
            reached += [linear(x.without(var).expr() + binary("*", end, c)) for end in ends]
        found = reached[:MOST_BOUNDS]
    if not sizes:
        return any(not x.terms and x.constant >= 0 for x in found)
    return any((least := interval(x.expr(), sizes)) is not None and least[0] >= 0 for x in found)
