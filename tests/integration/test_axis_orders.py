"""Arguments whose axes lie in another order in memory: transposed, with gaps, backwards."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from thinned import thinned

import polyfuse as pf
from polyfuse.layers.graph.reindex.axis_order import memory_order

Array = np.ndarray[Any, Any]

PROGRAM = """
op softmax(x: f32[T,H]) -> (y: f32[T,H]) {
  m[t] = max[h](x[t,h])
  e[t,h] = exp(x[t,h] - m[t])
  s[t] = sum[h](e[t,h])
  y[t,h] = e[t,h] / s[t]
}
op norm(x: f32[T,H], g: f32[H]) -> (y: f32[T,H]) {
  m[t] = sum[h](x[t,h]) / f32(H)
  v[t] = sum[h]((x[t,h] - m[t]) * (x[t,h] - m[t])) / f32(H)
  y[t,h] = (x[t,h] - m[t]) * rsqrt(v[t] + 1e-5) * g[h]
}
op gelu(x: f32[T,H]) -> (y: f32[T,H]) { y[t,h] = 0.5 * x[t,h] * (1.0 + erf(x[t,h] * 0.7071067811865475)) }
op columns(x: f32[T,H]) -> (y: f32[H]) { y[h] = sum[t](x[t,h]) }
op product(x: f32[T,K], w: f32[K,H]) -> (y: f32[T,H]) { y[t,h] = sum[k](x[t,k] * w[k,h]) }
op looked(x: f32[T,H], k: i64[N,M]) -> (y: f32[N,M,H]) { y[n,m,h] = x[k[n,m],h] }
op added(x: f32[N,H], k: i64[N]) -> (y: f32[8,H]) { y[k[n],h] += x[n,h] }
op blur(x: f32[N,C,H,W]) -> (y: f32[N,C,H,W]) {
  y[n,c,h,w] = (x[n,c,h,w] + (x[n,c,h,w+1] if w + 1 < W else 0.0)) * 0.5
}
op pooled(x: f32[N,C,H,W]) -> (y: f32[N,C]) { y[n,c] = sum[h,w](x[n,c,h,w]) / f32(H * W) }
op ahead(inout a: f32[T,H], x: f32[T,H]) { a[t,h] = a[t,h] + x[t,h] }
"""
RANDOM = np.random.default_rng(7)


def numbers(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def so(array: Array, order: tuple[int, ...], gap: int = 0) -> Array:
    """The same elements in memory of another order of axes, with gaps behind its rows."""
    turned = array.transpose(order)
    unread = np.nan if array.dtype.kind == "f" else -1
    room = np.full((*turned.shape[:-1], turned.shape[-1] + gap), unread, array.dtype)
    room[..., : turned.shape[-1]] = turned
    return room[..., : turned.shape[-1]].transpose(np.argsort(order))


@cache
def in_order(op: str) -> Any:
    """The operator for arguments in the usual order, of any sizes."""
    return pf.compile(PROGRAM, op, target="cpu", sizes="open")


def agrees(f: Any, given: tuple[Array, ...], want: Array) -> None:
    for _ in range(3):  # checked, learnt, by the short way
        np.testing.assert_allclose(f(*given), want, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(f.bind(*given)(), want, rtol=2e-5, atol=2e-5)
    into = np.empty_like(want)
    for _ in range(2):
        into[...] = 0
        assert f(*given, out=into) is into
        np.testing.assert_allclose(into, want, rtol=2e-5, atol=2e-5)


@pytest.mark.thin(2)
@pytest.mark.parametrize("gap", (0, 3))
@pytest.mark.parametrize("op", ("softmax", "norm", "gelu", "columns"))
def test_transposed_rows(op: str, gap: int) -> None:
    f = pf.compile(PROGRAM, op, target="cpu")
    for t, h in (
        (64, 48),
        (33, 17),
        (130, 257),
        (5, 1000),
        (1, 9),
        (9, 1),
        (700, 3),
        (300, 200),
        (0, 4),
        (4, 0),
    ):
        if h or op != "softmax":  # the largest of no elements is none
            x, rest = numbers(t, h), (numbers(h),) if op == "norm" else ()
            agrees(f, (so(x, (1, 0), gap), *rest), in_order(op)(x, *rest))


@pytest.mark.thin(2)
@pytest.mark.parametrize("order", thinned(permutations(range(4)), 5), ids=str)
@pytest.mark.parametrize("op", ("blur", "pooled"))
def test_axes_of_pictures(op: str, order: tuple[int, ...]) -> None:
    f = pf.compile(PROGRAM, op, target="cpu")
    for shape in ((2, 5, 7, 9), (1, 16, 16, 16), (3, 1, 20, 33)):
        x = numbers(*shape)
        agrees(f, (so(x, order),), in_order(op)(x))
        agrees(f, (so(x, order, 2)[:, :, ::-1],), in_order(op)(np.ascontiguousarray(x[:, :, ::-1])))


@pytest.mark.parametrize("left", ((0, 1), (1, 0)))
@pytest.mark.parametrize("right", ((0, 1), (1, 0)))
def test_products(left: tuple[int, int], right: tuple[int, int]) -> None:
    f = pf.compile(PROGRAM, "product", target="cpu")
    for t, k, h in ((16, 24, 32), (65, 33, 17), (300, 128, 256)):
        x, w = numbers(t, k) / 8, numbers(k, h) / 8
        agrees(f, (so(x, left), so(w, right)), x @ w)


def test_what_is_looked_up() -> None:
    f, g = (pf.compile(PROGRAM, op, target="cpu") for op in ("looked", "added"))
    x, k = numbers(37, 19), RANDOM.integers(0, 37, (11, 6))
    for xs in (x, so(x, (1, 0))):
        for ks in (k, so(k, (1, 0)), k[:, ::-1][:, ::-1], so(k, (1, 0), 1)):
            agrees(f, (xs, ks), f(x, k))
    few = k[:, 0] % 8
    agrees(g, (so(x[:11], (1, 0)), few), g(np.ascontiguousarray(x[:11]), few))


def test_what_is_written_in_place() -> None:
    """Parameters that change keep their strides; an input in their memory is what it was before."""
    f = pf.compile(PROGRAM, "ahead", target="cpu")
    for _ in range(2):
        a, x = numbers(40, 40), numbers(40, 40)
        want = a + x
        mine = so(a, (1, 0))
        f(mine, so(x, (1, 0)))
        np.testing.assert_array_equal(mine, want)
        want = a + a.T
        f(a, a.T)
        np.testing.assert_array_equal(a, want)


def test_checked_and_measured() -> None:
    x = numbers(130, 90)
    for options in ({"checked": True}, {"tune": "measure"}, {"layers": ()}, {"layers": ("loop",)}):
        f = pf.compile(PROGRAM, "softmax", target="cpu", **options)
        agrees(f, (so(x, (1, 0)),), f(x))


def test_it_is_said() -> None:
    f = pf.compile(PROGRAM, "gelu", target="cpu")
    x = numbers(30, 20)
    assert "+ layout x: its axes lie in the order 1, 0 in memory" in f.explain(x.T)
    assert "layout" not in f.explain(x) and "layout" not in f.explain(x[::2, ::2])
    assert f.built(x.T) is f.built(so(numbers(20, 30), (1, 0)))
    assert f.built(x.T) is not f.built(np.ascontiguousarray(x.T))


@pytest.mark.parametrize("op", ("gelu", "norm"))
def test_what_is_read_twice_or_summed_first_is_turned_around(op: str) -> None:
    """Stores go along rows: the argument is read twice, but loaded once, and totals do not decide alone."""
    x, rest = numbers(768, 1024).T, (numbers(768),) if op == "norm" else ()
    told = pf.compile(PROGRAM, op, target="cpu").explain(x, *rest)
    assert "+ transpose x" in told and "interchange" not in told


def test_orders() -> None:
    def order(a: Array) -> object:
        return memory_order(a.shape, a.strides)

    x = numbers(3, 4, 5)
    assert order(x) is None and order(x[::2]) is None and order(x[:, ::-1]) is None
    assert order(x.T) == (2, 1, 0) and order(x[:, ::-1].transpose(0, 2, 1)) == (0, 2, 1)
    assert order(x[:1].T) == (2, 1, 0) and order(x[:, :1]) is None
    assert order(np.broadcast_to(x[0].T, (3, 5, 4))) is None and order(x[:0].T) is None


def test_parameters_that_change_are_measured_with_dims_as_one() -> None:
    text = PROGRAM.replace("a[t,h] + x[t,h] }", "a[t,h] * 0.125 + x[t,h] }")
    options = pf.Options(tune="measure", verify=False, progress=False)
    f = pf.compile(text, "ahead", target="cpu", options=options)
    a, x = numbers(700, 301), numbers(700, 301)
    tuning = f.built(a, x.copy()).tuning
    assert tuning is not None and not tuning.note and len(tuning.timed) > 1
