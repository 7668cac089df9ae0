"""Layouts of calls whose sizes are parameters of the kernels, for the launcher (``open_layouts.h``).

A `LaunchLayout` of one call is the template, what does not depend on sizes.  `open_template` adds what
does, as expressions that the launcher computes at each call: extents of arguments and results, temporaries,
chunks.  Sizes are read off the extents of arguments.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, product
from polyfuse.ir.kernel import PARALLEL_WORK
from polyfuse.ir.launch_plan import Kind
from polyfuse.ir.linear import linear
from polyfuse.ir.tensor_graph import Constraint
from polyfuse.runtime.arguments import Array
from polyfuse.runtime.cpu.executable import (
    CHUNK_INSTANCES,
    CHUNKS_PER_THREAD,
    FEWEST_CHUNKS,
    FEWEST_IN_SERIES,
    CpuExecutable,
)
from polyfuse.runtime.cpu.memory import Arena
from polyfuse.runtime.cpu.pool import Pool

# What the launcher has room for (`open_layouts.h`).
_MOST = {
    "sizes": 32,
    "arguments": 32,
    "results": 16,
    "spaces": 64,
    "steps": 64,
    "numbers": 128,
    "extents": 256,
}
_DEEPEST = 32
_OPERATIONS = ("", "", "+", "-", "*", "//", "%", "min", "max")
_CONDITIONS = ("==", "!=", "<", "<=", ">", ">=")


class _Operation(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int64), ("value", ctypes.c_int64))


class Expression(ctypes.Structure):
    """As launchers have it (`expressions.h`)."""

    _fields_ = (("operations", ctypes.c_void_p), ("count", ctypes.c_int64))


class Condition(ctypes.Structure):
    """Of two expressions."""

    _fields_ = (("op", ctypes.c_int64), ("left", Expression), ("right", Expression))


class Source(ctypes.Structure):
    """Where a size is read."""

    _fields_ = tuple((n, ctypes.c_int64) for n in ("argument", "axis", "factor", "offset"))


class _OpenArgument(ctypes.Structure):
    _fields_ = (("extents", ctypes.c_void_p), ("order", ctypes.c_void_p), ("strided", ctypes.c_int64))


class _OpenResult(ctypes.Structure):
    _fields_ = (("extents", ctypes.c_void_p), ("itemsize", ctypes.c_int64))


class _OpenSpace(ctypes.Structure):
    _fields_ = (
        ("place", ctypes.c_int64),
        ("elements", Expression),
        ("itemsize", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("last", ctypes.c_int64),
    )


class _Stride(ctypes.Structure):
    _fields_ = (("argument", ctypes.c_int64), ("axis", ctypes.c_int64))


class _OpenStep(ctypes.Structure):
    _fields_ = (
        ("count", Expression),
        ("instances", Expression),
        ("work", Expression),
        ("together", ctypes.c_void_p),
        ("ntogether", ctypes.c_int64),
        ("least", ctypes.c_int64),
        ("parallel", ctypes.c_int64),
    )


_COUNTS = ("nsizes", "nconditions", "nnumbers", "nstrides")
_TABLES = (
    "sources", "conditions", "arguments", "results", "spaces", "steps", "numbers", "strides", "allocate",
)  # fmt: skip
_FIGURES = (
    "threads", "pool_threads", "chunks", "most_chunks", "fewest_chunks", "fewest_in_series",
    "chunk_instances", "parallel_work",
)  # fmt: skip


class _Open(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_int64) for n in _COUNTS),
        *((n, ctypes.c_void_p) for n in _TABLES),
        *((n, ctypes.c_int64) for n in _FIGURES),
    )


@dataclass(frozen=True)
class OpenSizes:
    """What calls with open sizes have to fulfil.

    shapes: of parameters and results, as callers have them.  conditions: of the sizes.  given: sizes that the
    caller gives by name.  rank: those of a smaller one are looked up first.
    """

    shapes: Mapping[str, tuple[IndexExpr, ...]]
    conditions: Sequence[Constraint]
    given: Mapping[str, int]
    rank: int


class NotInC(Exception):
    """The launcher cannot compute what depends on sizes."""


@dataclass(frozen=True)
class OpenTemplate:
    """The part of a layout that depends on sizes: its structure, and the memory that this points to."""

    structure: _Open
    parts: list[object]
    rank: int


def open_template(
    executable: CpuExecutable,
    names: Sequence[str],
    args: Sequence[Any],
    results: Sequence[str],
    orders: Mapping[str, tuple[int, ...]],
    open_sizes: OpenSizes,
) -> OpenTemplate | None:
    """What depends on sizes of a call like this one; parameters as in `fast_path.ShortWay.learn`. None where
    the launcher cannot compute it."""
    try:
        return _Template(executable, open_sizes).made(names, args, results, orders)
    except NotInC:
        return None


def allocate(nbytes: int) -> Array:
    """A block of memory for the launcher."""
    return Arena.get().block(nbytes)


class Expressions:
    """Expressions of sizes as launchers compute them; `places` are those of the sizes, by name."""

    def __init__(self, sizes: Sequence[str]) -> None:
        self.places = {n: k for k, n in enumerate(sizes)}
        self.parts: list[object] = []
        """The memory that structures point to."""

    def sources(self, open_sizes: OpenSizes, arrays: Mapping[str, int]) -> list[Source]:
        """Where each size is read: off an axis whose extent is linear in it alone."""
        found: dict[str, Source] = {}
        for name, k in arrays.items():
            for axis, e in enumerate(open_sizes.shapes[name]):
                form = linear(e)
                if len(form.terms) == 1 and isinstance(size := form.terms[0][0], ISize):
                    source = Source(k, axis, form.terms[0][1], form.constant)
                    plain = form.terms[0][1] == 1 and form.constant == 0
                    if size.name not in found or plain:
                        found[size.name] = source
        found |= {n: Source(-1, 0, 1, v) for n, v in open_sizes.given.items()}
        if not all(n in found for n in self.places):
            raise NotInC
        return [found[n] for n in self.places]

    def condition(self, c: Constraint) -> Condition:
        """A condition of sizes."""
        return Condition(_CONDITIONS.index(c.op), self.expression(c.left), self.expression(c.right))

    def extents(self, shape: Sequence[IndexExpr]) -> int:
        """The address of a shape."""
        return self.table(Expression, [self.expression(e) for e in shape])

    def expression(self, e: IndexExpr) -> Expression:
        """A number that depends on sizes."""
        found: list[_Operation] = []
        if self._written(e, found) > _DEEPEST:
            raise NotInC
        return Expression(self.table(_Operation, found), len(found))

    def _written(self, e: IndexExpr, found: list[_Operation]) -> int:
        """Write an expression in postfix; how many values it needs at a time."""
        match e:
            case IConst(value):
                if not -(2**62) < value < 2**62:
                    raise NotInC
                found.append(_Operation(0, value))
                return 1
            case ISize(name):
                if name not in self.places:
                    raise NotInC
                found.append(_Operation(1, self.places[name]))
                return 1
            case IBin(op, left, right):
                depth = max(self._written(left, found), 1 + self._written(right, found))
                found.append(_Operation(_OPERATIONS.index(op), 0))
                return depth
            case IVar():
                raise NotInC

    def table(self, kind: type[Any], items: Sequence[Any]) -> int:
        """The address of a table that is kept."""
        made = (kind * max(1, len(items)))(*items)
        self.parts.append(made)
        return ctypes.addressof(made)


class _Template(Expressions):
    def __init__(self, executable: CpuExecutable, open_sizes: OpenSizes) -> None:
        super().__init__(executable.plan.sizes)
        self.executable, self.plan, self.open = executable, executable.plan, open_sizes

    def made(
        self,
        names: Sequence[str],
        args: Sequence[Any],
        results: Sequence[str],
        orders: Mapping[str, tuple[int, ...]],
    ) -> OpenTemplate:
        arrays = {n: k for k, (n, a) in enumerate(zip(names, args, strict=True)) if isinstance(a, np.ndarray)}
        spaces, steps = self._spaces(), self._steps()
        strides = self._strides(arrays, orders)
        conditions = [self.condition(c) for c in self.open.conditions]
        shapes = self.open.shapes
        extents = sum(2 * len(shapes[n]) for n in arrays) + sum(len(shapes[n]) for n in results)
        counts = {"sizes": len(self.places), "arguments": len(names), "results": len(results)}
        counts |= {"spaces": len(spaces), "steps": len(steps), "extents": extents}
        counts |= {"numbers": len(self.places) + len(strides)}
        if any(n > _MOST[what] for what, n in counts.items()):
            raise NotInC
        structure = _Open(
            nsizes=len(self.places),
            nconditions=len(conditions),
            nnumbers=len(self.places),
            nstrides=len(strides),
            sources=self.table(Source, self.sources(self.open, arrays)),
            conditions=self.table(Condition, conditions),
            arguments=self.table(_OpenArgument, [self._argument(n, n in arrays, orders) for n in names]),
            results=self.table(_OpenResult, [self._result(n) for n in results]),
            spaces=self.table(_OpenSpace, spaces),
            steps=self.table(_OpenStep, steps),
            numbers=self.table(ctypes.c_int64, [ctypes.c_int64(k) for k in range(len(self.places))]),
            strides=self.table(_Stride, strides),
            allocate=id(allocate),
            **self._figures(),
        )
        return OpenTemplate(structure, self.parts, self.open.rank)

    def _figures(self) -> dict[str, int]:
        pool = Pool.get().threads
        return {
            "threads": self.executable.threads(pool),
            "pool_threads": pool,
            "chunks": self.plan.chunks or 0,
            "most_chunks": CHUNKS_PER_THREAD,
            "fewest_chunks": FEWEST_CHUNKS,
            "fewest_in_series": FEWEST_IN_SERIES,
            "chunk_instances": CHUNK_INSTANCES,
            "parallel_work": PARALLEL_WORK,
        }

    # --- arguments and sizes ---

    def _argument(self, name: str, is_array: bool, orders: Mapping[str, tuple[int, ...]]) -> _OpenArgument:
        if not is_array:
            return _OpenArgument()
        b = next(b for b in self.plan.buffers if b.name == name)
        shape = self.open.shapes[name]
        order = orders.get(name, tuple(range(len(shape))))
        told = name in orders or b.strided
        if b.strided and b.kind is not Kind.INPUT:  # where elements meet, the long way says so
            raise NotInC
        axes = self.table(ctypes.c_int64, [ctypes.c_int64(a) for a in order]) if told else None
        return _OpenArgument(self.extents(shape), axes, int(b.strided))

    def _strides(self, arrays: Mapping[str, int], orders: Mapping[str, tuple[int, ...]]) -> list[_Stride]:
        """The strides among a call's numbers, in order of the buffers; axes as callers have them."""
        found: list[_Stride] = []
        for b in self.plan.buffers:
            if not b.strided:
                continue
            name = b.name if b.name in arrays else b.alias or ""
            if name not in arrays:
                raise NotInC
            order = orders.get(name, tuple(range(len(b.shape))))
            found += [_Stride(arrays[name], axis) for axis in order]
        return found

    # --- results, temporaries, launches ---

    def _result(self, name: str) -> _OpenResult:
        b = next(b for b in self.plan.buffers if b.name == name)
        return _OpenResult(self.extents(self.open.shapes[name]), b.dtype.bytes)

    def _spaces(self) -> list[_OpenSpace]:
        found: list[_OpenSpace] = []
        for place, b in enumerate(self.plan.buffers):
            if b.kind is Kind.WORKSPACE:
                first, last = b.live or (0, len(self.plan.launches))
                elements = self.expression(product(b.shape))
                found.append(_OpenSpace(place, elements, b.dtype.bytes, first, last))
        return found

    def _steps(self) -> list[_OpenStep]:
        found: list[_OpenStep] = []
        for x in self.plan.launches:
            if x.library is not None:
                raise NotInC
            together = self.table(ctypes.c_int64, [ctypes.c_int64(n) for n in x.together])
            count, instances, work = map(self.expression, (x.count, x.instances, x.work))
            step = _OpenStep(count, instances, work, together, len(x.together), x.least, int(x.parallel))
            found.append(step)
        return found
