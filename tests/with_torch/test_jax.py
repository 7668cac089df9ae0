"""`pf.jax.op`: operators inside of what JAX traces."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyfuse as pf
from polyfuse.diagnostics import ArgumentError

LN, SOFTMAX = pf.jax.op(pf.stdlib.layer_norm), pf.jax.op(pf.stdlib.softmax)


def array(*shape: int, dtype: Any = np.float32, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def norm(x: Any, g: Any, b: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * g + b


def close(mine: Any, theirs: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5), mine, theirs)


ARGS = (array(3, 8), 1 + array(8, seed=1), array(8, seed=2))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_arrays_of_jax_in_and_out(wrap: Callable[..., Any]) -> None:
    y = wrap(lambda *a: LN(*a))(*ARGS)
    assert isinstance(y, jax.Array) and y.dtype == np.float32
    close(y, norm(*ARGS))
    close(wrap(lambda x: SOFTMAX(2 * x) + 1)(ARGS[0]), jax.nn.softmax(2 * ARGS[0]) + 1)


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (5, 0), (257, 3)])
def test_shapes(shape: tuple[int, int]) -> None:
    twice = pf.jax.op("op twice(x: f32[N, M], a: f32 = 2.0) -> (y: f32[N, M], s: f64) {\n"
        " y[i, j] = a * x[i, j]\n s = sum[i, j](f64(x[i, j]))\n}")  # fmt: skip
    y, s = jax.jit(twice)(array(*shape))
    assert y.shape == shape and s.shape == () and s.dtype == np.float32  # JAX has no f64 here
    close((y, s), (2 * array(*shape), array(*shape).sum()))
    close(twice(array(*shape), 3)[0], 3 * array(*shape))
    close(jax.jit(twice)(array(*shape), jnp.float32(3))[0], 3 * array(*shape))


def test_what_is_traced_has_shapes_and_types() -> None:
    found = jax.eval_shape(LN, *ARGS)
    assert found.shape == (3, 8) and found.dtype == np.float32
    with pytest.raises(ArgumentError) as error:
        jax.eval_shape(LN, ARGS[0], ARGS[1][:5], ARGS[2])
    assert error.value.code == "PF405"


@pytest.mark.parametrize("kind", ["f16", "bf16", "i32", "u8", "bool"])
def test_types(kind: str) -> None:
    theirs = {"f16": jnp.float16, "bf16": jnp.bfloat16, "i32": jnp.int32, "u8": jnp.uint8, "bool": jnp.bool_}[
        kind
    ]
    turn = pf.jax.op(f"op turn(x: {kind}[N]) -> (y: {kind}[N]) {{ y[i] = x[N - 1 - i] }}")
    x = jnp.arange(6).astype(theirs)
    assert turn(x).dtype == x.dtype and jnp.array_equal(jax.jit(turn)(x), x[::-1])


def test_integers_of_64_bits_where_jax_has_none() -> None:
    pick = pf.jax.op("op pick(x: f32[N, M], k: i64[N]) -> (y: f32[N], m: i64[N]) {\n"
        " y[i] = x[i, k[i]]\n m[i] = argmax[j](x[i, j])\n}")  # fmt: skip
    x, k = array(4, 5), jnp.array([0, 4, 2, 1])
    for run in (pick, jax.jit(pick)):
        y, m = run(x, k)
        assert m.dtype == np.int32 and jnp.array_equal(m, x.argmax(1))
        close(y, x[jnp.arange(4), k])
    close(jax.grad(lambda x: pick(x, k)[0].sum())(x), jnp.zeros((4, 5)).at[jnp.arange(4), k].set(1))
    with jax.enable_x64(True):
        assert pick(x, k)[1].dtype == np.int64


def test_gradients() -> None:
    def loss(f: Any) -> Any:
        return lambda *a: (f(*a) * jnp.arange(8)).sum()

    for which in ((0, 1, 2), (1,)):
        close(jax.jit(jax.grad(loss(LN), which))(*ARGS), jax.grad(loss(norm), which)(*ARGS))
    x = array(4)
    close(jax.jacrev(SOFTMAX)(x), jax.jacrev(jax.nn.softmax)(x))
    close(jax.jacrev(jax.jacrev(SOFTMAX))(x), jax.jacrev(jax.jacrev(jax.nn.softmax))(x))
    scale = pf.jax.op("op scale(x: f32[N], a: f32) -> (y: f32[N]) { y[i] = a * x[i] }")
    close(jax.grad(lambda a: scale(x, a).sum())(2.0), x.sum())


def test_backward_by_hand() -> None:
    twice = "op twice(x: f32[N]) -> (y: f32[N]) { y[i] = 2.0 * x[i] }"
    marked = "op twice_backward(dy: f32[N], x: f32[N]) -> (dx: f32[N]) { dx[i] = 7.0 * dy[i] + x[i] }"
    x = array(4)
    for backward in (marked, pf.jax.op(marked), lambda dy, y: {"x": 7 * dy + y / 2}):
        f = pf.jax.op(twice, backward=backward)
        close(jax.jit(jax.grad(lambda x, f=f: f(x).sum()))(x), 7 + x)
    with pytest.raises(ArgumentError) as error:
        pf.jax.op(twice, backward=lambda dz: {})
    assert error.value.code == "PF804"


@pytest.mark.parametrize("in_axes", [(1, 0, None), (None, None, 0)])
def test_vmap(in_axes: tuple[Any, ...]) -> None:
    args = [a if d is None else jnp.stack([a, 2 * a, a + 1], d) for a, d in zip(ARGS, in_axes, strict=True)]
    close(jax.vmap(LN, in_axes)(*args), jax.vmap(norm, in_axes)(*args))

    def grads(f: Any) -> Any:
        return jax.vmap(jax.grad(lambda *a: jnp.square(f(*a)).sum(), (0, 1)), in_axes)

    close(grads(LN)(*args), grads(norm)(*args))
    close(
        jax.grad(lambda *a: jax.vmap(LN, in_axes)(*a).var())(*args),
        jax.grad(lambda *a: jax.vmap(norm, in_axes)(*a).var())(*args),
    )


def test_inout_parameters_are_results() -> None:
    step = pf.jax.op("op step(inout p: f32[N], g: f32[N], lr: f32) { p[i] = p[i] - lr * g[i] }")
    p, g = array(5), array(5, seed=1)
    for run in (step, jax.jit(step)):
        close(run(p, g, 0.5), p - 0.5 * g)
        close(p, array(5))
    close(jax.lax.fori_loop(0, 3, lambda k, p: step(p, g, 0.5), p), p - 1.5 * g)
    with pytest.raises(ArgumentError) as error:
        jax.grad(lambda p: step(p, g, 0.5).sum())(p)
    assert error.value.code == "PF420"


def test_sizes_and_optional_tensors() -> None:
    pool = pf.jax.op(pf.stdlib.max_pool)
    x = array(1, 2, 6, 6)
    assert jax.jit(lambda x: pool(x, K=3, S=3))(x).shape == (1, 2, 2, 2) and pool(x).shape == (1, 2, 3, 3)
    linear = pf.jax.op(pf.stdlib.linear)
    x, w, b = array(3, 4), array(5, 4), array(5)
    close((linear(x, w), linear(x, w, b)), (x @ w.T, x @ w.T + b))
    close(jax.grad(lambda b: linear(x, w, b).sum())(b), jnp.full(5, 3.0))


def test_what_cannot_be_called_says_so() -> None:
    with pytest.raises(ArgumentError) as error:
        pf.jax.op(pf.compile(pf.stdlib.softmax, target="interpret"))
    assert error.value.code == "PF807"
    with pytest.raises(Exception, match="PF807"):
        text = "op pick(x: f32[N], k: i32[M]) -> (y: f32[M]) { y[i] = x[k[i]] }"
        pf.jax.op(pf.compile(text, checked=True))(array(3), jnp.array([1]))


def refused(code: str, call: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(ArgumentError) as error:
        call(*args)
    assert error.value.code == code


def test_gradients_where_nothing_flows() -> None:
    """Of a gradient they are 0; of an operator all the same somebody expects one."""
    relu = pf.jax.op("op relu(x: f32[N]) -> (y: f32[N]) { y[i] = max(x[i], 0.0) }")
    z = jnp.array([-1.0, 2.0])
    twice = jax.grad(lambda z: jnp.square(jax.grad(lambda z: jnp.square(relu(z)).sum())(z)).sum())
    assert twice(z).tolist() == [0.0, 16.0]
    assert not jax.jacrev(jax.jacrev(relu))(z).any()
    gate = pf.jax.op("op gate(x: f32[N], m: f32[N]) -> (y: f32[N]) { y[i] = x[i] if m[i] > 0.0 else 0.0 }")
    both = jax.grad(lambda x, m: gate(x, m).sum(), (0, 1))(z, z)
    assert [g.tolist() for g in both] == [[0.0, 1.0], [0.0, 0.0]]
    refused("PF791", jax.grad(lambda m: gate(z, m).sum()), z)
    place = pf.jax.op("op place(x: f32[N, M]) -> (k: i64[N]) { k[i] = argmax[j](x[i, j]) }")
    eye = jnp.eye(3)
    assert jnp.array_equal(jax.grad(lambda x: x[jnp.arange(3), place(x)].sum())(eye), eye)


def test_batches_have_the_gradient_that_is_given() -> None:
    text = "op clamp(x: f32[N]) -> (y: f32[N]) { y[i] = min(max(x[i], -1.0), 1.0) }"
    x = jnp.array([[-2.0, 0.5], [3.0, 0.1]])
    for backward in (
        "op ten(dy: f32[N]) -> (dx: f32[N]) { dx[i] = 10.0 * dy[i] }",
        lambda dy: {"x": 10 * dy},
    ):
        f = pf.jax.op(text, backward=backward)
        assert jnp.array_equal(jax.grad(lambda a, f=f: jax.vmap(f)(a).sum())(x), jnp.full((2, 2), 10.0))


def test_copies_and_pickles() -> None:
    for f in (copy.deepcopy(SOFTMAX), pickle.loads(pickle.dumps(SOFTMAX))):
        close(f(ARGS[0]), SOFTMAX(ARGS[0]))


def test_what_is_no_array_of_a_type_of_the_language() -> None:
    refused("PF402", SOFTMAX, jax.random.key(0))
    for odd in (None, "x", [[1.0]], 3.0):
        refused("PF425", SOFTMAX, odd)
