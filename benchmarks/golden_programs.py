"""The programs whose code `benchmarks.golden` holds: a name, and what makes the graph with its sizes.

workload/...   the workloads at their public sizes
operator/...   the ordinary operators of `benchmarks.operators`
half/...       row workloads in f32's place with f16 and bf16
rows/...       operators of short rows
stdlib/...     every operator of the standard library at a typical size
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

import polyfuse as pf
from benchmarks import short_rows, stdlib_sizes
from benchmarks.half_precision import IN_L2, sizes_of
from benchmarks.operators import CASES, Case
from benchmarks.operators.case import NUMPY_DTYPES, Draw, half
from benchmarks.workload import load, names
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.signature import infer_generics
from polyfuse.ir.dtypes import from_numpy
from polyfuse.ir.tensor_graph import TensorGraph

Sized = tuple[TensorGraph, Mapping[str, int]]
Maker = Callable[[], Sized]


class Zeros(Draw):
    """Arrays of the same shapes and dtypes, made in no time."""

    def __call__(self, *shape: int, dtype: str = "f32") -> Any:
        return np.zeros(shape, {"f32": "f4", "f64": "f8"}.get(dtype) or half(dtype))

    def unit(self, *shape: int) -> Any:
        return np.zeros(shape, "f4")

    def ints(self, low: int, high: int, *shape: int, dtype: str = "i64") -> Any:
        return np.zeros(shape, NUMPY_DTYPES[dtype])

    def coins(self, *shape: int) -> Any:
        return np.zeros(shape, bool)


def called(operator: pf.Operator, given: Mapping[str, Any], sizes: Mapping[str, int] | None = None) -> Sized:
    """The graph of an operator for such arguments, and the sizes of these."""
    dtypes = {n: from_numpy(a.dtype) for n, a in given.items()}
    found = infer_generics(operator.signature, dtypes, {n: a.ndim for n, a in given.items()})
    graph = operator.graph(found.dtypes, found.ranks)
    assert all(graph.tensor(n).dtype == t for n, t in dtypes.items())
    shapes = {n: given[n].shape if n in given else () for n in graph.inputs}
    return graph, bind_sizes(graph, shapes, sizes)


def of_case(case: Case, draw: Draw | None = None) -> Sized:
    """The graph of a case of `benchmarks.operators`, and the sizes of its arrays."""
    operator = case.program().op(case.operator)
    required = [p.name for p in operator.signature.params if not p.has_default]
    given = dict(zip(required, case.inputs(draw or Zeros(case.name)), strict=True))
    return called(operator, given)


def _of_text(text: str, name: str, sizes: Mapping[str, int]) -> Sized:
    return instantiate(pf.parse(text).programs, name), sizes


def _of_rows(text: str, sizes: Mapping[str, int]) -> Sized:
    programs = pf.parse(text).programs
    return instantiate(programs, programs[-1].ops[-1].name), sizes


def _of_library(name: str, sizes: Mapping[str, tuple[int, ...]]) -> Sized:
    operator = pf.stdlib.op(name)
    signature = operator.signature
    return called(operator, stdlib_sizes.arguments(signature, sizes), stdlib_sizes.given(signature, sizes))


@cache
def programs() -> Mapping[str, Maker]:
    """All of them by name, in groups."""
    found: dict[str, Maker] = {}
    for w in map(load, names()):
        for case, sizes in w.cases.items():
            found[f"workload/{case}"] = partial(_of_text, w.text, w.name, sizes)
    for each in CASES:
        found[f"operator/{each.name}"] = partial(of_case, each)
    for w in map(load, IN_L2):
        for case, sizes in sizes_of(w).items():
            for dtype in ("f16", "bf16"):
                text = w.text.replace("f32", dtype)
                found[f"half/{case} {dtype}"] = partial(_of_text, text, w.name, sizes)
    for name, text in short_rows.TEXTS.items():
        for elements in short_rows.ELEMENTS:
            for columns in short_rows.COLUMNS:
                rows = {"T": elements // columns, "H": columns}
                found[f"rows/{name} {rows['T']}x{columns}"] = partial(_of_rows, text, rows)
    for name, axes in stdlib_sizes.table().items():
        found[f"stdlib/{name}"] = partial(_of_library, name, axes)
    return found
