"""One estimate of contractions in register tiles: of the nest, of the kernel, of the statement in a plan."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.cost.cpu_device import Tiles, table_cpu
from polyfuse.cost.nests import Nest, nests
from polyfuse.cost.speed_of_light import estimate
from polyfuse.ir.contraction import matrix_product
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.layers.contractions.times import LEAD, ContractionTimes, contraction_times, tile_weight

SUMMED = """op f(a: f32[M, K], b: f32[{right}], c: f32[N]) -> (y: f32[M, N]) {{
  s[m, n] = sum[k](a[m, k] * b[{read}])
  y[m, n] = tanh(s[m, n] + c[n])
}}"""
PLAIN = SUMMED.format(right="K, N", read="k, n")
TURNED = SUMMED.format(right="N, K", read="n, k")
SIZES = ((256, 96, 224), (64, 512, 512), (1024, 768, 3072), (128, 1100, 40))


def kernels_of(text: str, m: int, k: int, n: int) -> pf.Kernels:
    plain = pf.parse(text).op().specialize(M=m, K=k, N=n).schedule()
    return plain.apply(pf.LoopFusion()).lower(target="cpu").apply(pf.Stitching())


def tiled(kernel: Kernel) -> list[Nest]:
    return [n for part in kernel.parts or (kernel,) for n in nests(part) if n.tiles is not None]


@pytest.mark.machine("zen5")
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("text", (PLAIN, TURNED))
def test_a_kernel_takes_as_long_as_its_tiles(text: str, sizes: tuple[int, int, int]) -> None:
    graph = pf.parse(text).op().specialize(M=sizes[0], K=sizes[1], N=sizes[2]).graph
    s = next(s for s in graph.statements if s.reduction is not None)
    found = matrix_product(graph, s)
    assert found is not None
    times = contraction_times(graph, s, found, Core(), 2)
    assert times.tiles is not None
    found = estimate(kernels_of(text, *sizes).ir, table_cpu(2)).seconds
    assert times.tiles <= 1.01 * found, "the kernel also does what follows"
    copies = 1.8 if text is PLAIN else 2.9
    assert found <= copies * times.tiles, "and copies of factors; elements that are turned count as far apart"
    weight = tile_weight(graph, s, 2)
    assert weight is not None and 0.7 * times.tiles < weight / table_cpu(2).operations <= times.tiles


@pytest.mark.machine("zen5")
@pytest.mark.parametrize("sizes", SIZES)
def test_loops_of_tiles_inside_those_of_blocks(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    (nest,) = tiled(kernels_of(PLAIN, m, k, n).ir.kernels[0])
    assert nest.tiles is not None
    assert m * k * n <= nest.count(*Coordinate) <= 1.5 * m * k * n
    computed = nest.tiles.rows * nest.tiles.columns * nest.tiles.steps * nest.tiles.visits
    assert computed == nest.count(*Coordinate)
    assert nest.tiles.columns == min(n, 16 * ceil(nest.tiles.columns / 16))


@pytest.mark.parametrize("text", (PLAIN, TURNED))
def test_a_contraction_with_what_follows_is_no_doubt(text: str) -> None:
    f = pf.compile(text, threads=2, library="never")
    a, b, c = (np.ones(shape, "f4") for shape in ((256, 700), (700, 512), (512,)))
    told = f.explain(a, b if text is PLAIN else np.ascontiguousarray(b.T), c)
    assert " tile s" in told and " feedback " not in told


def test_lanes_are_added_up_where_the_vector_loop_is_summed() -> None:
    def sums(text: str) -> float:
        made = pf.parse(text).op().specialize(M=64, N=96).schedule().lower(target="cpu")
        return sum(nest.lane_sums for k in made.ir.kernels for nest in nests(k))

    assert sums("op f(x: f32[M, N]) -> (y: f32[M]) { y[m] = sum[n](x[m, n]) }") == 64
    assert sums("op f(x: f32[M, N]) -> (y: f32[N]) { y[n] = sum[m](x[m, n]) }") <= 96 / 16


def test_cycles_of_tiles() -> None:
    core = Core()
    whole = Tiles(13, 32, 384, 100, 4)
    peak = 13 * 32 * 384 * 100 / (16 * core.units)
    assert peak < whole.cycles(core) < 1.25 * peak
    assert Tiles(1, 16, 384, 100, 4).cycles(core) >= 100 * 384 * core.latency, "one chain of additions"
    assert Tiles(13, 32, 384, 200, 4).cycles(core) == 2 * whole.cycles(core)
    assert Tiles(13, 16, 384, 100, 8).cycles(core) == pytest.approx(whole.cycles(core), rel=0.02)


def test_a_library_has_to_be_faster_by_a_lead() -> None:
    assert ContractionTimes(1.2, 9.0, 1.0).generated and ContractionTimes(LEAD, 9.0, 1.0).generated
    assert not ContractionTimes(1.3, 0.1, 1.0).generated
    assert ContractionTimes(None, 1.2, 1.0).generated and not ContractionTimes(None, 1.3, 1.0).generated
