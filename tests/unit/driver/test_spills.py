"""Kernels that spill are refused: the first smaller plan without spills is taken, and explain() says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

import polyfuse as pf
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.diagnostics import ScheduleError, ToolchainError
from polyfuse.driver import pipeline, spills
from polyfuse.driver.pipeline import Compilation, Watch, emitted, run
from polyfuse.driver.spills import Made, smaller, spilled, unspilled
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.ir.index_expr import evaluate as value_of
from polyfuse.options import Options
from polyfuse.runtime.cuda.compiler import Cubin, find_cuda_compiler
from polyfuse.runtime.cuda.cubin import Resources

# Rows that a block keeps: what is kept of them shows in the source.
TEXT = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  y[t, h] = e[t, h] / sum[k](e[t, k])
}"""


def compilation() -> Compilation:
    graph = instantiate(pf.parse(TEXT).programs, "f")
    options = Options(device="H200", verify=False, dump=None)
    layers = {"stitching": pf.Stitching(), "packing": pf.Packing()}
    sizes = {"T": 512, "H": 32768}
    return Compilation(graph, sizes, pf.LoopFusion(), options, target="cuda", **layers)


def emit(each: Compilation) -> Made:
    low, code = emitted(Watch(each.options), each)
    assert isinstance(code, CudaCode)
    return low, code


def spilling(monkeypatch: pytest.MonkeyPatch, bytes_of: Mapping[str, int]) -> list[str]:
    """A compiler whose kernels spill as their plan's name says; which plans were tried."""
    tried: list[str] = []
    names = iter([name for name, _ in smaller(compilation())])

    def judged(code: CudaCode, arch: str, options: Options) -> dict[str, int]:
        assert arch == "sm_90"
        tried.append(next(names))
        n = bytes_of[tried[-1]]
        return {"pf_k0_0": n} if n else {}

    monkeypatch.setattr(spills, "spilled", judged)
    return tried


def test_what_does_not_spill_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = spilling(monkeypatch, {"the plan": 0})
    low, code = unspilled(compilation(), "sm_90", emit)
    assert tried == ["the plan"] and code == emit(compilation())[1]
    assert not [d for d in low.decisions if d.kind == "spills"]


def test_less_is_kept_where_it_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = spilling(
        monkeypatch, {"the plan": 80, "1/2 of what threads keep": 8, "1/4 of what threads keep": 0}
    )
    low, code = unspilled(compilation(), "sm_90", emit)
    assert len(tried) == 3
    assert code != emit(compilation())[1]
    (told,) = [str(d) for d in low.decisions if d.kind == "spills"]
    assert told == (
        "- spills f: the plan spills (pf_k0_0 80 bytes a thread); 1/2 of what threads keep spills "
        "(pf_k0_0 8 bytes a thread); 1/4 of what threads keep spills nothing: 1/4 of what threads keep is "
        "taken"
    )


def test_fewer_vectors_are_on_their_way() -> None:
    """Half of them are twice as many blocks, down to one vector."""
    text = "op f(x: f32[T, H], b: f32[H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] + b[h] }"
    graph = instantiate(pf.parse(text).programs, "f")
    options = Options(device="H200", verify=False, dump=None)
    whole = Compilation(graph, {"T": 65536, "H": 4096}, pf.LoopFusion(), options, target="cuda")
    blocks = [value_of(emit(replace(whole, halvings=k))[1].plan.launches[0].blocks, {}) for k in (0, 1, 2, 9)]
    assert blocks[1] == 2 * blocks[0] and blocks[0] < blocks[1] <= blocks[2] == blocks[3]


def test_where_all_spill_the_least_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    every = {name: 100 for name, _ in smaller(compilation())}
    spilling(monkeypatch, every | {"the plan without layer II": 99})
    _, code = unspilled(compilation(), "sm_90", emit)
    by_name = dict(smaller(compilation()))
    assert code == emit(by_name["the plan without layer II"])[1]
    spilling(monkeypatch, every)  # alike: as planned
    assert unspilled(compilation(), "sm_90", emit)[1] == emit(compilation())[1]


def test_a_smaller_plan_that_cannot_be_made_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    every = {name: 100 for name, _ in smaller(compilation())}
    spilling(monkeypatch, every)

    def refuse(each: Compilation) -> Made:
        if each.halvings or each.stitching is None:
            raise ScheduleError("it cannot be made", code="PF500")
        return emit(each)

    low, _ = unspilled(compilation(), "sm_90", refuse)
    assert not [d for d in low.decisions if d.kind == "spills"]
    with pytest.raises(ScheduleError, match="it cannot be made"):
        unspilled(compilation(), "sm_90", lambda each: refuse(each if each.stitching is None else next(
            c for _, c in smaller(each) if c.halvings)))  # fmt: skip


def test_what_the_compiler_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of spills; of local memory where nobody says what it is for."""
    found = {
        "none": Resources(40, 0, 0, 0, 0, 0),
        "array": Resources(40, 0, 0, 16, 0, 0),
        "spills": Resources(40, 8, 16, 16, 0, 0),
        "unknown": Resources(40, None, None, 24, 0, 0),
        "nothing": Resources(),
    }
    monkeypatch.setattr(spills, "compile_cuda", lambda *a, **k: Cubin(b"", "", found, "", ""))
    assert spilled(emit(compilation())[1], "sm_90", Options()) == {"spills": 24, "unknown": 24}


def test_calls_take_the_smaller_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way from a compilation to what is loaded."""
    spilling(monkeypatch, {"the plan": 80, "1/2 of what threads keep": 0})
    loaded: list[CudaCode] = []
    monkeypatch.setattr(pipeline, "load", lambda code, *_: loaded.append(code))
    monkeypatch.setattr(pipeline, "keep_plan", lambda *a: None)
    monkeypatch.setattr(pipeline, "load_plan", lambda *a: None)
    built = run(compilation())
    by_name = dict(smaller(compilation()))
    assert loaded == [emit(by_name["1/2 of what threads keep"])[1]]
    assert any(str(d).startswith("- spills f: the plan spills") for d in built.decisions)


def test_without_a_compiler_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object, **others: object) -> Cubin:
        raise ToolchainError("there is none", code="PF720")

    monkeypatch.setattr(spills, "compile_cuda", none)
    low, code = unspilled(compilation(), "sm_90", emit)
    assert code == emit(compilation())[1] and not [d for d in low.decisions if d.kind == "spills"]


def test_a_real_compiler_sees_that_a_row_does_not_spill() -> None:
    try:
        find_cuda_compiler()
    except ToolchainError:
        pytest.skip("no compiler for CUDA")
    assert spilled(emit(compilation())[1], "sm_90", Options()) == {}
