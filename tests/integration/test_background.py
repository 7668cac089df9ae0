"""`compile="async"`: calls do not wait for their kernels, and have the same results with and without them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from open_calls import check_sizes, random_sizes
from programs import random_program
from thinned import thinned

import polyfuse as pf
from polyfuse.cost.open_gain import WORTH, OpenGain
from polyfuse.driver import background, compiled
from polyfuse.driver.pipeline import Built
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.runtime.numpy_baseline import NumpyKernels
from polyfuse.runtime.numpy_text import Unsupported

Array = np.ndarray[Any, np.dtype[Any]]
ROWS = "op f(x: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = x[t, h] - max[k](x[t, k]) }"


def grid(*shape: int) -> Array:
    return ((np.arange(np.prod(shape)) * 7) % 31 - 15).astype(np.float32).reshape(shape)


def rows(x: Array) -> Array:
    return np.asarray(x - x.max(1, keepdims=True))


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not there():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def drained() -> Iterator[None]:
    """Nothing is compiled any more when a test has ended."""
    yield
    until(lambda: not background.Background.get()._tasks)


@pytest.fixture
def gate(drained: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Compilations wait until it is set."""
    opened, build = threading.Event(), compiled.build

    def late(*args: Any, **more: Any) -> Any:
        opened.wait(120)
        return build(*args, **more)

    monkeypatch.setattr(compiled, "build", late)
    yield opened
    opened.set()


@pytest.mark.parametrize("target", ["cpu", "emulate"])
@pytest.mark.parametrize("sizes", ["fixed", "open"])
def test_a_call_does_not_wait_for_its_kernels(sizes: Any, target: Any, gate: threading.Event) -> None:
    f = pf.compile(ROWS, target=target, sizes=sizes, compile="async")
    for shape in ((3, 5), (4, 5), (3, 5)):
        np.testing.assert_array_equal(f(grid(*shape)), rows(grid(*shape)))
    assert not f.variants
    gate.set()
    until(lambda: len(f.variants) == (1 if sizes == "open" else 2))
    for shape in ((3, 5), (4, 5)):
        np.testing.assert_array_equal(f(grid(*shape)), rows(grid(*shape)))
    until(lambda: not f._pending._found)
    assert not any(isinstance(i.built.executable, NumpyKernels) for i in f._instances.values())


@pytest.mark.parametrize("sizes", ["fixed", "open"])
def test_threads_that_meet_a_new_size_compile_once(
    sizes: Any, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, late = [], compiled.build
    monkeypatch.setattr(compiled, "build", lambda *a, **more: made.append(a) or late(*a, **more))
    f, start, right = pf.compile(ROWS, sizes=sizes, compile="async"), threading.Barrier(4), []

    def call() -> None:
        start.wait()
        right.append((f(grid(5, 3)) == rows(grid(5, 3))).all())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    gate.set()
    until(lambda: not f._pending._found and bool(f.variants))
    assert right == [True] * 4 and len(made) == len(f.variants) == 1


def test_results_and_parameters_are_written_where_the_caller_has_them(gate: threading.Event) -> None:
    text = """op f(inout p: f32[T], x: f32[T], a: f32 = 2.0) -> (y: f32[T]) {
      p[t] = p[t] + x[t]
      y[t] = a * x[t]
    }"""
    f = pf.compile(text, compile="async")
    p, y = grid(7), np.zeros(7, np.float32)
    assert f(p, grid(7), out=y) is y
    np.testing.assert_array_equal(p, 2 * grid(7))
    np.testing.assert_array_equal(y, 2 * grid(7))
    turned = np.asfortranarray(grid(4, 6))
    np.testing.assert_array_equal(pf.compile(ROWS, compile="async")(turned), rows(turned))


def test_kernels_with_open_sizes_run_shapes_whose_own_come_later(gate: threading.Event) -> None:
    gate.set()
    f = pf.compile(ROWS, sizes="open", compile="async")
    f(grid(3, 5))
    until(lambda: bool(f.variants))
    gate.clear()
    np.testing.assert_array_equal(f(grid(9, 11)), rows(grid(9, 11)))
    assert f._short.call((grid(8, 12),)) is not NotImplemented


def test_a_shape_that_is_called_often_has_kernels_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "EVERY", 2)
    monkeypatch.setattr(background, "OFTEN", 3)
    f = pf.compile(ROWS, sizes="open", compile="async", threads=1, specialise="often")
    f(grid(3, 5))
    until(lambda: bool(f.variants))
    for _ in range(20):
        np.testing.assert_array_equal(f(grid(6, 7)), rows(grid(6, 7)))
    until(lambda: len(f.variants) == 2)
    assert dict(f.variants[0].fixed) == {"T": 6, "H": 7} and not f.variants[0].open
    assert f.variants[0].why == "it is called often"
    until(lambda: not f._pending._found)
    f(grid(6, 7))
    assert not f._instances[f._key({"x": grid(6, 7)})].built.executable.plan.sizes  # type: ignore[union-attr]
    for shape in ((6, 7), (6, 8)):
        np.testing.assert_array_equal(f(grid(*shape)), rows(grid(*shape)))
        assert f._short.call((grid(*shape),)) is not NotImplemented


@pytest.mark.parametrize("calls", [12, inf])
def test_it_has_them_when_by_the_model_so_many_calls_repay_it(
    calls: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "EVERY", 2)
    monkeypatch.setattr(background, "OFTEN", 3)
    gain = OpenGain(3e-6, 1e-6, 2e-6 * calls if calls < inf else 1.0, ("stream",))
    gain = gain if calls < inf else replace(gain, fixed_s=3e-6)
    asked: list[object] = []
    monkeypatch.setattr(compiled, "gain_at", lambda *about: asked.append(about) or gain)
    f = pf.compile(ROWS, sizes="open", compile="async", threads=1)
    f(grid(3, 5))
    until(lambda: bool(f.variants))
    for _ in range(10):
        f(grid(6, 7))
        until(lambda: not f._pending._found)
    assert len(f.variants) == 1 and len(asked) == 1
    assert f"- specialise T = 6, H = 7: {gain}" in f.explain(grid(6, 7))
    for _ in range(6):
        f(grid(6, 7))
        until(lambda: not f._pending._found)
    assert len(asked) == 1
    if calls < inf:
        assert f.variants[0].why == str(gain) and not f.variants[1].why
        assert f"+ specialise T = 6, H = 7: {gain}" in f.explain(grid(6, 7))
    else:
        assert len(f.variants) == 1
    np.testing.assert_array_equal(f(grid(6, 7)), rows(grid(6, 7)))


def test_never_means_that_calls_are_not_counted() -> None:
    assert pf.compile(ROWS, compile="async", specialise="never")._frequent is None
    assert pf.compile(ROWS)._frequent is None  # no thread that nobody asked for
    with pytest.raises(pf.ArgumentError, match="PF490"):
        pf.compile(ROWS, specialise="always")  # type: ignore[arg-type]


def test_what_is_gained_follows_from_the_model_and_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORTH, "schedule", 2.0)
    f = pf.compile(ROWS, sizes="open", threads=2)
    f(grid(3, 5))
    (variant,) = f.variants
    about = variant.built.compilation

    def gain(rows: int, length: int, open: Built = variant.built) -> OpenGain:
        fixed = dict(zip(variant.open, (rows, length), strict=True))
        return background.gain_at(open, replace(about, sizes=fixed))

    small, large = gain(8, 40), gain(4096, 1000)
    assert large.fixed_s > 100 * small.fixed_s > 0 and "schedule" not in small.left
    without = gain(8, 40, replace(variant.built, decisions=()))
    assert "schedule" in without.left and without.open_s >= 2 * without.fixed_s
    assert without.fixed_s == small.fixed_s and without.calls < inf


def test_a_failure_is_told_once_and_calls_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **more: Any) -> Any:
        raise pf.ToolchainError("no compiler", code="PF720")

    monkeypatch.setattr(compiled, "build", fail)
    f = pf.compile(ROWS, compile="async")
    f(grid(3, 5))
    until(lambda: bool(f._pending._failures))
    with pytest.warns(pf.PolyfuseWarning, match="PF760: f could not be compiled .*: no compiler"):
        f(grid(3, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(f(grid(3, 5)), rows(grid(3, 5)))
    with pytest.raises(pf.ToolchainError):
        f.built(grid(3, 5))


def test_what_is_wrong_with_a_call_is_told_at_once(gate: threading.Event) -> None:
    text = "op f(x: f32[T], y: f32[T]) -> (z: f32) where T >= 3 { z = x[2] * y[T-1] }"
    f = pf.compile(text, compile="async")
    with pytest.raises(pf.ArgumentError, match="PF405"):
        f(grid(3), grid(4))
    with pytest.raises(pf.ArgumentError, match="PF407"):
        f(grid(2), grid(2))
    f = pf.compile(ROWS, sizes={"T": 3}, compile="async")
    with pytest.raises(pf.ArgumentError, match="PF515"):
        f(grid(4, 3))


def test_checked_kernels_and_stages_wait(gate: threading.Event) -> None:
    gate.set()
    text = "op f(x: f32[V], i: i32[T]) -> (y: f32[T]) { y[t] = x[i[t]] }"
    f = pf.compile(text, checked=True, compile="async")
    with pytest.raises(pf.ArgumentError, match="PF450"):
        f(grid(3), np.array([5], np.int32))
    f = pf.compile(ROWS, compile="async")
    assert "schedule" in f.explain(grid(3, 5)) and f.bind(grid(3, 5))() is not None
    assert len(f.variants) == 1


def test_a_process_that_ends_does_not_wait() -> None:
    text = """
        import time
        import numpy as np
        import polyfuse as pf
        from polyfuse.driver import compiled
        compiled.build = lambda *args, **more: time.sleep(100)
        f = pf.compile("op f(x: f32[T]) -> (y: f32[T]) { y[t] = 2.0 * x[t] }", compile="async")
        print(f(np.ones(3, np.float32)).sum())
    """
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, check=False, timeout=90
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "6.0\n", "") and time.monotonic() - start < 60


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_goes_on_with_what_was_asked_for(gate: threading.Event) -> None:
    f = pf.compile(ROWS, compile="async")
    f(grid(3, 5))
    child = os.fork()
    if not child:
        code = 1
        try:
            gate.set()
            f(grid(3, 5))
            until(lambda: bool(f.variants))
            code = 0 if (f(grid(3, 5)) == rows(grid(3, 5))).all() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_call_that_numpy_cannot_compute_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: NumpyKernels, arrays: Any) -> None:
        raise Unsupported("not so")

    monkeypatch.setattr(NumpyKernels, "run", fail)
    f = pf.compile(ROWS, compile="async")
    np.testing.assert_array_equal(f(grid(3, 5)), rows(grid(3, 5)))
    y = np.zeros((3, 5), np.float32)
    assert f(grid(3, 5), out=y) is y
    np.testing.assert_array_equal(y, rows(grid(3, 5)))


@pytest.mark.filterwarnings("ignore::polyfuse.PolyfuseWarning")
@pytest.mark.parametrize("seed", thinned(range(12), 3))
def test_random_programs_are_right_without_their_kernels(seed: int, gate: threading.Event) -> None:
    p = random_program(4000 + seed)
    graph = instantiate(parse_text(p.text), p.op)
    f = pf.compile(p.text, compile="async")
    many = list(random_sizes(graph, 4, seed, tries=200))
    threading.Timer(0.2, gate.set).start()  # for those that NumPy cannot compute
    check_sizes(f, graph, many, seed)
