"""Models and arguments that break compilers: writes in place, random numbers, sizes that are numbers,
integers at their limits.  Judged by eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.torch_version import TorchVersion

from polyfuse.torch.dynamo import kernels

STRICT = {"strict": True}
OLDEST = torch.__version__ < TorchVersion("2.7")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield


def regions() -> int:
    """How many were compiled."""
    return int(torch._dynamo.utils.counters["polyfuse"]["regions"])


def agrees(f: Callable[..., Any], *given: Any, **how: Any) -> None:
    """Compiled and eager give the same, and do the same to arguments, to modules and to gradients."""
    runs = []
    for compiled in (False, True):
        own, arguments = (
            copy.deepcopy((f, given)) if isinstance(f, torch.nn.Module) else (f, copy.deepcopy(given))
        )
        run = torch.compile(own, backend="polyfuse", **how) if compiled else own
        torch.manual_seed(0)
        results = run(*arguments)
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        parameters = list(own.parameters()) if isinstance(own, torch.nn.Module) else []
        if parameters:
            sum(r.square().sum() for r in results).backward()
        state = list(own.state_dict().values()) if isinstance(own, torch.nn.Module) else []
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        runs.append([*results, *tensors, *state, *(p.grad for p in parameters)])
    for want, got in zip(*runs, strict=True):
        assert want.stride() == got.stride()
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5, equal_nan=True)


# --- what is written in place -----------------------------------------------------------------------------


class Running(torch.nn.Module):
    """Buffers that a step updates and then reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.scale = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(x.mean(0) * 0.1)
        self.steps += 1
        return (x - self.mean) * self.scale + self.steps


def test_the_backward_sees_buffers_as_they_were() -> None:
    """torch's partition keeps the argument, which is new by then, to compute the new one again."""
    agrees(Running(), torch.randn(3, 4), options=STRICT)


def in_views(x: torch.Tensor) -> Any:
    """In place, through views."""
    v = x.view(-1)[::2]
    v.add_(1).mul_(v)
    x.t()[1].exp_()
    x[1:].mul_(2)
    return v, (x + v.sum()).relu(), x


def test_writes_through_views() -> None:
    agrees(in_views, torch.randn(4, 4), options=STRICT)


def test_buffers_change_places() -> None:
    def swap(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        old = p * 1
        p.copy_(q.flip(0))
        q.copy_(old)
        return (p + q) * 2

    agrees(swap, torch.randn(5, 3), torch.randn(5, 3), options=STRICT)


def test_a_tensor_of_zeros_without_memory() -> None:
    f = lambda x, y: (x * 2 + 1).relu() + y  # noqa: E731
    run, y = torch.compile(f, backend="polyfuse", options=STRICT), torch.randn(4)
    torch.testing.assert_close(run(torch._efficientzerotensor((4,)), y), y + 1)


def test_data_say_what_is_read_of_a_part_that_was_written() -> None:
    def f(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.view(-1)[::2].mul_(3)
        return y[:, k] * 2 + 1

    agrees(f, torch.randn(3, 5), torch.tensor([4, 0, 2]), options=STRICT)


# --- random numbers ---------------------------------------------------------------------------------------


def random_after_region(x: torch.Tensor, w: torch.Tensor) -> Any:
    """The first random operator reads a region, the second nothing."""
    a = (x * 2 + 1).sigmoid()
    b = torch.bernoulli(a)
    r = torch.rand(4, 4)
    z = (x @ w * a + r).relu()
    return b, r, z * a


def random_after_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Random operators on both sides of a product."""
    a = (x @ w * 2 + 1).sigmoid()
    b, c = torch.bernoulli(a), torch.randn(4, 4)
    return F.dropout(b + c * 2, 0.3) + F.dropout((c + 1).relu() * 2, 0.5)


@pytest.mark.parametrize("f", [random_after_region, random_after_product])
def test_random_numbers_are_those_of_eager(f: Callable[..., Any]) -> None:
    agrees(f, torch.randn(4, 4), torch.randn(4, 4), options=STRICT)


# --- sizes that are numbers -------------------------------------------------------------------------------


def test_an_index_that_becomes_negative() -> None:
    f = lambda x, k: x[k] * 2 + 1  # noqa: E731
    run, x = torch.compile(f, backend="polyfuse", dynamic=True), torch.randn(12, 3)
    for k in (4, 7, -1, -3, 0):
        torch.testing.assert_close(run(x, k), f(x, k))


def test_windows_of_open_images() -> None:
    f = lambda x: F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1)  # noqa: E731
    before = regions()
    run = torch.compile(f, backend="polyfuse", dynamic=True)
    for n in (4, 9):
        x = torch.randn(1, 2, n, n + 1)
        torch.testing.assert_close(run(x), f(x))
    assert regions() == before + (2 if OLDEST else 1)  # its graphs differ


def test_a_fault_of_the_compiler_is_none_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(program: Any, sizes: Any) -> Any:
        raise KeyError("s2")

    monkeypatch.setattr(kernels.Program, "machine", machine)
    for dynamic in (False, True):
        agrees(lambda x: x[: x.shape[0] // 2].exp() * x.shape[0] + 1, torch.randn(6, 4), dynamic=dynamic)
    with pytest.raises(Exception, match="KeyError: 's2'"):
        agrees(lambda x: x.exp() + 2, torch.randn(6), options=STRICT)


# --- integers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_integers_at_their_limits(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    every = torch.tensor([limits.min, limits.min + 1, limits.max, 0, 1, 2, 3, 7, 100], dtype=dtype)
    every = torch.cat([every, -every[1:]])
    x, y = every[:, None].expand(-1, len(every)).clone(), every.expand(len(every), -1).clone()
    y[(y == 0) | (y == torch.tensor(-1).to(dtype))] = 5

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        towards_zero = torch.div(x, y, rounding_mode="trunc")
        return torch.fmod(x, y), towards_zero, x // y, x % y, x * y - x, x.abs(), x << 1, x.sum(0), x.prod(0)

    agrees(f, x, y, options=STRICT)
