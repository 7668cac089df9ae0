"""Lists of passes: what is switched off, what is noted of those that ran, and how it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from equivalence import fixed_graph_of

from polyfuse.codegen.cpu.pipeline import FUNCTIONS, PIPELINES, LoweredKernel, lower
from polyfuse.codegen.decisions import DECLINED, PASS, in_names_of, noted, of_passes
from polyfuse.codegen.passes import Loops, Pass, PassContext, Pipeline, missed, observed
from polyfuse.ir.cpu_core import Core, CpuKnobs
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Store
from polyfuse.ir.tensor_graph import Const
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.layers.stitching.stitching import Stitching

NORM = """op f(x: f32[T, H], g: f32[H]) -> (y: f32[T, H]) {
  m[t] = sum[h](x[t, h]) / H
  v[t] = sum[h]((x[t, h] - m[t]) ** 2) / H
  y[t, h] = (x[t, h] - m[t]) * rsqrt(v[t] + 1e-5) * g[h]
}"""
SKEW = "software-pipelining"


def norm(columns: int) -> Kernel:
    graph = fixed_graph_of(NORM, T=64, H=columns)
    kernels, _ = form_kernels(LoopFusion().schedule(graph), 2, Stitching(rows=1))
    (kernel,) = kernels.kernels
    return kernel


def lowered(columns: int, *disabled: str) -> LoweredKernel:
    return lower(norm(columns), CpuKnobs(core=Core(), disabled=disabled))


def ran(*disabled: str) -> list[str]:
    """The passes that ran."""
    names: list[str] = []
    with observed(lambda pipeline, name, loops: names.append(name)):
        lowered(700, *disabled)
    return [n for n in names if n]


# --- switching off -----------------------------------------------------------------------------------


def test_a_pass_acts_unless_it_is_off() -> None:
    assert any(t.pipelined for t in lowered(700).functions)
    assert (PASS + SKEW, "y") in lowered(700).noted
    off = lowered(700, SKEW)
    assert not any(t.pipelined for t in off.functions)
    assert not any(SKEW in kind for kind, _ in off.noted)


def test_the_name_of_an_idea_stands_for_its_rules() -> None:
    rules = [n for n in ran() if n.startswith("unroll-and-jam:")]
    assert len(rules) >= 8
    assert ran("unroll-and-jam") == [n for n in ran() if n not in rules]
    assert ran("unroll-and-jam:stencils") == [n for n in ran() if n != "unroll-and-jam:stencils"]


def test_what_others_need_stays_on() -> None:
    needed = [p.name for line in PIPELINES for p in line.passes if not p.optional]
    assert "lower-statements" in needed
    assert set(ran(*needed)) == set(ran())


# --- what is noted -----------------------------------------------------------------------------------


def test_a_pass_that_left_loops_says_why() -> None:
    notes = lowered(8192).noted
    assert (f"{DECLINED}{SKEW}: rows are longer than 8 KiB", "y") in notes
    assert (PASS + SKEW, "y") not in notes


def test_reasons_are_told_inside_of_a_list_only() -> None:
    missed(stores("y"), "nobody listens")


def stores(name: str) -> Block:
    return (Store(name, (IConst(0), IConst(0)), Const(1.0, F32)),)


def told_of(*passes: Pass) -> PassContext:
    cx = PassContext()
    Pipeline("list", passes).run(Loops(norm(64), stores("x")), cx)
    return cx


def changing(x: Loops, cx: PassContext) -> Loops:
    missed(stores("y"), "it is y")
    missed(stores("x"), "it is x")
    return replace(x, block=(*x.block, *stores("x")))


def test_what_a_pass_changes_elsewhere_it_has_not_declined() -> None:
    cx = told_of(Pass("change", "changes x", changing))
    assert cx.changed == {"change": ("x",)}
    assert cx.declined == {("change", "it is y"): ("y",)}


def test_only_memory_outside_is_named_where_there_is_any() -> None:
    def nothing(x: Loops, cx: PassContext) -> Loops:
        missed((*stores("m"), *stores("y"), *stores("%scalar")), "all of it")
        return x

    assert told_of(Pass("p", "does", nothing)).declined == {("p", "all of it"): ("y",)}


def test_needed_passes_tell_nothing() -> None:
    cx = told_of(Pass("change", "changes x", changing, optional=False))
    assert not cx.changed and not cx.declined


# --- how it is told ----------------------------------------------------------------------------------


def test_one_line_for_a_pass_and_one_for_each_reason() -> None:
    cx = PassContext(
        changed={SKEW: ("b", "a")}, declined={(SKEW, "it is long"): ("d", "b"), (SKEW, "it is short"): ("c",)}
    )
    lines = [str(d) for d in of_passes(noted(cx), PIPELINES)]
    does = next(p.does for p in FUNCTIONS.passes if p.name == SKEW)
    assert lines == [
        f"+ {SKEW} a, b: {does}",
        f"- {SKEW} d: it is long",
        f"- {SKEW} c: it is short",
    ]


def test_lines_are_in_the_order_of_the_passes() -> None:
    names = [p.name for line in PIPELINES for p in line.passes if p.optional]
    made = frozenset((PASS + n, "y") for n in names)
    assert [d.kind for d in of_passes(made, PIPELINES)] == list(dict.fromkeys(names))


@pytest.mark.parametrize("kind", [PASS + SKEW, f"{DECLINED}{SKEW}: it is long"])
def test_kernels_alike_tell_it_of_their_own_tensors(kind: str) -> None:
    printed = norm(64)
    buffers = tuple(replace(b, tensor=f"{b.tensor}_2") for b in printed.buffers)
    other = replace(printed, buffers=buffers)
    assert in_names_of(other, printed, {(kind, "y")}) == {(kind, "y_2")}
