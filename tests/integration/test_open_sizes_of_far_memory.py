"""Kernels with open sizes where memory is far: non-temporal stores and prefetches under a condition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from operator import floordiv

import numpy as np
import pytest
from open_calls import check_call

import polyfuse as pf
from polyfuse.cost.cpu_device import table_cpu
from polyfuse.driver.targets import this_core
from polyfuse.layers.mapping import memory_hints

SOFTMAX = "op far(x: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = exp(x[t, h]) / sum[k](exp(x[t, k])) }"
HALVES = """op far(x: f32[T, 2*H], g: f32[2*H]) -> (y: f32[T, H]) {
  s[t] = sum[k](x[t, k] * x[t, k])
  y[t, h] = exp(-s[t] * x[t, h]) * g[h] + x[t, h + H] for h in 0..H
}"""
LOSS = """op far(x: f32[T, H], at: i64[T]) -> (y: f32) {
  m[t] = max[k](x[t, k])
  y = sum[t](log(sum[k](exp(x[t, k] - m[t]))) + m[t] - x[t, at[t]])
}"""
PLAIN = "op far(x: f32[T, H], r: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = 2.0 * x[t, h] + r[t, h] }"
SHARE = 2**-10  # of L3: what is more is far here.  What is compiled is known by its text, so names differ


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """So many bytes are near, at most."""
    monkeypatch.setattr(
        memory_hints, "FITTED", replace(memory_hints.FITTED, non_temporal_results_beyond=SHARE)
    )
    yield int(SHARE * table_cpu(1).levels[-2].capacity)


def is_far(source: str, t: int, h: int) -> bool:
    """Do calls at these sizes take the version for far memory, by the condition in the text?"""
    found = re.search(r"if \((.*)\) return \w+_far_0_body\(", source)
    assert found is not None
    return bool(eval(found[1].replace("&&", "and"), {"num": [t, h], "pf_floordiv_i64": floordiv}))


@pytest.mark.machine("zen3")
@pytest.mark.parametrize("text", [SOFTMAX, HALVES, LOSS, PLAIN])
def test_calls_on_both_sides_of_the_border(text: str, limit: int) -> None:
    op = pf.parse(text).op("far")
    f, graph = pf.compile(op, sizes="open", options=pf.Options(threads=2)), op.graph()
    check_call(f, graph, {"T": 1, "H": 1}, 0)
    source = f.variants[0].built.code.source
    rows = next(t for t in range(3, 99) if is_far(source, t, 499))
    border = next(h for h in range(257, 500) if is_far(source, rows, h))
    assert not is_far(source, rows - 1, 257) and not is_far(source, 1000, 256)
    for t, h in product((1, rows - 1, rows, 31), (1, 256, 257, border - 1, border, 499, 512, 1031)):
        check_call(f, graph, {"T": t, "H": h}, t)
    check_call(f, graph, {"T": 2, "H": 4096}, 1)
    if text is LOSS:
        check_call(f, graph, {"T": 0, "H": 300}, 1)
        check_call(f, graph, {"T": 3, "H": 4999}, 1)  # rows of any length


@pytest.mark.machine("zen3")
def test_near_and_far_are_the_same_numbers(limit: int) -> None:
    """Of a row, whatever other rows there are, and wherever results begin."""
    f = pf.compile(HALVES, sizes="open", options=pf.Options(threads=2))
    x = (np.random.default_rng(1).standard_normal((40, 2 * 311)) / 8).astype(np.float32)
    x[5, 7], x[6, 300], x[7, 311] = np.nan, np.inf, -0.0
    g = np.ones(2 * 311, np.float32)
    y = f(x, g)
    source = f.variants[0].built.code.source
    assert is_far(source, 40, 311) and not is_far(source, 3, 311)
    for k in range(0, 39, 3):
        np.testing.assert_array_equal(f(x[k : k + 3], g), y[k : k + 3])
    room = np.zeros(40 * 311 + 16, np.float32)
    for at in range(0, 16, 5):
        out = room[at : at + 40 * 311].reshape(40, 311)
        f(x, g, out=out)
        np.testing.assert_array_equal(out, y)


@pytest.mark.machine("zen3")
def test_what_is_told_and_printed() -> None:
    f = pf.compile(SOFTMAX.replace("far", "as_it_is"), sizes="open", options=pf.Options(threads=1))
    f(np.ones((3, 5), np.float32))
    told = f.explain(np.ones((3, 5), np.float32))
    assert "+ prefetch rows x: the next row comes to the caches while the last phase computes" in told
    assert "+ stream y: non-temporal stores where T*H*8 bytes in all do not fit L3" in told
    assert "+ prefetch lines x: lines are prefetched shortly before use where T*H*8 bytes" in told
    code = f.variants[0].built.code
    far = code.source.index("pf_k0_far_0_body(")
    assert "pf_stream(&" not in code.source[:far] and "pf_stream(&" in code.source[far:]
    assert "__builtin_prefetch" not in code.source[:far]
    assert is_far(code.source, 4097, 1024) and not is_far(code.source, 4096, 1024)


@pytest.mark.machine("zen3")
def test_rows_beyond_l2_are_not_prefetched_as_a_whole() -> None:
    f = pf.compile(LOSS.replace("far", "as_it_is"), sizes="open", options=pf.Options(threads=1))
    x = np.ones((2, 4100), np.float32)
    f(x, np.zeros(2, np.int64))
    assert re.search(rf"\(N_H\) <= {this_core().l2 // 16}\b", f.variants[0].built.code.source)


@pytest.mark.machine("zen3")
def test_a_size_that_is_fixed_says_how_long_rows_are() -> None:
    f = pf.compile(
        SOFTMAX.replace("far", "far_as_it_is"), sizes={"T": pf.open}, options=pf.Options(threads=1)
    )
    x = np.ones((3, 1000), np.float32)
    np.testing.assert_allclose(f(x), 1e-3, rtol=1e-5)
    source = f.variants[0].built.code.source
    assert is_far(source, 4195, 0) and not is_far(source, 4194, 0)
