"""Kinds of machine that decisions are made for, whatever machine runs the tests.

    @pytest.mark.machine("zen3")          a test of a decision says which machine it speaks of
    pytest --machine zen3 tests/unit      any other test, as if it ran on such a machine

A kind has what decisions see of a processor: its features, family, caches, two threads and no measured
rates.  With `--machine` its code is compiled for such a processor too; where the processor at hand has no
AVX-512, that is emulated (`avx512`).  `--decisions` leaves the tests that look at decisions or at texts and
name no machine: `make machines` runs those as on other kinds.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from avx512 import avx512_flags, can_emulate

from polyfuse import estimates, targets
from polyfuse.cost.cpu_device import KIB, MIB
from polyfuse.runtime import toolchain
from polyfuse.runtime.machine import CacheSizes

AVX2 = frozenset({"avx", "avx2", "fma", "f16c", "bmi2"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
BYTES, PAIRS = "avx512_vnni", "avx512_bf16"
THREADS = 2
# What gcc is told beside `-march=x86-64-v4`.
_FLAG = {BYTES: "-mavx512vnni", PAIRS: "-mavx512bf16"}


@dataclass(frozen=True, slots=True)
class Machine:
    """What decisions see of a processor."""

    features: frozenset[str]
    family: tuple[str, int]
    caches: CacheSizes

    @property
    def flags(self) -> tuple[str, ...]:
        """What makes g++ compile for it, on this machine; after all other flags."""
        if "avx512f" not in self.features:
            return ("-march=x86-64-v3",)
        if self.features <= toolchain.cpu_features():
            return ("-march=x86-64-v4", *(flag for name, flag in _FLAG.items() if name in self.features))
        return avx512_flags(PAIRS in self.features)


def _caches(l1: int, l2: int, l3: int, cores: int) -> CacheSizes:
    return CacheSizes(l1 * KIB, l2 * KIB, l3 * MIB, 64, cores)


MACHINES = {
    "haswell": Machine(AVX2, ("GenuineIntel", 6), _caches(32, 256, 6, 4)),
    "zen3": Machine(AVX2, ("AuthenticAMD", 25), _caches(32, 512, 32, 8)),
    "skylake": Machine(AVX512, ("GenuineIntel", 6), _caches(32, 1024, 22, 16)),
    "icelake": Machine(AVX512 | {BYTES}, ("GenuineIntel", 6), _caches(48, 1280, 54, 36)),
    "zen4": Machine(AVX512 | {BYTES, PAIRS}, ("AuthenticAMD", 25), _caches(32, 1024, 32, 8)),
    "zen5": Machine(AVX512 | {BYTES, PAIRS}, ("AuthenticAMD", 26), _caches(48, 1024, 32, 8)),
}


# How tests get at decisions and texts.
_LOOKS = re.compile(
    r"\b(source|cpu_source|code|built|explain|decisions|told|why|ir|lower|estimate|core|this_core|table_cpu)\b"
)


def looks_at_decisions(test: pytest.Item) -> bool:
    """Does a test look at what was decided or at a text, without naming a machine?"""
    function = getattr(test, "function", None)
    if function is None or test.get_closest_marker("machine"):
        return False
    return bool(_LOOKS.search(inspect.getsource(function)))


@contextmanager
def decided_for(name: str) -> Iterator[None]:
    """Decisions meanwhile are those for a machine of this kind; compilers are as they are."""
    kind = MACHINES[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimates, "cpu_features", lambda: kind.features)
        patch.setattr(estimates, "cpu_family", lambda: kind.family)
        patch.setattr(estimates, "cache_sizes", lambda: kind.caches)
        for module in (estimates, targets):
            patch.setattr(module, "default_threads", lambda: THREADS)
        patch.setattr(estimates, "known", lambda nbytes, threads: None)
        patch.setattr(estimates, "known_op_rates", lambda threads: None)
        yield


@contextmanager
def compiled_with(flags: tuple[str, ...]) -> Iterator[None]:
    """The g++ on the PATH takes these flags for `-march=native` meanwhile."""
    real = shutil.which("g++")
    assert real is not None, "needs g++"
    words = [f'for word do shift; [ "$word" = -march=native ] && set -- "$@" {shlex.join(flags)}']
    words += ['|| set -- "$@" "$word"; done']
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        program = Path(folder) / "g++"
        program.write_text(f'#!/bin/sh\n{" ".join(words)}\nexec {shlex.quote(real)} "$@"\n')
        program.chmod(0o755)
        patch.setenv("PATH", folder, prepend=os.pathsep)
        patch.delenv("CXX", raising=False)
        yield


@contextmanager
def as_on(name: str) -> Iterator[None]:
    """Decisions and code meanwhile are those for a machine of this kind."""
    if not can_emulate():
        pytest.exit(f"--machine {name} needs gcc for a processor with AVX2", returncode=2)
    kind = MACHINES[name]
    with decided_for(name), compiled_with(kind.flags), pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "cpu_features", lambda: kind.features)
        yield
