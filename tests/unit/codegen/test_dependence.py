"""Vector loops whose iterations may update one element run in order; copied entry values are apart.
Loops that tell elements apart."""

from __future__ import annotations

import pytest

from polyfuse.codegen.analysis.dependence import tells_apart
from polyfuse.codegen.cpu.emit import emit
from polyfuse.codegen.cpu.pipeline import lower
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import IConst, IndexExpr, ISize, IVar, as_index, binary
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.loop_ir import Block, For, If
from polyfuse.ir.schedule_tree import Coordinate, ScheduledGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion, identity_schedule
from polyfuse.layers.mapping.kernels import entry_copies, form_kernels
from polyfuse.poly.model.domains import specialize


def kernels(text: str, **sizes: int) -> KernelGraph:
    graph = specialize(instantiate((parse_text(text),), "f"), sizes)
    return form_kernels(LoopFusion().run(ScheduledGraph(graph, identity_schedule(graph).tree)), 2)[0]


def vector_loops(block: Block) -> int:
    count = 0
    for node in block:
        if isinstance(node, For):
            count += (node.coordinate is Coordinate.VECTOR) + vector_loops(node.body)
        elif isinstance(node, If):
            count += vector_loops(node.then) + vector_loops(node.other)
    return count


@pytest.mark.parametrize(
    ("update", "vector"),
    [("y[d[e]] += x[e]", 0), ("y[d[e]] max= x[e]", 0), ("y[e // 2] += x[e]", 0), ("y[0] += x[e]", 1),
     ("y[e] += x[e]", 1), ("y[2*e] += x[e] for e in 0..E // 2", 1), ("y[E - 1 - e] += x[e]", 1)],
)  # fmt: skip
def test_updates_in_vector_loops(update: str, vector: int) -> None:
    made = kernels(f"op f(d: i64[E], x: f32[E]) -> (y: f32[E]) {{ {update} }}", E=64)
    last = lower(made.kernels[-1])
    assert sum(vector_loops(task.body) for task in last.functions) == vector


def test_column_sums_stay_vectors() -> None:
    made = kernels("op f(x: f32[T, H]) -> (c: f32[H]) { c[h] = sum[t](x[t, h]) }", T=3000, H=700)
    assert all(any(vector_loops(t.body) for t in lower(k).functions) for k in made.kernels)


def test_copied_entry_values_have_a_pointer_of_their_own() -> None:
    made = kernels("op f(inout p: f32[N]) { p[i] = p[N-1-i] + 1 }", N=9)
    copied = entry_copies(made)[0]
    assert copied == {"p"}
    source = emit(made, copied=copied).source
    assert "b_p__out[c0] = b_p[" in source
    assert "b_p = " not in emit(made).source


def loop(var: str, upper: object, lower: object = 0, step: int = 1) -> For:
    return For(var, as_index(lower), as_index(upper), step, ())  # type: ignore[arg-type]


A, B, N = IVar("a"), IVar("b"), ISize("N")
PAIR = (loop("a", 9), loop("b", 4))
STRIPS = (loop("a", N), loop("b", binary("min", 32 * A + 32, N), 32 * A))


@pytest.mark.parametrize(
    ("indices", "nest", "apart"),
    [
        ((IConst(0),), (), True),
        ((A,), PAIR[:1], True),
        ((IConst(0),), PAIR[:1], False),
        ((IVar("c"),), PAIR[:1], False),  # c is a variable around
        ((IVar("c"), A), PAIR[:1], True),
        ((A, B), PAIR, True),
        ((A,), PAIR, False),
        ((4 * A + B,), PAIR, True),
        ((3 * A + B,), PAIR, False),
        ((A + 9 * B,), PAIR, True),
        ((40 - 4 * A - B,), PAIR, True),
        ((A + B, B), PAIR, False),  # it does: one would have to solve for a
        ((4 * A + B,), (loop("a", N), loop("b", 4)), True),
        ((4 * A + B,), (loop("a", 9), loop("b", N)), False),
        ((2 * A + B,), (loop("a", 9, step=2), loop("b", 4)), True),
        ((B,), STRIPS, True),
        ((B - 32 * A,), STRIPS, False),
        (((4 * IVar("c") + B) % 4,), PAIR[1:], True),  # of a thread c: each of its elements
        (((2 * IVar("c") + B) % 4,), PAIR[1:], True),
        (((4 * A + B) % 4,), PAIR, False),
        ((B % 3,), PAIR[1:], False),
        ((A, (8 * A + B) % 4), PAIR, True),
        ((A // 192 * 2 + A % 2,), (loop("a", 130),), False),  # slots of the threads that share a row
    ],
)
def test_loops_that_tell_elements_apart(
    indices: tuple[IndexExpr, ...], nest: tuple[For, ...], apart: bool
) -> None:
    assert tells_apart(indices, nest) == apart
