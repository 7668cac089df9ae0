"""Lanes of several accumulators of a loop: how many there are, and what extremes of the same terms share."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from equivalence import cpu_source
from thinned import thinned

import polyfuse as pf
from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs

HEAD = "op f(x: {0}[T, H]) -> (y: {0}[T], z: {0}[T]) where H >= 1 {{ "
EXTREMES = {
    "both": ("y[t] = max[h](x[t, h])\n z[t] = min[h](x[t, h])", 1),
    "of the same function": (
        "y[t] = max[h](abs(x[t, h]))\n z[t] = min[h](abs(x[t, h])) + max[h](abs(x[t, h]))",
        1,
    ),
    "beside a sum": ("y[t] = max[h](x[t, h]) - min[h](x[t, h])\n z[t] = sum[h](x[t, h])", 1),
    "of other terms": ("y[t] = max[h](x[t, h])\n z[t] = min[h](x[t, h] * 2.0)", 2),
    "two and two": (
        "y[t] = max[h](x[t, h]) - min[h](x[t, h])\n z[t] = max[h](x[t, h] ** 2) - min[h](x[t, h] ** 2)",
        2,
    ),
}
STATS = "y[t] = sum[h](x[t, h]) + max[h](x[t, h]) - min[h](x[t, h])\n z[t] = sum[h](x[t, h] ** 2) }}"


def source(text: str) -> str:
    return cpu_source(text, T=64, H=1024)


@pytest.mark.parametrize("case", EXTREMES)
def test_extremes_of_the_same_terms_keep_one_nan(case: str) -> None:
    body, arrays = EXTREMES[case]
    found = re.findall(r"float (acc\d+_v_nan)\[\d+\];", source((HEAD + body + " }}").format("f32")))
    assert len(found) == arrays


@pytest.mark.parametrize("dtype", thinned(("f32", "f64"), 2))
@pytest.mark.parametrize("case", EXTREMES)
def test_each_has_a_nan_wherever_it_is(case: str, dtype: str) -> None:
    text = (HEAD + EXTREMES[case][0] + " }}").format(dtype)
    f, want = pf.compile(text), pf.compile(text, target="interpret")
    rng = np.random.default_rng(3)
    for h in (1, 7, 31, 33, 64, 100, 1000):
        x = rng.standard_normal((9, h)).astype("f4" if dtype == "f32" else "f8")
        for t, place in enumerate((0, h // 2, h - 1)):
            x[t, place] = np.nan
        x[3], x[4, h // 3], x[5, h // 3] = np.inf, np.inf, -np.inf
        found: Any = f(x)
        expected: Any = want(x)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * h)
        assert np.isnan(found[0][:3]).all() and np.isfinite(found[0][6:]).all()


@pytest.mark.parametrize(("core", "lanes"), ((Core(), 64), (AVX2, 16)), ids=("avx512", "avx2"))
def test_accumulators_of_a_loop_stay_in_registers(
    core: Core, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five arrays of four vectors are more than 16 registers hold."""
    monkeypatch.setattr(CpuKnobs, "on", core)
    found = re.findall(r"float acc\d+_v(?:_nan)?\[(\d+)\];", source((HEAD + STATS).format("f32")))
    assert found == [str(lanes)] * 5
    one = re.findall(
        r"acc\d+_v\[(\d+)\];", source((HEAD + "y[t] = sum[h](x[t, h])\n z[t] = y[t] }}").format("f32"))
    )
    assert one == [str(4 * core.vector_bytes // 4)]
