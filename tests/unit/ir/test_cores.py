"""Cores as the processor's features and family tell them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyfuse.driver import targets
from polyfuse.ir.cpu_core import AVX2

Processor = Callable[[frozenset[str], tuple[str, int]], None]
WIDE = frozenset({"avx2", "avx512f"})


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    def of(features: frozenset[str], family: tuple[str, int]) -> None:
        monkeypatch.setattr(targets, "cpu_features", lambda: features)
        monkeypatch.setattr(targets, "cpu_family", lambda: family)

    return of


def test_zen_4_computes_with_vectors_of_64_bytes_in_halves(processor: Processor) -> None:
    processor(WIDE, ("AuthenticAMD", 25))
    core = targets.this_core()
    assert (core.vector_bytes, core.registers, core.units, core.loads) == (64, 32, 1, 1)
    for family in (("AuthenticAMD", 26), ("GenuineIntel", 6), ("", 0)):
        processor(WIDE, family)
        core = targets.this_core()
        assert (core.vector_bytes, core.units, core.loads) == (64, 2, 2)


def test_vectors_of_32_bytes_are_whole_in_every_family(processor: Processor) -> None:
    processor(frozenset({"avx2"}), ("AuthenticAMD", 25))
    core = targets.this_core()
    assert (core.vector_bytes, core.units, core.loads) == (AVX2.vector_bytes, AVX2.units, AVX2.loads)


def test_assumed_rates_have_a_common_clock(processor: Processor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the operations in a cycle, as many cycles in a second."""
    monkeypatch.setattr(targets, "known", lambda size, threads: None)
    processor(WIDE, ("AuthenticAMD", 26))
    whole = targets.this_cpu(2)
    processor(WIDE, ("AuthenticAMD", 25))
    halves = targets.this_cpu(2)
    assert not halves.measured
    assert halves.operations == whole.operations / 2
    assert halves.cycle_s == pytest.approx(whole.cycle_s)
