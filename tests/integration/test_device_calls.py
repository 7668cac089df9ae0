"""The short way of calls with arrays on a GPU: what it takes, what it leaves to the long way, and what it
costs the driver.  A stand-in is the GPU, and others are torch and cupy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from gpu_stand_ins import EmulatingDriver, Tensor, Torch, tensor, use

import polyfuse as pf
from polyfuse.runtime.cuda.launcher import DeviceLauncher

Array = np.ndarray[Any, np.dtype[Any]]

AXPY = "op axpy(x: f32[N], y: f32[N], a: f32 = 2.0) -> (z: f32[N]) { z[i] = a * x[i] + y[i] }"
SCALE = "op scale[F: float](x: F[N], a: F) -> (y: F[N]) { y[i] = a * x[i] }"
STEP = "op step(inout p: f32[N, M], g: f32[N, M]) { p[n, m] = p[n, m] - g[n, m] }"
SPLIT = "op split(x: f32[N]) -> (lo: f32[N], hi: f32[N]) { lo[i] = x[i] - 1.0; hi[i] = x[i] + 1.0 }"
DOUBLE = "op double(x: f32[N, M]) -> (y: f32[N, M]) { y[n, m] = x[n, m] * 2.0 }"
SWAP = "op swap(inout p: f32[N], inout q: f32[N]) { p[i] = old(q[i]); q[i] = old(p[i]) }"
TOTAL = "op total(x: f32[N]) -> (s: f32) { s = sum[i](x[i]) }"
NORM = """op norm(x: f32[N]) -> (y: f32[N]) {
  s = sum[k](x[k] * x[k])
  y[i] = x[i] / s
}"""


def grid(*shape: int) -> Array:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def compiled(text: str, **options: Any) -> pf.Compiled:
    return pf.compile(text, target="cuda", **options)


@pytest.fixture(autouse=True)
def launcher() -> None:
    if DeviceLauncher.get() is None:
        pytest.skip("this interpreter has no launcher")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> EmulatingDriver:
    return use(monkeypatch)


@pytest.fixture
def torch(driver: EmulatingDriver, monkeypatch: pytest.MonkeyPatch) -> Torch:
    module = Torch(driver)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def short(f: pf.Compiled, *args: object) -> Any:
    """What the short way says of arguments."""
    return f._device_short.call(args)


def values(found: Any) -> Array:
    return found.elements if isinstance(found, Tensor) else found.get()


def test_tensors_are_launched_the_short_way(driver: EmulatingDriver, torch: Torch) -> None:
    f, x, y = compiled(AXPY), tensor(driver, grid(7)), tensor(driver, grid(7) * 10)
    assert short(f, x, y) is NotImplemented
    f(x, y)
    driver.calls.clear()
    for a, more in ((2.0, ()), (3.0, (3.0,)), (4.0, (4.0,))):
        found = short(f, x, y, *more)
        assert type(found) is Tensor
        np.testing.assert_array_equal(found.elements, a * grid(7) + 10 * grid(7))
    assert {name for name, *_ in driver.calls} == {"launch", "allocate"}  # the stand-in's torch allocates
