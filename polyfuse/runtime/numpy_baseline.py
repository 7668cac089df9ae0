"""The program that a NumPy user would write for an operator: what `polyfuse run` compares speed with.

`source(graph, sizes)` is a Python function, one statement of the operator a line: ufuncs and
broadcasting, `@` or einsum for contractions, views for slices and windows, `np.add.at` for scatters,
`np.add.accumulate` for prefix sums, `np.add.reduceat` for ranges that data bounds, `np.searchsorted` for
rows of elements, and a Python loop for any other recurrence.  It computes in the operator's own dtypes.
`Unsupported` is raised for what has no reasonable NumPy form.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from polyfuse.ir.data_ranges import conjuncts, test_of, tests_of
from polyfuse.ir.dtypes import ALL, DType
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IndexExpr, IVar, variables
from polyfuse.ir.ops import COMBINES, OPS
from polyfuse.ir.tensor_graph import (
    ARG_REDUCTIONS,
    EXPR_TYPES,
    Apply,
    Const,
    Expr,
    IndexValue,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
    reads,
    statement_reads,
)
from polyfuse.runtime.arguments import Array
from polyfuse.runtime.inputs import dim_ranges, extents
from polyfuse.runtime.numpy_text import Line, Text, Unsupported, factors_of, helpers, subscript, tensor_name

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def baseline(graph: TensorGraph, sizes: Mapping[str, int]) -> Callable[..., dict[str, Array]]:
    """A function of the inputs by name that returns all results by name. Raises Unsupported."""
    space: dict[str, Any] = helpers()
    space.update({t.name: t.numpy.type for t in ALL})
    exec(compile(source(graph, sizes), "<numpy>", "exec"), space)
    run = space["run"]

    def function(inputs: Mapping[str, Array]) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            found: dict[str, Array] = run(*(inputs[n] for n in graph.inputs))
            return found

    return function


class NumpyKernels:
    """An operator as NumPy computes it, at known sizes; runs like kernels.

    Raises Unsupported where there is no such form."""

    def __init__(self, graph: TensorGraph, sizes: Mapping[str, int]) -> None:
        self._inputs = graph.inputs
        self._run = baseline(graph, sizes)

    def at(self, sizes: Mapping[str, int]) -> NumpyKernels:
        """There are no open sizes."""
        return self

    def run(self, arrays: Mapping[str, Array]) -> None:
        """Run on the given arrays: name -> memory, for every input and output.

        Raises Unsupported, with nothing written, where NumPy does not have what the operator says."""
        try:
            found = self._run({n: np.asarray(arrays[n]) for n in self._inputs})
        except (ArithmeticError, LookupError, NameError, TypeError, ValueError) as error:
            raise Unsupported(str(error)) from error
        if any(np.shape(values) != arrays[name].shape for name, values in found.items()):
            raise Unsupported("results of other shapes")
        for name, values in found.items():
            arrays[name][...] = values

    def bind(self, arrays: Mapping[str, Array]) -> Callable[[], None]:
        """A call on fixed memory."""
        return lambda: self.run(arrays)


def source(graph: TensorGraph, sizes: Mapping[str, int]) -> str:
    """The text of `run(inputs...) -> {result: array}`."""
    lines = _Writer(graph, sizes).lines()
    results = ", ".join(f"{t.name!r}: {tensor_name(t.name)}" for t in graph.tensors if t.role is Role.OUTPUT)
    head = f"def run({', '.join(map(tensor_name, graph.inputs))}):"
    return "\n".join([head, *(f"    {x}" for x in lines), f"    return {{{results}}}"]) + "\n"


# --- statements -------------------------------------------------------------------------------------------


@dataclass
class _Writer:
    graph: TensorGraph
    sizes: Mapping[str, int]
    allocated: set[str] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def lines(self) -> list[str]:
        return [line for group, cyclic in self._groups() for line in self._group(group, cyclic)]

    def _group(self, group: list[Statement], cyclic: bool) -> list[str]:
        if not cyclic:
            return self.statement(group[0], {})
        lines = [line for s in group for line in self._allocate(s.target)]
        prefix = self._prefix(group[0]) if len(group) == 1 else None
        return [*lines, *(prefix or self._loop(group))]

    def statement(self, s: Statement, fixed: Mapping[str, str]) -> list[str]:
        """The lines of one statement; `fixed` dims have their value from a loop around it."""
        ranges = dim_ranges(s, self.sizes)
        if any(ranges[d.name][1] <= ranges[d.name][0] for d in s.dims if s.accumulate or not d.reduce):
            return self._allocate(s.target)
        text = Text(self.graph, self.sizes, ranges, self._layout(s, fixed), fixed)
        if s.accumulate:
            return [*self._allocate(s.target), self._scatter(s, text)]
        mask = self._mask(s, text)
        value, dims = self._value(s, text, mask)
        outer = text.within([d for d in text.layout if d not in s.reduction_dims])
        lines = [text.line(i) for i in s.write if not isinstance(i, EXPR_TYPES)]
        known = [x for x in lines if x is not None]
        shape = extents(self.graph.tensor(s.target).shape, self.sizes)
        parts = outer.slices(known, shape) if len(known) == len(s.write) else None
        masked = mask if mask and s.reduction is None else None
        if parts is None:
            if mask:
                raise Unsupported(f"the left side of {s.name}")
            places = ", ".join(outer.index(i) for i in s.write if not isinstance(i, EXPR_TYPES))
            return [*self._allocate(s.target), f"{tensor_name(s.target)}[{places}] = {value}"]
        if self._is_whole(s, parts) and not masked and not fixed:
            if isinstance(s.expr, Read) and s.reduction is None:
                value = f"np.array({value})"  # a result of its own, not a view of an input
            whole = dims == outer.layout
            spread = value if whole else f"np.array(np.broadcast_to({value}, {outer.shape(outer.layout)}))"
            self.allocated.add(s.target)
            return [f"{tensor_name(s.target)} = {spread}"]
        place = f"{tensor_name(s.target)}{subscript(parts) or '[...]'}"
        write = f"np.copyto({place}, {value}, where={masked})" if masked else f"{place} = {value}"
        return [*self._allocate(s.target), write]

    def _layout(self, s: Statement, fixed: Mapping[str, str]) -> tuple[str, ...]:
        """Axes: as the left side has them (scatters: data first), then the other dims, reduced ones last."""
        found: list[str] = []
        for i in s.write:
            if isinstance(i, EXPR_TYPES):
                inner = Text(self.graph, self.sizes, {}, tuple(d.name for d in s.dims)).used(i)
                found = [*inner, *(d for d in found if d not in inner)]
            else:
                found += [v for v in variables(i) if v not in found]
        names = dict.fromkeys([*found, *(d.name for d in s.dims)])
        return tuple(n for n in names if n not in fixed)

    def _is_whole(self, s: Statement, parts: Sequence[str]) -> bool:
        writers = [w for w in self._writers(s.target) if not w.accumulate]
        return len(writers) == 1 and all(p == ":" for p in parts) and s.target not in self.allocated

    def _allocate(self, tensor: str) -> list[str]:
        if tensor in self.allocated:
            return []
        self.allocated.add(tensor)
        t = self.graph.tensor(tensor)
        name, shape = tensor_name(tensor), extents(t.shape, self.sizes)
        if t.alias is not None:
            return [f"{name} = {tensor_name(t.alias)}.copy()"]
        scatters = [s for s in self._writers(tensor) if s.accumulate]
        if scatters:  # they start from this where no other statement says from what
            start = _neutral(scatters[0].reduction or "sum", t.dtype)
            return [f"{name} = np.full({shape}, {start}, {t.dtype})"]
        return [f"{name} = np.empty({shape}, {t.dtype})"]

    def _mask(self, s: Statement, text: Text) -> str | None:
        """Where a box around the domain is inside it; None if everywhere."""
        tests = []
        for d in s.dims:
            if variables(d.lower) or variables(d.upper):
                here = text.index(IVar(d.name))
                tests += [f"({here} >= {text.index(d.lower)})", f"({here} < {text.index(d.upper)})"]
        return " & ".join(tests) or None

    def _value(self, s: Statement, text: Text, mask: str | None) -> tuple[str, tuple[str, ...]]:
        """The right side, reduced, and the dims that it has axes for."""
        if s.reduction is None:
            return text.expr(s.expr), text.used(s.expr)
        over = s.reduction_dims
        product = None if mask or s.reduction != "sum" else self._product(s, text)
        found = product or self._accumulated(s, text) or self._last(s, text) or self._segments(s, text)
        if found is not None:
            return found
        layout = text.layout
        value = text.expr(s.expr)
        if text.used(s.expr) != layout:
            value = f"np.broadcast_to({value}, {text.shape(layout)})"
        axes = tuple(layout.index(d) for d in over)
        outer = tuple(d for d in layout if d not in over)
        if s.reduction in ARG_REDUCTIONS:
            if mask:
                raise Unsupported(f"{s.reduction} over a range that depends on another")
            low = text.ranges[over[0]][0]
            if s.place is not None:
                return self._placed(s, s.place, text) + (f" + {low}" if low else ""), outer
            return f"np.{s.reduction}({value}, axis={axes[0]})" + (f" + {low}" if low else ""), outer
        dtype = self.graph.tensor(s.target).dtype
        options = f", dtype={dtype}" if s.reduction in ("sum", "prod") else ""
        if mask:
            options += f", where={mask}"
        if (mask or 0 in text.shape(over)) and s.reduction not in ("any", "all"):
            options += f", initial={dtype}({_neutral(s.reduction, dtype)})"
        return f"np.{s.reduction}({value}, axis={axes}{options})", outer

    def _accumulated(self, s: Statement, text: Text) -> tuple[str, tuple[str, ...]] | None:
        """``c[t] = sum[s in 0..t + 1](e)``, or one from t on, by ``op.accumulate``."""
        d = s.dims[-1]
        low, high = text.line(d.lower), text.line(d.upper)
        if len(s.reduction_dims) != 1 or s.reduction not in COMBINES or low is None or high is None:
            return None
        moving, still = (high, low) if high.factors else (low, high)
        if still.factors or still.steps or moving.steps or tuple(moving.factors.values()) != (1,):
            return None
        (t,) = moving.factors
        if t in text.used(s.expr):
            return None
        first, last = (text.ranges[t][0] + moving.constant, text.ranges[t][1] - 1 + moving.constant)
        down = moving is low
        if (last >= still.constant) if down else (first <= still.constant):
            return None  # one of the ranges is empty
        inner = (*(x for x in text.layout if x not in (t, d.name)), d.name)
        begin = first if down else still.constant
        ranges = {**text.ranges, d.name: (begin, still.constant if down else last)}
        terms = replace(text, ranges=ranges, layout=inner)
        value = f"np.broadcast_to({terms.expr(s.expr)}, {terms.shape(inner)})" + (
            "[..., ::-1]" if down else ""
        )
        kind = f", dtype={self.graph.tensor(s.target).dtype}" if s.reduction in ("sum", "prod") else ""
        total = f"np.{OPS[COMBINES[s.reduction]].numpy}.accumulate({value}, axis=-1{kind})"
        total += f"[..., ::-1][..., :{last + 1 - first}]" if down else f"[..., {first - 1 - begin}:]"
        outer = tuple(x for x in text.layout if x != d.name)
        at = outer.index(t)
        return (total if at == len(outer) - 1 else f"np.moveaxis({total}, -1, {at})"), outer

    def _segments(self, s: Statement, text: Text) -> tuple[str, tuple[str, ...]] | None:
        """``y[n] = sum[e in p[n]..p[n + 1]](term)`` by ``np.add.reduceat``, if no term depends on `n`."""
        over, op = s.reduction_dims, s.reduction or ""
        if len(over) != 1 or op not in COMBINES or not isinstance(s.expr, Select) or self._mask(s, text):
            return None
        tests = tests_of(op, s.expr, over[0])
        outer = tuple(d for d in text.layout if d not in over)
        of_ends = tuple(d for d in outer if any(d in text.used(t.data) for t in tests))
        of_terms = tuple(d for d in outer if d not in of_ends)
        term = s.expr.then
        for c in conjuncts(s.expr.cond):
            if test_of(c, over[0]) not in tests:
                term = Select(c, term, s.expr.other, term.dtype)
        if not of_ends or set(text.used(term)) & set(of_ends):
            return None
        terms, ends = text.within([*of_terms, *over]), text.within(of_ends)
        low, high = text.ranges[over[0]]
        first = _of_all("maximum", [ends.expr(t.data) for t in tests if t.lower], low)
        last = _of_all("minimum", [ends.expr(t.data) for t in tests if not t.lower], high)
        dtype = self.graph.tensor(s.target).dtype
        none = f"{dtype}({_neutral(op, dtype)})"
        value = f"np.broadcast_to({terms.expr(term)}, {terms.shape(terms.layout)})"
        places = ", ".join(f"np.broadcast_to({x}, {ends.shape(of_ends)})" for x in (first, last))
        found = f"segments(np.{OPS[COMBINES[op]].numpy}, {value}, {places}, {low}, {high}, {none})"
        turn = tuple((*of_terms, *of_ends).index(d) for d in outer)
        return (found if turn == tuple(sorted(turn)) else f"{found}.transpose{turn}"), outer

    def _last(self, s: Statement, text: Text) -> tuple[str, tuple[str, ...]] | None:
        """``r[e] = max[n](n if p[n] <= e else -1)``, the last such `n`, by ``np.searchsorted``."""
        over = s.reduction_dims
        match s.expr:
            case Select(cond, IndexValue(IVar(n)), Const(-1)) if s.reduction == "max" and over == (n,):
                pass
            case _:
                return None
        found = [(d, t) for d in text.used(cond) if (t := test_of(cond, d)) is not None]
        if len(found) != 1 or not found[0][1].lower or text.ranges[n][0] or not text.shape((n,))[0]:
            return None
        ((d, test),) = found
        if text.used(test.data) != (n,) or self._mask(s, text):
            return None
        dtype = self.graph.tensor(s.target).dtype
        return f"last({text.within((n,)).expr(test.data)}, {text.within((d,)).dim(d)}).astype({dtype})", (d,)

    def _placed(self, s: Statement, place: IndexExpr, text: Text) -> str:
        """What stands at a place of the order."""
        layout, (over,) = text.layout, s.reduction_dims
        wide = tuple(n if d == over else 1 for d, n in zip(layout, text.shape(layout), strict=True))
        falling = s.reduction == "arglargest"
        found = f"placed({text.expr(s.expr)}, {text.index(place)}, {layout.index(over)}, {wide}, {falling})"
        return f"np.broadcast_to({found}, {text.shape([d for d in layout if d != over])})"

    def _product(self, s: Statement, text: Text) -> tuple[str, tuple[str, ...]] | None:
        """A contraction as a matrix product, or by einsum."""
        factors = factors_of(s.expr)
        if factors is None or len(factors) < 2:
            return None
        used = [text.used(f) for f in factors]
        if set(itertools.chain(*used)) != set(text.layout):
            return None
        over = s.reduction_dims
        outer = tuple(d for d in text.layout if d not in over)
        if len(factors) == 2 and set(over) <= set(used[0]) & set(used[1]):
            a, b = used
            batch = [d for d in outer if d in a and d in b]
            left, right = [d for d in outer if d not in b], [d for d in outer if d not in a]
            if left or right:
                x = text.within([*batch, *left, *over]).expr(factors[0])
                y = text.within([*batch, *over, *right]).expr(factors[1])
                product = f"matmul({x}, {y}, {len(batch)}, {len(left)}, {len(over)})"
                got = [*batch, *left, *right]
                turn = tuple(got.index(d) for d in outer)
                return (product if turn == tuple(sorted(turn)) else f"{product}.transpose{turn}"), outer
        letter = {d: _LETTERS[k] for k, d in enumerate(text.layout[: len(_LETTERS)])}
        if len(letter) < len(text.layout):
            return None
        inputs = ",".join("".join(letter[d] for d in u) for u in used)
        operands = ", ".join(text.within(u).expr(f) for u, f in zip(used, factors, strict=True))
        path = ", optimize=True" if len(factors) > 2 else ""
        return f"np.einsum('{inputs}->{''.join(letter[d] for d in outer)}', {operands}{path})", outer

    def _scatter(self, s: Statement, text: Text) -> str:
        if self._mask(s, text):
            raise Unsupported(f"the scatter {s.name} over a range that depends on another")
        shape = extents(self.graph.tensor(s.target).shape, self.sizes)
        rows = text.rows(s.write, shape)
        whole = rows is not None and isinstance(s.write[0], EXPR_TYPES)
        if whole and len(text.used(s.write[0])) + len(s.write) - 1 != len(text.layout):  # type: ignore[arg-type]
            whole = False
        places = rows if whole and rows else [text.place(i, n) for i, n in zip(s.write, shape, strict=True)]
        value = f"np.broadcast_to({text.expr(s.expr)}, {text.shape(text.layout)})"
        ufunc = f"np.{OPS[COMBINES[s.reduction or 'sum']].numpy}"
        index = places[0] if whole else f"({', '.join(places)},)"
        return f"{ufunc}.at({tensor_name(s.target)}, {index}, {value})"

    # --- order and recurrences -----------------------------------------------------------------------------

    def _groups(self) -> Iterator[tuple[list[Statement], bool]]:
        """Statements that need each other, together; those needed first, first."""
        needs: dict[str, set[str]] = {}
        for s in self.graph.statements:
            read = {r.tensor for r in statement_reads(s)}
            needs[s.name] = {w.name for w in self.graph.statements if w.target in read}
            if s.accumulate:
                needs[s.name] |= {w.name for w in self._writers(s.target) if not w.accumulate}
        reach = _closure(needs)
        left = list(self.graph.statements)
        while left:
            names = {s.name for s in left}
            first = next(s for s in left if all(s.name in reach[n] for n in reach[s.name] & names))
            both = reach[first.name]
            group = [s for s in left if s is first or (s.name in both and first.name in reach[s.name])]
            yield group, first.name in both
            left = [s for s in left if s not in group]

    def _writers(self, tensor: str) -> list[Statement]:
        return [s for s in self.graph.statements if s.target == tensor]

    def _prefix(self, s: Statement) -> list[str] | None:
        """``y[t] = y[t-1] op e`` by ``op.accumulate``."""
        e = s.expr
        if s.reduction or not (isinstance(e, Apply) and e.op in ("add", "mul", "max", "min")):
            return None
        for own, other in (e.args, e.args[::-1]):
            step = _step_of(s, own)
            if step is None or any(r.tensor == s.target for r in reads(other)):
                continue
            axis, down = step
            ranges = dim_ranges(s, self.sizes)
            text = Text(self.graph, self.sizes, ranges, self._layout(s, {}))
            shape = extents(self.graph.tensor(s.target).shape, self.sizes)
            lines = [x for i in s.write if not isinstance(i, EXPR_TYPES) and (x := text.line(i))]
            parts = text.slices(lines, shape)
            if parts is None or self._mask(s, text):
                return None
            name, low, high = tensor_name(s.target), *_range_of(lines[axis], ranges)
            run = f"{high}:{low - 1 if low else ''}:-1" if down else f"{low - 1}:{high}"
            through = subscript([*parts[:axis], run, *parts[axis + 1 :]])
            ufunc = f"np.{OPS[e.op].numpy}"
            return [
                f"{name}{subscript(parts)} = {text.expr(other)}",
                f"{ufunc}.accumulate({name}{through}, axis={axis}, out={name}{through})",
            ]
        return None

    def _loop(self, group: list[Statement]) -> list[str]:
        """A Python loop along one axis of each tensor of a recurrence."""
        tensors = list(dict.fromkeys(s.target for s in group))
        ranks = [range(len(self.graph.tensor(t).shape)) for t in tensors]
        for choice in itertools.islice(itertools.product(*ranks), 256):
            axes = dict(zip(tensors, choice, strict=True))
            for down in (False, True):
                order = self._stepped(group, axes, down)
                if order is not None:
                    return self._loop_text(order, axes, down)
        raise Unsupported(f"the recurrence of {', '.join(tensors)} has no single axis")

    def _stepped(self, group: list[Statement], axes: Mapping[str, int], down: bool) -> list[Statement] | None:
        """The order of the statements within a step, or None if the axes do not carry the recurrence."""
        same: dict[str, set[str]] = {s.name: set() for s in group}
        for s in group:
            text = Text(self.graph, self.sizes, dim_ranges(s, self.sizes), self._layout(s, {}))
            here = _line(text, s.write, axes[s.target])
            if here is None or (here.factors and tuple(here.factors.values()) != (1,)):
                return None
            if any(d in s.reduction_dims for d in here.factors):
                return None
            for r in statement_reads(s):
                if r.tensor not in axes:
                    continue
                there = _line(text, r.indices, axes[r.tensor])
                if there is None or dict(there.factors) != dict(here.factors):
                    return None
                distance = there.constant - here.constant
                if distance == 0:
                    same[s.name] |= {w.name for w in group if w.target == r.tensor}
                elif (distance > 0) != down:
                    return None
        return _sorted(group, same)

    def _loop_text(self, order: list[Statement], axes: Mapping[str, int], down: bool) -> list[str]:
        n = f"n{next(self.numbers)}"
        body: list[str] = []
        first, last = [], []
        for s in order:
            ranges = dim_ranges(s, self.sizes)
            text = Text(self.graph, self.sizes, ranges, self._layout(s, {}))
            here = _line(text, s.write, axes[s.target])
            assert here is not None
            low, high = _range_of(here, ranges)
            first.append(low)
            last.append(high)
            fixed = dict.fromkeys(here.factors, f"({n}{-here.constant:+d})" if here.constant else n)
            if any(v in fixed for d in s.dims for e in (d.lower, d.upper) for v in variables(e)):
                raise Unsupported(f"a range of {s.name} depends on the step of the recurrence")
            now = self.statement(s, fixed) or ["pass"]
            body += [f"    if {low} <= {n} < {high}:", *(f"        {x}" for x in now)]
        steps = f"range({min(first)}, {max(last)})"
        return [f"for {n} in {f'reversed({steps})' if down else steps}:", *body]


def _neutral(op: str, dtype: DType) -> str:
    """The neutral element of a reduction, as text."""
    value = identity(op, dtype)
    return f'float("{value}")' if dtype.is_float else repr(value)


def _of_all(ufunc: str, ends: Sequence[str], whole: int) -> str:
    """The first or last of the ends; that of the whole range where there are none."""
    found = ends[0] if ends else str(whole)
    for x in ends[1:]:
        found = f"np.{ufunc}({found}, {x})"
    return found


def _closure(needs: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """All that a statement needs, through others too."""
    reach: dict[str, set[str]] = {}
    for name in needs:
        found: set[str] = set()
        work = list(needs[name])
        while work:
            at = work.pop()
            if at not in found:
                found.add(at)
                work += needs[at]
        reach[name] = found
    return reach


def _sorted(group: list[Statement], needs: Mapping[str, set[str]]) -> list[Statement] | None:
    left, done = list(group), list[Statement]()
    while left:
        ready = [s for s in left if not needs[s.name] & {x.name for x in left}]
        if not ready:
            return None
        done.append(ready[0])
        left.remove(ready[0])
    return done


def _line(text: Text, indices: Sequence[object], axis: int) -> Line | None:
    i = indices[axis]
    return None if isinstance(i, EXPR_TYPES) else text.line(i)  # type: ignore[arg-type]


def _range_of(x: Line, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Half-open range of an index with at most one dim, of factor 1."""
    for d in x.factors:
        return ranges[d][0] + x.constant, ranges[d][1] + x.constant
    return x.constant, x.constant + 1


def _step_of(s: Statement, e: Expr) -> tuple[int, bool] | None:
    """(axis, downwards) if `e` is the element before the one written, along one axis."""
    if not isinstance(e, Read) or e.tensor != s.target:
        return None
    moved = []
    for axis, (w, r) in enumerate(zip(s.write, e.indices, strict=True)):
        if isinstance(w, EXPR_TYPES) or isinstance(r, EXPR_TYPES) or not isinstance(w, IVar):
            return None
        if r != w:
            moved.append((axis, -1 if r == w - 1 else 1 if r == w + 1 else 0))
    return (moved[0][0], moved[0][1] == 1) if len(moved) == 1 and moved[0][1] else None
