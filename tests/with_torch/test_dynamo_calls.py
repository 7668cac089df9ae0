"""Calls of regions: in C where tensors are as they were when traced, through Python where they are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from polyfuse.runtime.cpu.launcher import Launcher
from polyfuse.torch.dynamo import kernels, polyfuse_backend
from polyfuse.torch.dynamo.report import GRAPHS

with_launcher = pytest.mark.skipif(Launcher.get() is None, reason="calls go through Python here")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    GRAPHS.clear()
    yield


def compiled(f: Callable[..., Any], dynamic: bool | None = False) -> Any:
    """By the backend, with failures as errors."""
    return torch.compile(
        f, backend=polyfuse_backend, options={"strict": True}, fullgraph=True, dynamic=dynamic
    )


@pytest.fixture
def in_c_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls through Python fail."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a call went through Python")

    monkeypatch.setattr(kernels._OnCpu, "run", refuse)


SAMPLES: dict[str, tuple[Callable[..., Any], Callable[[int], list[Any]]]] = {
    "several results": (
        lambda x, y: (x.exp() + y, (x * y).sum(1)),
        lambda n: [torch.randn(n, 9), torch.randn(n, 9)],
    ),
    "strides": (
        lambda x, y: torch.sigmoid(x) * y.sin(),
        lambda n: [torch.randn(9, n).t(), torch.randn(9, n).t()],
    ),
    "axes of one": (lambda x, y: (x + y).exp(), lambda n: [torch.randn(n, 1, 5)[:, :, :], torch.randn(1, 5)]),
    "numbers of rank 0": (lambda x, s: (x * s).exp() - s, lambda n: [torch.randn(n, 4), torch.tensor(0.5)]),
    "16 bits": (
        lambda x, m: torch.where(m, x.exp(), -x),
        lambda n: [torch.randn(n, 6, dtype=torch.bfloat16), torch.rand(n, 6) > 0.5],
    ),
    "softmax": (lambda x: torch.softmax(x.exp(), -1), lambda n: [torch.randn(n, 300)]),
}


@with_launcher
@pytest.mark.usefixtures("in_c_only")
@pytest.mark.parametrize("name", SAMPLES)
def test_calls_are_in_c(name: str) -> None:
    f, make = SAMPLES[name]
    run = compiled(f)
    for _ in range(2):
        given = make(7)
        torch.testing.assert_close(
            run(*given), f(*given), rtol=2e-2 if name == "16 bits" else 1e-5, atol=1e-6
        )


@with_launcher
@pytest.mark.usefixtures("in_c_only")
def test_open_sizes_are_numbers_of_a_call() -> None:
    f, make = SAMPLES["softmax"]
    run = compiled(f, dynamic=True)
    for n in (5, 3, 8, 5):
        given = make(n)
        torch.testing.assert_close(run(*given), f(*given))
    assert len(GRAPHS) == 1


@with_launcher
@pytest.mark.usefixtures("in_c_only")
def test_what_is_written_is_written_in_place() -> None:
    def f(b: Any, x: Any) -> Any:
        b.mul_(0.5).add_(x.exp().sum(0))
        return b * 2

    ours, eager = torch.ones(6), torch.ones(6)
    x = torch.randn(4, 6)
    torch.testing.assert_close(compiled(f)(ours, x), f(eager, x))
    torch.testing.assert_close(ours, eager)
    assert ours._version > 0


def test_other_tensors_go_through_python() -> None:
    run = compiled(lambda x, y: (x + 1).exp() * y.sin())
    x, y = torch.randn(6, 5), torch.randn(6, 5)
    run(x, y)
    (call,) = GRAPHS[0].calls
    others = [
        torch.randn(5, 6).t(),
        torch.randn(12, 10)[::2, ::2],
        torch.randn(6, 5, dtype=torch.cfloat).conj().imag,
    ]
    for other in others:
        (got,) = call(other, y)
        torch.testing.assert_close(got, (other + 1).exp() * y.sin())
        assert got.stride() == (5, 1)


def test_negations_that_wait_are_seen() -> None:
    def f(z: Any) -> Any:
        return z.conj().imag.exp().sin() + 1

    z = torch.randn(5, 4, dtype=torch.complex64)
    torch.testing.assert_close(compiled(f)(z), f(z))


def test_threads_call_at_once() -> None:
    f, make = SAMPLES["softmax"]
    run, given = compiled(f), [make(40) for _ in range(8)]
    wanted = [f(*x) for x in given]
    run(*given[0])
    (call,) = GRAPHS[0].calls
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: [call(*x)[0] for _ in range(20)], given))
    for results, want in zip(found, wanted, strict=True):
        for got in results:
            torch.testing.assert_close(got, want)
