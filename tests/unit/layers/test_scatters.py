"""Scatters with owners: every result right, whatever the order, range and number of destinations."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from equivalence import cpu_source
from targets import Call, check_everywhere

import polyfuse as pf
from polyfuse.diagnostics import PolyfuseError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.kernel import KernelGraph, Owners
from polyfuse.ir.schedule_tree import ScheduledGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion, identity_schedule
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.poly.model.domains import specialize

MESSAGES = """op f(x: f32[N, F], w: f32[E], src: i64[E], dst: i64[E]) -> (y: f32[N, F]) {
  y[dst[e], f] += w[e] * x[src[e], f]
}"""
ROWS_ADDED = "op f(inout y: f32[N, F], dst: i64[E], x: f32[E, F]) { y[dst[e], f] += x[e, f] }"
GREATEST = """op f(x: f32[N, F], src: i64[E], dst: i64[E]) -> (y: f32[N, F]) {
  y[dst[e], f] max= x[src[e], f]
}"""
LAYER = """op f(x: f32[N, F], w: f32[E], src: i64[E], dst: i64[E], b: f32[F]) -> (y: f32[N, F]) {
  let sum: f32[N, F] = 0
  m[e, f] = tanh(w[e] * x[src[e], f]) for e in 0..E
  sum[dst[e], f] += m[e, f]
  y[n, f] = max(sum[n, f] + b[f], 0.0)
}"""
SEVERAL_LOOPS = """op f(x: f32[E, K, F], dst: i32[E], b: f32[N]) -> (y: f32[N, F]) {
  let s: f32[N, F] = 1
  s[dst[e], f] += x[e, k, f]
  y[n, f] = s[n, f] + b[n]
}"""
MANY_ROWS = [
    *[(5000, 3000, 64), (3001, 4100, 33), (700, 1025, 300), (2, 3000, 16)],
    *[
        (9000, 20_000, 2),
        (9000, 20_000, 3),
        (5000, 9000, 8),
        (5000, 9001, 13),
        (4001, 9000, 16),
        (999, 4100, 31),
    ],
]


def graph_of(text: str, **sizes: int) -> Any:
    return specialize(instantiate((parse_text(text),), "f"), sizes)


def kernels(text: str, threads: int = 2, **sizes: int) -> KernelGraph:
    graph = graph_of(text, **sizes)
    return form_kernels(LoopFusion().run(ScheduledGraph(graph, identity_schedule(graph).tree)), threads)[0]


def given(n: int, e: int, f: int, order: str, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    dst = rng.integers(0, n, e)
    dst = {"sorted": np.sort(dst), "any": dst, "one": dst * 0 + n // 2, "apart": np.sort(dst)[::-1].copy()}[
        order
    ]
    if order == "any" and e > 3:
        dst[:3] = -5, n, 10 * n  # clamped
    return {
        "x": rng.standard_normal((n, f), "f4"),
        "w": rng.standard_normal(e, "f4"),
        "src": rng.integers(0, n, e),
        "dst": dst,
    }


@pytest.mark.parametrize("order", ["sorted", "any", "one", "apart"])
@pytest.mark.parametrize("f", [16, 64, 67, 130])
def test_messages(order: str, f: int) -> None:
    n, e = 97, 40_000 // f
    a = given(n, e, f, order)
    a["x"][3, 5], a["x"][4, 6] = np.inf, np.nan
    want = np.zeros((n, f))
    rows, to = np.clip(a["src"], 0, n - 1), np.clip(a["dst"], 0, n - 1)
    with np.errstate(invalid="ignore"):
        np.add.at(want, to, a["w"][:, None].astype("f8") * a["x"][rows])
    got = pf.compile(MESSAGES)(**a)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-4)


def test_the_result_does_not_depend_on_owners() -> None:
    a = given(900, 3000, 33, "any")
    results = [pf.compile(MESSAGES, threads=t)(**a) for t in (1, 2, 5)]
    for r in results[1:]:
        np.testing.assert_array_equal(r, results[0])


def test_every_form_against_the_reference() -> None:
    rng = np.random.default_rng(5)
    calls = []
    for k, (n, e, f) in enumerate([(9, 700, 50), (1, 40, 16), (301, 2100, 17)]):
        sizes = {"N": n, "E": e, "F": f}
        a = given(n, e, f, ("sorted", "any", "apart")[k], k)
        rows = {"y": a["x"], "dst": a["dst"], "x": rng.standard_normal((e, f), "f4")}
        most = {m: a[m] for m in ("x", "src", "dst")}
        layer = {**a, "b": rng.standard_normal(f, "f4")}
        for text, inputs in (
            (MESSAGES, a), (ROWS_ADDED, rows), (GREATEST, most), (LAYER, layer),
        ):  # fmt: skip
            inside = {**inputs, "dst": np.clip(inputs["dst"], 0, n - 1)}
            calls.append(Call(f"{k}", text, instantiate((parse_text(text),), "f"), sizes, inside))
    several = {"x": rng.standard_normal((70, 9, 60), "f4"), "dst": rng.integers(0, 8, 70).astype("i4")}
    several["b"] = rng.standard_normal(8, "f4")
    graph = instantiate((parse_text(SEVERAL_LOOPS),), "f")
    calls.append(Call("several", SEVERAL_LOOPS, graph, {"E": 70, "K": 9, "F": 60, "N": 8}, several))
    check_everywhere(calls)


def test_checked_indices_are_reported() -> None:
    a = given(20, 2000, 32, "sorted")
    f = pf.compile(MESSAGES, checked=True)
    np.testing.assert_allclose(f(**a), pf.compile(MESSAGES)(**a), rtol=1e-5, atol=1e-5)
    for name, bad in (("dst", -1), ("dst", 20), ("src", 20)):
        wrong = {**a, name: a[name].copy()}
        wrong[name][777] = bad
        with pytest.raises(PolyfuseError, match="index"):
            f(**wrong)


def test_strided_and_narrow() -> None:
    a = given(40, 2500, 16, "sorted")
    wide = np.zeros((40, 32), "f4")
    wide[:, ::2] = a["x"]
    want = pf.compile(MESSAGES)(**a)
    np.testing.assert_array_equal(pf.compile(MESSAGES)(**{**a, "x": wide[:, ::2]}), want)


@pytest.mark.parametrize(
    ("text", "sizes", "owners"),
    [
        (MESSAGES, {"N": 900, "E": 3000, "F": 32}, Owners("y", 0, 2)),
        (MESSAGES, {"N": 900, "E": 3000, "F": 256}, Owners("y", 0, 4)),  # long rows
        (MESSAGES, {"N": 50, "E": 3000, "F": 32}, Owners("y__2__part", 1, 1)),  # a copy for each part
        (MESSAGES, {"N": 50, "E": 30, "F": 32}, Owners("y", 0, 1)),  # little work
        (MESSAGES, {"N": 50, "E": 3000, "F": 3}, None),  # little work in short rows
        (MESSAGES, {"N": 900, "E": 30_000, "F": 3}, None),  # a copy of short rows for each part
        (MESSAGES, {"N": 9000, "E": 30_000, "F": 3}, Owners("y", 0, 2)),
        (MESSAGES, {"N": 9000, "E": 90_000, "F": 1}, None),  # little for each index
        ("op f(x: f32[E, F], d: i64[F], b: f32[N]) -> (y: f32[E, N]) { y[e, d[f]] += x[e, f] }",
         {"N": 50, "E": 300, "F": 320}, None),  # rows are free already
        ("op f(x: f32[E, F], d: i64[E], b: f32[N]) -> (y: f32[N, F]) "
         "{ y[d[e], f] += x[e, f]\n y[d[e], f] += 2.0 * x[e, f] }",
         {"N": 50, "E": 3000, "F": 32}, None),  # two scatters
    ],
)  # fmt: skip
def test_who_has_owners(text: str, sizes: dict[str, int], owners: Owners | None) -> None:
    found = [k.owners for k in kernels(text, **sizes).kernels if k.owners is not None]
    assert found == ([owners] if owners else [])


def test_many_workers_have_a_part_each() -> None:
    (k,) = kernels(MESSAGES, threads=24, N=5000, E=3000, F=32).kernels
    assert k.owners is not None and k.owners.parts == 24


def test_no_elements() -> None:
    f = pf.compile(MESSAGES)
    a = given(20, 0, 32, "sorted")
    np.testing.assert_array_equal(f(**a), np.zeros((20, 32), "f4"))


@pytest.mark.thin(2)
@pytest.mark.parametrize("order", ["sorted", "any", "one", "apart"])
@pytest.mark.parametrize(("n", "e", "f"), MANY_ROWS)
def test_rows_added_to_many_rows(order: str, n: int, e: int, f: int) -> None:
    a = given(n, e, f, order)
    x = np.random.default_rng(1).standard_normal((e, f), "f4")
    x[e // 2, 1], x[e // 3, -1] = np.nan, np.inf
    want, got = a["x"].copy(), a["x"].copy()
    np.add.at(want, np.clip(a["dst"], 0, n - 1), x)
    pf.compile(ROWS_ADDED)(got, a["dst"], x)
    if n < e / 4:  # parts of the sums are added up
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(got, want)


EACH = [1, 2, 3, 5, 7, 20, 1000]


@pytest.mark.thin(3)
@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize("f", [2, 4, 7, 12, 16, 24])
def test_rows_of_which_so_many_go_together(f: int, each: int) -> None:
    """Each key comes so often, in turn with another one or not: a row is held, or loaded each time."""
    n, e = 40_000, 30_000
    rng = np.random.default_rng(each)
    runs = np.repeat(rng.integers(0, n, e // each + 1), each)[:e]
    x = rng.standard_normal((e, f), "f4")
    for dst in (np.sort(runs), runs, np.where(np.arange(e) % 2, runs, runs[0])):
        want = np.zeros((n, f), "f4")
        np.add.at(want, dst, x)
        got = np.zeros((n, f), "f4")
        pf.compile(ROWS_ADDED)(got, dst, x)
        np.testing.assert_array_equal(got, want)


@pytest.mark.machine("zen5")
@pytest.mark.parametrize(
    ("f", "held"),
    [(2, [2]), (4, [4]), (7, [4, 3]), (12, [8, 4]), (16, [16]), (45, [32, 8, 4, 1]), (65, None)],
)
def test_rows_in_registers(f: int, held: list[int] | None) -> None:
    text = cpu_source(ROWS_ADDED, N=40_000, E=30_000, F=f)
    assert [int(n) for n in re.findall(r"float c0_acc\d+\[(\d+)\]", text)] == (held or [])
    assert ("c0_each" in text) == (f <= 16)
    assert ("c0_next" in text) == (held is None)


def asked_for(text: str, **sizes: int) -> set[str]:
    """Arrays whose rows the loops over updates ask for."""
    return set(re.findall(r"__builtin_prefetch\(&b_(\w+?)(?:__out)?\[", cpu_source(text, **sizes)))


def test_rows_are_asked_for_ahead_where_caches_do_not_have_them() -> None:
    assert asked_for(ROWS_ADDED, N=5000, E=9000, F=64) == {"x", "y"}
    assert asked_for(ROWS_ADDED, N=500, E=9000, F=64) == {"x"}  # the result stays in L2
    assert asked_for(ROWS_ADDED, N=500, E=700, F=64) == set()
    assert asked_for(MESSAGES, N=5000, E=9000, F=64) == {"x", "y"}  # w[e] is no row
    text = cpu_source(ROWS_ADDED, N=5000, E=9000, F=64)
    assert "_gaps = c0_count < c0_n ? c0_count : 0;" in text  # sorted keys leave x to the hardware
    assert "_far = c0_most - c0_least > 1024 ? c0_count : 0;" in text
