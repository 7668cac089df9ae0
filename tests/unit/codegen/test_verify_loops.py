"""Passes that are wrong are reported by name: their loops break a fact, or compute something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from drawn_ways import drawn_thresholds
from machines import decided_for
from row_kernels import made

import polyfuse as pf
from polyfuse.codegen.common_passes import COMMON
from polyfuse.codegen.cpu.emit import CpuCode
from polyfuse.codegen.function import BEGIN, END, ITERATION, Function
from polyfuse.codegen.passes import Loops, Pass, PassContext, Pipeline, observed
from polyfuse.codegen.transforms.outline import outlined as functions_of
from polyfuse.codegen.translation_validation import Verdict
from polyfuse.codegen.verify import PassVerifier
from polyfuse.diagnostics import InternalError
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.dtypes import BOOL, F32, F64, I64
from polyfuse.ir.index_expr import IndexExpr, IVar, as_index, binary
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    Delinearize,
    For,
    If,
    Node,
    RegisterTile,
    Store,
    TransposedTile,
    Update,
    map_nodes,
    nodes_of,
    substituted,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Cast, Const, IndexValue, Read
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options

SOFTMAX = """op f(x: f32[N, M]) -> (y: f32[N, M]) {
  m[i] = max[j](x[i, j])
  e[i, j] = exp(x[i, j] - m[i])
  y[i, j] = e[i, j] / sum[k](e[i, k])
}"""
STEPS = """op f(x: f32[T, N], a: f32[N]) -> (v: f32[T, N]) where T >= 2 {
  v[0, i] = x[0, i]
  v[t, i] = v[t-1, i] * a[i] + x[t, i] for t in 1..T
}"""
STENCIL = """op f(x: f32[N]) -> (y: f32[N]) {
  y[i] = x[i-1] + x[i] + x[i+1] if i > 0 and i < N - 1 else 0.0
}"""
COUNTS = """op f(k: i64[E], w: f32[E], z: f32[N]) -> (s: f32[N]) where N >= 1 {
  s[i] = z[i]
  s[k[e]] += w[e] for e in 0..E
}"""
Change = Callable[[Node], Node | Block]


def kernel_of(text: str, **sizes: int) -> Kernel:
    return made(text, **sizes).kernels[-1]


def on_nodes(change: Change) -> Callable[[Loops], Loops]:
    return lambda x: replace(x, block=map_nodes(x.block, change))


def on_loop(last: bool, change: Callable[[For], Node | Block]) -> Callable[[Loops], Loops]:
    """Change the first, or last, loop that has no other one in it."""

    def run(x: Loops) -> Loops:
        inner = [n for n in nodes_of(x.block) if isinstance(n, For) and not _loops(n.body)]
        chosen = inner[-1 if last else 0]
        return replace(x, block=map_nodes(x.block, lambda n: change(n) if n == chosen else n))  # type: ignore[arg-type]

    return run


def _loops(block: Block) -> bool:
    return any(isinstance(n, For) for n in nodes_of(block))


def verified(kernel: Kernel, *wrong: Callable[[Loops], Loops]) -> PassVerifier:
    """Common passes, then some more."""
    more = (Pass(f"mutant-{k}", "", lambda x, cx, w=w: w(x)) for k, w in enumerate(wrong))
    verifier = PassVerifier()
    with observed(verifier):
        Pipeline("loops", (*COMMON, *more)).run(Loops(kernel), PassContext())
    return verifier


def refused(code: str, what: str, kernel: Kernel, *wrong: Callable[[Loops], Loops]) -> None:
    with pytest.raises(InternalError, match=what) as error:
        verified(kernel, *wrong)
    assert error.value.code == code
    assert f"mutant-{len(wrong) - 1}" in str(error.value)
    assert f"kernel {kernel.name}" in str(error.value)


# --- passes that change what is computed -----------------------------------------------------------------


def shorter(n: For) -> For:
    """A remainder is dropped."""
    return replace(n, upper=as_index(4) * binary("//", n.upper, 4))


def twice(n: For) -> Block:
    """The last vector begins too early, where a sum may not be computed twice."""
    tail = replace(n, lower=n.upper - 2)
    return (n, tail)


def without_start(n: Node) -> Node:
    """Nobody says what an accumulator begins with."""
    return replace(n, value=None) if isinstance(n, Declare) and n.name.startswith("%acc") else n


def reversed_rows(n: Node) -> Node | Block:
    """Two steps of a recurrence are jammed, the later one first."""
    if not (isinstance(n, For) and _loops(n.body)):
        return n
    later = substituted(n.body, {n.var: IVar(n.var) + 1})
    even = n.lower + binary("//", n.upper - n.lower, 2) * 2
    return (replace(n, upper=even, step=2, body=(*later, *n.body)), replace(n, lower=even))


def exchanged(x: Loops) -> Loops:
    """Two parts of a row change places."""

    def change(n: Node) -> Node:
        places = [k for k, x in enumerate(n.body) if isinstance(x, For)] if isinstance(n, For) else []
        if len(places) < 2:
            return n
        assert isinstance(n, For)
        body = list(n.body)
        a, b = places[-2:]
        body[a], body[b] = body[b], body[a]
        return replace(n, body=tuple(body))

    return replace(x, block=map_nodes(x.block, change))


def interior(x: Loops) -> Loops:
    """The interior of a stencil is everywhere: right before borders are stored."""
    loop, *borders = x.block
    assert isinstance(loop, For)
    return replace(x, block=(replace(loop, lower=as_index(0), upper=loop.upper + 1), *borders))


def last_first(x: Loops) -> Loops:
    """Stores to the same elements are exchanged."""
    return replace(x, block=(*x.block[1:], x.block[0]))


@pytest.mark.parametrize(
    "text, wrong",
    [
        (SOFTMAX, on_loop(True, shorter)),
        (SOFTMAX, on_loop(False, shorter)),
        (SOFTMAX, exchanged),
        (SOFTMAX, on_nodes(without_start)),
        (STEPS, on_nodes(reversed_rows)),
    ],
)
def test_what_computes_something_else_is_reported(text: str, wrong: Callable[[Loops], Loops]) -> None:
    sizes = {"N": 9, "M": 7, "T": 6}
    kernel = kernel_of(text, **{n: v for n, v in sizes.items() if f"{n}]" in text or f"{n}," in text})
    verified(kernel)
    refused("PF906", "changed", kernel, wrong)


def test_a_sum_with_terms_twice_is_reported_and_a_store_made_twice_is_none() -> None:
    kernel = kernel_of(SOFTMAX, N=5, M=9)
    adds = [n for n in nodes_of(lowered(kernel).block) if isinstance(n, For) and _adds(n)]
    assert adds
    refused("PF906", "changed", kernel, on_nodes(lambda n: twice(n) if n in adds else n))  # type: ignore[arg-type]
    verified(kernel, on_loop(True, twice))


def _adds(n: For) -> bool:
    return any(isinstance(x, Update) and x.op == "sum" for x in n.body)


def test_stores_to_one_element_in_another_order_are_reported() -> None:
    kernel = kernel_of(STENCIL, N=9)
    assert verified(kernel, interior).verdicts["mutant-0", Verdict.SAME] == 1
    refused("PF906", "changed", kernel, interior, last_first)


def test_a_vector_loop_whose_iterations_need_one_another_is_reported() -> None:
    def steps_in_lanes(n: Node) -> Node:
        lanes = isinstance(n, For) and _loops(n.body)
        if not isinstance(n, For):
            return n
        return replace(n, coordinate=Coordinate.VECTOR if lanes else Coordinate.SEQ)

    refused("PF906", "changed v", kernel_of(STEPS, T=6, N=9), on_nodes(steps_in_lanes))


def test_a_scalar_keeps_what_the_last_iteration_of_a_vector_loop_stores() -> None:
    text = """op f(x: f16[T, H], inout p: f16[T, H], w: f16[H]) -> (s: f32[T]) where H >= 1 {
      a[t] = min[h](f32(p[t, h])); s[t] = sum[h in min(1, H)..H](min(a[t], f32(x[t, h])))
      b[t, h] = a[t] / (abs(f32(w[h])) + 1.0)
      p[t, h] = f16(b[t, h]) for h in H-1..H
      p[t, h] = f16(a[t]) for h in 0..H-1
    }"""
    kernel = kernel_of(text, T=3, H=80)
    assert any(b.tensor == "b" and b.scope is Scope.REGISTER for b in kernel.buffers)
    done = verified(kernel, lambda x: replace(x, block=(*x.block, Comment("changed"))))
    assert done.verdicts["mutant-0", Verdict.SAME] == 1


def test_an_index_that_is_data_is_clamped_alike_in_all_rows_of_a_batch() -> None:
    text = """op f(x: f16[B, A], k: i32[B]) -> (y: f16[B, A]) {
      t[i, j] = sigmoid(log(abs(tanh(f32(x[i, j])) ** 2) + 1.0))
      q[i, j] = t[k[i], j] * 1.5
      y[i, j] = f16(select(q[i, j] > 100.0, t[i, j] * 0.5, t[i, j]))
    }"""
    options, knobs = Options(threads=2, verify=True), CpuKnobs(rows=3)
    with decided_for("zen5"), drawn_thresholds(1001):
        graph = pf.parse(text).op().graph()
        c = Compilation(graph, {"B": 5, "A": 16}, LoopFusion(), options, stitching=Stitching(), knobs=knobs)
        _, code = emitted(Watch(options), c)
    assert isinstance(code, CpuCode)
    assert "row2_" in code.source


def test_a_scatter_that_overwrites_is_reported() -> None:
    kernel = kernel_of(COUNTS, E=40, N=6)

    def store(n: Node) -> Node:
        return Store(n.buffer, n.indices, n.value) if isinstance(n, Update) and n.indices else n

    refused("PF906", "changed", kernel, on_nodes(store))


def test_sums_in_another_order_and_quotients_as_products_are_the_same() -> None:
    kernel = kernel_of(SOFTMAX, N=5, M=9)

    def backwards(n: Node) -> Node:
        if not (isinstance(n, For) and _adds(n)):
            return n
        return replace(n, body=substituted(n.body, {n.var: n.upper - 1 - (IVar(n.var) - n.lower)}))

    def inverted(n: Node) -> Node:
        match n:
            case Store(value=Apply("div", (a, b), dtype)):
                one = Apply("div", (Const(1.0, dtype), b), dtype)
                return replace(n, value=Apply("mul", (a, one), dtype))
            case _:
                return n

    done = verified(kernel, on_nodes(backwards), on_nodes(inverted))
    assert done.verdicts["mutant-0", Verdict.SAME] == done.verdicts["mutant-1", Verdict.SAME] == 1


def test_what_takes_too_long_is_skipped_by_operations() -> None:
    kernel = kernel_of(SOFTMAX, N=5, M=90_001)
    done = verified(kernel, on_loop(True, shorter))
    assert done.verdicts["mutant-0", Verdict.SKIPPED] == 1


# --- functions -------------------------------------------------------------------------------------------


def lowered(kernel: Kernel) -> Loops:
    return Pipeline("loops", COMMON).run(Loops(kernel), PassContext())


def outlined(x: Loops) -> Loops:
    return replace(x, block=(), functions=tuple(functions_of(x.kernel, x.block)))


def on_task(change: Callable[[Function], Function]) -> Callable[[Loops], Loops]:
    return lambda x: replace(x, functions=tuple(change(t) if t.loops else t for t in x.functions))


def rows_of(f: Function, count: int, step: int) -> Function:
    """So many rows at a time, in a loop with this step."""
    (loop,) = f.loops
    names = [f"row{k}_{loop.var}" if k else loop.var for k in range(count)]
    places = [Delinearize((replace(loop, var=n),), ITERATION + k) for k, n in enumerate(names)]
    bodies = (
        For("once", as_index(0), as_index(1), 1, substituted(f.body, {loop.var: IVar(n)})) for n in names
    )
    return f.with_batch(step, places, tuple(bodies))


@pytest.mark.usefixtures("parallel")
def test_rows_that_take_turns_are_run_as_a_worker_runs_them() -> None:
    kernel = kernel_of(SOFTMAX, N=50, M=6)
    good, missing = (on_task(lambda f, n=step: rows_of(f, 2, n)) for step in (2, 3))
    assert verified(kernel, outlined, good).verdicts["mutant-1", Verdict.SAME] == 1
    refused("PF906", "changed", kernel, outlined, missing)


@pytest.mark.usefixtures("parallel")
def test_software_pipelining_that_forgets_a_row_is_reported() -> None:
    kernel = kernel_of(SOFTMAX, N=50, M=6)

    def part(number: IndexExpr, loop: For, body: Block) -> If:
        cond = Apply("lt", (IndexValue(number, I64), IndexValue(END, I64)), BOOL)
        return If(cond, (Delinearize((loop,), number), *body))

    def pipelined(ahead: int) -> Callable[[Function], Function]:
        def change(f: Function) -> Function:
            (loop,) = f.loops
            of_next = substituted(f.body, {loop.var: IVar("next") + ahead})
            following = part(ITERATION + 1, replace(loop, var="next"), of_next)
            return f.with_before((part(BEGIN, loop, f.body),)).with_body((following,))

        return change

    assert verified(kernel, outlined, on_task(pipelined(0))).verdicts["mutant-1", Verdict.SAME] == 1
    refused("PF906", "changed", kernel, outlined, on_task(pipelined(-1)))


# --- facts -----------------------------------------------------------------------------------------------


def in_front(*nodes: Node) -> Callable[[Loops], Loops]:
    return lambda x: replace(x, block=(*nodes, *x.block))


def loop(var: str, *body: Node, **facts: object) -> For:
    return replace(For(var, as_index(0), as_index(2), 1, body), **facts)  # type: ignore[arg-type]


ZERO, X = Const(0.0, F32), Read("x", (as_index(0), as_index(0)), F32)
PLACE = (as_index(0), as_index(0))


@pytest.mark.parametrize(
    "nodes, what",
    [
        ((Store("%s", (), ZERO),), "%s is not declared here"),
        ((loop("q", Declare("%s", F32, ZERO)), Store("%s", (), ZERO)), "%s is not declared here"),
        ((Declare("%s", F32, ZERO), Declare("%s", F32, ZERO)), "%s is declared twice"),
        ((Declare("%s", F32, Read("%t", (), F32)),), "%t is not declared here"),
        ((Store("y", (as_index(0), IVar("q")), ZERO),), "q is no variable of a loop around"),
        ((loop("q"), Store("y", (as_index(0), IVar("q")), ZERO)), "q is no variable"),
        ((Store("y", (as_index(0),), ZERO),), "y has 2 dims and 1 indices"),
        ((Store("y", PLACE, Const(0.0, F64)),), "y is f32, and the value is f64"),
        ((Store("y", PLACE, replace(X, dtype=I64)),), "x is f32, and the value is i64"),
        ((Update("y", PLACE, "difference", ZERO),), "no reduction is called difference"),
        ((Declare("%a", F32, None, 4), Store("%a", (), ZERO)), "%a has 1 dims and 0 indices"),
        ((Store("y", (as_index(0), X), ZERO),), "an index of y is no integer"),
        ((loop("q", step=0),), "q does not go upwards"),
        ((loop("q", lanes=("%s",)),), "%s is not declared here"),
        (
            (loop("q", loop("r", coordinate=Coordinate.VECTOR), coordinate=Coordinate.VECTOR),),
            "r is a vector loop in that over q in the loop over q, r",
        ),
        ((If(Read("%c", (), F32), ()),), "%c is not declared here"),
        ((Delinearize((loop("q"),), IVar("z")),), "z is no variable"),
        ((Delinearize((loop("q"),), as_index(1)), Delinearize((loop("q"),), as_index(0))), "q is a variable"),
        (
            (Delinearize((loop("q"),), IVar("r"), loop("r")), Store("y", (as_index(0), IVar("q")), ZERO)),
            "q is no variable",
        ),
        (
            (
                TransposedTile("%t", F32, "x", (IVar("r"), IVar("l")), loop("r"), 2, loop("l"), 2),
                Store("y", PLACE, Read("%u", (as_index(0),), F32)),
            ),
            "%u is not declared here",
        ),
        (
            (
                RegisterTile(
                    "%t", F32, "r", 2, "l", 2, (("r0", as_index(0)), ("l0", as_index(0))), (loop("k"),),
                    Read("x", (IVar("r"), IVar("z")), F32), Read("x", (IVar("k"), IVar("l")), F32),
                ),
            ),
            "z is no variable",
        ),
    ],
)  # fmt: skip
def test_a_fact_that_is_broken_is_reported(nodes: Block, what: str) -> None:
    refused("PF905", what, kernel_of(SOFTMAX, N=5, M=6), in_front(*nodes))


def test_terms_of_sums_in_double_may_be_floats() -> None:
    sums = (Declare("%d", F64, Const(0.0, F64)), Update("%d", (), "sum", X), Store("%d", (), Cast(X, F64)))
    verified(kernel_of(SOFTMAX, N=5, M=6), in_front(*sums))
