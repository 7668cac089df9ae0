"""What is in no region, by Inductor: which nodes go there together, and equal results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from polyfuse.diagnostics import ArgumentError
from polyfuse.torch.dynamo import polyfuse_backend, report, rest, settings
from polyfuse.torch.dynamo.report import GRAPHS
from polyfuse.torch.dynamo.settings import Settings

needs_inductor = pytest.mark.skipif(not settings._has_inductor(), reason="this torch has no such Inductor")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    GRAPHS.clear()
    yield


@pytest.fixture
def as_inductor(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """ATen in place of Inductor, which takes seconds; gives the graphs that it got."""
    seen: list[Any] = []

    def run(module: Any, values: Any, **_: Any) -> Any:
        assert [type(v.meta["val"]) for v in module.graph.find_nodes(op="placeholder")] == [
            *map(type, values)
        ]
        seen.append(module)
        return module

    monkeypatch.setattr("torch._inductor.standalone_compile", run)
    return seen


def compiled(f: Any, dynamic: bool = False, **options: Any) -> Any:
    """By the backend and Inductor."""
    given = {"rest": "inductor", "strict": True, **options}
    return torch.compile(f, backend=polyfuse_backend, options=given, dynamic=dynamic)


def mixed(x: Any, w: Any) -> Any:
    """Regions with a run between them that has kernels, and one that has none."""
    y = torch.nn.functional.gelu(x) * 2 + x.sum(1, keepdim=True)
    z = torch.cumsum(torch.tanh(y @ w), 1) * 0.1
    i = torch.linalg.cross(z[:, :3], z[:, 3:6])
    return torch.softmax(i @ i.t() + z.sum(), -1), i


@needs_inductor
@pytest.mark.parametrize("dynamic", [False, True])
def test_runs_with_kernels_go_together(as_inductor: list[Any], dynamic: bool) -> None:
    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    grads = []
    for f in (compiled(mixed, dynamic), mixed):
        found = f(x, w)
        grads.append(torch.autograd.grad(found[0].square().sum() + found[1].sum(), (x, w)))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
    forward = report().graphs[0]
    assert len(forward.by_inductor) == 1 and "linalg_cross" in forward.by_inductor[0]
    assert "of these by Inductor: " in str(report())
    names = [[str(n.target) for n in m.graph.nodes if n.op == "call_function"] for m in as_inductor]
    assert any("aten.linalg_cross.default" in n for n in names[0])
    assert not any("polyfuse" in n for own in names for n in own)


@needs_inductor
def test_products_alone_stay(as_inductor: list[Any]) -> None:
    x = torch.randn(8, 8)
    torch.testing.assert_close(
        compiled(lambda x: (x.exp().sin() @ x.t()).cos().exp())(x), (x.exp().sin() @ x.t()).cos().exp()
    )
    assert not as_inductor


@needs_inductor
def test_what_inductor_refuses_stays_with_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(rest, "_compiled", refuse)
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    counters.clear()
    found = compiled(mixed, strict=False)(x, w)
    torch.testing.assert_close(found, mixed(x, w))
    assert counters["polyfuse"]["fallbacks"] == 1
    assert any("no compiler" in f for f in report().fallbacks)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="no compiler"):
        compiled(mixed)(x, w)


@pytest.mark.slow
@needs_inductor
def test_inductor_gives_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    with torch._functorch.config.patch(enable_autograd_cache=True):
        for kept in (False, True):
            torch._dynamo.reset()
            GRAPHS.clear()
            torch.testing.assert_close(compiled(mixed)(x, w), mixed(x, w))
            assert [g.kept for g in GRAPHS] == [kept]
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(mixed, dynamic=True)(x, w), mixed(x, w))


def test_a_torch_without_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_has_inductor", lambda: False)
    with pytest.raises(ArgumentError, match="no Inductor"):
        Settings.of({"rest": "inductor"})
    with pytest.raises(ArgumentError, match="cannot be 'xla'"):
        Settings.of({"rest": "xla"})
