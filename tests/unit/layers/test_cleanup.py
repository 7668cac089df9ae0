"""The clean-up of graphs: what goes, what stays, and what is told about it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from equivalence import assert_equivalent, fixed_graph_of
from pace import in_time

import polyfuse as pf
from polyfuse.decisions import Decision
from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.dtypes import ALL, BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType
from polyfuse.ir.tensor_graph import Role, TensorGraph, format_expr
from polyfuse.layers.graph.cleanup.merge import merge_equal
from polyfuse.layers.graph.cleanup.run import cleaned
from polyfuse.layers.graph.cleanup.simplify import holds


def after(text: str, *, checked: bool = False, **sizes: int) -> tuple[TensorGraph, list[Decision]]:
    """A text's graph after the clean-up, which means the same, and the decisions."""
    before = fixed_graph_of(text, **sizes)
    found: list[Decision] = []
    made = cleaned(before, found, checked=checked)
    assert_equivalent(before, made)
    assert cleaned(made, [], checked=checked) is made
    return made, found


def body(text: str, **sizes: int) -> str:
    """The right side of the last statement after the clean-up."""
    return format_expr(after(text, **sizes)[0].statements[-1].expr)


def scalar(right: str, dtype: str = "f32") -> str:
    return body(
        f"op f(x: {dtype}[N], z: {dtype}[N], b: bool[N]) -> (y: {dtype}[N]) {{ y[i] = {right} }}", N=4
    )


def names(graph: TensorGraph) -> list[str]:
    return [s.name for s in graph.statements]


# --- constants -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "dtype", "left_over"),
    [
        ("x[i] + (2.0 * 3.0)", "f32", "(x[i] + 6.0)"),
        ("x[i] + (0.1 + 0.2)", "f64", "(x[i] + 0.30000000000000004)"),
        ("x[i] + (16777216.0 + 1.0)", "f32", "(x[i] + 16777216.0)"),  # in the statement's own dtype
        ("x[i] + 100 * 3", "i8", "(x[i] + 44)"),  # wraps
        ("x[i] + (0 - 7) // 2", "i32", "(x[i] + -4)"),
        ("x[i] * f32(N)", "f32", "(x[i] * f32(4))"),  # a size alone is kept as it is written
        ("x[i] * (1.0 / N)", "f32", "(x[i] * 0.25)"),
        ("x[i] if N > 3 else z[i]", "f32", "x[i]"),
        ("x[i] if N > 4 else z[i]", "f32", "z[i]"),
        ("x[i] + f32(f16(0.1))", "f32", "(x[i] + 0.0999755859375)"),
    ],
)
def test_constants_are_folded(right: str, dtype: str, left_over: str) -> None:
    if "(0 - 7)" in right or "100 * 3" in right:
        right = right.replace("100", f"{dtype}(100)").replace("(0 - 7)", f"({dtype}(0) - 7)")
    assert scalar(right, dtype) == left_over


@pytest.mark.parametrize(
    "kept",
    [
        "exp(1.0)",  # the kernels' own function
        "sqrt(2.0)",
        "(0.0 / 0.0)",  # NaN
        "(1e-20 * 1e-20)",  # flushed or not
        "(1e-40 * 2.0)",
    ],
)
def test_what_kernels_may_compute_otherwise_is_not_folded(kept: str) -> None:
    assert kept.strip("()") in scalar(f"x[i] + {kept}")


@pytest.mark.parametrize(
    ("right", "n", "left_over"),
    [
        ("x[i//8, i%8]", 8, "x[0, i]"),
        ("x[i//8, i%8]", 9, "x[i//8, i%8]"),
        ("x[(i + 8)//8, i%8]", 8, "x[1, i]"),
        ("x[i//8*2, (i + 8)%8]", 8, "x[0, i]"),
        ("x[0, i%8] if i < 8 else 0.0", 8, "x[0, i]"),
        ("x[0, i%8] if i >= 8 else 2.0", 8, "2.0"),
        ("x[0, i%8] if i < 7 else 0.0", 8, "(x[0, i] if (i64(i) < 7) else 0.0)"),
        ("x[0, i%8] if 0 <= i - 7 else 1.0", 7, "1.0"),
        ("x[0, i%8] if 0 <= 7 - i < N else 0.0", 8, "x[0, i]"),
    ],
)
def test_what_bounds_of_loops_tell_of_indices(right: str, n: int, left_over: str) -> None:
    text = f"op f[N: size](x: f32[4, 8]) -> (y: f32[N]) {{ y[i] = {right} for i in 0..N }}"
    assert body(text, N=n) == left_over


def test_negative_zero_is_no_constant() -> None:
    assert scalar("x[i] - (-0.0)") == "(x[i] + 0.0)"
    assert scalar("x[i] + (-0.0)") == "x[i]"
    assert scalar("x[i] * (-0.0)") == "(x[i] * (-0.0))"


# --- identities (each rule of the table is tested by tests/property/test_random_cleanup.py) -----------------


@pytest.mark.parametrize(
    "right",
    ["x[i] + 0.0", "x[i] - x[i]", "x[i] * 0.0", "x[i] / x[i]", "0.0 - x[i]", "-(x[i] - z[i])"],
)
def test_what_is_not_exact_stays(right: str) -> None:
    assert scalar(right).strip("()") == right.removeprefix("-").strip("()") or scalar(right) == f"({right})"


def test_identities_of_integers() -> None:
    assert [scalar(r, "i32") for r in ("x[i] + 0", "x[i] - x[i]", "x[i] * 0", "0 - x[i]")] == [
        "x[i]", "0", "0", "(-x[i])",
    ]  # fmt: skip


def test_casts_are_joined_where_the_wider_type_holds_all() -> None:
    assert scalar("f32(f64(x[i])) * z[i]") == "(x[i] * z[i])"
    assert "f16" in scalar("f32(f16(x[i])) * z[i]")
    text = "op f(j: i16[N]) -> (k: i64[N]) { k[i] = i64(i32(j[i])) }"
    assert body(text, N=3) == "i64(j[i])"
    short = "op f(j: i16[N]) -> (k: i16[N]) { k[i] = i16(i64(j[i])) }"
    assert body(short, N=3) == "j[i]"
    half = "op f(x: f16[N]) -> (y: f16[N]) { y[i] = f16(f64(x[i])) * 1.0 }"
    assert body(half, N=3) == "f16(f32(x[i]))"  # a write to 16 bits ends in a cast


@pytest.mark.parametrize("narrow", ALL, ids=str)
@pytest.mark.parametrize("wide", ALL, ids=str)
def test_which_types_hold_which(wide: DType, narrow: DType) -> None:
    """By converting extreme and odd values there and back."""
    if narrow.is_float:
        bits = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[narrow.bits]
        patterns = np.random.default_rng(1).integers(0, np.iinfo(bits).max, 4000, bits)
        values = patterns.view(narrow.numpy)
    elif narrow is BOOL:
        values = np.array([False, True])
    else:
        limits = np.iinfo(narrow.numpy)
        values = np.array([limits.min, limits.max, limits.max - 1, 0, 1], narrow.numpy)
    with np.errstate(all="ignore"):
        there = values.astype(wide.numpy)
        back = there.astype(narrow.numpy)
        same = (back == values) | ((back != back) & (values != values))
    if not narrow.is_float and not wide.is_bool:  # what wraps comes back as well, and is another number
        same &= np.array([a == int(b) for a, b in zip(there.tolist(), values, strict=True)])
    assert holds(wide, narrow) == bool(same.all())


def test_16_bit_floats_do_not_hold_each_other() -> None:
    assert not holds(F16, BF16) and not holds(BF16, F16)
    assert all(holds(F64, t) for t in (F32, F16, BF16, I32, I16, I8, U8)) and not holds(F64, I64)


# --- equal tensors ---------------------------------------------------------------------------------------

TWICE = """op f(x: f32[T, H]) -> (u: f32[T, H], v: f32[T, H]) {
  a[t] = sum[h](x[t, h])
  b[i] = sum[j](x[i, j])
  u[t, h] = x[t, h] - a[t]
  v[i, j] = x[i, j] * b[i]
}"""


def test_equal_temporaries_are_computed_once() -> None:
    made, found = after(TWICE, T=3, H=5)
    assert names(made) == ["a", "u", "v"]
    assert [(d.kind, d.subject, d.saved_bytes) for d in found] == [("merge", "b", 12)]


def test_a_chain_of_equal_ones() -> None:
    text = """op f(x: f32[N]) -> (y: f32[N]) {
      a[i] = exp(x[i]); b[j] = exp(x[j])
      c[i] = a[i] * 2.0 + x[i]; d[k] = x[k] + 2.0 * b[k]
      y[i] = c[i] / d[i]
    }"""
    assert names(after(text, N=3)[0]) == ["a", "c", "y"]


def test_a_result_takes_the_place_of_an_equal_temporary() -> None:
    text = """op f(x: f32[N]) -> (y: f32[N], z: f32[N]) {
      a[i] = exp(x[i])
      z[i] = a[i] + 1.0
      y[j] = exp(x[j])
    }"""
    made, _ = after(text, N=3)
    assert names(made) == ["y", "z"]
    assert format_expr(made.statement("z").expr) == "(y[i] + 1.0)"


def test_equal_results_are_written_both() -> None:
    text = """op f(x: f32[N, M]) -> (a: f32[N], b: f32[N], c: f32[N, M], d: f32[N, M], i: i64[N], j: i64[N]) {
      a[n] = sum[m](x[n, m]); b[n] = sum[k](x[n, k])
      c[n, m] = exp(x[n, m]); d[n, m] = exp(x[n, m])
      i[n] = argmax[m](x[n, m]); j[n] = argmax[m](x[n, m])
    }"""
    made, found = after(text, N=3, M=4)
    assert format_expr(made.statement("b").expr) == "a[n]" and made.statement("b").reduction is None
    assert format_expr(made.statement("d").expr) == "exp(x[n, m])"
    assert format_expr(made.statement("j").expr) == "i[n]"
    assert {d.subject for d in found} == {"b", "j"}


@pytest.mark.parametrize(
    "second",
    [
        "b[i] = exp(x[i]) for i in 0..3",  # other elements
        "b[i] = exp(x[i] + 0.0)",
        "b[i] = exp(x[i] + z[i])",
        "b[i] = exp(x[N - 1 - i]) for i in 0..N",
    ],
)
def test_what_differs_is_not_merged(second: str) -> None:
    text = f"""op f(x: f32[N], z: f32[N]) -> (y: f32[N]) {{
      a[i] = exp(x[i]) for i in 0..N
      {second}
      y[i] = a[i] + (b[i] if i < 3 else 0.0)  for i in 0..N
    }}"""
    assert {"a", "b"} <= set(names(after(text, N=4)[0]))


def test_zeros_of_both_signs_are_told_apart() -> None:
    text = """op f(x: f32[N]) -> (y: f32[N]) {
      a[i] = exp(min(x[i], 0.0)); b[i] = exp(min(x[i], -0.0))
      y[i] = a[i] - b[i]
    }"""
    assert names(after(text, N=4)[0]) == ["a", "b", "y"]


def test_dtypes_are_told_apart() -> None:
    text = """op f(x: f32[N]) -> (y: f32[N]) {
      let a: f16[N]; let b: bf16[N]; let c: f16[N]
      a[i] = f16(x[i]); b[i] = bf16(x[i]); c[i] = f16(x[i])
      y[i] = f32(a[i]) + f32(b[i]) + f32(c[i])
    }"""
    assert names(after(text, N=4)[0]) == ["a", "b", "y"]


def test_recurrences_and_pieces() -> None:
    text = """op f(x: f32[T]) -> (y: f32[T]) {
      a[0] = x[0]; a[t] = 0.5 * a[t-1] + x[t] for t in 1..T
      b[0] = x[0]; b[s] = 0.5 * b[s-1] + x[s] for s in 1..T
      c[0] = x[0]; c[s] = 0.5 * a[s-1] + x[s] for s in 1..T
      y[t] = a[t] + b[t] * c[t]
    }"""
    made, _ = after(text, T=5)
    assert {t.name for t in made.tensors if t.role is Role.TEMP} == {"a", "c"}


def test_scatters_are_never_merged() -> None:
    text = """op f(x: f32[E], k: i64[E]) -> (y: f32[N]) where N == 3 {
      let a: f32[N] = 0.0
      let b: f32[N] = 0.0
      a[k[e]] += x[e]
      b[k[e]] += x[e]
      y[n] = a[n] * b[n]
    }"""
    made, found = after(text, E=6, N=3)
    assert {"a", "b"} <= {t.name for t in made.tensors} and not found


def test_what_inout_parameters_become_is_not_merged() -> None:
    text = """op f(inout p: f32[N], g: f32[N]) -> (y: f32[N]) {
      p[i] = p[i] * 2.0 + g[i]
      q[i] = old(p[i]) * 2.0 + g[i]
      y[i] = q[i] * old(p[i])
    }"""
    made, _ = after(text, N=4)
    assert "q" in names(made)


def test_a_stored_temporary_stays_stored() -> None:
    from dataclasses import replace

    graph = fixed_graph_of(TWICE, T=2, H=2)
    tensors = tuple(replace(t, exact=t.name == "b") for t in graph.tensors)
    made = merge_equal(replace(graph, tensors=tensors), [])
    assert made.tensor("a").exact


# --- results that are copies -----------------------------------------------------------------------------


def test_what_only_a_result_copies_is_the_result() -> None:
    text = """op f(x: f32[N, M]) -> (y: f32[M], z: f32[N], w: f32[N]) {
      s[m] = sum[n](x[n, m]); y[m] = s[m]
      a[0] = x[0, 0]; a[n] = a[n-1] + x[n, 0] for n in 1..N
      b[n] = a[n]; z[n] = b[n]
      c[n] = x[n, 0] * 2.0; w[n] = f32(c[n])
    }"""
    made, found = after(text, N=3, M=2)
    assert names(made) == ["y", "a", "a__2", "w"]
    assert {s.target for s in made.statements} == {"y", "z", "w"}
    assert [(d.subject, d.saved_bytes) for d in found if d.kind == "remove"] == [
        ("s", 8), ("b", 12), ("c", 12), ("a", 12),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        "y[i] = t[i]; z[i] = t[i] + 1.0",  # read twice
        "y[i] = t[i]; z[i] = t[i]",
        "y[i] = t[N-1-i] for i in 0..N; z[i] = x[i]",  # other places
        "y[i] = t[i] for i in 0..N-1; y[N-1] = x[0]; z[i] = x[i]",  # a part of it
        "y[i] = max(t[i], 0.0); z[i] = x[i]",
        "y[i] = sum[j in 0..1](t[i+j]); z[i] = x[i]",
    ],
)
def test_other_readers_keep_a_temporary(body: str) -> None:
    text = f"op f(x: f32[N]) -> (y: f32[N], z: f32[N]) {{ t[i] = exp(x[i]); {body} }}"
    assert names(after(text, N=4)[0])[0] == "t"


def test_what_an_inout_parameter_becomes_is_copied() -> None:
    text = """op f(inout p: f32[N]) -> (z: f32[N]) {
      t[i] = p[N-1-i] * 2.0 for i in 0..N
      z[i] = old(p[i]) + 1.0
      p[i] = t[i]
    }"""
    assert names(after(text, N=4)[0])[0] == "t"


# --- what no result needs --------------------------------------------------------------------------------

DEAD = """op f(x: f32[T, H], unused: f32[T]) -> (y: f32[T, H]) {
  a[t] = sum[h](x[t, h])
  b[t] = a[t] * 2.0
  y[t, h] = x[t, h] + 1.0
}"""


def test_unused_temporaries_go_and_unused_inputs_stay() -> None:
    made, found = after(DEAD, T=3, H=5)
    assert names(made) == ["y"] and made.inputs == ("x", "unused")
    assert [str(d) for d in found] == [f"+ remove {n}: no result needs it [saves 12 B]" for n in ("a", "b")]


GATHER = """op f(x: f32[V], k: i64[N]) -> (y: f32[N]) {
  a[n] = x[k[n]] + c[n]
  c[n] = f32(n) for n in 0..N
  d[n] = 1.0 + f32(n) for n in 0..N
  y[n] = f32(k[n])
}"""


def test_checks_of_indices_stay_in_checked_builds() -> None:
    made, found = after(GATHER, checked=True, V=3, N=4)
    assert sorted(names(made)) == ["a", "c", "y"]
    assert any(d.subject == "a" and not d.taken for d in found)
    assert names(after(GATHER, V=3, N=4)[0]) == ["y"]
    arrays = np.zeros(3, np.float32), np.array([0, 1, 9, 2])
    for target in ("cpu", "interpret"):
        with pytest.raises(ArgumentError) as caught:
            pf.compile(GATHER, target=target, checked=target == "cpu")(*arrays)
        assert caught.value.code == "PF450" and "k[n]" in str(caught.value)
    np.testing.assert_array_equal(pf.compile(GATHER)(*arrays), [0, 1, 9, 2])


def test_no_rule_drops_a_checked_index() -> None:
    text = "op f(x: i32[V], k: i64[N]) -> (y: i32[N]) { y[n] = x[k[n]] * 0 + x[k[n]] - x[k[n]] }"
    assert "x[k[n]]" in body(text, V=3, N=4)


# --- the step --------------------------------------------------------------------------------------------


def test_a_graph_without_anything_to_do_is_kept_as_it_is() -> None:
    graph = fixed_graph_of("op f(x: f32[N]) -> (y: f32[N]) { y[i] = exp(x[i]) / 2.0 }", N=4)
    found: list[Decision] = []
    assert cleaned(graph, found, checked=False) is graph and not found


def test_it_is_a_step_of_compiling_and_told_in_explain() -> None:
    f = pf.compile(TWICE)
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    u, v = f(x)
    np.testing.assert_allclose(u, x - x.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(v, x * x.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)
    specialized = pf.parse(TWICE).op("f").specialize(T=3, H=5)
    assert specialized.schedule().explain("a", "b").startswith("b has no loops of its own")
    told = "+ merge b: it equals a, which is read instead [saves 12 B]"
    assert told in specialized.schedule().explain()
    assert told in specialized.schedule().lower(target="cpu").explain()
    assert "b" in names(specialized.graph) and "b" not in names(specialized.clean().graph)
    assert "b" in names(specialized.schedule(clean=False).graph)
    assert "b" not in names(pf.parse(TWICE).op("f").specialize().clean().graph)  # sizes may be open


def test_large_graphs_take_time_in_proportion() -> None:
    lines = "\n".join(
        f"  t{k}[i] = exp({f't{k - 2}' if k > 1 else 'x'}[i] * 1.0) + {k // 2}.0" for k in range(1000)
    )
    graph = fixed_graph_of(f"op f(x: f32[N]) -> (y: f32[N]) {{\n{lines}\n  y[i] = t998[i] + t999[i]\n}}", N=4)
    took = []
    for _ in range(3):
        start = time.process_time()
        made = cleaned(graph, [], checked=False)
        took.append(time.process_time() - start)
        assert len(made.statements) == 501
    assert in_time(min(took), 0.5)


def test_the_documentation_has_the_rules() -> None:
    script = str(Path(__file__).parents[3] / "docs" / "build_identities.py")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
