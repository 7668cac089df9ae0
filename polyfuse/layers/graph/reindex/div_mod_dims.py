"""Dims that a contraction reads by their digits, `p // K` and `p % K`, are two dims in it.

    y[n, k, p] = sum[c](x[n, c, p // 2] * w[c, k, p % 2])      for p in 0..2*P
becomes
    d[b, n, k, q] = sum[c](x[n, c, q] * w[c, k, b])                for b in 0..2, q in 0..P
    y[n, k, p] = d[p % 2, n, k, p // 2]

(a transposed convolution).  A factor that reads by one digit serves all values of the other, and its elements
lie side by side: rows and columns of tiles (`layers.contractions.contraction`), which `p // 2` are not.  A
digit by which no factor reads is no dim, and what is equal for all of its values is computed once.

A dim that one factor reads by a digit and the other as it is (heads in groups) is split where there is no
tile without, and no window: of those, loops keep what they read.  There both digits stay in their place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, substitute, variables
from polyfuse.ir.linear import Range, linear, simplify
from polyfuse.ir.tensor_graph import (
    Expr,
    IterDim,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    depends_on,
    map_expr,
)
from polyfuse.layers.contractions.contraction import contraction_of
from polyfuse.layers.graph.domains import indices_of, sums_windows
from polyfuse.layers.graph.names import depending, fresh_name


def split_div_mod_dims(graph: TensorGraph, decisions: list[Decision]) -> TensorGraph:
    """The graph with such dims split, where that makes contractions for tiles."""
    for s in graph.statements:
        digits = _digits_of(graph, s) if s.reduction == "sum" and not s.accumulate else []
        if not digits or s.name in depending(graph, s):
            continue
        tensor, summed, copied = _parts(graph, s, digits)
        statements = tuple(x for t in graph.statements for x in ((summed, copied) if t is s else (t,)))
        made = replace(graph, tensors=(*graph.tensors, tensor), statements=statements)
        if contraction_of(made, summed) is not None:
            graph = made
            dims = ", ".join(x.dim for x in digits)
            why = f"its contraction reads by // and % of {dims}: the quotients and rests are dims of it"
            decisions.append(Decision("split dims", s.target, True, why))
    return graph


@dataclass(frozen=True, slots=True)
class _Digits:
    """The dims in place of one: `dim` is `base * quotient + remainder`, with `count` quotients; does no
    index need both of them?"""

    dim: str
    quotient: str
    remainder: str
    base: int
    count: int
    apart: bool = True

    def dims(self) -> tuple[IterDim, IterDim]:
        sizes = {self.quotient: self.count, self.remainder: self.base}
        quotient, remainder = (IterDim(n, IConst(0), IConst(size)) for n, size in sizes.items())
        return quotient, remainder

    def values(self) -> dict[str, IndexExpr]:
        """The digits of the dim."""
        return {self.quotient: IVar(self.dim) // self.base, self.remainder: IVar(self.dim) % self.base}

    def split(self, e: Expr, ranges: Mapping[str, Range]) -> Expr:
        """An expression with digits in place of the dim."""
        whole = {self.dim: IVar(self.quotient) * self.base + IVar(self.remainder)}
        known = {**ranges, self.quotient: (0, self.count - 1), self.remainder: (0, self.base - 1)}
        return map_expr(e, lambda x: x, lambda i: simplify(substitute(i, whole), known))

    def judged(self, e: Expr) -> _Digits | None:
        """These digits as the indices of a split expression need them; None where one is divided again."""
        forms = [linear(i) for i in indices_of(e)]
        inside = (a for form in forms for a, _ in form.terms if a != IVar(self.quotient))
        if any(self.quotient in variables(a) for a in inside):
            return None
        factors = [form.factor(IVar(self.quotient)) for form in forms]
        return replace(self, apart=all(c == 0 or c % self.base for c in factors))


def _digits_of(graph: TensorGraph, s: Statement) -> list[_Digits]:
    """The dims of a contraction to be split."""
    ranges = _ranges(s)
    if len(ranges) < len(s.dims):
        return []
    found = []
    for d in s.dims:
        base = math.lcm(*(c for i in indices_of(s.expr) for c in _divisors(i, d.name)))
        count, rest = divmod(ranges[d.name][1] + 1, max(base, 1))
        if d.reduce or base < 2 or count < 2 or rest:
            continue
        quotient, remainder = (fresh_name(graph, f"{d.name}_{x}") for x in ("quotient", "remainder"))
        digits = _Digits(d.name, quotient, remainder, base, count)
        judged = digits.judged(digits.split(s.expr, ranges))
        if judged is not None and (judged.apart or not (sums_windows(s) or contraction_of(graph, s))):
            found.append(judged)
    return found


def _ranges(s: Statement) -> dict[str, Range]:
    """The values of dims that run from 0 to a number."""
    return {
        d.name: (0, d.upper.value - 1)
        for d in s.dims
        if d.lower == IConst(0) and isinstance(d.upper, IConst) and d.upper.value > 0
    }


def _parts(graph: TensorGraph, s: Statement, digits: list[_Digits]) -> tuple[Tensor, Statement, Statement]:
    """What holds the sums over split dims, the statement that makes them and the one that puts them into
    their places."""
    expr = s.expr
    values: dict[str, IndexExpr] = {}
    first: list[IterDim] = []
    split: dict[str, tuple[IterDim, ...]] = {}
    for x in digits:
        expr = x.split(expr, _ranges(s))
        values |= x.values()
        quotient, remainder = x.dims()
        first += [remainder] * x.apart
        split[x.dim] = (quotient,) if x.apart else (quotient, remainder)
    dims = (*first, *(x for d in s.dims for x in split.get(d.name, (d,))))
    used = depends_on(expr)
    dims = tuple(d for d in dims if d.reduce or d.name in used)
    kept = tuple(d for d in dims if not d.reduce)
    name = fresh_name(graph, f"{s.target}__digits")
    place = tuple(IVar(d.name) for d in kept)
    tensor = Tensor(name, s.expr.dtype, tuple(d.upper for d in kept), Role.TEMP, s.span)
    summed = replace(s, name=name, target=name, dims=dims, write=place, expr=expr)
    read = Read(name, tuple(substitute(i, values) for i in place), s.expr.dtype, s.span)
    copied = replace(s, dims=tuple(d for d in s.dims if not d.reduce), expr=read, reduction=None)
    return tensor, summed, copied


def _divisors(e: IndexExpr, dim: str) -> list[int]:
    """The constants that a dim is divided by in an index."""
    if not isinstance(e, IBin) or dim not in variables(e):
        return []
    by = [e.right.value] if e.op in ("//", "%") and isinstance(e.right, IConst) else []
    return [*by, *_divisors(e.left, dim), *_divisors(e.right, dim)]
