"""From a launch plan and its cubin to what kernels do: parameters, bytes from memory, projected times."""

from __future__ import annotations

import struct

import pytest

import polyfuse as pf
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.cost.device import device
from polyfuse.cost.speed_of_light import estimate
from polyfuse.diagnostics import ToolchainError
from polyfuse.driver.kernel_stages import Kernels
from polyfuse.driver.machine_work import memory_bytes, parameters, projections, works_of
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.launch_plan import Argument, GridLaunch, GridPlan, Kind, Passing, PlanBuffer
from polyfuse.runtime.cuda.compiler import find_cuda_compiler
from polyfuse.runtime.cuda.sass import find_nvdisasm

SCALE = "op scale(x: f32[N], a: f32) -> (y: f32[N]) { y[i] = x[i] * a }"
ROWS = """op rows(x: f32[T, H]) -> (y: f32[T, H]) {
  s[t] = sum[h](x[t, h])
  y[t, h] = x[t, h] - s[t]
}"""


def lowered(text: str, **sizes: int) -> Kernels:
    try:
        find_cuda_compiler()
    except ToolchainError:
        pytest.skip("no compiler for CUDA")
    if find_nvdisasm() is None:
        pytest.skip("no nvdisasm")
    scheduled = pf.parse(text).op().specialize(**sizes).schedule().apply(pf.LoopFusion())
    return scheduled.lower(target="emulate").apply(pf.Stitching())


def test_parameters_are_aligned() -> None:
    buffers = (
        PlanBuffer("x", BY_NAME["f32"], (IConst(8),), Kind.INPUT),
        PlanBuffer("a", BY_NAME["f16"], (), Kind.INPUT),
        PlanBuffer("b", BY_NAME["i32"], (), Kind.INPUT),
    )
    passed = (("VALUE", "a"), ("VALUE", "b"), ("POINTER", "x"), ("SIZE", "N"))
    arguments = tuple(Argument(Passing[how], name) for how, name in passed)
    launch = GridLaunch("k", "k", IConst(1), (32, 1), 0, arguments)
    found = parameters(launch, GridPlan(buffers, (launch,)))
    assert found == struct.pack("<HxxiQq", 0x3C00, 1, 3 << 36, 1)


@pytest.mark.parametrize("count", [1, 31, 1000, 100_003])
def test_each_element_is_loaded_and_stored_once(count: int) -> None:
    """All warps of all blocks: at least the bytes of the arrays, and what idle lanes would have."""
    kernels = lowered(SCALE, N=count)
    code = kernels.code()
    assert isinstance(code, CudaCode)
    (work,) = works_of(code.plan, kernels._compiled("sm_90").cubin)
    assert work.launch.blocks == code.plan.launches[0].blocks
    assert work.warp.block_barriers == 0 and not work.warp.cut
    assert sum(work.warp.stores.values()) <= sum(work.warp.loads.values()) <= 32 * 16 * 8


def test_bytes_from_memory_are_at_least_the_arguments() -> None:
    kernels = lowered(ROWS, T=64, H=1000)
    code = kernels.code()
    assert isinstance(code, CudaCode)
    (launch,) = code.plan.launches
    h200 = device("H200")
    found = {k.name: k for k in estimate(kernels.ir, h200).kernels}
    assert memory_bytes(launch, code.plan, found) == 2 * 4 * 64 * 1000  # they fit L2, but are not there
    assert memory_bytes(launch, code.plan, {}) == 2 * 4 * 64 * 1000


def test_more_rows_take_longer() -> None:
    times = []
    for rows in (64, 65_536):
        kernels = lowered(ROWS, T=rows, H=1000)
        code, h200 = kernels.code(), device("H200")
        assert isinstance(code, CudaCode)
        found = projections(code.plan, kernels._compiled("sm_90"), estimate(kernels.ir, h200), h200)
        times.append(sum(p.time.seconds for p in found))
    bytes_s = 2 * 4 * 65_536 * 1000 / 4.8e12
    assert times[0] < 20e-6 and bytes_s < times[1] < 2 * bytes_s
