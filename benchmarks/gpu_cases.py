"""What is timed on a GPU: the operators of `benchmarks/workloads` at sizes that fill it, and in 16 bits.

A case is a workload with sizes and an element type.  Its operator is the workload's text with that type in
place of f32; statistics stay in f32, as the language computes 16-bit floats in f32.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import isqrt, prod
from typing import Any

import numpy as np

import polyfuse as pf
from benchmarks.gpu_arrays import POOL, Pool
from benchmarks.workload import Workload, load
from polyfuse.driver.pipeline import Compilation, Watch, clustering_of, planned
from polyfuse.driver.targets import compile_ahead, knobs_for
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.index_expr import ISize, evaluate
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.options import Options

ALL = ("f32", "f16", "bf16")
HALF = ("f32", "bf16")
FEWEST_ROWS = 7


@dataclass(frozen=True)
class GpuCase:
    """A workload at sizes, in an element type."""

    workload: Workload
    sizes: Mapping[str, int]
    dtype: str = "f32"

    @property
    def name(self) -> str:
        """Of the operator."""
        return self.workload.name

    @property
    def label(self) -> str:
        """A name for tables: `ln_fwd 16384x768 bf16`."""
        return f"{self.name} {'x'.join(map(str, self.sizes.values()))} {self.dtype}"

    @property
    def text(self) -> str:
        """The operator, its parameters and results in the case's type."""
        return re.sub(r": f32\b", f": {self.dtype}", self.workload.text)

    @cached_property
    def program(self) -> pf.Program:
        return pf.parse(self.text)

    @cached_property
    def graph(self) -> TensorGraph:
        return instantiate(self.program.programs, self.name)

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Results, then the new values of inout parameters."""
        after = {t.alias: t.name for t in self.graph.tensors if t.alias}
        return (*self.graph.outputs, *(after[n] for n in self.workload.updated))

    def inputs(self, number: int = 0, rows: int | None = None) -> dict[str, Any]:
        """Arguments; another `number` gives others. `rows`: of the first size so many instead of all."""
        pool = Pool(zlib.crc32(f"{self.name} {number}".encode()))
        given = self.workload.module.inputs({**self.sizes, **({self.row: rows} if rows else {})}, pool)
        floats = BY_NAME[self.dtype].numpy
        return {n: _typed(a, floats) for n, a in given.items()}

    @property
    def row(self) -> str:
        """The size that counts rows: the first one."""
        return next(iter(self.sizes))

    @property
    def by_rows(self) -> tuple[str, ...]:
        """Parameters whose outermost axis runs over the rows."""
        shapes = {n: self.graph.tensor(n).shape for n in self.graph.inputs}
        return tuple(n for n, shape in shapes.items() if shape and shape[0] == ISize(self.row))

    @property
    def enough_rows(self) -> int:
        """So many different rows that numbers repeat as seldom as those of a pool; a prime, so that blocks
        of rows that repeat them differ."""
        rows = self.sizes[self.row]
        others = [prod(evaluate(e, self.sizes) for e in self.graph.tensor(n).shape[1:]) for n in self.by_rows]
        wanted = max(FEWEST_ROWS, -(-POOL // max(others, default=1)))
        return min(rows, next(k for k in count(wanted) if all(k % d for d in range(2, isqrt(k) + 1))))


def compilation_of(case: GpuCase, target: str) -> Compilation:
    """What the first call of `pf.compile(case.text, target=target)` with dense arrays compiles."""
    return _compilation(case.graph, case.sizes, target)


def _compilation(graph: TensorGraph, sizes: Mapping[str, int], target: str) -> Compilation:
    options = Options()
    knobs, cut = knobs_for(target, options), clustering_of(None, options)
    layers: dict[str, Any] = {"stitching": pf.Stitching(), "packing": pf.Packing()}
    return Compilation(
        graph, dict(sizes), pf.LoopFusion(), options, target=target, clustering=cut, knobs=knobs, **layers
    )


def compile_case(case: GpuCase, target: str) -> None:
    """Compile a case into the cache; a device is not used."""
    _compile(compilation_of(case, target))


def begin_compiling(target: str) -> None:
    """Start and load what every compilation needs, so that no case pays for it."""
    text = "op warm(x: f32[T, H]) -> (y: f32[T]) { y[t] = 2.0 * sum[h](x[t, h]) }"
    _compile(_compilation(pf.parse(text).op().graph(), {"T": 8, "H": 100}, target))


def _compile(wanted: Compilation) -> None:
    _, code, _ = planned(Watch(wanted.options), wanted)
    compile_ahead(code, wanted.target, wanted.options)


def _typed(a: Any, floats: np.dtype[Any]) -> Any:
    return a.astype(floats) if isinstance(a, np.ndarray) and a.dtype == np.float32 else a


_ROWS = {"H": 768}
_WIDE = {"H": 3072}
_TABLE: tuple[tuple[str, tuple[dict[str, int], ...], tuple[str, ...]], ...] = (
    ("ln_fwd", ({"T": 16384, **_ROWS}, {"T": 65536, **_ROWS}), ALL),
    ("msoftmax", ({"N": 64, "A": 16, "S": 512, "T": 512},), ALL),
    ("bn_train_relu", ({"N": 128, "C": 64, "H": 112, "W": 112},), ("f32", "f16")),
    ("adamw", ({"N": 300_000_000},), ("f32",)),
    ("softmax", ({"T": 750_000, "H": 32}, {"T": 64, "H": 30_000}, {"T": 8, "H": 1_048_576}), HALF),
    ("res_ln", ({"T": 16384, **_ROWS}, {"T": 65536, **_ROWS}), ALL),
    ("bias_gelu", ({"T": 16384, **_WIDE}, {"T": 65536, **_WIDE}), ALL),
    ("gelu_bwd_dbias", ({"T": 16384, **_WIDE}, {"T": 65536, **_WIDE}), HALF),
    ("ln_bwd", ({"T": 16384, **_ROWS}, {"T": 65536, **_ROWS}), ("f32",)),
    ("rms_swiglu", ({"T": 16384, "H": 2816}, {"T": 65536, "H": 2816}), HALF),
    ("residual_chain", ({"T": 16384, **_ROWS}, {"T": 65536, **_ROWS}), ("f32",)),
    ("astitch_768", ({"T": 16384, **_ROWS}, {"T": 65536, **_ROWS}), ("f32",)),
    ("dropout_residual", ({"T": 16384, **_ROWS}, {"T": 65536, **_ROWS}), HALF),
    ("xent_fwd", ({"N": 16384, "C": 30522},), HALF),
    ("rope", ({"N": 64, "A": 16, "S": 2048, "D": 64},), HALF),
    ("lstm_cell", ({"B": 16384, "H": 1024},), HALF),
)


def cases() -> list[GpuCase]:
    """All, the element type f32 first: a run that is stopped has the plain ones."""
    made = [
        GpuCase(load(name), sizes, dtype)
        for name, all_sizes, dtypes in _TABLE
        for sizes in all_sizes
        for dtype in dtypes
    ]
    return sorted(made, key=lambda c: ALL.index(c.dtype))


def small_calls() -> list[GpuCase]:
    """Each operator and type once, at its module's SMALL sizes."""
    made = {(c.name, c.dtype): GpuCase(c.workload, c.workload.module.SMALL, c.dtype) for c in cases()}
    return list(made.values())
