"""The projected model of GPU kernels: what its terms do, and the errors that its page promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import gpu_bars, gpu_projection
from benchmarks.gpu_bars import BARS, WITHIN, Reached
from benchmarks.gpu_projection import H200, PAGE, mape, ordered, points, table
from benchmarks.pages import BEGIN
from polyfuse.cost.gpu_projection import FITTED, TRACED_CYCLES, Launched, projected
from polyfuse.ir.warp_work import WarpWork
from polyfuse.runtime.cuda.compiler import find_nvrtc
from polyfuse.runtime.cuda.sass import find_nvdisasm

WORK = WarpWork(
    instructions={"issue": 200.0, "fma": 100.0, "alu": 40.0, "mufu": 8.0, "lsu": 4.0},
    loads={16: 1024.0},
    stores={16: 1024.0},
    cycles=1300.0,
    trips=1.0,
    in_flight=1024.0,
)
KERNEL = Launched(WORK, blocks=100_000, threads=256, resident=8, memory_bytes=1.6e9)


def seconds(kernel: Launched) -> float:
    return projected(kernel, H200).seconds


def more(**fields: object) -> Launched:
    return replace(KERNEL, work=replace(WORK, **fields))  # type: ignore[arg-type]


# --- terms ---------------------------------------------------------------------------------------------


def test_memory_limits_a_kernel_that_does_little() -> None:
    found = projected(KERNEL, H200)
    assert found.limit == "memory" and found.memory_s == pytest.approx(1.6e9 / (FITTED.bandwidth * 4.8e12))
    assert found.memory_s < found.seconds < 1.1 * found.memory_s
    assert found.in_flight == 1024 * 8 * 8


@pytest.mark.parametrize(("pipe", "count"), [("mufu", 200.0), ("alu", 800.0), ("issue", 2000.0)])
def test_the_slowest_pipe_limits(pipe: str, count: float) -> None:
    found = projected(more(instructions={**WORK.instructions, pipe: count}), H200)
    assert (found.limit, found.pipe) == (pipe, pipe) and found.seconds > seconds(KERNEL)


def test_waits_that_follow_each_other_take_longer_than_one() -> None:
    """Loads one after the other, each waited for, against all at once."""
    serial = more(trips=8.0, cycles=300 + 8 * TRACED_CYCLES, in_flight=128.0)
    assert projected(serial, H200).limit == "latency" and seconds(serial) > 1.2 * seconds(KERNEL)


def test_fewer_resident_blocks_hide_less() -> None:
    assert seconds(replace(KERNEL, resident=1)) > 1.3 * seconds(KERNEL)


def test_barriers_and_launches_are_paid() -> None:
    half = replace(WORK, loads={16: 512.0}, stores={16: 512.0})
    whole = replace(WORK, grid_barriers=1.0, phases=(half, half))
    apart = seconds(replace(KERNEL, work=whole)) - seconds(KERNEL)
    assert apart > FITTED.grid_barrier_s
    assert seconds(replace(KERNEL, blocks=1, memory_bytes=0.0)) > FITTED.launch_s
    assert seconds(more(block_barriers=1000.0)) > 5 * seconds(KERNEL)


def test_nothing_takes_a_launch() -> None:
    found = projected(Launched(WarpWork(), 1, 32, 1, 0.0), H200)
    assert found.seconds == FITTED.launch_s and found.limit == "launch"


# --- errors --------------------------------------------------------------------------------------------


def test_points_that_were_kept_out() -> None:
    """What docs/lab/gpu_projection.md promises."""
    held = [p for p in points() if p.held]
    assert (len(points()), len(held)) == (166, 55)
    assert mape(held) < 0.075 and mape([p for p in held if p.kind == "operator"]) < 0.105
    right, clear = ordered(held)
    assert clear == 94 and right >= 91
    right, clear = ordered(points())
    assert clear == 807 and right >= 758


def test_the_page_has_the_figures() -> None:
    assert PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].strip() == table().strip()


def test_the_constants_are_the_fitted_ones() -> None:
    """Any change of one of them by a tenth makes the fitted points worse, in the mean of the logarithms."""
    chosen = [p for p in points() if not p.held]
    best = gpu_projection.loss(chosen, FITTED)
    for name in ("bandwidth", "issue", "load_s", "launch_s", "fill", "power"):
        for factor in (0.9, 1.1):
            moved = replace(FITTED, **{name: getattr(FITTED, name) * factor})
            assert gpu_projection.loss(chosen, moved) > best, (name, factor)


# --- bars ----------------------------------------------------------------------------------------------


def test_every_bar_has_figures() -> None:
    assert list(gpu_bars.recorded()) == list(BARS) and len(BARS) == 34
    assert all(c.label in BARS for c in gpu_bars.chosen(BARS)) and len(gpu_bars.chosen([])) == 34


def falls_behind(label: str, now: Reached, before: Reached) -> list[str]:
    """In what a case is worse than the file says, and takes longer than its bar allows."""
    less = [n for n in ("wide",) if getattr(now, n) < getattr(before, n) - 0.005]
    worse = [n for n in ("divisions", "spills") if getattr(now, n) > getattr(before, n)]
    slower = ["projected"] * (now.projected > max(1.02 * before.projected, WITHIN * BARS[label]))
    return [*less, *worse, *slower]


def test_falling_behind_is_seen() -> None:
    label = "ln_fwd 65536x768 f32"
    before = gpu_bars.recorded()[label]
    assert falls_behind(label, before, before) == []
    worse = replace(before, wide=0.5, divisions=1, spills=8, projected=2 * before.projected)
    assert falls_behind(label, worse, before) == ["wide", "divisions", "spills", "projected"]


# The quickest to compile and follow.
QUICK = ("bias_gelu 65536x3072 bf16", "dropout_residual 16384x768 f32")


@pytest.mark.parametrize(
    "label", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in BARS]
)
def test_no_case_falls_behind(label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m benchmarks.gpu_bars --update` writes what is better."""
    if find_nvdisasm() is None or (nvrtc := find_nvrtc()) is None or "cu12 12.9" not in nvrtc.origin:
        pytest.skip("figures are of NVRTC 12.9's code")
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    now = gpu_bars.reached(gpu_bars.chosen([label])[0])
    assert falls_behind(label, now, gpu_bars.recorded()[label]) == [], f"{now}"
    assert now.spills == 0
