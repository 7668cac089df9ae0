"""The process in which plans of GPU kernels are tried: ``python -m polyfuse.tuning.gpu_trial``.

It answers the lines that `polyfuse.tuning.trial` answers, with inputs, results and times on the device.  A
plan that spoils the device's context ends the process: nothing that it did there afterwards would count.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.diagnostics import DeviceError
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.launch_plan import GridPlan, Kind
from polyfuse.runtime.arguments import Array
from polyfuse.runtime.cache.plans import load_plan
from polyfuse.runtime.cuda.executable import CudaExecutable, load
from polyfuse.runtime.cuda.memory import DeviceMemory
from polyfuse.runtime.cuda.results import DeviceArray
from polyfuse.source import SourceText
from polyfuse.support.processes import serve
from polyfuse.tuning.trial import IDLE_S, READY, Recipe, agree

# Results are compared in full up to so many bytes; of larger ones that many, in pieces from end to end.
SEEN, PIECES = 256 << 20, 64


class GpuTrials:
    """Inputs on the device, and the plans that were loaded."""

    def __init__(self, seen: int = SEEN) -> None:
        self.seen = seen
        self.memory: DeviceMemory | None = None
        self.recipes: dict[str, tuple[int, Recipe]] = {}
        self.placed: dict[str, Any] = {}
        self.entry: dict[str, DeviceArray] = {}
        self.first: dict[str, Array] = {}
        self.timers: dict[str, Callable[[int], float]] = {}
        self.flush = True

    def answer(self, line: str) -> str:
        """One line of JSON for another. Ends the process where the device is lost."""
        try:
            request = json.loads(line)
            found: dict[str, Any] = getattr(self, f"do_{request.pop('do')}")(**request)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
            if isinstance(error, DeviceError) and not self._usable():
                os._exit(1)
        return json.dumps(found)

    def do_prepare(
        self, inputs: list[Mapping[str, Any]], root: str, flush: bool, threads: int
    ) -> dict[str, Any]:
        os.environ["POLYFUSE_CACHE_DIR"] = root
        self.flush = flush
        self.recipes = {x["name"]: (k, Recipe.of_json(x)) for k, x in enumerate(inputs)}
        from polyfuse.runtime.cuda.open import open_driver  # not before there is something to do

        self.memory = memory = DeviceMemory.get(open_driver())
        self.placed = {n: _input(memory, r, seed) for n, (seed, r) in self.recipes.items()}
        return {}

    def do_run(self, key: str) -> dict[str, Any]:
        """A plan's first run; its results must be those of the first plan that ran."""
        kept = load_plan(key, SourceText("trial", ""))
        if kept is None or not isinstance(kept[0], CudaCode):
            return {"error": "its code is not in the cache"}
        executable = load(kept[0], flush_denormals=self.flush)
        arrays = self._arrays(executable)
        self._restore()
        start = time.perf_counter()
        executable.run(arrays)
        executable.wait()
        seconds = time.perf_counter() - start
        differs = self._compared(executable.plan)
        if differs is not None:
            return {"error": differs}
        self.timers[key] = executable.timer(arrays)
        return {"seconds": seconds, "described": executable.describe()}

    def do_time(self, key: str, calls: int) -> dict[str, Any]:
        self._restore()
        return {"seconds": self.timers[key](calls)}

    # --- memory ------------------------------------------------------------------------------------------

    def _arrays(self, executable: CudaExecutable) -> dict[str, Any]:
        """Arguments and results in the shapes of a plan; the same memory for all plans."""
        found: dict[str, Any] = {}
        memory = DeviceMemory.get(executable.driver)
        for b in executable.plan.buffers:
            if b.kind is Kind.WORKSPACE:
                continue
            name, shape = b.alias or b.name, tuple(evaluate(e, {}) for e in b.shape)
            if name not in self.placed:
                self.placed[name] = DeviceArray.empty(memory, shape, b.dtype.numpy)
            if b.kind is Kind.INOUT and name not in self.entry and isinstance(self.placed[name], DeviceArray):
                own = self.placed[name]
                self.entry[name] = DeviceArray.empty(memory, own.shape, own.dtype).fill_from(own)
            placed = self.placed[name]
            found[b.name] = placed.view(shape) if isinstance(placed, DeviceArray) else placed.reshape(shape)
        return found

    def _restore(self) -> None:
        """Inout parameters as they were given."""
        for name, value in self.entry.items():
            self.placed[name].fill_from(value)

    # --- results -----------------------------------------------------------------------------------------

    def _compared(self, plan: GridPlan) -> str | None:
        """How results differ from the first plan's; None if they agree."""
        names = {b.alias or b.name for b in plan.buffers if b.kind is not Kind.WORKSPACE}
        names -= {n for n in self.recipes if n not in self.entry}
        results = {n: self._looked_at(self.placed[n]) for n in sorted(names)}
        if not self.first:
            self.first = results
            return None
        wrong = [n for n, a in results.items() if not agree(self.first[n], a)]
        return f"it computes another {', '.join(wrong)}" if wrong else None

    def _looked_at(self, array: DeviceArray) -> Array:
        """All of it, or pieces of it."""
        if array.nbytes <= self.seen:
            return array.get().reshape(-1)
        size, each = array.size, self.seen // PIECES // array.dtype.itemsize
        starts = [k * (size - each) // (PIECES - 1) for k in range(PIECES)]
        return np.concatenate([array.part(start, each) for start in starts])

    def _usable(self) -> bool:
        """Does the device still answer?"""
        try:
            if self.memory is not None:
                with self.memory.driver.current():
                    self.memory.driver.synchronize(self.memory.stream())
        except DeviceError:
            return False
        return True


def _input(memory: DeviceMemory, recipe: Recipe, seed: int) -> DeviceArray | Array:
    """As the recipe says; a scalar is a number of the host."""
    if not recipe.shape:
        return recipe.make(seed)
    dtype = BY_NAME[recipe.dtype].numpy
    return DeviceArray.empty(memory, recipe.shape, dtype).repeat(recipe.pattern(seed))


def main() -> None:
    serve(READY, GpuTrials().answer, IDLE_S)


if __name__ == "__main__":
    main()
