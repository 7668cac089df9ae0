"""Contractions in tiles of a GPU's threads, in the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from product_programs import FORMS, product_call
from targets import check_emulated
from thinned import thinned

from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cuda.emit import emit_cuda
from polyfuse.driver.lowering import schedule
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.ir.target import GpuTarget
from polyfuse.layers.contractions import contraction, gpu_tiles
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.runtime.cuda.compiler import compile_cuda

SMALLEST = ("FEWEST_PRODUCTS", "FEWEST_ROWS", "FEWEST_COLUMNS", "FEWEST_OVER")
# The result ends inside of a tile along rows, along columns, or not at all; few rows for each thread.
SHAPES = ({"M": 35, "N": 36, "K": 5}, {"M": 33, "N": 39, "K": 4}, {"M": 32, "N": 64, "K": 3})
FEW = ("plain", "wide", "after", "rows", "convolution", "two over")


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SMALLEST:
        monkeypatch.setattr(contraction, name, 1)
    monkeypatch.setattr(gpu_tiles, "THREADS", 8)


def tiled(name: str, **sizes: int) -> bool:
    call = product_call(name, **sizes)
    graph = schedule(fixed_graph(call.graph, call.sizes), LoopFusion())
    return any(d.kind == "tile" for d in form_kernels(graph, GpuTarget(sms=4, least=16))[1])


@pytest.mark.parametrize("shape", thinned(range(len(SHAPES)), 2))
def test_tiles_agree_with_the_reference(shape: int, every_size: None) -> None:
    sizes = SHAPES[shape]
    forms = [n for n in (FORMS if shape == 1 else FEW) if n != "recurrent"]
    calls = [product_call(n, shape, **sizes) for n in forms]
    assert sum(tiled(n, **sizes) for n in forms) >= len(forms) // 2
    check_emulated(calls, devices=("usual",), stitched=(False, True), orders=("random",))


def test_tiles_between_barriers_of_the_grid(every_size: None) -> None:
    calls = [product_call(n, M=35, N=36) for n in ("rows", "chain")]
    check_emulated(calls, devices=("usual",), stitched=(True,), orders=("random",), barriers=True)


def test_not_a_number_goes_through_and_stays_where_it_is(every_size: None) -> None:
    calls = [product_call(n, M=35, N=39) for n in ("plain", "after")]
    for call in calls:
        a, b = call.inputs["a"], call.inputs["b"]
        a[-1, 0], a[0, 1], b[2, -1] = np.nan, np.inf, -np.inf
    check_emulated(calls, devices=("usual",), orders=("random",))


def test_factors_that_are_computed_keep_their_loops(every_size: None) -> None:
    assert tiled("plain", M=64, N=64) and tiled("halves", M=64, N=64)
    assert not tiled("triangle", M=64, N=64) and not tiled("factors", M=64, N=64)


def test_few_tiles_leave_a_device_to_other_mappings() -> None:
    call = product_call("plain", M=256, N=256, K=64)
    scheduled = schedule(fixed_graph(call.graph, call.sizes), LoopFusion())
    for sms, taken in ((16, "4 rows"), (32, "2 rows"), (33, "")):
        decisions = [str(d) for d in form_kernels(scheduled, GpuTarget(sms=sms))[1] if d.kind == "tile"]
        assert bool(decisions) == bool(taken) and all(taken in d for d in decisions)


@pytest.mark.parametrize("name", ["plain", "wide", "halves", "after"])
def test_accumulators_are_registers(name: str) -> None:
    call = product_call(name, M=517, N=516, K=64)
    kernels, decisions = form_kernels(
        schedule(fixed_graph(call.graph, call.sizes), LoopFusion()), GpuTarget(sms=8)
    )
    assert any(d.kind == "tile" for d in decisions)
    made = compile_cuda(emit_cuda(Request(kernels)).source, "sm_90")
    assert all(r.spill_stores == 0 and r.spill_loads == 0 for r in made.resources.values())
    assert all(r.registers <= 128 for r in made.resources.values())
