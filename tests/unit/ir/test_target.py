"""What every target answers, and what is chosen by its class."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.device import Device
from polyfuse.cost.machines import machine_of
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.driver.targets import ON_GPU, TARGETS, mapped_for
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.target import CpuTarget, GpuTarget, Target, as_target
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.graph.pipeline import GraphContext, prepared
from polyfuse.layers.mapping.targets import CpuMapping, GpuMapping, mapping_of
from polyfuse.layers.packing.blas_products import library_product
from polyfuse.layers.stitching.targets import CpuFigures, GpuFigures, figures_on
from polyfuse.options import Options

PROPERTIES = sorted(name for name in vars(Target) if not name.startswith("_"))


@dataclass(frozen=True)
class OtherGpu(GpuTarget):
    """One of another maker."""

    sms: int = 7


@pytest.mark.parametrize("target", (CpuTarget(), GpuTarget(), OtherGpu()), ids=str)
def test_a_target_has_all_properties(target: Target) -> None:
    assert len(PROPERTIES) == 9
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


# --- what hangs on a property -----------------------------------------------------------------------------

TARGETS_OF_BOTH = (CpuTarget(2), GpuTarget(library=True))


def graph_of(text: str, **sizes: int) -> TensorGraph:
    return fixed_graph(instantiate(parse_text(text), "f"), sizes)


def test_what_follows_a_contraction_is_in_its_cluster_where_tiles_compute_it() -> None:
    text = """op f(x: f32[T, H], w: f32[H, K]) -> (y: f32[T, K]) {
      m[t, k] = sum[h](x[t, h] * w[h, k])
      y[t, k] = tanh(m[t, k])
    }"""
    cut, graph = Clustering(whole=0, library="never"), graph_of(text, T=512, H=512, K=512)
    found = [cut.clusters(graph, [], target) for target in TARGETS_OF_BOTH]
    assert found == [[("m", "y")], [("m",), ("y",)]]


def test_a_number_is_waited_for_where_that_is_cheap() -> None:
    text = "op f(x: f32[N], b: f32) -> (y: f32[N]) { c = rsqrt(b + 1.0); y[i] = x[i] * c }"
    graph = graph_of(text, N=1000)
    made = [prepared(graph, GraphContext([], target, Core(), checked=False)) for target in TARGETS_OF_BOTH]
    assert [[s.name for s in g.statements] for g in made] == [["c", "y"], ["y"]]


def test_a_library_takes_matrices_as_they_lie_or_copies_them() -> None:
    text = """op f(a: f32[M, K, B], b: f32[K, N, B]) -> (c: f32[M, N, B]) {
      c[m, n, q] = sum[k](a[m, k, q] * b[k, n, q])
    }"""
    graph = graph_of(text, M=64, K=64, N=64, B=8)
    found = [library_product(graph, graph.statements[0], target) for target in TARGETS_OF_BOTH]
    assert [x is not None for x in found] == [True, False]
