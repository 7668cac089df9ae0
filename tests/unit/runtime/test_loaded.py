"""Compiled libraries are in the process as long as something uses them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from forked import right_in_child

import polyfuse as pf
from polyfuse.driver import compiled
from polyfuse.runtime.cpu import fast_path, launcher
from polyfuse.runtime.toolchain.compiler import load_kernels
from polyfuse.runtime.toolchain.sanitizers import sanitized

MAPS = Path("/proc/self/maps")
pytestmark = [
    pytest.mark.skipif(not MAPS.exists(), reason="the system does not tell what is mapped"),
    pytest.mark.skipif(sanitized(), reason="libraries stay, for reports"),
]


def mappings() -> int:
    gc.collect()
    return sum("kernel.so" in line for line in MAPS.read_text().splitlines())


def scaled(factor: float) -> compiled.Compiled:
    return pf.compile(f"op f(x: f32[N]) -> (y: f32[N]) {{ y[i] = x[i] * {factor!r} }}")


@pytest.fixture(autouse=True, scope="module")
def process_is_warm() -> None:
    """What stays for good is there."""
    scaled(0.5)(np.ones(5, np.float32))


@pytest.mark.parametrize("in_c", [True, False], ids=["launcher", "no launcher"])
def test_functions_made_and_dropped_leave_no_mappings(in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_c:
        monkeypatch.setattr(launcher.Launcher, "get", classmethod(lambda cls: None))
    x, out, before = np.ones(5, np.float32), np.ones(5, np.float32), mappings()
    for k in range(6):
        f = scaled(k + 0.25 + in_c)
        for _ in range(3):
            assert np.all(f(x) == k + 0.25 + in_c)
            f(x, out=out)
        f.bind(x)()
        f.built(x)
        del f
        assert mappings() == before


def test_they_go_without_the_garbage_collector() -> None:
    before = mappings()
    gc.disable()
    try:
        f = scaled(1.75)
        f(np.ones(5, np.float32))
        del f
        assert sum("kernel.so" in line for line in MAPS.read_text().splitlines()) == before
    finally:
        gc.enable()


def test_a_bound_call_keeps_what_it_runs() -> None:
    before = mappings()
    g = scaled(2.75).bind(np.ones(5, np.float32))
    assert mappings() > before
    assert np.all(g() == 2.75)
    del g
    assert mappings() == before


def test_a_prepared_call_keeps_what_it_runs() -> None:
    x, y = np.ones(5, np.float32), np.empty(5, np.float32)
    before = mappings()
    call = scaled(2.75).built(x).executable.prepare()
    assert mappings() > before
    call.buffers[0], call.buffers[1] = x.ctypes.data, y.ctypes.data
    call.check()
    assert np.all(y == 2.75)
    del call
    assert mappings() == before


def test_functions_of_one_library_need_not_go_together() -> None:
    x, before = np.ones(5, np.float32), mappings()
    first, second = scaled(3.75), scaled(3.75)
    first(x), second(x)
    del first
    assert np.all(second(x) == 3.75)
    assert mappings() > before
    del second
    assert mappings() == before


def test_a_call_on_another_thread_ends_first() -> None:
    """The function's last name goes while kernels run."""
    x, before = np.full(1 << 20, 0.5, np.float32), mappings()
    steps = "; ".join(f"t{k + 1}[i] = tanh(t{k}[i])" for k in range(20))
    f = pf.compile(f"op f(x: f32[N]) -> (y: f32[N]) {{ t0[i] = x[i] * 1.5; {steps}; y[i] = t20[i] }}")
    expected = f(x)
    begun, results = threading.Event(), list[object]()

    def call(f: compiled.Compiled) -> None:
        begun.set()
        results.append(f(x))

    threads = [threading.Thread(target=call, args=(f,)) for _ in range(2)]
    for t in threads:
        t.start()
    begun.wait()
    del f
    for t in threads:
        t.join()
    threads.clear()
    assert all(np.array_equal(r, expected) for r in results)
    assert mappings() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_may_drop_what_its_parent_uses() -> None:
    x = np.ones(5, np.float32)
    f = scaled(4.75)
    f(x)
    held = [f]
    del f

    def drops() -> bool:
        before = mappings()
        held.clear()
        return mappings() < before

    assert right_in_child(drops)
    assert np.all(held[0](x) == 4.75)


def test_a_process_ends_while_a_thread_is_in_a_kernel() -> None:
    text = """
import threading, numpy as np, polyfuse as pf
f = pf.compile("op f(x: f32[N]) -> (y: f32[N]) { y[i] = tanh(x[i] * 5.75) }")
x = np.ones(1 << 20, np.float32)
f(x)
def run(f=f):
    while True:
        f(x)
threading.Thread(target=run, daemon=True).start()
del f
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=300)


def test_a_function_of_many_shapes_keeps_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MOST_INSTANCES", 3)
    monkeypatch.setattr(fast_path, "MOST_LAYOUTS", 2)
    f, before, most = scaled(6.75), mappings(), 0
    for n in range(8, 16):
        assert np.all(f(np.ones(n, np.float32)) == 6.75)
        most = most or mappings() - before  # those of one library
    assert most < mappings() - before <= 5 * most
    assert np.all(f(np.ones(8, np.float32)) == 6.75)


def test_a_function_of_ctypes_keeps_its_library() -> None:
    before = mappings()
    library = load_kernels('extern "C" int pf_f() { return 7; }')
    function = library["pf_f"]
    del library
    assert function() == 7
    del function
    assert mappings() == before
