"""Loops that read far apart: what gcc makes of their rests takes no time to compile."""

from __future__ import annotations

import platform
import resource
import subprocess
from pathlib import Path

import pytest
from equivalence import assert_compiled, cpu_source
from pace import in_time

from polyfuse.runtime.toolchain.compiler import find_compiler, flags_for

REDUCED = """op f(x: bool[64, 64], t: f32[64, 64], w: f32[64, 64]) -> (r: f32[64]) {
  a[i] = any[k in 0..64](x[k, i + k - 2] if 0 <= i + k - 2 < 64 else true) for i in 0..64
  r[i] = (t[i, i] + w[i, (i + 3) % 64]) if a[i] else (t[i + 2, i] if 0 <= i + 2 < 64 else 1.0)
}"""
DIAGONALS = """op f(m: bool[9, 63], t: f32[66, 64], w: f32[66, 64]) -> (r: f32[63]) {
  a[i] = all[k](m[k, i])
  r[i] = t[i, i] + w[i, i] if a[i] else t[i + 2, i] for i in 0..63
}"""
PROGRAMS = {"reduced": REDUCED, "diagonals": DIAGONALS}


def seconds_for(source: str, folder: Path, *flags: str) -> float:
    """Of the processor, to compile a source for a machine that may be another one."""
    (folder / "k.cpp").write_text(source)
    own = [f for f in flags_for(source, find_compiler()) if not f.startswith("-march")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(["g++", *own, *flags, "k.cpp", "-o", "k.so"], cwd=folder, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86")
@pytest.mark.skipif(find_compiler().kind != "gcc", reason="what gcc makes of loops")
@pytest.mark.machine("zen5")
@pytest.mark.parametrize("name", PROGRAMS)
def test_they_are_soon_compiled(name: str, tmp_path: Path) -> None:
    source = cpu_source(PROGRAMS[name])
    assert in_time(seconds_for(source, tmp_path, "-march=x86-64-v4"), 1.0)


@pytest.mark.machine("zen3")
def test_only_loops_that_read_far_apart_are_kept() -> None:
    """A vector has several elements of what lies close together."""
    text = "op f(x: {}[M, {}]) -> (y: {}[M]) {{ y[i] = x[i, 0] + x[i, 1] }}"
    assert "PF_IVDEP PF_ROLLED\n" in cpu_source(text.format("f32", 17, "f32"), M=61)
    assert "PF_IVDEP PF_ROLLED\n" not in cpu_source(text.format("f32", 16, "f32"), M=61)
    assert "PF_IVDEP PF_ROLLED\n" in cpu_source(text.format("f64", 9, "f64"), M=61)


@pytest.mark.parametrize("name", PROGRAMS)
def test_their_values(name: str) -> None:
    assert_compiled(PROGRAMS[name])
