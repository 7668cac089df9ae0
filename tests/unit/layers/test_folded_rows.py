"""Sums over rows that another phase reads in pieces, on a GPU: folded, the pieces kept by threads."""

from __future__ import annotations

import re
from itertools import product

import pytest
from row_pieces import call_of, source_of
from targets import check_emulated

SWIGLU = """op f(x: f32[T, 2*D], gamma: f32[2*D]) -> (y: f32[T, D]) {
  r[t] = rsqrt(mean[h](x[t, h] * x[t, h]) + 0.001)
  a[t, h] = x[t, h] * r[t] * gamma[h] for h in 0..D
  b[t, h] = x[t, h+D] * r[t] * gamma[h+D] for h in 0..D
  y[t, h] = a[t, h] * sigmoid(a[t, h]) * b[t, h]
}"""
ROPE = """op f(x: f32[T, 2*D], c: f32[T, D], s: f32[T, D]) -> (y: f32[T, 2*D]) {
  r[t] = rsqrt(mean[d](x[t, d] * x[t, d]) + 0.001)
  y[t, d] = r[t] * (x[t, d] * c[t, d] - x[t, d+D] * s[t, d]) for d in 0..D
  y[t, d] = r[t] * (x[t, d] * c[t, d-D] + x[t, d-D] * s[t, d-D]) for d in D..2*D
}"""
# Two sums, one after the other, and three pieces.
CENTRED = """op f(x: f32[T, 3*D]) -> (y: f32[T, D]) {
  m[t] = mean[h](x[t, h])
  v[t] = mean[h]((x[t, h] - m[t]) * (x[t, h] - m[t]))
  y[t, h] = (x[t, h] - m[t]) * (x[t, h+D] - m[t]) + (x[t, h+2*D] - m[t]) * v[t] for h in 0..D
}"""
LARGEST = """op f(x: f32[T, 2*D]) -> (y: f32[T, D], i: i64[T]) {
  m[t] = max[h](x[t, h])
  i[t] = argmax[h](x[t, h])
  y[t, h] = (x[t, h] - m[t]) * x[t, h+D] for h in 0..D
}"""
# Half of the row is read only.
HALF = """op f(x: f32[T, 2*D]) -> (y: f32[T, D]) {
  m[t] = max[h](x[t, h])
  y[t, h] = x[t, h+D] - m[t] for h in 0..D
}"""
# Pieces that share elements.
OVERLAP = """op f(x: f32[T, 2*D]) -> (y: f32[T, D]) where D >= 1 {
  m[t] = sum[h](x[t, h])
  y[t, h] = x[t, h] * x[t, h+1] - m[t] * x[t, h+D] for h in 0..D
}"""
NAMES = {
    "swiglu": SWIGLU,
    "rope": ROPE,
    "centred": CENTRED,
    "largest": LARGEST,
    "half": HALF,
    "overlap": OVERLAP,
}
TYPES = ("f32", "bf16", "f16", "f64")
LENGTHS = (1, 2, 7, 24, 33, 64)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.thin(2)
def test_rows_of_all_lengths_are_right(dtype: str) -> None:
    calls = [
        call_of(name, NAMES[name].replace("f32", dtype), ("x",), T=(5, 1, 0, 67)[(k + k // 8) % 4], D=d)
        for k, (name, d) in enumerate(product(NAMES, LENGTHS))
        if k % len(TYPES) == TYPES.index(dtype) or d in (24, 64)
    ]
    check_emulated(calls, fused=(True, False), stitched=(True,), orders=("reverse",))


@pytest.mark.parametrize(
    ("text", "pieces", "length"), [(SWIGLU, 2, 2048), (SWIGLU, 2, 64), (ROPE, 2, 64), (CENTRED, 3, 512)]
)
def test_each_piece_of_a_row_is_read_once(text: str, pieces: int, length: int) -> None:
    source, _, decisions = source_of(text, T=65536, D=length)
    assert source.count('extern "C"') == 1
    assert len(re.findall(r"pf_load<4>\(b_x,", source)) == pieces
    assert not re.search(r"b_x\[", source), "no element is read alone"
    assert [d.taken for d in decisions if d.kind == "fold"] == [True] * (2 if text is CENTRED else 1)
    assert len([d for d in decisions if d.kind == "cache row" and d.taken]) == pieces


def test_rows_that_are_not_read_in_pieces_stay_whole() -> None:
    _, _, decisions = source_of(HALF, T=65536, D=64)
    assert not [d for d in decisions if d.kind == "fold"]


def test_pieces_that_share_elements_are_not_kept() -> None:
    _, _, decisions = source_of(OVERLAP, T=65536, D=64)
    assert not [d for d in decisions if d.kind == "cache row"]


def test_the_place_of_the_largest_is_found_in_the_whole_row() -> None:
    _, _, decisions = source_of(LARGEST, T=65536, D=64)
    (fold,) = (d for d in decisions if d.kind == "fold")
    assert fold.subject == "m, i__best"
