"""The short way of calls on a GPU: tensors of torch, arrays of cupy and jax, streams, graphs, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.cuda import multi_kernel
from polyfuse.interop.array_families import array_family
from polyfuse.runtime.cuda.launcher import DeviceLauncher

torch: Any = pytest.importorskip("torch")

NORM = """op layer_norm(x: f32[T, H], g: f32[H], b: f32[H]) -> (y: f32[T, H]) {
  m[t] = sum[h](x[t, h]) / H
  v[t] = sum[h]((x[t, h] - m[t]) ** 2) / H
  y[t, h] = (x[t, h] - m[t]) * rsqrt(v[t] + 1e-5) * g[h] + b[h]
}"""
COLUMNS = """op normalised(x: f32[T, H]) -> (y: f32[T, H], s: f32[H]) {
  s[h] = sum[t](x[t, h])
  y[t, h] = x[t, h] / s[h]
}"""
UPDATE = "op update(inout p: f32[N], g: f32[N], lr: f32 = 0.5) { p[n] = p[n] - lr * g[n] }"
REVERSED = "op add_reversed(inout p: f32[N]) { p[i] = old(p[i]) + old(p[N - 1 - i]) }"


@pytest.fixture(autouse=True)
def launcher() -> None:
    if DeviceLauncher.get() is None:
        pytest.skip("this interpreter has no launcher, or there is no C++ compiler")


def compiled(text: str) -> Any:
    return pf.compile(pf.parse(text), target="cuda")


def short(f: Any, *args: object) -> Any:
    found = f._device_short.call(args)
    assert found is not NotImplemented
    return found


def norm(x: Any, g: Any, b: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], g, b)


def tensors(*shapes: tuple[int, ...]) -> list[Any]:
    return [torch.rand(s, device="cuda") + 0.5 for s in shapes]


def test_the_short_way_is_taken() -> None:
    f, (x, g, b) = compiled(NORM), tensors((16, 768), (768,), (768,))
    f(x, g, b)
    for _ in range(3):
        x, g, b = tensors((16, 768), (768,), (768,))
        torch.testing.assert_close(short(f, x, g, b), norm(x, g, b), rtol=1e-4, atol=1e-5)
    exchange = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    family = array_family([x], f.built(x, g, b).executable.memory)
    assert family is not None and (family.exchange is not None) == exchange


def captured(call: Callable[[], Any]) -> tuple[Any, Any]:
    """A graph of torch's with one call in it, and what the call returned."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


def test_calls_are_captured_by_torch() -> None:
    f, (x, g, b) = compiled(NORM), tensors((64, 512), (512,), (512,))
    graph, y = captured(lambda: f(x, g, b))
    for _ in range(3):
        x.copy_(torch.rand_like(x))
        graph.replay()
        torch.testing.assert_close(y, norm(x, g, b), rtol=1e-4, atol=1e-5)


def test_calls_with_workspace_are_captured() -> None:
    f, (x,) = compiled(COLUMNS), tensors((3000, 64))
    graph, (y, s) = captured(lambda: f(x))
    for _ in range(3):
        x.copy_(torch.rand_like(x) + 0.5)
        graph.replay()
        others = [torch.full((3000, 64), 9.0, device="cuda") for _ in range(4)]  # what is free is used
        graph.replay()
        torch.testing.assert_close(s, x.sum(0), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(y, x / x.sum(0), rtol=1e-4, atol=1e-5)
        del others


def test_calls_in_place_are_captured() -> None:
    f, (p, g) = compiled(UPDATE), tensors((1000,), (1000,))
    want = p.clone()
    graph, _ = captured(lambda: f(p, g, 0.25))
    p.copy_(want)
    for _ in range(4):
        graph.replay()
    torch.testing.assert_close(p, want - g, rtol=1e-4, atol=1e-5)
    r, (q,) = compiled(REVERSED), tensors((77,))
    graph, _ = captured(lambda: r(q))
    want = q + q.flip(0)
    graph.replay()
    torch.testing.assert_close(q, want)


def test_bound_calls_are_captured() -> None:
    f, (x, g, b) = compiled(NORM), tensors((64, 512), (512,), (512,))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        bound = f.bind(x, g, b)
        y = bound()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        bound()
    x.copy_(torch.rand_like(x))
    torch.cuda.synchronize()
    graph.replay()
    torch.testing.assert_close(y, norm(x, g, b), rtol=1e-4, atol=1e-5)


def test_a_steady_call_takes_no_memory_of_the_driver() -> None:
    f, (x,) = compiled(COLUMNS), tensors((3000, 64))
    f(x)
    f(x)
    pool = f.built(x).executable.memory.pool
    before = torch.cuda.memory_stats()["segment.all.allocated"], pool.allocations
    for _ in range(20):
        f(x)
    assert (torch.cuda.memory_stats()["segment.all.allocated"], pool.allocations) == before


def test_work_goes_to_the_current_stream() -> None:
    f, (x, g) = compiled(UPDATE), tensors((1 << 24,), (1 << 24,))
    f(x, g)
    for _ in range(5):
        want = x.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(4):
                x.mul_(0.5)
                assert short(f, x, g, 0.5) is None
        side.synchronize()
        for _ in range(4):
            want = want * 0.5 - 0.5 * g
        torch.testing.assert_close(x, want)


def test_gradients_and_versions() -> None:
    f, (x, g, b) = compiled(NORM), tensors((16, 64), (64,), (64,))
    f(x, g, b)
    parameter = torch.nn.Parameter(g)
    with pytest.raises(pf.ArgumentError, match="requires grad"):
        f(x, parameter, b)
    with torch.no_grad():
        torch.testing.assert_close(short(f, x, parameter, b), norm(x, g, b), rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        assert short(f, x, parameter, b).is_inference()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(pf.ArgumentError, match="tangent"):
            f(dual, g, b)
    with pytest.raises(pf.ArgumentError, match=r"torch\.func"):
        torch.func.vmap(lambda row: f(row, g, b))(torch.rand(2, 16, 64, device="cuda"))
    update, (p, q) = compiled(UPDATE), tensors((10,), (10,))
    update(p, q)
    version = p._version
    assert short(update, p, q) is None
    bound = update.bind(p, q)
    bound()
    assert (p._version, q._version) == (version + 2, 0)


def test_what_does_not_fit() -> None:
    f, (x, g, b) = compiled(NORM), tensors((16, 64), (64,), (64,))
    f(x, g, b)
    for wrong, code in (
        ((x.double(), g, b), "PF402"),
        ((x, g[:63], b), "PF405"),
        ((x, g[None], b), "PF401"),
    ):
        with pytest.raises(pf.ArgumentError) as refused:
            f(*wrong)
        assert refused.value.code == code
    assert isinstance(f(x, g, b.cpu().numpy()), np.ndarray)
    odd = torch.rand(16 * 64 + 1, device="cuda")[1:].view(16, 64)
    torch.testing.assert_close(f(odd, g, b), norm(odd, g, b), rtol=1e-4, atol=1e-5)
    columns = torch.rand(64, 16, device="cuda").t()
    for _ in range(2):
        torch.testing.assert_close(f(columns, g, b), norm(columns, g, b), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_another_device() -> None:
    f, (x, g, b) = compiled(NORM), tensors((16, 64), (64,), (64,))
    want = f(x, g, b)
    with torch.cuda.device(1):
        torch.testing.assert_close(short(f, x, g, b), want)
        assert torch.cuda.current_device() == 1
    with pytest.raises(pf.ArgumentError, match="PF417"):
        f(x, g.to("cuda:1"), b)


def test_threads_with_streams_of_their_own() -> None:
    f, (x,) = compiled(COLUMNS), tensors((3000, 64))
    f(x)
    wrong: list[int] = []

    def work(k: int) -> None:
        mine = torch.rand(3000, 64, device="cuda") + 0.5
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(50):
                _, s = f(mine)
            if not torch.allclose(s, mine.sum(0), rtol=1e-4):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_arrays_of_cupy() -> None:
    cupy: Any = pytest.importorskip("cupy")
    f = compiled(NORM)
    x, g, b = (cupy.random.rand(*s, dtype=cupy.float32) for s in ((16, 64), (64,), (64,)))
    want = f(x, g, b)
    found = short(f, x, g, b)
    assert type(found) is cupy.ndarray
    np.testing.assert_array_equal(cupy.asnumpy(found), cupy.asnumpy(want))
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        later = short(f, x * 2, g, b)
        stream.synchronize()
    np.testing.assert_allclose(cupy.asnumpy(later), cupy.asnumpy(want), rtol=1e-3, atol=1e-3)


def test_arrays_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax: Any = pytest.importorskip("jax")
    if not any(d.platform == "gpu" for d in jax.devices()):
        pytest.skip("this jax has no GPU")
    f = compiled(NORM)
    keys = jax.random.split(jax.random.key(0), 3)
    x, g, b = (jax.random.uniform(k, s) for k, s in zip(keys, ((16, 64), (64,), (64,)), strict=True))
    want = f(x, g, b).get()
    for _ in range(3):
        np.testing.assert_array_equal(short(f, x + 0, g, b).get(), want)


def test_arguments_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_kernel, "MOST_PASSED", 8)
    params = ", ".join(f"inout p{k}: f32[N{k}], g{k}: f32[N{k}]" for k in range(6))
    body = "\n".join(f"p{k}[i] = p{k}[i] - lr * g{k}[i]" for k in range(6))
    f = compiled(f"op many({params}, lr: f32 = 0.5) {{ {body} }}")
    given = tensors(*[(100,)] * 12)
    f(*given)
    for _ in range(3):
        given[:2] = tensors((100,), (100,))
        want = [p - 0.5 * g for p, g in zip(given[::2], given[1::2], strict=True)]
        for _ in range(2):
            assert short(f, *given) is None
        for p, g, w in zip(given[::2], given[1::2], want, strict=True):
            torch.testing.assert_close(p, w - 0.5 * g)


def test_arrays_of_our_own() -> None:
    f, (x, g, b) = compiled(NORM), tensors((16, 64), (64,), (64,))
    memory = f.built(x, g, b).executable.memory
    from polyfuse.runtime.cuda.results import DeviceArray

    mine = [
        DeviceArray.empty(memory, tuple(t.shape), np.dtype(np.float32)).set(t.cpu().numpy())
        for t in (x, g, b)
    ]
    want = f(*mine).get()
    np.testing.assert_array_equal(short(f, *mine).get(), want)
    np.testing.assert_allclose(want, norm(x, g, b).cpu().numpy(), rtol=1e-4, atol=1e-5)
