"""The process in which variants of an operator are tried: what crashes or hangs here hurts nobody.

It answers lines of JSON, one at a time:

    {"do": "prepare", "inputs": [...], "root": ..., "flush": ..., "threads": ...}    inputs are made
    {"do": "run", "key": ...}       a plan of the cache is loaded and run; its results are compared with those
                                    of the first one that ran
    {"do": "time", "key": ..., "calls": n}         the shortest of n calls

The caller, `polyfuse.tuning.tuner`, has a time limit for each line.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polyfuse.codegen.cpu.emit import CpuCode
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.launch_plan import Kind
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.runtime.arguments import Array
from polyfuse.runtime.cache.plans import load_plan
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.cpu.memory import Arena
from polyfuse.runtime.cpu.pool import Pool
from polyfuse.runtime.inputs import KEPT, index_limits
from polyfuse.source import SourceText
from polyfuse.support.processes import serve

# --- inputs -----------------------------------------------------------------------------------------------

# Inputs for a trial run, told as data: another process makes them without knowing the operator.
#
# Values are of the kinds that `runtime.inputs` gives, but large arrays repeat a pattern: what is timed has no
# branches on data, and a million random numbers say as much as a hundred millions.


# A prime: rows of usual lengths do not begin with the same number.
PATTERN = 1_000_003


@dataclass(frozen=True, slots=True)
class Recipe:
    """One input. below: integers from 0 on stay below it; offsets: they rise from 0 to it; mask: mostly 0,
    some large negative numbers; value: of a scalar with a default."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    below: int | None = None
    offsets: bool = False
    mask: bool = False
    value: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Recipe:
        return cls(**{**data, "shape": tuple(data["shape"])})

    def make(self, seed: int) -> Array:
        """The array, in memory as kernels get it."""
        made = Arena.get().empty(self.shape, BY_NAME[self.dtype].numpy)
        pattern, flat = self.pattern(seed), made.reshape(-1)
        for start in range(0, made.size, max(1, len(pattern))):
            part = flat[start : start + len(pattern)]
            part[...] = pattern[: len(part)]
        return made

    def pattern(self, seed: int) -> Array:
        """What the array repeats, in one axis: all of it, where it is short."""
        dtype, count = BY_NAME[self.dtype].numpy, math.prod(self.shape)
        if self.value is not None:
            return np.full(min(count, PATTERN), self.value, dtype)
        if self.offsets:
            steps = np.linspace(0, min(self.below or 0, _most(dtype)), self.shape[-1] if self.shape else 1)
            return np.resize(steps.astype(dtype), count)
        return self._pattern(min(count, PATTERN), np.random.default_rng(seed)).astype(dtype)

    def _pattern(self, count: int, random: np.random.Generator) -> Array:
        kind = BY_NAME[self.dtype]
        if kind.is_bool:
            return np.asarray(random.random(count) < KEPT)
        if kind.is_float and self.mask:
            return np.where(random.random(count) < KEPT, 0.0, -1e4)
        if kind.is_float:
            scalar = not self.shape
            return random.uniform(0.1, 1.0, count) if scalar else random.standard_normal(count, np.float32)
        if self.below is not None:
            return random.integers(0, max(1, min(self.below, _most(kind.numpy))), count)
        if not self.shape:
            return random.integers(1, 9, count)  # a count, such as a step
        return random.integers(max(-8, kind.limits[0]), 8, count)


def _most(dtype: np.dtype[Any]) -> int:
    return int(np.iinfo(dtype).max)


def recipes(graph: TensorGraph, sizes: Mapping[str, int]) -> list[Recipe]:
    """One for each input of a graph, in its order."""
    limits = index_limits(graph, sizes)
    found = []
    for t in map(graph.tensor, graph.inputs):
        shape = tuple(evaluate(e, sizes) for e in t.shape)
        limit = limits.get(t.name)
        mask = t.dtype.is_float and bool(shape) and "mask" in t.name.lower()
        value = None if t.default is None else float(t.default)
        below, offsets = (limit.below, limit.offsets) if limit and t.dtype.is_integer else (None, False)
        found.append(Recipe(t.name, t.dtype.name, shape, below, offsets, mask, value))
    return found


READY = "polyfuse trial 1"
IDLE_S = 60.0
# Variants may sum in another order, so their results differ in the last digits: of the largest value of a
# result, by so much at most.
TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 4e-2, "bf16": 2e-1, "f8": 1.0}


class Trials:
    """Inputs, and the variants that were loaded."""

    def __init__(self) -> None:
        self.inputs: dict[str, Array] = {}
        self.entry: dict[str, Array] = {}
        self.arrays: dict[str, Array] = {}
        self.first: dict[str, Array] = {}
        self.calls: dict[str, Callable[[], None]] = {}
        self.flush, self.threads = True, 1

    def answer(self, line: str) -> str:
        """One line of JSON for another."""
        try:
            request = json.loads(line)
            found: dict[str, Any] = getattr(self, f"do_{request.pop('do')}")(**request)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        return json.dumps(found)

    def do_prepare(
        self, inputs: list[Mapping[str, Any]], root: str, flush: bool, threads: int
    ) -> dict[str, Any]:
        os.environ["POLYFUSE_CACHE_DIR"] = root
        Pool.get().set_threads(threads)
        self.flush, self.threads = flush, threads
        made = [Recipe.of_json(x) for x in inputs]
        self.inputs = {r.name: r.make(k) for k, r in enumerate(made)}
        return {}

    def do_run(self, key: str) -> dict[str, Any]:
        kept = load_plan(key, SourceText("trial", ""))
        if kept is None or not isinstance(kept[0], CpuCode):
            return {"error": "its code is not in the cache"}
        executable = CpuExecutable(kept[0], {}, flush_denormals=self.flush, threads=self.threads)
        self._allocate(executable)
        call = executable.bind(self.arrays)
        self._restore()
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        differs = self._compared()
        if differs is not None:
            return {"error": differs}
        self.calls[key] = call
        return {"seconds": seconds}

    def do_time(self, key: str, calls: int) -> dict[str, Any]:
        call, best = self.calls[key], float("inf")
        self._restore()
        for _ in range(calls + 1):
            start = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - start)
        return {"seconds": best}

    def _allocate(self, executable: CpuExecutable) -> None:
        """Memory of arguments and results, the same for all variants."""
        for b in executable.plan.buffers:
            if b.kind is Kind.WORKSPACE or b.name in self.arrays:
                continue
            shape = tuple(evaluate(e, {}) for e in b.shape)
            if b.alias is not None:
                self.arrays[b.name] = self.arrays[b.alias]
            elif b.name in self.inputs:  # axes of it may lie in another order, or be one
                self.arrays[b.name] = self.inputs[b.name].reshape(shape)
            else:
                self.arrays[b.name] = Arena.get().empty(shape, b.dtype.numpy)
            if b.kind is Kind.INOUT:
                self.entry[b.name] = self.arrays[b.name].copy()

    def _restore(self) -> None:
        """Inout parameters as they were given."""
        for name, value in self.entry.items():
            self.arrays[name][...] = value

    def _compared(self) -> str | None:
        """How results differ from the first variant's; None if they agree."""
        results = {n: a for n, a in self.arrays.items() if n not in self.inputs or n in self.entry}
        if not self.first:
            self.first = {n: a.copy() for n, a in results.items()}
            return None
        wrong = [n for n, a in results.items() if not agree(self.first[n], a)]
        return f"it computes another {', '.join(wrong)}" if wrong else None


def agree(first: Array, other: Array) -> bool:
    """Are results the same, but for the order of sums?"""
    if first.dtype.kind in "biu":
        return bool(np.array_equal(first, other))
    a, b = first.reshape(-1), other.reshape(-1)
    if a.itemsize < 4:
        a, b = a.astype(np.float32), b.astype(np.float32)
    name = {8: "f64", 4: "f32", 1: "f8"}.get(first.itemsize, "f16" if first.dtype.kind == "f" else "bf16")
    with np.errstate(all="ignore"):
        far = np.abs(a - b)
        finite = np.isfinite(a)
        largest = float(np.max(np.abs(a), initial=0.0, where=finite))
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (far <= TOLERANCE[name] * largest)
    return bool(same.all())


def main() -> None:
    serve(READY, Trials().answer, IDLE_S)


if __name__ == "__main__":
    main()
