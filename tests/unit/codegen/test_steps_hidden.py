"""Lanes that load a power of two apart: gcc makes vectors where it does not know how far."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from equivalence import assert_compiled, cpu_source

import polyfuse as pf
from polyfuse.runtime.toolchain.compiler import find_compiler, flags_for

COLUMN = "op f(x: f32[T, H]) -> (y: f32[T]) where H >= 4 { y[t] = tanh(x[t, 3]) }"
# A minimum over the outer loop: lanes update elements that lie a row apart.
UPDATED = """op f(x: f32[256, 64, 64]) -> (y: f32[64, 64]) {
  z[c, a, b] = tanh(x[a, b, c])
  y[c, b] = min[a](z[c, a, b] / (1.5 + abs(x[a, b, c])))
}"""
STEP = re.compile(r"\bstep(\d+)\b")


def steps(text: str, **sizes: int) -> set[int]:
    return {int(n) for n in STEP.findall(cpu_source(text, **sizes))}


@pytest.mark.machine("zen5")
@pytest.mark.parametrize(
    ("width", "hidden"), [(16, False), (32, True), (512, True), (500, False), (4096, True), (8192, False)]
)
def test_powers_of_two_beyond_a_vector_are_hidden(width: int, hidden: bool) -> None:
    """gcc takes what lies more than 4096 elements apart for a stride by itself."""
    assert steps(COLUMN, T=1000, H=width) == ({width} if hidden else set())


def test_short_loops_are_written_out_before() -> None:
    assert steps(COLUMN, T=16, H=512) == set()


def test_steps_of_strided_arguments_are_known_at_run_time_only() -> None:
    f = pf.compile(COLUMN, target="cpu")
    x = np.linspace(-2, 2, 1000 * 1024, dtype=np.float32).reshape(1000, 1024)[:, :512]
    np.testing.assert_allclose(f(x), np.tanh(x[:, 3]), rtol=1e-5)
    assert not STEP.search(f.built(x).code.source)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86")
@pytest.mark.skipif(find_compiler().kind != "gcc", reason="what gcc makes of loops")
@pytest.mark.machine("zen5")
def test_gcc_makes_vectors_of_them(tmp_path: Path) -> None:
    source = cpu_source(COLUMN, T=1000, H=512)
    (tmp_path / "k.cpp").write_text(source)
    own = [f for f in flags_for(source, find_compiler()) if not f.startswith("-march")]
    run = ["g++", *own, "-march=x86-64-v4", "-fopt-info-vec-optimized", "k.cpp", "-o", "k.so"]
    told = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True).stderr
    lines = source.splitlines()
    place = next(k for k, line in enumerate(lines) if STEP.search(line) and "PF_STEP" not in line)
    loop = max(k for k in range(place) if lines[k].lstrip().startswith("for ("))
    assert f"k.cpp:{loop + 1}:" in told


@pytest.mark.machine("zen5")
def test_it_is_told() -> None:
    f = pf.compile(COLUMN, target="cpu")
    x = np.zeros((1000, 512), np.float32)
    assert "+ lanes x: loaded one by one for vectors" in f.explain(x)
    assert "lanes x" not in f.explain(np.zeros((1000, 500), np.float32))


def test_values() -> None:
    assert_compiled(COLUMN, T=100, H=64)
    assert_compiled(UPDATED)
