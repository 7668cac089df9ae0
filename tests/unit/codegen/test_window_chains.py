"""Windows that double in registers: which loops are chains, and what vectors make of them."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest
from avx512 import AVX512
from machines import compiled_with

import polyfuse as pf
from polyfuse.codegen.math.prelude import prelude
from polyfuse.codegen.math.vector_reduce import DTYPES, SCANS, delayed_name, lanes_name
from polyfuse.driver.pipeline import build
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate
from polyfuse.runtime.toolchain.compiler import load_shared

MACHINES = (("-march=native",), ("-march=x86-64-v3",), ("-march=x86-64-v2",), *AVX512)
DELAYS = (1, 2, 3, 4, 8, 15, 16, 17, 32)


def source() -> str:
    """For each type and delay: lanes of the first vector, which `before` follow from the last on."""
    text = [prelude([delayed_name(op, t) for op in SCANS for t in DTYPES])]
    for op in SCANS:
        for t in DTYPES:
            kind, name = lanes_name(op, t), delayed_name(op, t)
            for d in DELAYS:
                text.append(
                    f'extern "C" int {op}_{t.name}_{d}({t.c_name}* x) {{\n'
                    f"  {kind} before[33];\n"
                    f"  const int n = PF_VECTOR / {t.bytes};\n"
                    f"  for (int k = 0; k < 33; ++k) before[k] = *({kind}*)(x + (32 - k) * n);\n"
                    f"  *({kind}*)x = {name}(*({kind}*)(x + 33 * n), before, {d});\n"
                    f"  return n;\n}}\n"
                )
    return "\n".join(text)


@pytest.mark.parametrize("flags", MACHINES, ids=lambda f: f[-1])
def test_lanes_come_from_vectors_before(flags: tuple[str, ...]) -> None:
    library = load_shared(source(), extra_flags=flags)
    for op in SCANS:
        for t in DTYPES:
            for d in DELAYS:
                x = np.arange(34 * 16).astype(t.numpy)
                n = getattr(library, f"{op}_{t.name}_{d}")(x.ctypes.data_as(ctypes.c_void_p))
                np.testing.assert_array_equal(x[:n], np.arange(33 * n - d, 34 * n - d), f"{op} {t} {d}")


BEHIND, AHEAD = "s in max(t - {0} + 1, 0)..t + 1", "s in t..min(t + {0}, T)"
RIGHT = {
    "max": f"max[{BEHIND}](x[b, s])",
    "min": f"min[{AHEAD}](x[b, s])",
    "sum": f"sum[{BEHIND}](x[b, s])",
    "more": f"x[b, t] - max[{BEHIND}](x[b, s] * x[b, s])",
    "inside": "max[s in 0..{0}](x[b, t + s] if t + s < T else -inf)",
}
FLOATS = {
    "functions": f"exp(-max[{BEHIND}](abs(sin(x[b, s]))))",
    "back": "min[s in 0..min({0}, t + 1)](x[b, t - s])",
}
# Lengths of windows and rows: a vector is not filled, tiles are cut, one that doubling does not end with.
SIZES = ((33, 1), (33, 50), (64, 1100), (100, 1500), (300, 2100))


def check(right: str, dtype: str, rows: int, columns: int) -> None:
    text = f"op f(x: {dtype}[B, T]) -> (y: {dtype}[B, T]) {{ y[b, t] = {right} }}"
    op = pf.parse(text).op("f")
    f, graph = pf.compile(op, target="cpu", threads=2), op.graph()
    for special in (False, True):
        x = argument(dtype, rows, columns, special)
        want = evaluate(graph, {"B": rows, "T": columns}, {"x": x})["y"]
        verdict = agrees(np.asarray(f(x)), want, BY_NAME[dtype])
        assert verdict, f"{verdict.message}\n{text} {x.shape}"


def argument(dtype: str, rows: int, columns: int, special: bool) -> np.ndarray[Any, Any]:
    """Numbers that begin an element after a border of lines."""
    rng = np.random.default_rng(columns)
    whole = (rng.normal(size=rows * columns + 1) * 4).astype(BY_NAME[dtype].numpy)
    x = whole[1:].reshape(rows, columns)
    if special and BY_NAME[dtype].is_float:
        x[0, columns // 2 :: 700] = np.inf
        x[-1, columns // 3 :: 900] = np.nan
    return x


def rights(dtype: str) -> list[str]:
    both = RIGHT if dtype in ("i32", "i64") else RIGHT | FLOATS
    found = [r.replace("-inf", "-2147483648") if dtype == "i32" else r for r in both.values()]
    return [r for r in found if not ("inf" in r and dtype == "i64")]


@pytest.mark.parametrize(("length", "columns"), SIZES)
def test_results_agree_with_the_reference(length: int, columns: int) -> None:
    for right in rights("f32"):
        check(right.format(length), "f32", 3, columns)


@pytest.mark.parametrize("dtype", ["f64", "i32", "i64"])
def test_other_types_agree_with_the_reference(dtype: str) -> None:
    for right in rights(dtype)[:4]:
        check(right.format(64), dtype, 2, 1100)


@pytest.mark.machine("zen3")
def test_short_vectors_agree_with_the_reference() -> None:
    with compiled_with(("-march=x86-64-v3",)):
        for right in rights("f32"):
            check(right.format(100), "f32", 2, 1300)


def text_of(right: str, length: int = 64) -> str:
    text = f"op f(x: f32[B, T]) -> (y: f32[B, T]) {{ y[b, t] = {right.format(length)} }}"
    code = pf.compile(text, target="cpu").built(np.zeros((64, 4096), np.float32)).code
    assert code is not None
    return code.source


@pytest.mark.machine("zen5")
def test_plain_windows_touch_no_array() -> None:
    text = text_of(RIGHT["sum"])
    assert "pf_delayed_sum_f32(" in text
    assert not re.search(r"b_y__(terms|of\d+)\[", text)


@pytest.mark.machine("zen5")
def test_extremes_have_arrays_for_rows_with_a_nan() -> None:
    text = text_of(RIGHT["max"])
    assert re.search(r"__builtin_isnan.*b_y__terms\[.*b_y__of32\[", text, re.DOTALL)
    assert not re.search(r"b_y__(terms|of\d+)\[.*__builtin_isnan", text, re.DOTALL)


@pytest.mark.machine("zen5")
def test_functions_of_totals_read_them_from_an_array() -> None:
    text = text_of(f"exp(sum[{BEHIND}](x[b, s]))")
    assert "pf_delayed_sum_f32(" in text and "pf_row_exp_f32(" in text


@pytest.mark.machine("zen3")
def test_few_registers_leave_links_to_loops() -> None:
    assert "b_y__of64[" in text_of(RIGHT["sum"], 128)


@pytest.mark.machine("zen5")
def test_many_registers_hold_more_links() -> None:
    assert "b_y__of64[" not in text_of(RIGHT["sum"], 128)


def test_what_is_changed_in_place_changes_once() -> None:
    """With a NaN the loops run again."""
    text = f"""op f(x: f32[B, T], inout y: f32[B, T]) {{
  y[b, t] = y[b, t] + max[{BEHIND.format(64)}](x[b, s])
}}"""
    x = argument("f32", 2, 1300, True)
    y = np.ones_like(x)
    pf.compile(text, target="cpu")(x, y)
    most = np.stack([np.max(x[:, max(t - 63, 0) : t + 1], 1) for t in range(1300)], 1)
    np.testing.assert_array_equal(y, 1 + most)


@pytest.mark.parametrize("columns", [1500, 4096])
@pytest.mark.parametrize("shift", [0, 1])
def test_results_past_the_caches_are_the_same(columns: int, shift: int) -> None:
    text = f"op f(x: f32[B, T]) -> (y: f32[B, T]) {{ y[b, t] = {RIGHT['more'].format(64)} }}"
    x = argument("f32", 2, columns, True)
    graph, found = pf.parse(text).op("f").graph(), []
    as_usual: Any = {"fusion": pf.LoopFusion(), "options": pf.Options()}
    for stream in (False, True):
        made = build(graph, {"B": 2, "T": columns}, **as_usual, knobs=CpuKnobs(stream=stream))
        assert made.code is not None and isinstance(made.executable, CpuExecutable)
        assert ("pf_stream(&b_y[" in made.code.source) == stream
        memory = np.full(x.size + 32, 7, np.float32)
        made.executable.run({"x": x, "y": memory[shift : shift + x.size].reshape(x.shape)})
        found.append(memory)
    np.testing.assert_array_equal(*found)
