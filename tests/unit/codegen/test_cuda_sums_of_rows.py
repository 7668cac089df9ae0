"""Sums of columns that the threads of a row keep in registers, and the rows of a block add up."""

from __future__ import annotations

import pytest
from drawn_ways import DrawnWay, drawn_thresholds
from row_pieces import call_of
from ways import check

from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.stitching.stitching import Stitching

SUMS = """op f(x: bf16[C, R], w: bf16[C, R], h: bf16[C]) -> (y: bf16[C, R], s: f32[C]) where C >= 1 {
  u[c, r] = f32(x[c, r]) * f32(h[c]) + f32(w[c, r]) for c in 0..C, r in 0..R
  q[r] = rsqrt(sum[c](u[c, r] * u[c, r]) / C + 0.01)
  y[c, r] = bf16(u[c, r] * q[r])
  s[c] = sum[r](u[c, r])
}"""
# By these thresholds the rows of a block add up arrays in shared memory.
THRESHOLDS = 5047


@pytest.mark.parametrize("length", [63, 64, 65, 66])
def test_vectors_at_the_end_of_a_row_lie_within_its_array(length: int) -> None:
    clustering = Clustering(most=40, whole=2, library="never", partition="search")
    fusion, stitching = LoopFusion(scheduler="isl"), Stitching(barriers=False, online=True)
    way = DrawnWay(fusion=fusion, stitching=stitching, clustering=clustering, device="usual", scan="parallel")
    with drawn_thresholds(THRESHOLDS):
        check([(call_of("sums", SUMS, (), C=length, R=16), way)])
