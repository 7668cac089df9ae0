"""A warp owns a row while it adds up columns: no barrier in the loop over rows, right at all sizes."""

from __future__ import annotations

import re

import pytest
from row_gradients import BACKWARD, row_call
from targets import DEVICES, check_emulated

from polyfuse.codegen.cuda.emit import emit_cuda

# Its extremes keep NaN, and a sum over all rows is beside those of columns.
EXTREMES = """op f(x: f32[T, H], w: f32[H]) -> (y: f32[T, H], m: f32[H], q: f32) {
  s[t] = max[h](x[t, h] * w[h])
  y[t, h] = x[t, h] - s[t]
  m[h] = max[t](x[t, h])
  q = sum[t, h](x[t, h] * s[t])
}"""
# What the next loop of the row reads is a result: its lanes would need a barrier to see it.
HANDED_ON = """op f(x: f32[T, H]) -> (m: f32[T], d: f32[T], g: f32[H]) {
  m[t] = max[h](x[t, h])
  d[t] = sum[h](exp(x[t, h] - m[t]))
  g[h] = sum[t](x[t, h])
}"""

# Rows add to some of the columns only.
TRIANGLE = """op f(x: f32[T, H]) -> (g: f32[T]) where H >= 1 {
  m[t] = sum[h](x[t, h])
  g[r] = sum[t in 0..r+1](m[t] * x[r, 0])
}"""


@pytest.mark.parametrize("text", [BACKWARD, EXTREMES, HANDED_ON, TRIANGLE])
def test_agrees_at_all_sizes(text: str) -> None:
    sizes = [(300, 100), (131, 257), (64, 68), (1, 96), (999, 64), (77, 130), (51, 51)]
    calls = [row_call(text, t, h) for t, h in sizes] + [row_call(text, 200, 99, wild=True)]
    check_emulated(calls, devices=("usual",), fused=(True,), stitched=(True, False))


def _source(text: str, T: int, H: int) -> str:
    return emit_cuda(row_call(text, T, H).device_request(DEVICES["usual"], True, True)).source


def test_the_loop_over_rows_has_no_barrier() -> None:
    source = _source(BACKWARD, 2000, 96)
    loop = re.search(r"\n( +)for \(int s\d+ = 0;.*?\n\1\}", source, re.DOTALL)
    assert loop is not None and "pf_warp_sum_f32" in loop[0] and "__syncthreads" not in loop[0]
    # Sums of columns are in arrays of the thread, and leave them once.
    assert "__acc[" in loop[0] and "__part[" not in loop[0]


def test_results_handed_on_in_a_row_keep_its_block() -> None:
    source = _source(HANDED_ON, 2000, 96)
    loops = re.findall(r"\n( +)(for \(int s\d+ = 0;.*?)\n\1\}", source, re.DOTALL)
    assert not any("pf_warp" in body for _, body in loops)
