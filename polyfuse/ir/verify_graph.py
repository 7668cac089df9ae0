"""The facts that hold in every tensor graph (`ir.tensor_graph`): checked after it is built.

`verify_graph` raises InternalError (PF900) and names the broken fact: a bug of ours, never of a user.
Disjoint pieces and ranges of indices need isl and are proved by `poly.legality.ranges`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from polyfuse.diagnostics import Diagnostics, InternalError
from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import BOOL, I64, DType
from polyfuse.ir.index_expr import IndexExpr, evaluate, sizes, variables
from polyfuse.ir.ops import OPS, PLACED
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.source import Span


class _Broken(Exception):
    def __init__(self, fact: str, span: Span) -> None:
        super().__init__(fact)
        self.fact, self.span = fact, span


def verify_graph(graph: g.TensorGraph) -> None:
    """Raise InternalError if a fact of the module docstring of `ir.tensor_graph` does not hold."""
    try:
        _verify_names(graph)
        _verify_tensors(graph)
        tensors = {t.name: t for t in graph.tensors}
        for s in graph.statements:
            _Statement(graph, s, tensors).verify()
    except _Broken as broken:
        message = f"the tensor graph of '{graph.name}' is broken: {broken.fact}"
        raise InternalError(message, span=broken.span) from None


def _require(holds: bool, fact: str, span: Span) -> None:
    if not holds:
        raise _Broken(fact, span)


def _verify_names(graph: g.TensorGraph) -> None:
    for what, names in (
        ("size", graph.sizes),
        ("tensor", tuple(t.name for t in graph.tensors)),
        ("statement", tuple(s.name for s in graph.statements)),
    ):
        twice = sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else []
        _require(not twice, f"two {what}s are called {twice}", graph.span)
    known = {t.name for t in graph.tensors}
    for name in (*graph.inputs, *graph.outputs):
        _require(name in known, f"'{name}' of the signature is no tensor", graph.span)
    for c in graph.constraints:
        _sizes_known(graph, (c.left, c.right), c.span)
        free = variables(c.left) + variables(c.right)
        _require(not free, f"constraint {c} holds variables", c.span)


def _sizes_known(graph: g.TensorGraph, exprs: Iterable[IndexExpr], span: Span) -> None:
    for e in exprs:
        unknown = [n for n in sizes(e) if n not in graph.sizes]
        _require(not unknown, f"{e} uses unknown sizes {unknown}", span)


def _verify_tensors(graph: g.TensorGraph) -> None:
    written = {s.target for s in graph.statements}
    by_name = {t.name: t for t in graph.tensors}
    for t in graph.tensors:
        _sizes_known(graph, t.shape, t.span)
        _require(not any(variables(e) for e in t.shape), f"the shape of {t.name} holds variables", t.span)
        is_input = t.role in (g.Role.INPUT, g.Role.INOUT)
        _require(
            is_input == (t.name in graph.inputs), f"the role of {t.name} and the signature differ", t.span
        )
        if is_input:
            _require(t.name not in written, f"the input {t.name} is written", t.span)
        else:
            _require(t.name in written, f"nothing writes {t.name}", t.span)
        if t.role is g.Role.OUTPUT:
            _require(
                t.name in graph.outputs or t.alias is not None,
                f"{t.name} is no result of the signature",
                t.span,
            )
        if t.alias is not None:
            entry = by_name.get(t.alias)
            fits = entry is not None and entry.role is g.Role.INOUT and t.role is g.Role.OUTPUT
            _require(fits, f"{t.name} aliases {t.alias}, which is no inout parameter", t.span)
            same = entry is not None and (entry.shape, entry.dtype) == (t.shape, t.dtype)
            _require(same, f"{t.name} and {t.alias} differ in shape or dtype", t.span)
        if t.default is not None:
            _require(is_input and not t.shape, f"{t.name} has a default and is no scalar input", t.span)


class _Statement:
    """Checks one statement: dims, indices, dtypes of its expressions."""

    def __init__(self, graph: g.TensorGraph, s: g.Statement, tensors: dict[str, g.Tensor]) -> None:
        self.graph, self.s, self.tensors = graph, s, tensors
        self.dims = tuple(d.name for d in s.dims)

    def verify(self) -> None:
        s = self.s
        self._require(s.target in self.tensors, f"it writes the unknown tensor {s.target}")
        target = self.tensors[s.target]
        self._dims()
        self._require(len(s.write) == len(target.shape), f"it writes {s.target} with {len(s.write)} indices")
        for i in s.write:
            self._index(i, data_allowed=s.accumulate)
        self._expr(s.expr)
        self._reduction(target)

    def _require(self, holds: bool, fact: str) -> None:
        if not holds:
            raise _Broken(f"statement {self.s.name}: {fact}", self.s.span)

    def _dims(self) -> None:
        seen: set[str] = set()
        reduce_seen = False
        for d in self.s.dims:
            self._require(d.name not in seen, f"two dims are called {d.name}")
            self._require(d.name not in self.graph.sizes, f"the dim {d.name} is called like a size")
            for b in (d.lower, d.upper):
                late = [v for v in variables(b) if v not in seen]
                self._require(not late, f"the range of {d.name} uses {late}, which are not earlier dims")
                _sizes_known(self.graph, (b,), self.s.span)
            self._require(d.reduce or not reduce_seen, "an outer dim follows a reduction dim")
            reduce_seen |= d.reduce
            seen.add(d.name)

    def _reduction(self, target: g.Tensor) -> None:
        s = self.s
        over = s.reduction_dims
        if s.accumulate:
            self._require(s.reduction in ("sum", "max", "min"), f"it accumulates by {s.reduction}")
            self._require(not over, "a scatter has reduction dims")
        elif s.reduction is None:
            self._require(not over, "it has reduction dims and no reduction")
        else:
            self._require(s.reduction in g.REDUCTIONS, f"unknown reduction {s.reduction}")
            self._require(bool(over), f"its {s.reduction} has no reduction dims")
        used = {v for i in s.write if not isinstance(i, g.EXPR_TYPES) for v in variables(i)}
        self._require(s.accumulate or not used & set(over), "it writes by a reduction dim")
        self._require((s.place is None) == (s.reduction not in PLACED), f"{s.reduction} at {s.place}")
        if s.place is not None:
            self._affine(s.place)
            self._require(not set(variables(s.place)) & set(over), "its place depends on a reduction dim")
        if s.reduction in g.ARG_REDUCTIONS:
            self._require(
                len(over) == 1 and target.dtype is I64, f"{s.reduction} needs one dim and gives i64"
            )
        elif s.reduction in ("any", "all"):
            self._require(s.expr.dtype is BOOL and target.dtype is BOOL, f"{s.reduction} works on bool")
        else:
            self._require(s.expr.dtype is target.dtype, f"{s.expr.dtype} is stored in {target.dtype}")
        if s.reduction is not None:
            self._compute(target.dtype)
        if target.dtype.compute is not target.dtype:
            ends = isinstance(s.expr, g.Cast | g.Read)
            self._require(ends, f"a write to {target.dtype} ends neither in a cast nor in a read")

    def _compute(self, dtype: DType) -> None:
        self._require(dtype.compute is dtype, f"arithmetic in {dtype}")

    # --- expressions ---------------------------------------------------------------------------------

    def _index(self, i: g.Index, data_allowed: bool = True) -> None:
        if isinstance(i, g.EXPR_TYPES):
            self._require(data_allowed, "a data index on a left side that is no scatter")
            self._expr(i)
            self._require(i.dtype.is_integer, f"an index of dtype {i.dtype}")
            return
        self._affine(i)

    def _affine(self, i: IndexExpr) -> None:
        unknown = [v for v in variables(i) if v not in self.dims]
        self._require(not unknown, f"{i} uses {unknown}, which are no dims")
        _sizes_known(self.graph, (i,), self.s.span)

    def _expr(self, top: g.Expr) -> None:
        for e in g.walk(top):
            match e:
                case g.Read():
                    self._read(e)
                case g.IndexValue(index, dtype):
                    self._affine(index)
                    self._require(dtype.is_float or dtype.is_integer, f"an index value of dtype {dtype}")
                    self._compute(dtype)
                case g.Apply():
                    self._apply(e)
                case g.Select(cond, then, other, dtype):
                    self._require(cond.dtype is BOOL, "a condition is no bool")
                    self._require(then.dtype is dtype is other.dtype, "the branches of a select differ")
                    self._compute(dtype)
                case g.Cast():
                    pass
                case g.Const(_, dtype):
                    self._compute(dtype)

    def _read(self, e: g.Read) -> None:
        t = self.tensors.get(e.tensor)
        self._require(t is not None, f"it reads the unknown tensor {e.tensor}")
        assert t is not None
        self._require(len(e.indices) == len(t.shape), f"it reads {e.tensor} with {len(e.indices)} indices")
        self._require(e.dtype is t.dtype, f"a read of {e.tensor} has dtype {e.dtype}")
        for i in e.indices:
            if not isinstance(i, g.EXPR_TYPES):
                self._affine(i)
            else:
                self._require(i.dtype.is_integer, f"an index of dtype {i.dtype}")

    def _apply(self, e: g.Apply) -> None:
        row = OPS.get(e.op)
        self._require(row is not None and row.arity == len(e.args), f"{e.op} of {len(e.args)} operands")
        assert row is not None
        kinds = {a.dtype.name for a in e.args}
        self._require(len(kinds) == 1, f"the operands of {e.op} differ: {sorted(kinds)}")
        operand = e.args[0].dtype
        self._compute(operand)
        self._require(row.takes.has(operand), f"{e.op} of {operand}")
        self._require(e.dtype is row.result(operand), f"{e.op} of {operand} gives {e.dtype}")


# --- extents beyond 64 bits -------------------------------------------------------------------------------


LARGEST = (1 << 63) - 1


def report_large(graph: TensorGraph, values: Mapping[str, int], found: Diagnostics) -> None:
    """Report PF424 for the first extent, tensor or range beyond 2^63 - 1, as far as sizes are known."""
    for span, message in (*_tensors(graph, values), *_ranges(graph, values)):
        found.error("PF424", message, span)
        return


def _tensors(graph: TensorGraph, values: Mapping[str, int]) -> Iterator[tuple[Span, str]]:
    for t in graph.tensors:
        shape = [_value(e, values) for e in t.shape]
        for axis, (e, n) in enumerate(zip(t.shape, shape, strict=True)):
            if n is not None and n > LARGEST:
                yield t.span, f"axis {axis} of '{t.name}' has the extent {_named(e, n)}; indices have 64 bits"
        known = [n for n in shape if n is not None]
        if len(known) < len(shape) or (t.role is Role.TEMP and 0 in known):
            continue
        nbytes = math.prod(n for n in known if n > 0) * t.dtype.bytes  # as NumPy counts where one is 0
        if nbytes > LARGEST:
            text = f"'{t.name}' of shape {tuple(known)} would take {nbytes} bytes"
            yield t.span, f"{text}; there are addresses for 2^63"


def _ranges(graph: TensorGraph, values: Mapping[str, int]) -> Iterator[tuple[Span, str]]:
    for s in graph.statements:
        for d in s.dims:
            for e in (d.lower, d.upper):
                n = None if variables(e) else _value(e, values)
                if n is not None and abs(n) > LARGEST:
                    yield (
                        s.span,
                        f"the range of '{d.name}' has the bound {_named(e, n)}; indices have 64 bits",
                    )


def _value(e: IndexExpr, values: Mapping[str, int]) -> int | None:
    """None for sizes that are open and for divisions by zero, which are reported elsewhere."""
    if any(n not in values for n in sizes(e)):
        return None
    try:
        return evaluate(e, values)
    except ZeroDivisionError:
        return None


def _named(e: IndexExpr, value: int) -> str:
    return str(value) if str(e) == str(value) else f"{e} = {value}"
