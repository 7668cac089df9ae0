"""What GPU kernels take: the table of registers, occupancy and 16-byte accesses."""

from __future__ import annotations

import pytest

import polyfuse as pf
from polyfuse.cost.device import device
from polyfuse.diagnostics import ToolchainError
from polyfuse.driver.resources import Accesses, ResourceTable, resource_table
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.launch_plan import GridLaunch, GridPlan
from polyfuse.runtime.cuda import sass
from polyfuse.runtime.cuda.compiler import Cubin, find_cuda_compiler
from polyfuse.runtime.cuda.cubin import Resources

PTX = """
.visible .entry pf_k0_0(
	.param .u64 pf_k0_0_param_0
)
{
	ld.param.u64 	%rd1, [pf_k0_0_param_0];
	ld.global.nc.v4.u32 	{%r1, %r2, %r3, %r4}, [%rd1];
	@%p1 ld.global.nc.v2.u64 	{%rd2, %rd3}, [%rd1+16];
	ld.global.f32 	%f1, [%rd1+4];
	ld.global.v2.f32 	{%f1, %f2}, [%rd1+8];
	ld.shared.v4.f32 	{%f1, %f2, %f3, %f4}, [%r1];
	st.global.v8.b16 	[%rd1], {%h1, %h2, %h3, %h4, %h5, %h6, %h7, %h8};
	st.global.u8 	[%rd1], %r1;
}
.visible .entry pf_k1_0(
)
{
	st.global.f64 	[%rd1], %fd1;
}
"""
SOFTMAX = """op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  e[t, h] = exp(x[t, h])
  y[t, h] = e[t, h] / sum[k](e[t, k])
}"""


def launch(name: str, blocks: int, threads: tuple[int, int]) -> GridLaunch:
    return GridLaunch(name, name[3:5], IConst(blocks), threads, 0, ())


def table(name: str = "H200", ptx: str = PTX) -> ResourceTable:
    plan = GridPlan((), (launch("pf_k0_0", 100, (32, 8)), launch("pf_k1_0", 7, (1024, 1))))
    taken = {
        "pf_k0_0": Resources(40, 0, 0, 0, 100 * 1024, 0),
        "pf_k1_0": Resources(64, 8, 16, 32, 0, 0),
    }
    return resource_table(plan, Cubin(b"", ptx, taken, "", "a compiler"), device(name))


def test_accesses_are_counted_kernel_by_kernel() -> None:
    first, second = table().kernels
    assert (first.loads, first.stores) == (Accesses(4, 2), Accesses(2, 1))
    assert (second.loads, second.stores) == (Accesses(0, 0), Accesses(1, 0))


def test_accesses_of_called_functions_count_for_each_kernel_that_calls_them() -> None:
    """A pack calls its parts; what these call counts as well, once for each function."""
    ptx = """
.func _Z4leafPf(
	.param .b64 _Z4leafPf_param_0
)
;
.func  (.param .b32 func_retval0) _Z5innerPf(
)
{
	ld.global.v4.f32 	{%f1, %f2, %f3, %f4}, [%rd1];
	call.uni
	_Z4leafPf,
	(
	param0
	);
}
.func _Z4leafPf(
	.param .b64 _Z4leafPf_param_0
)
{
	st.global.f32 	[%rd1], %f1;
}
.func _Z5otherPf(
)
{
	st.global.v4.f32 	[%rd1], {%f1, %f2, %f3, %f4};
}
.visible .entry pf_k0_0(
)
{
	call.uni (retval0),
	_Z5innerPf,
	(
	);
	@%p1 call
	_Z4leafPf,
	(
	param0
	);
}
.visible .entry pf_k1_0(
)
{
	st.global.f64 	[%rd1], %fd1;
}
"""
    first, second = table(ptx=ptx).kernels
    assert (first.loads, first.stores) == (Accesses(1, 1), Accesses(1, 0))
    assert (second.loads, second.stores) == (Accesses(0, 0), Accesses(1, 0))


def test_occupancy_is_of_the_device() -> None:
    first, second = table().kernels
    assert (first.occupancy.blocks_per_sm, first.occupancy.limiter) == (2, "shared")
    assert (second.occupancy.blocks_per_sm, second.occupancy.limiter) == (1, "registers")
    assert table("L4").kernels[0].occupancy.blocks_per_sm == 0


def test_what_nobody_says_is_unknown() -> None:
    plan = GridPlan((), (launch("pf_k0_0", 100, (32, 8)), launch("pf_k1_0", 7, (32, 1))))
    taken = {"pf_k0_0": Resources(registers=40, stack=8)}
    lines = str(resource_table(plan, Cubin(b"", PTX, taken, "", "a compiler"), device("H200"))).splitlines()
    assert lines[2].split()[5:12] == ["40", "unknown", "8", "unknown", "unknown", "unknown", "unknown"]
    assert lines[3].split()[5:12] == ["unknown"] * 7


def test_a_table_prints_itself() -> None:
    head, columns, first, second = str(table()).splitlines()
    assert head == "H200 (sm_90, 132 multiprocessors of 64 warps), a compiler"
    assert len(columns) == len(first) == len(second)
    assert first.split() == [
        "pf_k0_0", "100", "32", "x", "8", "40", "0/0", "0", "102400", "25%", "2", "blocks", "shared",
        "2", "of", "4", "1", "of", "2",
    ]  # fmt: skip
    assert " 8/16 " in second


def test_kernels_of_the_cpu_have_none() -> None:
    kernels = pf.parse(SOFTMAX).op().specialize(T=8, H=8).schedule().lower(target="cpu")
    with pytest.raises(pf.ArgumentError, match="made for 'cpu'"):
        kernels.resources()


def test_resources_of_an_operator() -> None:
    try:
        find_cuda_compiler()
    except ToolchainError:
        pytest.skip("no compiler for CUDA")
    scheduled = pf.parse(SOFTMAX).op().specialize(T=512, H=1024).schedule().apply(pf.LoopFusion())
    kernels = scheduled.lower(target="cuda")
    found = kernels.resources("A100")
    assert found.device.name == "A100" and len(found.kernels) == kernels.launches
    for k in found.kernels:
        assert 8 <= k.taken.registers <= 255 and k.taken.spill_stores == 0 and k.occupancy.blocks_per_sm > 0
        assert k.loads.wide > 0
    assert ".target sm_80" in kernels.ptx("A100") and ".target sm_90" in kernels.ptx()


def test_where_machine_code_cannot_be_read_the_table_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        find_cuda_compiler()
    except ToolchainError:
        pytest.skip("no compiler for CUDA")
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: None)
    kernels = pf.parse(SOFTMAX).op().specialize(T=8, H=8).schedule().lower(target="cuda")
    found = kernels.resources()
    assert found.projected == () and str(found).splitlines()[-1].startswith("no projected time: no nvdisasm")
