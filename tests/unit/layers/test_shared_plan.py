"""Shared memory by lifetimes: who may share a place, what a kernel needs, and what sees a wrong plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from row_chains import chain, random_chain
from targets import DEVICES, Call, check_emulated

from polyfuse.codegen.cpu.emit import Request
from polyfuse.codegen.cuda.emit import emit_cuda
from polyfuse.diagnostics import EmulationError, ScheduleError
from polyfuse.driver.lowering import schedule
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import IVar
from polyfuse.ir.kernel import Scope, homes, offsets, registers
from polyfuse.ir.schedule_tree import Band, Coordinate, Leaf, Member, Sequence
from polyfuse.ir.target import GpuTarget
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping import gpu_storage
from polyfuse.layers.mapping import gpu_storage as shared_plan
from polyfuse.layers.mapping.gpu_storage import Need, need, places, steps, total
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.poly.barriers import proof
from polyfuse.runtime.emulator.emulator import EmulatedKernels


def names(found: list[list[Need]]) -> list[list[str]]:
    return [[n.name for n in place] for place in found]


def test_arrays_share_a_place_if_no_step_needs_both() -> None:
    a, b, c = Need("a", 64, 4, 0, 1), Need("b", 64, 4, 1, 2), Need("c", 48, 4, 2, 3)
    assert names(places([a, b, c])) == [["a", "c"], ["b"]]
    assert total([a, b, c]) == 128


def test_a_place_is_as_large_as_its_largest_array() -> None:
    assert total([Need("a", 16, 4, 0, 0), Need("b", 96, 4, 1, 1), Need("c", 32, 4, 2, 2)]) == 96


def test_elements_of_other_sizes_have_places_of_their_own() -> None:
    assert total([Need("a", 64, 4, 0, 0), Need("b", 64, 2, 1, 1)]) == 128


def loop(name: str, coordinate: Coordinate, inside: tuple[str, ...]) -> Member:
    return Member(name, tuple((s, IVar(name)) for s in inside), True, coordinate)


def test_a_loop_is_one_step_and_block_loops_are_none() -> None:
    every = ("a", "b", "c", "d")
    inner = Band((loop("k", Coordinate.SEQ, ("b", "c")),), Sequence((Leaf("b"), Leaf("c"))), True)
    blocks = (loop("t", Coordinate.BLK, every), loop("r", Coordinate.ROW, every))
    tree = Band(blocks, Sequence((Leaf("a"), inner, Leaf("d"))), True)
    assert steps(tree) == {"a": 0, "b": 1, "c": 1, "d": 2}
    assert need("x", 5, 4, ["b", "d"], steps(tree)) == Need("x", 32, 4, 1, 2)


def formed(rows: int, length: int, kept: bool = False, **target: int):  # type: ignore[no-untyped-def]
    call = chain(rows, length, kept)
    graph = schedule(fixed_graph(call.graph, call.sizes), LoopFusion())
    kernels, decisions = form_kernels(graph, replace(GpuTarget(), **target), Stitching(rows=1))
    return call, kernels, "\n".join(map(str, decisions))


def test_ten_rows_one_after_the_other_need_two(golden: Callable[[str, str], None]) -> None:
    _, kernels, text = formed(11, 5000)
    (kernel,) = kernels.kernels
    shared = [b for b in kernel.buffers if b.scope is Scope.SHARED]
    assert len(shared) >= 10 and len({homes(kernel.buffers)[b.tensor].tensor for b in shared}) == 2
    assert offsets(kernel.buffers)[1] == 2 * 20_000
    assert "40 kB of shared memory for 11 arrays" in text and "220 kB if each had its own" in text
    functions = emit_cuda(Request(kernels)).source
    golden("cuda/ten_rows.txt", f"{kernel}\n\n{functions[functions.index('// r0') :]}")


def test_ten_rows_that_are_all_needed_are_demoted_one_by_one() -> None:
    _, kernels, text = formed(10, 5000, kept=True)
    (kernel,) = kernels.kernels
    scopes = [b.scope for b in kernel.buffers if b.tensor.startswith("r")]
    assert scopes.count(Scope.SHARED) == 2 and scopes.count(Scope.GLOBAL) == 8
    assert "too much of it lives at a time" in text


@pytest.mark.parametrize("length", (1, 31, 200, 513))
def test_shared_places_compute_what_they_should(length: int) -> None:
    check_emulated([chain(5, length), chain(4, length, kept=True)], stitched=(True,))


def test_random_chains_share_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """No read of data that another array left, and no race."""
    shared = []
    planned = gpu_storage.GpuStorage.planned

    def watched(self, buffers):  # type: ignore[no-untyped-def]
        found = planned(self, buffers)
        shared.extend(b for b in found if b.place is not None)
        return found

    monkeypatch.setattr(gpu_storage.GpuStorage, "planned", watched)
    check_emulated([random_chain(k) for k in range(8)], stitched=(True,), orders=("random",))
    assert len(shared) >= 20


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that takes the first row not to be needed any more when the third one is."""

    def wrong(name: str, count: int, element: int, users: object, at: object) -> Need:
        first, last = {"r0": (0, 0), "r2": (1, 1)}.get(name, (0, 1))
        return Need(name, shared_plan.aligned(count * element), element, first, last)

    monkeypatch.setattr(gpu_storage, "need", wrong)


def test_a_wrong_plan_is_refused(careless: None) -> None:
    _, kernels, _ = formed(4, 300, kept=True, row_threads=64, vector=1)
    with pytest.raises(ScheduleError) as caught:
        emit_cuda(Request(kernels))
    assert caught.value.diagnostics[0].code == "PF535"


def test_the_emulator_sees_data_that_another_array_left(
    careless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "overlapping", lambda events: None)
    call, kernels, _ = formed(4, 300, kept=True, row_threads=64, vector=1)
    with pytest.raises(EmulationError) as caught:
        EmulatedKernels(emit_cuda(Request(kernels))).run(call.memory())
    assert "PF731" in {d.code for d in caught.value.diagnostics}


KEPT = """
op f(x: f32[T, H]) -> (y: f32[T, H], z: f32[T, H]) {
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t] = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
  z[t, h] = LAST
}"""


@pytest.mark.parametrize(("last", "shares"), [("y[t, h] * 2.0", True), ("x[t, h] * s[t]", False)])
def test_rows_in_registers_share_them_if_one_is_not_read_any_more(last: str, shares: bool) -> None:
    text = KEPT.replace("LAST", last)
    graph, sizes = instantiate(parse_text(text), "f"), {"T": 3, "H": 1000}
    x = np.random.default_rng(1).standard_normal((3, 1000)).astype(np.float32)
    call = Call(last, text, graph, sizes, {"x": x})
    (kernel,) = call.device_request(DEVICES["usual"], True, True).kernels.kernels
    arrays = {b.tensor: b for b in kernel.buffers if b.scope is Scope.LOCAL}
    assert {"x__row", "e"} <= set(arrays)
    assert (homes(kernel.buffers, Scope.LOCAL)["x__row"] is homes(kernel.buffers, Scope.LOCAL)["e"]) == shares
    assert registers(kernel.buffers) - sum(b.scope is Scope.REGISTER for b in kernel.buffers) == (
        8 if shares else 16
    )
    check_emulated([call], stitched=(True,))


def test_kernels_of_one_launch_use_the_same_shared_memory() -> None:
    text = """
op f(x: f32[T, H]) -> (y: f32[T, H], z: f32[T, H]) {
  a[t, h] = exp(x[t, h])
  s[t] = sum[h](a[t, h])
  y[t, h] = a[t, H - 1 - h] / s[t]  for h in 0..H
  b[t, h] = exp(y[T - 1 - t, h])  for t in 0..T
  r[t] = sum[h](b[t, h])
  z[t, h] = b[t, H - 1 - h] / r[t]  for h in 0..H
}"""
    graph, sizes = instantiate(parse_text(text), "f"), {"T": 120, "H": 90}
    x = np.random.default_rng(2).standard_normal((120, 90)).astype(np.float32)
    call = Call("rows twice", text, graph, sizes, {"x": x})
    (kernel,) = call.device_request(DEVICES["usual"], True, True, True).kernels.kernels
    found = homes(kernel.buffers)
    assert {"a", "b"} <= set(found) and found["a"] is found["b"]
    check_emulated([call], stitched=(True,), barriers=True)
