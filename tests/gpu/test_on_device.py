"""Operators on a GPU, as users call them: torch tensors in and out, streams, memory, errors.

`make gpu` compares many more operators with the reference, in groups.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from on_device import call_of, check_on_device

import polyfuse as pf

torch: Any = pytest.importorskip("torch")

SOFTMAX = """op softmax(x: f32[T, H]) -> (y: f32[T, H]) {
  m[t] = max[h](x[t, h])
  e[t, h] = exp(x[t, h] - m[t])
  d[t] = sum[h](e[t, h])
  y[t, h] = e[t, h] / d[t]
}"""
UPDATE = "op update(inout p: f32[N], g: f32[N], lr: f32 = 0.5) { p[n] = p[n] - lr * g[n] }"
TOTAL = "op total(x: f32[N]) -> (s: f32) { s = sum[n](x[n]) }"


def compiled(text: str, **options: Any) -> Any:
    return pf.compile(pf.parse(text), target="cuda", **options)


def normal(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(7))


def wide_softmax(x: Any) -> Any:
    return torch.softmax(x.double(), -1)


@pytest.mark.parametrize("kind", ["workloads", "stdlib", "examples", "random"])
def test_a_group_agrees_with_the_reference(kind: str) -> None:
    check_on_device([call_of(kind, k) for k in range(4)])


@pytest.mark.parametrize("shape", [(1, 1), (3, 33), (7, 1024), (750_000, 32), (64, 30_000), (2, 1 << 20)])
def test_rows_of_many_shapes(shape: tuple[int, int]) -> None:
    x = normal(*shape)
    y = compiled(SOFTMAX)(x)
    assert y.device == x.device and y.dtype == x.dtype and y.shape == x.shape
    torch.testing.assert_close(y.double(), wide_softmax(x), rtol=2e-5, atol=1e-9)


def test_rows_that_are_not_dense() -> None:
    x = normal(64, 300)
    for view in (x[:, 1:258], x[::2], x.t()):
        torch.testing.assert_close(compiled(SOFTMAX)(view).double(), wide_softmax(view), rtol=2e-5, atol=1e-9)


def test_an_update_in_place() -> None:
    p, g = normal(1000), normal(1000)
    want = p - 0.5 * g
    assert compiled(UPDATE)(p, g) is None
    torch.testing.assert_close(p, want)


def test_a_scalar_result() -> None:
    x = torch.arange(1000, device="cuda", dtype=torch.float32)
    assert float(compiled(TOTAL)(x)) == 499_500.0


def test_a_bound_call_uses_its_memory_again() -> None:
    x = normal(128, 256)
    bound = compiled(SOFTMAX).bind(x)
    first = bound().clone()
    x.mul_(2.0)
    torch.testing.assert_close(bound().double(), wide_softmax(x), rtol=2e-5, atol=1e-9)
    assert not torch.equal(first, bound())


def test_calls_follow_the_stream_of_torch() -> None:
    """What is queued before is seen, and what is queued after waits."""
    f, x = compiled(SOFTMAX), normal(4096, 1024)
    f(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        z = x * 3.0
        y = f(z) + 1.0
    stream.synchronize()
    torch.testing.assert_close(y.double(), wide_softmax(x * 3.0) + 1.0, rtol=2e-5, atol=1e-6)


def test_equal_calls_give_equal_bits() -> None:
    f, x = compiled(SOFTMAX), normal(999, 777)
    first = f(x)
    assert all(torch.equal(first, f(x)) for _ in range(20))


def test_threads_may_call_at_once() -> None:
    f, x = compiled(SOFTMAX), normal(512, 512)
    want, wrong = f(x), []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                y = f(x)
                torch.cuda.current_stream().synchronize()
                if not torch.equal(y, want):
                    wrong.append(1)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_memory_of_results_is_given_back() -> None:
    """By this process's own figures: others may use the device too."""
    f, x = compiled(SOFTMAX), normal(4096, 4096)
    for _ in range(3):
        f(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    for _ in range(50):
        f(x)
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() - before[0] < 5 * x.nbytes
    assert torch.cuda.memory_allocated() == before[1]


def test_arguments_that_do_not_fit_are_refused() -> None:
    f = compiled(UPDATE)
    with pytest.raises(pf.ArgumentError):
        f(normal(4).double(), normal(4))
    with pytest.raises(pf.ArgumentError):
        f(normal(4), normal(5))
    with pytest.raises(pf.ArgumentError):
        compiled(UPDATE)(normal(8)[:4].expand(2, 4)[0], np.ones(3, np.float32))


def test_plans_are_measured_and_their_choice_is_kept(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    x, file = normal(4096, 1024), tmp_path / "choices.json"
    f = compiled(SOFTMAX, tune="measure", tune_budget=40, verify=False)
    torch.testing.assert_close(f(x).double(), wide_softmax(x), rtol=2e-5, atol=1e-9)
    tuning = f.built(x).tuning
    assert tuning is not None and len(tuning.timed) >= 3, f.explain(x)
    assert all(r.measured is None or 1e-6 < r.measured < 1 for r in tuning.rows), str(tuning)
    f.keep_tuning(file)
    g = compiled(SOFTMAX, tuned=file)
    torch.testing.assert_close(g(x).double(), wide_softmax(x), rtol=2e-5, atol=1e-9)
    assert f"{tuning.chosen}: chosen in" in g.explain(x)


def test_an_index_out_of_range_is_an_error_where_checked() -> None:
    text = "op pick(x: f32[N], at: i64[M]) -> (y: f32[M]) { y[m] = x[at[m]] }"
    f = compiled(text, checked=True)
    at = torch.tensor([0, 3], device="cuda")
    assert f(normal(4), at).shape == (2,)
    with pytest.raises(pf.ArgumentError, match="out of range"):
        f(normal(4), at + 1)
        torch.cuda.synchronize()
