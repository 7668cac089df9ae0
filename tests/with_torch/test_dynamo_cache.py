"""What torch keeps of compiled models: the same results without tracing, and nothing where it must not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from polyfuse.torch.dynamo import kernels, polyfuse_backend, report
from polyfuse.torch.dynamo.report import GRAPHS
from polyfuse.torch.dynamo.sizes import Unsupported

cached = pytest.importorskip(
    "polyfuse.torch.dynamo.cached", reason="torch keeps only what Inductor made", exc_type=ImportError
)


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with torch._functorch.config.patch(enable_autograd_cache=True, strict_autograd_cache=False):
        new_process()
        yield
    new_process()


def new_process() -> None:
    """Forget all that is not on disk."""
    torch._dynamo.reset()
    counters.clear()
    GRAPHS.clear()
    kernels.PROGRAMS._found.clear()


def compiled(f: Any, dynamic: bool | None = False, **options: Any) -> Any:
    """By the backend."""
    return torch.compile(f, backend=polyfuse_backend, dynamic=dynamic, options=options)


def hits() -> int:
    """How many models were found."""
    return int(counters["aot_autograd"]["autograd_cache_hit"])


def step(model: Any, run: Callable[..., Any], x: Any) -> list[Any]:
    """The result, and all gradients."""
    model.zero_grad()
    y = run(x)
    (y * y.detach().cos()).sum().backward()
    return [y.detach(), *(p.grad.clone() for p in model.parameters())]


def test_a_later_process_traces_nothing() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.GELU(), torch.nn.LayerNorm(9))
    x = torch.randn(4, 6)
    first = step(model, compiled(model), x)
    assert hits() == 0 and not any(g.kept for g in GRAPHS)
    regions = [g.regions for g in GRAPHS]
    new_process()
    again = step(model, compiled(model), x)
    assert hits() == 1 and [g.kept for g in GRAPHS] == [True, True]
    assert counters["polyfuse"]["kept"] == 2
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()
    assert [g.regions for g in GRAPHS] == regions
    assert [g.kind for g in report(model).graphs] == ["forward", "backward"]
    assert "kept by an earlier process" in str(report(model))
    for region in report(model).regions:
        assert "op region(" in str(region.program) and "legal" in region.explain()


def test_sizes_stay_open() -> None:
    def f(x: Any, y: Any) -> Any:
        return torch.softmax(x @ y, -1) * x.shape[0]

    x, y = torch.randn(5, 4), torch.randn(4, 7)
    compiled(f, dynamic=True)(x, y)
    new_process()
    run = compiled(f, dynamic=True)
    for n in (5, 3, 6):
        x = torch.randn(n, 4)
        torch.testing.assert_close(run(x, y), f(x, y))
    assert hits() == 1 and len(GRAPHS) == 1


def test_constants_and_what_is_written() -> None:
    table = torch.arange(6.0)

    def f(b: Any, x: Any) -> Any:
        b.mul_(0.5).add_((x * table).exp().sum(0))
        return b + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])

    for _ in range(2):
        new_process()
        ours, eager, x = torch.ones(6), torch.ones(6), torch.randn(3, 6)
        torch.testing.assert_close(compiled(f)(ours, x), f(eager, x))
        torch.testing.assert_close(ours, eager)
    assert hits() == 1


def test_options_are_part_of_the_key() -> None:
    def f(x: Any) -> Any:
        return (x.exp() + 1).sin()

    x = torch.randn(5, 4, dtype=torch.bfloat16)
    compiled(f)(x)
    new_process()
    compiled(f, precision="fused")(x)
    assert hits() == 0


def test_what_fell_back_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        return (x.exp() + 1).sin()

    def refuse(self: Any) -> None:
        raise Unsupported("not today")

    x = torch.randn(5, 4)
    with monkeypatch.context() as patched:
        patched.setattr(kernels.Call, "compile", refuse)
        torch.testing.assert_close(compiled(f)(x), f(x))
    assert report().fallbacks
    new_process()
    torch.testing.assert_close(compiled(f)(x), f(x))
    assert hits() == 0 and not report().fallbacks


def test_a_region_that_fails_later_goes_to_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        return (x.exp().reshape(-1) + x.shape[0] * x.shape[1]).sin()

    x = torch.randn(5, 4)
    compiled(f, dynamic=True)(x)
    new_process()
    monkeypatch.setattr(kernels.Call, "_first", lambda self, sizes: None)
    torch.testing.assert_close(compiled(f, dynamic=True)(x), f(x))
    assert hits() == 1
