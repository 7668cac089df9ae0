"""An operator that was exported for a GPU, as a Python function: cubins, launched as the description says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.diagnostics import DeviceError
from polyfuse.driver.call import GpuCallMemory, Instance, given_on_gpu
from polyfuse.driver.loaded import Loaded, constraint, index, no_library, require_format
from polyfuse.driver.open_sizes import holds
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes, check_constraints
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.launch_plan import Argument, GridLaunch, GridPlan, Kind, Passing, PlanBuffer
from polyfuse.ir.tensor_graph import Constraint
from polyfuse.runtime.arguments import check_fits
from polyfuse.runtime.cuda.arguments import DeviceView
from polyfuse.runtime.cuda.driver import Driver
from polyfuse.runtime.cuda.executable import CudaExecutable
from polyfuse.runtime.cuda.open import open_driver

MOST_SIZES = 512
"""Choices of sizes that a function remembers launches for."""


def load_grids(file: Path) -> LoadedGrids:
    """The operator of a description that `export` wrote.

    Raises ToolchainError PF765 for a file that is none, DeviceError PF740 or PF741 without a GPU, PF781 for
    machine code of another one.
    """
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        cubins = {v["cubin"]: file.with_name(v["cubin"]).read_bytes() for v in about["variants"]}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise no_library(file, str(e)) from None
    require_format(file, about)
    driver = open_driver()
    _require_arch(file, about["arch"], driver)
    return LoadedGrids(file, about, cubins, driver)


def _require_arch(file: Path, made_for: str, driver: Driver) -> None:
    """Machine code runs on GPUs of its major version, from its minor one on."""
    major, minor = driver.properties.capability
    number = int("".join(c for c in made_for if c.isdigit()))
    if number // 10 != major or number % 10 > minor:
        message = f"'{file}' has machine code for {made_for}, and this GPU is {driver.properties.arch}"
        hint = f"export it for this one: Options(device='{driver.properties.arch}')"
        raise DeviceError(message, code="PF781", hint=hint)


@dataclass
class _Variant:
    """Kernels for a region of sizes. `executable` is at the sizes that came first."""

    fixed: Mapping[str, int]
    conditions: tuple[Constraint, ...]
    strided: frozenset[str]
    plan: GridPlan
    cubin: bytes
    executable: CudaExecutable | None = field(default=None, repr=False)

    def has(self, sizes: Mapping[str, int], strided: frozenset[str]) -> bool:
        """Is a call with these sizes, and inputs of any strides, one of its own?"""
        known = all(sizes[n] == v for n, v in self.fixed.items()) and strided <= self.strided
        return known and all(holds(c, sizes) for c in self.conditions)

    def at(self, sizes: Mapping[str, int], driver: Driver) -> CudaExecutable:
        """Its kernels at these sizes."""
        mine = {n: sizes[n] for n in self.plan.sizes}
        if self.executable is None:
            self.executable = CudaExecutable(CudaCode("", self.plan, ()), self.cubin, mine, driver)
        return self.executable if self.executable.sizes == mine else self.executable.at(mine)


class LoadedGrids(Loaded):
    """One for a GPU."""

    def __init__(
        self, path: Path, about: Mapping[str, Any], cubins: Mapping[str, bytes], driver: Driver
    ) -> None:
        super().__init__(path, about, [v["about"] for v in about["variants"]])
        self._driver = driver
        self._variants = [_variant(v, cubins) for v in about["variants"]]
        self._executables: dict[object, CudaExecutable] = {}

    def set_threads(self, threads: int) -> int:
        return 1

    def __call__(self, /, *args: object, out: object = None, **kwargs: object) -> object:
        named: dict[str, Any] = {n: kwargs[n] for n in kwargs if n in self._graph.sizes}
        given = given_on_gpu(self._given(args, kwargs))
        sizes = bind_sizes(self._graph, {n: np.shape(v) for n, v in given.values.items()}, named)
        for t in self._inputs:
            view = given.values[t.name]
            if isinstance(view, DeviceView):
                check_fits(t, view.dtype, view.shape, sizes)
        executable = self._executable(sizes, _strided(given.values))
        call = GpuCallMemory(self._instance(executable, sizes), given, out)
        call.begin()
        executable.run(call.arrays)
        for store in call.finish:
            store()
        return call.results()

    def _executable(self, sizes: Mapping[str, int], strided: frozenset[str]) -> CudaExecutable:
        key = (tuple(sizes.items()), strided)
        if key not in self._executables:
            check_constraints(self._graph, sizes)
            variant = next((v for v in self._variants if v.has(sizes, strided)), None)
            if variant is None:
                raise self._no_kernels(sizes)
            if len(self._executables) >= MOST_SIZES:
                self._executables.clear()
            self._executables[key] = variant.at(sizes, self._driver)
        return self._executables[key]

    def _instance(self, executable: CudaExecutable, sizes: Mapping[str, int]) -> Instance:
        built: Any = SimpleNamespace(executable=executable)
        none: Any = None
        outputs = tuple((t, tuple(evaluate(e, sizes) for e in t.shape)) for t in self._results)
        in_place = tuple((b.name, b.alias) for b in executable.plan.buffers if b.alias is not None)
        return Instance(built, self._inputs, outputs, in_place, sizes, {}, none)


def _strided(values: Mapping[str, Any]) -> frozenset[str]:
    """Arrays on the device whose strides kernels have to take; host memory becomes dense on its way there."""
    views = {n: v for n, v in values.items() if isinstance(v, DeviceView)}
    return frozenset(n for n, v in views.items() if not v.dense)


def _variant(about: Mapping[str, Any], cubins: Mapping[str, bytes]) -> _Variant:
    plan = GridPlan(
        tuple(map(_buffer, about["buffers"])),
        tuple(map(_launch, about["launches"])),
        tuple((n, nbytes) for n, nbytes in about["alignment"]),
        tuple(about["open"]),
        tuple(about["copied"]),
    )
    conditions = tuple(map(constraint, about["conditions"]))
    return _Variant(about["sizes"], conditions, frozenset(about["strided"]), plan, cubins[about["cubin"]])


def _buffer(about: Mapping[str, Any]) -> PlanBuffer:
    shape, live = tuple(map(index, about["shape"])), about["live"]
    return PlanBuffer(
        about["name"],
        BY_NAME[about["dtype"]],
        shape,
        Kind(about["kind"]),
        about["strided"],
        about["alias"],
        live and tuple(live),
    )


def _launch(about: Mapping[str, Any]) -> GridLaunch:
    x, y = about["threads"]
    return GridLaunch(
        about["function"],
        about["kernel"],
        index(about["blocks"]),
        (x, y),
        about["shared"],
        tuple(Argument(Passing(how), name, dim) for how, name, dim in about["arguments"]),
        about["cooperative"],
        about["dynamic"],
    )
