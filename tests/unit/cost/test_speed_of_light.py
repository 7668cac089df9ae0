"""The cost model against figures worked out by hand, and what must hold of any estimate."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import polyfuse as pf
from polyfuse.cost.cpu_device import CpuDevice, Level
from polyfuse.cost.device import DEVICES, Device, device
from polyfuse.cost.extents import Touched, instances, union
from polyfuse.cost.figures import Estimate
from polyfuse.cost.nests import nests
from polyfuse.cost.speed_of_light import estimate
from polyfuse.cost.stitching_gain import NestFigures, StitchingCost, gain
from polyfuse.cost.traffic import Footprints, distances
from polyfuse.driver.kernel_stages import Kernels
from polyfuse.driver.targets import chip
from polyfuse.ir.schedule_tree import Coordinate

MB = 1e6
# Round figures: 1 GB/s of memory, 10 of the caches, 1 G operations a second.
CPU = CpuDevice(
    threads=2,
    levels=(
        Level("L1", 32e3, 10e9, True),
        Level("L2", 256e3, 10e9, True),
        Level("L3", 1e6, 10e9),
        Level("memory", float("inf"), 1e9),
    ),
    operations=1e15,
    call_s=0.0,
    step_s=0.0,
)


def stages(op: Any, target: str = "cpu", **sizes: int) -> tuple[pf.Kernels, pf.Kernels, pf.Kernels]:
    """Without layers, with I, with I and II."""
    plain = op.specialize(**sizes).schedule()
    fused = plain.apply(pf.LoopFusion()).lower(target=target)
    return plain.lower(target=target), fused, fused.apply(pf.Stitching())


def layer_norm(target: str = "cpu", rows: int = 4096, length: int = 768) -> tuple[Kernels, Kernels, Kernels]:
    return stages(pf.stdlib.op("layer_norm"), target, B_0=rows, H=length)


GRID, ROWS, LINE = 4096 * 768 * 4, 4096 * 4, 768 * 4


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_bytes_of_layer_normalisation(target: str) -> None:
    machine: Device | CpuDevice = CPU if target == "cpu" else device("H200")
    _, three, one = (estimate(k.ir, machine) for k in layer_norm(target))
    assert (three.launches, one.launches) == (3, 1)
    # mu reads x; var reads x and mu; y reads x, mu, var, gamma, beta, eps and is written.
    assert three.read == GRID + (GRID + ROWS) + (GRID + 2 * ROWS + 2 * LINE + 4)
    assert three.written == ROWS + ROWS + GRID
    assert one.read == GRID + 2 * LINE + 4
    assert one.written == GRID


def test_time_of_layer_normalisation_on_a_cpu() -> None:
    _, three, one = (estimate(k.ir, CPU) for k in layer_norm())
    # 12.6 MB do not fit 1 MB: four passes over memory against two; rows read again come from L1.
    assert three.seconds == pytest.approx(4 * GRID / 1e9, rel=0.01)
    assert one.seconds == pytest.approx(2 * GRID / 1e9, rel=0.01)
    levels = dict(one.kernels[0].levels)
    assert levels["memory"] == pytest.approx(2 * GRID, rel=0.01)
    # x twice more; gamma and beta once for each row.
    assert levels["L1"] == pytest.approx(2 * GRID + 2 * GRID, rel=0.01)
    assert {k.terms.bound for k in three.kernels} == {"memory"}


def test_a_row_that_does_not_fit_comes_from_further_away() -> None:
    for length, level in ((768, "L1"), (12 * 1024, "L2"), (256 * 1024, "memory")):
        found = estimate(layer_norm(rows=1024, length=length)[2].ir, CPU).kernels[0]
        moved, grid = dict(found.levels), 1024 * length * 4
        passes = 6 if level == "memory" else 2  # gamma and beta do not stay either
        assert moved["memory"] == pytest.approx(passes * grid, rel=0.02), level
        assert moved[level] >= 2 * grid


def test_what_fits_a_cache_stays_there_between_calls() -> None:
    found = estimate(layer_norm(rows=64)[2].ir, CPU)
    assert dict(found.kernels[0].levels)["memory"] == 0
    assert found.kernels[0].terms.bound == "cache"


def test_time_of_layer_normalisation_on_a_gpu() -> None:
    v100 = device("V100")
    _, three, one = (estimate(k.ir, v100) for k in layer_norm("cuda"))
    # 6 MB of L2 hold nothing of it between kernels.
    assert one.seconds == pytest.approx(2 * GRID / 0.9e12 + 2.5e-6, rel=0.2)
    assert three.seconds == pytest.approx(4 * GRID / 0.9e12 + 3 * 2.5e-6, rel=0.2)
    assert one.kernels[0].occupancy is not None and one.kernels[0].occupancy.blocks_per_sm >= 1
    assert gain(three, one) > 2 * GRID / 0.9e12


COLUMN = pf.parse("op column(x: f32[T, H]) -> (y: f32[H]) { y[h] = sum[t](x[t, h]) }")
HALVES = pf.parse(
    "op gated(x: f32[T, 2*H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] * x[t, h+H] for h in 0..H }"
)
LOWER = pf.parse("op lower(x: f32[N, N]) -> (y: f32[N]) { y[i] = sum[j in 0..i+1](x[i, j]) }")
TAKEN = pf.parse("op taken(x: f32[V, D], k: i64[N]) -> (y: f32[N, D]) { y[n, d] = x[k[n], d] }")


def test_bytes_between_two_uses_are_counted_as_they_are_defined() -> None:
    """All that kernels touch from one that uses a tensor to the next one that does, in a ring."""

    def defined(kernels: list[Footprints], k: int, tensor: str) -> float:
        back = next(d for d in range(1, len(kernels) + 1) if tensor in kernels[k - d])
        between = [kernels[k - d] for d in range(min(back, len(kernels) - 1) + 1)]
        boxes = {n: [b for f in between for b in f.get(n, (0, ()))[1]] for f in between for n in f}
        sizes = {n: item for f in between for n, (item, _) in f.items()}
        return sum(sizes[n] * union(found) for n, found in boxes.items())

    rng = random.Random(3)

    def drawn() -> tuple[Touched, ...]:
        low = [rng.randint(0, 5) for _ in range(rng.randint(1, 3))]
        return tuple(Touched(((x, x + rng.randint(0, 9)),), float(rng.randint(1, 9))) for x in low)

    for _ in range(200):
        count = rng.randint(1, 6)
        kernels = [{n: (4, drawn()) for n in rng.sample("abcde", rng.randint(0, 4))} for _ in range(count)]
        for k, row in enumerate(distances(kernels)):  # type: ignore[arg-type]
            assert row == {n: defined(kernels, k, n) for n in kernels[k]}  # type: ignore[arg-type]


def test_halves_of_an_axis_are_counted_once_each() -> None:
    found = estimate(stages(HALVES.op(), T=64, H=128)[0].ir, CPU)
    assert (found.read, found.written) == (64 * 256 * 4, 64 * 128 * 4)
    assert found.kernels[0].work.plain == 64 * 128


def test_a_reduction_over_chunks_reads_each_element_once() -> None:
    for target, machine in (("cpu", CPU), ("cuda", device("H200"))):
        found = estimate(stages(COLUMN.op(), target, T=8192, H=64)[0].ir, machine)
        assert found.kernels[0].read == 8192 * 64 * 4
        assert found.kernels[0].work.plain == 8192 * 64


def test_loops_inside_others_have_what_those_leave() -> None:
    for kernels in stages(pf.stdlib.op("layer_norm_backward"), "cuda", B_0=4096, H=768):
        for kernel in kernels.kernels:
            for part in kernel.parts or (kernel,):
                for nest in nests(part):
                    runs = nest.count(*Coordinate)
                    most = max(instances(found) for _, found in nest.timed)
                    # Threads and vectors beyond the end of a row do nothing.
                    assert most <= runs <= 1.5 * most + 1024


def test_a_triangle_is_half_a_square() -> None:
    found = estimate(stages(LOWER.op(), N=512)[0].ir, CPU)
    assert found.kernels[0].work.plain == 512 * 513 / 2
    assert found.read == 4 * 512 * 513 / 2


def test_data_touches_no_more_rows_than_there_are() -> None:
    few = estimate(stages(TAKEN.op(), V=1000, D=16, N=10)[0].ir, CPU)
    many = estimate(stages(TAKEN.op(), V=10, D=16, N=1000)[0].ir, CPU)
    assert few.read == 10 * 16 * 4 + 10 * 8
    assert many.read == 10 * 16 * 4 + 1000 * 8


def test_functions_weigh_more_than_additions() -> None:
    def work(expression: str) -> float:
        program = pf.parse(f"op f(x: f32[N]) -> (y: f32[N]) {{ y[i] = {expression} }}")
        return estimate(stages(program.op(), N=1000)[0].ir, CPU).kernels[0].work.weighted

    assert work("x[i] + 1.0") == 1000
    assert work("(x[i] + 1.0) * (x[i] + 1.0)") == 2000  # the sum once
    assert work("x[i] / 4.0") < work("x[i] / 3.0") < work("exp(x[i])") < work("erf(x[i])")


def test_a_few_blocks_do_not_fill_a_gpu() -> None:
    h200 = device("H200")
    times = [estimate(layer_norm("cuda", rows, 4096)[2].ir, h200).kernels[0] for rows in (1, 132)]
    # 132 times the work in less than twice the time.
    assert times[1].terms.spent < 2 * times[0].terms.spent
    assert times[0].terms.bound in ("latency", "overhead")


def test_a_faster_machine_is_faster() -> None:
    for kernels in layer_norm("cuda"):
        found = [estimate(kernels.ir, device(n)).seconds for n in ("V100", "A100", "H200")]
        assert all(a > b for a, b in pairwise(found))
    small = layer_norm("cuda", 64, 64)[0].ir
    for d in DEVICES:
        for better in (
            replace(d, memory_bandwidth=9e12),
            replace(d, clock=4e9),
            replace(d, l2_bytes=1 << 30),
        ):
            assert estimate(small, better).seconds <= estimate(small, d).seconds


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_more_work_takes_longer(target: str) -> None:
    machine: Device | CpuDevice = CPU if target == "cpu" else device("H200")
    found = [estimate(layer_norm(target, rows)[2].ir, machine).seconds for rows in (256, 4096, 65536)]
    assert all(a < b for a, b in pairwise(found))
    assert found[2] > 8 * found[1]


def test_estimates_of_stages() -> None:
    plain, _, both = layer_norm("cuda", 64, 64)
    found = both.estimate("V100")
    assert isinstance(found, Estimate) and found.machine == "V100" and found.seconds > 0
    assert plain.estimate().machine == chip(plain.options, "cuda").name  # this machine's GPU, if it has one
    lines = str(found).splitlines()
    assert lines[0].startswith("V100: ") and len(lines) == 2 + both.launches
    table = pf.compare(plain, both).splitlines()
    assert table[0].endswith("estimated us")
    assert float(table[1].split()[-1]) > float(table[2].split()[-1]) > 0
    cpu = layer_norm("cpu", 64, 64)[2]
    assert cpu.estimate().machine.startswith("CPU")
    with pytest.raises(pf.ArgumentError, match="PF414"):
        cpu.estimate("V100")
    open_norm = pf.stdlib.op("layer_norm").specialize().schedule().lower()
    with pytest.raises(pf.ScheduleError, match="PF513: the sizes H are open"):
        open_norm.estimate(sizes={"B_0": 64})
    few, many = (open_norm.estimate(sizes={"B_0": n, "H": 64}) for n in (64, 64 * 1024))
    assert 0 < few.seconds < many.seconds
    known = pf.stdlib.op("layer_norm").specialize(B_0=64 * 1024, H=64).schedule().lower().estimate()
    assert many.seconds == pytest.approx(known.seconds, rel=0.05)


# --- what stitching gains, from figures alone ---------------------------------------------------------------

STATS = NestFigures(GRID, ROWS, 4096 * 768, 4096)
APPLY = NestFigures(GRID + ROWS, GRID, 4096 * 768, 4096)
BOTH = NestFigures(GRID, GRID, 2 * 4096 * 768, 4096, live=768 * 4, again=GRID)


@pytest.mark.parametrize("machine", [CPU, *DEVICES], ids=lambda m: m.name)
def test_stitching_rows_pays(machine: Device | CpuDevice) -> None:
    found = StitchingCost(machine)(STATS, APPLY, BOTH)
    assert found.pays and found.traffic_bytes == GRID + 2 * ROWS
    assert str(found).endswith(" us for 12.6 MB of traffic and a launch saved")


def test_stitching_that_leaves_the_machine_idle_does_not_pay() -> None:
    cost = StitchingCost(device("H200"))
    alone = replace(BOTH, parallel=1, live=float(GRID))
    found = cost(STATS, APPLY, alone)
    assert not found.pays and found.parallelism > 0
    assert "lost to idle parts" in str(found)
    one_worker = StitchingCost(CPU)(STATS, APPLY, replace(alone, live=0.0))
    assert one_worker.parallelism > 0


def test_more_rows_never_cost_more_parallelism() -> None:
    for machine in (CPU, device("H200")):
        cost = StitchingCost(machine)
        lost = [cost(STATS, APPLY, replace(BOTH, parallel=n)).parallelism for n in (1, 2, 4, 132, 1320)]
        assert all(a >= b for a, b in pairwise(lost))
