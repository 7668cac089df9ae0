"""A thread's access is 16 bytes wide for every element type, as far as rows and arguments are aligned."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from targets import Array

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

PROGRAM = pf.parse("""
op twice[F: float](x: F[N, H]) -> (y: F[N, H]) { y[n, h] = x[n, h] + x[n, h] }
op more[I: int](x: I[N, H]) -> (y: I[N, H]) { y[n, h] = x[n, h] + x[n, h] }
op shifted(x: bf16[N, H], b: f32[H]) -> (y: bf16[N, H]) { y[n, h] = bf16(f32(x[n, h]) + b[h]) }
op widened(x: bf16[N, H], z: f32[N, H]) -> (y: f32[N, H]) { y[n, h] = f32(x[n, h]) * z[n, h] }
op masked(x: f16[N, H], m: bool[N, H]) -> (y: f16[N, H]) { y[n, h] = x[n, h] if m[n, h] else 0.0 }
op counted(x: u8[N, H], w: f32[H]) -> (y: u8[N, H]) { y[n, h] = x[n, h] if w[h] > 0.5 else x[n, h] + x[n, h] }
op normal(x: bf16[N, H], g: f32[H]) -> (y: bf16[N, H]) {
  v[n] = mean[h](f32(x[n, h]) ** 2)
  y[n, h] = bf16(f32(x[n, h]) * rsqrt(v[n] + 1e-5) * g[h])
}
op columns(x: bf16[N, H]) -> (y: f32[H]) { y[h] = sum[n](f32(x[n, h])) }
""")
FLOATS, INTEGERS = ("f64", "f32", "f16", "bf16"), ("i64", "i32", "i16", "i8", "u8")
ALONE = {"f64": 2, "i64": 2, "f32": 4, "i32": 4, "f16": 8, "bf16": 8, "i16": 8, "i8": 16, "u8": 16}
MIXED = {"shifted": 8, "widened": 4, "masked": 8, "counted": 16, "normal": 8}
SHAPES = ((1, 1), (3, 8), (2, 33), (5, 1032), (260, 16), (3, 2064), (0, 16))


def generics(op: str, dtype: str) -> dict[str, str]:
    return {"more": {"I": dtype}, "twice": {"F": dtype}}.get(op, {})


@cache
def source(op: str, dtype: str, rows: int, length: int) -> str:
    specialized = PROGRAM.op(op).specialize(generics(op, dtype), N=rows, H=length)
    lowered = specialized.schedule().apply(pf.LoopFusion()).lower(target="cuda")
    return lowered.apply(pf.Stitching()).code().source


def widths(text: str, name: str) -> set[int]:
    """Elements of the vectors of an argument, and 1 where one is accessed by itself."""
    found = {int(n) for n in re.findall(rf"pf_(?:load|store)<(\d+)>\(b_{name},", text)}
    return found | {1 for _ in re.findall(rf"\bb_{name}\[", text)}


@pytest.mark.parametrize("dtype", ALONE)
def test_an_access_is_16_bytes(dtype: str) -> None:
    text = source("more" if dtype in INTEGERS else "twice", dtype, 64, 4096)
    assert widths(text, "x") == widths(text, "y") == {ALONE[dtype]}


@pytest.mark.parametrize("op", MIXED)
def test_the_type_of_most_bytes_decides(op: str) -> None:
    assert widths(source(op, "", 512, 4096), "x") == {MIXED[op]}


def test_wider_elements_take_several_accesses() -> None:
    assert widths(source("shifted", "", 512, 4096), "b") == {8}  # two of 16 bytes


def test_rows_that_are_not_aligned_have_shorter_accesses() -> None:
    assert widths(source("normal", "", 512, 4100), "x") == {4}
    assert widths(source("normal", "", 512, 4099), "x") == {1}


def arguments(op: str, dtype: str, rows: int, length: int) -> dict[str, Array]:
    """Numbers, and where the type has them NaN and infinities."""
    random = np.random.default_rng(rows * 1000 + length)
    given: dict[str, Array] = {}
    for t in PROGRAM.op(op).graph(generics(op, dtype)).tensors:
        if t.role.name != "INPUT":
            continue
        shape = (rows, length) if len(t.shape) == 2 else (length,)
        if t.dtype.is_float:
            drawn = random.standard_normal(shape) * 3
            special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
            drawn.flat[:: max(1, 7 * length)] = special[len(given)]
        else:
            drawn = random.integers(0, 2 if t.dtype.is_bool else 9, shape)
        given[t.name] = drawn.astype(t.dtype.numpy)
    return given


def check(op: str, dtype: str, given: dict[str, Array]) -> None:
    graph = PROGRAM.op(op).graph(generics(op, dtype))
    want = evaluate(graph, bind_sizes(graph, {n: a.shape for n, a in given.items()}), given)["y"]
    got = pf.compile(PROGRAM, op, target="emulate")(*given.values())
    outcome = agrees(np.asarray(got), want, graph.tensor("y").dtype)
    assert outcome, outcome.message


@pytest.mark.parametrize("op", (*MIXED, "columns"))
def test_mixed_types_at_any_shape(op: str) -> None:
    for shape in SHAPES:
        check(op, "", arguments(op, "", *shape))


@pytest.mark.parametrize("dtype", ALONE)
def test_each_type_at_any_shape(dtype: str) -> None:
    op = "more" if dtype in INTEGERS else "twice"
    for shape in SHAPES:
        check(op, dtype, arguments(op, dtype, *shape))


@pytest.mark.parametrize("offset", (1, 2, 4, 8))
def test_arguments_that_are_not_aligned(offset: int) -> None:
    for op, dtype in (("shifted", ""), ("masked", ""), ("more", "u8")):
        given = arguments(op, dtype, 5, 1032)
        moved = {}
        for name, array in given.items():
            memory = np.zeros(array.nbytes + 32, np.uint8)
            start = -memory.ctypes.data % 16 + offset * array.itemsize
            moved[name] = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            moved[name][...] = array
        check(op, dtype, moved)


def test_widths_are_of_types() -> None:
    assert all(BY_NAME[d].bytes * n == 16 for d, n in ALONE.items())
