"""Costly values that a loop does not change are computed before it, if they are computed at all."""

from __future__ import annotations

import itertools
import re

import pytest
from equivalence import assert_computes, fixed_graph_of

from polyfuse.codegen.cpu.emit import emit
from polyfuse.codegen.transforms.invariant_motion import hoist
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.loop_ir import For, Store, format_block
from polyfuse.ir.schedule_tree import ScheduledGraph
from polyfuse.ir.tensor_graph import Apply, Const, Expr, Read
from polyfuse.layers.fusion.loop_fusion import LoopFusion, identity_schedule
from polyfuse.layers.mapping.kernels import form_kernels


def kernels_of(text: str, **sizes: int) -> KernelGraph:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2)[0]


def functions(source: str) -> str:
    """The kernels, without the prelude."""
    return source[source.index("PF_EXPORT extern") :]


def depth_of(source: str, what: str) -> list[int]:
    """Loops around each use of a function."""
    found, around = [], []
    for line in functions(source).splitlines():
        indent = len(line) - len(line.lstrip())
        around = [i for i in around if i < indent]
        if what in line:
            found.append(len(around))
        if line.strip().startswith("for ("):
            around.append(indent)
    return found


ROWS = "op f(x: f32[T, H], s: f32[T]) -> (y: f32[T, H]) { y[t, h] = x[t, h] - log(s[t]) }"
PROGRAMS = {
    "rows": ROWS,
    "division": """op f(x: f32[T, H], s: f32[T], r: f32[T]) -> (y: f32[T, H]) {
        y[t, h] = x[t, h] * (s[t] / r[t]) }""",
    "two loops": """op f(x: f32[T, H], s: f32, i: i64) -> (y: f32[T, H], n: i64[T, H]) {
        y[t, h] = x[t, h] * exp(s) + tanh(s * 2.0); n[t, h] = (t + h) * (7 // (i + 1)) }""",
    "reduction": "op f(x: f32[T, H], s: f32[T]) -> (y: f32[T]) { y[t] = sum[h](exp(x[t, h] - exp(s[t]))) }",
    "guard": """op f(x: f32[T, H], s: f32[T]) -> (y: f32[T, H]) {
        y[t, h] = exp(s[t - 1]) * x[t, h] if t >= 1 else log(s[0]) }""",
    "guard on data": """op f(x: f32[T, H], s: f32[T], i: i64[T]) -> (y: f32[T, H]) where T >= 3 {
        y[t, h] = exp(s[i[t]]) if x[t, h] > 0.0 else exp(s[t]) }""",
    "recurrence": """op f(x: f32[T, H]) -> (c: f32[T, H]) {
        c[0, j] = x[0, j]
        c[t, j] = exp(0.0 - c[t - 1, 0] * c[t - 1, 0]) + x[t, j] for t in 1..T }""",
    "recurrence in a row": """op f(x: f32[T, H]) -> (c: f32[T, H]) {
        c[t, 0] = x[t, 0]
        c[t, j] = tanh(c[t, 0]) + tanh(c[t, j - 1]) for j in 1..H }""",
    "inout": "op f(inout p: f32[T, H], x: f32[T, H]) { p[t, h] = p[t, h] + x[t, h] * log(abs(x[t, 0])) }",
    "triangle": """op f(x: f32[T, T], s: f32[T]) -> (y: f32[T]) {
        y[t] = sum[h in 0..t](x[t, h] * exp(s[t])) }""",
}  # fmt: skip
SIZES = ({"T": 33, "H": 37}, {"T": 3, "H": 1}, {"T": 5, "H": 700})


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_results_stay_the_same(text: str) -> None:
    for sizes in SIZES:
        graph = fixed_graph_of(text, **{n: v for n, v in sizes.items() if n + "]" in text or n + "," in text})
        kernels, _ = form_kernels(LoopFusion().schedule(graph), 2)
        assert_computes(graph, kernels, target="cpu")


def test_a_function_of_the_row_is_computed_once_for_a_row() -> None:
    source = emit(kernels_of(ROWS, T=512, H=512)).source
    assert depth_of(source, "pf_log_f32(") == [1]


def test_what_no_loop_changes_leaves_all_that_are_not_shared_out() -> None:
    text = PROGRAMS["two loops"]
    assert set(depth_of(emit(kernels_of(text, T=4, H=4)).source, "pf_exp_f32(")) == {0}


def test_a_division_stays_one() -> None:
    source = functions(emit(kernels_of(PROGRAMS["division"], T=512, H=512)).source)
    (moved,) = re.findall(r"float (h\d+) = b_s\[c0\] / b_r\[c0\];", source)
    assert f"* {moved};" in source


def test_values_that_the_loop_writes_stay() -> None:
    source = emit(kernels_of(PROGRAMS["recurrence in a row"], T=40, H=9)).source
    assert set(depth_of(source, "pf_tanh_f32(")) == {2}


def test_open_sizes_are_asked() -> None:
    """A loop that may be empty does not read what may not exist."""
    graph = instantiate((parse_text(ROWS),), "f")
    made = form_kernels(LoopFusion().run(ScheduledGraph(graph, identity_schedule(graph).tree)), 2)[0]
    source = functions(emit(made).source)
    assert re.search(r"float (h\d+);\n +if \(0 < \(?N_H\)?\) \{\n +\1 = pf_log_f32\(b_s\[c0\]\);", source)


def _hoisted(*values: Expr) -> str:
    kernel = kernels_of("op f(x: f32[N], s: f32) -> (y: f32[N]) { y[i] = x[i] + s }", N=9).kernels[0]
    body = tuple(Store("y", (IVar("i"),), v) for v in values)
    loop = For("i", IConst(0), IConst(9), 1, body)
    return format_block(hoist(kernel, (loop,), itertools.count()))


def _exp(e: Expr) -> Expr:
    return Apply("exp", (e,), F32)


def test_equal_values_share_a_scalar_but_zeros_of_both_signs_do_not() -> None:
    s = Read("s", (), F32)
    assert _hoisted(_exp(s), _exp(s)).count("exp") == 1
    zeros = [_exp(Apply("mul", (s, Const(z, F32)), F32)) for z in (0.0, -0.0)]
    assert _hoisted(*zeros).count("exp") == 2


def test_elements_that_the_loop_stores_are_not_invariant() -> None:
    assert _hoisted(_exp(Read("y", (IConst(0),), F32))).startswith("for")
    assert not _hoisted(_exp(Read("x", (IConst(0),), F32))).startswith("for")
