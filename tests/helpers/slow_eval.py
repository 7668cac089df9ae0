"""The meaning of a tensor graph, element by element, in the declared types: a slow, honest kernel.

Written from `ir.tensor_graph` only, without NumPy arrays of more than an input and without bounds, to
judge the reference evaluator: an element is computed when it is first asked for, in float32 where the
graph says f32, reductions one term after another.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.special

from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import evaluate, variables
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
)

Env = dict[str, int]
Cell = tuple[int, ...]


def _sign_of_nan(a: Any, b: Any, pick: Callable[[Any, Any], Any]) -> Any:
    return a if a != a else b if b != b else pick(a, b)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow,
    "min": lambda a, b: _sign_of_nan(a, b, min), "max": lambda a, b: _sign_of_nan(a, b, max),
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq,
    "ne": operator.ne, "and": operator.and_, "or": operator.or_, "not": operator.not_, "neg": operator.neg,
    "abs": abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "erf": math.erf, "sin": np.sin,
    "cos": np.cos, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "isnan": lambda x: x != x,
    "isinf": lambda x: abs(x) == math.inf, "isfinite": lambda x: abs(x) < math.inf,
    "trunc": np.trunc, "sign": lambda x: x if x == 0 or x != x else math.copysign(1.0, x),
    "exp2": lambda x: np.float64(2.0) ** x, "expm1": np.expm1, "log1p": np.log1p, "log2": np.log2,
    "tan": np.tan, "atan": np.arctan, "asin": np.arcsin, "acos": np.arccos, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "cbrt": np.cbrt, "atan2": np.arctan2,
    "hypot": np.hypot, "fmod": np.fmod, "erfc": scipy.special.erfc, "lgamma": scipy.special.gammaln,
    "digamma": scipy.special.digamma,
}  # fmt: skip
_START = {"sum": 0, "prod": 1, "any": False, "all": True}
_STEP: dict[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add, "prod": operator.mul, "any": operator.or_, "all": operator.and_,
    "max": _FUNCTIONS["max"], "min": _FUNCTIONS["min"],
}  # fmt: skip


@contextmanager
def _deep() -> Iterator[None]:
    """Recurrences are as deep as they are long.  Meanwhile only: other tests rely on the usual limit."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(usual)


class Slow:
    """`Slow(graph, sizes, inputs).tensor("y")` is an array of the declared type."""

    def __init__(self, graph: TensorGraph, sizes: Mapping[str, int], inputs: Mapping[str, Any]) -> None:
        self.graph, self.sizes, self.inputs = graph, dict(sizes), inputs
        self.cells: dict[str, dict[Cell, Any]] = {}
        self.scattered: dict[str, dict[Cell, Any]] = {}
        self.written: dict[str, dict[Cell, Env]] = {}

    def tensor(self, name: str) -> np.ndarray:
        t = self.graph.tensor(name)
        shape = tuple(max(0, evaluate(e, self.sizes)) for e in t.shape)
        out = np.zeros(shape, t.dtype.numpy)
        with np.errstate(all="ignore"), _deep():
            for cell in np.ndindex(shape):
                out[cell] = self.element(name, cell)
        return out

    def element(self, name: str, cell: Cell) -> Any:
        t = self.graph.tensor(name)
        if t.role in (Role.INPUT, Role.INOUT):
            value = self.inputs.get(name, t.default)
            return _typed(np.asarray(value)[cell], t.dtype)
        known = self.cells.setdefault(name, {})
        if cell not in known:
            if any(s.accumulate for s in self.graph.writers(name)):
                known[cell] = self._accumulated(name)[cell]
            else:
                known[cell] = _typed(self._defined(name, cell), t.dtype)
        return known[cell]

    def _defined(self, name: str, cell: Cell) -> Any:
        for s in self.graph.writers(name):
            outer = tuple(d.name for d in s.dims if not d.reduce)
            env = self._match(s, cell)
            if not s.accumulate and env is not None and set(env) == set(outer):
                return self._right(s, env)
        alias = self.graph.tensor(name).alias
        assert alias is not None, f"{name}{cell} is not defined"
        return self.element(alias, cell)

    def _match(self, s: Statement, cell: Cell) -> Env | None:
        """The instance that writes `cell`, if there is one."""
        names = {d.name for d in s.dims}
        if any(
            not hasattr(i, "name") and names & {*variables(i)}
            for i in s.write
            if not isinstance(i, EXPR_TYPES)
        ):
            return self._places(s).get(cell)
        env: Env = {}
        for i, at in zip(s.write, cell, strict=True):
            if hasattr(i, "name") and i.name in names:
                env[i.name] = at
            elif not isinstance(i, EXPR_TYPES) and evaluate(i, self.sizes) != at:
                return None
        for d in s.dims:
            if not d.reduce and not self._range(d, env)[0] <= env[d.name] < self._range(d, env)[1]:
                return None
        return env

    def _places(self, s: Statement) -> dict[Cell, Env]:
        """The instances of a statement by what they write."""
        if s.name not in self.written:
            found = self._instances(tuple(d for d in s.dims if not d.reduce), {})
            by_place = ((tuple(evaluate(i, {**self.sizes, **env}) for i in s.write), env) for env in found)
            self.written[s.name] = dict(by_place)
        return self.written[s.name]

    def _range(self, d: Any, env: Env) -> tuple[int, int]:
        everything = {**self.sizes, **env}
        return evaluate(d.lower, everything), evaluate(d.upper, everything)

    def _instances(self, dims: tuple[Any, ...], env: Env) -> Iterator[Env]:
        if not dims:
            yield env
            return
        for value in range(*self._range(dims[0], env)):
            yield from self._instances(dims[1:], {**env, dims[0].name: value})

    def _right(self, s: Statement, env: Env) -> Any:
        if s.reduction is None:
            return self.value(s.expr, env)
        terms = self._instances(tuple(d for d in s.dims if d.reduce), env)
        if s.place is not None:
            return self._placed(s, terms, evaluate(s.place, {**self.sizes, **env}))
        if s.reduction.startswith("arg"):
            return self._argument(s, terms)
        total: Any = None
        for inner in terms:
            x = self.value(s.expr, inner)
            total = x if total is None else _typed(_STEP[s.reduction](total, x), s.expr.dtype)
        return _typed(_START[s.reduction], s.expr.dtype) if total is None else total

    def _argument(self, s: Statement, terms: Iterator[Env]) -> int:
        best, at = None, -1
        for inner in terms:
            x = self.value(s.expr, inner)
            better = best is None or (
                best == best and (x != x or (x > best if s.reduction == "argmax" else x < best))
            )
            if better:
                best, at = x, inner[s.reduction_dims[0]]
        return at

    def _placed(self, s: Statement, terms: Iterator[Env], place: int) -> int:
        falling = s.reduction == "arglargest"
        found = []
        for inner in terms:
            x = self.value(s.expr, inner).item()
            found.append(
                (((x == x) == falling, 0 if x != x else -x if falling else x), inner[s.reduction_dims[0]])
            )
        assert 0 <= place < len(found)
        return sorted(found)[place][1]

    def _accumulated(self, name: str) -> dict[Cell, Any]:
        if name in self.scattered:
            return self.scattered[name]
        t = self.graph.tensor(name)
        total: dict[Cell, Any] = {}
        adders = [s for s in self.graph.writers(name) if s.accumulate]
        assert adders[0].reduction is not None
        for cell in np.ndindex(tuple(evaluate(e, self.sizes) for e in t.shape)):
            has_start = t.alias or any(
                not s.accumulate and self._match(s, cell) is not None for s in self.graph.writers(name)
            )
            total[cell] = _typed(
                self._defined(name, cell) if has_start else _START[adders[0].reduction], t.dtype
            )
        for s in adders:
            assert s.reduction is not None
            for env in self._instances(s.dims, {}):
                cell = tuple(self.index(i, env) for i in s.write)
                total[cell] = _typed(_STEP[s.reduction](total[cell], self.value(s.expr, env)), t.dtype)
        self.scattered[name] = total
        return total

    def index(self, i: Index, env: Env) -> int:
        if isinstance(i, EXPR_TYPES):
            return int(self.value(i, env))
        return evaluate(i, {**self.sizes, **env})

    def value(self, e: Expr, env: Env) -> Any:
        match e:
            case Const(value, dtype):
                return _typed(value, dtype)
            case IndexValue(index, dtype):
                return _typed(self.index(index, env), dtype)
            case Read(tensor, indices):
                return self.element(tensor, tuple(self.index(i, env) for i in indices))
            case Select(cond, then, other):
                return self.value(then if self.value(cond, env) else other, env)
            case Cast(arg, dtype):
                x = self.value(arg, env)
                return _typed(math.trunc(x) if arg.dtype.is_float and dtype.is_integer else x, dtype)
            case Apply(op, args, dtype):
                return _typed(_FUNCTIONS[op](*(self.value(a, env) for a in args)), dtype)


def _typed(x: Any, dtype: DType) -> Any:
    """A number of the declared type; integers wrap and stay Python integers."""
    if dtype.is_bool:
        return bool(x)
    if dtype.is_integer:
        x = int(x) & (2**dtype.bits - 1)
        top = dtype.kind.value == "signed" and x >= 2 ** (dtype.bits - 1)
        return x - 2**dtype.bits if top else x
    return np.float32(dtype.numpy.type(x)) if dtype.bits == 16 else dtype.numpy.type(x)
