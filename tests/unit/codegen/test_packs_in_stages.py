"""Packs joined by barriers of the grid, and launches whose arguments are in a table."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from models import script
from targets import Call, compare_results
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cuda import multi_kernel
from polyfuse.codegen.cuda.emit import CudaCode, emit_cuda
from polyfuse.diagnostics import DeviceError, EmulationError, ScheduleError
from polyfuse.driver.lowering import Lowered
from polyfuse.driver.pipeline import Compilation, Watch
from polyfuse.ir.kernel import KernelGraph, touched_memory
from polyfuse.ir.launch_plan import Passing
from polyfuse.ir.target import GpuTarget
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing, packed
from polyfuse.layers.stitching.grid_barriers import stages
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options
from polyfuse.runtime.cuda.driver_recording import LaunchRecord, RecordingDriver
from polyfuse.runtime.cuda.executable import CudaExecutable
from polyfuse.runtime.cuda.memory import DeviceMemory
from polyfuse.runtime.cuda.results import DeviceArray
from polyfuse.runtime.emulator.emulator import EmulatedKernels
from polyfuse.runtime.reference.evaluate import evaluate

Array = np.ndarray[Any, np.dtype[Any]]
OPTIMIZER = script("optimizer")
SHAPES = [(7, 5), (1,), (33,), (1, 1), (130, 3), (3, 130), (2,), (65, 33), (257,), (4, 1)]
# As it is, of scalars and few threads, with rows of threads that are no multiple of a warp.
DEVICES = {
    "usual": GpuTarget(sms=4),
    "narrow": GpuTarget(sms=2, threads=32, longest=64, vector=1, resident_threads=64),
    "odd": GpuTarget(sms=3, threads=64, row_threads=21),
}


def call_of(kind: str, shapes: list[tuple[int, ...]], seed: int = 0) -> Call:
    """A step of an optimizer on random tensors."""
    graph = getattr(OPTIMIZER, kind)(shapes).op().graph()
    rng = np.random.default_rng(seed)
    inputs: dict[str, Array] = {"step": np.asarray(3, "i8")}
    for k, shape in enumerate(shapes):
        inputs |= {f"{x}{k}": rng.standard_normal(shape).astype("f4") for x in "pgm"}
        inputs[f"v{k}"] = rng.random(shape).astype("f4") + np.float32(0.1)
    return Call(kind, "", graph, {}, inputs)


@dataclass(frozen=True)
class OnDevice(Compilation):
    """The whole way to kernels, for a GPU that there is not."""

    gpu: GpuTarget = field(default_factory=GpuTarget)

    @property
    def machine(self) -> GpuTarget:  # type: ignore[override]
        return self.gpu


def lowered(call: Call, gpu: GpuTarget) -> Lowered:
    """All layers on a GPU; tensors keep their dims."""
    layers = {"stitching": Stitching(), "packing": Packing()}
    made = OnDevice(
        call.graph, {}, LoopFusion(collapse=False), Options(), target="emulate", **layers, gpu=gpu
    )
    return made.lowered(Watch(Options()))


def code_of(low: Lowered, kernels: KernelGraph | None = None) -> CudaCode:
    return emit_cuda(Request(kernels or low.kernels, copied=low.copied))


@cache
def compiled(kind: str, device: str = "usual", count: int = len(SHAPES)) -> tuple[Lowered, CudaCode]:
    """A step for the first tensors, compiled once for all tests."""
    low = lowered(call_of(kind, SHAPES[:count]), DEVICES[device])
    return low, code_of(low)


def expected(call: Call) -> Any:
    return evaluate(call.graph, {}, {n: a for n, a in call.memory().items() if n in call.graph.inputs})


def results(call: Call, code: CudaCode, **options: Any) -> dict[str, Array]:
    """The memory after a run, looked at from all sides."""
    arrays = call.memory()
    EmulatedKernels(code, **options).run(arrays)
    return arrays


def resident(code: CudaCode) -> int:
    return max(int(x.blocks.value) for x in code.plan.launches)  # type: ignore[union-attr]


@pytest.mark.parametrize("device", thinned(DEVICES, 4))
@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_tensors_of_all_sizes_agree_with_the_reference(kind: str, device: str) -> None:
    call = call_of(kind, SHAPES)
    want = expected(call)
    _, code = compiled(kind, device)
    (launch,) = code.plan.launches
    assert launch.cooperative == (kind == "lamb")
    for order in ("random", "forward", "reverse"):
        arrays = results(call, code, order=order, resident=resident(code))
        compare_results(call, arrays, want, f"{device}, {order}")


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_special_values_agree_with_the_reference(value: float) -> None:
    call = call_of("lamb", SHAPES[:4])
    call.inputs["g0"][0, 0] = value
    call.inputs["p1"][:] = 0.0
    compare_results(call, results(call, compiled("lamb", count=4)[1]), expected(call), str(value))


def test_stages_hold_what_does_not_wait_for_each_other() -> None:
    low, code = compiled("lamb")
    (kernel,) = low.kernels.kernels
    memory = {t.name: t for t in low.kernels.graph.tensors}
    written: list[set[str]] = []
    for stage in kernel.parts:
        touched = [touched_memory(k, memory) for k in stage.packed or (stage,)]
        for k, one in enumerate(touched):
            assert not any(one.meets(other) for other in touched[:k])
            # It waits for something of the stage before, so it could be in no earlier one.
            assert not written or written[-1] & (one.read | one.written)
        written.append({m for t in touched for m in t.written | t.read})
    assert code.source.count("  pf_grid_barrier(grid_state);") == len(kernel.parts) - 1


@pytest.mark.parametrize("most", thinned([8, 512], 2))
def test_the_order_of_packing_does_not_matter(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a stage in another order, with arguments passed and in a table: the same bits."""
    monkeypatch.setattr(multi_kernel, "MOST_PASSED", most)
    call, (low, _) = call_of("lamb", SHAPES), compiled("lamb")
    (kernel,) = low.kernels.kernels
    found = []
    for seed in range(3):
        dice = random.Random(seed)
        shuffled = []
        for p in kernel.parts:
            inner = list(p.packed or (p,))
            dice.shuffle(inner)
            shuffled.append(packed(inner))
        other = replace(low.kernels, kernels=(replace(kernel, parts=tuple(shuffled)),))
        code = code_of(low, other)
        assert bool(code.plan.launches[0].table) == (most == 8)
        found.append({n: a.tobytes() for n, a in results(call, code, seed=seed).items()})
    assert found[0] == found[1] == found[2]


# --- what must not be -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lamb() -> tuple[Call, Lowered, CudaCode]:
    return call_of("lamb", SHAPES), *compiled("lamb")


def test_a_grid_that_is_not_resident_would_wait_for_ever(lamb: tuple[Call, Lowered, CudaCode]) -> None:
    call, _, code = lamb
    with pytest.raises(EmulationError, match="waits for ever") as refused:
        results(call, code, resident=resident(code) - 1)
    assert refused.value.code == "PF735"


def test_a_device_that_does_not_hold_the_grid_refuses_it(lamb: tuple[Call, Lowered, CudaCode]) -> None:
    _, _, code = lamb
    each = -(-resident(code) // 4)
    CudaExecutable(code, b"", {}, RecordingDriver(resident=each))
    with pytest.raises(DeviceError, match="can be resident at once") as refused:
        CudaExecutable(code, b"", {}, RecordingDriver(resident=each - 1))
    assert refused.value.code == "PF745"


def test_blocks_that_leave_out_a_barrier_are_found(lamb: tuple[Call, Lowered, CudaCode]) -> None:
    """Not equalised: only blocks that have a task in the first stage come to the barrier after it."""
    call, _, code = lamb
    barrier = "  pf_grid_barrier(grid_state);"
    uneven = code.source.replace(barrier, f"  if (blockIdx.x < 3) {barrier}", 1)
    assert uneven != code.source
    with pytest.raises(EmulationError) as refused:
        results(call, replace(code, source=uneven))
    assert refused.value.code == "PF734"


def test_a_stage_without_its_barrier_is_a_race(lamb: tuple[Call, Lowered, CudaCode]) -> None:
    call, _, code = lamb
    early = code.source.replace("  pf_grid_barrier(grid_state);", "", 1)
    with pytest.raises(EmulationError, match="no grid barrier in between"):
        results(call, replace(code, source=early))


def test_what_depends_on_each_other_in_one_stage_is_a_race(lamb: tuple[Call, Lowered, CudaCode]) -> None:
    call, low, _ = lamb
    (kernel,) = low.kernels.kernels
    first, second, *rest = kernel.parts
    both = packed([*(first.packed or (first,)), *(second.packed or (second,))])
    wrong = replace(low.kernels, kernels=(replace(kernel, parts=(both, *rest)),))
    inner = [x for p in kernel.parts for x in (p.packed or (p,))]
    assert len(stages(low.kernels.graph, (packed(inner[:2]), *inner[2:]))) == len(kernel.parts)
    with pytest.raises(EmulationError, match=r"race|nothing has written"):
        results(call, code_of(low, wrong))


def test_the_planner_refuses_blocks_that_are_not_resident() -> None:
    """A multiprocessor with few registers holds no block for sure: packs stay launches of their own."""
    call = call_of("lamb", SHAPES)
    low = lowered(call, replace(DEVICES["usual"], registers=1024))
    assert len(low.kernels.kernels) > 1 and not any(k.parts for k in low.kernels.kernels)
    assert any("does not hold a block" in d.reason for d in low.decisions if d.kind == "grid barrier")
    compare_results(call, results(call, code_of(low)), expected(call), "apart")


def test_shared_memory_that_leaves_no_room_is_refused(lamb: tuple[Call, Lowered, CudaCode]) -> None:
    _, low, _ = lamb
    (kernel,) = low.kernels.kernels
    crowded = replace(low.kernels, kernels=(replace(kernel, per_sm=4096),))
    with pytest.raises(ScheduleError, match="are not resident"):
        code_of(low, crowded)


# --- tables of arguments --------------------------------------------------------------------------------


def scaled(count: int) -> str:
    """Operators on tensors of different lengths, each with a number of its own and one that all have."""
    inputs = ", ".join(f"x{k}: f32[N{k}], s{k}: f32" for k in range(count))
    outputs = ", ".join(f"y{k}: f32[N{k}]" for k in range(count))
    lines = "\n".join(f"  y{k}[n] = x{k}[n] * s{k} + c" for k in range(count))
    return f"op f({inputs}, c: f32) -> ({outputs}) {{\n{lines}\n}}"


@pytest.mark.parametrize("common", [0, 3])
def test_numbers_may_be_in_a_table(common: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_kernel, "MOST_PASSED", 4)
    monkeypatch.setattr(multi_kernel, "MOST_COMMON", common)
    rng = np.random.default_rng(0)
    args: list[Any] = []
    for k in range(9):
        args += [rng.normal(size=1 + 7 * k).astype("f4"), np.float32(k)]
    f = pf.compile(scaled(9), target="emulate")
    for k, y in enumerate(f(*args, np.float32(0.5))):
        np.testing.assert_allclose(y, args[2 * k] * np.float32(k) + np.float32(0.5), rtol=1e-6)
    (launch,) = f.built(*args, np.float32(0.5)).code.plan.launches
    passed = [a for a in launch.arguments if a.passing is Passing.VALUE]
    assert launch.table and len(passed) == common
    assert any(a.passing is Passing.VALUE for a in launch.table)


def test_one_kernel_with_very_many_arguments_gets_a_table() -> None:
    """A total of 600 tensors is one statement: more pointers than a launch takes."""
    count = 600
    inputs = ", ".join(f"x{k}: f32[N]" for k in range(count))
    parts = [" + ".join(f"x{k}[n]" for k in range(first, first + 25)) for first in range(0, count, 25)]
    total = " + ".join(f"({p})" for p in parts)
    f = pf.compile(f"op f({inputs}) -> (y: f32[N]) {{\n  y[n] = {total}\n}}", target="emulate")
    args = [np.full(3, k, "f4") for k in range(count)]
    np.testing.assert_allclose(f(*args), np.full(3, sum(range(count))), rtol=1e-5)
    (launch,) = f.built(*args).code.plan.launches
    assert len(launch.arguments) == 1 and len(launch.table) == count + 1


def rows_of(code: CudaCode) -> Callable[[LaunchRecord], None]:
    """Reads the table of a launch as a kernel would."""

    def execute(record: LaunchRecord) -> None:
        (launch,) = code.plan.launches
        place = [a.passing for a in launch.arguments].index(Passing.TABLE)
        cells = (ctypes.c_uint64 * len(launch.table)).from_address(record.values[place])
        seen.append(list(cells))

    seen: list[list[int]] = []
    execute.seen = seen  # type: ignore[attr-defined]
    return execute


def on_device(call: Call, memory: DeviceMemory) -> dict[str, Any]:
    return {
        n: a if a.ndim == 0 else DeviceArray.empty(memory, a.shape, a.dtype).set(a)
        for n, a in call.memory().items()
        if n in call.graph.inputs
    }


def test_a_table_is_uploaded_once_for_the_same_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_kernel, "MOST_PASSED", 8)
    call = call_of("adamw", SHAPES[:3])
    code = code_of(lowered(call, DEVICES["usual"]))
    execute = rows_of(code)
    driver = RecordingDriver(execute, resident=64)
    f = CudaExecutable(code, b"", {}, driver)
    memory = DeviceMemory.get(driver)
    with driver.current():
        arrays, others = on_device(call, memory), on_device(call, memory)
    bound = f.bind(arrays)
    driver.calls.clear()
    bound()
    bound()
    assert not driver.named("copy_in"), "it was uploaded when the call was prepared"
    for given, uploads in ((arrays, 1), (arrays, 0), (others, 1), (arrays, 1)):
        driver.calls.clear()
        f.run(given)
        assert len(driver.named("copy_in")) == uploads
    (launch,) = code.plan.launches
    seen = execute.seen  # type: ignore[attr-defined]
    for content, given in zip(seen, (arrays, arrays, arrays, arrays, others, arrays), strict=True):
        aliases = {b.name: b.alias or b.name for b in code.plan.buffers}
        want = [given[aliases[a.name]].address for a in launch.table]
        assert content == want


def test_numbers_in_a_table_follow_their_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prepared call reads its numbers anew in every run."""
    monkeypatch.setattr(multi_kernel, "MOST_PASSED", 4)
    monkeypatch.setattr(multi_kernel, "MOST_COMMON", 0)
    args = [a for k in range(5) for a in (np.ones(3 + k, "f4"), np.asarray(np.float32(k)))]
    function = pf.compile(scaled(5), target="emulate")
    code = function.built(*args, np.float32(0.5)).code
    assert isinstance(code, CudaCode)
    execute = rows_of(code)
    driver = RecordingDriver(execute, resident=64)
    f = CudaExecutable(code, b"", {}, driver)
    names = [p.name for p in function.signature.params]
    given = dict(zip(names, [*args, np.asarray(np.float32(0.5))], strict=True))
    results = {b.name: f.output(b) for b in code.plan.buffers if b.name.startswith("y")}
    run = f.bind({**given, **results})
    run()
    given["s3"][...] = 7.0
    run()
    (launch,) = code.plan.launches
    place = next(k for k, a in enumerate(launch.table) if a.name == "s3")
    bits = [np.uint64(row[place]).astype(np.uint32).view(np.float32) for row in execute.seen]  # type: ignore[attr-defined]
    assert bits == [3.0, 7.0]


# --- how many launches ----------------------------------------------------------------------------------


def launches_of(kind: str, count: int, target: str, device: str | None = None) -> int:
    graph = getattr(OPTIMIZER, kind)(OPTIMIZER.layers(count // 5, 64, 256)).op().graph()
    options = Options(device=device)
    made = Compilation(
        graph, {}, LoopFusion(), options, target=target, stitching=Stitching(), packing=Packing()
    )
    return len(made.lowered(Watch(options)).kernels.kernels)


# A usual run counts the same kernels in `test_kernel_counts.py`.
@pytest.mark.slow
@pytest.mark.parametrize(("target", "device"), [("cpu", None), ("cuda", "H200"), ("cuda", "V100")])
@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_a_step_for_fifty_tensors_is_one_launch(kind: str, target: str, device: str | None) -> None:
    assert launches_of(kind, 50, target, device) == 1


@pytest.mark.slow
@pytest.mark.parametrize("device", ["H200", "V100"])
@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_a_step_for_two_hundred_tensors_is_one_launch(kind: str, device: str) -> None:
    assert launches_of(kind, 200, "cuda", device) == 1


def test_compiling_grows_with_the_number_of_tensors() -> None:
    """Four times the tensors take less than eight times as long (linear: four, the rest for noise)."""
    seconds = []
    for count in (15, 60):
        start = time.process_time()
        launches_of("lamb", count, "cpu")
        seconds.append(time.process_time() - start)
    assert seconds[1] < 8 * seconds[0]
