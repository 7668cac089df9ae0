"""Versions of kernels for short and for long rows whose length is open: which there are, what calls them, and
that a row's rest takes no branch."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyfuse as pf

ROWS = "op f(x: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] / sum[k](exp(x[t, k])) }"
SCALE = "op f(x: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = 2.0 * x[t, h] }"
KEPT = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  e[t, h] = exp(x[t, h])
  y[t, h] = e[t, h] / sum[k](e[t, k])
}"""
PRODUCT = "op f(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) }"


def source(text: str, *shapes: tuple[int, ...], **sizes: object) -> str:
    f = pf.compile(text, target="cpu", sizes=sizes or "open", options=pf.Options(progress=False))
    return f.built(*(np.zeros(s, np.float32) for s in shapes)).code.source


def borders(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"if \(num\[\d\] <= (\d+)\) return pf_k0_r\d+_0_body\(", text)]


@pytest.mark.machine("zen4")
def test_short_rows_have_code_of_their_own() -> None:
    text = source(ROWS, (3, 5))
    found = borders(text)
    assert found and found == sorted(found) and set(found) <= {16, 64, 256, 512, 1280}
    for n in found:
        assert text.count(f"pf_k0_r{n}_0_body(") == 2
    low = [int(n) for n in re.findall(r"if \(N_H < (\d+)\) __builtin_unreachable\(\);", text)]
    assert sorted({*low}) == [1, *(n + 1 for n in found)]  # that of far memory begins where one of these does


@pytest.mark.machine("zen4")
def test_no_versions_where_the_code_is_the_same_or_lengths_are_known() -> None:
    assert not borders(source(ROWS, (3, 5), T=pf.open, H=5))
    assert not borders(source(ROWS, (3, 5000)))
    assert "unreachable" not in source(ROWS, (3, 5000))
    assert "_r16_" not in source(PRODUCT, (3, 4), (4, 5))


@pytest.mark.machine("zen4")
def test_what_is_left_of_a_total_is_computed_without_a_branch() -> None:
    """Behind one gcc keeps accumulators in memory."""
    text = source(ROWS, (3, 5))
    rests = re.findall(r"#ifdef PF_MASKS\n\s+(if \(c1_s < c1_e\) )?\{\n\s+const int rest.*?#else", text, re.S)
    totals = re.findall(r"#ifdef PF_MASKS\n\s+\{\n.*?pf_keep.*?#else", text, re.S)
    assert rests and totals


def test_arrays_of_workers_are_as_long_as_a_version_needs() -> None:
    text = source(KEPT, (3, 5))
    calls = re.findall(r"pf_k0_r(\d+)_0_body\(.*PF_OWN\(0, (\d+)\)", text)
    assert calls and all(int(n) <= 4 * int(most) * 16 for most, n in calls)
