"""What every target answers, and what is chosen by its class."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.device import Device
from polyfuse.cost.machines import machine_of
from polyfuse.ir.cpu_knobs import CpuKnobs
from polyfuse.ir.target import CpuTarget, GpuTarget, Target, as_target
from polyfuse.layers.target_figures import CpuFigures, GpuFigures, figures_on
from polyfuse.layers.target_mapping import CpuMapping, GpuMapping, mapping_of
from polyfuse.options import Options
from polyfuse.targets import ON_GPU, TARGETS, mapped_for

PROPERTIES = sorted(name for name in vars(Target) if not name.startswith("_"))


@dataclass(frozen=True)
class OtherGpu(GpuTarget):
    """One of another maker."""

    sms: int = 7


@pytest.mark.parametrize("target", (CpuTarget(), GpuTarget(), OtherGpu()), ids=str)
def test_a_target_has_all_properties(target: Target) -> None:
    assert len(PROPERTIES) == 8
    assert all(hasattr(target, name) for name in PROPERTIES)


@pytest.mark.parametrize("name", [n for n in TARGETS if n != "auto"])
def test_a_name_has_a_target(name: str) -> None:
    device = "H200" if name in ON_GPU else None
    target = mapped_for(name, Options(threads=3, device=device))
    assert target.kind == ("gpu" if name in ON_GPU else "cpu")
    assert target.vector_loops == (name not in ON_GPU)
    if name not in ON_GPU:
        assert target == CpuTarget(3)


def test_a_number_is_that_of_threads() -> None:
    assert as_target(5) == CpuTarget(5)
    assert as_target(CpuTarget(5)) == CpuTarget(5)
    assert as_target(GpuTarget(sms=4)) == GpuTarget(sms=4)


def test_a_library_of_a_gpu_takes_halves_where_there_is_one() -> None:
    found = [GpuTarget(library=known).library_halves for known in (None, False, True)]
    assert found == [False, False, True] and not CpuTarget().library_halves


def test_what_a_target_chooses() -> None:
    cpu, gpu, knobs = CpuTarget(6), GpuTarget(sms=80, bandwidth=0.9e12, l2_bytes=1 << 20), CpuKnobs(strip=8)
    found, other = machine_of(cpu), machine_of(gpu)
    assert isinstance(found, CpuDevice) and found.threads == 6
    assert isinstance(other, Device)
    assert (other.sms, other.memory_bandwidth, other.l2_bytes) == (80, 0.9e12, 1 << 20)
    assert mapping_of(cpu, knobs) == CpuMapping(6, knobs) and figures_on(cpu) == CpuFigures(6)
    assert mapping_of(gpu, knobs) == GpuMapping(gpu) and figures_on(gpu) == GpuFigures(gpu)


def test_a_subclass_is_taken_for_its_base() -> None:
    gpu = OtherGpu()
    assert machine_of(gpu) == machine_of(GpuTarget(sms=7))
    assert mapping_of(gpu, CpuKnobs()) == GpuMapping(gpu) and figures_on(gpu) == GpuFigures(gpu)
    assert replace(gpu, sms=9).sms == 9


def test_what_is_no_target_is_refused() -> None:
    for choose in (machine_of, figures_on, lambda x: mapping_of(x, CpuKnobs())):
        with pytest.raises(NotImplementedError):
            choose("cpu")  # type: ignore[operator]
