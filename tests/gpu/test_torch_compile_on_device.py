"""`torch.compile(backend="polyfuse")` on a GPU: judged by eager in float64; streams, graphs, open sizes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield


def compiled(f: Any, **more: Any) -> Any:
    from polyfuse.torch.dynamo import polyfuse_backend

    return torch.compile(f, backend=polyfuse_backend, options={"strict": True}, **more)


def block() -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 31), nn.LogSoftmax(-1))


def gradients(model: Any, run: Any, x: Any) -> list[Any]:
    for p in (*model.parameters(), x):
        p.grad = None
    run(x).square().sum().backward()
    return [p.grad.double() for p in (*model.parameters(), x)]


@pytest.mark.parametrize("rows", [1, 77, 512])
def test_a_training_step_is_as_near_to_float64_as_eagers(rows: int) -> None:
    model = block().cuda()
    double = copy.deepcopy(model).double()
    x = torch.randn(rows, 48, device="cuda", requires_grad=True)
    ours = gradients(model, compiled(model), x)
    eager = gradients(model, model, x)
    judge = gradients(double, double, x.detach().double().requires_grad_())
    for o, e, j in zip(ours, eager, judge, strict=True):
        allowed = 4 * float((e - j).abs().max()) + 1e-5 * float(j.abs().max())
        assert float((o - j).abs().max()) <= allowed


def test_parameters_are_updated_in_place() -> None:
    def step(p: Any, g: Any, m: Any) -> None:
        m.mul_(0.9).add_(g, alpha=0.1)
        p.sub_(1e-2 * m / (m.abs().sqrt() + 1e-8))

    ours = [torch.rand(33, 7, device="cuda") for _ in range(3)]
    eager = [t.clone() for t in ours]
    run = compiled(step)
    for _ in range(3):
        run(*ours)
        step(*eager)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b)


def f(x: Any, w: Any) -> Any:
    return torch.softmax(x * w, -1) + x.mean(-1, keepdim=True)


def test_sizes_stay_sizes() -> None:
    run = compiled(f, dynamic=True)
    for shape in ((3, 5), (70, 9), (20, 300), (2, 64)):
        x, w = torch.randn(shape, device="cuda"), torch.randn(shape[1], device="cuda")
        torch.testing.assert_close(run(x, w), f(x, w))


def test_the_current_stream_is_taken_and_graphs_can_capture_it() -> None:
    run = compiled(f)
    x, w = torch.randn(64, 96, device="cuda"), torch.randn(96, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            run(x, w)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            y = run(x, w)
    x.copy_(torch.randn(64, 96, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(y, f(x, w))


def test_halves_are_rounded_as_eager_rounds_them() -> None:
    def g(x: Any, y: Any) -> Any:
        return torch.nn.functional.silu(x + y) * y - x * y

    x, y = (torch.randn(65, 33, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.testing.assert_close(compiled(g)(x, y), g(x, y), rtol=1.6e-2, atol=1e-3)
