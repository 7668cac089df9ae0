"""Loops that scan: totals up to each iteration, a vector of terms at once."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from avx512 import AVX512
from equivalence import cpu_source

import polyfuse as pf
from polyfuse.codegen.analysis.scan_loops import scan_of
from polyfuse.codegen.math.prelude import prelude
from polyfuse.codegen.math.vector_reduce import DTYPES, SCANS, scan_name
from polyfuse.driver.pipeline import build
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.dtypes import BY_NAME, F32, F64
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.loop_ir import Declare, For, Node, Store
from polyfuse.ir.tensor_graph import Apply, Cast, Expr, Read
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate
from polyfuse.runtime.toolchain.compiler import load_shared

NUMPY = {"sum": np.add, "max": np.maximum, "min": np.minimum}
# The last one is for compilers that have no function for it.
MACHINES = (
    ("-march=native",), ("-march=x86-64-v3",), ("-march=x86-64-v2",), *AVX512,
    ("-U__GNUC__", "-D__GNUC__=11"),
)  # fmt: skip


def source() -> str:
    text = [prelude([scan_name(op, t) for op in SCANS for t in DTYPES])]
    text += [
        f'extern "C" int scan_{op}_{t.name}({t.c_name}* x) {{ {scan_name(op, t)}(x); return PF_VECTOR; }}\n'
        for op in SCANS
        for t in DTYPES
    ]
    return "\n".join(text)


@pytest.mark.parametrize("flags", MACHINES, ids=lambda f: f[-1])
def test_totals_up_to_each_lane(flags: tuple[str, ...]) -> None:
    library = load_shared(source(), extra_flags=flags)
    rng = np.random.default_rng(3)
    for op in SCANS:
        for t in DTYPES:
            for special in range(3 if t.is_float else 1):
                x = rng.integers(-9, 9, 16).astype(t.numpy)
                if special:
                    x[rng.integers(16)], x[rng.integers(16)] = np.nan, [0, 0, np.inf][special]
                got = x.copy()
                lanes = (
                    getattr(library, f"scan_{op}_{t.name}")(got.ctypes.data_as(ctypes.c_void_p)) // t.bytes
                )
                np.testing.assert_array_equal(got[:lanes], NUMPY[op].accumulate(x[:lanes]), f"{op} {t}")
                np.testing.assert_array_equal(got[lanes:], x[lanes:])


TERMS = {
    "sum": "sum[s in 0..t+1](X[b, s])",
    "max": "max[s in 0..t+1](X[b, s])",
    "min": "min[s in 0..t+1](X[b, s])",
    "later": "sum[s in 0..t+1](X[b, s] * X[b, s]) - X[b, t]",
    "from the end": "sum[s in t..T](X[b, s])",
}
FLOATS = {"functions": "exp(-sum[s in 0..t+1](abs(X[b, s])))"}
SHAPES = ((1, 0, 0), (2, 1, 0), (3, 16, 1), (1, 17, 3), (5, 100, 1), (2, 1500, 5))


def text_of(right: str, dtype: str) -> str:
    if dtype == "bf16":
        wide = re.sub(r"X(.*?])", r"f32(x\1)", right)
        right = f"bf16({wide})"
    right = right.replace("X", "x")
    return f"op f(x: {dtype}[B, T]) -> (y: {dtype}[B, T]) {{ y[b, t] = {right} }}"


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64", "bf16", "i8"])
@pytest.mark.thin(2)
def test_results_agree_with_the_reference(dtype: str) -> None:
    """Of rows that are shorter than a vector and longer ones, which begin anywhere in memory."""
    shapes = SHAPES if dtype == "f32" else SHAPES[-3:]
    for right in (*TERMS.values(), *(FLOATS.values() if dtype in ("f32", "f64", "bf16") else ())):
        text = text_of(right, dtype)
        op = pf.parse(text).op("f")
        f, graph = pf.compile(op, target="cpu", threads=2), op.graph()
        for rows, columns, skipped in shapes:
            for special in (False, True):
                x = argument(dtype, rows, columns, skipped, special)
                want = evaluate(graph, {"B": rows, "T": columns}, {"x": x})["y"]
                verdict = agrees(np.asarray(f(x)), want, graph.tensor("y").dtype)
                assert verdict, f"{verdict.message}\n{text} {x.shape}"


def argument(dtype: str, rows: int, columns: int, skipped: int, special: bool) -> np.ndarray[Any, Any]:
    """Numbers that begin so many elements after a border of lines."""
    rng = np.random.default_rng(columns)
    whole = (rng.normal(size=rows * columns + skipped) * 4).astype(BY_NAME[dtype].numpy)
    x = whole[skipped:].reshape(rows, columns)
    if special and x.size and BY_NAME[dtype].is_float:
        x[0, columns // 2 :: 7] = np.inf
        x[-1, columns // 3] = np.nan
    return x


def test_reductions_of_growing_ranges_scan() -> None:
    assert "pf_scan_sum_f32(" in cpu_source(text_of(TERMS["sum"], "f32"), B=64, T=1000)
    assert "pf_scan_max_f64(" in cpu_source(text_of(TERMS["max"], "f64"), B=64, T=1000)


def test_recurrences_that_are_written_out_keep_their_order() -> None:
    text = """op f(x: f32[B, T]) -> (y: f32[B, T]) where T >= 1 {
  y[b, 0] = x[b, 0]
  y[b, t] = y[b, t-1] + x[b, t] for t in 1..T
}"""
    assert "pf_scan" not in cpu_source(text, B=64, T=1000)


def loop_of(*body: Node) -> For:
    return For("t", IConst(0), IConst(9), 1, body, scan="p")


def test_steps_that_read_what_steps_write_are_no_scan() -> None:
    p, q, t = Read("p", (), F32), Read("q", (), F32), (IVar("t"),)

    def steps(term: Expr) -> For:
        total = Declare("q", F32, Apply("add", (p, term), F32))
        return loop_of(total, Store("y", t, q), Store("p", (), q))

    found = scan_of(steps(Read("x", t, F32)))
    assert found is not None and found.op == "sum" and found.term == Read("x", t, F32)
    assert scan_of(steps(Read("y", (IVar("t") + 1,), F32))) is None
    assert scan_of(steps(p)) is None
    assert scan_of(replace(steps(Read("x", t, F32)), scan="")) is None


def test_totals_in_f64_of_which_f32_is_made_are_narrow() -> None:
    p, q, t = Read("p", (), F64), Read("q", (), F64), (IVar("t"),)
    total = Declare("q", F64, Apply("add", (p, Cast(Read("x", t, F32), F64)), F64))
    narrow = scan_of(loop_of(total, Store("y", t, Cast(q, F32)), Store("p", (), q)))
    wide = scan_of(loop_of(total, Store("y", t, q), Store("p", (), q)))
    assert narrow is not None and narrow.narrow == (Store("y", t, Read("q", (), F32)),)
    assert wide is not None and wide.narrow is None and wide.dtype is F32


@pytest.mark.parametrize("right", [TERMS["sum"], "exp(-sum[s in 0..t+1](abs(x[b, s])))"])
@pytest.mark.parametrize("shift", [0, 1])
def test_results_past_the_caches_are_the_same(right: str, shift: int) -> None:
    """They begin anywhere in memory."""
    graph, x = pf.parse(text_of(right, "f32")).op("f").graph(), argument("f32", 3, 1001, 1, special=True)
    as_usual: Any = {"fusion": pf.LoopFusion(), "options": pf.Options()}
    found = []
    for stream in (False, True):
        made = build(graph, {"B": 3, "T": 1001}, **as_usual, knobs=CpuKnobs(stream=stream))
        assert made.code is not None and isinstance(made.executable, CpuExecutable)
        assert ("pf_stream(&b_y[" in made.code.source) == stream
        memory = np.full(x.size + 32, 7, np.float32)
        made.executable.run({"x": x, "y": memory[shift : shift + x.size].reshape(x.shape)})
        found.append(memory)
    np.testing.assert_array_equal(*found)


def test_narrow_results_are_stored_as_they_are() -> None:
    """A vector of terms makes less than a vector of them."""
    text = "op f(x: f32[B, T]) -> (y: bf16[B, T]) { y[b, t] = bf16(sum[s in 0..t+1](x[b, s])) }"
    as_usual: Any = {"fusion": pf.LoopFusion(), "options": pf.Options()}
    graph = pf.parse(text).op("f").graph()
    made = build(graph, {"B": 3, "T": 1001}, **as_usual, knobs=CpuKnobs(stream=True))
    assert made.code is not None and "pf_stream" not in made.code.source
