"""What the tests of the GPU's runtime share: the stub of the driver's library, kernels on the host, plans."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache as memoised
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.driver.targets import resolve_target
from polyfuse.ir.dtypes import BY_NAME, F32, F64, I64
from polyfuse.ir.index_expr import IConst, ISize
from polyfuse.ir.launch_plan import Argument, GridLaunch, GridPlan, Kind, Passing, PlanBuffer
from polyfuse.runtime.cuda.driver import Driver
from polyfuse.runtime.cuda.driver_api import CtypesApi
from polyfuse.runtime.cuda.driver_native import NativeDriver
from polyfuse.runtime.cuda.driver_recording import LaunchRecord, RecordingDriver

SOURCES = Path(__file__).parents[1] / "cuda_stub"
CUDA_HEADER = Path("/usr/local/cuda/include/cuda.h")
N = ISize("N")


def build(source: Path, name: str, *flags: str) -> Path:
    """A shared object from C++, made once for each text of the source (also by tests that run beside)."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is needed to build a stand-in for the driver")
    key = hashlib.sha256(source.read_bytes() + repr(flags).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"polyfuse_test_{key}"
    made = folder / name
    if not made.exists():
        folder.mkdir(exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            fresh = Path(work) / name
            command = [
                compiler,
                "-std=c++17",
                "-O1",
                "-shared",
                "-fPIC",
                *flags,
                str(source),
                "-o",
                str(fresh),
            ]
            subprocess.run([*command, "-ldl", "-pthread"], check=True, capture_output=True, timeout=100)
            fresh.rename(made)
    return made


@memoised
def stub_path() -> Path:
    """The stub's library.  Once it is loaded, whoever loads the driver by its name gets the stub: whether
    this machine has a GPU is asked before, and the answer kept."""
    resolve_target("auto")
    return build(SOURCES / "libcuda_stub.cpp", "libcuda.so.1", "-Wl,-soname,libcuda.so.1")


@memoised
def kernels_path() -> Path:
    return build(SOURCES / "kernels.cpp", "kernels.so")


def image() -> bytes:
    """The kernels as a module for the stub."""
    return f"PFSTUB {kernels_path()}\0".encode()


class Stub:
    """The controls of the stub."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(stub_path()))
        self.library.pf_stub_calls.restype = ctypes.c_char_p
        # A driver of another test that was not closed may have left its context on this thread.
        while self.library.pf_stub_depth():
            self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def calls(self) -> list[str]:
        """Names of the functions called since the last time."""
        return self.library.pf_stub_calls().decode().split()

    def fail(self, function: str, status: int, after: int = 0) -> None:
        self.library.pf_stub_fail(function.encode(), status, after)

    def recover(self) -> None:
        self.library.pf_stub_recover()
        self.library.pf_stub_resident(0)


def native_driver() -> NativeDriver:
    """The native way on the stub."""
    return NativeDriver(CtypesApi(str(stub_path())))


def argument_table(record: LaunchRecord) -> tuple[Any, Any]:
    """Addresses of the arguments of a launch, in the form of the driver; and what keeps them alive."""
    cells = np.zeros(max(1, len(record.values)), np.uint64)
    kinds = {
        "Q": "u8",
        "q": "i8",
        "d": "f8",
        "f": "f4",
        "i": "i4",
        "I": "u4",
        "h": "i2",
        "H": "u2",
        "b": "i1",
        "B": "u1",
    }
    for k, (letter, value) in enumerate(zip(record.formats, record.values, strict=True)):
        cells[k : k + 1].view(kinds[letter])[0] = value
    table = (ctypes.c_void_p * len(cells))(*(cells.ctypes.data + 8 * k for k in range(len(cells))))
    return table, cells


def execute(record: LaunchRecord) -> None:
    """Run a launch of the recording driver with the kernels on the host."""
    library = ctypes.CDLL(str(kernels_path()))
    symbol = ctypes.c_char.in_dll(library, f"{record.function}_parameters")
    assert ctypes.string_at(ctypes.addressof(symbol)).decode() == record.formats
    table, _keep = argument_table(record)
    library[record.function](table, (ctypes.c_uint * 7)(record.grid, 1, 1, *record.block, 1, record.shared))


def recording_driver(**options: Any) -> RecordingDriver:
    return RecordingDriver(execute, **options)


# --- plans -----------------------------------------------------------------------------------------------


def pointer(name: str) -> Argument:
    return Argument(Passing.POINTER, name)


def launch(function: str, *arguments: Argument, blocks: Any = N, cooperative: bool = False) -> GridLaunch:
    return GridLaunch(function, "k", blocks, (32, 2), 0, arguments, cooperative)


SIZE = Argument(Passing.SIZE, "N")
X = PlanBuffer("x", F32, (N,), Kind.INPUT)
Y = PlanBuffer("y", F32, (N,), Kind.OUTPUT)
A = PlanBuffer("a", F32, (), Kind.INPUT)


def scale_code(strided: bool = False, alignment: int = 16) -> CudaCode:
    """y = a * x"""
    x = PlanBuffer("x", F32, (N,), Kind.INPUT, strided)
    arguments = (pointer("x"), pointer("y"), Argument(Passing.VALUE, "a"), SIZE)
    one = launch("scale", *arguments, Argument(Passing.STRIDE, "x", 0))
    needs = (("x", 4 if strided else alignment), ("y", alignment))
    return CudaCode("", GridPlan((x, A, Y), (one,), needs, ("N",)), ())


def workspace_code() -> CudaCode:
    """y = (x + 1) + 1, through a buffer of the workspace"""
    t = PlanBuffer("t", F32, (N,), Kind.WORKSPACE)
    first = launch("plus_one", pointer("x"), pointer("t"), SIZE)
    second = launch("plus_one", pointer("t"), pointer("y"), SIZE)
    return CudaCode("", GridPlan((X, Y, t), (first, second), sizes=("N",)), ())


def inout_code(strided: bool = False) -> CudaCode:
    """p += reversed p: written in place, entry values copied first"""
    p = PlanBuffer("p", F32, (N,), Kind.INOUT, strided)
    q = PlanBuffer("q", F32, (N,), Kind.OUTPUT, strided, "p")
    one = launch("add_reversed", pointer("p"), pointer("q"), SIZE)
    return CudaCode("", GridPlan((p, q), (one,), sizes=("N",), copied=("p",)), ())


def barrier_code(blocks: int = 4) -> CudaCode:
    """Two launches with barrier states of their own; both count in y[0]"""
    p = PlanBuffer("p", F32, (IConst(2),), Kind.INOUT)
    q = PlanBuffer("q", F32, (IConst(2),), Kind.OUTPUT, alias="p")
    both = tuple(
        launch("wait_all", pointer("q"), Argument(Passing.BARRIER), blocks=IConst(blocks), cooperative=True)
        for _ in range(2)
    )
    return CudaCode("", GridPlan((p, q), both), ())


def checked_code(spans: tuple[tuple[Any, str], ...]) -> CudaCode:
    """y[0] = i, if i is in range"""
    i = PlanBuffer("i", I64, (IConst(1),), Kind.INPUT)
    y = PlanBuffer("y", F32, (IConst(1),), Kind.OUTPUT)
    one = launch("checked", pointer("i"), pointer("y"), Argument(Passing.STATUS), blocks=IConst(1))
    return CudaCode("", GridPlan((i, y), (one,)), spans)


def values_code() -> CudaCode:
    """The value of a scalar of each type that the stub knows in y"""
    order = ("f64", "f32", "i64", "i32", "i16", "i8", "u8", "f16", "bf16", "bool")
    y = PlanBuffer("y", F64, (IConst(len(order)),), Kind.OUTPUT)
    scalars = {n: PlanBuffer(n, BY_NAME[n], (), Kind.INPUT) for n in order}
    arguments = (pointer("y"), *(Argument(Passing.VALUE, n) for n in order))
    one = launch("values", *arguments, blocks=IConst(1))
    return CudaCode("", GridPlan((*scalars.values(), y), (one,)), ())


def drivers() -> list[Any]:
    """Both stand-ins for a GPU, as parameters of a test."""
    return [pytest.param(recording_driver, id="recording"), pytest.param(native_driver, id="stub")]


def new_driver(make: Any) -> Driver:
    driver: Driver = make()
    return driver
