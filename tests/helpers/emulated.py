"""Handwritten CUDA sources on the emulator: a launch in a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.codegen.math.prelude import prelude
from polyfuse.ir.dtypes import from_numpy
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.launch_plan import Argument, GridLaunch, GridPlan, Kind, Passing, PlanBuffer
from polyfuse.runtime.emulator.emulator import EmulatedKernels

Array = np.ndarray[Any, np.dtype[Any]]

SOME_ORDERS = [("forward", 0), ("reverse", 0), *(("random", seed) for seed in range(4))]
_PREFIX = {"=": Passing.VALUE, "#": Passing.SIZE}


def argument(text: str) -> Argument:
    """``x`` a buffer, ``=x`` its value, ``#n`` a size, ``x.0`` a stride, ``status`` and ``grid``."""
    if text in ("status", "grid"):
        return Argument(Passing.STATUS if text == "status" else Passing.BARRIER)
    name, dot, dim = text.partition(".")
    if dot:
        return Argument(Passing.STRIDE, name, int(dim))
    if text[0] in _PREFIX:
        return Argument(_PREFIX[text[0]], text[1:])
    return Argument(Passing.POINTER, text)


def launch(
    function: str,
    arguments: str,
    blocks: int = 1,
    threads: int | tuple[int, int] = 32,
    shared: int = 0,
    cooperative: bool = False,
) -> GridLaunch:
    threads = threads if isinstance(threads, tuple) else (threads, 1)
    listed = tuple(argument(a) for a in arguments.split())
    return GridLaunch(function, function, IConst(blocks), threads, shared, listed, cooperative)


def buffer(
    name: str, array: Array, kind: Kind, strided: bool = False, alias: str | None = None
) -> PlanBuffer:
    dtype = from_numpy(array.dtype)
    assert dtype is not None
    return PlanBuffer(name, dtype, tuple(IConst(n) for n in array.shape), kind, strided, alias)


def code(
    source: str,
    launches: GridLaunch | tuple[GridLaunch, ...],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    workspace: Mapping[str, Array] | None = None,
    alignment: int = 0,
) -> CudaCode:
    buffers = [
        *(buffer(n, a, Kind.INPUT) for n, a in inputs.items()),
        *(buffer(n, a, Kind.OUTPUT) for n, a in outputs.items()),
        *(buffer(n, a, Kind.WORKSPACE) for n, a in (workspace or {}).items()),
    ]
    launches = launches if isinstance(launches, tuple) else (launches,)
    sizes = {a.name for x in launches for a in x.arguments if a.passing is Passing.SIZE}
    needs = tuple((b.name, alignment) for b in buffers if alignment and b.kind is not Kind.WORKSPACE)
    return CudaCode(source, GridPlan(tuple(buffers), launches, needs, tuple(sorted(sizes))), ())


def emulate(
    source: str,
    launches: GridLaunch | tuple[GridLaunch, ...],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    *,
    workspace: Mapping[str, Array] | None = None,
    alignment: int = 0,
    sizes: Mapping[str, int] | None = None,
    **options: Any,
) -> EmulatedKernels:
    """Run once; the outputs are written in place."""
    made = code(source, launches, inputs, outputs, workspace, alignment)
    kernels = EmulatedKernels(made, sizes, **options)
    kernels.run({**inputs, **outputs})
    return kernels


def source(functions: list[str], text: str) -> str:
    return prelude(functions, target="cuda") + text
