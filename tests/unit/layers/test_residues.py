"""Loops whose iterations differ by `d % 2` on a GPU: split, so that elements in turn are vectors."""

from __future__ import annotations

import re
from itertools import product

import pytest
from row_pieces import call_of, source_of
from targets import check_emulated

# Neighbours are turned by one angle.
TURNED = """op f(x: f32[T, 2*D], c: f32[T, D], s: f32[T, D]) -> (y: f32[T, 2*D]) where D >= 1 {
  y[t, d] = x[t, d] * c[t, d // 2] - x[t, d + 1] * s[t, d // 2] if d % 2 == 0
       else x[t, d] * c[t, d // 2] + x[t, d - 1] * s[t, d // 2]
}"""
IN_PLACE = TURNED.replace("op f(x", "op f(inout x").replace(" -> (y: f32[T, 2*D])", "").replace("y[t", "x[t")
REPEATED = """op f(x: f32[T, D], w: f32[T, 4*D]) -> (y: f32[T, 4*D]) { y[t, d] = x[t, d // 4] + w[t, d] }"""
# Pictures twice as large, of four channels each.
SHUFFLED = """op f(x: f32[4*C, H, W]) -> (y: f32[C, 2*H, 2*W]) {
  y[c, h, w] = x[4*c + 2*(h % 2) + w % 2, h // 2, w // 2]
}"""
# Each third is another thing, and what follows needs it.
THIRDS = """op f(x: f32[T, 3*D]) -> (y: f32[T, 3*D], z: f32[T, 3*D]) {
  y[t, d] = x[t, d] if d % 3 == 0 else 2.0 * x[t, d] if d % 3 == 1 else 0.5
  z[t, d] = y[t, d] * x[t, d]
}"""
# The row is normalised: other phases need it as it is.
NORMED = """op f(x: f32[T, 2*D]) -> (y: f32[T, 2*D]) where D >= 1 {
  e[t, d] = exp(x[t, d]) if d % 2 == 0 else x[t, d] for t in 0..T, d in 0..2*D
  y[t, d] = e[t, d] / sum[k](e[t, k])
}"""
NAMES = {
    "turned": TURNED,
    "in place": IN_PLACE,
    "repeated": REPEATED,
    "shuffled": SHUFFLED,
    "thirds": THIRDS,
    "normed": NORMED,
}
TYPES = ("f32", "bf16", "f64")
LENGTHS = (1, 2, 4, 7, 16, 33, 64)


@pytest.mark.parametrize("dtype", TYPES)
def test_results_are_right(dtype: str) -> None:
    calls = [
        call_of(name, NAMES[name].replace("f32", dtype), ("x",), T=(5, 1, 0, 37)[k % 4], D=d, C=2, H=3, W=d)
        for k, (name, d) in enumerate(product(NAMES, LENGTHS))
        if k % len(TYPES) == TYPES.index(dtype) or d in (16, 33)
    ]
    check_emulated(calls, fused=(True, False), stitched=(True, False), orders=("random",))


@pytest.mark.parametrize(("dtype", "lanes"), [("f32", 2), ("bf16", 4)])
@pytest.mark.parametrize("text", [TURNED, IN_PLACE])
def test_turned_neighbours_are_read_once_without_conditions(text: str, dtype: str, lanes: int) -> None:
    source, _, decisions = source_of(text.replace("f32", dtype), T=4096, D=64)
    loads = re.findall(r"pf_load<(\d+)>\(b_([a-z])", source)
    assert sorted(loads) == [(str(lanes), "c"), (str(lanes), "s"), (str(2 * lanes), "x")]
    assert source.count(f"pf_store<{2 * lanes}>") == 1 and "?" not in source and "if (" not in source
    assert not re.search(r"b_\w+\[", source)
    assert [d.taken for d in decisions if d.kind == "split loop"] == [True]


@pytest.mark.parametrize("text", [REPEATED, SHUFFLED])
def test_what_is_read_by_quotients_is_read_once(text: str) -> None:
    sizes = {"T": 4096, "D": 64} if text is REPEATED else {"C": 16, "H": 64, "W": 64}
    source, _, _ = source_of(text, **sizes)
    assert not re.search(r"b_\w+\[", source)
    assert not re.search(r"tx / \d", source)


def test_a_row_that_other_phases_need_stays_as_it_is() -> None:
    _, _, decisions = source_of(NORMED, T=4096, D=64)
    assert not [d for d in decisions if d.kind == "split loop"]


def test_sums_stay_in_registers() -> None:
    text = "op f(x: f32[C, D], w: f32[C, 2]) -> (y: f32[2*D]) { y[d] = sum[c](x[c, d // 2] * w[c, d % 2]) }"
    source, _, decisions = source_of(text, C=64, D=65536)
    assert not [d for d in decisions if d.kind == "split loop"]
    assert len(re.findall(r"b_y\[", source)) == 1
