"""`pf.torch.op` with unusual arguments, names and transforms: right, or an error that says what is wrong."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import polyfuse as pf
from polyfuse.diagnostics import ArgumentError

CLAMP = "op clamp(x: f32[N]) -> (y: f32[N]) { y[i] = min(max(x[i], -1.0), 1.0) }"
TWO = """op two(x: f32[N, M], w: f32[M]) -> (y: f32[N, M], s: f32[N]) {
  y[i, j] = w[j] * x[i, j] * x[i, j]
  s[i] = sum[j](x[i, j])
}"""
RELU = "op relu[F: float](x: F[N]) -> (y: F[N]) { y[i] = max(x[i], 0.0) }"
X = torch.tensor([[-2.0, 0.5], [3.0, 0.1]])


def refused(code: str, call: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(ArgumentError) as error:
        call(*args)
    assert error.value.code == code
    return str(error.value)


# --- gradients by hand --------------------------------------------------------------------------------------


def ten(dy: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"x": dy * 10}


def scaled_by_hand(by: float) -> Any:
    return pf.torch.op(CLAMP, backward=lambda dy: {"x": dy * by})


@pytest.mark.parametrize(
    "backward", ["op straight(dy: f32[N]) -> (dx: f32[N]) { dx[i] = 10.0 * dy[i] }", ten]
)
def test_a_batch_has_the_gradient_that_is_given(backward: Any) -> None:
    """It had the derived one where vmap was inside of what asks for gradients."""
    f, x = pf.torch.op(CLAMP, backward=backward), X.clone().requires_grad_()
    tens = torch.full_like(X, 10.0)
    assert torch.equal(torch.func.grad(lambda a: torch.vmap(f)(a).sum())(X), tens)
    assert torch.equal(torch.vmap(torch.func.grad(lambda a: f(a).sum()))(X), tens)
    assert torch.equal(torch.autograd.grad(torch.vmap(f)(x).sum(), x)[0], tens)


def test_a_batch_by_hand_sums_over_what_has_no_batch() -> None:
    def half(dy: torch.Tensor, ds: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"w": (dy * x * x).sum(0) / 2}

    f, w, x = pf.torch.op(TWO, backward=half), torch.ones(2, requires_grad=True), torch.randn(4, 3, 2)
    (found,) = torch.autograd.grad(torch.vmap(f, (0, None))(x, w)[0].sum(), w)
    torch.testing.assert_close(found, x.square().sum((0, 1)) / 2)


def test_functions_of_one_text_are_several_operators() -> None:
    """Both had the gradient of the second."""
    two, three = scaled_by_hand(2.0), scaled_by_hand(3.0)
    x = torch.zeros(2, requires_grad=True)
    assert two.name != three.name
    assert [torch.autograd.grad(f(x).sum(), x)[0][0] for f in (two, three)] == [2.0, 3.0]
    one, other = (pf.torch.op(CLAMP, backward=b) for b in (lambda dy: {"x": dy}, lambda dy: {"x": -dy}))
    assert [torch.autograd.grad(f(x).sum(), x)[0][0] for f in (one, other)] == [1.0, -1.0]


def test_a_name_is_that_of_the_last_operator() -> None:
    f = pf.torch.op("op f(x: f32[N]) -> (y: f32[N]) { y[i] = 2.0 * x[i] }", name="odd::f")
    assert pf.torch.op("op f(x: f32[N]) -> (y: f32[N]) { y[i] = 2.0 * x[i] }", name="odd::f") is f
    g = pf.torch.op("op f(x: f32[N]) -> (y: f32[N]) { y[i] = 3.0 * x[i] }", name="odd::f")
    for x in (torch.ones(2), torch.ones(2, requires_grad=True)):
        assert g(x).tolist() == [3.0, 3.0]
        refused("PF426", f, x)


def test_copies_and_pickles_are_the_operator() -> None:
    for f in (pf.torch.op(TWO), pf.torch.op(CLAMP, backward=ten), pf.torch.op(CLAMP, name="odd::clamp")):
        assert copy.deepcopy(f) is f and pickle.loads(pickle.dumps(f)) is f


# --- nothing flows ------------------------------------------------------------------------------------------


def test_gradients_of_gradients_where_nothing_flows() -> None:
    relu, z = pf.torch.op(RELU), torch.tensor([-1.0, 2.0], requires_grad=True)
    (g,) = torch.autograd.grad(relu(z).square().sum(), z, create_graph=True)
    g.sum().backward()
    assert z.grad.tolist() == [0.0, 2.0]
    (g,) = torch.autograd.grad(relu(z).sum(), z, create_graph=True)
    assert g.tolist() == [0.0, 1.0] and not g.requires_grad
    assert not torch.func.jacrev(torch.func.jacrev(relu))(z.detach()).any()


def test_a_third_gradient() -> None:
    f = pf.torch.op("op e[F: float](x: F[N], w: F[N]) -> (y: F[N]) { y[i] = exp(x[i]) * w[i] }")
    x, w = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    y = f(x, w)
    for _ in range(3):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(y, x.exp() * w)


def test_arguments_that_are_no_tensors_beside_those_that_are() -> None:
    f = pf.torch.op("op f(x: f32[N], g: f32[N], k: f32) -> (y: f32[N]) {\n  y[i] = k * x[i] + g[i]\n}")
    x, array = torch.ones(3), np.ones(3, np.float32)
    for g in (array, [1.0, 2.0, 3.0]):
        with pytest.raises(pf.PolyfuseError) as caught:
            f(x, g, 1.0)
        told = str(caught.value)
        assert "PF425" in told and "argument 'g'" in told and "<string>:1:17" in told and "    |" in told
        assert "torch.as_tensor(g)" in told
        assert f(x, torch.as_tensor(g), 1.0).shape == (3,)
    with pytest.raises(pf.PolyfuseError, match="argument 'x' is a ndarray"):
        f(array, x, k=1.0)
    for value in ("two", None, array):
        with pytest.raises(pf.PolyfuseError, match=r"argument 'k' is .*; a number is expected"):
            f(x, x, value)
    for number in (2, 2.0, np.float32(2), np.array(2.0, np.float32), torch.tensor(2.0)):
        assert f(x, x, number).tolist() == [3.0] * 3
    assert isinstance(f(array, array, 2.0), np.ndarray)  # no tensors, no torch


def test_an_argument_that_nothing_flows_to() -> None:
    gate = pf.torch.op("op gate(x: f32[N], m: f32[N]) -> (y: f32[N]) { y[i] = x[i] if m[i] > 0.0 else 0.0 }")
    x, m = (torch.tensor([-1.0, 2.0], requires_grad=True) for _ in range(2))
    gate(x, m).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0] and m.grad is None
    refused("PF420", gate, x.detach(), m)  # somebody expects one
    place = pf.torch.op("op place(x: f32[N, M]) -> (k: i64[N]) { k[i] = argmax[j](x[i, j]) }")
    found = place(torch.eye(3, requires_grad=True))
    assert found.tolist() == [0, 1, 2] and not found.requires_grad


# --- arguments ----------------------------------------------------------------------------------------------


def two_of_torch(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return w * x * x, x.sum(1)


VIEWS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "strided": lambda b: (b[::2, 1:4], b[0, 7:]),
    "transposed": lambda b: (b.t()[:4, ::2], b[0, :3]),
    "expanded": lambda b: (b[:1, :3].expand(5, 3), b[0, :1].expand(3)),
    "no rows": lambda b: (b[:0, :3], b[0, :3]),
    "no columns": lambda b: (b[:3, :0], b[0, :0]),
    "one memory": lambda b: (b[:3, :3], b[0, :3]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_gradients_of_views(name: str) -> None:
    base, found = torch.randn(6, 10, requires_grad=True), []
    for f in (pf.torch.op(TWO), two_of_torch):
        y, s = f(*VIEWS[name](base))
        found.append((y.detach(), s.detach(), *torch.autograd.grad(y.cos().sum() + (s * s).sum(), base)))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("grad", [False, True])
def test_a_wrong_argument_is_told_with_a_gradient_as_without(grad: bool) -> None:
    """It was called a missing gradient."""
    f, w = pf.torch.op(TWO), torch.ones(4)
    assert "expected f32" in refused("PF402", f, torch.ones(3, 4, dtype=torch.float64, requires_grad=grad), w)
    assert "2 axes" in refused("PF401", f, torch.ones(3, requires_grad=grad), w)
    assert "several devices" in refused("PF417", f, torch.ones(3, 4, device="meta", requires_grad=grad), w)


def test_threads_meet_an_operator_for_the_first_time() -> None:
    text = "op th[F: float](x: F[B..., H], a: F = 2.0) -> (y: F[B..., H]) { y[b..., h] = a * x[b..., h] }"
    f, wrong = pf.torch.op(text), []

    def work(k: int) -> None:
        for n in range(4):
            x = torch.randn(2, k % 2 + 1, dtype=(torch.float32, torch.float64)[n % 2], requires_grad=True)
            a = torch.tensor(3.0, dtype=x.dtype, requires_grad=True)
            try:
                f(x, a).sum().backward()
                if not torch.equal(x.grad, torch.full_like(x, 3.0)) or not torch.isclose(a.grad, x.sum()):
                    wrong.append((x, a))
            except Exception as problem:
                wrong.append(problem)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
