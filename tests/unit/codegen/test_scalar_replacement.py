"""Sums go through scalars, and threads that share a loop combine theirs: none keeps a part for itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from drawn_ways import DrawnWay
from targets import DEVICES, Call
from ways import check

from polyfuse.codegen.cuda import pipeline as gpu_pipeline
from polyfuse.codegen.cuda.emit import emit_cuda_together
from polyfuse.codegen.transforms.scalar_replacement import (
    accumulators_in_scalars,
    merge_initial,
    uncombined,
)
from polyfuse.diagnostics import ScheduleError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, For, Node, Store, Update, format_block
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Const, Read
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.stitching.stitching import Stitching

# Two elements of one row are sums, which a loop over k makes at once.
TEXT = """op p(x: f32[N, M]) -> (y: f32[N, M]) where N >= 6, M >= 5 {
  t[i, j] = 0.25 for i in 0..2, j in 0..3
  t[i, j] = sum[k in 0..min(i + 1, M)](x[i, k]) for i in 0..2, j in 3..4
  t[i, j] = sum[k in 0..min(i + 1, M)](x[i, k]) for i in 0..2, j in 4..M - 1
  t[i, j] = 0.25 for i in 0..2, j in M - 1..M
  t[i, j] = 0.5 for i in 2..N, j in 0..M
  m[i] = max[j](t[i, j])
  e[i, j] = exp(t[i, j] - m[i])
  y[i, j] = e[i, j] / sum[k](e[i, k]) if j < M - 1 and i >= 1 else e[i, j]
}"""


def call_of(text: str, rows: int = 7, columns: int = 6) -> Call:
    x = np.random.default_rng(1).normal(size=(rows, columns)).astype("f4")
    return Call("sums", text, instantiate(parse_text(text), "p"), {"N": rows, "M": columns}, {"x": x})


def way_on(device: str) -> DrawnWay:
    return DrawnWay(LoopFusion(scheduler="isl"), Stitching(rows=1), device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_sums_of_several_elements_in_one_shared_loop_are_combined(device: str) -> None:
    check([(call_of(TEXT, rows, columns), way_on(device)) for rows, columns in ((7, 6), (6, 5), (33, 70))])


def kernel_with_a_register() -> Kernel:
    """Its buffer `s` is a register of each thread; `x` is its argument."""
    text = "op p(x: f32[N, M]) -> (y: f32[N, M]) { s[i] = sum[j](x[i, j])\n y[i, j] = x[i, j] / s[i] }"
    return way_on("usual").request(call_of(text, 5, 200)).kernels.kernels[0]


def shared(*body: Node) -> Block:
    """A loop whose rounds threads take one each."""
    threads = For("c1", as_index(0), as_index(4), 1, body, Coordinate.THREAD)
    return (For("c0", as_index(0), as_index(9), 1, (threads,), Coordinate.ROUND),)


def add(at: IndexExpr, op: str = "sum") -> Update:
    return Update("s", (at,), op, Read("x", (IConst(0), IVar("c1")), F32))


def test_what_each_thread_would_keep_is_found() -> None:
    kernel = kernel_with_a_register()
    alone = shared(add(IConst(0)))
    assert uncombined(kernel, alone) == add(IConst(0))
    assert uncombined(kernel, shared(add(IVar("c0")))) is not None  # all threads, in each round
    assert uncombined(kernel, shared(add(IVar("c1")))) is None
    assert uncombined(kernel, (For("c0", as_index(0), as_index(9), 1, (add(IConst(0)),)),)) is None
    rounds = For("c0", as_index(0), as_index(900), 1, (add(IVar("c0") // 64),), Coordinate.ROUND)
    assert uncombined(kernel, (rounds,)) is None, "what c0 names is of the thread that has this iteration"
    assert uncombined(kernel, accumulators_in_scalars(kernel, alone, itertools.count())) is None


def test_updates_of_one_operation_commute() -> None:
    kernel = kernel_with_a_register()
    made = accumulators_in_scalars(kernel, shared(add(IConst(0)), add(IConst(1))), itertools.count())
    assert uncombined(kernel, made) is None
    assert format_block(made).count(" lanes") == 2  # two combinations
    two = shared(add(IConst(0)), add(IConst(1), "max"))
    assert uncombined(kernel, accumulators_in_scalars(kernel, two, itertools.count())) is not None


def test_such_a_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    call, lost = call_of(TEXT), add(IConst(0))
    request = way_on("usual").request(call)
    monkeypatch.setattr(gpu_pipeline, "uncombined", lambda kernel, block: lost)
    with pytest.raises(ScheduleError, match="PF536"):
        emit_cuda_together([request])


def initial_and_total(first: IndexExpr, later: IndexExpr) -> Block:
    """An initial value and a term of each of four elements, in loops over a and over b."""
    loop = For("a", as_index(0), as_index(4), 1, (Store("s", (first,), Const(0.0, F32)),))
    term = Update("s", (later,), "sum", Read("x", (IVar("b"),), F32))
    return loop, For("b", as_index(0), as_index(4), 1, (term,))


A, B = IVar("a"), IVar("b")


def test_a_term_of_an_element_is_stored_in_place_of_its_initial_value() -> None:
    assert format_block(merge_initial(initial_and_total(A, B))) == "for b in 0..4:\n  s[b] = x[b]"
    assert len(merge_initial(initial_and_total(2 * A + 1, 2 * B + 1))) == 1


@pytest.mark.parametrize(
    ("first", "later"), [(IConst(0), IConst(0)), (A % 2, B % 2), (A // 2, B // 2), (A, 3 - B)]
)
def test_several_terms_of_an_element_are_added_up(first: IndexExpr, later: IndexExpr) -> None:
    block = initial_and_total(first, later)
    assert merge_initial(block) == block
