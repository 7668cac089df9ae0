"""Rows that begin anywhere: whole vectors from the aligned place before a row on, and what is not of the row
counts for nothing."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from drawn_ways import DrawnWay
from targets import Array, Call
from ways import check as assert_right

import polyfuse as pf
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import IBin, IConst, IVar, binary
from polyfuse.ir.index_expr import evaluate as number
from polyfuse.ir.linear import linear
from polyfuse.layers.graph.one_pass import online
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

PROGRAM = pf.parse("""
op softmax[F: float](x: F[N, H]) -> (y: F[N, H]) {
  m[n] = max[h](f32(x[n, h]))
  e[n, h] = exp(f32(x[n, h]) - m[n])
  d[n] = sum[h](e[n, h])
  y[n, h] = F(e[n, h] / d[n])
}
op xent[F: float](x: F[N, H], target: i64[N]) -> (y: f32[N]) {
  m[n] = max[h](f32(x[n, h]))
  s[n] = sum[h](exp(f32(x[n, h]) - m[n]))
  y[n] = m[n] + log(s[n]) - f32(x[n, target[n]])
}
op extremes[I: int](x: I[N, H]) -> (y: I[N], z: I[N], b: bool[N]) {
  y[n] = sum[h](x[n, h])
  z[n] = min[h](x[n, h])
  b[n] = any[h](x[n, h] > 3)
}
op mean(x: bf16[N, H], target: i64[N]) -> (y: f32) {
  m[n] = max[h](f32(x[n, h]))
  s[n] = sum[h](exp(f32(x[n, h]) - m[n]))
  y = mean[n](m[n] + log(s[n]) - f32(x[n, target[n]]))
}
op blocks(x: bf16[N, A, H]) -> (y: f32[N, A]) { y[n, a] = sum[h](f32(x[n, a, h])) }
op pieces(x: bf16[N, H]) -> (y: f32[N]) where H > 3 { y[n] = sum[h in 3..H](f32(x[n, h])) }
op places(x: bf16[N, H]) -> (y: f32[N]) { y[n] = sum[h](f32(x[n, h]) * f32(h)) }
op scaled(x: bf16[N, H], g: bf16[H]) -> (y: f32[N]) { y[n] = sum[h](f32(x[n, h] * g[h])) }
op first(x: f16[N, H]) -> (y: i64[N]) { y[n] = argmax[h](x[n, h]) }
op widened(x: bf16[N, H]) -> (y: f32[N, H]) {
  s[n] = sum[h](f32(x[n, h]))
  y[n, h] = f32(x[n, h]) * s[n]
}
""")
GENERIC = {"softmax": "F", "xent": "F", "extremes": "I"}


def generics(op: str, dtype: str) -> dict[str, str]:
    return {GENERIC[op]: dtype} if op in GENERIC else {}


@cache
def code(op: str, dtype: str = "", **sizes: int) -> str:
    scheduled = PROGRAM.op(op).specialize(generics(op, dtype), **sizes).schedule().apply(pf.LoopFusion())
    made = scheduled.lower(target="cuda").apply(pf.Stitching()).code()
    assert isinstance(made, CudaCode)
    return made.source


def widths(text: str, name: str) -> set[int]:
    return {int(n) for n in re.findall(rf"pf_(?:load|store)<(\d+)>\(b_{name},", text)}


# --- which accesses there are -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype,width", (("bf16", 8), ("f16", 8), ("f32", 4)))
def test_rows_that_begin_anywhere_are_read_in_whole_vectors(dtype: str, width: int) -> None:
    assert widths(code("softmax", dtype, N=512, H=3002), "x") == {width}
    assert widths(code("softmax", dtype, N=512, H=3001), "x") == {width}
    assert widths(code("softmax", dtype, N=512, H=3001), "y") == {width}


def test_elements_before_and_after_a_row_are_not_stored() -> None:
    text = code("softmax", "bf16", N=512, H=3001)
    assert re.search(r"if \(.*\) {\s+b_y\[", text)


def test_only_the_ends_of_rows_are_asked_for() -> None:
    """Rounds in the middle have no conditions."""
    text = code("xent", "bf16", N=16384, H=30522)
    middle = re.search(r"for \(int r\d+ = 1;.*\n(.*)\n", text)
    assert middle is not None and "= pf_load<8>(b_x" in middle[1]


def test_all_that_lies_along_rows_must_begin_alike() -> None:
    assert 8 not in widths(code("scaled", N=512, H=3001), "x")


def test_short_rows_stay_as_they_are() -> None:
    assert 8 not in widths(code("softmax", "bf16", N=512, H=33), "x")


# --- what is computed -------------------------------------------------------------------------------------


def arguments(op: str, dtype: str, sizes: dict[str, int], special: bool = False) -> dict[str, Array]:
    random = np.random.default_rng(sum(sizes.values()))
    given: dict[str, Array] = {}
    for t in PROGRAM.op(op).graph(generics(op, dtype)).tensors:
        if t.role.name != "INPUT":
            continue
        shape = tuple(number(e, sizes) for e in t.shape)
        if t.name == "target":
            drawn = random.integers(0, sizes["H"], shape)
        elif t.dtype.is_float:
            drawn = random.standard_normal(shape) * 3
            if special:
                drawn[0, 0], drawn[1, -1], drawn[2] = np.nan, np.inf, -np.inf
        else:
            drawn = random.integers(-9, 9, shape)
        given[t.name] = drawn.astype(t.dtype.numpy)
    return given


def check(op: str, dtype: str, given: dict[str, Array]) -> None:
    graph = PROGRAM.op(op).graph(generics(op, dtype))
    want = evaluate(graph, bind_sizes(graph, {n: a.shape for n, a in given.items()}), given)
    got = pf.compile(PROGRAM, op, target="emulate")(*given.values())
    results = got if isinstance(got, tuple) else (got,)
    for name, mine in zip(graph.outputs, results, strict=True):
        outcome = agrees(np.asarray(mine), want[name], graph.tensor(name).dtype)
        assert outcome, f"{given['x'].shape} {name}: {outcome.message}"


LENGTHS = ((8, 1029), (3, 1031), (16, 515), (1, 2051), (2, 4099), (40, 1026))


@pytest.mark.parametrize("dtype", ("bf16", "f16", "f32", "f64"))
@pytest.mark.parametrize("op", ("softmax", "xent"))
def test_rows_of_any_length(op: str, dtype: str) -> None:
    for n, h in LENGTHS:
        check(op, dtype, arguments(op, dtype, {"N": n, "H": h}))


@pytest.mark.parametrize("dtype", ("i8", "u8", "i16", "i32"))
def test_integers(dtype: str) -> None:
    for n, h in ((16, 2051), (5, 1031)):
        check("extremes", dtype, arguments("extremes", dtype, {"N": n, "H": h}))


@pytest.mark.parametrize("op", ("pieces", "places", "scaled", "first", "widened"))
def test_other_rows(op: str) -> None:
    for n, h in ((8, 1031), (3, 1029), (16, 515)):
        check(op, "", arguments(op, "", {"N": n, "H": h}))


def test_a_mean_over_rows() -> None:
    for n, h in ((64, 1031), (37, 515)):
        check("mean", "", arguments("mean", "", {"N": n, "H": h}))


def test_rows_of_rows() -> None:
    for n, a, h in ((4, 6, 1031), (8, 3, 1029), (2, 4, 517)):
        check("blocks", "", arguments("blocks", "", {"N": n, "A": a, "H": h}))


@pytest.mark.parametrize("op", ("softmax", "xent"))
def test_what_is_not_finite_stays_in_its_row(op: str) -> None:
    """The neighbour of a row with NaN at its end reads the NaN, and is not changed by it."""
    for dtype in ("bf16", "f32"):
        check(op, dtype, arguments(op, dtype, {"N": 8, "H": 1031}, special=True))


@pytest.mark.parametrize("offset", (1, 2, 4))
def test_arguments_that_are_not_aligned(offset: int) -> None:
    x = arguments("softmax", "bf16", {"N": 8, "H": 1031})["x"]
    memory = np.zeros(x.nbytes + 32, np.uint8)
    start = -memory.ctypes.data % 16 + 2 * offset
    moved = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    moved[...] = x
    check("softmax", "bf16", {"x": moved})


def test_what_is_not_of_a_chunk_is_not_read_from_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that threads share is written chunk by chunk: elements after one exist, and come later."""
    text = """op p(x: f64[R, C]) -> (y: f64[R, C]) where C >= 1 {
      u[r, c] = x[r, c]
      m[r] = sum[c](u[r, c]) / C
      v[r] = sum[c]((u[r, c] - m[r]) ** 2) / C
      y[r, c] = (u[r, c] - m[r]) * rsqrt(v[r] + 0.01)
    }"""
    monkeypatch.setattr(online, "chunk_elements", lambda row, machine: 1)
    x = np.random.default_rng(0).normal(size=(1, 60))
    call = Call("chunks", text, instantiate(parse_text(text), "p"), {"R": 1, "C": 60}, {"x": x})
    assert_right([(call, DrawnWay(stitching=Stitching(online=True), device="odd"))])


# --- remainders -------------------------------------------------------------------------------------------


def test_chunks_of_rows_know_how_near_a_row_begins() -> None:
    """A block has 4 rows of 30522 elements: that 2 * (c1 % 4) is 2 * c1 - 8 * c0 there tells nothing."""
    text = code("mean", N=16384, H=30522)
    assert not re.search(r"for \(int r\d+ = -", text)
    assert 8 in widths(text, "x")


@pytest.mark.parametrize("by,divisible", ((8, True), (4, True), (16, False)))
def test_a_remainder_is_its_dividend_modulo_what_divides_its_divisor(by: int, divisible: bool) -> None:
    place = binary("-", binary("*", IVar("t"), 30522), binary("*", IBin("%", IVar("t"), IConst(4)), 2))
    assert linear(place).divisible(by) is divisible
