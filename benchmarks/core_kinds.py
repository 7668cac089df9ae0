"""Kinds of core that code is made for, whatever machine makes it.

A kind has what decisions see of a processor: its features, family, caches, two threads and no measured
rates.  Within `decided_for("zen3")` the compiler decides as on such a machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from polyfuse.cost.cpu_device import KIB, MIB
from polyfuse.driver import targets
from polyfuse.runtime.machine.probe import CacheSizes

AVX2 = frozenset({"avx", "avx2", "fma", "f16c", "bmi2"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
BYTES, PAIRS = "avx512_vnni", "avx512_bf16"
THREADS = 2


@dataclass(frozen=True, slots=True)
class CoreKind:
    """What decisions see of a processor."""

    features: frozenset[str]
    family: tuple[str, int]
    caches: CacheSizes


def _caches(l1: int, l2: int, l3: int, cores: int) -> CacheSizes:
    return CacheSizes(l1 * KIB, l2 * KIB, l3 * MIB, 64, cores)


KINDS = {
    "haswell": CoreKind(AVX2, ("GenuineIntel", 6), _caches(32, 256, 6, 4)),
    "zen3": CoreKind(AVX2, ("AuthenticAMD", 25), _caches(32, 512, 32, 8)),
    "skylake": CoreKind(AVX512, ("GenuineIntel", 6), _caches(32, 1024, 22, 16)),
    "icelake": CoreKind(AVX512 | {BYTES}, ("GenuineIntel", 6), _caches(48, 1280, 54, 36)),
    "zen4": CoreKind(AVX512 | {BYTES, PAIRS}, ("AuthenticAMD", 25), _caches(32, 1024, 32, 8)),
    "zen5": CoreKind(AVX512 | {BYTES, PAIRS}, ("AuthenticAMD", 26), _caches(48, 1024, 32, 8)),
}


def answers_of(name: str) -> dict[str, Callable[..., object]]:
    """What `driver.targets` asks of a machine, by its functions, and what one of this kind answers."""
    kind = KINDS[name]
    return {
        "cpu_features": lambda: kind.features,
        "cpu_family": lambda: kind.family,
        "cache_sizes": lambda: kind.caches,
        "default_threads": lambda: THREADS,
        "known": lambda nbytes, threads: None,
        "known_op_rates": lambda threads: None,
    }


@contextmanager
def decided_for(name: str) -> Iterator[None]:
    """Decisions meanwhile are those for a machine of this kind; compilers are as they are."""
    with mock.patch.multiple(targets, **answers_of(name)):
        yield
