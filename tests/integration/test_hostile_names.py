"""Names that mean something to C++, to isl or to the compiler are ordinary names."""

from __future__ import annotations

import re

import numpy as np
import pytest
from thinned import thinned

import polyfuse as pf

OF_C = "int main __asm__ float double for_ while return static __restrict class auto this NULL INFINITY"
OF_OURS = (
    "N M c0 c1 acc0 acc0_v q q0 q1 it l begin end buf num scratch rest status f0 pf_exp_f32 pf_i64 PF_IVDEP"
)
OF_ISL = "b_x r_x v_x st_x_0 N_N i_x S_x exists mod_ x__init x__sum p__ first last _ __"
NAMES = (*OF_C.split(), *OF_OURS.split(), *OF_ISL.split(), "a" * 200)
PREFIXES = ("pf_", "b_", "r_", "v_", "st_", "N_", "acc", "c", "f", "q", "PF_")
KNOWN = """static void extern const long char for if return noinline define __attribute__ visibility default
    __restrict C x it begin end buf num scratch rest status"""
WORDS = set(KNOWN.split())


def source_without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", text)


@pytest.mark.parametrize("name", thinned(NAMES, 2))
def test_as_the_name_of_everything(name: str) -> None:
    """Operator, parameter, intermediate, index, size; results are right and the text holds prefixed names."""
    size = "T" if name == "M" else "M"
    other = "Z" if name == "N" else "N"
    text = f"""op {name}({name}: f32[{size}, {other}]) -> (res: f32[{size}, {other}], tot: f32[{other}]) {{
      {name}_[i, j] = exp({name}[i, j])
      res[i, j] = {name}_[i, j] - sum[k]({name}_[i, k])
      tot[j] = sum[i]({name}_[i, j])
    }}"""
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    res, tot = pf.compile(text)(x)
    np.testing.assert_allclose(res, np.exp(x) - np.exp(x).sum(1, keepdims=True), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(tot, np.exp(x).sum(0), rtol=1e-5)
    index = f"op f(x: f32[A, B]) -> (y: f32[A]) {{ y[{name}] = sum[z]({'x'}[{name}, z]) }}"
    if name not in ("x", "y", "z", "A", "B"):
        np.testing.assert_allclose(pf.compile(index)(x), x.sum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_as_a_size_and_an_inout(name: str) -> None:
    text = (
        f"op f(inout p: f32[{name}], inout p__: f32[{name}]) {{ p[i] = p[i] + p__[i]; p__[i] = p[i] * 2.0 }}"
    )
    if name == "p__":
        return
    p, q = np.arange(5, dtype=np.float32), np.ones(5, np.float32)
    pf.compile(text)(p, q)
    np.testing.assert_array_equal(p, np.arange(5) + 1)
    np.testing.assert_array_equal(q, np.arange(5) * 2)


def test_names_that_differ_by_a_prefix() -> None:
    text = """op f(x: f32[N, N], b_x: f32[N, N], r_x: f32[N], v_x: f32, v_v_x: f32,
        inout p: f32[N], p__out: f32[N]) -> (x_0: f32[N, N], st_x_0: f32[N]) {
      r_r_x[i] = r_x[i] * v_x + v_v_x
      r_b_x[i, j] = b_x[i, j] + r_r_x[i]
      x_0[i, j] = r_b_x[i, j] * x[i, j]
      st_x_0[i] = sum[j](r_b_x[i, j]) + p__out[i]
      p[i] = p[i] * p__out[i] + x[i, i]
    }"""
    rng = np.random.default_rng(0)
    x, b = (rng.standard_normal((6, 12)).astype(np.float32)[:, ::2] for _ in range(2))
    r, p, q = (rng.standard_normal(6).astype(np.float32) for _ in range(3))
    want = b + (r * 2 + 3)[:, None]
    new = p * q + np.diagonal(x)
    x_0, st = pf.compile(text)(x, b, r, 2.0, 3.0, p, q)
    np.testing.assert_allclose(x_0, want * x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(st, want.sum(1) + q, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(p, new, rtol=1e-5, atol=1e-6)


MARK = "zqzq"


def test_no_text_of_the_user_reaches_the_source() -> None:
    """Comments and odd characters stay outside; names come with a prefix, and nothing else of theirs."""
    text = f"""# {MARK}comment */ ??/ \\
    #define {MARK} 1
    op {MARK}op({MARK}x: f32[{MARK}T, {MARK}H]) -> ({MARK}y: f32[{MARK}T, {MARK}H]) {{  # */ "; system("")
      {MARK}m[{MARK}t] = max[{MARK}h]({MARK}x[{MARK}t, {MARK}h])   # ??/
      {MARK}y[{MARK}t, {MARK}h] = {MARK}x[{MARK}t, {MARK}h] - {MARK}m[{MARK}t]
    }}"""
    for options in ({}, {"checked": True}):
        f = pf.compile(text, **options)
        x = np.ones((3, 4), np.float32)
        assert (f(x) == 0).all()
        source = f.built(x).code.source
        assert "*/" not in source and "??/" not in source and "system" not in source
        for found in re.findall(rf"[A-Za-z0-9_]*{MARK}[A-Za-z0-9_]*", source):
            assert found.startswith(("b_", "r_", "v_", "st_", "N_")), found


def test_identifiers_are_plain() -> None:
    f = pf.compile("op f(int: f32[N]) -> (main: f32[N]) { main[i] = int[i] * 2.0 }")
    source = source_without_comments(f.built(np.ones(3, np.float32)).code.source)
    assert source.isascii()
    body = source[source.index("#define PF_EXPORT") :]
    for name in re.findall(r"(?<![\w.])[A-Za-z_]\w*", body):
        assert name in WORDS or name.startswith(PREFIXES), name
