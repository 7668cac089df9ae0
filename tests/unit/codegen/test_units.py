"""A source in several translation units: the same library, made by several compilers at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_parallel_lowering import ROOT, alive, blocks, compilation, eventually

import polyfuse as pf
from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.codegen.cpu.units import units_of
from polyfuse.diagnostics import ToolchainError
from polyfuse.driver.pipeline import Watch
from polyfuse.options import Options
from polyfuse.runtime.toolchain import compiler as toolchain
from polyfuse.support.progress import Progress, followed

# Independent updates, side by side in packs; all but the first call its code.
UPDATES = "\n".join(
    [
        f"op f({', '.join(f'inout x{k}: f32[N{k}]' for k in range(8))}, g: f32) {{",
        *(f"  x{k}[i] = x{k}[i] - g * tanh(x{k}[i])" for k in range(8)),
        "}",
    ]
)


def block_source() -> str:
    low = compilation(blocks(5)).lowered(Watch(Options()))
    return emit_together([Request(low.kernels, copied=low.copied)])[0].source


def exported(unit: str) -> set[str]:
    """Functions with a body that a unit exports."""
    words = unit.split("PF_EXPORT void ")[1:]
    return {w.partition("(")[0] for w in words if w.partition(")")[2].lstrip().startswith("{")}


@pytest.mark.parametrize("count", [2, 3, 100])
def test_every_function_is_in_one_unit(count: int) -> None:
    source = block_source()
    units = units_of(source, count)
    assert 2 <= len(units) <= count
    names = [exported(u) for u in units]
    assert set.union(*names) == exported(source)
    assert sum(map(len, names)) == len(exported(source))
    assert units == units_of(source, count)


@pytest.mark.parametrize(
    "source",
    [
        "",
        'extern "C" int f(int x) { return x + 1; }\n',
        "#define PF_EXPORT extern\nint first;\nPF_EXPORT void f(int x) {\n}\nPF_EXPORT void g(int x) {\n}\n",
        "#define PF_EXPORT extern\nPF_EXPORT void f(int x) {\n}\nint last;\nPF_EXPORT void g(int x) {\n}\n",
        "#define PF_EXPORT extern\nPF_EXPORT void f(int x) {\n}\n",
    ],
)
def test_other_sources_are_one_unit(source: str) -> None:
    assert units_of(source, 8) == [source]


def results(
    program: str, folder: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, *arrays: Any
) -> list[Any]:
    """Of a program compiled by so many processes at most."""
    monkeypatch.setenv("POLYFUSE_JOBS", str(jobs))
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(folder / f"jobs{jobs}"))
    monkeypatch.setattr(toolchain, "UNIT_CHARS", 100)
    counts: list[int] = []

    def counted(source: str, count: int) -> list[str]:
        units = units_of(source, count)
        counts.append(len(units))
        return units

    monkeypatch.setattr(toolchain, "units_of", counted)
    given = [np.array(a) if np.ndim(a) else a for a in arrays]
    found = pf.compile(program, target="cpu", layers=("loop", "pack"))(*given)
    assert (max(counts) > 1) == (jobs > 1)
    made = [] if found is None else list(found) if isinstance(found, tuple) else [found]
    return [np.asarray(a).tobytes() for a in (*given, *made)]


def test_results_are_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(33, 17)).astype("f4"), rng.normal(size=(17, 17)).astype("f4")
    updates = [rng.normal(size=n).astype("f4") for n in (5, 7, 0, 1, 40, 40, 3, 9)]
    for program, arrays in ((blocks(5), (x, w)), (UPDATES, (*updates, 0.5))):
        one = results(program, tmp_path, monkeypatch, 1, *arrays)
        assert results(program, tmp_path, monkeypatch, 4, *arrays) == one


def compiler(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch | None) -> str:
    """A program that acts for the compiler, and runs it otherwise."""
    path = folder / "cxx"
    path.write_text(f'#!/bin/sh\n{body}\nexec g++ "$@"\n')
    path.chmod(0o755)
    if monkeypatch is not None:
        monkeypatch.setenv("CXX", str(path))
        monkeypatch.setenv("POLYFUSE_JOBS", "4")
        monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(folder / "cache"))
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.setattr(toolchain, "UNIT_CHARS", 100)
    return str(path)


def kept(folder: Path) -> list[list[str]]:
    entries = (folder / "cache" / "entries").glob("*/*")
    return [sorted(p.name for p in x.iterdir()) for x in entries]


def test_a_part_that_fails_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = 'case "$*" in *kernel_0.cpp*) echo "no space"; exit 3;; *kernel_1.cpp*) sleep 300;; esac'
    compiler(tmp_path, fail, monkeypatch)
    start = time.monotonic()
    with pytest.raises(ToolchainError, match=r"(?s)status 3.*no space") as refused:
        toolchain.compile_shared(block_source())
    assert refused.value.code == "PF702" and time.monotonic() - start < 120
    assert kept(tmp_path) == [["manifest.json", "probe.json"]]
    assert not list(tmp_path.glob("polyfuse-work-*"))


def test_parts_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(tmp_path, "", monkeypatch)
    told: list[Progress] = []
    toolchain.find_compiler()
    source = block_source()
    with followed(told.append):
        path = toolchain.compile_shared(source)
    assert path.is_file() and len(kept(tmp_path)) == 2
    parts = told[0].total
    assert [(p.phase, p.done) for p in told] == [("C++ parts compiled", k + 1) for k in range(parts)]
    assert parts > 1


INTERRUPTED = """
from test_units import block_source
from polyfuse.runtime.toolchain import compiler as toolchain
toolchain.UNIT_CHARS = 100
toolchain.find_compiler()
source = block_source()
print("going", flush=True)
toolchain.compile_shared(source)
"""


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    body = f'case "$*" in *kernel_*.cpp*) echo $$ >> {pids}; sleep 300;; esac'
    env = {
        **os.environ,
        "CXX": compiler(tmp_path, body, None),
        "POLYFUSE_JOBS": "4",
        "POLYFUSE_CACHE_DIR": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(
            map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "helpers", *Path(__file__).parents[1].iterdir()))
        ),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "going\n", process.stderr.read()
    assert eventually(lambda: pids.is_file() and len(pids.read_text().split()) > 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0 and "KeyboardInterrupt" in errors
    started = {int(word) for word in pids.read_text().split()}
    assert eventually(lambda: not alive(started))
    assert kept(tmp_path) == [["manifest.json", "probe.json"]]
    assert not list(tmp_path.glob("polyfuse-work-*")) and not list(tmp_path.glob("cache/staging/*"))
