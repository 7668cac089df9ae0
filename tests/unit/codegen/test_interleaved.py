"""Elements that lanes take in turn, as pairs are, go in vectors on a GPU."""

from __future__ import annotations

import re
from itertools import product

import pytest
from row_pieces import call_of, source_of
from targets import check_emulated

PAIRS = """op f(x: f32[T, S, D, 2], c: f32[S, D], s: f32[S, D]) -> (y: f32[T, S, D, 2]) {
  y[b, t, i, 0] = x[b, t, i, 0] * c[t, i] - x[b, t, i, 1] * s[t, i] for b in 0..T, t in 0..S, i in 0..D
  y[b, t, i, 1] = x[b, t, i, 1] * c[t, i] + x[b, t, i, 0] * s[t, i] for b in 0..T, t in 0..S, i in 0..D
}"""
# Turned pairs in both halves of a row.
HALVES_OF_PAIRS = """op f(x: f32[T, 2*D, 2], c: f32[D]) -> (y: f32[T, 2*D, 2]) {
  y[t, i, 0] = x[t, i, 1] * c[i] for t in 0..T, i in 0..D
  y[t, i, 1] = x[t, i, 0] - x[t, i + D, 0] for t in 0..T, i in 0..D
  y[t, i, 0] = x[t, i - D, 0] + x[t, i, 1] for t in 0..T, i in D..2*D
  y[t, i, 1] = x[t, i, 1] * c[i - D] for t in 0..T, i in D..2*D
}"""
# Three in turn, of which one is not stored in turn.
COLOURS = """op f(x: f32[T, D, 3], w: f32[D]) -> (y: f32[T, D], z: f32[T, D, 3]) {
  y[t, i] = x[t, i, 0] * w[i] + x[t, i, 1] + x[t, i, 2]
  z[t, i, 0] = x[t, i, 2] * w[i] for t in 0..T, i in 0..D
  z[t, i, 1] = x[t, i, 0] * w[i] for t in 0..T, i in 0..D
  z[t, i, 2] = x[t, i, 1] * w[i] for t in 0..T, i in 0..D
}"""
# A half of the pairs only.
REAL_PARTS = """op f(x: f32[T, D, 2], w: f32[D]) -> (y: f32[T, D], z: f32[T, D, 2]) {
  y[t, i] = x[t, i, 1] * w[i]
  z[t, i, 0] = x[t, i, 1] + w[i] for t in 0..T, i in 0..D
  z[t, i, 1] = x[t, i, 1] for t in 0..T, i in 0..D
}"""
# One element is written by two statements' lanes, none of the others by any.
LAST = """op f(x: f32[T, D, 4], w: f32[T, D]) -> (y: f32[T, D]) {
  y[t, i] = x[t, i, 3] * w[t, i] + x[t, i, 0] + x[t, i, 1] + x[t, i, 2]
}"""
# What is written in turn is read as well.
UPDATED = """op f(inout x: f32[T, D, 2], w: f32[T, D]) {
  x[t, i, 0] = x[t, i, 0] * w[t, i] for t in 0..T, i in 0..D
  x[t, i, 1] = x[t, i, 1] + w[t, i] for t in 0..T, i in 0..D
}"""
NAMES = {
    "pairs": PAIRS,
    "halves of pairs": HALVES_OF_PAIRS,
    "colours": COLOURS,
    "real parts": REAL_PARTS,
    "last": LAST,
    "updated": UPDATED,
}
TYPES = ("f32", "bf16", "f16", "f64")
LENGTHS = (0, 1, 2, 3, 4, 8, 12, 16, 33, 64)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.thin(2)
def test_elements_in_turn_are_right(dtype: str) -> None:
    calls = [
        call_of(name, NAMES[name].replace("f32", dtype), ("x",), T=(5, 1, 0, 37)[k % 4], S=3, D=d)
        for k, (name, d) in enumerate(product(NAMES, LENGTHS))
        if k % len(TYPES) == TYPES.index(dtype) or d in (8, 64)
    ]
    check_emulated(calls, fused=(True, False), stitched=(True, False), orders=("random", "reverse"))


def accesses(source: str) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Vectors that are loaded and stored: of which tensor, and how many elements."""
    loads, stores = (re.findall(rf"pf_{what}<(\d+)>\(b_(\w+),", source) for what in ("load", "store"))
    return [(name, int(n)) for n, name in loads], [(name, int(n)) for n, name in stores]


@pytest.mark.parametrize(("dtype", "lanes"), [("f32", 2), ("bf16", 4), ("f16", 4), ("f64", 2)])
def test_pairs_are_loaded_and_stored_once(dtype: str, lanes: int) -> None:
    source, _, _ = source_of(PAIRS.replace("f32", dtype), T=64, S=256, D=64)
    loads, stores = accesses(source)
    assert sorted(loads) == [("c", lanes), ("s", lanes), ("x", 2 * lanes)]
    assert stores == [("y", 2 * lanes)]
    assert not re.search(r"b_\w+\[", source), "no element is accessed alone"


@pytest.mark.parametrize(("dtype", "lanes"), [("f32", 4), ("bf16", 8), ("f64", 2)])
def test_three_in_turn_are_loaded_and_stored_once(dtype: str, lanes: int) -> None:
    source, _, _ = source_of(COLOURS.replace("f32", dtype), T=64, D=4096)
    loads, stores = accesses(source)
    assert sorted(loads) == [("w", lanes), ("x", 3 * lanes)]
    assert sorted(stores) == [("y", lanes), ("z", 3 * lanes)]
    assert not re.search(r"b_\w+\[", source)


def test_pairs_of_which_one_is_not_read_are_no_vectors() -> None:
    source, _, _ = source_of(REAL_PARTS, T=64, D=4096)
    loads, stores = accesses(source)
    assert loads == [("w", 2)] and sorted(stores) == [("y", 2), ("z", 4)]
    assert "b_x[" in source


def test_vectors_that_would_begin_anywhere_are_none() -> None:
    source, _, _ = source_of(PAIRS, T=3, S=5, D=7)
    assert "pf_load<4>" not in source and "pf_load<8>" not in source
