"""A product under a condition on one of its factors is a product with that factor under it (CPU).

    y[p, o] = sum[a](x[p + a] * w[o, a] if p + a < H else 0)
becomes
    y__odd[o] = any[a](w[o, a] - w[o, a] is NaN)
    y__factor[p, o] = sum[a]((x[p + a] if p + a < H else 0) * w[o, a])
    y__guarded[p, o] = sum[a]((x[p + a] * w[o, a] if p + a < H else 0) if y__odd[o] else 0)
    y[p, o] = y__guarded[p, o] if y__odd[o] else y__factor[p, o]

Tiles take the factor (`layers.contractions.contraction`), and no product under a condition.  0 * w is 0, and
adds nothing, where w is finite; an infinity, or NaN, would make NaN of it.  So sums with one keep the product
as it is; code generation passes their loops by where there are none (`codegen.transforms.unswitch`).
Integers are finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.dtypes import BOOL
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.tensor_graph import (
    Apply,
    Cast,
    Const,
    Expr,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
    depends_on,
    reads,
)
from polyfuse.layers.contractions.contraction import contraction_of
from polyfuse.layers.graph.names import fresh_name


def guarded_products(graph: TensorGraph, decisions: list[Decision], core: Core) -> TensorGraph:
    """See the module docstring."""
    for s in graph.statements:
        factored = next(_factored(graph, s), None)
        if factored is None:
            continue
        simple = _with(graph, s, (factored,), ())
        if contraction_of(simple, factored, core) is not None:
            assert isinstance(factored.expr, Apply)
            other = factored.expr.args[1]
            why = "the condition goes to the factor that meets it: tiles take products of factors"
            decisions.append(Decision("guard", s.target, True, why))
            graph = _chosen(graph, s, factored, other) if s.expr.dtype.is_float else simple
    return graph


def _factored(graph: TensorGraph, s: Statement) -> Iterator[Statement]:
    """The statement with a factor, the first, under the condition of its product."""
    match s.expr:
        case Select(cond, Apply("mul", factors) as product, Const(zero)) if zero == 0:
            pass
        case _:
            return
    if s.reduction != "sum" or s.accumulate or reads(cond):
        return
    summed = set(s.reduction_dims)
    for guarded, other in (factors, factors[::-1]):
        if not (depends_on(cond) - summed) & depends_on(other) and _is_anywhere(graph, s, other):
            factor = Select(cond, guarded, Const(0, guarded.dtype), guarded.dtype, s.span)
            yield replace(s, expr=replace(product, args=(factor, other)))


def _is_anywhere(graph: TensorGraph, s: Statement, e: Expr) -> bool:
    """Is a factor an element of memory, whatever the condition says?"""
    if isinstance(e, Cast):
        return _is_anywhere(graph, s, e.arg)
    if not isinstance(e, Read) or not all(isinstance(i, IVar) for i in e.indices):
        return False
    dims = {d.name: d for d in s.dims}
    for i, extent in zip(e.indices, graph.tensor(e.tensor).shape, strict=True):
        assert isinstance(i, IVar)
        d = dims[i.name]
        known = isinstance(d.lower, IConst) and isinstance(d.upper, IConst) and isinstance(extent, IConst)
        if not known or d.lower.value < 0 or d.upper.value > extent.value:  # type: ignore[union-attr]
            return False
    return True


def _chosen(graph: TensorGraph, s: Statement, factored: Statement, other: Expr) -> TensorGraph:
    """The graph with both sums, and what says which of them is right."""
    free = tuple(d for d in s.dims if not d.reduce)
    own = tuple(d for d in free if d.name in depends_on(other))
    over = tuple(d for d in s.dims if d.reduce and d.name in depends_on(other))
    target = graph.tensor(s.target)
    names = [fresh_name(graph, f"{s.target}__{what}") for what in ("odd", "factor", "guarded")]
    odd, factor, guarded = names
    place = tuple(IVar(d.name) for d in own)
    flag = Read(odd, place, BOOL, s.span)
    differs = Apply("isnan", (Apply("sub", (other, other), other.dtype, s.span),), BOOL, s.span)
    zero = Const(0, s.expr.dtype)
    kept = Select(flag, s.expr, zero, s.expr.dtype, s.span)
    slow, fast = (Read(n, s.write, target.dtype, s.span) for n in (guarded, factor))
    choice = Select(flag, slow, fast, target.dtype, s.span)
    statements = (
        Statement(odd, odd, (*own, *over), place, differs, "any", span=s.span),
        replace(factored, name=factor, target=factor),
        replace(s, name=guarded, target=guarded, expr=kept),
        replace(s, dims=free, expr=choice, reduction=None),
    )
    temps = (
        Tensor(odd, BOOL, tuple(d.upper for d in own), Role.TEMP, s.span),
        *(Tensor(n, target.dtype, target.shape, Role.TEMP, s.span) for n in (factor, guarded)),
    )
    return _with(graph, s, statements, temps)


def _with(
    graph: TensorGraph, s: Statement, made: tuple[Statement, ...], temps: tuple[Tensor, ...]
) -> TensorGraph:
    statements = tuple(x for t in graph.statements for x in (made if t is s else (t,)))
    return replace(graph, statements=statements, tensors=(*graph.tensors, *temps))
