"""What a workload is, and where they are found.

A workload is a module of `benchmarks.workloads` and an operator in the language: the file of the same
name, or the module's TEXT. The module has

    SIZES        {case: {size: value}}: the cases that are timed, by name
    SMALL        sizes for tests
    inputs(sizes, rng)            the operator's arguments by name, NumPy arrays and Python numbers
    with_numpy(x, ...)            what it computes; float64 in, float64 out
    with_torch(torch, x, ...)     the same, in place where the operator is
    with_jax(jax, x, ...)         the same; new values of the operator's inout parameters come last
    with_torch_library(...)       optional: what an expert would call in eager mode instead
    with_liger(ops, x, ...)       optional: kernels of `liger_kernel.ops`, which run on a GPU

Functions return the operator's results in order, one array or a tuple. NumPy's and JAX's return the new
values of inout parameters after them.
"""

from __future__ import annotations

import importlib
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import polyfuse as pf
from benchmarks.other_shapes import OTHERS, case_name, named_sizes
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.ir.tensor_graph import Role, TensorGraph

FOLDER = Path(__file__).parent / "workloads"
Function = Callable[..., Any]
PLACES = "POLYFUSE_BENCH_PLACES"
"""The environment variable that leaves arrays where NumPy puts them: `numpy`."""
LINE = 64


def at_line(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that begins at a cache line, as PyTorch's and JAX's own arrays do. NumPy's begin 16 bytes after
    one where they are large: then every vector of 64 bytes crosses a line, for whoever computes."""
    memory = np.empty(a.nbytes + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    placed = memory[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    placed[...] = a
    return placed


@dataclass(frozen=True)
class Workload:
    """One operator with its rivals; `cases` maps the name of a case to its sizes."""

    name: str
    module: ModuleType

    @property
    def cases(self) -> Mapping[str, Mapping[str, int]]:
        """The sizes that are timed."""
        cases: Mapping[str, Mapping[str, int]] = self.module.SIZES
        return cases

    @property
    def other_cases(self) -> dict[str, Mapping[str, int]]:
        """Sizes beside the public ones."""
        return {case_name(self.name, sizes): sizes for sizes in OTHERS.get(self.name, ())}

    def sizes(self, case: str) -> dict[str, int]:
        """Of a public case, or of one whose name says them."""
        return dict(self.cases[case]) if case in self.cases else named_sizes(case)

    @property
    def text(self) -> str:
        """The operator in the language."""
        own = getattr(self.module, "TEXT", None)
        return str(own) if own else (FOLDER / f"{self.name}.pf").read_text(encoding="utf-8")

    def parse(self) -> pf.Program:
        """The operator's program."""
        return pf.parse(self.text)

    @cached_property
    def graph(self) -> TensorGraph:
        """The operator as a tensor graph."""
        programs = self.parse().programs
        return instantiate(programs, self.name)

    @property
    def updated(self) -> tuple[str, ...]:
        """Parameters that the operator changes, in order of the signature."""
        return tuple(n for n in self.graph.inputs if self.graph.tensor(n).role is Role.INOUT)

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Tensors to compare: the results, then the new values of inout parameters."""
        after = {t.alias: t.name for t in self.graph.tensors if t.alias}
        return (*self.graph.outputs, *(after[n] for n in self.updated))

    def inputs(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Fresh arguments, the same in every process, at cache lines unless `PLACES` says otherwise."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        given: dict[str, Any] = self.module.inputs(dict(sizes), rng)
        if os.environ.get(PLACES) == "numpy":
            return given
        return {n: at_line(a) if isinstance(a, np.ndarray) else a for n, a in given.items()}

    def function(self, library: str) -> Function:
        """The workload's function for `numpy`, `torch`, `torch_library`, `liger` or `jax`."""
        found: Function = getattr(self.module, f"with_{library}")
        return found

    def has(self, library: str) -> bool:
        """Whether there is one."""
        return hasattr(self.module, f"with_{library}")


def names() -> list[str]:
    """All workloads that have a module."""
    return sorted(p.stem for p in FOLDER.glob("*.py") if p.stem != "__init__")


def load(name: str) -> Workload:
    """A workload by name. Raises ModuleNotFoundError if there is none."""
    return Workload(name, importlib.import_module(f"benchmarks.workloads.{name}"))


def select(only: list[str], others: bool = False) -> list[tuple[Workload, str]]:
    """(workload, case) of all, or of those whose workload or case is named: at the public sizes, or at the
    others. Raises KeyError."""
    pairs = [(w, case) for w in map(load, names()) for case in (w.other_cases if others else w.cases)]
    known = {w.name for w, _ in pairs} | {case for _, case in pairs}
    for name in only:
        if name not in known:
            raise KeyError(f"there is no workload '{name}'; there are {', '.join(sorted(known))}")
    return [(w, case) for w, case in pairs if not only or w.name in only or case in only]
