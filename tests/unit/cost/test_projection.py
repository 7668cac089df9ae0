"""The projected times of variants: what each knob does to them, and the figures of the comparison."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from equivalence import fixed_graph_of

from polyfuse.cost.cpu_device import CpuDevice, table_cpu
from polyfuse.cost.nests import nests
from polyfuse.cost.projection import (
    ROW_S,
    SHARED,
    Projection,
    Rates,
    kept,
    project,
    project_steps,
    since_touched,
    steps_of,
    table_rates,
)
from polyfuse.cost.traffic import Keeping, growing_traffic, traffic
from polyfuse.driver.lowering import Passes, launches, lower_piece
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.target import CpuTarget
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.machine.op_rates import known_op_rates, op_rates

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.projection import (
    Point,
    ceiling,
    clearly,
    lost,
    mape,
    noise,
    ordered,
    ranks,
    spearman,
    spread,
)

NORM = """op norm(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = mean[h](x[t, h])
  v[t] = mean[h]((x[t, h] - m[t]) ** 2)
  y[t, h] = (x[t, h] - m[t]) * rsqrt(v[t] + 1e-5)
}"""
MAP = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = EXPR }"
CPU = table_cpu(2)


def kernels(
    text: str, knobs: CpuKnobs | None = None, stitched: bool = True, stored: bool = False, **sizes: int
) -> KernelGraph:
    stitching, fusion = Stitching() if stitched else None, LoopFusion(rematerialise=not stored)
    passes = Passes(Clustering(), fusion, stitching, None, CpuTarget(2), knobs or CpuKnobs())
    return launches(lower_piece(fixed_graph_of(text, **sizes), passes)[0].kernels, passes)[0]


def projected(
    text: str, knobs: CpuKnobs | None = None, machine: CpuDevice = CPU, stitched: bool = True, **sizes: int
) -> Projection:
    return project(kernels(text, knobs, stitched, False, **sizes), machine, knobs)


def test_memory_bound_and_core_bound() -> None:
    (plain,) = projected(MAP.replace("EXPR", "x[i] + 1.0"), N=1 << 24).kernels
    (heavy,) = projected(MAP.replace("EXPR", "erf(x[i])"), N=1 << 12).kernels
    assert plain.bound == "memory" and heavy.bound == "core"
    moved = 2 * 4 * (1 << 24)
    assert plain.memory >= 0.85 * moved / CPU.levels[-1].bandwidth  # a little stays in L3


def test_what_was_measured_counts() -> None:
    made = kernels(MAP.replace("EXPR", "tanh(x[i])"), N=1 << 12)
    table = table_rates(CPU)
    slow = Rates({**table.seconds, "tanh": 100 * table.of("tanh")}, True)
    assert project(made, CPU, None, slow).seconds > 10 * project(made, CPU, None, table).seconds


def test_rows_fetched_ahead_hide_memory_behind_the_core() -> None:
    near, far = (projected(NORM, CpuKnobs(ahead=n), T=8192, H=768) for n in (1, 0))
    assert near.seconds < far.seconds
    assert math.isclose(near.kernels[0].memory, far.kernels[0].memory)


def test_rows_that_the_last_phase_does_not_read_gain_nothing() -> None:
    """What it reads was kept by another phase: the requests wait in its place."""
    kept_rows = """op f(x: f32[T, H], r: f32[T, H]) -> (y: f32[T, H]) {
      s[t, h] = x[t, h] + r[t, h]
      m[t] = mean[h](s[t, h])
      v[t] = mean[h]((s[t, h] - m[t]) ** 2)
      y[t, h] = (s[t, h] - m[t]) * rsqrt(v[t] + 1e-5)
    }"""
    ways = [CpuKnobs(ahead=n) for n in (1, 0)]
    near, far = (project(kernels(kept_rows, k, stored=True, T=8192, H=768), CPU, k) for k in ways)
    assert near.seconds == far.seconds


def test_rows_that_data_finds_come_late_from_beyond_l2() -> None:
    rows = "op f(x: f32[V, D], i: i32[N]) -> (y: f32[N, D]) { y[n, d] = x[i[n], d] * 2.0 }"
    found = projected(rows, V=1 << 18, D=64, N=1 << 17).kernels[0]
    waiting = found.busy - max(found.memory, found.core) - SHARED * min(found.memory, found.core)
    assert waiting == pytest.approx((1 << 17) * ROW_S / CPU.threads, rel=0.01)
    near = projected(rows, V=64, D=64, N=64).kernels[0]
    assert near.busy == pytest.approx(max(near.memory, near.core) + SHARED * min(near.memory, near.core))


def test_plain_arithmetic_is_no_slower_than_a_fused_pair() -> None:
    table = table_rates(CPU)
    slow = Rates({**table.seconds, "plain": 100 * table.seconds["plain"]})
    made = kernels(MAP.replace("EXPR", "x[i] * 2.0 + 1.0"), N=1 << 12)
    assert project(made, CPU, None, slow).seconds == project(made, CPU, None, table).seconds


def test_apart_moves_more_than_stitched() -> None:
    both = [projected(NORM, None, stitched=s, T=8192, H=768) for s in (True, False)]
    assert both[0].seconds < both[1].seconds
    assert sum(k.memory for k in both[0].kernels) < sum(k.memory for k in both[1].kernels)


@pytest.mark.parametrize(("n", "pays"), [(1 << 24, True), (1 << 20, False)])
def test_stores_past_the_caches_pay_where_results_do_not_fit(n: int, pays: bool) -> None:
    past, through = (
        projected(MAP.replace("EXPR", "x[i] * 2.0"), CpuKnobs(stream=s), N=n).seconds for s in (True, False)
    )
    assert (past < through) == pays


def test_in_place_memory_counts_once() -> None:
    one = "op f(inout p: f32[N]) { p[i] = p[i] * 2.0 }"
    n = 6 << 20  # 24 MB: fits L3 once, not twice
    (kernel,) = projected(one, N=n).kernels
    assert kernel.memory < 2 * 4 * n / CPU.levels[-1].bandwidth


def test_threads_and_chunks() -> None:
    text = MAP.replace("EXPR", "tanh(x[i])")
    one, two = (projected(text, CpuKnobs(threads=t), N=1 << 16).kernels[0] for t in (1, 2))
    assert one.threads == 1 and two.threads == 2 and one.busy > 1.8 * two.busy
    few, many = (projected(text, CpuKnobs(chunks=c), N=1 << 22).kernels[0] for c in (1, 64))
    assert few.overhead < many.overhead
    (small,) = projected(text, N=100).kernels
    assert small.threads == 1


def test_a_cache_keeps_less_of_what_is_larger() -> None:
    shares = [kept(b, 32e6) for b in (1e6, 32e6, 36e6, 48e6, 64e6, 320e6)]
    assert shares[:2] == [1.0, 1.0] and shares == sorted(shares, reverse=True)
    h = shares[3]
    assert math.isclose(h, math.exp((h - 1) * 1.5), rel_tol=1e-6)
    assert shares[-1] < 0.01


def test_traffic_grows_nest_by_nest() -> None:
    (step,) = steps_of(kernels(NORM, T=4096, H=1024))
    (part,) = step.parts
    keeping = Keeping(CPU.level, CPU.level, CPU.level, True)
    found = [*growing_traffic(part.nests, part.since, keeping)]
    assert len(found) > 2
    assert found == [traffic(part.nests[: k + 1], part.since, keeping) for k in range(len(found))]
    assert found[0].by_level != found[-1].by_level


def test_steps_share_what_is_known_of_kernels() -> None:
    made = kernels(NORM, T=4096, H=1024)
    (part,) = steps_of(made)[0].parts
    assert [part.since] == since_touched([part.kernel]) and part.since
    assert [n.body for n in part.nests] == [n.body for n in nests(part.kernel)]
    assert project_steps(steps_of(made), CPU) == project(made, CPU)


def test_a_faster_machine_is_faster() -> None:
    quick = replace(CPU, levels=tuple(replace(x, bandwidth=2 * x.bandwidth) for x in CPU.levels))
    assert projected(NORM, None, quick, T=8192, H=768).seconds < projected(NORM, T=8192, H=768).seconds


def test_figures_of_the_comparison() -> None:
    def points(*pairs: tuple[float, float]) -> list[Point]:
        return [Point("c", str(k), a, (b, b)) for k, (a, b) in enumerate(pairs)]

    assert ranks([3.0, 1.0, 3.0]) == [1.5, 0.0, 1.5]
    rising = points((1, 2), (2, 3), (3, 9))
    assert spearman(rising) == pytest.approx(1) and lost(rising) == 0
    falling = points((1, 9), (2, 3), (3, 2))
    assert spearman(falling) == pytest.approx(-1) and lost(falling) == pytest.approx(3.5)
    assert spearman(rising[:2]) is None
    assert mape(points((1, 2), (3, 2))) == pytest.approx(0.5)
    assert ordered(points((1, 1.0), (2, 1.01), (3, 2.0))) == (2, 2)
    assert ordered(falling) == (0, 3)
    assert spread(rising) == pytest.approx(3.5) and noise(rising) == 0


def test_pairs_that_two_processes_do_not_agree_on_are_not_clear() -> None:
    a, b, c = (
        Point("c", n, 1.0, times) for n, times in (("a", (1.0, 1.5)), ("b", (1.2, 1.3)), ("c", (2, 3)))
    )
    assert not clearly(a, b) and clearly(a, c) and clearly(c, b)
    assert noise([a, b, c]) == pytest.approx(0.5)
    assert ceiling([a, b, c]) == pytest.approx(0.5), "the processes differ in the order of a and b"


def test_functions_are_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    assert known_op_rates(1) is None
    found = op_rates(1)
    assert {"plain", "load", "store", "div", "exp", "erf", "max"} <= set(found)
    assert all(0 < s < 1e-6 for s in found.values())
    assert found["erf"] > found["plain"] and found["pow"] > found["load"]
    assert known_op_rates(1) == found == op_rates(1)
