"""Calls with torch tensors on the CPU are checked and started in C, which takes nothing for granted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import polyfuse as pf
from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.compiled import Compiled
from polyfuse.runtime.cpu.launcher import Launcher

TYPES = ["f32", "f64", "f16", "bf16", "i64", "i32", "u8", "bool"]
THEIRS = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
SCALED = "op scaled(x: f32[N, M], a: f32 = 2.0) -> (y: f32[N, M]) { y[i, j] = a * x[i, j] }"


def compiled(text: str, **options: Any) -> Compiled:
    return pf.compile(pf.parse(text), target="cpu", **options)


def learnt(f: Compiled, *args: Any) -> Any:
    """The second result of a call, which has to come by the short way."""
    f(*args)
    found = f.in_short(args)
    assert found is not NotImplemented
    return found


def declines(f: Compiled, *args: Any) -> bool:
    return f.in_short(args) is NotImplemented


@pytest.mark.parametrize("kind", TYPES)
def test_all_types_of_elements_come_and_go(kind: str) -> None:
    f = compiled(f"op same(x: {kind}[N]) -> (y: {kind}[N]) {{ y[i] = x[N - 1 - i] }}")
    x = torch.arange(7).to(THEIRS[kind])
    y = learnt(f, x)
    assert type(y) is torch.Tensor and y.dtype == x.dtype and torch.equal(y, x.flip(0))


@pytest.mark.parametrize("shape", [(3, 5), (0, 5), (3, 0), (1, 1), (257, 1)])
def test_shapes_and_layouts(shape: tuple[int, int]) -> None:
    f = compiled(SCALED)
    x = torch.randn(shape)
    wide = torch.randn(2 * shape[0], 3 * shape[1] + 1)[::2, 1::3]
    for view in (x, x.t().contiguous().t(), wide, torch.randn(shape[1]).expand(shape)):
        assert torch.equal(learnt(f, view), 2 * view)
        assert f(view).is_contiguous()


def test_numbers_of_rank_0_and_several_results_are_tensors() -> None:
    f = compiled("op both(x: f32[N]) -> (y: f32[N], s: f64) { y[i] = -x[i]\n s = sum[i](f64(x[i])) }")
    y, s = learnt(f, torch.arange(4.0))
    assert s.shape == () and s.item() == 6 and s.dtype == torch.float64 and y[3] == -3


@pytest.mark.parametrize("sizes", ["fixed", "open"])
def test_large_results_are_apart_and_outlive_the_call(sizes: str) -> None:
    f = compiled(SCALED, sizes=sizes)
    x = torch.randn(600, 700)
    first = learnt(f, x)
    second = f(x + 1)
    assert torch.equal(first, 2 * x) and torch.equal(second, 2 * (x + 1))
    assert first.data_ptr() != second.data_ptr()


def test_numpy_and_torch_share_what_is_learnt() -> None:
    f = compiled(SCALED)
    x = torch.randn(3, 4)
    f(x.numpy())
    f(x)
    assert torch.equal(f.in_short((x,)), 2 * x)
    assert not isinstance(f.in_short((x.numpy(),)), torch.Tensor)


def test_out_and_inout_count_versions_up() -> None:
    f = compiled(SCALED)
    step = compiled("op step(inout p: f32[N], g: f32[N]) { p[i] = p[i] - g[i] }")
    x, y, p = torch.randn(2, 3), torch.empty(2, 3), torch.ones(4)
    for k in range(1, 4):
        assert f(x, out=y) is y and y._version == k and torch.equal(y, 2 * x)
        step(p, torch.ones(4))
        assert p._version == k and p[0] == 1 - k


def test_a_backward_that_needs_old_values_is_an_error() -> None:
    step = compiled("op step(inout p: f32[N]) { p[i] = p[i] + 1.0 }")
    w, p = torch.ones(3, requires_grad=True), torch.ones(3)
    step(p)
    loss = (w * p).sum()
    step(p)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_overlapping_memory_goes_the_long_way() -> None:
    add = compiled("op add(inout p: f32[N], g: f32[N]) { p[i] = p[i] + g[N - 1 - i] }")
    add(torch.ones(4), torch.ones(4))
    both = torch.arange(4.0)
    assert declines(add, both, both)
    add(both, both)
    assert both.tolist() == [3, 3, 3, 3]


# --- tensors that are more than their memory --------------------------------------------------------------


def negated() -> torch.Tensor:
    return torch.ones(2, 3, dtype=torch.complex64).mul(1j).conj().imag


ODD: dict[str, Callable[[], Any]] = {
    "gradient": lambda: torch.ones(2, 3, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 3)),
    "negated": negated,
    "sparse": lambda: torch.ones(2, 3).to_sparse(),
    "meta": lambda: torch.ones(2, 3, device="meta"),
    "other type": lambda: torch.ones(2, 3, dtype=torch.complex64),
    "subclass": lambda: torch.ones(2, 3).as_subclass(type("Mine", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("known", [False, True])
def test_the_short_way_declines(odd: str, known: bool) -> None:
    f = compiled(SCALED)
    if known:
        learnt(f, torch.ones(2, 3))
    assert declines(f, ODD[odd]())


def test_a_negated_view_is_resolved_or_refused() -> None:
    f = compiled(SCALED)
    learnt(f, torch.ones(2, 6)[:, ::2])
    with pytest.raises(ArgumentError) as error:
        f(negated())
    assert error.value.code == "PF417"


def test_a_gradient_that_nobody_computes_is_an_error() -> None:
    f = compiled(SCALED)
    learnt(f, torch.ones(2, 3))
    for x in (torch.ones(2, 3, requires_grad=True), torch.nn.Parameter(torch.ones(2, 3))):
        with pytest.raises(ArgumentError) as error:
            f(x)
        assert error.value.code == "PF420" and "pf.torch.op" in str(error.value)
        with torch.no_grad():
            assert torch.equal(f.in_short((x,)), 2 * x)


def test_tangents_are_not_lost() -> None:
    f = compiled(SCALED)
    learnt(f, torch.ones(2, 3))
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(torch.ones(2, 3), torch.ones(2, 3))
        assert declines(f, x)
        with pytest.raises(ArgumentError) as error:
            f(x)
    assert error.value.code == "PF421"


def test_levels_of_torch_func_are_seen() -> None:
    f = compiled(SCALED)
    learnt(f, torch.ones(2, 3))
    seen = []
    torch.vmap(lambda x: seen.append(declines(f, x)) or x)(torch.ones(4, 2, 3))
    torch.func.grad(lambda x: seen.append(declines(f, x)) or x.sum())(torch.ones(2, 3))
    torch.func.functionalize(lambda x: seen.append(declines(f, x)) or x)(torch.ones(2, 3))
    assert seen == [True] * 3


def test_tracers_see_calls() -> None:
    f = compiled(SCALED)
    x = learnt(f, torch.ones(2, 3))
    traced = make_fx(lambda t: f(t) + 1)(x)
    assert any("polyfuse" in str(n.target) for n in traced.graph.nodes)
    assert torch.equal(traced(3 * x), 6 * x + 1)
    assert "polyfuse" in str(torch.jit.trace(lambda t: f(t), (x,)).graph)


def test_inference_tensors() -> None:
    f = compiled(SCALED)
    with torch.inference_mode():
        x = torch.ones(2, 3)
        y = learnt(f, x)
        assert y.is_inference() and y[0, 0] == 2
        assert f(x, out=y) is y
    with pytest.raises(ArgumentError) as error:
        f(torch.ones(2, 3), out=y)
    assert error.value.code == "PF418"


def test_what_changes_between_looks_is_seen() -> None:
    """Results are made before arguments are looked at for the last time."""
    f = compiled(SCALED)
    learnt(f, torch.ones(2, 3))
    x = torch.ones(2, 3)
    assert torch.equal(f(x), 2 * x)
    x.resize_(4, 5).fill_(1)
    assert f(x).shape == (4, 5)
    x.requires_grad_()
    assert declines(f, x)


@pytest.mark.skipif(Launcher.get() is None, reason="this interpreter has no launcher")
def test_a_library_without_the_exchange_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are then asked by their attributes."""
    from polyfuse.interop import array_families

    launcher = Launcher.get()
    assert launcher is not None
    monkeypatch.setattr(array_families, "dlpack_exchange", lambda kind: None)
    monkeypatch.setattr(launcher, "tensor_types", ())
    f = compiled(SCALED)
    try:
        for view in (
            torch.randn(3, 4),
            torch.randn(4, 3).t(),
            torch.randn(3, 0),
            torch.randn(6, 8)[::2, ::2],
        ):
            assert torch.equal(learnt(f, view), 2 * view)
        assert all(declines(f, make()) for odd, make in ODD.items() if odd != "parameter")
    finally:
        launcher.tensor_types = ()
