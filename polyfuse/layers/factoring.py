"""Sums of products of three factors and more that take fewer products as two sums: said, not done.

    y[u, v] = sum[a, b](c[u, a] * x[a, b] * c[v, b])
would be
    t[u, b] = sum[a](c[u, a] * x[a, b]);  y[u, v] = sum[b](c[v, b] * t[u, b])

What does not depend on a part of the sum could be taken out of it.  That is left to who writes the operator:
a part may overflow, or be NaN, where the whole is not, so that it is more than another order of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import prod

from polyfuse.decisions import Decision
from polyfuse.ir.tensor_graph import Apply, Expr, Statement, TensorGraph, depends_on, format_expr
from polyfuse.layers.product_measures import extents_of

# So many times fewer products are worth a line, of so many or more.
WORTH, FEWEST_PRODUCTS = 2, 64 * 1024


@dataclass(frozen=True, slots=True)
class Factoring:
    """A sum over some dims of some factors, first; products of both sums."""

    over: tuple[str, ...]
    inside: tuple[Expr, ...]
    outside: tuple[Expr, ...]
    products: int


def suggest_factoring(graph: TensorGraph, decisions: list[Decision]) -> None:
    """A line for each sum that would take fewer products as two."""
    for s in graph.statements:
        found, all_of_it = best_factoring(s), prod(extents_of(s).values())
        if found is None or all_of_it < max(FEWEST_PRODUCTS, WORTH * found.products):
            continue
        inside, outside = (" * ".join(map(format_expr, side)) for side in (found.inside, found.outside))
        rest = [d for d in s.reduction_dims if d not in found.over]
        first = f"t = sum[{', '.join(found.over)}]({inside})"
        then = f"sum[{', '.join(rest)}]({outside} * t)" if rest else f"{outside} * t"
        why = f"{first}, then {then} would be {all_of_it / found.products:.3g} times fewer products"
        why += "; it is not done, as t may overflow where this sum does not"
        decisions.append(Decision("factor", s.target, False, why))


def best_factoring(s: Statement) -> Factoring | None:
    """The two sums with the fewest products, of a sum of products whose bounds are known; None if there are
    none."""
    if s.reduction != "sum" or not all(extents_of(s).values()):
        return None
    return min(_factorings(s), key=lambda f: f.products, default=None)


def _factorings(s: Statement) -> Iterator[Factoring]:
    of, over = extents_of(s), s.reduction_dims
    factors = list(_factors(s.expr))
    if len(factors) < 3:
        return
    for count in range(1, len(over) + 1):
        for chosen in combinations(over, count):
            inside = tuple(f for f in factors if depends_on(f) & set(chosen))
            outside = tuple(f for f in factors if not depends_on(f) & set(chosen))
            if not inside or not outside:
                continue
            first = {d for f in inside for d in depends_on(f)} | set(chosen)
            then = [d for d in of if d not in chosen]
            yield Factoring(chosen, inside, outside, prod(of[d] for d in first) + prod(of[d] for d in then))


def _factors(e: Expr) -> Iterator[Expr]:
    """What is multiplied."""
    if isinstance(e, Apply) and e.op == "mul":
        for a in e.args:
            yield from _factors(a)
    else:
        yield e
