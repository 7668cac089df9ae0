"""Layers are an offer: what cannot be kept in order with them is compiled with less of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.diagnostics import ScheduleError
from polyfuse.driver import pipeline

NORM = """op f(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  s[t] = sum[h](e[t, h])
  y[t, h] = e[t, h] / s[t]
}"""


def refusing(monkeypatch: pytest.MonkeyPatch, wanted: int) -> list[Any]:
    """Refuse the first `wanted` attempts to emit code. All attempts."""
    seen: list[Any] = []
    right = pipeline._emitted

    def emitted(step: Any, compilation: Any) -> Any:
        seen.append(compilation)
        if len(seen) <= wanted:
            raise ScheduleError(f"refused for the {len(seen)}. time", code="PF533")
        return right(step, compilation)

    monkeypatch.setattr(pipeline, "_emitted", emitted)
    return seen


@pytest.mark.parametrize("refused", range(4))
def test_what_is_refused_is_compiled_with_less(monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    seen = refusing(monkeypatch, refused)
    x = np.random.default_rng(refused).standard_normal((6, 50 + refused), np.float32)
    f = pf.compile(NORM, target="emulate")
    want = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(f(x), want / want.sum(1, keepdims=True), rtol=1e-5)
    assert len(seen) == refused + 1
    told = f.explain(x)
    assert all(f"refused for the {k + 1}. time" in told for k in range(refused))
    layers = [(c.fusion is not None, c.stitching is not None, c.packing is not None) for c in seen]
    assert (
        layers == [(True, True, True), (True, True, True), (True, False, True), (False,) * 3][: refused + 1]
    )


def test_what_cannot_be_compiled_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = refusing(monkeypatch, 9)
    with pytest.raises(ScheduleError, match=r"PF533: refused for the 4\. time"):
        pf.compile(NORM, target="emulate")(np.ones((3, 70), "f4"))
    assert len(seen) == 4
