"""sum(a * b) of the reference evaluator as a matrix product, where that saves the whole domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from polyfuse.ir.index_expr import variables as index_variables
from polyfuse.ir.tensor_graph import Apply, Expr, Statement, depends_on
from polyfuse.runtime.reference_block import Block
from polyfuse.runtime.reference_values import Array, Bound, Val, growth, is_exact, join, rounded, undecided

WORTH_IT = 1 << 15


@dataclass(frozen=True)
class Contraction:
    """``sum[k](left * right)``: every axis belongs to left or right, the reduced ones to both."""

    left: Expr
    right: Expr
    names: tuple[frozenset[str], frozenset[str]]
    reduced: tuple[str, ...]

    def product(self, block: Block, x: Array, y: Array) -> Array:
        """The sums over the reduced axes, which stay with extent 1."""
        left, right = self.names
        groups = (
            tuple(n for n in block.ranges if n in left & right and n not in self.reduced),
            tuple(n for n in block.ranges if n in left - right),
            self.reduced,
            tuple(n for n in block.ranges if n in right - left),
        )
        batch, m, k, n = groups
        out = np.matmul(_matrix(block, x, (batch, m, k)), _matrix(block, y, (batch, k, n)))
        order = (*batch, *m, *n, *k)
        extents = [1 if name in k else block.shape[block.axis[name]] for name in order]
        return cast(Array, out.reshape(extents).transpose([order.index(name) for name in block.ranges]))

    def evaluate(self, block: Block, x: Val, y: Val, n: int) -> Val | None:
        """The reduction of n terms, or None if a factor holds an infinity, NaN or undecided element."""
        if any(undecided(v.e).any() or not np.isfinite(v.v).all() for v in (x, y)):
            return None
        size = self.product(block, np.abs(x.v), np.abs(y.v))
        error: Bound = 0.0
        if not is_exact(y.e):
            error = self.product(block, np.abs(x.v), cast(Array, y.e))
        if not is_exact(x.e):
            far = np.abs(y.v) if is_exact(y.e) else np.abs(y.v) + y.e
            error = join(error, self.product(block, cast(Array, x.e), far))
        value = self.product(block, x.v, y.v)
        dtype, nonneg = self.left.dtype, x.nonneg and y.nonneg
        roundings = growth(n) + 1.0
        return rounded(value, error, dtype, (error,), roundings=roundings, magnitude=size, nonneg=nonneg)


def _matrix(block: Block, a: Array, groups: tuple[tuple[str, ...], ...]) -> Array:
    """`a` with the axes of three groups flattened to three."""
    names = tuple(n for g in groups for n in g)
    full = tuple(block.shape[block.axis[n]] if n in names else 1 for n in block.ranges)
    rest = tuple(n for n in block.ranges if n not in names)
    order = [block.axis[n] for n in (*names, *rest)]
    extents = [int(np.prod([block.shape[block.axis[n]] for n in g], dtype=np.int64)) for g in groups]
    return cast(Array, np.broadcast_to(a, full).transpose(order).reshape(extents))


def contraction(s: Statement, block: Block) -> Contraction | None:
    """The statement as a contraction of a large rectangular domain."""
    e = s.expr
    if s.reduction != "sum" or s.accumulate or not isinstance(e, Apply) or e.op != "mul":
        return None
    if not e.dtype.is_float or np.prod(block.shape, dtype=np.float64) < WORTH_IT:
        return None
    if any(index_variables(d.lower) or index_variables(d.upper) for d in s.dims):
        return None
    left, right = depends_on(e.args[0]), depends_on(e.args[1])
    if left | right != set(block.ranges) or not set(s.reduction_dims) <= left & right:
        return None
    if left == set(block.ranges) or right == set(block.ranges):
        return None
    return Contraction(e.args[0], e.args[1], (frozenset(left), frozenset(right)), s.reduction_dims)
