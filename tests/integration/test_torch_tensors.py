"""Tensors of torch of which torch knows more than lies in memory: gradients, versions, wrappers, subclasses.

With a stand-in for torch, and with torch itself where it is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch_stand_in import HostTensor, HostTorch

import polyfuse as pf

DOUBLE = "op double(x: f32[N]) -> (y: f32[N]) { y[i] = 2.0 * x[i] }"
STEP = "op step(inout p: f32[N], g: f32[N]) { p[i] = p[i] - g[i] }"
TARGETS = ("cpu", "interpret")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> HostTorch:
    module = HostTorch()
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def ones() -> np.ndarray[Any, Any]:
    return np.ones(3, np.float32)


def refused(call: Callable[[], object]) -> pf.ArgumentError:
    with pytest.raises(pf.ArgumentError) as error:
        call()
    return error.value


@pytest.mark.parametrize("target", TARGETS)
def test_a_tensor_that_requires_grad_is_refused_while_grad_mode_is_on(torch: HostTorch, target: Any) -> None:
    f, x = pf.compile(DOUBLE, target=target), HostTensor(ones())
    f(x)
    f(x)  # what is known of a layout does not help
    x.requires_grad = True
    for call in (lambda: f(x), lambda: f(ones(), out=x), lambda: f.bind(x), lambda: f.built(x)):
        error = refused(call)
        assert error.code == "PF420" and "requires grad" in str(error)
        assert "torch.no_grad()" in str(error) and ".detach()" in str(error)
    torch.grad_mode = False
    assert isinstance(f(x), HostTensor)


@pytest.mark.parametrize("target", TARGETS)
def test_the_short_way_takes_no_tensors(torch: HostTorch, target: Any) -> None:
    """A layout that NumPy arrays have made known is not used for tensors with the same memory."""
    f = pf.compile(DOUBLE, target=target)
    x, y = ones(), np.empty(3, np.float32)
    for _ in range(3):
        f(x)
        f(x, out=y)
    tensor = HostTensor(x, requires_grad=True)
    assert refused(lambda: f(tensor)).code == "PF420"
    assert refused(lambda: f(x, out=tensor)).code == "PF420"
    assert refused(lambda: f(tensor, out=y)).code == "PF420"


@pytest.mark.parametrize("target", TARGETS)
def test_torch_is_told_what_is_written(torch: HostTorch, target: Any) -> None:
    step, double = pf.compile(STEP, target=target), pf.compile(DOUBLE, target=target)
    p, g = HostTensor(ones()), HostTensor(ones())
    for k in range(3):
        step(p, g)
        assert (p.version, g.version) == (k + 1, 0)
    out = HostTensor(ones())
    double(p, out=out)
    double(p, out=(out,))
    double(p, out={"y": out})
    assert (p.version, out.version) == (3, 3)


def test_bound_calls_look_at_tensors_each_time(torch: HostTorch) -> None:
    p, g = HostTensor(ones()), HostTensor(ones())
    bound = pf.compile(STEP, target="cpu").bind(p, g)
    bound()
    bound()
    assert (p.version, g.version) == (2, 0)
    g.requires_grad = True
    assert refused(bound).code == "PF420"
    np.testing.assert_array_equal(p.array, ones() - 2)


def test_a_stage_by_stage_run_does_the_same(torch: HostTorch) -> None:
    machine = pf.parse(STEP).op().specialize(N=3).schedule().lower().build("interpret")
    p, g, after = HostTensor(ones()), HostTensor(ones()), HostTensor(ones())
    machine.run({"p": p, "g": g, "p__out": after})
    assert after.version == 1 and g.version == 0
    g.requires_grad = True
    assert refused(lambda: machine.run({"p": p, "g": g, "p__out": after})).code == "PF420"


class Masked(HostTensor):
    """A subclass, as users and torch itself make them."""


@pytest.mark.parametrize(
    "tensor, named",
    [
        (Masked(ones()), "Masked"),
        (HostTensor(ones(), wrapped=True), "vmap"),
        (HostTensor(ones(), tangent=ones()), "dual"),
        (HostTensor(ones(), device="meta"), "meta"),
        (np.ma.masked_array(ones(), [True, False, False]), "masked array"),
    ],
    ids=["subclass", "wrapped", "dual", "meta", "mask"],
)
def test_what_is_more_than_its_memory_is_refused_by_name(
    torch: HostTorch, tensor: object, named: str
) -> None:
    f = pf.compile(DOUBLE, target="cpu")
    for call in (lambda: f(tensor), lambda: f(ones(), out=tensor)):
        error = refused(call)
        assert error.code == "PF421" and named in str(error)


def test_inference_tensors_are_written_in_inference_mode_only(torch: HostTorch) -> None:
    f, p = pf.compile(STEP, target="cpu"), HostTensor(ones(), inference=True)
    assert refused(lambda: f(p, ones())).code == "PF418"
    np.testing.assert_array_equal(p.array, ones())
    torch.in_inference_mode = True
    f(p, ones())
    np.testing.assert_array_equal(p.array, ones() - 1)


# --- torch itself ------------------------------------------------------------------------------------------


def test_a_frozen_layer_does_not_go_unnoticed() -> None:
    torch = pytest.importorskip("torch")
    f = pf.compile(DOUBLE, target="cpu")
    w = torch.nn.Parameter(torch.ones(3))
    assert refused(lambda: f(w)).code == "PF420"
    assert refused(lambda: f(w * 2)).code == "PF420"
    with torch.no_grad():
        assert torch.equal(f(w), torch.full((3,), 2.0))
    assert torch.equal(f(w.detach()), torch.full((3,), 2.0))


def test_a_backward_that_needs_what_was_overwritten_is_an_error() -> None:
    torch = pytest.importorskip("torch")
    w = torch.ones(3, requires_grad=True)
    hidden = w * 2
    loss = (hidden * hidden).sum()
    with torch.no_grad():
        pf.compile(STEP, target="cpu")(hidden, torch.ones(3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_leaf_parameters_are_refused_as_by_torch() -> None:
    torch = pytest.importorskip("torch")
    step, p = pf.compile(STEP, target="cpu"), torch.nn.Parameter(torch.ones(3))
    assert refused(lambda: step(p, torch.ones(3))).code == "PF420"
    with torch.no_grad():
        before = p._version
        step(p, torch.ones(3))
        assert p._version > before and not p.any()
    with torch.inference_mode():
        made_there = torch.ones(3)
        step(made_there, torch.ones(3))
    assert refused(lambda: step(made_there, torch.ones(3))).code == "PF418"


def test_wrappers_of_torch_go_through_its_dispatcher_or_are_refused() -> None:
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd import forward_ad

    f, x = pf.compile(DOUBLE, target="cpu"), torch.ones(3)

    class Mine(torch.Tensor):  # type: ignore[misc, name-defined]
        pass

    with FakeTensorMode():
        assert f(torch.ones(3)).shape == (3,)
    assert type(f(x.as_subclass(Mine))) is Mine
    assert torch.vmap(f)(torch.ones(2, 3)).tolist() == [[2.0] * 3] * 2
    assert refused(lambda: torch.func.grad(lambda a: f(a).sum())(x)).code == "PF420"
    assert refused(lambda: torch.func.jvp(f, (x,), (x,))).code == "PF421"
    with forward_ad.dual_level():
        assert "dual" in str(refused(lambda: f(forward_ad.make_dual(x, x))))
    for odd in (x.to_sparse(), torch._neg_view(x)):
        assert refused(lambda odd=odd: f(odd)).code == "PF417"
