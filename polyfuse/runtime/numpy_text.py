"""Expressions of a tensor graph as NumPy source text (see `numpy_baseline`).

Every dim of a statement is an axis of its arrays, in one order, the layout.  A read becomes a view whose
axes are the last ones of the layout, with None where it does not vary, so that broadcasting does the
rest: ``x[t, h] - mu[t]`` is ``x - mu[:, None]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from polyfuse.ir.dtypes import QUARTERS
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, variables
from polyfuse.ir.ops import INFIX, OPS, Op, Takes
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    Select,
    TensorGraph,
    children,
    walk,
)
from polyfuse.runtime.arguments import Array
from polyfuse.runtime.interpreter.ops import FLOAT


class Unsupported(Exception):
    """NumPy has no reasonable way to say this."""


@dataclass(frozen=True, slots=True)
class Line:
    """``constant + sum of factors * dims``; `steps` holds the part of it that is known only in a loop."""

    constant: int
    factors: Mapping[str, int]
    steps: str = ""

    def at(self, extra: int) -> str:
        """The constant part plus `extra`, as text."""
        total = self.constant + extra
        if not self.steps:
            return str(total)
        return f"{self.steps}{total:+d}" if total else self.steps


def tensor_name(name: str) -> str:
    """The variable that holds a tensor."""
    return f"t_{name}"


def subscript(parts: Sequence[str]) -> str:
    """``[a, b]``, or nothing for whole axes alone."""
    return f"[{', '.join(parts)}]" if any(p != ":" for p in parts) else ""


@dataclass(frozen=True)
class Text:
    """Writes expressions of one statement. `fixed` maps dims that a loop steps through to their text."""

    graph: TensorGraph
    sizes: Mapping[str, int]
    ranges: Mapping[str, tuple[int, int]]
    layout: tuple[str, ...]
    fixed: Mapping[str, str] = field(default_factory=dict)

    def within(self, layout: Sequence[str]) -> Text:
        """The same with other axes."""
        return replace(self, layout=tuple(layout))

    def used(self, e: Expr) -> tuple[str, ...]:
        """The dims that an expression varies with, in order of the layout."""
        found: set[str] = set()
        for x in walk(e):
            if isinstance(x, IndexValue):
                found.update(variables(x.index))
            elif isinstance(x, Read):
                found.update(v for i in x.indices if not isinstance(i, EXPR_TYPES) for v in variables(i))
        return tuple(d for d in self.layout if d in found)

    def shape(self, dims: Sequence[str]) -> tuple[int, ...]:
        """Extents of some dims."""
        return tuple(max(0, self.ranges[d][1] - self.ranges[d][0]) for d in dims)

    # --- index expressions ---------------------------------------------------------------------------

    def line(self, e: IndexExpr) -> Line | None:
        """An affine index at the known sizes, or None."""
        match e:
            case IConst(value):
                return Line(value, {})
            case ISize(name):
                return Line(self.sizes[name], {})
            case IVar(name):
                return Line(0, {}, self.fixed[name]) if name in self.fixed else Line(0, {name: 1})
            case IBin(op, left, right):
                a, b = self.line(left), self.line(right)
                return None if a is None or b is None else _combine(op, a, b)

    def index(self, e: IndexExpr) -> str:
        """An index as an integer array (or number) of the layout."""
        match e:
            case IConst(value):
                return str(value)
            case ISize(name):
                return str(self.sizes[name])
            case IVar(name):
                return self.fixed.get(name) or self.dim(name)
            case IBin("min" | "max" as op, left, right):
                return f"np.{op}imum({self.index(left)}, {self.index(right)})"
            case IBin(op, left, right):
                return f"({self.index(left)} {op} {self.index(right)})"

    def dim(self, name: str) -> str:
        """The values of a dim along its axis."""
        low, high = self.ranges[name]
        after = len(self.layout) - self.layout.index(name) - 1
        return f"np.arange({low}, {high})" + (f".reshape(-1{', 1' * after})" if after else "")

    # --- reads -----------------------------------------------------------------------------------------

    def read(self, tensor: str, indices: Sequence[Index]) -> str:
        """The elements read, as an array of the layout."""
        shape = self._extents(tensor)
        lines = [None if isinstance(i, EXPR_TYPES) else self.line(i) for i in indices]
        inside = all(x is not None and self._inside(x, n) for x, n in zip(lines, shape, strict=True))
        known = [x for x in lines if x is not None]
        if inside and len(known) == len(lines):
            sliced = self._sliced(tensor, known, shape)
            return sliced if sliced is not None else self._strided(tensor, known)
        rows = self.rows(indices, shape)
        if rows is not None:
            return f"{tensor_name(tensor)}[{', '.join(rows)}]"
        places = [self.place(i, n) for i, n in zip(indices, shape, strict=True)]
        return f"{tensor_name(tensor)}[{', '.join(places)}]"

    def place(self, i: Index, extent: int) -> str:
        """One index of a gather; clipped where a guard keeps it from being used."""
        if isinstance(i, EXPR_TYPES):
            return f"np.clip({self.expr(i)}, 0, {extent - 1})"
        line = self.line(i)
        if line is not None and self._inside(line, extent):
            return self.index(i)
        return f"np.clip({self.index(i)}, 0, {extent - 1})"

    def rows(self, indices: Sequence[Index], shape: Sequence[int]) -> list[str] | None:
        """``table[idx]``: data first, then whole axes in order of the layout; None if it is not like this."""
        first, rest = indices[0] if indices else None, indices[1:]
        if not isinstance(first, EXPR_TYPES):
            return None
        inner = self.used(first)
        names = [i.name for i in rest if isinstance(i, IVar)]
        tail = self.layout[len(self.layout) - len(names) - len(inner) :]
        if len(names) < len(rest) or tail != (*inner, *names):
            return None
        if any(self.ranges.get(n) != (0, e) for n, e in zip(names, shape[1:], strict=True)):
            return None
        return [f"np.clip({self.within(inner).expr(first)}, 0, {shape[0] - 1})"]

    def _extents(self, tensor: str) -> tuple[int, ...]:
        found = [self.line(e) for e in self.graph.tensor(tensor).shape]
        if any(x is None for x in found):
            raise Unsupported(f"the shape of {tensor}")
        return tuple(x.constant for x in found if x is not None)

    def _inside(self, x: Line, extent: int) -> bool:
        if x.steps:
            return True  # proved for the whole range; a loop only steps through it
        ends = [[f * (self.ranges[d][0]), f * (self.ranges[d][1] - 1)] for d, f in x.factors.items()]
        low, high = x.constant + sum(map(min, ends)), x.constant + sum(map(max, ends))
        return low >= 0 and high < extent

    def _sliced(self, tensor: str, lines: Sequence[Line], shape: Sequence[int]) -> str | None:
        """A view by slices, if each axis has at most one dim, each dim one axis, in order of the layout."""
        parts = self.slices(lines, shape)
        order = [self.layout.index(d) for x in lines for d in x.factors]
        if parts is None or len(set(order)) < len(order):
            return None
        text = tensor_name(tensor)
        if order != sorted(order):
            turned = sorted(range(len(order)), key=lambda k: order[k])
            text = f"{text}{subscript(parts)}.transpose({', '.join(map(str, turned))})"
            parts, lines = [":"] * len(order), [Line(0, {self.layout[k]: 1}) for k in sorted(order)]
        spread: list[str] = []
        last: int | None = None
        for part, x in zip(parts, lines, strict=True):
            for d in x.factors:
                at = self.layout.index(d)
                spread += ["None"] * (0 if last is None else at - last - 1)
                last = at
            spread.append(part)
        spread += ["None"] * (0 if last is None else len(self.layout) - last - 1)
        return text + subscript(spread)

    def slices(self, lines: Sequence[Line], shape: Sequence[int]) -> list[str] | None:
        """One slice or number for each axis, or None if an axis has several dims."""
        parts: list[str] = []
        for x, extent in zip(lines, shape, strict=True):
            if not x.factors:
                parts.append(x.at(0))
                continue
            ((d, f),) = list(x.factors.items())[:1]
            low, high = self.ranges[d]
            if len(x.factors) > 1 or (f < 0 and x.steps):
                return None
            start, last = f * low, f * (high - 1)
            if not x.steps and (f, x.constant + start, x.constant + last) == (1, 0, extent - 1):
                parts.append(":")
            elif f > 0:
                parts.append(f"{x.at(start)}:{x.at(last + 1)}" + (f":{f}" if f > 1 else ""))
            else:
                stop = x.constant + last - 1
                parts.append(f"{x.constant + start}:{stop if stop >= 0 else ''}:{f}")
        return parts

    def _strided(self, tensor: str, lines: Sequence[Line]) -> str:
        """A view by strides: diagonals, windows, several dims in one axis."""
        starts, steps = [], []
        for x in lines:
            starts.append(x.at(sum(f * self.ranges[d][0] for d, f in x.factors.items())))
            steps.append(tuple(x.factors.get(d, 0) for d in self.layout))
        first = ", ".join(starts) + ","
        return f"view({tensor_name(tensor)}, ({first}), {self.shape(self.layout)}, {tuple(steps)})"

    # --- expressions -------------------------------------------------------------------------------------

    def expr(self, e: Expr) -> str:
        """The value as an array that broadcasts to the layout."""
        match e:
            case Const(value, dtype):
                return f"{dtype}({_number(value)})"
            case IndexValue(index, dtype):
                text = self.index(index)
                moving = any(v not in self.fixed for v in variables(index))
                return f"{text}.astype({dtype})" if moving else f"{dtype}({text})"
            case Read(tensor, indices):
                return self.read(tensor, indices)
            case Select(cond, then, other):
                return f"np.where({', '.join(map(self.expr, (cond, then, other)))})"
            case Cast(arg, dtype) if dtype in QUARTERS:
                return f"quarter({self.expr(arg)}, {dtype})"
            case Cast(arg, dtype):
                return f"({self.expr(arg)}).astype({dtype})"
            case Apply():
                return self._apply(e)

    def _apply(self, e: Apply) -> str:
        args = [self.expr(a) for a in e.args]
        match e.op, e.args:
            case "pow", (_, Const(value)) if value == 2:
                return f"np.square({args[0]})"
            case _:
                return numpy_text(OPS[e.op]).format(*args)


def numpy_text(o: Op) -> str:
    """How NumPy writes an operation: {} for each operand."""
    if o.baseline:
        return o.baseline
    if o.name in INFIX and o.takes is not Takes.BOOLS:
        return f"({{}} {o.sign} {{}})"
    name = f"np.{o.numpy}" if o.numpy else o.name
    return f"{name}({', '.join(['{}'] * o.arity)})"


def _number(value: float | int | bool) -> str:
    return repr(value) if abs(value) < float("inf") else f'float("{value}")'


def _combine(op: str, a: Line, b: Line) -> Line | None:
    match op:
        case "+" | "-":
            if (a.steps and b.steps) or (op == "-" and b.steps):
                return None
            sign = 1 if op == "+" else -1
            names = dict.fromkeys((*a.factors, *b.factors))
            factors = {n: a.factors.get(n, 0) + sign * b.factors.get(n, 0) for n in names}
            kept = {n: f for n, f in factors.items() if f}
            return Line(a.constant + sign * b.constant, kept, a.steps or b.steps)
        case "*":
            a, b = (b, a) if b.factors or b.steps else (a, b)
            if a.factors or a.steps:
                a, b = b, a
            if a.factors or a.steps or b.steps:
                return None
            return Line(a.constant * b.constant, {n: f * a.constant for n, f in b.factors.items()})
        case "//" | "%" if not (a.factors or b.factors or a.steps or b.steps) and b.constant:
            return Line(a.constant // b.constant if op == "//" else a.constant % b.constant, {})
        case _:
            return None


def factors_of(e: Expr) -> list[Expr] | None:
    """The reads that a product multiplies (casts of reads count as reads), or None."""
    if isinstance(e, Apply) and e.op == "mul":
        left, right = factors_of(e.args[0]), factors_of(e.args[1])
        return None if left is None or right is None else [*left, *right]
    inner = e
    while isinstance(inner, Cast):
        (inner,) = children(inner)
    plain = isinstance(inner, Read) and not any(isinstance(i, EXPR_TYPES) for i in inner.indices)
    return [e] if plain and inner.dtype.is_float else None


# --- helpers of the generated text ----------------------------------------------------------------------


def helpers() -> dict[str, Any]:
    """The names that generated text uses."""
    mine = [o for o in OPS.values() if (o.called or o.gives) and not (o.numpy or o.baseline)]
    own: dict[str, Any] = {o.name: FLOAT[o.name] for o in mine}
    own |= {o.name: found for o in OPS.values() if (found := _from_scipy(o)) is not None}
    return {
        "np": np,
        "quarter": _quarter,
        "view": _view,
        "matmul": _matmul,
        "placed": _placed,
        "segments": _segments,
        "last": _last,
        **own,
        "sigmoid": _sigmoid,
    }


def _view(x: Array, start: tuple[int, ...], shape: tuple[int, ...], steps: Sequence[Sequence[int]]) -> Array:
    at = x[tuple(slice(s, None) for s in start)]
    strides = [sum(f[k] * s for f, s in zip(steps, x.strides, strict=True)) for k in range(len(shape))]
    return np.lib.stride_tricks.as_strided(at, shape, strides, writeable=False)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _placed(x: Array, place: Array | int, axis: int, wide: tuple[int, ...], falling: bool) -> Array:
    """The position at a place of the order along an axis, NaN last, or first if values fall."""
    x = np.broadcast_to(x, np.broadcast_shapes(np.shape(x), wide))
    if falling:
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    at = np.reshape(place, (1,) * (x.ndim - np.ndim(place)) + np.shape(place))
    return np.take_along_axis(order, np.asarray(at), axis).squeeze(axis)


def _segments(
    ufunc: np.ufunc, terms: Array, first: Array, last: Array, low: int, high: int, none: Any
) -> Array:
    """Totals along the last axis, which is ``low..high``, from each first to each last place."""
    begin, end = (np.clip(x, low, high).ravel() - low for x in (first, last))
    result = np.full((*terms.shape[:-1], begin.size), none)
    full = begin < end
    if full.any():
        padded = np.concatenate([terms, np.full((*terms.shape[:-1], 1), none, terms.dtype)], -1)
        pairs = np.stack([begin[full], end[full]], -1).ravel()
        result[..., full] = ufunc.reduceat(padded, pairs, -1, result.dtype)[..., ::2]
    return result.reshape(*terms.shape[:-1], *first.shape)


def _last(pointers: Array, elements: Array) -> Array:
    """The last place of a pointer that is at most an element, -1 where there is none."""
    least = np.minimum.accumulate(pointers[::-1])[::-1]
    return np.searchsorted(least, elements, "right") - 1


def _quarter(x: Array, kind: type) -> Array:
    """The nearest of all numbers of 8 bits, of two the one with the even code; the largest at most."""
    with np.errstate(invalid="ignore"):
        known = np.arange(128, dtype=np.uint8).view(kind).astype(np.float64)
    known = known[: int(np.isfinite(known).sum())]
    size = np.minimum(np.abs(np.asarray(x, np.float64)), known[-1])
    middle = (known[1:] + known[:-1]) / 2
    code = np.searchsorted(middle, size)
    code += (code % 2 == 1) & (size == middle[np.minimum(code, len(middle) - 1)])
    code = np.where(np.isnan(size), 127, code).astype(np.uint8) | np.signbit(x).astype(np.uint8) << 7
    return np.asarray(code).view(kind)


def _matmul(a: Array, b: Array, batch: int, free: int, inner: int) -> Array:
    """Axes of `a`: batch, free, inner; of `b`: batch, inner, free."""
    left = a.reshape(*a.shape[:batch], *_flat(a, batch, batch + free), *_flat(a, batch + free, a.ndim))
    right = b.reshape(*b.shape[:batch], *_flat(b, batch, batch + inner), *_flat(b, batch + inner, b.ndim))
    shape = (*a.shape[: batch + free], *b.shape[batch + inner :])
    return np.asarray((left @ right).reshape(shape))


def _flat(x: Array, start: int, stop: int) -> tuple[int, ...]:
    return (int(np.prod(x.shape[start:stop], dtype=int)),)


def _from_scipy(o: Op) -> Callable[..., Array] | None:
    """SciPy's function, of one that NumPy has none for, where SciPy is installed."""
    if not o.scipy:
        return None
    try:
        from scipy import special
    except ImportError:
        return None
    function = getattr(special, o.scipy)
    return lambda *args: np.asarray(function(*args))
