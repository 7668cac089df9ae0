"""Values that the forward operator has already, in place of those computed from its parts.

    with y[b, h] = e[b, h] / s[b]      (dy[b, h] - d[b]) * e[b, h] / s[b]
    becomes                            (dy[b, h] - d[b]) * y[b, h]

Results of the forward operator come before other tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from polyfuse.autodiff.algebra import Product, expression, factored, is_zero, product
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    IndexValue,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
    map_expr,
    reads,
)


@dataclass(frozen=True)
class _Known:
    """A tensor that has the value of an expression everywhere."""

    read: Read
    expr: Expr
    product: Product
    names: frozenset[str]


class Reuse:
    """Replaces what tensors of a graph hold."""

    def __init__(self, graph: TensorGraph) -> None:
        self.graph = graph
        found = [k for s in graph.statements if (k := self._known(s)) is not None]
        # Results first: they are in memory anyway.
        found.sort(key=lambda k: graph.tensor(k.read.tensor).role is not Role.OUTPUT)
        self.products = [k for k in found if len(k.product.factors) > 1 and k.product.coefficient == 1.0]
        # What is a value where a condition holds, and else 0.
        self.branches = [k for k in found if isinstance(k.expr, Select) and is_zero(k.expr.other)]
        self.whole = [k for k in found if isinstance(k.expr, Apply) and len(k.product.factors) == 1]

    def _known(self, s: Statement) -> _Known | None:
        t = self.graph.tensor(s.target)
        if s.reduction or s.accumulate or t.dtype is not t.dtype.compute or not t.dtype.is_float:
            return None
        plain = [i.name for i in s.write if isinstance(i, IVar)]
        if len(plain) < len(s.write) or len(set(plain)) < len(plain) or len(s.dims) != len(plain):
            return None
        ranges = {d.name: d for d in s.dims}
        whole = all(
            ranges[n].lower == IConst(0) and ranges[n].upper == extent
            for n, extent in zip(plain, t.shape, strict=True)
        )
        mine = all(self._covers(s, n) for n in plain)
        if not whole or not mine or len(self.graph.writers(t.name)) > 1:
            return None
        return _Known(Read(t.name, s.write, t.dtype), s.expr, product(s.expr), frozenset(plain))

    def _covers(self, s: Statement, name: str) -> bool:
        """Is every element of the axis one of a tensor that is read as well?"""
        upper = next(d.upper for d in s.dims if d.name == name)
        return any(
            i == IVar(name) and extent == upper
            for r in reads(s.expr)
            for i, extent in zip(r.indices, self.graph.tensor(r.tensor).shape, strict=True)
        )

    def __call__(self, e: Expr) -> Expr:
        """The expression with reads in place of what tensors hold."""
        return map_expr(e, self._node)

    def _node(self, e: Expr) -> Expr:
        if isinstance(e, Select) and is_zero(e.other):
            return self._branch(e)
        if not isinstance(e, Apply) or not e.dtype.is_float:
            return e
        for k in self.whole:
            found: dict[str, IndexExpr] = {}
            if e.op == getattr(k.expr, "op", "") and _unify(k.expr, e, k.names, found):
                return _at(k.read, found)
        return self._product(e) if e.op in ("mul", "div") and self.products else e

    def _branch(self, e: Select) -> Expr:
        """A branch where what has values in the same branch only may be read."""
        then = e.then
        for k in self.branches:
            assert isinstance(k.expr, Select)
            found: dict[str, IndexExpr] = {}
            if _unify(k.expr.cond, e.cond, k.names, found):
                then = map_expr(then, partial(self._within_branch, k, found))
        return e if then is e.then else replace(e, then=factored(self(then)))

    def _within_branch(self, k: _Known, at: Mapping[str, IndexExpr], e: Expr) -> Expr:
        assert isinstance(k.expr, Select)
        found = dict(at)
        same = type(e) is type(k.expr.then) and _unify(k.expr.then, e, k.names, found)
        return _at(k.read, found) if same and k.names <= found.keys() else e

    def _product(self, e: Expr) -> Expr:
        p = product(e)
        changed = False
        for k in self.products:
            found = self._within(p, k)
            while found is not None:
                rest = dict(p.factors)
                for atom, n in found[1].items():
                    rest[atom] -= n
                    if not rest[atom]:
                        del rest[atom]
                read = _at(k.read, found[0])
                rest[read] = rest.get(read, 0) + 1
                p, changed = Product(p.coefficient, rest), True
                found = self._within(p, k)
        return expression(p, e.dtype) if changed else e

    def _within(self, p: Product, k: _Known) -> tuple[dict[str, IndexExpr], dict[Expr, int]] | None:
        """Factors of a product that are what a tensor holds."""
        found: dict[str, IndexExpr] = {}
        used: dict[Expr, int] = {}
        for atom, n in k.product.factors.items():
            for mine, m in p.factors.items():
                before = dict(found)
                if mine not in used and (m >= n > 0 or m <= n < 0) and _unify(atom, mine, k.names, found):
                    used[mine] = n
                    break
                found.clear()
                found.update(before)
            else:
                return None
        return (found, used) if k.names <= found.keys() else None


def _at(read: Read, at: Mapping[str, IndexExpr]) -> Read:
    return Read(read.tensor, tuple(at[str(i)] for i in read.indices), read.dtype)


def _unify(pattern: Expr, e: Expr, names: frozenset[str], found: dict[str, IndexExpr]) -> bool:
    """Is it the pattern with indices for its variables?"""
    match pattern, e:
        case (Const(), Const()):
            return pattern == e
        case (IndexValue(i, a), IndexValue(j, b)):
            return a is b and _same(i, j, names, found)
        case (Read(t, mine, _), Read(u, theirs, _)):
            return t == u and all(_same(i, j, names, found) for i, j in zip(mine, theirs, strict=True))
        case (Apply(f, xs), Apply(g, ys)):
            return f == g and all(_unify(x, y, names, found) for x, y in zip(xs, ys, strict=True))
        case (Cast(x, a), Cast(y, b)):
            return a is b and _unify(x, y, names, found)
        case (Select(c, x, z), Select(d, y, w)):
            return all(_unify(p, q, names, found) for p, q in ((c, d), (x, y), (z, w)))
        case _:
            return False


def _same(i: object, j: object, names: frozenset[str], found: dict[str, IndexExpr]) -> bool:
    if isinstance(i, EXPR_TYPES) or isinstance(j, EXPR_TYPES):
        return isinstance(i, EXPR_TYPES) and isinstance(j, EXPR_TYPES) and _unify(i, j, names, found)
    if isinstance(i, IVar) and i.name in names:
        return found.setdefault(i.name, j) == j  # type: ignore[arg-type]
    return i == j
