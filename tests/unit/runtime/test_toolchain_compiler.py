"""The C++ compiler: found or missed with advice, its failures and hangs, what it makes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pace import in_time

from polyfuse.diagnostics import ToolchainError
from polyfuse.runtime.toolchain import compiler as toolchain

SOURCE = 'extern "C" int answer(int x) { return x + 40; }'
KINDS = [name for name in ("g++", "clang++") if shutil.which(name)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(toolchain, "_found", {})


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("name", KINDS)
def test_compile_and_load(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", name)
    compiler = toolchain.find_compiler()
    assert compiler.kind == ("clang" if "clang" in name else "gcc")
    assert compiler.version and compiler.machine
    assert set(toolchain.SHARED) <= set(compiler.flags)
    assert compiler.vector_bits in (128, 256, 512)
    assert toolchain.load_shared(SOURCE).answer(2) == 42
    path = toolchain.compile_shared(SOURCE)
    before = path.stat()
    start = time.process_time()
    assert toolchain.compile_shared(SOURCE) == path
    assert in_time(time.process_time() - start, 0.05)
    assert path.stat().st_ino == before.st_ino
    other = toolchain.compile_shared(SOURCE, extra_flags=("-DSOMETHING",))
    assert other != path


@pytest.mark.skipif("avx512f" not in toolchain.cpu_features(), reason="needs AVX-512")
def test_full_width_vectors_are_used() -> None:
    """gcc's default on these machines is half the register."""
    assert toolchain.find_compiler().vector_bits == 512
    code = 'extern "C" void f(float* y, const float* x) { for (int i = 0; i < 4096; ++i) y[i] = x[i] * 2; }'
    path = toolchain.compile_shared(code)
    if shutil.which("objdump"):
        assert "%zmm" in subprocess.run(["objdump", "-d", path], capture_output=True, text=True).stdout


def test_no_reassociation() -> None:
    """Rounding by a magic constant must survive the flags: (x + big) - big is a rounded x."""
    library = toolchain.load_shared('extern "C" float r(float x) { return (x + 12582912.f) - 12582912.f; }')
    library.r.restype, library.r.argtypes = ctypes.c_float, [ctypes.c_float]
    assert [library.r(x) for x in (0.4, 1.5, 2.6, -3.5)] == [0.0, 2.0, 3.0, -4.0]


def test_loading_leaves_denormals_alone() -> None:
    script = (
        "import numpy as np\n"
        "from polyfuse.runtime.toolchain.compiler import load_shared\n"
        "load_shared('extern \"C\" int f() { return 1; }')\n"
        "assert np.float32(1e-40) * np.float32(0.5) != 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toolchain.find_compiler()
    monkeypatch.setenv("PATH", str(tmp_path))  # the memo is per environment
    with pytest.raises(ToolchainError) as e:
        toolchain.compile_shared(SOURCE)
    assert e.value.code == "PF701"
    for advice in ("apt install", "dnf install", "brew", "xcode-select", "$CXX", "--target interpret"):
        assert advice in str(e.value)


def test_cxx_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("no-such-compiler-here", "'unbalanced", "/etc/passwd"):
        monkeypatch.setenv("CXX", value)
        with pytest.raises(ToolchainError, match="CXX") as e:
            toolchain.find_compiler()
        assert e.value.code == "PF701"


def test_cxx_with_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env g++")
    assert toolchain.find_compiler().command == ("env", "g++")
    assert toolchain.load_shared(SOURCE).answer(1) == 41


def test_refused_flags_are_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A compiler for another processor: no -march=native, no vector width."""
    body = (
        'case "$*" in *-march=native*|*-mprefer*) echo "unknown argument" >&2; exit 1;; esac\nexec g++ "$@"'
    )
    monkeypatch.setenv("CXX", str(script(tmp_path / "bin" / "g++", body)))
    flags = toolchain.find_compiler().flags
    assert "-march=native" not in flags and "-mprefer-vector-width=512" not in flags
    assert {"-O3", "-ffp-contract=fast", "-shared"} <= set(flags)
    assert toolchain.load_shared(SOURCE).answer(2) == 42


def test_sources_ask_for_flags() -> None:
    gcc = replace(toolchain.find_compiler(), kind="gcc", flags=("-O3",))
    source = f"// needs -fwrapv\n// needs -fschedule-insns\n// needs -fno-schedule-insns2\n{SOURCE}"
    windows = f"// needs -fno-predictive-commoning\n{SOURCE}"
    assert toolchain.flags_for(windows, gcc) == ("-O3", "-fno-predictive-commoning")
    assert toolchain.flags_for(windows, replace(gcc, kind="clang")) == ("-O3",)
    assert toolchain.flags_for(source, gcc) == ("-O3", "-fwrapv", "-fschedule-insns", "-fno-schedule-insns2")
    assert toolchain.flags_for(source, replace(gcc, kind="clang")) == ("-O3", "-fwrapv")
    assert toolchain.load_shared(source).answer(3) == 43


def test_broken_first_compiler_gives_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    script(bin_folder / "g++", "echo 'licence expired' >&2; exit 1")
    good = shutil.which("g++")
    script(bin_folder / "clang++", f'exec {good} "$@"')
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    assert toolchain.find_compiler().command == ("clang++",)


def test_compiler_that_cannot_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(script(tmp_path / "bin" / "cc", "echo 'licence expired' >&2; exit 1")))
    with pytest.raises(ToolchainError, match="licence expired") as e:
        toolchain.find_compiler()
    assert e.value.code == "PF702"


def test_error_output_is_shown_and_shortened(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="nonsense_name") as e:
        toolchain.compile_shared("int f() { return nonsense_name; }")
    assert e.value.code == "PF702"
    many = "\n".join(f"int f{i}() {{ return missing_{i}; }}" for i in range(400))
    with pytest.raises(ToolchainError, match="missing_0") as e:
        toolchain.compile_shared(many)
    assert "more characters" in str(e.value) and len(str(e.value)) < 12_000
    entries = list((tmp_path / "cache" / "entries").glob("*/*"))
    assert [sorted(p.name for p in x.iterdir()) for x in entries] == [["manifest.json", "probe.json"]]


@pytest.mark.parametrize("told", [True, False], ids=["told", "looked for"])
def test_hanging_compiler_is_killed_with_its_children(
    told: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The pipe to a grandchild that lives on must not keep us waiting either, whether or not the system can
    tell when a process ends."""
    if not told:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    note = tmp_path / "pid"
    hang = f"sleep 300 & echo $! > {note}; sleep 300"
    body = f'case "$*" in *-DHANG*) {hang};; esac\nexec g++ "$@"'
    monkeypatch.setenv("CXX", str(script(tmp_path / "bin" / "cxx", body)))
    toolchain.find_compiler()
    start = time.perf_counter()
    with pytest.raises(ToolchainError, match=r"0\.4 s") as e:
        toolchain.compile_shared(SOURCE, timeout_s=0.04, extra_flags=("-DHANG",))
    assert e.value.code == "PF703"
    assert time.perf_counter() - start < 60
    child = int(note.read_text())
    for _ in range(100):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.02)
    else:
        pytest.fail("the compiler's child is still running")
    assert not list((tmp_path / "cache" / "staging").iterdir())
    assert toolchain.load_shared(SOURCE).answer(2) == 42


def test_a_compiler_that_has_to_wait_is_not_out_of_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a loaded machine: only seconds of the processor count."""
    body = 'case "$*" in *-DWAIT*) sleep 1.5;; esac\nexec g++ "$@"'
    monkeypatch.setenv("CXX", str(script(tmp_path / "bin" / "cxx", body)))
    assert toolchain.load_shared(SOURCE, timeout_s=0.9, extra_flags=("-DWAIT",)).answer(2) == 42


def busy(passes: str) -> str:
    """A compiler that is busy without end unless its passes are switched off."""
    return f'case "$*" in *{passes}*) ;; *-DBUSY*) while :; do :; done;; esac\nexec g++ "$@"'


@pytest.mark.skipif("g++" not in KINDS, reason="these passes are gcc's")
def test_a_second_try_goes_without_passes_that_take_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", str(script(tmp_path / "bin" / "cxx", busy("-fno-tree-vrp"))))
    path = toolchain.compile_shared(SOURCE, timeout_s=0.5, extra_flags=("-DBUSY",))
    assert ctypes.CDLL(str(path)).answer(2) == 42
    assert "-fno-tree-vrp" in (path.parent / "manifest.json").read_text()
    start = time.process_time()
    assert toolchain.compile_shared(SOURCE, timeout_s=0.5, extra_flags=("-DBUSY",)) == path
    assert in_time(time.process_time() - start, 0.05)


def test_a_compiler_that_is_busy_for_too_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(script(tmp_path / "bin" / "cxx", busy("-fnothing"))))
    monkeypatch.setattr(toolchain, "PATIENCE", 600)  # a busy machine may give it little of the processor
    with pytest.raises(ToolchainError, match=r"0\.5 s of the processor") as e:
        toolchain.compile_shared(SOURCE, timeout_s=0.5, extra_flags=("-DBUSY",))
    assert e.value.code == "PF703"
    assert not list((tmp_path / "cache" / "staging").iterdir())


def test_compiler_killed_by_a_signal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    body = 'case "$*" in *-DKILL*) kill -9 $$;; esac\nexec g++ "$@"'
    monkeypatch.setenv("CXX", str(script(tmp_path / "bin" / "cxx", body)))
    with pytest.raises(ToolchainError, match="signal 9") as e:
        toolchain.compile_shared(SOURCE, extra_flags=("-DKILL",))
    assert e.value.code == "PF702" and "memory" in str(e.value)


def test_library_that_cannot_be_loaded() -> None:
    with pytest.raises(ToolchainError) as e:
        toolchain.load_shared("int nowhere(); int x = nowhere();")
    assert e.value.code == "PF704"


def test_changed_compiler_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = script(tmp_path / "bin" / "cxx", 'exec g++ "$@"')
    monkeypatch.setenv("CXX", str(path))
    first = toolchain.compile_shared(SOURCE)
    script(path, 'case "$1" in --version) echo "g++ 99"; exit;; esac; exec g++ "$@"')
    monkeypatch.setattr(toolchain, "_found", {})
    assert toolchain.find_compiler().version == "g++ 99"
    assert toolchain.compile_shared(SOURCE) != first
