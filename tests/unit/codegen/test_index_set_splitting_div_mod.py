"""Vector loops over digits: what they become, and that each iteration still does what it did, once."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from equivalence import assert_right, cpu_source, fixed_graph_of, results_of, seeded_inputs, shape_of
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.analysis.periodicity import by_steps, periods
from polyfuse.codegen.cpu.emit import CpuCode
from polyfuse.codegen.transforms.index_set_splitting.div_mod import (
    split_div_mod,
)
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.cpu_core import Core, kept_room
from polyfuse.ir.dtypes import F32, I8
from polyfuse.ir.index_expr import IndexExpr, ISize, IVar, as_index, binary, evaluate
from polyfuse.ir.loop_ir import Block, Declare, For, Store, Update, format_block
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Cast, Expr, Read, reads
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate as evaluate_graph

C, N = IVar("c"), ISize("N")


def copying(*places: IndexExpr, upper: IndexExpr | int = 100, lower: IndexExpr | int = 0) -> For:
    """y[c] = x[places]"""
    body = (Store("y", (C,), Read("x", places, F32)),)
    return For("c", as_index(lower), as_index(upper), 1, body, Coordinate.VECTOR)


def split(loop: For) -> str:
    return format_block(split_div_mod((loop,), itertools.count(), Core()))


def test_short_windows_are_copies_of_the_body() -> None:
    assert split(copying(C // 2, upper=101)) == (
        "for c in 0..50 @vec:\n  y[c*2] = x[c]\n  y[c*2 + 1] = x[c]\nfor c in 100..101:\n  y[c] = x[c//2]"
    )
    assert "for c in 0..N @vec:\n  y[c*3] = x[c]\n" in split(copying(C // 3, upper=N * 3))
    assert (
        split(copying(C // 2 % 2 + C % 2, lower=IVar("s") * 64, upper=IVar("s") * 64 + 64)).count(" = ") == 4
    )


def test_longer_windows_are_loops() -> None:
    assert split(copying(C // 32, C % 32, upper=70)) == (
        "for c_d32 in 0..2:\n"
        "  for c in c_d32*32..c_d32*32 + 32 @vec:\n    y[c] = x[c_d32, c - c_d32*32]\n"
        "for c in 64..70 @vec:\n  y[c] = x[2, c - 64]"
    )


def test_windows_begin_where_digits_change() -> None:
    assert split(copying((C + 3) % 40, upper=40)) == (
        "for c in 0..37 @vec:\n  y[c] = x[c + 3]\nfor c in 37..40 @vec:\n  y[c] = x[c - 37]"
    )
    assert split(copying((C - 1) // 8, lower=1, upper=33)) == (
        "for c_d8 in 0..4:\n  for c in c_d8*8 + 1..c_d8*8 + 9 @vec:\n    y[c] = x[c_d8]"
    )
    assert split(copying((C + 3) // 8, upper=30)) == (
        "for c in 0..5 @vec:\n  y[c] = x[0]\n"
        "for c_d8 in 1..4:\n  for c in c_d8*8 - 3..c_d8*8 + 5 @vec:\n    y[c] = x[c_d8]\n"
        "for c in 29..30 @vec:\n  y[c] = x[4]"
    )


def test_windows_in_windows() -> None:
    assert split(copying(C // 64, C // 4 % 16, C % 4, upper=128)) == (
        "for c_d64 in 0..2:\n  for c in 0..16 @vec:\n"
        + "\n".join(f"    y[c_d64*64 + c*4{f' + {k}' if k else ''}] = x[c_d64, c, {k}]" for k in range(4))
    )


@pytest.mark.parametrize(
    "loop",
    [
        copying(C, upper=N),
        copying(C // 2, upper=16),  # compilers unroll it
        copying(C // 8, C // 12),  # no window holds whole ones of the other
        copying(binary("//", C * C, 4)),
        copying((C + IVar("k")) // 32),
        copying(C // N, upper=N),
    ],
    ids=lambda x: format_block(x.body),
)
def test_loops_that_stay(loop: For) -> None:
    assert split_div_mod((loop,), itertools.count(), Core()) == (loop,)


def test_loops_of_other_kinds_stay() -> None:
    loop = copying(C // 2)
    scalar = For("c", loop.lower, loop.upper, 1, loop.body)
    several = copying(C // 7)
    long = For(
        "c", as_index(0), N, 1, several.body * (FITTED.div_mod_most_statements // 7 + 1), Coordinate.VECTOR
    )
    order = For(
        "c", as_index(0), N, 1, (Update("%m", (), "max", Read("x", (C // 9,), F32)),), Coordinate.VECTOR
    )
    for kept in (scalar, long, order):
        assert split_div_mod((kept,), itertools.count(), Core()) == (kept,)


def test_copies_have_scalars_of_their_own() -> None:
    h = Declare("%h", F32, Read("x", (C // 2,), F32))
    loop = For("c", as_index(0), N, 1, (h, Store("y", (C,), Read("%h", (), F32))), Coordinate.VECTOR)
    assert "f32 %copy0 = x[c]\n  y[c*2 + 1] = %copy0" in split(loop).replace("[]", "")


def summing(length: int, upper: int, dtype: Any = F32) -> For:
    x = Read("x", (C // length,), dtype)
    value: Expr = x if dtype == F32 else Cast(x, F32)
    body = (Update("%a", (), "sum", value),)
    return For("c", as_index(0), as_index(upper), 1, body, Coordinate.VECTOR, lanes=("%a",))


def test_sums_keep_their_lanes() -> None:
    assert split(summing(48, 480)).startswith("for c in 0..480 @vec accumulating %a in 64 bytes:\n")
    assert split(summing(100, 200)).startswith("for c_d100 in 0..2:\n  for c in ")
    assert split(summing(12, 120)) == format_block((summing(12, 120),))
    pairs = split(summing(2, 401)).splitlines()
    assert pairs[0] == "for c in 0..200 @vec accumulating %a:" and pairs[3] == "for c in 400..401:"
    # A vector of bytes is longer than a window of eight.
    assert "in 32 bytes" in split(summing(8, 400))
    assert split(summing(8, 400, I8)).count("%a sum=") == 8


def test_digits_of_a_step() -> None:
    loop = summing(64, 640)
    (update,) = by_steps(loop, 32, IVar("s")).body
    assert isinstance(update, Update) and reads(update.value)[0].indices == (IVar("s") // 64,)
    assert by_steps(loop, 128, IVar("s")) is loop
    assert by_steps(For("c", as_index(8), N, 1, loop.body), 16, IVar("s")).lower == as_index(8)


def test_periods() -> None:
    for place, wanted in {
        C // 6: {6},
        C * 4 // 6: {3},
        C // 4 % 6: {4, 24},
        (C % 6 + C // 4) // 5: {6, 4, 60},
        C * 2 // 2: set(),
        binary("//", C * C, 4): None,
    }.items():
        assert periods(copying(place)) == wanted, place


# --- every iteration, once ----------------------------------------------------------------------------


def done(block: Block, env: Mapping[str, int]) -> list[tuple[int, tuple[int, ...]]]:
    """(element, elements that it is made of), in order."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for node in block:
        match node:
            case For():
                for i in range(evaluate(node.lower, env), evaluate(node.upper, env)):
                    found += done(node.body, {**env, node.var: i})
            case Store(_, (place,), Read(_, places)):
                read = tuple(evaluate(i, env) for i in places)  # type: ignore[arg-type]
                found.append((evaluate(place, env), read))  # type: ignore[arg-type]
            case _:
                raise AssertionError(node)
    return found


def drawn_place(rng: random.Random, lengths: list[int]) -> IndexExpr:
    factor = rng.choice((1, 1, 1, 2, 3))
    top = C * factor + rng.choice((0, 0, 0, 1, 5, -1, IVar("k") * lengths[-1]))
    one, other = rng.choice(lengths), rng.choice(lengths)
    return rng.choice(
        (top // one, top % one, top // one % other, top % one // other, top // one * 2 + top % other)
    )


@pytest.mark.parametrize("seed", range(8))
def test_each_iteration_runs_once(seed: int) -> None:
    rng = random.Random(seed)
    changed = 0
    for _ in range(40):
        length = rng.choice((2, 3, 4, 5, 7, 8, 9, 12, 16, 31))
        lengths = [length, length * rng.choice((1, 2, 3, 4)), rng.choice((length, 6))]
        places = [drawn_place(rng, lengths) for _ in range(rng.choice((1, 2)))]
        lower = rng.choice((as_index(0), as_index(rng.randrange(9)), IVar("k") * 16, ISize("L")))
        upper = rng.choice((as_index(rng.randrange(120)), N, lower + 64, lower + rng.randrange(90)))
        loop = copying(*places, lower=lower, upper=upper)
        block = split_div_mod((loop,), itertools.count(), Core())
        changed += block != (loop,)
        for n in (0, length - 1, length + 1, 97):
            env = {"N": n, "k": n % 5, "L": n // 3}
            assert sorted(done(block, env)) == sorted(done((loop,), env)), format_block((loop,))
    assert changed > 12


# --- rows of what windows share -----------------------------------------------------------------------


def pixels(*stores: Store, upper: int = 100, core: Core | None = None) -> str:
    """A loop of rows of pixels."""
    loop = For("c", as_index(0), as_index(upper), 1, stores, Coordinate.VECTOR)
    rows = For("t", as_index(0), as_index(9), 1, (loop,))
    return format_block(split_div_mod((rows,), itertools.count(), core or Core()))


def channel(k: int, place: IndexExpr = C // 2, tensor: str = "x") -> Store:
    return Store("y", (C, as_index(k)), Read(tensor, (place,), F32))


def test_what_windows_share_is_spread_where_copies_are_too_many_neighbours() -> None:
    three = (channel(0), channel(1), channel(2, C, "z"))
    assert pixels(*three) == (
        "for t in 0..9:\n  f32 %spread0[100]\n"
        "  for c in 0..50 @vec:\n    %spread0[c*2] = x[c]\n    %spread0[c*2 + 1] = x[c]\n"
        "  for c in 0..100 @vec:\n    y[c, 0] = %spread0[c]\n    y[c, 1] = %spread0[c]\n    y[c, 2] = z[c]"
    )
    assert "%spread" not in split(For("c", as_index(0), as_index(100), 1, three, Coordinate.VECTOR)), (
        "outermost"
    )


@pytest.mark.parametrize(
    "stores",
    [
        (channel(0),),
        (channel(0), channel(1)),  # four neighbours
        (channel(0), channel(1), channel(2, C // 5)),  # more than compilers join, either way
        (channel(0), channel(1), channel(2, C // 2, "y")),  # what the loop changes
        tuple(Store("y", (as_index(k), C), Read("x", (C // 2,), F32)) for k in range(3)),  # rows apart
    ],
    ids=["one", "two", "five", "changed", "planes"],
)
def test_copies_are_not_spread(stores: tuple[Store, ...]) -> None:
    assert "%spread" not in pixels(*stores)


def test_what_is_spread_has_room_in_the_core_at_hand() -> None:
    three, most = (channel(0), channel(1), channel(2)), kept_room(Core()) // 4
    assert "%spread" in pixels(*three, upper=most) and "%spread" not in pixels(*three, upper=most + 1)
    assert "%spread" not in pixels(*three, upper=most, core=Core(l1=32 << 10))


COLOURS = """op f(y: u8[H, W], u: {0}[H // 2, W // {1}], v: {0}[H // 2, W // {1}], m: f32[3])
    -> (o: u8[H, W, 3], p: f32[H, W, 3]) where H % 2 == 0, W % {1} == 0 {{
  o[i, j, 0] = u8(f32(y[i, j]) + f32(v[i // 2, j // {1}]))
  o[i, j, 1] = u8(f32(y[i, j]) * 2.0 + f32(u[i // 2, j // {1}]) + f32(v[i // 2, j // {1}]))
  o[i, j, 2] = u8(f32(y[i, j]) * m[j % {1}] + f32(u[i // 2, j // {1}]))
  p[i, j, 0] = f32(u[i // 2, j // {1}]) if j >= 3 else 1.0
  p[i, j, 1] = f32(u[i // 2, j // {1} - 1]) if j >= {1} else 0.5
  p[i, j, 2] = 2.0
}}"""


@pytest.mark.parametrize("sizes", thinned([(2, 0), (2, 6), (4, 24), (6, 66), (130, 360)], 2), ids=str)
@pytest.mark.parametrize(("dtype", "window"), [("u8", 2), ("f16", 2), ("f32", 3)])
def test_colours(dtype: str, window: int, sizes: tuple[int, int]) -> None:
    text = COLOURS.format(dtype, window)
    graph = fixed_graph_of(text, H=sizes[0], W=sizes[1])
    inputs = seeded_inputs(graph)
    inputs["u"], inputs["v"], inputs["m"] = (np.abs(inputs[n]).astype(inputs[n].dtype) for n in "uvm")
    o, p = pf.compile(text)(**inputs)
    assert_right(graph, {"o": o, "p": p}, inputs)
    assert sizes[1] < 300 or "spread0[" in cpu_source(text, H=sizes[0], W=sizes[1])


# --- the code -----------------------------------------------------------------------------------------

BOTH = """op f(x: {0}[A, M], w: {0}[{1}], s: {0}[M]) -> (y: {0}[A, M], z: {0}[A, M], d: {0}[A]) {{
  y[a, i] = x[a, i] * w[i % {1}] + s[i // {1}]
  z[a, i] = x[a, (i - 1) // {1}] + w[{1} - 1 - i % {1}] if i >= 1 else s[i]
  d[a] = sum[i](x[a, i] * s[i // {1}] * w[(i + 1) % {1}])
}}"""


def code_of(text: str) -> CpuCode:
    """For all sizes."""
    graph = instantiate((parse_text(text),), "f")
    return emitted(Watch(Options()), Compilation(graph, {}, LoopFusion(), Options(), stitching=Stitching()))[
        1
    ]


@pytest.mark.parametrize(
    ("dtype", "length"),
    [("f32", k) for k in (2, 3, 5, 7, 8, 13, 16, 32, 70)]
    + [("f64", 4), ("f16", 4), ("bf16", 9), ("f16", 32), ("i8", 8), ("i64", 3)],
)
def test_results(dtype: str, length: int) -> None:
    text = BOTH.format(dtype, length)
    code = code_of(text)
    for m in (0, 1, length - 1, length, length + 1, 2 * length + 3, 8 * length + 1):
        graph = fixed_graph_of(text, A=3, M=m)
        inputs = seeded_inputs(graph)
        memory = dict(inputs)
        for t in results_of(graph):
            memory[t.name] = np.full(shape_of(t), 77).astype(t.dtype.numpy)
        CpuExecutable(code, {"A": 3, "M": m}).run(memory)
        wanted = evaluate_graph(graph, {}, inputs)
        for t in results_of(graph):
            outcome = agrees(memory[t.name], wanted[t.name], t.dtype)
            assert outcome, f"{t.name} with {m}: {outcome.message}"


UP = "op f(x: f32[H, W]) -> (y: f32[2*H, 2*W]) { y[i, j] = x[i // 2, j // 2] for i in 0..2*H, j in 0..2*W }"
GROUPS = "op f(q: i8[N, K], s: f32[N, G]) -> (y: f32[N, K]) where K == {0} * G {{\n\
  y[n, k] = f32(q[n, k]) * s[n, k // {0}] }}"
DOT = "op f(x: f32[K], q: i8[N, K], s: f32[N, G]) -> (y: f32[N]) where K == {0} * G {{\n\
  y[n] = sum[k](x[k] * f32(q[n, k]) * s[n, k // {0}]) }}"


def test_no_lane_divides() -> None:
    assert "floordiv_i64(c1" not in cpu_source(UP, H=40, W=40)
    short, long = (cpu_source(GROUPS.format(k), N=64, K=1280, G=1280 // k) for k in (10, 128))
    assert "PF_IVDEP PF_ROLLED\n        for (int l = 0; l < 10; ++l)" in short
    assert "floordiv" not in short + long
    dot = cpu_source(DOT.format(64), N=64, K=1024, G=16)
    assert re.search(r"pf_floordiv_i64\((c\d)_s, 64\)", dot) and not re.search(r"floordiv_i64\(c\d,", dot)


def test_a_condition_on_digits_is_resolved() -> None:
    pairs = "op f(x: f32[T, D]) -> (y: f32[T, D]) where D >= 2 {\n\
      y[t, k] = -x[t, k + 1 - 2 * (k % 2)] if k % 2 == 0 else x[t, k + 1 - 2 * (k % 2)] }"
    source = cpu_source(pairs, T=8, D=64)
    body = source[source.index("_body(") :]
    assert "asm" not in body and "?" not in body
