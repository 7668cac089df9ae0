"""Compiled operators through the runtime of a GPU: a recording stands for it, the emulator computes."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.diagnostics import ArgumentError
from polyfuse.interop.device_arrays import to_device
from polyfuse.ir.launch_plan import Kind
from polyfuse.runtime.cuda.driver import POINTER
from polyfuse.runtime.cuda.driver_recording import LaunchRecord, RecordingDriver
from polyfuse.runtime.cuda.executable import CudaExecutable
from polyfuse.runtime.cuda.memory import DeviceMemory
from polyfuse.runtime.cuda.results import DeviceArray
from polyfuse.runtime.emulator.engine import ENTRY, Engine, kernels
from polyfuse.runtime.emulator.engine import LaunchRecord as EmulatedLaunch

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from cuda_helpers import argument_table

Array = np.ndarray[Any, np.dtype[Any]]
RANDOM = np.random.default_rng(3)


def _f32(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def _emulate(code: CudaCode) -> Any:
    """Runs a launch of this code, on the memory that its arguments point to."""
    engine, stacks = Engine.get(), kernels(code.source)
    library = engine.kernels(code.source, check=False)

    def execute(record: LaunchRecord) -> None:
        table, _keep = argument_table(record)
        for k, (letter, value) in enumerate(zip(record.formats, record.values, strict=True)):
            if letter == POINTER:
                table[k] = value  # the emulator takes memory as it is, and the address of all else
        function = ctypes.cast(getattr(library, ENTRY + record.function), ctypes.c_void_p).value
        with engine.lock:
            engine.begin()
            launch = EmulatedLaunch(
                kernel=function,
                slots=ctypes.cast(table, ctypes.c_void_p),
                blocks=record.grid,
                threads_x=record.block[0],
                threads_y=record.block[1],
                order=0,
                cooperative=record.cooperative,
                stack_bytes=stacks[record.function],
                time_out_ms=60_000,
            )
            total, stopped = engine.launch(launch)
        assert (total, stopped) == (0, False)

    return execute


def _compiled(op: str, *args: Any, **options: Any) -> tuple[CudaExecutable, RecordingDriver, dict[str, Any]]:
    """(executable on the recording driver, the driver, arguments by name)."""
    function = pf.compile(pf.stdlib, op, target="emulate", **options)
    code = function.built(*args).code
    assert isinstance(code, CudaCode)
    driver = RecordingDriver(_emulate(code), resident=1024)
    names = [p.name for p in function.signature.params]
    return CudaExecutable(code, b"", {}, driver), driver, dict(zip(names, args, strict=False))


def _call(f: CudaExecutable, arrays: dict[str, Any]) -> dict[str, Array]:
    """Results by name, of a call with NumPy arrays."""
    results = {b.name: f.output(b) for b in f.plan.buffers if b.kind is Kind.OUTPUT and b.alias is None}
    f.run({**{n: np.asarray(a) for n, a in arrays.items()}, **results})
    return results


def _near(got: Array, want: Any) -> None:
    np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-5)


X, GAMMA, BETA = _f32(8, 96), _f32(96), _f32(96)
NORM = (X, GAMMA, BETA, np.float32(1e-5))
ADAMW = ("p", "g", "m", "v")
CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("softmax", (_f32(6, 70),)),
    ("layer_norm", NORM),
    ("embedding", (_f32(10, 24), np.array([3, 9, 0, 3, 11, -4]))),
    ("layer_norm_backward", (X + 1, X, GAMMA, X.mean(1), 1 / X.std(1))),
]


@pytest.mark.parametrize(("op", "args"), CASES, ids=[c[0] for c in CASES])
def test_as_on_the_cpu(op: str, args: tuple[Any, ...]) -> None:
    want = pf.compile(pf.stdlib, op, target="cpu")(*args)
    f, driver, arrays = _compiled(op, *args)
    got = list(_call(f, arrays).values())
    for mine, theirs in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        _near(mine, theirs)
    assert driver.launches


def test_arrays_on_the_device_are_used_in_place() -> None:
    want = pf.compile(pf.stdlib, "layer_norm", target="cpu")(*NORM)
    f, driver, arrays = _compiled("layer_norm", *NORM)
    memory = DeviceMemory.get(driver)
    given = {
        n: a if np.ndim(a) == 0 else DeviceArray.empty(memory, a.shape, a.dtype).set(a)
        for n, a in arrays.items()
    }
    views = {n: to_device(a, n) or a for n, a in given.items()}
    (out,) = (b for b in f.plan.buffers if b.kind is Kind.OUTPUT)
    y = f.device_output(out)
    driver.calls.clear()
    f.run({**views, out.name: y})
    assert not driver.named("copy", "copy_in", "copy_out")
    _near(y.get(), want)
    assert not f.remarks


def test_parameters_are_updated_in_place() -> None:
    start = [np.abs(_f32(5, 7)) for _ in ADAMW]
    other = {"step": np.int64(3), "lr": np.float32(0.1), "beta1": np.float32(0.9), "beta2": np.float32(0.999)}
    rest = [*other.values(), np.float32(1e-8), np.float32(0.01)]
    want = [a.copy() for a in start]
    pf.compile(pf.stdlib, "adamw", target="cpu")(*want, *rest)
    f, _, arrays = _compiled("adamw", *start, *rest)
    mine = {n: a.copy() if np.ndim(a) else a for n, a in arrays.items()}
    _call(f, mine)
    for name, theirs in zip(ADAMW, want, strict=True):
        _near(mine[name], theirs)


def test_an_index_out_of_range_has_its_place() -> None:
    table = _f32(10, 24)
    f, _, arrays = _compiled("embedding", table, np.array([3, 9]), checked=True)
    (y,) = _call(f, arrays).values()
    assert np.array_equal(y, table[[3, 9]])
    with pytest.raises(ArgumentError, match="out of range") as refused:
        _call(f, {**arrays, "index": np.array([3, 10])})
    assert refused.value.code == "PF450"
