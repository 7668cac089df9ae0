"""Bools whose bytes are not 0 or 1, as NumPy makes them by views and shared memory: any but 0 is true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.runtime.cpu.launcher import Launcher
from polyfuse.runtime.reference.evaluate import evaluate

TEXT = """op f(x: bool[N], inout p: bool[N], b: bool) -> (same: bool[N], equal: bool[N],
    number: i32[N], truth: bool[N], as_b: bool[N], chosen: f32[N], count: i64, every: bool, some: bool) {
  same[i] = x[i]
  equal[i] = x[N - 1 - i] == p[i]
  number[i] = i32(x[i]) + (1 if b else 0)
  truth[i] = x[i] != false
  as_b[i] = x[i] == b
  p[i] = p[i] and x[i] for i in 2..N
  chosen[i] = 1.0 if x[i] and true else 2.0
  count = sum[i](i64(x[i]))
  every = all[i](x[i] or not x[i])
  some = any[i](x[i] and not x[i])
}"""


def odd(n: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    values = np.random.default_rng(n).integers(0, 256, n).astype(np.uint8)
    values[::3] = 0
    return values.view(bool)


def raw(a: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ascontiguousarray(a).view(np.uint8)


VIEWS = {
    "dense": lambda: odd(333),
    "reversed": lambda: odd(333)[::-1],
    "a column": lambda: odd(1000).reshape(200, 5)[:, 2],
    "one": lambda: odd(2)[1:],
}


@pytest.fixture(params=["launcher", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(Launcher, "_tried", True)
        monkeypatch.setattr(Launcher, "_instance", None)


@pytest.mark.parametrize("target", ["cpu", "interpret", "emulate"])
@pytest.mark.parametrize("layers", [(), ("loop", "stitch", "pack")], ids=["unfused", "fused"])
def test_any_byte_but_zero_is_true(way: None, target: Any, layers: tuple[str, ...]) -> None:
    f = pf.compile(TEXT, target=target, layers=layers)
    for view in VIEWS.values():
        check_any_byte_but_zero(f, view())


def check_any_byte_but_zero(f: pf.Compiled, x: Any) -> None:
    true = raw(x) != 0
    for b in (np.array(7, np.uint8).view(bool), True, True):  # at last the short way
        p = x.copy()
        same, equal, number, truth, as_b, chosen, count, every, some = f(x, p, b)  # type: ignore[misc]
        for got, want in ((same, true), (truth, true), (as_b, true), (equal, true[::-1] == true)):
            assert raw(got).tolist() == want.astype(np.uint8).tolist()
        assert number.tolist() == (true + 1).tolist() and count == true.sum() and every and not some
        assert chosen.tolist() == np.where(true, 1.0, 2.0).tolist()
        assert ((raw(p) != 0) == true).all() and set(raw(p)[2:]) <= {0, 1}


def test_results_and_the_reference_agree_on_them() -> None:
    x = odd(100)
    graph = (
        pf.parse("op f(x: bool[N]) -> (y: i32[N], z: bool[N]) { y[i] = i32(x[i]); z[i] = not x[i] }")
        .op()
        .graph()
    )
    found = evaluate(graph, {"N": 100}, {"x": x})
    assert found["y"].value.tolist() == (raw(x) != 0).astype(int).tolist()
    assert found["z"].value.tolist() == (raw(x) == 0).tolist()


def test_a_comparison_that_is_written_is_made_once() -> None:
    graph = pf.parse("op f(x: bool[N]) -> (y: bool[N]) { y[i] = x[i] != false }").op().specialize(N=4).graph
    assert str(graph).count("!= false") == 1


def test_transposed_bools() -> None:
    """Moved by tiles, not one by one."""
    x = odd(64 * 48).reshape(64, 48)
    f = pf.compile("op f(x: bool[N, M]) -> (y: bool[M, N]) { y[m, n] = x[n, m] }", target="cpu")
    assert (raw(f(x)) == (raw(x) != 0).T).all()


def test_bools_that_kernels_made_are_not_compared(way: None) -> None:
    text = "op f(x: f32[N]) -> (y: bool[N], z: i32[N]) { y[i] = x[i] > 0.0; z[i] = i32(y[i]) }"
    built = pf.compile(text, target="cpu", layers=()).built(np.ones(9, np.float32))
    assert "!= false" not in str(built.kernels)
