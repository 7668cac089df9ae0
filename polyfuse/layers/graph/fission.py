"""Loop distribution of graphs: functions that loops would repeat have statements of their own.

`distribute_functions` does so.  `suggest_factoring` tells of sums that would take fewer products as two sums.

Functions get statements of their own where loops would compute them more often than they have values, or
one after the other:

    y[i, j] = sum[k](p[i, k] * (log(p[i, k]) - log(q[j, k])))
becomes
    a[i, k] = log(p[i, k]);   b[j, k] = log(q[j, k])
    y[i, j] = sum[k](p[i, k] * (a[i, k] - b[j, k]))

and

    y[b, t] = y[b, t - 1] * exp(x[b, t])               for t in 1..T
becomes
    e[b, t] = exp(x[b, t])                             in vectors along t
    y[b, t] = y[b, t - 1] * e[b, t]

Values of a row alone, or of a column that fits L1, stay: loops keep these themselves
(`codegen.transforms.invariant_motion`).  So do factors of contractions, which tiles compute as they copy
them.  Nothing is computed that was not computed before: what a condition guards goes with it, or stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import prod

from polyfuse.cost.operations import cpu_weight
from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import Core, kept_room
from polyfuse.ir.functions import has_function, is_function
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.tensor_graph import (
    Apply,
    Cast,
    Expr,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
    depends_on,
    format_expr,
    plain_variables,
    reads,
    statement_reads,
    walk,
)
from polyfuse.layers.contractions.contraction import contraction_of
from polyfuse.layers.contractions.factors import extents_of
from polyfuse.layers.graph.inline import as_read
from polyfuse.layers.graph.names import depending, fresh_name

# A value that is computed so often is worth a place in memory.
FEWEST_AGAIN = 4
# Operations that have to be saved for it: what a kernel of its own takes beside its work.
FEWEST_SAVED = 1e5
# Lanes that a function takes at once where it is not computed one after the other.
LANES = 8


def distribute_functions(graph: TensorGraph, decisions: list[Decision], core: Core) -> TensorGraph:
    """The graph with such functions in statements of their own, on a CPU with such cores."""
    for s in graph.statements:
        apart = _Apart.of(graph, s, kept_room(core))
        if apart is None:
            continue
        expr = apart.expr(s.expr)
        if not apart.made:
            continue
        statements = tuple(
            x for t in graph.statements for x in ((*apart.made, replace(s, expr=expr)) if t is s else (t,))
        )
        graph = replace(graph, statements=statements, tensors=(*graph.tensors, *apart.tensors))
        decisions += [Decision("fission", x.target, True, apart.why[x.target]) for x in apart.made]
    return graph


@dataclass(slots=True)
class _Apart:
    """What leaves one statement, whose dims run `counts` times each; tensors that come `later` need it.
    Loops over rows have `room` for columns of so many bytes."""

    graph: TensorGraph
    s: Statement
    counts: dict[str, int]
    later: frozenset[str]
    in_steps: bool
    room: int
    made: list[Statement] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)
    known: dict[Expr, Read] = field(default_factory=dict)

    @staticmethod
    def of(graph: TensorGraph, s: Statement, room: int) -> _Apart | None:
        """None where nothing may leave a statement."""
        counts = {
            d.name: d.upper.value - d.lower.value
            for d in s.dims
            if isinstance(d.lower, IConst) and isinstance(d.upper, IConst) and d.lower.value >= 0
        }
        if s.accumulate or not has_function(s.expr):
            return None
        if len(counts) < len(s.dims) or min(counts.values(), default=0) < 1 or contraction_of(graph, s):
            return None
        needing = depending(graph, s)
        later = frozenset({s.target, *(x.target for x in graph.statements if x.name in needing)})
        return _Apart(graph, s, counts, later, _steps_along_memory(s, later), room)

    def expr(self, e: Expr) -> Expr:
        """An expression that is computed in any case, with reads in place of what leaves it."""
        if isinstance(e, Apply | Select | Cast) and has_function(e):
            why = self._why(e)
            if why:
                return self._read(e, why)
        match e:
            case Apply(_, args):
                return replace(e, args=tuple(map(self.expr, args)))
            case Cast(arg):
                return replace(e, arg=self.expr(arg))
            case Select(cond):
                return replace(e, cond=self.expr(cond))
            case _:
                return e

    def _why(self, e: Expr) -> str:
        """Why an expression leaves the statement; empty if it stays."""
        dims = depends_on(e)
        if any(r.tensor in self.later for r in reads(e)):
            return ""
        size, times = prod(self.counts[d] for d in dims), prod(self.counts.values())
        weight = sum(cpu_weight(x.op) for x in walk(e) if isinstance(x, Apply) and is_function(x))
        along = plain_variables(self.s.write[-1:]) | set(self.s.reduction_dims)
        if not dims & along:
            return ""
        large = sum(self.counts[d] > 1 for d in dims) > 1 or size * e.dtype.bytes > self.room
        if large and times >= FEWEST_AGAIN * size and (times - size) * weight >= FEWEST_SAVED:
            return f"it has {size} values, which would be computed {times // size} times each"
        if self.in_steps and size * weight * (LANES - 1) >= FEWEST_SAVED:
            return "no step waits for it: all steps are computed in vectors"
        return ""

    def _read(self, e: Expr, why: str) -> Read:
        """An element of the tensor that holds what leaves."""
        if e not in self.known:
            s, used = self.s, depends_on(e)
            dims = as_read(tuple(replace(d, reduce=False) for d in s.dims if d.name in used), e)
            taken = replace(self.graph, tensors=(*self.graph.tensors, *self.tensors))
            name = fresh_name(taken, f"{s.target}__function")
            place = tuple(IVar(d.name) for d in dims)
            self.tensors.append(Tensor(name, e.dtype, tuple(d.upper for d in dims), Role.TEMP, s.span))
            self.made.append(Statement(name, name, dims, place, e, span=s.span))
            self.why[name] = why
            self.known[e] = Read(name, place, e.dtype, s.span)
        return self.known[e]


def _steps_along_memory(s: Statement, later: Iterable[str]) -> bool:
    """Are these steps of a recurrence along contiguous memory, so that no other loop is lanes?"""
    before = [r.indices for r in statement_reads(s) if r.tensor in set(later)]
    if s.reduction is not None or not before:
        return False
    return all(i[:-1] == s.write[:-1] for i in before) and any(i[-1:] != s.write[-1:] for i in before)


# --- factoring --------------------------------------------------------------------------------------------

# Sums of products of three factors and more that take fewer products as two sums: said, not done.
#
#     y[u, v] = sum[a, b](c[u, a] * x[a, b] * c[v, b])
# would be
#     t[u, b] = sum[a](c[u, a] * x[a, b]);  y[u, v] = sum[b](c[v, b] * t[u, b])
#
# What does not depend on a part of the sum could be taken out of it.  That is left to who writes the
# operator: a part may overflow, or be NaN, where the whole is not, so that it is more than another order of a
# sum.


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
