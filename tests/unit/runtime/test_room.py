"""Tensors that memory or 64 bits cannot hold: one located message, on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.diagnostics import HostMemoryError
from polyfuse.runtime.cpu.memory import Arena
from polyfuse.runtime.machine import room

TARGETS = ("cpu", "interpret", "emulate")
WIDE = "op f(x: f32[N]) -> (y: f32[N, 1000000000000000]) { y[i, j] = x[i] }"
SPREAD = "op f(x: f32[N]) -> (y: f32[N, N]) { y[i, j] = x[i] + x[j] }"
KEPT = """op f(x: f32[N]) -> (y: f32[N]) {
  t[i, j] = sum[k](x[k] * x[(i + j) % N]) for i in 0..N, j in 0..1000000000000
  y[i] = sum[j in 0..1000000000000](t[(i + 1) % N, 1000000000000 - 1 - j])
}"""


def ones(n: int) -> np.ndarray[Any, Any]:
    return np.ones(n, np.float32)


@pytest.mark.parametrize("target", TARGETS)
def test_a_result_that_is_too_large(target: Any) -> None:
    with pytest.raises(
        pf.ArgumentError, match=r"'y' of shape \(5, 10+\) takes 20 PB; this machine has"
    ) as error:
        pf.compile(WIDE, target=target)(ones(5))
    assert error.value.code == "PF423" and isinstance(error.value, MemoryError)
    (found,) = error.value.diagnostics
    assert found.span is not None and (found.span.line, found.span.column) == (1, 21)


@pytest.mark.parametrize("target", TARGETS)
def test_a_temporary_that_is_too_large(target: Any) -> None:
    with pytest.raises(HostMemoryError, match=r"a temporary, 't' of shape \(3, 10+\) takes 12 TB") as error:
        pf.compile(KEPT, target=target, layers=())(ones(3))
    assert error.value.code == "PF423"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "extents, n, code",
    [
        ("N, 4611686018427387904, 8", 5, "PF424"),
        ("N, 9223372036854775807", 5, "PF424"),
        ("N, 9223372036854775807, 2", 5, "PF424"),
        ("N, 4611686018427387904", 5, "PF424"),
        ("N, 4611686018427387904, 8", 0, "PF424"),  # as NumPy
        ("N, N * N * N * N * N", 10_000, "PF424"),
        ("N, 9223372036854775807", 1, "PF362"),
    ],
)
def test_extents_near_the_limit_of_64_bits(target: Any, extents: str, n: int, code: str) -> None:
    indices = ["i", "j", "k"][: extents.count(",") + 1]
    text = f"op f(x: i8[N]) -> (y: i8[{extents}]) {{ y[{', '.join(indices)}] = x[i] }}"
    with pytest.raises(pf.PolyfuseError) as error:
        pf.compile(text, target=target)(np.ones(n, np.int8))
    (found,) = error.value.diagnostics
    assert (found.code, found.span is not None and found.span.line) == (code, 1)


def test_ranges_and_temporaries_beyond_64_bits() -> None:
    operator = pf.parse("op f(x: f32[N]) -> (y: f32[N]) { y[i] = sum[k in 0..N*N*N*N](x[i]) }").op()
    with pytest.raises(pf.ArgumentError, match="range of 'k' has the bound") as error:
        operator.specialize(N=100_000)
    assert error.value.code == "PF424"
    text = "op f(x: f32[N]) -> (s: f32) { t[i, j, k] = x[i] * x[j] * x[k]\n s = sum[i, j, k](t[i, j, k]) }"
    with pytest.raises(pf.ArgumentError, match="'t' of shape") as error:
        pf.parse(text).op().specialize(N=3_000_000)
    assert error.value.code == "PF424"


def test_memory_that_is_given_counts_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "machine_memory", lambda: 3000)
    f = pf.compile(SPREAD, target="cpu")
    f(ones(20))
    with pytest.raises(HostMemoryError, match=r"takes 3\.6 kB; this machine has 3 kB"):
        f(ones(30))
    f(ones(30), out=np.empty((30, 30), np.float32))


def test_memory_that_runs_out_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on the short way of a call that went well before."""
    f = pf.compile(SPREAD, target="cpu")
    for _ in range(2):
        f(ones(1000))

    def full(self: Arena, size: int) -> None:
        raise MemoryError(f"cannot map {size} bytes")

    Arena.get().trim()
    monkeypatch.setattr(Arena, "_map", full)
    for n in (1000, 1001):
        with pytest.raises(HostMemoryError, match=rf"the result 'y' of shape \({n}, {n}\) takes 4"):
            while True:  # blocks that the launcher keeps are used first
                kept.append(f(ones(n)))
    kept.clear()


kept: list[object] = []


def test_what_a_container_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    assert room.machine_memory() > 0
    monkeypatch.setattr(room, "usable_memory", lambda: 1 << 20)
    assert room.machine_memory() == 1 << 20
