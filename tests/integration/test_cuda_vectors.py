"""Layer normalisation and masked softmax on a GPU move their tensors 16 bytes at a time, and each kernel
loads an element once."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.diagnostics import ToolchainError
from polyfuse.driver.kernel_stages import Kernels
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.launch_plan import GridLaunch, Passing
from polyfuse.runtime.cuda.compiler import compile_cuda, find_cuda_compiler
from polyfuse.runtime.emulator.emulator import EmulatedKernels

WORKLOADS = Path(__file__).parents[2] / "benchmarks" / "workloads"
SIZES = {
    "ln_fwd": {"T": 4096, "H": 768},
    "msoftmax": {"N": 8, "A": 12, "S": 128, "T": 128},
}
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
LAYERS = ("layer I", "layers I and II")

_ENTRY = re.compile(r"\.entry (\w+)\(")
_PARAMETER = re.compile(r"ld\.param\.\w+\s+(%\w+), \[\w+_param_(\d+)\]")
_ACCESS = re.compile(r"(ld|st)\.global(?:\.\w+)*?((?:\.v[24])?)\.\w+\s.*\[(%rd\d+)")
_MOVED = re.compile(r"^\s*(?:@!?%p\d+ )?[\w.]+\s+(%rd\d+), (.*);")
_REGISTER = re.compile(r"%r?d?\d+")

each_workload = pytest.mark.parametrize("workload", SIZES)
each_layers = pytest.mark.parametrize("layers", LAYERS)


@cache
def lowered(workload: str, layers: str) -> tuple[Kernels, CudaCode]:
    program = pf.parse((WORKLOADS / f"{workload}.pf").read_text(encoding="utf-8"))
    scheduled = program.op().specialize(**SIZES[workload]).schedule().apply(pf.LoopFusion())
    kernels = scheduled.lower(target="cuda")
    kernels = kernels.apply(pf.Stitching()) if layers == LAYERS[1] else kernels
    code = kernels.code()
    assert isinstance(code, CudaCode)
    return kernels, code


def accesses(ptx: str, launch: GridLaunch) -> dict[str, list[str]]:
    """ "ld x" -> how wide each such instruction of a kernel is (".v4", or "" for one element)."""
    start = next(m for m in _ENTRY.finditer(ptx) if m[1] == launch.function).end()
    end = ptx.find(".entry ", start)
    found: dict[str, list[str]] = {}
    base: dict[str, str] = {}  # register -> the pointer that an address in it comes from
    for line in ptx[start : end if end > 0 else len(ptx)].splitlines():
        if parameter := _PARAMETER.search(line):
            argument = launch.arguments[int(parameter[2])]
            if argument.passing is Passing.POINTER:
                base[parameter[1]] = argument.name
        elif access := _ACCESS.search(line):
            found.setdefault(f"{access[1]} {base[access[3]]}", []).append(access[2])
        elif moved := _MOVED.search(line):
            for register in _REGISTER.findall(moved[2]):
                if register in base:
                    base[moved[1]] = base[register]
    return found


@pytest.mark.parametrize("arch", ARCHITECTURES)
@each_layers
@each_workload
def test_tensors_move_by_16_bytes(workload: str, layers: str, arch: str) -> None:
    try:
        find_cuda_compiler()
    except ToolchainError as none:
        pytest.skip(str(none))
    _, code = lowered(workload, layers)
    made = compile_cuda(code.source, arch)
    seen: dict[str, list[str]] = {}
    for launch in code.plan.launches:
        for what, widths in accesses(made.ptx, launch).items():
            seen.setdefault(what, []).extend(widths)
    assert set(seen["ld x"]) == {".v4"}
    assert set(seen["st y"]) == {".v4"}
    assert "st x" not in seen and "ld y" not in seen
    for row in ("gamma", "beta", "mask"):
        assert set(seen.get(f"ld {row}", [".v4"])) == {".v4"}
    counts = [made.resources[launch.function] for launch in code.plan.launches]
    assert all((r.spill_stores, r.spill_loads, r.stack) == (0, 0, 0) for r in counts)


@each_layers
@each_workload
def test_each_element_is_loaded_once(workload: str, layers: str) -> None:
    kernels, code = lowered(workload, layers)
    random = np.random.default_rng(0)
    arrays = {}
    for b in code.plan.buffers:
        shape = tuple(evaluate(e, {}) for e in b.shape)
        if b.kind.name != "WORKSPACE":
            arrays[b.name] = random.standard_normal(shape).astype(b.dtype.numpy)
    emulated = EmulatedKernels(code, count=True)
    emulated.run(arrays)
    loads, stores = emulated.report.loads["x"], emulated.report.stores["y"]
    phases = [n for n in range(len(loads)) if loads[n].any()]
    assert phases and all((loads[n] == 1).all() for n in phases)
    assert (stores.sum(axis=0) == 1).all()
    if layers == LAYERS[1]:
        assert kernels.launches == 1 and len(phases) == 1
